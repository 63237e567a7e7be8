#!/usr/bin/env bash
# own_loop with 1, 2, 4 and 8 workers, and without a launcher: it learns, and all ranks of all runs
# end with the same loss and the same weights. With 3 they agree among themselves; 9 are too many.
set -euo pipefail
lockstep=$1 own_loop=$2
results=""

fail() { # message…
    printf '%s\n' "$*"
    exit 1
}

for n in 1 2 4 8; do
    output=$("$lockstep" run --workers "$n" -- "$own_loop")
    for ((rank = 0; rank < n; rank++)); do
        [ "$(grep -c "^rank $rank of $n: loss" <<<"$output")" = 1 ] ||
            fail "$n workers: expected one line of rank $rank, found: $output"
    done
    results+=$output$'\n'
done
results+=$("$own_loop")

[ "$(sed 's/.*: //' <<<"$results" | sort -u | wc -l)" = 1 ] ||
    fail "expected the same loss and weights everywhere, found: $results"
awk '{ if ($6 + 0 > 0.001) exit 1 }' <<<"$results" ||
    fail "expected losses of at most 0.001, found: $results"

# Shares of 3, 3 and 2 micro-batches: the same average, added in another order.
output=$("$lockstep" run --workers 3 -- "$own_loop")
[ "$(sed 's/.*: //' <<<"$output" | sort -u | wc -l)" = 1 ] ||
    fail "3 workers: expected the same loss and weights, found: $output"

if output=$("$lockstep" run --workers 9 -- "$own_loop" 2>&1); then
    fail "9 workers for 8 micro-batches: expected a refusal, found: $output"
fi
grep -q "0 micro-batches, at least 1" <<<"$output" || fail "9 workers: unexpected words: $output"
