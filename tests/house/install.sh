#!/usr/bin/env bash
# The installed tree serves a program author: a program of ten lines builds with pkg-config and with
# find_package, against the shared and the static library, and runs. The tree is moved after the
# installation, so nothing in it may remember where it was.
. "$(dirname "$0")/house.sh"

cmake --install "$LS_BUILD" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix
libdir=$(dirname "$(dirname "$(find "$prefix" -name lockstep.pc)")")
export PKG_CONFIG_PATH=$libdir/pkgconfig

mkdir "$work/app"
cat >"$work/app/main.c" <<'APP'
#include <lockstep/lockstep.h>
#include <stdio.h>

int main(void) {
    char compiled[32];
    snprintf(compiled, sizeof compiled, "%d.%d.%d", LS_VERSION_MAJOR, LS_VERSION_MINOR,
             LS_VERSION_PATCH);
    printf("%s %s\n", compiled, ls_version());
    return 0;
}
APP
cat >"$work/app/CMakeLists.txt" <<'APP'
cmake_minimum_required(VERSION 3.25)
project(app C)
find_package(lockstep 0.1 REQUIRED)
add_executable(app main.c)
target_link_libraries(app PRIVATE lockstep::lockstep)
add_executable(app_static main.c)
target_link_libraries(app_static PRIVATE lockstep::lockstep_static)
APP
version=$(pkg-config --modversion lockstep)

check_run() { # what program
    local found
    found=$(LD_LIBRARY_PATH=$libdir "$2" 2>&1) || true
    [ "$found" = "$version $version" ] || fault "$1: expected '$version $version', found '$found'"
}

cd "$work/app"
# shellcheck disable=SC2046 # pkg-config answers with words
"$LS_CC" -std=c11 -o pc main.c $(pkg-config --cflags --libs lockstep)
check_run "pkg-config, shared" ./pc

# All of the archive, not only what ls_version needs: a library missing from Libs.private shows.
# shellcheck disable=SC2046
"$LS_CC" -std=c11 -o pc_static main.c $(pkg-config --cflags lockstep) \
    -Wl,--whole-archive "$libdir/liblockstep.a" -Wl,--no-whole-archive \
    $(pkg-config --static --libs lockstep | sed 's/-llockstep//')
check_run "pkg-config, static" ./pc_static

{
    cmake -S . -B build -DCMAKE_C_COMPILER="$LS_CC" -DCMAKE_PREFIX_PATH="$prefix"
    env -u MAKEFLAGS cmake --build build
} >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
check_run "find_package, shared" build/app
check_run "find_package, static" build/app_static
[[ "$(ldd build/app_static)" != *liblockstep* ]] ||
    fault "find_package, static: links the shared library"

[ -L "$libdir/liblockstep.so.${version%%.*}" ] || fault "liblockstep.so.${version%%.*} is no link"
if [ -x "$prefix/bin/lockstep" ]; then
    "$prefix/bin/lockstep" version >/dev/null || fault "the installed program does not run"
else
    fault "bin/lockstep: not installed"
fi
finish
