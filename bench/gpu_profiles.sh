#!/bin/sh
# gpu_profiles.sh: how much held-out loss does profile aggressive cost, with every small type that it may use?
#
# Trains on books twice with equal compute, data, seed and learning rate: plain AdamW in fp32 (its products
# may use TF32, 10 bits of mantissa), and profile aggressive with prediction on and all types as it takes
# them where memory is short: bf16 weights that are rounded stochastically, bf16 gradients, m and v in 8 bits, a
# predictor in 8 bits. GPT-2 124M for 1,000 steps with three seeds, and Llama-3.2-1B for 300 with one. Prints held-out
# losses; fails when the mean over seeds is more than 1 % above. Token shards as for bench/gpu_loss.sh.
#
#   MODELS="gpt2-124m llama-3.2-1b" STEPS=N SEEDS="1 2 3" BATCH=8 DEVICE=cuda TF32=on bench/gpu_profiles.sh
#   TYPES=chosen       types as the planner chooses them on this card: fp32 where all fits
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_loss
device=${DEVICE:-cuda}
tf32=${TF32:-on}
batch=${BATCH:-8}
models=${MODELS:-gpt2-124m llama-3.2-1b}
tokens=${HYBRID_TOKENS:-}
[ ! -f "$tokens/books/train.bin" ] || tokens=$tokens/books
if [ ! -f "$tokens/train.bin" ] || [ ! -f "$tokens/val.bin" ]; then
    echo "gpu_profiles: skipped, no train.bin and val.bin in HYBRID_TOKENS=$tokens"
    echo "  bench/peers/make_shards.py makes them: see its first lines"
    exit 0
fi
if [ "$device" != cpu ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "gpu_profiles: skipped, no CUDA device here"
    exit 0
fi
small="optim_dtype=8bit grad_dtype=bf16 master_dtype=bf16 predictor_dtype=8bit"
case ${TYPES:-small} in
small) ;;
chosen) small= ;;
*)
    echo "gpu_profiles: TYPES is \"$TYPES\"; accepted are small and chosen" >&2
    exit 2
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
value() { sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"]*\).*/\1/p" "$work/$2.json"; }
run() { # NAME MODEL STEPS SEED SETTING...
    name=$1 model=$2 steps=$3 seed=$4
    shift 4
    # shellcheck disable=SC2086
    "$program" "$@" model="$model" device="$device" data="$tokens/train.bin" seed="$seed" \
        val_data="$tokens/val.bin" steps="$steps" batch_size="$batch" grad_accum_steps=1 \
        seq_len="${SEQ:-1024}" eval_batches="${EVAL_BATCHES:-0}" ${SETTINGS:-} > "$work/$name.json" 2> "$work/log" ||
        { cat "$work/log"; exit 1; }
}
show() { # NAME TITLE MODEL SEED
    printf '%-13s %-5s %-24s %-8s %-10.4f %-8s %-9s %-6s %-9s %s\n' "$3" "$4" "$2" \
        "$(value tokens_per_step "$1")" "$(value val_loss "$1")" "$5" "$(value run_s "$1")" \
        "$(value moves "$1")" "$(value rejected_moves "$1")" "$(value tokens_per_second "$1")"
}
echo "$ MODELS=\"$models\" TYPES=${TYPES:-small} TF32=$tf32 BATCH=$batch bench/gpu_profiles.sh"
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
echo "${card:-$device}; $(date -u +%Y-%m-%d); data $(basename "$tokens"); aggressive with ${small:-types as chosen}"
failed=0
printf '%-13s %-5s %-24s %-8s %-10s %-8s %-9s %-6s %-9s %s\n' model seed run "tokens" loss ratio seconds \
    moves rejected 'tokens/s'
plain="plain AdamW, fp32"
[ "$tf32" != on ] || plain="$plain, TF32"
for model in $models; do
    case $model in
    *1b | *1.5b) steps=${STEPS:-300} seeds=${SEEDS:-1} ;;
    *) steps=${STEPS:-1000} seeds=${SEEDS:-1 2 3} ;;
    esac
    : > "$work/ratios"
    for seed in $seeds; do
        run plain "$model" "$steps" "$seed" predictor=none precision=fp32 optim_dtype=fp32 tf32="$tf32"
        # shellcheck disable=SC2086
        run aggressive "$model" "$steps" "$seed" profile=aggressive optimizer=adamw precision=bf16 precision_correct=same $small
        ratio=$(awk "BEGIN { printf \"%.5f\", $(value val_loss aggressive) / $(value val_loss plain) }")
        echo "$ratio" >> "$work/ratios"
        show plain "$plain" "$model" "$seed" ""
        show aggressive "aggressive, ${TYPES:-small} types" "$model" "$seed" "$ratio"
        why=$(value why_not aggressive)
        [ -z "$why" ] || echo "  no jumps at the end: $why"
    done
    awk -v model="$model" -v steps="$steps" '
        { sum += $1; least = NR == 1 || $1 < least ? $1 : least; most = $1 > most ? $1 : most }
        END {
            mean = 100 * (sum / NR - 1)
            printf "%s, %d steps, %d seeds: %+.2f %% (%+.2f to %+.2f): bar 1 %%, goal 0.3 %%: %s\n", model, steps,
                NR, mean, 100 * (least - 1), 100 * (most - 1),
                (mean > 1 ? "FAIL" : mean > 0.3 ? "bar reached" : "goal reached")
            exit !(mean <= 1)
        }' "$work/ratios" || failed=1
done
exit $failed
