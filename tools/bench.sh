#!/usr/bin/env bash
# The measurement behind `make bench`: tokens per second of the demonstration's model on one worker
# and on two, in turns (a shared machine is fast and slow by the minute), and how the time divides.
# Needs the text that `make demo` leaves in build/demo/, or makes it. Options go to `lockstep train`,
# as in `tools/bench.sh --n-embd 384 --steps 20`.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=build/bench turns=3
mkdir -p $folder
tools/demo.sh --only-text

figure() { # file name: a number of a run's result
    sed -nE "s/^ *\"$2\": ([0-9.eE+-]+),?\$/\1/p" "$1"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

run() { # workers turn options…
    local workers=$1 turn=$2
    shift 2
    build/lockstep train --data build/demo/bible.txt --workers "$workers" --threads 1 --steps 40 \
        --out "$folder/run-$workers-$turn" --json "$folder/$workers-$turn.json" "$@" \
        >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
}

rm -rf "${folder:?}"/*
for turn in $(seq $turns); do
    for workers in 1 2; do run "$workers" "$turn" "$@"; done
done

printf '%7s %12s %9s %9s %9s\n' workers tokens/s step_ms comm_ms speedup
for workers in 1 2; do
    line=()
    for name in tokens_per_s step_ms comm_ms; do
        line+=("$(for turn in $(seq $turns); do
            figure "$folder/$workers-$turn.json" $name
        done | median)")
    done
    [ "$workers" -gt 1 ] || base=${line[0]}
    awk -v n="$workers" -v t="${line[0]}" -v s="${line[1]}" -v c="${line[2]}" -v b="$base" \
        'BEGIN { printf "%7d %12.0f %9.1f %9.2f %9.2f\n", n, t, s, c, t / b }'
done
echo "medians of $turns turns, 1 thread a worker; results: $folder/*.json"
