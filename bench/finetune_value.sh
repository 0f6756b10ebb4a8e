#!/bin/sh
# finetune_value.sh: does prediction ever make fine-tuning worse, if paired tests decide about it?
#
# Trains a small model on the built-in text, then fine-tunes it on other text at four learning rates,
# with prediction off and with paired tests that may turn it on (confidence starts below the threshold),
# at equal compute. Prints both held-out losses and the numbers of jumps and tests; fails if a loss is
# more than 0.5 % above that without prediction. Needs a text: tinyshakespeare.txt in $HYBRID_DATA or
# ../shared/data, or a file named as the first argument; without one it says so and does nothing.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_TRAIN:-$here/build/bin/hybrid-train}
steps=${STEPS:-300}
seed=${SEED:-1}
data=${1:-}
for folder in "${HYBRID_DATA:-}" "$here/../shared/data"; do
    [ -n "$data" ] || [ ! -f "$folder/tinyshakespeare.txt" ] || data=$folder/tinyshakespeare.txt
done
if [ -z "$data" ]; then
    echo "finetune_value: skipped, no text to fine-tune on (set HYBRID_DATA or name a file)"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
value() { sed -n "s/^  \"$1\": \([-0-9.e]*\),*$/\1/p" "$2/summary.json"; }

echo "pre-training on the built-in text ($(date +%Y-%m-%d), $(uname -m), $(nproc) cores)"
"$program" --quiet --model nano --profile aggressive --steps 400 --seed "$seed" --predictor none \
    --out "$work/base"
tune() { # NAME LR PREDICTOR
    "$program" --model nano --profile aggressive --steps "$steps" --seed "$seed" --data "$data" \
        --init-from "$work/base" --lr "$2" --predictor "$3" --full-steps 8 --correct-steps 2 \
        --eval-batches 200 --sample-tokens 0 --out "$work/$1" > "$work/$1.log" 2>&1
}
failed=0
echo "fine-tuning on $(basename "$data"), $steps full steps of compute, seed $seed"
printf '%-8s %-10s %-10s %-8s %-6s %-6s\n' lr off decides ratio moves forks
for lr in 3e-4 1e-3 3e-3 1e-2; do
    tune "off$lr" $lr none
    tune "on$lr" $lr outer
    off=$(value val_loss "$work/off$lr")
    on=$(value val_loss "$work/on$lr")
    ratio=$(awk "BEGIN { printf \"%.4f\", $on / $off }")
    printf '%-8s %-10.4f %-10.4f %-8s %-6s %-6s\n' $lr "$off" "$on" "$ratio" \
        "$(value moves "$work/on$lr")" "$(value forks "$work/on$lr")"
    grep '^fork' "$work/on$lr.log" | sed 's/^/         /' || true
    awk "BEGIN { exit !($ratio > 1.005) }" && failed=1 || true
done
if [ $failed = 0 ]; then
    echo "PASS: never more than 0.5 % above prediction off"
else
    echo "FAIL: more than 0.5 % above prediction off"
fi
exit $failed
