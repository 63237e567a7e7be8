#!/usr/bin/env bash
# Builds the engines of the comparison whose libraries are here, and says what is missing and which
# package brings it. lockstep and the sketch need nothing but this tree.
#
#     bench/peers/build.sh FOLDER LIBRARY_FOLDER     programs into FOLDER; liblockstep is there
#
# Exit: 0 at least one foreign engine was built, 1 none (then there is nothing to compare with).
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { sed -n "/^#     /s/^#     //p" "$0" >&2; exit 2; }
out=$1
library=$2
mkdir -p "$out"

flags=(-O3 -march=native -ffp-contract=off -D_GNU_SOURCE -Wall -Wextra)
c=(-std=gnu11 "${flags[@]}")

missing() { echo "bench-peers: no $1; it comes with the Debian package $2" >&2; }

cc "${c[@]}" -c -o "$out/core.o" "$source/core.c"
cc "${c[@]}" -o "$out/sketch" "$source/sketch.c" "$out/core.o"
cc "${c[@]}" -I"$source/../../include" -o "$out/lockstep" "$source/lockstep.c" "$out/core.o" \
    -L"$library" -llockstep -Wl,-rpath,"$library"

n_peers=0
build_mpi() { # name, launcher, package of the compiler, package of the launcher
    rm -f "$out/$1"
    if ! command -v "mpicc.$1" >/dev/null; then
        missing "$1 (mpicc.$1)" "$3"
    elif ! command -v "$2" >/dev/null; then
        missing "$1 ($2)" "$4"
    elif "mpicc.$1" "${c[@]}" -o "$out/$1" "$source/mpi.c" "$out/core.o"; then
        n_peers=$((n_peers + 1))
    fi
}
build_mpi openmpi mpirun.openmpi libopenmpi-dev openmpi-bin
build_mpi mpich mpiexec.mpich libmpich-dev mpich

rm -f "$out/gloo"
if ! command -v c++ >/dev/null; then
    missing "C++ compiler (for Gloo)" g++
elif ! echo '#include <gloo/allreduce.h>' | c++ -x c++ -fsyntax-only - 2>/dev/null; then
    missing Gloo libgloo-dev
elif c++ -std=c++17 "${flags[@]}" -o "$out/gloo" "$source/gloo.cc" "$out/core.o" -lgloo; then
    n_peers=$((n_peers + 1))
fi

if [ "$n_peers" -eq 0 ]; then
    echo "bench-peers: nothing to compare with; tools/setup.sh bench installs it" >&2
    exit 1
fi
