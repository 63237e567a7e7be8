#!/usr/bin/env bash
# uneven with 1, 2, 3 and 5 workers: all ranks make as many steps as the one with most data needs,
# end with the same bits, and find the line 2 x - 1.
set -euo pipefail
lockstep=$1 uneven=$2

fail() { # message…
    printf '%s\n' "$*"
    exit 1
}

for n in 1 2 3 5; do
    output=$("$lockstep" run --workers "$n" -- "$uneven")
    n_steps=$(((501 + 300 * (n - 1) + 7) / 8))
    for ((rank = 0; rank < n; rank++)); do
        grep -q "^rank $rank of $n: $((501 + 300 * rank)) samples, $n_steps steps," <<<"$output" ||
            fail "$n workers: expected $n_steps steps of rank $rank, found: $output"
    done
    [ "$(sed 's/.*steps, //' <<<"$output" | sort -u | wc -l)" = 1 ] ||
        fail "$n workers: expected the same line on all ranks, found: $output"
    awk '{ if (($10 - 2) ^ 2 + ($14 + 1) ^ 2 > 1e-6) exit 1 }' <<<"${output//,/}" ||
        fail "$n workers: expected slope 2 and value -1, found: $output"
done
