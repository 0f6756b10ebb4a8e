#!/bin/bash
# reward_value.sh: does task grpo raise the share of word problems that a model answers right?
#
# Writes word problems of three sums, fine-tunes a model from random weights on worked answers that mostly forget to
# carry, so that it answers few problems right, and goes on with rewards for the right number, from several seeds.
# Prints the held-out accuracy on the way, and the share of what was missing that was gained. Then prediction: runs of a
# fifth of the steps, taken further along their way by hybrid-export --scale auto.
#
#   bench/reward_value.sh [--size small|lab] [--device cuda|cpu] [--seeds 3] [--steps N] [--lr X] [--out FOLDER]
#
# small: 0.8M parameters, minutes on a CPU. lab: 107M parameters, for a card. HYBRID_BIN names another folder of
# programs.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BIN:-$here/build/bin}
train=$programs/hybrid-train
size=small device=auto seeds=3 steps= lr= out=
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 ;;
    --device) device=$2 ;;
    --seeds) seeds=$2 ;;
    --steps) steps=$2 ;;
    --lr) lr=$2 ;;
    --out) out=$2 ;;
    *)
        echo "reward_value: unknown argument $1; accepted: --size, --device, --seeds, --steps, --lr, --out" >&2
        exit 2
        ;;
    esac
    shift 2
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${out:-$work}
mkdir -p "$out"

# COUNT SEED SLIPS: rows of question and answer; each sum forgets to carry with this probability.
problems() {
    awk -v count="$1" -v seed="$2" -v slips="$3" '
        function add(a, b) {
            if (rand() >= slips) return a + b
            return 10 * (int(a / 10) + int(b / 10)) + (a % 10 + b % 10) % 10
        }
        BEGIN {
            srand(seed)
            split("Mia Tom Ana Ben Lea Max Eva Jon", who, " ")
            split("pens cups nuts eggs keys hats", what, " ")
            for (i = 0; i < count; i++) {
                text = who[1 + int(rand() * 8)] " has " (sum = 10 + int(rand() * 90)) " " what[1 + int(rand() * 6)]
                work = ""
                for (k = 1; k <= 3; k++) {
                    more = 10 + int(rand() * 90)
                    text = text (k == 1 ? ", finds " : k == 2 ? ", buys " : " and gets ") more
                    next_sum = add(sum, more)
                    work = work (k == 1 ? "" : ", ") sum "+" more "=" next_sum
                    sum = next_sum
                }
                printf "{\"question\": \"%s. How many?\", \"answer\": \"%s. #### %d\"}\n", text, work, sum
            }
        }'
}

problems 40000 1 0.85 > "$out/rows.jsonl"
problems 20000 2 0 > "$out/prompts.jsonl"
problems 400 3 0 > "$out/held-out.jsonl"

if [ "$size" = small ]; then
    shape="--model nano" tune="--seq-len 256 --step-tokens 8192 --lr 2e-3 --steps 400" precision=fp32
    steps=${steps:-200} lr=${lr:-3e-4}
else
    shape="--model nano --layers 15 --width 768 --heads 12 --mlp-width 3072"
    tune="--seq-len 512 --step-tokens 65536 --lr 6e-4 --steps 300" precision=bf16
    steps=${steps:-300} lr=${lr:-3e-5}
fi
common="--device $device --tokenizer none --precision $precision --predictor none --sample-tokens 0 --tensorboard false
    --val-data $out/held-out.jsonl"

# FROM STEPS RATE SEED OUT: rewards for the right number.
rewarded() {
    $train $shape $common --init-from "$1" --data "$out/prompts.jsonl" --seq-len 192 --task grpo --reward number \
        --answer-tokens 64 --prompts 64 --samples 8 --steps "$2" --lr "$3" --lr-warmup-steps 5 --schedule constant \
        --seed "$4" --eval-prompts 400 --eval-every 20 --save-model false --out "$5" --overwrite --quiet
}

accuracies() { sed -n 's/.*"val_reward":\([0-9.e-]*\).*/\1/p' "$1/metrics.jsonl"; }

$train --out "$out/tuned" --overwrite $shape $common --data "$out/rows.jsonl" $tune --eval-every 0 --quiet
rewarded "$out/tuned" 1 1e-12 1 "$out/base"
base=$(accuracies "$out/base" | tail -n 1)
echo "fine-tuned: $base of held-out problems right"

for seed in $(seq "$seeds"); do
    began=$(date +%s)
    rewarded "$out/tuned" "$steps" "$lr" "$seed" "$out/seed-$seed"
    accuracies "$out/seed-$seed" | awk -v seed="$seed" -v base="$base" -v steps="$steps" -v seconds=$(($(date +%s) - began)) '
        { list = list sprintf(" %.3f", $1); last = $1 }
        END {
            printf "seed %d, %d steps, %d s: %.3f ->%s; gained %.2f of what was missing\n",
                seed, steps, seconds, base, list, (last - base) / (1 - base)
        }'
done

short=$((steps > 5 ? steps / 5 : 1))
for seed in $(seq "$seeds"); do
    rewarded "$out/tuned" "$short" "$lr" "$seed" "$out/short"
    echo "seed $seed, $short steps, scaled:"
    "$programs/hybrid-export" "$out/short" --scale auto --out "$out/scaled" --overwrite | sed 's/^/    /'
done
