#!/bin/bash
# preference_value.sh: does prediction save steps in training on pairs of answers?
#
# Writes sums with a right and a wrong answer, fine-tunes a model from random weights until it knows part of them, and
# trains it on pairs (task dpo) with each predictor, at each learning rate, from several seeds. The rate of each
# predictor is the one with the best mean held-out accuracy. The target is what the best rate without prediction
# reaches at its end, less half a point. Prints, for each predictor, the compute in full steps until that accuracy, the
# median over the seeds; and what hybrid-export --scale auto makes of runs of a fifth of the steps.
#
#   bench/preference_value.sh [--size small|lab] [--device cuda|cpu] [--seeds 3] [--steps N] [--lrs LIST] [--out FOLDER]
#
# small: 0.8M parameters, minutes on a CPU. lab: 107M parameters, for a card. HYBRID_BIN names another folder of
# programs.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BIN:-$here/build/bin}
size=small device=auto seeds=3 steps=200 lrs= out=
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 ;;
    --device) device=$2 ;;
    --seeds) seeds=$2 ;;
    --steps) steps=$2 ;;
    --lrs) lrs=$2 ;;
    --out) out=$2 ;;
    *)
        echo "preference_value: unknown argument $1; accepted: --size, --device, --seeds, --steps, --lrs, --out" >&2
        exit 2
        ;;
    esac
    shift 2
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${out:-$work}
mkdir -p "$out"

# COUNT SEED: sums; with a third argument as pairs. Wrong answers are off by 1 to 9, as slips are.
sums() {
    awk -v count="$1" -v seed="$2" -v pairs="${3:-}" 'BEGIN {
        srand(seed)
        for (i = 0; i < count; i++) {
            a = int(rand() * 100); b = int(rand() * 100); off = 1 + int(rand() * 9)
            wrong = rand() < 0.5 && a + b > off ? a + b - off : a + b + off
            if (pairs) printf "{\"prompt\": \"%d+%d=\", \"chosen\": \"%d\", \"rejected\": \"%d\"}\n", a, b, a + b, wrong
            else printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, a + b
        }
    }'
}

[ "$size" = small ] && held_out=600 || held_out=4000
sums 20000 1 > "$out/rows.jsonl"
sums 20000 2 pairs > "$out/pairs.jsonl"
sums "$held_out" 3 pairs > "$out/held-out.jsonl"

if [ "$size" = small ]; then
    shape="--model nano" tune="--steps 400 --step-tokens 4096 --lr 2e-3" lrs=${lrs:-3e-5,1e-4,3e-4,1e-3} precision=fp32
else
    shape="--model nano --layers 15 --width 768 --heads 12 --mlp-width 3072"
    tune="--steps 400 --step-tokens 16384 --lr 6e-4" lrs=${lrs:-3e-6,1e-5,3e-5,1e-4} precision=bf16
fi
common="--device $device --tokenizer none --precision $precision --seq-len 64 --sample-tokens 0 --tensorboard false
    --report false --quiet --overwrite"
"$programs/hybrid-train" $shape $common --data "$out/rows.jsonl" $tune --predictor none --out "$out/tuned"

# PREDICTOR RATE SEED STEPS OUT
prefer() {
    "$programs/hybrid-train" $shape $common --init-from "$out/tuned" --data "$out/pairs.jsonl" \
        --val-data "$out/held-out.jsonl" --task dpo --predictor "$1" --lr "$2" --seed "$3" --steps "$4" --out "$5" \
        --schedule constant --lr-warmup-steps 5 --batch-size 4 --grad-accum-steps 2 --eval-every 20 --eval-batches 0 \
        --save-every 0 --confidence-threshold 0 --fork-budget 0 # jumps without a paired test
}

# Lines: predictor, rate, seed, compute in full steps, accuracy.
for lr in ${lrs//,/ }; do
    for seed in $(seq "$seeds"); do
        for predictor in none line outer; do
            run=$out/$predictor-$lr-$seed
            prefer $predictor "$lr" "$seed" "$steps" "$run"
            sed -n 's/.*"spent":\([0-9.e+-]*\).*"pair_accuracy":\([0-9.e+-]*\).*/\1 \2/p' "$run/metrics.jsonl" |
                sed "s/^/$predictor $lr $seed /"
            rm -rf "$run"
        done
    done
done > "$out/curves"

awk '
    { key = $1 " " $2; last[key " " $3] = $5; n = ++count[key " " $3]; x[key " " $3, n] = $4; y[key " " $3, n] = $5
      if (!(key in seen)) { seen[key] = 1; keys[++k] = key }
      if (!($3 in is_seed)) { is_seed[$3] = 1; seed[++s] = $3 } }
    END {
        for (i = 1; i <= k; i++) {
            split(keys[i], part, " "); sum = 0
            for (j = 1; j <= s; j++) sum += last[keys[i] " " seed[j]]
            mean = sum / s
            printf "%-6s lr %s: accuracy at the end %.4f\n", part[1], part[2], mean
            if (mean > best[part[1]]) { best[part[1]] = mean; at[part[1]] = keys[i] }
        }
        target = best["none"] - 0.005
        for (p in at) {
            for (j = 1; j <= s; j++) {
                reached[j] = 1e9
                for (i = count[at[p] " " seed[j]]; i > 0; i--)
                    if (y[at[p] " " seed[j], i] >= target) reached[j] = x[at[p] " " seed[j], i]
            }
            for (i = 1; i <= s; i++) for (j = i; j > 1 && reached[j] < reached[j - 1]; j--) {
                t = reached[j]; reached[j] = reached[j - 1]; reached[j - 1] = t
            }
            m = reached[int((s + 1) / 2)]
            printf "best of %s: accuracy %.4f to %.4f after %s full steps (median)\n", at[p], target, best[p],
                m < 1e9 ? m : "more than all"
        }
    }' "$out/curves"

for lr in ${lrs//,/ }; do
    prefer none "$lr" 1 $((steps / 5)) "$out/short"
    echo "a fifth of the steps, lr $lr, scaled:"
    "$programs/hybrid-export" "$out/short" --scale auto --out "$out/scaled" --overwrite | sed 's/^/    /'
done
