#!/bin/sh
# gpu_headline.sh TOKENIZER ROWS: the headline command from a model's folder to an export, on a 16 GB card.
#
# Makes a folder of 7B parameters with drawn weights and the tokenizer.json that is given. Then, with all
# but 16,303 MiB of the card held by hold_memory and --profile aggressive --cpu-mem 56GiB alone: trains on
# rows of JSON, is killed with SIGKILL after a checkpoint, resumes, validates, chats and exports. The losses
# of steps that were made twice have to be equal in every digit. Beside it the same run with its types set by
# hand, whose tokens per second (median of a step) ours are held against. Exit code 1 when a step fails, or
# speed is below 0.95.
#
#   ROWS: {"messages": [{"role": "user", "content": "..."}, ...]} a line
#   FOLDER=/tmp      where to work, in a folder of its own that is removed at the end; 62 GB free
#   MODEL=qwen2.5-7b CPU_MEM=56GiB SEQ=1024 TEMPLATE=llama3 EXTRA="--flag ..."
#   LEAVE=16303      MiB of the card that are left; LEAVE=none: all of it, or no card at all
#   HYBRID_BIN, HYBRID_BENCH: other folders of built programs
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin=${HYBRID_BIN:-$here/build/bin}
leave=${LEAVE:-16303}
if [ $# -ne 2 ]; then
    echo "gpu_headline: skipped, it needs a tokenizer.json and rows: see its first lines"
    exit 0
fi
if [ "$leave" != none ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "gpu_headline: skipped, no CUDA device here"
    exit 0
fi
tokenizer=$1 rows=$2
template=${TEMPLATE:-llama3} seq=${SEQ:-1024}
work=$(mktemp -d "${FOLDER:-/tmp}/gpu_headline.XXXXXX")
run=$work/run
held=
running=
finish() {
    [ -z "$running" ] || kill -9 "$running" 2> /dev/null || true
    [ -z "$held" ] || kill "$held" 2> /dev/null || true
    rm -rf "$work"
}
trap finish EXIT
began=$(date +%s)
say() { printf '\n== %s (%s s)\n' "$1" "$(($(date +%s) - began))"; }

train() { # in the background; its process is $running
    "$bin/hybrid-train" "$@" > "$work/log" 2>&1 &
    running=$!
}

# The run in the background has made step N; fails when it ends before, or after ten minutes.
await() { # STEP FOLDER
    tries=0
    until grep -qs "\"step\":$1," "$2/metrics.jsonl"; do
        sleep 0.5
        tries=$((tries + 1))
        if [ $tries -ge 1200 ] || ! kill -0 "$running" 2> /dev/null; then
            echo "gpu_headline: $2 did not come to step $1"
            tail -n 20 "$work/log"
            exit 1
        fi
    done
}

stop() { # with SIGKILL
    kill -9 "$running"
    wait "$running" 2> /dev/null || true
    running=
}

# Median tokens per second of steps 2 to 6: the first one tunes products and touches memory.
rate() {
    sed -n 's/.*"step":[2-6],.*"tokens_per_second":\([0-9.]*\),.*/\1/p' "$1/metrics.jsonl" |
        sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
losses() { sed -n "s/.*\"step\":\([$1]\),.*\"loss\":\([0-9.e+-]*\),.*/  step \1: loss \2/p" "$2"; }

if [ "$leave" != none ]; then
    "${HYBRID_BENCH:-$here/build/bench}/hold_memory" --leave "$leave" > "$work/held" 2>&1 < /dev/null &
    held=$!
    until grep -q left "$work/held"; do
        kill -0 "$held" || { cat "$work/held"; exit 1; }
        sleep 0.2
    done
    cat "$work/held"
fi

say "a folder of ${MODEL:-qwen2.5-7b}, drawn"
# shellcheck disable=SC2086 # MODEL may bring flags
"$bin/hybrid-train" --profile aggressive --model ${MODEL:-qwen2.5-7b} --tokenizer "$tokenizer" --steps 1 \
    --seq-len 64 --step-tokens 64 --predictor none --data "$rows" --chat-template "$template" \
    --eval-batches 1 --sample-tokens 0 --no-report --no-tensorboard --out "$work/base" --quiet
rm -rf "$work"/base/checkpoint-*
du -sh "$work/base/model"

set -- --profile aggressive --model "$work/base/model" --data "$rows" --cpu-mem "${CPU_MEM:-56GiB}" \
    --chat-template "$template" --seq-len "$seq" --eval-batches 1 --sample-tokens 0 --no-report \
    --no-tensorboard --no-save-model --seed 7 --steps 10
say "types by hand: $*"
# shellcheck disable=SC2086 # EXTRA is words
train "$@" ${EXTRA:-} --optimizer adamw8bit --master-dtype bf16 --grad-dtype bf16 --predictor none \
    --out "$work/hand"
await 6 "$work/hand"
stop
by_hand=$(rate "$work/hand")
rm -rf "$work/hand"

say "the headline command: the same without types; killed after step 8"
# shellcheck disable=SC2086
train "$@" ${EXTRA:-} --save-every 6 --out "$run"
await 8 "$run"
stop
cat "$work/log"
ours=$(rate "$run")
cp "$run/metrics.jsonl" "$work/killed"
is_fast=yes
awk -v a="$ours" -v b="$by_hand" 'BEGIN {
    printf "%.0f tokens/s by the headline command, %.0f with types by hand, ratio %.3f: bar 0.95\n", a, b, a / b
    exit !(a >= 0.95 * b) }' || is_fast=no
rm -f "$work"/base/model/*.safetensors # room for the next checkpoint; a run needs the rest alone

say "resumed"
train --resume "$run" --save-every 0 --keep 1
await 9 "$run"
rm -rf "$run/checkpoint-6" # the same
wait "$running" || { cat "$work/log"; exit 1; }
running=
losses 78 "$work/killed" > "$work/before"
losses 78 "$run/metrics.jsonl" > "$work/after"
cat "$work/after"
[ -s "$work/after" ] && cmp "$work/before" "$work/after" && echo "equal in every digit to those before it was killed"

say "validated, on 64 rows"
head -n 64 "$rows" > "$work/some.jsonl"
"$bin/hybrid-train" --eval-only --model "$run" --data "$work/some.jsonl" --chat-template "$template" \
    --seq-len "$seq"
say "chat"
"$bin/hybrid-chat" --model "$run" --prompt "Two and two is" --max-tokens 8
say "exported"
"$bin/hybrid-export" "$run" --out "$work/export"
du -sh "$work/export"
say "done"
[ $is_fast = yes ]
