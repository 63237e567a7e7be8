#!/usr/bin/env bash
# The demonstration behind `make demo`: a small GPT learns the King James Bible, byte for byte, on
# two workers, then writes some verses of its own. Everything lands in build/demo/.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly text=build/demo/bible.txt run=build/demo/run
readonly text_bytes=4298239

mkdir -p build/demo
if [ "$(stat -c %s $text 2>/dev/null)" != $text_bytes ]; then
    # -l79: the width would otherwise follow the terminal, and with it the text.
    bible -l79 'gen1:1-rev22:21' </dev/null >$text.part
    mv $text.part $text
fi

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }

# Runs a command after showing it as one would type it.
show() {
    local word line="\$"
    for word in "$@"; do
        [[ $word == *[[:space:]]* ]] && line+=" \"$word\"" || line+=" $word"
    done
    say "$line"
    "$@"
}

show build/lockstep train --data $text --workers 2 --steps 1800 --batch-size 16 \
    --n-layer 4 --n-head 4 --n-embd 128 --seq-len 128 --lr 0.003 --beta2 0.99 --out $run
show build/lockstep generate --model $run/model --prompt "In the beginning" --temperature 0.6 \
    --tokens 400

say "Next: train on your own text, build/lockstep train --data FILE --workers 2 --out my-run" \
    "(all options: build/lockstep train --help)."
