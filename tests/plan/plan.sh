# plan.sh: what --plan answers. Sourced by run.sh.

# 7B as it fits a 16 GB card and a 64 GB PC.
small_state="--precision bf16 --predictor none --optim-dtype 8bit --grad-dtype bf16 --master-dtype bf16"
seven="--model qwen2.5-7b --card rtx5080 --cpu-mem 60GiB --seq-len 1024 --step-tokens 262144
       --builtin-bytes 60000"

plan_seven() {
    # shellcheck disable=SC2086 # the words are arguments
    run --plan $seven $small_state "$@"
}

value_of() { printf '%s\n' "$values" | sed -n "s/^\.$1$tab//p"; }

test_seven_billion_fit_a_16_gb_card_and_a_64_gb_pc() {
    plan_seven --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_keys "$values" "" fits vram_peak_bytes host_pinned_bytes disk_bytes tokens_per_second \
        step_seconds run_seconds checkpoint_bytes
    expect_keys "$values" ".choices" batch_size grad_accum_steps recompute recompute_layers \
        loss_chunks weights_place master_place grads_place optim_place activations_place update \
        ring_depth resident_units
    expect_same "$(value_of fits)" true "fits"
    [ "$(value_of vram_peak_bytes)" -le 16106127360 ] || fail "more than 15 GiB of the card"
    [ "$(value_of host_pinned_bytes)" -le 64424509440 ] || fail "more than 60 GiB of the host"
    for class in weights grads optim; do
        place=$(value_of "phases\.full\.classes\.$class\.place")
        expect_same "$place" pinned "place of $class"
    done
    batch=$(value_of 'choices\.batch_size') steps=$(value_of 'choices\.grad_accum_steps')
    expect_same "$((batch * steps * 1024))" 262144 "tokens per step"
    expect_nothing_written
}

test_plan_says_why_and_how_fast() {
    plan_seven
    expect_code 0
    for words in "why" "optimizer state in pinned memory" "updates are applied" "predicted: " \
        "tokens/s" "the run: " "written to disk" "taken before step 0" "it fits"; do
        expect_out "$words"
    done
}

test_what_the_user_says_stays() {
    plan_seven --recompute all --ring-depth 2 --update now --activations-place device --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_same "$(value_of 'choices\.recompute')" all "recompute"
    expect_same "$(value_of 'choices\.ring_depth')" 2 "ring_depth"
    expect_same "$(value_of 'choices\.update')" now "update"
    expect_same "$(value_of 'choices\.activations_place')" device "activations_place"
}

test_what_does_not_fit_is_told_with_changes_that_do() {
    # shellcheck disable=SC2086
    run --plan $seven --precision bf16
    expect_code 0
    expect_out "it does not fit"
    expect_out "short"
    expect_out "it would fit with"
    flags=$(sed -n "/it would fit with/{n;p}" "$stdout")
    # shellcheck disable=SC2086 # the words are arguments
    run --plan $seven --precision bf16 $flags
    expect_out "it fits"
}

test_models_are_listed_when_none_is_named() {
    run --plan --card rtx5080 --cpu-mem 60GiB --builtin-bytes 60000
    expect_code 0
    for words in "what fits" "gpt2-124m" "qwen2.5-7b" "on the device" "tokens/s"; do
        expect_out "$words"
    done
    expect_nothing_written
}

test_a_card_must_be_known() {
    run --plan --model nano --card voodoo2
    expect_refusal "voodoo2" "RTX 5080"
}

test_a_run_takes_no_card_by_name() {
    run_tiny --card rtx5080 --out out
    expect_refusal "--plan"
}

test_a_step_has_whole_sequences() {
    run_tiny --plan --step-tokens 100
    expect_refusal "step_tokens" "multiples of 32"
}

test_a_budget_on_the_cpu_is_kept() {
    run_tiny --layers 8 --plan --json
    values=$(json_values "$stdout") || exit 1
    all=$(value_of vram_peak_bytes)
    run_tiny --layers 8 --plan --max-gpu-mem "$((all * 9 / 10))" --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_same "$(value_of fits)" true "fits"
    [ "$(value_of vram_peak_bytes)" -le "$((all * 9 / 10))" ] || fail "more than the budget"
}

# 1.5 billion parameters of one's own whose state has to leave the card.
test_shapes_of_ones_own_are_planned() {
    { echo "# a table, and layers" && echo "table 151936 1536"
      for i in 1 2 3 4 5 6 7 8; do echo "layer.$i.w 160000 1024"; done; echo "norm 1536"; } > shapes
    run --plan-shapes shapes --precision bf16 --card rtx5080 --cpu-mem 40GiB --max-gpu-mem 2GiB \
        --predictor none --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_same "$(value_of fits)" true "fits"
    expect_same "$(value_of parameters)" "$((151936 * 1536 + 8 * 160000 * 1024 + 1536))" "parameters"
    expect_same "$(value_of 'phases\.full\.classes\.weights\.place')" device "place of the weights"
    expect_same "$(value_of 'phases\.full\.classes\.optim\.place')" pinned "place of the state"
    expect_nothing_written shapes
    input=shapes
    run --plan-shapes -
    expect_code 0
    grep -q "^model *own, 1,544,095,232 parameters" "$stdout" || fail "the parameters are not counted"
    grep -q "^steps *1,000$" "$stdout" || fail "the steps are not told alone"
    grep -q "tokens" "$stdout" && fail "tokens that nobody knows"
    return 0
}

test_shapes_that_are_none_are_refused_with_their_line() {
    printf 'w 3 4\nb four\n' > shapes
    run --plan-shapes shapes
    expect_refusal "shapes:2" "four"
    : > shapes
    run --plan-shapes shapes
    expect_refusal "no shapes"
    run --plan-shapes nowhere
    expect_refusal "nowhere"
    mkdir place
    run --plan-shapes place
    expect_refusal "place cannot be read"
}
