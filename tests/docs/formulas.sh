# formulas.sh: plans of many shapes against the formulas of docs/memory.md (formulas.awk). Sourced by
# run.sh. Everything stays on a card with room for it, so that no ring hides a class.

plan_by_formula() { # flags of a run
    local flags="--card H200 --cpu-mem 900GiB --seq-len 512 --grad-accum-steps 1 --builtin-bytes 60000
        --weights-place device --master-place device --grads-place device --optim-place device
        --activations-place device --precision-correct same $*"
    # shellcheck disable=SC2086 # the words are arguments
    "$bin/hybrid-train" $flags --print-config > "$scratch/config" &&
        "$bin/hybrid-train" $flags --plan --json > "$scratch/plan.json" &&
        awk -f "$root/tests/cli/json.awk" "$scratch/plan.json" > "$scratch/plan" &&
        awk -v name="$*" -f "$here/formulas.awk" "$scratch/config" "$scratch/plan"
}

the_formulas_of_the_memory_page_give_the_plans_bytes() {
    local level model
    for level in none norm attention mlp all; do
        for model in llama-3.2-1b qwen3-0.6b gpt2-124m; do
            plan_by_formula --model $model --precision bf16 --batch-size 4 --predictor none \
                --recompute $level --loss-chunks 2
        done
        plan_by_formula --model qwen2.5-7b --precision bf16 --batch-size 4 --predictor none \
            --recompute $level --loss-chunks 1 --grad-dtype bf16 --optim-dtype 8bit --master-dtype bf16
    done
    plan_by_formula --model tiny-llama --precision fp32 --batch-size 2 --recompute none --predictor none \
        --loss-chunks 4
    plan_by_formula --model llama-3.2-1b --precision bf16 --batch-size 2 --recompute mlp --loss-chunks 2 \
        --grad-dtype bf16 --optim-dtype 8bit --master-dtype bf16 --predictor outer --tail-share 0.1
    plan_by_formula --model gpt2-350m --precision bf16 --batch-size 2 --recompute norm --loss-chunks 1 \
        --optim-dtype bf16 --predictor outer --tail-share 0
}
