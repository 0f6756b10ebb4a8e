#!/bin/sh
# gpu_fp8.sh: how fp8 changes the loss and the time of training.
#
# Trains from scratch on token shards of books, the same batches each time, and prints held-out losses:
#   a  GPT-2 124M, 1,000 steps of 16,384 tokens, two seeds: bf16; bf16 with another split of the step (what
#      the order of sums alone does); fp8 in all matmuls of the blocks; the same with the last tenth in bf16
#   b  GPT-2 350M, the same, one seed: bf16 and fp8
#   c  the shape of Qwen2.5-1.5B, 300 steps of 32,768 tokens: bf16, bf16 with another split, and fp8; and how
#      much earlier fp8 has bf16's final loss by the clock. With a rate and a warm-up at which the loss falls
#      without a jump: after one, it is chance that is compared
#   d  as a, 300 steps, with one channel of one layer times 10,000 after step 50: bf16 and fp8
# Shards are looked for in $HYBRID_TOKENS/books or $HYBRID_TOKENS: files train.bin and val.bin, or folders
# train and val (bench/peers/make_shards.py or hybrid-tokenize make them).
#
#   HYBRID_TOKENS=... DEVICE=cuda bench/gpu_fp8.sh [abcd]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_loss
device=${DEVICE:-cuda}
which=${1:-abcd}
tokens=${HYBRID_TOKENS:-}
[ ! -e "$tokens/books" ] || tokens=$tokens/books
train=$tokens/train.bin val=$tokens/val.bin
[ -f "$train" ] || { train=$tokens/train val=$tokens/val; }
if [ ! -e "$train" ] || [ ! -e "$val" ]; then
    echo "gpu_fp8: skipped, no token shards in HYBRID_TOKENS=$tokens"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$ bench/gpu_fp8.sh $which"
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
echo "${card:-$device}; $(date -u +%Y-%m-%d)"

# run NAME SETTING...: trains and leaves NAME.json; INJECT is a step.
run() {
    name=$1
    shift
    if ! "$program" --points 100 --inject "${INJECT:-0}" device="$device" data="$train" \
        val_data="$val" predictor=none precision_correct=same offload_strategy=none \
        eval_batches="${EVAL_BATCHES:-0}" fp8=all "$@" > "$work/$name.json" 2> "$work/$name.log"; then
        tail -3 "$work/$name.log"
        exit 1
    fi
}

field() { sed -n "s/.*\"$2\": \([-0-9.a-z]*\).*/\1/p" "$work/$1.json" | head -1; }

# against NAME BASE: held-out loss and its distance to that of BASE.
against() {
    awk -v name="$1" -v loss="$(field "$1" val_loss)" -v base="$(field "$2" val_loss)" \
        -v rate="$(field "$1" tokens_per_second)" -v zeros="$(field "$1" fp8_zeros)" \
        -v largest="$(field "$1" fp8_largest)" 'BEGIN {
        printf "  %-28s %.4f  %+.3f %%  %8.0f tokens/s", name, loss, 100 * (loss / base - 1), rate
        if (largest > 0) printf "  largest %.4g, zeros %.4f %%", largest, 100 * zeros
        printf "\n" }'
}

# reach NAME BASE: seconds until the training loss of NAME, a mean of five points of its curve, is that of the
# last five of BASE.
reach() {
    for name in "$2" "$1"; do
        sed -n 's/.*"curve": \[\[\(.*\)\]\]}/\1/p' "$work/$name.json" | sed 's/\], \[/\n/g' | tr ',' ' '
        echo end
    done | awk -v base="$(field "$2" run_s)" -v own="$(field "$1" run_s)" '
        $1 == "end" { if (!done++) { for (i = n - 4; i <= n; i++) goal += loss[i] / 5; n = 0 } next }
        { loss[++n] = $2; step[n] = $1 }
        done == 1 && n >= 5 && !at {
            mean = 0; for (i = n - 4; i <= n; i++) mean += loss[i] / 5; if (mean <= goal) at = step[n] }
        { last = step[n] }
        END {
            if (!at) printf "  the training loss at the end of bf16 (%.4f) was not reached\n", goal
            else printf "  the training loss at the end of bf16 (%.4f): after %.1f s instead of %.1f s, %.2f times as fast\n", goal, own * at / last, base, base / (own * at / last) }'
}

case $which in *a*)
    echo "GPT-2 124M, 1,000 steps of 16,384 tokens, held-out loss against bf16"
    for seed in 1 2; do
        set -- model=gpt2-124m steps="${STEPS:-1000}" seed=$seed
        run "bf16_$seed" "$@" precision=bf16 batch_size=16 grad_accum_steps=1
        run "bf16_split_$seed" "$@" precision=bf16 batch_size=8 grad_accum_steps=2
        run "fp8_$seed" "$@" precision=fp8 batch_size=16 grad_accum_steps=1
        run "fp8_until_0.9_$seed" "$@" precision=fp8 fp8_until=0.9 batch_size=16 grad_accum_steps=1
        for name in bf16 bf16_split fp8 fp8_until_0.9; do against "${name}_$seed" "bf16_$seed"; done
    done ;;
esac
case $which in *b*)
    echo "GPT-2 350M, 1,000 steps of 16,384 tokens"
    set -- model=gpt2-350m steps="${STEPS:-1000}" batch_size=16 grad_accum_steps=1
    run bf16_350m "$@" precision=bf16
    run fp8_350m "$@" precision=fp8
    against bf16_350m bf16_350m
    against fp8_350m bf16_350m ;;
esac
case $which in *c*)
    echo "Qwen2.5-1.5B's shape, 300 steps of 32,768 tokens"
    set -- model=qwen2.5-1.5b steps="${STEPS:-300}" seq_len=1024 batch_size=8 grad_accum_steps=4 \
        lr=2e-4 lr_warmup_steps=100 lr_warmup_ratio=0.34
    run bf16_1.5b "$@" precision=bf16
    run fp8_1.5b "$@" precision=fp8
    run fp8_until_0.9_1.5b "$@" precision=fp8 fp8_until=0.9
    run bf16_split_1.5b "$@" precision=bf16 batch_size=16 grad_accum_steps=2
    for name in bf16 bf16_split fp8 fp8_until_0.9; do against "${name}_1.5b" bf16_1.5b; done
    reach fp8_1.5b bf16_1.5b
    echo "  seconds of training: bf16 $(field bf16_1.5b run_s), fp8 $(field fp8_1.5b run_s)" ;;
esac
case $which in *d*)
    echo "GPT-2 124M, 300 steps, one channel times 10,000 after step 50"
    set -- model=gpt2-124m steps="${STEPS:-300}" batch_size=16 grad_accum_steps=1
    INJECT=50
    run bf16_injected "$@" precision=bf16
    run fp8_injected "$@" precision=fp8
    INJECT=0
    against bf16_injected bf16_injected
    against fp8_injected bf16_injected
    echo "  steps skipped: bf16 $(field bf16_injected skipped), fp8 $(field fp8_injected skipped)" ;;
esac
