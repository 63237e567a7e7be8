#!/bin/sh
# Searches all states of flags.pml: the protocol must hold, and each broken variant must not.
#
#   check.sh        two ranks with all kinds of works, three ranks with one work; under a minute
#   check.sh full   three ranks with more works and pieces too; about six minutes and 4 GiB
set -eu
model=$(cd "$(dirname "$0")" && pwd)/flags.pml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# One search; prints what it found: "errors: 0", or what went wrong first.
search() {
    spin -a "$@" "$model" >spin.log || { cat spin.log; exit 1; }
    "${CC:-cc}" -O2 -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -m20000 -w24 >pan.log
    rm -f ./*.trail
    if grep -q "Search not completed" pan.log; then
        grep -m1 -E "^pan:1|error:" pan.log
    else
        grep -o "errors: [0-9]*" pan.log
    fi
}

must_hold() {
    found=$(search "$@")
    echo "$*: $found"
    [ "$found" = "errors: 0" ] || exit 1
}

must_fail() {
    found=$(search "$@")
    echo "$*: $found"
    case $found in
    *"invalid end state"* | *"assertion violated"*) ;;
    *) echo "the broken variant was not noticed" && exit 1 ;;
    esac
}

direct="-DP0=0 -DP1=0 -DP2=0 -DP3=0"
staged="-DP1=0 -DP2=0 -DP3=0"
must_hold -DN=2
must_hold -DN=3 -DWORKS=1 $direct
must_hold -DN=3 -DWORKS=1 $staged -DP0=1
if [ "${1:-}" = full ]; then
    must_hold -DN=3 -DWORKS=2 $direct
    must_hold -DN=3 -DWORKS=1 $staged -DP0=2
    must_hold -DCOARSE -DN=3 -DWORKS=1 $staged -DP0=3
fi
for wrong in RING_BEFORE_STORE LOOK_BEFORE_ANNOUNCE ONE_PIECE_EARLY DONE_WITH_OWN_PART \
             SLOT_OF_A_STARTED_CALL; do
    must_fail -DN=2 -DWRONG_$wrong
done
