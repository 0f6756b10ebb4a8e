#!/bin/bash
# reward_value.sh: does task grpo raise the share of word problems that a model answers right?
#
# Writes word problems of three sums, fine-tunes a model from random weights on worked answers that mostly forget to
# carry, so that it answers few problems right, and goes on with rewards for the right number, from several seeds.
# Prints the held-out accuracy on the way, and the share of what was missing that was gained. Then prediction: three
# short runs in a row, each from where the one before ended, and the same with each taken further along its way by
# hybrid-export --scale auto, whose choice uses the held-out problems; these are compared on others. The lab size trains
# all seeds at once.
#
#   bench/reward_value.sh [--size small|lab] [--device cuda|cpu] [--seeds 3] [--steps N] [--lr X] [--out FOLDER]
#                         [--part gain|predicted|all]
#
# small: 0.8M parameters, an hour or more on two cores. lab: 107M parameters, for a card. HYBRID_BIN names another
# folder of programs.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BIN:-$here/build/bin}
train=$programs/hybrid-train
size=small device=auto seeds=3 steps= lr= out= part=all
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 ;;
    --device) device=$2 ;;
    --seeds) seeds=$2 ;;
    --steps) steps=$2 ;;
    --lr) lr=$2 ;;
    --out) out=$2 ;;
    --part) part=$2 ;;
    *)
        echo "reward_value: unknown argument $1; accepted: --size, --device, --seeds, --steps, --lr, --out, --part" >&2
        exit 2
        ;;
    esac
    shift 2
done
case $size in
small | lab) ;;
*)
    echo "reward_value: --size $size; accepted: small, lab" >&2
    exit 2
    ;;
esac
case $part in
gain | predicted | all) ;;
*)
    echo "reward_value: --part $part; accepted: gain, predicted, all" >&2
    exit 2
    ;;
esac
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

if [ "$size" = small ]; then
    shape="--model nano" rows=40000 tune="--seq-len 256 --step-tokens 8192 --lr 2e-3 --steps 400" precision=fp32
    steps=${steps:-200} lr=${lr:-3e-4}
else
    shape="--model nano --layers 15 --width 768 --heads 12 --mlp-width 3072"
    rows=200000 tune="--seq-len 512 --step-tokens 65536 --lr 6e-4 --steps 600" precision=bf16
    steps=${steps:-150} lr=${lr:-2e-5}
fi
problems "$rows" 1 0.85 > "$out/rows.jsonl"
problems 20000 2 0 > "$out/prompts.jsonl"
problems 400 3 0 > "$out/held-out.jsonl"
problems 1000 4 0 > "$out/test.jsonl"
common="--device $device --tokenizer none --precision $precision --predictor none --sample-tokens 0 --tensorboard false"

# START STEPS RATE SEED OUT: rewards for the right number. START: flags that name the model.
rewarded() {
    $train $1 $common --val-data "${val:-$out/held-out.jsonl}" --data "$out/prompts.jsonl" --seq-len 192 \
        --task grpo --reward number --answer-tokens 64 --prompts 64 --samples 8 --steps "$2" --lr "$3" \
        --lr-warmup-steps 5 --schedule constant --seed "$4" --eval-prompts 1000 --eval-every 20 --save-model false \
        --out "$5" --overwrite --quiet
}

accuracies() { sed -n 's/.*"val_reward":\([0-9.e-]*\).*/\1/p' "$1/metrics.jsonl"; }

# START SEED: accuracy on problems that nothing was chosen by.
tested() {
    val=$out/test.jsonl rewarded "$1" 1 1e-12 1 "$out/tested-$2"
    accuracies "$out/tested-$2" | tail -n 1
}

$train --out "$out/tuned" --overwrite $shape $common --val-data "$out/held-out.jsonl" --data "$out/rows.jsonl" $tune \
    --eval-every 0 --quiet
tuned="$shape --init-from $out/tuned"
rewarded "$tuned" 1 1e-12 1 "$out/base"
base=$(accuracies "$out/base" | tail -n 1)
echo "fine-tuned: $base of held-out problems right"

# SEED: one run.
gain() {
    began=$(date +%s)
    rewarded "$tuned" "$steps" "$lr" "$1" "$out/seed-$1"
    accuracies "$out/seed-$1" | awk -v seed="$1" -v base="$base" -v steps="$steps" -v seconds=$(($(date +%s) - began)) '
        { list = list sprintf(" %.3f", $1); last = $1 }
        END {
            printf "seed %d, %d steps, %d s: %.3f ->%s; gained %.2f of what was missing\n",
                seed, steps, seconds, base, list, (last - base) / (1 - base)
        }'
}

# SEED: runs of a tenth of the steps, each from the model of the one before, as trained and as scaled.
predicted() {
    short=$((steps > 10 ? steps / 10 : 1))
    for scale in 1 auto; do
        start=$tuned
        for round in 1 2 3; do
            rewarded "$start" "$short" "$lr" "$1$round" "$out/short-$1"
            next=$out/next-$1-$round
            chosen=$("$programs/hybrid-export" "$out/short-$1" --scale $scale --out "$next" --overwrite |
                awk '/written/ { print " (" $1 ")" }')
            start="--model $next"
            echo "seed $1, scale $scale$chosen, $((round * short)) steps: $(tested "$start" "$1") of others right"
        done
    done
}

trial() {
    [ "$part" = predicted ] || gain "$1"
    [ "$part" = gain ] || predicted "$1"
}

if [ "$size" = small ]; then
    for seed in $(seq "$seeds"); do trial "$seed"; done
    exit
fi
# One run leaves most of a card idle.
trials= failed=0
for seed in $(seq "$seeds"); do
    trial "$seed" > "$out/trial-$seed" 2>&1 &
    trials="$trials $!"
done
for one in $trials; do wait "$one" || failed=1; done
cat "$out"/trial-*
exit $failed
