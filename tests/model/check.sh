#!/bin/sh
# Searches all states of flags.pml and channel.pml: the protocols must hold, and each broken variant
# must not.
#
#   check.sh        two ranks with all kinds of works, three with one; two minutes
#   check.sh full   more works, pieces and ranks; some minutes and 4 GiB
set -eu
models=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$models"/*.pml "$folder"
cd "$folder"

optimize=-O2 # of the long searches; those that fail soon are not worth it

# One search of a model; prints what it found: "errors: 0", or what went wrong first.
search() { # model definitions…
    model=$1
    shift
    rm -f pan ./*.trail
    spin -a "$@" "$model.pml" >spin.log 2>&1 || { cat spin.log; exit 1; }
    "${CC:-cc}" -w $optimize -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -m100000 -w24 >pan.log
    if grep -q "Search not completed" pan.log; then
        grep -m1 -E "^pan:1|error:" pan.log
    elif grep -q "search depth too small" pan.log; then
        echo "not all states were searched"
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
    optimize=-O0
    found=$(search "$@")
    echo "$*: $found"
    case $found in
    *"invalid end state"* | *"assertion violated"*) ;;
    *) echo "the broken variant was not noticed" && exit 1 ;;
    esac
}

slots="-DWORKS=4 -DW0=SLOT -DW1=SLOT -DW2=DIRECT -DW3=SLOT"
lines="-DWORKS=4 -DW0=LINE -DW1=LINE -DW2=LINE -DW3=LINE"
pieces="-DWORKS=3 -DW0=2 -DW1=LINE -DW2=1"
one_line="-DWORKS=1 -DW0=LINE -DSLOTS=2"

# Stores that are there at once.
must_hold flags -DN=2
must_hold flags -DN=2 $slots
must_hold flags -DN=2 $lines
must_hold flags -DN=2 $pieces
must_hold flags -DN=3 -DWORKS=1 -DW0=DIRECT
must_hold channel -DN=2 -DROOM=2 -DUNITS=4
must_hold channel -DN=3 -DUNITS=2
# Stores that take their time.
must_hold flags -DN=2 -DBUFFERS -DWORKS=2 -DW0=DIRECT -DW1=LINE
must_hold flags -DN=2 -DBUFFERS -DWORKS=2 -DW0=SLOT -DW1=SLOT
must_hold flags -DN=2 -DBUFFERS -DFENCED
must_hold flags -DN=3 -DBUFFERS $one_line
must_hold channel -DN=2 -DBUFFERS
must_hold channel -DN=2 -DBUFFERS -DFENCED
if [ "${1:-}" = full ]; then
    must_hold flags -DN=2 -DWORKS=2 -DW0=3 -DW1=1
    must_hold flags -DN=3 -DWORKS=1 -DW0=1
    must_hold flags -DN=2 -DBUFFERS
    must_hold flags -DN=2 -DBUFFERS -DWORKS=1 -DW0=3
    must_hold flags -DN=3 -DBUFFERS -DWORKS=1 -DW0=DIRECT
    must_hold flags -DN=3 -DBUFFERS -DFENCED $one_line
    must_hold channel -DN=3 -DBUFFERS -DUNITS=2
    must_hold channel -DN=3 -DUNITS=3 -DROOM=2
fi

for wrong in RING_BEFORE_STORE LOOK_BEFORE_ANNOUNCE DIRECT_DONE_WITH_OWN_PART; do
    must_fail flags -DN=2 -DWRONG_$wrong
done
must_fail flags -DN=2 $lines -DWRONG_LINE_OF_A_CALL_UNDER_WAY
must_fail flags -DN=2 $lines -DWRONG_NOBODY_RINGS_WHO_IS_AHEAD
must_fail flags -DN=2 $slots -DWRONG_SLOT_OF_A_CALL_UNDER_WAY
must_fail flags -DN=2 -DWORKS=1 -DW0=3 -DWRONG_ONE_PIECE_EARLY
must_fail flags -DN=2 -DBUFFERS -DWRONG_NO_MEMBARRIER
must_fail flags -DN=2 -DBUFFERS -DWRONG_SLEEP_AFTER_A_CHANGE
must_fail flags -DN=2 -DBUFFERS -DFENCED -DWRONG_NO_FENCE
must_fail flags -DN=3 -DBUFFERS $one_line -DWRONG_NO_FENCE_FOR_LAST
must_fail channel -DN=2 -DWRONG_WRITE_INTO_FULL
must_fail channel -DN=2 -DWRONG_READER_DOES_NOT_RING
must_fail channel -DN=2 -DBUFFERS -DWRONG_NO_MEMBARRIER
