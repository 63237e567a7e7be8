#!/usr/bin/env bash
# own_loop with every strategy and 1 to 4 workers, and without a launcher: it learns, and all ranks
# of all strategies end with the same loss and the same weights; 1, 2 and 4 workers among each
# other, too. With 5 the shares differ in size; another strategy's name is refused.
set -euo pipefail
lockstep=$1 own_loop=$2
strategies="ddp zero1 zero2 zero3 fsdp"

fail() { # message…
    printf '%s\n' "$*"
    exit 1
}

# One line of each rank; the lines are added to $results.
run() { # workers strategy
    local output rank
    output=$("$lockstep" run --workers "$1" -- "$own_loop" "$2") || fail "$1 workers, $2: $output"
    for ((rank = 0; rank < $1; rank++)); do
        [ "$(grep -c "^rank $rank of $1: loss" <<<"$output")" = 1 ] ||
            fail "$1 workers, $2: expected one line of rank $rank, found: $output"
    done
    results+=$output$'\n'
}

expect_one_result() { # what
    [ "$(sed '/^$/d; s/.*: //' <<<"$results" | sort -u | wc -l)" = 1 ] ||
        fail "$1: expected the same loss and weights everywhere, found: $results"
    awk 'NF && $6 + 0 > 0.001 { exit 1 }' <<<"$results" ||
        fail "$1: expected losses of at most 0.001, found: $results"
}

results=$("$own_loop")$'\n'
for workers in 1 2 4; do
    for strategy in $strategies; do run "$workers" "$strategy"; done
done
expect_one_result "1, 2 and 4 workers"

for workers in 3 5; do
    results=
    for strategy in $strategies; do run "$workers" "$strategy"; done
    expect_one_result "$workers workers"
done

status=0
output=$("$own_loop" zero4 2>&1) || status=$?
[ "$status" = 2 ] && grep -q "ddp|zero1|zero2|zero3|fsdp" <<<"$output" ||
    fail "zero4: expected code 2 and the strategies, found code $status: $output"
