#!/usr/bin/env bash
# The formulas of docs/memory.md beside a plan's figures.
#
#   tests/docs/formulas.sh FLAGS...      what --plan says of FLAGS, and what the formulas say
#
# Also sourced by run.sh, for the check over many shapes.

# Holds the plan of a run against the formulas.
hold_against_formulas() { # SHOWS FLAGS...
    local shows=$1 work
    shift
    work=$(mktemp -d "${TMPDIR:-/tmp}/hybrid-formulas-XXXXXX")
    "$bin/hybrid-train" "$@" --print-config > "$work/config" &&
        "$bin/hybrid-train" "$@" --plan --json > "$work/plan.json" &&
        awk -f "$root/tests/cli/json.awk" "$work/plan.json" > "$work/plan" &&
        awk -v name="$*" -v shows="$shows" -f "$root/tests/docs/formulas.awk" "$work/config" "$work/plan"
    local status=$?
    rm -rf "$work"
    return $status
}

roomy() { # flags of a run, on a card with room for all of it
    hold_against_formulas 0 --card H200 --cpu-mem 900GiB --seq-len 512 --grad-accum-steps 1 \
        --builtin-bytes 60000 --weights-place device --master-place device --grads-place device \
        --optim-place device --activations-place device "$@"
}

small_state="--grad-dtype bf16 --optim-dtype 8bit --master-dtype bf16"

# shellcheck disable=SC2086 # the words of small_state are arguments
the_formulas_of_the_memory_page_give_the_plans_bytes() {
    local level model
    for level in none norm attention mlp all; do
        for model in llama-3.2-1b qwen3-0.6b gpt2-124m; do
            roomy --model $model --precision bf16 --batch-size 4 --predictor none --recompute $level \
                --loss-chunks 2
        done
        roomy --model qwen2.5-7b --precision bf16 --batch-size 4 --predictor none --recompute $level \
            --loss-chunks 1 $small_state
    done
    roomy --model tiny-llama --precision fp32 --batch-size 2 --recompute none --predictor none \
        --loss-chunks 4 --builtin-bytes 60000
    # Rings, for classes that live elsewhere; the predictor's copies.
    hold_against_formulas 0 --card rtx5080 --cpu-mem 28GiB --model llama-3.2-1b --profile aggressive
    hold_against_formulas 0 --card rtx5080 --cpu-mem 28GiB --model llama-3.2-1b --profile balanced
    hold_against_formulas 0 --card rtx5080 --cpu-mem 62GiB --model qwen2.5-7b --predictor none \
        --seq-len 1024 --step-tokens 262144 $small_state
    # Layers that stay: they are in the ring, and not in pinned memory.
    hold_against_formulas 0 --card rtx5080 --cpu-mem 40GiB --model qwen2.5-7b --predictor none \
        --seq-len 1024 --step-tokens 4096 $small_state
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    root=$(cd "$(dirname "$0")/../.." && pwd)
    bin=${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}
    hold_against_formulas 1 "$@"
fi
