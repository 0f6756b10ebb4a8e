#!/bin/sh
# gpu_loss.sh: does a run reach the same loss as PyTorch in bf16, from the same weights on the same batches?
#
# Trains GPT-2 124M and 350M for some steps on books, writes down weights and batches, has PyTorch train
# the same (bench/peers/torch_gpt2.py) and prints both held-out losses; fails when one differs by more
# than 0.5 %. Token shards train.bin and val.bin are looked for in $HYBRID_TOKENS/books or
# $HYBRID_TOKENS; bench/peers/make_shards.py makes them. Needs python3 with PyTorch and a card.
#
#   MODELS="gpt2-124m gpt2-350m" STEPS=300 DEVICE=cuda PRECISION=bf16 BATCH=N bench/gpu_loss.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_loss
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
precision=${PRECISION:-bf16}
steps=${STEPS:-300}
tokens=${HYBRID_TOKENS:-}
[ ! -f "$tokens/books/train.bin" ] || tokens=$tokens/books
if [ ! -f "$tokens/train.bin" ] || [ ! -f "$tokens/val.bin" ]; then
    echo "gpu_loss: skipped, no train.bin and val.bin in HYBRID_TOKENS=$tokens"
    echo "  bench/peers/make_shards.py makes them: see its first lines"
    exit 0
fi
check="import sys, torch; sys.exit('$device' != 'cpu' and not torch.cuda.is_available())"
if ! "$python" -c "$check" 2>/dev/null; then
    echo "gpu_loss: skipped, no PyTorch with a CUDA device here"
    exit 0
fi
# Initial weights pass through memory, not a disk, where the system offers that.
base=${TMPDIR:-/tmp}
[ ! -w /dev/shm ] || base=/dev/shm
work=$(mktemp -d "$base/gpu_loss.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "$ MODELS=\"${MODELS:-gpt2-124m gpt2-350m}\" STEPS=$steps PRECISION=$precision bench/gpu_loss.sh"
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
echo "${card:-$device}; $(date -u +%Y-%m-%d); data $(basename "$tokens")"
failed=0
for model in ${MODELS:-gpt2-124m gpt2-350m}; do
    # Half the batch for the larger model: each of the four runs stays near half a minute.
    case $model in *124m) batch=${BATCH:-16} ;; *) batch=${BATCH:-8} ;; esac
    rm -rf "$work/dump" && mkdir "$work/dump"
    # shellcheck disable=SC2086
    "$program" --dump "$work/dump" model="$model" device="$device" precision="$precision" \
        data="$tokens/train.bin" val_data="$tokens/val.bin" steps="$steps" batch_size="$batch" \
        grad_accum_steps=1 predictor=none precision_correct=same offload_strategy=none \
        eval_batches="${EVAL_BATCHES:-0}" ${SETTINGS:-} > "$work/ours.json"
    "$python" "$here/bench/peers/torch_gpt2.py" "$work/dump" --ours "$work/ours.json" \
        --device "$device" --precision "$precision" || failed=1
done
exit $failed
