#!/usr/bin/env bash
# Figures of this machine: all-reduce by size, then training by workers. Run by `make bench`; WORKERS
# (2) is the number of ranks that all-reduce.
#
# Training is measured in rounds: each configuration once per round, then the medians of the rounds,
# so that a noisy machine disturbs all configurations alike.
set -euo pipefail
cd "$(dirname "$0")/.."
program=build/lockstep
folder=build/bench
rounds=${ROUNDS:-3}
mkdir -p "$folder"

workers=${WORKERS:-2}
for buffers in shared plain; do
    "$program" bench allreduce --workers "$workers" --buffers "$buffers" -b 8 -e 256M -f 8 -n 20
    echo
done

# Words drawn from a small list: training speed does not depend on what the text says.
text=$folder/text.txt
awk 'BEGIN { srand(1); n = split("in the beginning was a word and all words were new under sun", w, " ")
             for (i = 0; i < 200000; i++) printf "%s%s", w[int(rand() * n) + 1], i % 12 ? " " : "\n" }' >"$text"

model=(--n-layer 6 --n-head 6 --n-embd 384 --seq-len 256 --batch-size 16 --micro-batch-size 8
       --steps 6 --eval-samples 1 --val-fraction 0)

value() { # JSON file, key
    grep -o "\"$2\": [0-9.e+-]*" "$1" | head -n 1 | cut -d ' ' -f 2
}
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

configurations=("1 1" "1 2" "2 1")
for round in $(seq "$rounds"); do
    for c in "${configurations[@]}"; do
        read -r workers threads <<<"$c"
        "$program" train --data "$text" "${model[@]}" --workers "$workers" --threads "$threads" \
            --out "$folder/run-$workers-$threads-$round" \
            --json "$folder/$workers-$threads-$round.json" >/dev/null
        rm -rf "$folder/run-$workers-$threads-$round"
    done
done

echo
echo "training, 10.8 M parameters, 256 tokens, batch 16 (medians of $rounds rounds)"
printf '%8s %8s %12s %12s %14s\n' workers threads tokens/s step_ms exposed_ms
for c in "${configurations[@]}"; do
    read -r workers threads <<<"$c"
    files=("$folder/$workers-$threads"-*.json)
    for key in tokens_per_s step_ms comm_exposed_ms; do
        for file in "${files[@]}"; do value "$file" "$key"; done | median
    done | paste -s -d ' ' | {
        read -r speed step exposed
        printf '%8s %8s %12.0f %12.1f %14.1f\n' "$workers" "$threads" "$speed" "$step" "$exposed"
    }
done
