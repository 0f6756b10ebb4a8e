#!/bin/sh
# gpu_predict_value.sh: how much compute prediction saves, at size lab, within a time limit.
#
# Runs bench/predict_value with the model of size lab (6 blocks of width 384, 32,768 tokens per step,
# 8,192-entry vocabulary: 13.8M parameters) on books. The whole of it, 2,000 units, three learning
# rates and four seeds, takes half an hour; this one measures the speed first and chooses the number
# of units that SECONDS_MAX seconds have room for, with one learning rate and two seeds: a first look,
# and its output says so. The longest run stays within one epoch: where text repeats, this model learns
# it by heart, more compute makes it worse, and nothing can be said about prediction. Token shards are
# looked for in $HYBRID_TOKENS/lab (bench/peers/make_shards.py --bpe 8192 makes them).
#
#   SECONDS_MAX=150 UNITS=N SEEDS=1,2 LRS=2e-3 ARMS=outer,paid BUDGETS=1.1,1.2 \
#       bench/gpu_predict_value.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
device=${DEVICE:-cuda}
seconds=${SECONDS_MAX:-150}
seeds=${SEEDS:-1,2}
lrs=${LRS:-2e-3}
arms=${ARMS:-outer,paid}
budgets=${BUDGETS:-1.1,1.2}
tokens=${HYBRID_TOKENS:-}/lab
out=${OUT_DIR:-${TMPDIR:-/tmp}/predict_value-lab-$$}
if [ ! -f "$tokens/train.bin" ] || [ ! -f "$tokens/val.bin" ]; then
    echo "gpu_predict_value: skipped, no train.bin and val.bin in HYBRID_TOKENS/lab ($tokens)"
    echo "  bench/peers/make_shards.py --bpe 8192 makes them: see its first lines"
    exit 0
fi
if [ "$device" != cpu ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "gpu_predict_value: skipped, no CUDA device here"
    exit 0
fi
count() { echo "$1" | awk -F, '{ print NF }'; }
value() { echo "$2" | sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"}]*\).*/\1/p"; }
model="layers=6 width=384 heads=6 mlp_width=1536 activation=gelu init_std=0.02 context=512 vocab=8192
    seq_len=512 batch_size=64 grad_accum_steps=1"
data="val_data=$tokens/val.bin device=$device"
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
echo "${card:-$device}; $(date -u +%Y-%m-%d)"
units=${UNITS:-}
if [ -z "$units" ]; then
    # shellcheck disable=SC2086
    probe=$("$programs/gpu_loss" model=nano $model $data data="$tokens/train.bin" steps=60 \
        predictor=none eval_batches=1 ${SETTINGS:-})
    units=$(awk -v rate="$(value tokens_per_second "$probe")" \
        -v size="$(value tokens_per_step "$probe")" -v start="$(value created_s "$probe")" \
        -v limit="$seconds" -v seeds="$(count "$seeds")" -v bytes="$(wc -c < "$tokens/train.bin")" \
        -v lrs="$(count "$lrs")" -v arms="$(count "$arms")" -v budgets="$budgets" 'BEGIN {
            n = split(budgets, b, ","); longer = 0; most = 1
            for (i = 1; i <= n; i++) { longer += b[i]; if (b[i] > most) most = b[i] }
            runs = seeds * (lrs * (arms + 1) + n)
            # validation and prediction cost about an eighth on top of steps
            share = seeds * (lrs * (arms + 1) + longer)
            steps = (limit - runs * start) * rate / size / 1.125 / share
            epoch = (bytes - 1024) / 2 / size / most
            if (steps > epoch) steps = epoch
            if (steps > 2000) steps = 2000
            steps = int(steps / 50) * 50
            print steps < 100 ? 100 : steps
        }')
    echo "measured: $(value tokens_per_second "$probe") tokens/s," \
        "$(value created_s "$probe") s to start; chosen: $units units," \
        "so that all runs take about $seconds s at most and none sees a text twice"
fi
set -- --size lab --steps "$units" --seeds "$seeds" --lrs "$lrs" --arms "$arms" \
    --budgets "$budgets" --data "$tokens/train.bin" --out "$out" --set vocab=8192
for pair in $data ${SETTINGS:-}; do set -- "$@" --set "$pair"; done
echo "$ predict_value $*"
echo "fewer units, seeds and learning rates than size lab (2,000, four, three): a first look"
"$programs/predict_value" "$@"
