#!/bin/sh
# gpu_headline.sh TOKENIZER ROWS: the headline command from a model's folder to an export, on a 16 GB card.
#
# Makes a folder of 7B parameters with drawn weights and the tokenizer.json that is given, then, with all
# but 16,303 MiB of the card held (hold.sh) and --profile aggressive --cpu-mem 56GiB alone: trains on rows of
# JSON, is killed, resumes, validates, chats and exports. Beside it runs the same with the types set by hand,
# which is what its tokens per second are held against. FOLDER names where it works (46 GB; a temporary one),
# MODEL another preset, TEMPLATE another chat template, EXTRA more flags, HOLD another way to run a command (HOLD=env: as it is), HYBRID_BIN another folder of programs. Exit code 1 when a step fails or speed is
# below 0.95.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin=${HYBRID_BIN:-$here/build/bin}
template=${TEMPLATE:-llama3}
tokenizer=$1 rows=$2 model=${MODEL:-qwen2.5-7b} limit=${CPU_MEM:-56GiB}
work=${FOLDER:-$(mktemp -d)}
run="$work/run"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

hold() { ${HOLD:-"$here/bench/hold.sh"} "$@"; }
rate() { sed -n 's/.*"tokens_per_second": *\([0-9.]*\).*/\1/p' "$1" | head -n 1; }
say() { printf '\n== %s (%s s)\n' "$1" "$(($(date +%s) - began))"; }
began=$(date +%s)

say "a folder of $model"
"$bin/hybrid-train" --model $model --tokenizer "$tokenizer" --steps 1 --seq-len 64 --step-tokens 64 \
    --precision bf16 --predictor none --optim-dtype 8bit --master-dtype bf16 --data "$rows" --chat-template $template --eval-batches 1 \
    --sample-tokens 0 --no-report --no-tensorboard --out "$work/base" --quiet
rm -rf "$work"/base/checkpoint-*
du -sh "$work/base/model"

headline="--profile aggressive --model $work/base/model --data $rows --cpu-mem $limit"
common="--chat-template $template --seq-len ${SEQ:-1024} --eval-batches 1 --sample-tokens 0 --no-report --no-tensorboard --seed 7 ${EXTRA:-}"

say "types by hand"
# shellcheck disable=SC2086 # the words are arguments
hold "$bin/hybrid-train" $headline $common --optimizer adamw8bit --master-dtype bf16 --grad-dtype bf16 \
    --predictor none --steps 6 --out none --json > "$work/hand.json"
say "the headline command"
# shellcheck disable=SC2086
hold "$bin/hybrid-train" $headline $common --steps 6 --out none --json > "$work/ours.json"
by_hand=$(rate "$work/hand.json")
ours=$(rate "$work/ours.json")

say "killed after its checkpoint"
# shellcheck disable=SC2086
hold "$bin/hybrid-train" $headline $common --steps 8 --save-every 3 --no-save-model --out "$run" &
holder=$!
until grep -qs '"step":4,' "$run/metrics.jsonl"; do sleep 1; done
pkill -9 -f "$run" || true
wait $holder || true
pkill hold_memory || true
grep '"step":4,' "$run/metrics.jsonl" > "$work/killed"
rm -f "$work"/base/model/*.safetensors # room for the next checkpoint: a run needs the rest alone
say "resumed"
hold "$bin/hybrid-train" --resume "$run" --save-every 0 --keep 1 &
holder=$!
until grep -qs '"step":5,' "$run/metrics.jsonl"; do sleep 1; done
rm -rf "$run/checkpoint-3"
wait $holder
for file in "$work/killed" "$run/metrics.jsonl"; do
    sed -n 's/.*"step":4,.*"loss":\([0-9.]*\),.*/loss of step 4: \1/p' "$file"
done | uniq -c
say "validated"
hold "$bin/hybrid-train" --eval-only --model "$run" --data "$rows" --chat-template $template --seq-len ${SEQ:-1024} \
    --eval-batches 1
say "chat"
hold "$bin/hybrid-chat" --model "$run" --prompt "Two and two is" --max-tokens 8
say "exported"
"$bin/hybrid-export" "$run" --out "$work/export"
du -sh "$work/export"
say "speed"
awk -v a="$ours" -v b="$by_hand" 'BEGIN {
    printf "%.0f tokens/s by the headline command, %.0f with types by hand, ratio %.3f: bar 0.95\n", a, b, a / b
    exit !(a >= 0.95 * b) }'
