#!/bin/sh
# gpu_profiles.sh: what does profile aggressive (bf16, prediction on) cost in held-out loss?
#
# Trains GPT-2 124M and 350M on books twice with equal compute, data and learning rate: plain AdamW in
# fp32, whose products may use TF32 (10 bits of mantissa), and profile aggressive. Prints both held-out
# losses; fails when aggressive is more than 1 % above. Token shards as for bench/gpu_loss.sh.
#
#   MODELS="gpt2-124m gpt2-350m" STEPS=1000 DEVICE=cuda TF32=on BATCH=N bench/gpu_profiles.sh
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_loss
device=${DEVICE:-cuda}
steps=${STEPS:-1000}
tf32=${TF32:-on}
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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
value() { sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"]*\).*/\1/p" "$work/$2.json"; }
run() { # NAME MODEL BATCH SETTING...
    name=$1 model=$2 batch=$3
    shift 3
    # shellcheck disable=SC2086
    "$program" "$@" model="$model" device="$device" data="$tokens/train.bin" \
        val_data="$tokens/val.bin" steps="$steps" batch_size="$batch" grad_accum_steps=1 \
        eval_batches="${EVAL_BATCHES:-0}" ${SETTINGS:-} > "$work/$name.json"
}
echo "$ MODELS=\"${MODELS:-gpt2-124m gpt2-350m}\" STEPS=$steps TF32=$tf32 bench/gpu_profiles.sh"
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
echo "${card:-$device}; $(date -u +%Y-%m-%d); data $(basename "$tokens")"
failed=0
printf '%-10s %-24s %-8s %-10s %-7s %-9s %-6s %-9s %s\n' model run "tokens" loss ratio seconds moves \
    rejected 'tokens/s'
for model in ${MODELS:-gpt2-124m gpt2-350m}; do
    # Half the batch for the larger model: the four runs together stay near three minutes.
    case $model in *124m) batch=${BATCH:-4} ;; *) batch=${BATCH:-2} ;; esac
    run plain "$model" "$batch" predictor=none precision=fp32 tf32="$tf32"
    run aggressive "$model" "$batch" profile=aggressive
    ratio=$(awk "BEGIN { printf \"%.4f\", $(value val_loss aggressive) / $(value val_loss plain) }")
    for name in plain aggressive; do
        title="aggressive, $(value precision aggressive)"
        [ $name = aggressive ] || title="plain AdamW, fp32$([ "$tf32" = on ] && echo ', TF32')"
        printf '%-10s %-24s %-8s %-10.4f %-7s %-9s %-6s %-9s %s\n' "$model" "$title" \
            "$(value tokens_per_step $name)" "$(value val_loss $name)" \
            "$([ $name = plain ] || echo "$ratio")" "$(value run_s $name)" "$(value moves $name)" \
            "$(value rejected_moves $name)" "$(value tokens_per_second $name)"
    done
    why=$(value why_not aggressive)
    [ -z "$why" ] || echo "  nothing is predicted at the end: $why"
    if awk "BEGIN { exit !($ratio > 1.01) }"; then failed=1; fi
done
if [ $failed = 0 ]; then
    echo "PASS: aggressive never more than 1 % above plain fp32 AdamW"
else
    echo "FAIL: aggressive more than 1 % above plain fp32 AdamW"
fi
exit $failed
