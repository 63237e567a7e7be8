#!/usr/bin/env bash
# Installs what is missing to build, test and demonstrate Lockstep, on Debian and Ubuntu.
#
#     tools/setup.sh [--check] [build] [test] [demo] [bench]     (no set named: test and demo)
#
# Every set takes in build. bench is what `make bench-peers` compares Lockstep with.
#
# Each need below is a row: set, what it is, a probe that finds it, and Debian packages that bring
# it (the first one that this machine's archive has is taken). Probes look for the thing itself, not
# for its package, so a library built by hand counts and nothing is done when nothing is missing.
# Root installs; anybody else is told the one command to run. --check only reports.
# Exit: 0 nothing is missing (any more), 1 something is, 2 wrong usage.
set -euo pipefail

needs() {
    cat <<'ROWS'
build | C compiler             | has_command cc                          | gcc
build | C library headers      | has_header stdio.h                      | libc6-dev
build | make                   | has_command make                        | make
build | CMake                  | has_command cmake                       | cmake
build | pkg-config             | has_command pkg-config                  | pkg-config pkgconf
build | jansson                | has_header jansson.h                    | libjansson-dev
build | libsodium              | has_header sodium.h                     | libsodium-dev
build | xxHash                 | has_header xxhash.h                     | libxxhash-dev
build | utf8proc               | has_header utf8proc.h                   | libutf8proc-dev
build | zlib                   | has_header zlib.h                       | zlib1g-dev
build | oneDNN or OpenBLAS     | has_matrix_products                     | libdnnl-dev libonednn-dev libopenblas-dev
test  | C++ compiler           | has_command c++                         | g++
test  | cmocka                 | has_header cmocka.h                     | libcmocka-dev
test  | Fortran compiler       | has_command gfortran                    | gfortran
test  | spin                   | has_command spin                        | spin
test  | Fashion-MNIST          | has_folder /usr/share/datasets/fashion-mnist | dataset-fashion-mnist
demo  | King James Bible       | has_command bible                       | bible-kjv
bench | C++ compiler           | has_command c++                         | g++
bench | Open MPI               | has_command mpicc.openmpi               | libopenmpi-dev
bench | Open MPI's launcher    | has_command mpirun.openmpi              | openmpi-bin
bench | MPICH                  | has_command mpicc.mpich                 | libmpich-dev
bench | MPICH's launcher       | has_command mpiexec.mpich               | mpich
bench | Gloo                   | finds_header gloo/config.h              | libgloo-dev
ROWS
}
readonly CMAKE_LEAST=3.25

has_command() { command -v "$1" >/dev/null; }

# The header is where the compiler (or, without one, Debian) looks. cmocka.h wants the others first.
has_header() {
    if has_command cc; then
        printf '#include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h "$1" |
            cc -x c -fsyntax-only - 2>/dev/null
    else
        compgen -G "/usr/include/$1" >/dev/null ||
            compgen -G "/usr/include/*-linux-gnu/$1" >/dev/null
    fi
}

# The same for headers of C++: looked up, not compiled.
finds_header() {
    if has_command cc; then
        printf '#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1
    else
        has_header "$1"
    fi
}

# oneDNN. OpenBLAS counts where apt offers no oneDNN, and for those who could not install it anyway.
has_matrix_products() {
    has_header oneapi/dnnl/dnnl.h && return 0
    has_header cblas.h && has_library openblas || return 1
    [ "$(id -u)" -ne 0 ] || { ! apt_knows libdnnl-dev && ! apt_knows libonednn-dev; }
}

has_folder() { [ -d "$1" ]; }

has_library() { [[ "$(cc -print-file-name="lib$1.so")" == */* ]]; }

cmake_is_new() {
    local found
    found=$(cmake --version | sed -n '1s/.* //p')
    [ "$(printf '%s\n' "$CMAKE_LEAST" "$found" | sort -V | head -n 1)" = "$CMAKE_LEAST" ]
}

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Rows of the wanted sets whose probe fails, as "what|packages".
list_missing() {
    local set what probe packages
    needs | while IFS='|' read -r set what probe packages; do
        [[ " $wanted " == *" ${set// /} "* ]] || continue
        # shellcheck disable=SC2086 # the probe is a command with its arguments
        $probe || printf '%s|%s\n' "$(echo $what)" "$(echo $packages)"
    done
}

apt_knows() { [ -n "$(apt-cache show "$1" 2>/dev/null)" ]; }

# The first of the packages that apt knows; the first of all where apt knows nothing yet.
choose_package() {
    local package
    for package in "$@"; do
        if apt_knows "$package"; then
            echo "$package"
            return
        fi
    done
    echo "$1"
}

choose_packages() {
    local what packages
    while IFS='|' read -r what packages; do
        # shellcheck disable=SC2086
        choose_package $packages
    done <<<"$1" | tr '\n' ' '
}

apt_quietly() {
    local log
    log=$(mktemp)
    if ! DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" \
            </dev/null >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# CMake's own complaint about its version says nothing of where to get a newer one.
check_cmake() {
    if has_command cmake && ! cmake_is_new; then
        die "CMake $CMAKE_LEAST or later is needed, found $(cmake --version | sed -n '1s/.* //p')" \
            "($(command -v cmake)). Get it with 'pip install cmake' (Debian package" \
            "python3-pip), see that it comes first in PATH, and start again."
    fi
}

check_only=no
wanted=""
for word in "$@"; do
    case $word in
    --check) check_only=yes ;;
    build | test | demo | bench) wanted+=" $word" ;;
    *)
        echo "usage: tools/setup.sh [--check] [build] [test] [demo] [bench]" >&2
        exit 2
        ;;
    esac
done
# Nothing is tested or shown without being built.
wanted="build ${wanted:-test demo}"

missing=$(list_missing)
if [ -z "$missing" ]; then
    check_cmake
    [ $check_only = no ] || say "nothing is missing"
    exit 0
fi
say "missing: $(cut -d'|' -f1 <<<"$missing" | paste -sd, | sed 's/,/, /g')"

if ! has_command apt-get; then
    die "there is no apt-get here: install these with this system's package manager"
fi
if [ $check_only = yes ] || [ "$(id -u)" -ne 0 ]; then
    say "to install it, run:"
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends" \
        "$(choose_packages "$missing")"
    exit 1
fi

apt_quietly update || say "apt-get update failed; going on with the package lists that are here"
packages=$(choose_packages "$missing")
say "installing $packages"
# shellcheck disable=SC2086
apt_quietly install -y --no-install-recommends $packages || die "apt-get could not install them"
if [[ " $packages" == *libopenblas-dev* ]]; then
    say "no oneDNN is packaged here: OpenBLAS takes its place (float32 products only)"
fi

hash -r
missing=$(list_missing)
[ -z "$missing" ] || die "still missing: $(cut -d'|' -f1 <<<"$missing" | paste -sd,)"
check_cmake
