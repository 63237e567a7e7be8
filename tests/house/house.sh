# shellcheck shell=bash
# Sourced by the checks of this folder: they look at the tree and the build, not at behaviour.
# ctest sets LS_SOURCE, LS_BUILD, LS_CC, LS_CXX (see tests/CMakeLists.txt); run by hand, from the
# root of the tree, they take build/, cc and c++.
set -euo pipefail
export LC_ALL=C

: "${LS_SOURCE:=$PWD}" "${LS_BUILD:=$LS_SOURCE/build}" "${LS_CC:=cc}" "${LS_CXX:=c++}"
n_faults=0
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-house.XXXXXX")
trap 'rm -rf "$work"' EXIT

fault() { # message…: counted, so that one run shows all of them
    printf '%s\n' "$*"
    n_faults=$((n_faults + 1))
}

finish() {
    [ "$n_faults" -eq 0 ] || { echo "$n_faults fault(s)"; exit 1; }
}

# The calls of src/CMakeLists.txt as lines "name level below…", the only table of the layers.
read_layers() { # tree
    sed 's/#.*//' "$1/src/CMakeLists.txt" | tr '\n' ' ' |
        grep -oE 'lockstep_(layer|program)\([^)]*\)' |
        sed -E 's/^[^(]*\(//; s/\)$//; s/ LIBS .*//; s/ (LEVEL|BELOW)( |$)/ /g; s/ +/ /g'
}
