#!/bin/sh
# finetune_peer.sh: does fine-tuning on rows give the same loss as PyTorch?
#
# Trains a small model on books, fine-tunes the folder it leaves on GSM8K with the loss on answers alone,
# and does the same in PyTorch with Hugging Face's tokenizers (bench/peers/torch_finetune.py). Prints both
# held-out answer losses; fails when they are more than 1 % apart. Needs books_train.txt.xz and instruct/ in
# $HYBRID_DATA or ../shared/data, and in $PYTHON (default python3) torch, transformers and tokenizers;
# without them it says so and does nothing.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_TRAIN:-$here/build/bin/hybrid-train}
python=${PYTHON:-python3}
steps=${STEPS:-200} batch=${BATCH:-8} seq=${SEQ:-256} lr=${LR:-1e-3} base_steps=${BASE_STEPS:-400}
device=${DEVICE:-cpu}
data=
for folder in "${HYBRID_DATA:-}" "$here/../shared/data"; do
    [ -n "$data" ] || [ ! -f "$folder/instruct/gsm8k_train.jsonl" ] || data=$folder
done
if [ -z "$data" ] || ! "$python" -c 'import torch, transformers, tokenizers' 2> /dev/null; then
    echo "finetune_peer: skipped, no data or no PyTorch (set HYBRID_DATA and PYTHON)"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tokenizer=$here/tests/golden/rows/tokenizer.json
train=$data/instruct/gsm8k_train.jsonl
val=$work/val.jsonl
head -n 300 "$data/instruct/gsm8k_test.jsonl" > "$val"
xz -dc "$data/books_train.txt.xz" 2> /dev/null | head -c 8000000 > "$work/books.txt" || true

echo "$(date +%Y-%m-%d), $(uname -m), $(nproc) cores, $device: $base_steps steps on books, then" \
    "$steps steps of $batch x $seq on GSM8K at $lr"
common="--device $device --precision fp32 --predictor none --tail-share 0
    --seq-len $seq --batch-size $batch --grad-accum-steps 1 --sample-tokens 0 --quiet"
"$program" --model nano --vocab 640 $common --data "$work/books.txt" --tokenizer "$tokenizer" --steps "$base_steps" \
    --eval-batches 20 --out "$work/base"
"$program" --model "$work/base/model" $common --data "$train" --val-data "$val" \
    --tokenizer "$tokenizer" --steps "$steps" --lr "$lr" --schedule constant --lr-warmup-steps 0 \
    --weight-decay 0.1 --beta2 0.95 --grad-clip 1 --packing off --shuffle=false --out "$work/tuned"
ours=$(sed -n 's/^  "val_loss": \([-0-9.e]*\),*$/\1/p' "$work/tuned/summary.json")
"$python" "$here/bench/peers/torch_finetune.py" "$work/base/model" "$tokenizer" "$train" "$val" \
    --steps "$steps" --batch "$batch" --seq "$seq" --lr "$lr" > "$work/peer.json"
peer=$(sed -n 's/.*"after": \([-0-9.e]*\).*/\1/p' "$work/peer.json")
before=$(sed -n 's/.*"before": \([-0-9.e]*\).*/\1/p' "$work/peer.json")
printf 'held-out answer loss: before %.4f, ours %.6f, PyTorch %.6f\n' "$before" "$ours" "$peer"
if awk "BEGIN { d = $ours / $peer - 1; exit !(d < 0.01 && d > -0.01) }"; then
    echo "PASS: within 1 %"
else
    echo "FAIL: more than 1 % apart"
    exit 1
fi
