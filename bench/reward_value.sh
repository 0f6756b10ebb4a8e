#!/bin/bash
# reward_value.sh: does task grpo raise the share of word problems that a model answers right?
#
# Writes word problems of two steps, fine-tunes a model from random weights on worked answers until it answers 5 to
# 30 % of held-out problems, and goes on with rewards for the right number, from several seeds. Prints the held-out
# accuracy on the way, and the share of what was missing that was gained. Then prediction: runs of a fifth of the steps,
# taken further along their way by hybrid-export --scale auto.
#
#   bench/reward_value.sh [--size small|lab] [--device cuda|cpu] [--seeds 3] [--steps N] [--lr X] [--out FOLDER]
#
# small: 0.8M parameters, minutes on a CPU. lab: 107M parameters, for a card. HYBRID_BIN names another folder of
# programs.
set -eu
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

# COUNT SEED: rows of question and answer.
problems() {
    awk -v count="$1" -v seed="$2" 'BEGIN {
        srand(seed)
        split("Mia Tom Ana Ben Lea Max Eva Jon", who, " ")
        split("pens cups nuts eggs keys hats", what, " ")
        for (i = 0; i < count; i++) {
            a = 10 + int(rand() * 90); b = 2 + int(rand() * 9); c = 10 + int(rand() * 60); kind = int(rand() * 3)
            name = who[1 + int(rand() * 8)]; thing = what[1 + int(rand() * 6)]
            if (kind == 0) {
                first = a + c; last = first - b; one = a "+" c "=" first; two = first "-" b "=" last
                text = name " has " a " " thing ", buys " c " and loses " b "."
            } else if (kind == 1) {
                a = 2 + a % 10; first = a * b; last = first + c; one = a "*" b "=" first; two = first "+" c "=" last
                text = name " has " a " boxes of " b " " thing " and finds " c "."
            } else {
                first = a + b; last = first + c; one = a "+" b "=" first; two = first "+" c "=" last
                text = name " has " a " " thing ", finds " b " and buys " c "."
            }
            printf "{\"question\": \"%s How many?\", \"answer\": \"%s, %s. #### %d\"}\n", text, one, two, last
        }
    }'
}

problems 40000 1 > "$out/rows.jsonl"
problems 20000 2 > "$out/prompts.jsonl"
problems 400 3 > "$out/held-out.jsonl"

if [ "$size" = small ]; then
    shape="--model nano" tune="--seq-len 256 --step-tokens 8192 --lr 2e-3" chunk=300 limit=20 precision=fp32
    steps=${steps:-120} lr=${lr:-3e-4}
else
    shape="--model nano --layers 15 --width 768 --heads 12 --mlp-width 3072"
    tune="--seq-len 512 --step-tokens 65536 --lr 6e-4" chunk=50 limit=40 precision=bf16
    steps=${steps:-100} lr=${lr:-2e-5}
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

# Fine-tunes in pieces, until enough problems are answered.
done_steps=0 base=0
while [ $limit -gt 0 ]; do
    limit=$((limit - 1)) done_steps=$((done_steps + chunk))
    flags="--out $out/tuned --overwrite $shape $common --data $out/rows.jsonl $tune --schedule constant"
    [ $done_steps = $chunk ] || flags="--resume $out/tuned --device $device"
    $train $flags --steps $done_steps --eval-every 0 --quiet
    rewarded "$out/tuned" 1 1e-12 1 "$out/base"
    base=$(accuracies "$out/base" | tail -n 1)
    echo "fine-tuned for $done_steps steps: $base of held-out problems right"
    if awk "BEGIN { exit !($base >= 0.05) }"; then break; fi
done

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

for seed in $(seq "$seeds"); do
    rewarded "$out/tuned" $((steps / 5)) "$lr" "$seed" "$out/short"
    echo "seed $seed, $((steps / 5)) steps, scaled:"
    "$programs/hybrid-export" "$out/short" --scale auto --out "$out/scaled" --overwrite | sed 's/^/    /'
done
