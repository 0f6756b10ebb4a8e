#!/bin/sh
# planned_speed.sh: how close are planned tokens per second to measured ones?
#
# Each row is planned and then trained for a few steps by bench/gpu_throughput (drawn weights, random
# tokens, no prediction). A row prints planned and measured tokens per second of the median step, their ratio,
# what bounds the planned step, and the parts of the estimate; the last line counts the rows within the bar
# (BAR, 0.08; on a CPU a factor of 1.5). On a card, the rows of group "capped" run while another process holds
# all but 16,303 MiB (hold.sh). A row that would begin after SECONDS_MAX (500) is skipped.
#
#   bench/planned_speed.sh [--device cuda|cpu] [--group whole|capped|all] [--only TEXT]
#
# HYBRID_BENCH names another folder of built measurements, LOG a file for the full output.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_throughput
device=cuda group=all only=
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 ;;
    --group) group=$2 ;;
    --only) only=$2 ;;
    *)
        echo "planned_speed: unknown argument $1; accepted: --device, --group, --only" >&2
        exit 2
        ;;
    esac
    shift 2
done
if [ "$device" = cuda ] && ! nvidia-smi > /dev/null 2>&1; then
    echo "planned_speed: skipped, no CUDA device here"
    exit 0
fi
began=${PLANNED_BEGAN:-$(date +%s)}
log=${LOG:-/dev/null}
table=${PLANNED_TABLE:-$(mktemp)}
[ -n "${PLANNED_TABLE:-}" ] || trap 'rm -f "$table"' EXIT

small="master_dtype=bf16 grad_dtype=bf16 optimizer=adamw8bit"
# MODEL BATCH SEQ TOKENS PRECISION STEPS SETTINGS...; batch 0: the planner chooses
whole() {
    cat << END
gpt2-124m 64 1024 131072 bf16 4
gpt2-124m 2 1024 16384 bf16 6
gpt2-124m 32 1024 65536 fp8 4
gpt2-350m 16 1024 65536 bf16 4
gpt2-350m 4 512 8192 bf16 6
llama-3.2-1b 0 1024 131072 bf16 3 $small
llama-3.2-1b 0 1024 131072 bf16 3 $small max_gpu_mem=8GiB
qwen2.5-1.5b 8 1024 65536 bf16 4
qwen2.5-1.5b 1 1024 8192 bf16 6
qwen2.5-1.5b 8 1024 65536 fp8 4
qwen2.5-1.5b 4 1024 16384 bf16 4 lora=true
qwen2.5-3b 4 1024 32768 bf16 3 $small
qwen2.5-3b 2 1024 8192 bf16 4 qlora=true
qwen3-8b 2 2048 16384 bf16 3 lora=true
qwen3-8b 2 2048 16384 bf16 3 qlora=true
qwen3-8b 2 2048 16384 fp8 3 lora=true
END
}
capped() {
    cat << END
gpt2-350m 0 1024 65536 bf16 4
qwen2.5-1.5b 0 1024 65536 bf16 3 $small cpu_mem=50GiB
qwen2.5-3b 0 1024 65536 bf16 2 $small cpu_mem=50GiB
llama-3.1-8b 0 1024 16384 bf16 3 qlora=true cpu_mem=50GiB
llama-3.1-8b 0 1024 16384 bf16 3 lora=true cpu_mem=50GiB
qwen2.5-7b 0 1024 65536 fp8 2 $small cpu_mem=50GiB
qwen2.5-7b 0 1024 65536 bf16 2 $small cpu_mem=50GiB
END
}
on_cpu() {
    cat << END
nano 1 256 512 fp32 20
nano 8 256 4096 fp32 8
nano 8 256 4096 fp32 8 threads=1
tiny-gpt2 2 256 1024 fp32 6
tiny-gpt2 8 256 2048 fp32 4 threads=1
nano 4 256 2048 fp32 4 width=384 heads=6 layers=7
gpt2-124m 1 128 128 fp32 3
gpt2-124m 2 512 1024 fp32 2
gpt2-124m 1 256 256 fp32 2 threads=1
END
}

run_row() { # MODEL BATCH SEQ TOKENS PRECISION STEPS SETTINGS...
    model=$1 batch=$2 seq=$3 tokens=$4 precision=$5 steps=$6
    shift 6
    title="$model $([ "$batch" = 0 ] && echo auto || echo "$batch")x$seq, $tokens per step, $precision${*:+, $*}"
    case "$where $title" in *"$only"*) ;; *) return 0 ;; esac
    if [ $(($(date +%s) - began)) -ge "${SECONDS_MAX:-500}" ]; then
        echo "$where, $title: skipped, no time left"
        return 0
    fi
    output=$("$program" --device "$device" --row c --model "$model" --batch-size "$batch" --seq-len "$seq" \
        --tokens "$tokens" --precision "$precision" --steps "$steps" --warmup 2 --recompute auto \
        --attention auto --estimate --set "$*" 2>&1 < /dev/null) || output="$output
  failed"
    echo "$output" >> "$log"
    estimate=$(echo "$output" | sed -n 's/^  estimate: //p')
    if [ -z "$estimate" ]; then
        echo "$where, $title: $(echo "$output" | tail -2 | head -1)"
        return 0
    fi
    echo "$where, $title"
    echo "$output" | sed -n 's/^  .* parameters, \(.*\); ready.*/    \1/p'
    echo "    $estimate"
    echo "$estimate" >> "$table"
}
run_group() { # NAME
    where=$1
    "$2" | while read -r line; do
        # shellcheck disable=SC2086
        run_row $line
    done
}

case $device/$group in
cpu/*) run_group cpu on_cpu ;;
*/whole) run_group whole whole ;;
*/capped) run_group capped capped ;;
*)
    run_group whole whole
    PLANNED_TABLE=$table PLANNED_BEGAN=$began "$here/bench/hold.sh" "$0" --group capped ${only:+--only "$only"}
    ;;
esac
[ -z "${PLANNED_TABLE:-}" ] || exit 0
bar=${BAR:-$([ "$device" = cpu ] && echo 0.5 || echo 0.08)}
awk -v bar="$bar" '
    { ratio = $6; off = ratio > 1 ? ratio - 1 : 1 / ratio - 1
      if (off <= bar) within++
      if (off > worst) { worst = off; at = ratio } }
    END { printf "%d of %d within %g %%, worst %.3f\n", within, NR, 100 * bar, at }' "$table"
