#!/bin/sh
# rewards.sh: seconds of a step of task grpo, and where they go.
#
# Drawn weights, 64 prompts of 128 tokens, 8 answers of 256 tokens to each, rewards drawn at random, so that every
# answer counts; one update, no divergence. A row prints the seconds of the median step, how long its parts take,
# tokens per second of generation, and the peak on the device. The last row runs while another process holds all but
# 16,303 MiB of the card (hold.sh); its generation is compared with that of the row before.
#
#   bench/rewards.sh [--device cuda|cpu] [--only TEXT] [--steps 4]
#
# HYBRID_BIN names another folder of programs.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
train=${HYBRID_BIN:-$here/build/bin}/hybrid-train
device=cuda only= steps=4
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 ;;
    --only) only=$2 ;;
    --steps) steps=$2 ;;
    *)
        echo "rewards: unknown argument $1; accepted: --device, --only, --steps" >&2
        exit 2
        ;;
    esac
    shift 2
done
if [ "$device" = cuda ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "rewards: skipped, no CUDA device here"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prompts of $1 bytes.
make_rows() {
    awk -v size="$1" 'BEGIN {
        for (i = 0; i < 400; i++) {
            prompt = ""
            for (k = 0; k < size; k++) prompt = prompt sprintf("%c", 97 + (i * 7 + k * (i % 5 + 1)) % 26)
            printf "{\"prompt\": \"%s\"}\n", prompt
        }
    }' > "$work/rows.jsonl"
}

# A reward for each line that is read; read works line by line, unlike some awks.
cat > "$work/draw" << 'DRAW'
i=1
while read -r line; do
    i=$(((i * 1103515245 + 12345) % 2147483648))
    echo "0.$((100000 + i / 65536))"
done
DRAW

# NAME FLAG ...: runs and prints the row.
measure() {
    name=$1
    shift
    case "$name" in *"$only"*) ;; *) return 0 ;; esac
    "$train" --device "$device" --data "$work/rows.jsonl" --tokenizer none --val-fraction 0 --task grpo \
        --reward-program "sh $work/draw" --sample-tokens 0 --report false --tensorboard false --save-model false \
        --save-every 0 --out "$work/run" --overwrite --quiet "$@" > "$work/log" 2>&1 ||
        { echo "$name: $(tail -n 1 "$work/log")" && return 0; }
    awk -v name="$name" '
        function value(key,    at) {
            at = index($0, "\"" key "\":")
            return at ? substr($0, at + length(key) + 3) + 0 : 0
        }
        /"rollout_speed"/ {
            n++
            elapsed = value("elapsed"); step[n] = elapsed - before; before = elapsed
            rollout[n] = value("rollout_seconds"); copy[n] = value("rollout_copy_seconds")
            speed[n] = value("rollout_speed"); scored[n] = value("reward_seconds")
            if (value("vram_peak_bytes") > peak) peak = value("vram_peak_bytes")
            if (value("vram_planned_bytes") > planned) planned = value("vram_planned_bytes")
            apart = value("apart"); length_of = value("answer_tokens")
        }
        function median(list,    i, k, t) { # without the first, which prepares
            for (i = 2; i <= n; i++) for (k = i; k > 2 && list[k] < list[k - 1]; k--) {
                t = list[k]; list[k] = list[k - 1]; list[k - 1] = t
            }
            return list[int((n + 2) / 2)]
        }
        END {
            printf "%-34s %6.2f s a step: rollout %.2f s (%.0f tokens/s, copy %.3f s), rewards %.2f s; answers of %.0f tokens; apart %.2g; %.2f GiB, planned %.2f\n",
                name, median(step), median(rollout), median(speed), median(copy), median(scored), length_of, apart, peak / 2 ^ 30, planned / 2 ^ 30
        }' "$work/run/metrics.jsonl"
}

if [ "$device" = cpu ]; then
    make_rows 16
    measure "nano" --model nano --seq-len 64 --prompts 8 --samples 4 --answer-tokens 32 --steps "$steps"
    exit 0
fi
make_rows 128
set -- --seq-len 384 --prompts 64 --samples 8 --answer-tokens 256 --precision bf16 --steps "$steps"
if [ -z "${REWARDS_CAPPED:-}" ]; then
    measure "1.5b" --model qwen2.5-1.5b "$@"
    measure "3b" --model qwen2.5-3b "$@"
    rm -rf "$work"
    REWARDS_CAPPED=1 exec "$here/bench/hold.sh" "$0" --only "$only" --steps "$steps"
fi
measure "3b in 16,303 MiB" --model qwen2.5-3b --cpu-mem 90GiB "$@"
