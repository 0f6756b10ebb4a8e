#!/bin/bash
# gpu_shortage.sh: what happens to a run on a card when another program takes its memory.
#
# GPT-2 124M, 32 x 1024 tokens in two micro-batches of 32, with moves, validation and checkpoints. Another
# program (hold_memory) takes all memory of the card during the run, for two seconds only, while the run
# starts, or before it. Prints for each case how the run ended, how its losses differ from an undisturbed
# run, and what it did. "other split" is a run without a shortage and with micro-batches half as large: it
# shows the effect of another order of sums alone, for comparison.
# HYBRID_BUILD names another folder than build.
set -u
build=${HYBRID_BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

train() { # NAME FLAG...
    local name=$1
    shift
    timeout 120 "$build/bin/hybrid-train" --device cuda --model gpt2-124m --seq-len 1024 \
        --batch-size 32 --grad-accum-steps 2 --steps 40 --full-steps 6 --correct-steps 2 \
        --predict-from 0.1 --predict-until 0.9 --eval-every 20 --save-every 25 --tune off --seed 5 \
        --sample-tokens 0 --save-model=off --out "$folder/$name" "$@" > "$folder/$name.log" 2>&1
    echo $? > "$folder/$name.code"
}
losses() { grep -v '"event"' "$folder/$1/metrics.jsonl" 2> /dev/null | grep -o '"loss":[0-9.e+-]*' | cut -d: -f2; }
await() { # NAME LINES
    for _ in $(seq 400); do
        [ "$(losses "$1" | wc -l)" -ge "$2" ] && return
        sleep 0.05
    done
}
hold() { # MIB
    "$build/bench/hold_memory" --leave "$1" < /dev/null > "$folder/hold.log" 2>&1 &
    holder=$!
}
let_go() {
    kill $holder
    wait $holder 2> /dev/null
}
actions() { # NAME
    grep -o '"event":"\(recovery\|batch\|plan\)".*' "$folder/$1/metrics.jsonl" 2> /dev/null |
        sed 's/"spent.*"batch_size":\([0-9]*\),"grad_accum":\([0-9]*\).*"reason":"\(.*\)"}/\1 x \2: \3/' |
        cut -c1-150 | tail -n 3
    grep -o 'micro-batches of .*' "$folder/$1.log" | head -n 1
}
report() { # NAME WORDS
    paste <(losses plain) <(losses "$1") | awk -v words="$2" -v code="$(cat "$folder/$1.code")" '
        NF == 2 { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d; equal += d == 0; all++ }
        END { printf "%-36s exit %s, %2d losses, %2d equal, largest difference %.1e\n", words, code, all, equal, most }'
    actions "$1" | sed 's/^/    /'
}

if ! command -v nvidia-smi > /dev/null || ! nvidia-smi > /dev/null 2>&1; then
    echo "gpu_shortage: skipped, no CUDA device here"
    exit 0
fi
[ -x "$build/bench/hold_memory" ] || { echo "gpu_shortage: $build/bench/hold_memory is missing; build it with make bench"; exit 2; }
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
date +%F
train plain
report plain "undisturbed"
train again
report again "undisturbed, again"
train split --batch-size 16 --grad-accum-steps 4
report split "other split: 16 x 4"

train mid & run=$!
await mid 4
hold 0
wait $run
let_go
report mid "all is taken in mid-run"

train blink & run=$!
await blink 4
hold 0
sleep 2
let_go
wait $run
report blink "all is taken for two seconds"

train start & run=$!
sleep 0.6
hold 2500
wait $run
let_go
report start "all but 2,500 MiB while it starts"

hold 3000
sleep 1
train little
let_go
report little "all but 3,000 MiB from before"

hold 700
sleep 1
train none
let_go
echo "all but 700 MiB from before          exit $(cat "$folder/none.code"): $(tail -n 1 "$folder/none.log" | cut -c1-300)"
