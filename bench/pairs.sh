#!/bin/sh
# pairs.sh: what training on pairs of answers costs, against fine-tuning with the same tokens.
#
# Drawn weights, bytes as tokens, sequences that are filled by two examples: two answers, or a pair. Each row
# prints tokens per second of the median step, the peak on the device, both relative to fine-tuning, and the plan. On a
# card, capped rows run while another process holds all but 16,303 MiB (hold.sh).
#
#   bench/pairs.sh [--device cuda|cpu] [--only TEXT]
#
# HYBRID_BIN names another folder of programs.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
train=${HYBRID_BIN:-$here/build/bin}/hybrid-train
device=cuda only=
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 ;;
    --only) only=$2 ;;
    *)
        echo "pairs: unknown argument $1; accepted: --device, --only" >&2
        exit 2
        ;;
    esac
    shift 2
done
if [ "$device" = cuda ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "pairs: skipped, no CUDA device here"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Rows whose examples fill half of a sequence of $1 tokens: prompt and answer are as long.
make_rows() {
    awk -v seq="$1" 'BEGIN {
        size = seq / 4
        for (i = 0; i < 400; i++) {
            prompt = chosen = rejected = ""
            for (k = 0; k < size; k++) {
                prompt = prompt sprintf("%c", 97 + (i + k) % 26)
                chosen = chosen sprintf("%c", 97 + (i * 7 + k * 3) % 26)
                rejected = rejected sprintf("%c", 97 + (i * 5 + k * 11) % 26)
            }
            printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", prompt, chosen, rejected
        }
    }' > "$work/pairs.jsonl"
    sed 's/"chosen"/"completion"/' "$work/pairs.jsonl" > "$work/answers.jsonl"
}

# NAME DATA FLAG ...: runs and prints the row.
measure() {
    name=$1 data=$2
    shift 2
    "$train" --device "$device" --data "$work/$data" --tokenizer none --val-fraction 0 --predictor none \
        --sample-tokens 0 --report false --tensorboard false --save-model false --out "$work/run" --overwrite \
        --quiet "$@" > "$work/log" 2>&1 || { echo "$name: $(tail -n 1 "$work/log")" && return; }
    awk -v name="$name" -v base="${base:-}" '
        /"tokens_per_second"/ && !/"event"/ {
            match($0, /"seconds":[0-9.e-]+/); seconds[++n] = substr($0, RSTART + 10, RLENGTH - 10)
            match($0, /"vram_peak_bytes":[0-9]+/); peak = substr($0, RSTART + 18, RLENGTH - 18)
            match($0, /"vram_planned_bytes":[0-9]+/); plan = substr($0, RSTART + 21, RLENGTH - 21)
            if (plan + 0 > planned) planned = plan + 0
        }
        /"tokens_per_step"/ { match($0, /"tokens_per_step":[0-9]+/); tokens = substr($0, RSTART + 18, RLENGTH - 18) }
        END {
            for (i = 2; i <= n; i++) for (k = i; k > 1 && seconds[k] + 0 < seconds[k - 1] + 0; k--) {
                t = seconds[k]; seconds[k] = seconds[k - 1]; seconds[k - 1] = t
            }
            rate = tokens / seconds[int((n + 1) / 2)]
            split(base, of, " ")
            printf "%-44s %9.0f tokens/s  %8.2f GiB, planned %.2f", name, rate, peak / 2 ^ 30, planned / 2 ^ 30
            if (of[1]) printf "   %.3f of the speed, %.3f of the peak", rate / of[1], peak / of[2]
            printf "\n"
            print rate, peak > "'"$work"'/last"
        }' "$work/run/metrics.jsonl"
}

# MODEL SEQ FLAG ...
compare() {
    model=$1 seq=$2
    shift 2
    case "$model $*" in *"$only"*) ;; *) return ;; esac
    make_rows "$seq"
    base=
    set -- --model "$model" --seq-len "$seq" --steps 6 "$@"
    measure "$model, answers" answers.jsonl "$@"
    base=$(cat "$work/last")
    measure "$model, simpo" pairs.jsonl "$@" --task simpo
    measure "$model, dpo, reference once" pairs.jsonl "$@" --task dpo --reference once
    case " $* " in
    *" --lora "* | *" --qlora "*) measure "$model, dpo, reference inline" pairs.jsonl "$@" --task dpo --reference inline ;;
    esac
}

if [ "$device" = cpu ]; then
    compare nano 256 --step-tokens 4096 --batch-size 4
    compare nano 256 --step-tokens 4096 --batch-size 4 --lora
    exit 0
fi
if [ -z "${PAIRS_CAPPED:-}" ]; then
    compare qwen2.5-1.5b 2048 --step-tokens 65536 --precision bf16
    rm -rf "$work"
    PAIRS_CAPPED=1 exec "$here/bench/hold.sh" "$0" --only "$only"
fi
compare qwen3-8b 2048 --step-tokens 32768 --precision bf16 --lora --cpu-mem 56GiB
compare qwen2.5-1.5b 2048 --step-tokens 65536 --precision bf16 --optim-dtype 8bit --cpu-mem 56GiB
