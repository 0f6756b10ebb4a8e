#!/bin/sh
# predict_default.sh: does prediction pay where it would be on by default?
#
# Trains the same runs with --predictor outer and with none, with default settings otherwise, and compares the
# held-out losses in pairs of equal seed and equal compute. Prints one line per class: the change of the loss
# for each seed (negative: prediction is better) and its mean. The default of --predictor follows from this
# table (docs/prediction.md, "By default").
#
#   bench/predict_default.sh TOKENS TEXT VAL_TEXT [CLASS:STEPS ...]
#
#   TOKENS    a folder with the token shards train/ and val/ of a tokenizer with 8,192 entries (hybrid-tokenize)
#   TEXT, VAL_TEXT  the same text as bytes
#   CLASS     nano, tiny (tiny-gpt2), lab4k, lab32k (13.8M parameters, 4,096 and 32,768 tokens per step)
#   SEEDS="1 2 3" JOBS=1 DEVICE=auto HYBRID_BIN=build/bin WORK=folder for the runs (removed at the end)
#
# On a GPU, several small runs at a time (JOBS=12) need NVIDIA's MPS to be faster than one after the other.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -lt 3 ]; then
    echo "predict_default: skipped, it needs tokens and texts: see its first lines"
    exit 0
fi
tokens=$1 text=$2 val=$3
shift 3
[ $# -gt 0 ] || set -- lab32k:3000 lab32k:1000 lab32k:300 lab4k:3000 lab4k:1000 tiny:3000 tiny:1000 tiny:300 \
    nano:3000 nano:1000 nano:300 nano:100
work=${WORK:-$(mktemp -d)}
trap 'rm -rf "$work"' EXIT
export work text val tokens
export program="${HYBRID_BIN:-$here/build/bin}/hybrid-train" device="${DEVICE:-auto}"

one='
class=${0%%:*} rest=${0#*:}
steps=${rest%%:*} rest=${rest#*:}
seed=${rest%%:*} predictor=${rest#*:}
lab="--model tiny-gpt2 --layers 6 --width 384 --heads 6 --mlp-width 1536 --context 512 --vocab 8192 --seq-len 512
    --data $tokens/train --val-data $tokens/val"
case $class in
    lab32k) set -- $lab --batch-size 64 --grad-accum-steps 1 --lr 2e-3 ;;
    lab4k) set -- $lab ;;
    tiny) set -- --model tiny-gpt2 --data "$text" --val-data "$val" ;;
    nano) set -- --model nano --data "$text" --val-data "$val" ;;
esac
run=$work/$class-$steps-$seed-$predictor
"$program" "$@" --steps "$steps" --seed "$seed" --predictor "$predictor" --device "$device" --out "$run" \
    --no-save-model --no-report --no-tensorboard --save-minutes 0 --sample-tokens 0 --quiet > "$run.log" 2>&1 ||
    { echo "failed: $run" >&2; tail -n 3 "$run.log" >&2; exit 1; }
loss=$(sed -n "s/.*\"val_loss\": *\([0-9.e+-]*\).*/\1/p" "$run/summary.json" | head -n 1)
rm -rf "$run"
echo "$class $steps $seed $predictor $loss"
'
for each in "$@"; do
    for seed in ${SEEDS:-1 2 3}; do
        for predictor in outer none; do echo "$each:$seed:$predictor"; done
    done
done | xargs -P "${JOBS:-1}" -n 1 sh -c "$one" > "$work/losses"
sort -k1,1 -k2,2n -k3,3n "$work/losses" | awk '
    { loss[$1 " " $2, $3, $4] = $5; if (!(($1 " " $2) in known)) { known[$1 " " $2] = ++n; name[n] = $1 " " $2 }
      seen[$3] = 1 }
    END {
        for (i = 1; i <= n; i++) {
            printf "%-12s", name[i]; sum = 0; count = 0
            for (s in seen) if ((name[i], s, "outer") in loss && (name[i], s, "none") in loss) {
                change = 100 * (loss[name[i], s, "outer"] / loss[name[i], s, "none"] - 1)
                printf " %+7.2f %%", change; sum += change; count++
            }
            if (count) printf "   mean %+.2f %%\n", sum / count
        }
    }'
