#!/usr/bin/env bash
# own_hook with 1, 3 and 5 workers ends at the middle rank's target (an average would not), and with
# 2 and 4 all ranks end at the same weights.
set -euo pipefail
lockstep=$1 own_hook=$2

fail() { # message…
    printf '%s\n' "$*"
    exit 1
}

for n in 1 2 3 4 5; do
    output=$("$lockstep" run --workers "$n" -- "$own_hook")
    for ((rank = 0; rank < n; rank++)); do
        [ "$(grep -c "^rank $rank of $n: weights" <<<"$output")" = 1 ] ||
            fail "$n workers: expected one line of rank $rank, found: $output"
    done
    [ "$(sed 's/.*: //' <<<"$output" | sort -u | wc -l)" = 1 ] ||
        fail "$n workers: expected the same weights on all ranks, found: $output"
    middle=$((n / 2))
    expected="weights $((middle * middle)) to $((middle * middle + 99))"
    [ $((n % 2)) = 0 ] || grep -q ": $expected\$" <<<"$output" ||
        fail "$n workers: expected $expected, found: $output"
done
