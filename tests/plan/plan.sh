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
    for words in "why" "optimizer state in pinned memory" "a layer is updated" "planned speed: " \
        "tokens/s" "length of the run: " "written to disk" "allocated before the first step" "it fits"; do
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

test_a_plan_that_does_not_fit_suggests_changes_that_do() {
    # shellcheck disable=SC2086
    run --plan $seven --precision bf16
    expect_code 0
    expect_out "it does not fit"
    expect_out "short"
    expect_out "it would fit with"
    flags=$(sed -n "/it would fit with/{n;s/: .*//p}" "$stdout")
    # shellcheck disable=SC2086 # the words are arguments
    run --plan $seven --precision bf16 $flags
    expect_out "it fits"
}

test_a_model_that_does_not_fit_gets_adapters_as_advice_with_speed_and_memory() {
    run --plan --card rtx5080 --cpu-mem 28GiB --model qwen2.5-7b
    expect_out "  --qlora: "
    expect_out "  --lora: "
    speeds=$(sed -n "/it would fit with/,\$s/.*: \([0-9,]*\) tokens.*/\1/p" "$stdout" | tr -d ,)
    expect_same "$speeds" "$(printf '%s\n' "$speeds" | sort -rn)" "fastest first"
}

test_the_plan_for_a_card_in_the_help_fits_a_pc() {
    run --help
    flags=$(sed -n "s/^ *hybrid-train \(.*--card.*\)/\1/p" "$stdout" | head -n 1)
    # shellcheck disable=SC2086 # the words are arguments
    run $flags
    expect_out "it fits"
}

list_for_a_16_gb_card() { run --plan --card rtx5080 --cpu-mem 32GiB "$@"; }

# The row of a model in a list: NAME SIZE, and for each way tokens/s, GiB of the card and of the host, or "no".
row_of() { sed -n "s/^  $1  *//p" "$stdout" | head -n 1; }

test_models_are_listed_when_none_is_named() {
    list_for_a_16_gb_card
    expect_code 0
    for words in "This is a selection, 20 of" "what fits" "full tok/s" "LoRA tok/s" "QLoRA tok/s" "Planned values" \
        "rank 16, frozen model in bf16" "rank 16, frozen model in NF4"; do
        expect_out "$words"
    done
    row_of gpt2-124m | grep -qE '^124.4M( +[0-9,]+ +[0-9.]+ +[0-9.]+){3}$' || fail "$(cat "$stdout")"
    row_of qwen3-8b | grep -qE '^8.19B +no( +[0-9,]+ +[0-9.]+ +[0-9.]+){2}$' || fail "$(cat "$stdout")"
    row_of qwen2.5-32b | grep -qE '^32.8B +no +no +[0-9,]+ +[0-9.]+ +[0-9.]+$' || fail "$(cat "$stdout")"
    [ "$(awk '{ if (length > most) most = length } END { print most }' "$stdout")" -le 105 ] ||
        fail "lines are too long: $(cat "$stdout")"
    expect_nothing_written
}

test_a_list_names_the_device_and_the_memory_that_it_is_for() {
    run --plan --card 4060ti --cpu-mem 60GiB
    expect_out 'for RTX 4060 Ti 8GB, 8 GB by its data sheet (also: --card "RTX 4060 Ti 16GB")'
    expect_out "the host has 60.0 GiB of memory"
    run --plan --config rtx5080 --device cpu
    expect_out "for this machine's CPU"
    run --help card
    expect_out "name lists all"
}

# Base and state of a way are smaller than those of the one before it: what fits, fits there too.
test_adapters_take_less_than_full_parameter_training() {
    list_for_a_16_gb_card --json
    expect_code 0
    json_values "$stdout" > values || exit 1
    awk -F '\t' '{ v[$1] = $2 }
        function held(at) { return v[at ".device_bytes"] + v[at ".host_pinned_bytes"] }
        END {
            for (i = 0; (m = ".models." i) ".model" in v; i++) {
                if (v[m ".full.fits"] == "true" && v[m ".lora.fits"] != "true") wrong = m " lora"
                if (v[m ".lora.fits"] == "true" && v[m ".qlora.fits"] != "true") wrong = m " qlora"
                if (v[m ".parameters"] < 1e9) continue # where activations are most of it
                if (held(m ".lora") >= held(m ".full") || held(m ".qlora") >= held(m ".lora")) wrong = m
            }
            if (i < 18) wrong = i " models"
            if (wrong != "") print wrong
            exit wrong != ""
        }' values || fail "$(cat values)"
    values=$(cat values)
    expect_keys "$values" "" fits model parameters vram_peak_bytes # of the default model, as ever
    expect_keys "$values" ".models.16.qlora" fits tokens_per_second device_bytes host_pinned_bytes \
        disk_bytes types predicts state
    expect_same "$(value_of largest.full)" qwen2.5-3b "the largest, full-parameter"
    expect_same "$(value_of largest.lora)" qwen2.5-14b "the largest with LoRA"
    expect_same "$(value_of largest.qlora)" qwen2.5-32b "the largest with QLoRA"
}

# What the list says of a model is what the plan of that model says.
test_the_list_and_the_plan_of_one_model_agree() {
    list_for_a_16_gb_card --json
    values=$(json_values "$stdout") || exit 1
    bytes=$(value_of 'models\.16\.qlora\.device_bytes') rate=$(value_of 'models\.16\.qlora\.tokens_per_second')
    list_for_a_16_gb_card --model qwen3-8b --qlora --json
    values=$(json_values "$stdout") || exit 1
    expect_same "$(value_of vram_peak_bytes)" "$bytes" "bytes of the card"
    expect_same "$(value_of tokens_per_second | cut -c 1-6)" "$(echo "$rate" | cut -c 1-6)" "tokens/s"
}

test_the_largest_that_fits_has_its_command() {
    list_for_a_16_gb_card --no-shuffle --set lr=1e-4 --profile aggressive
    expect_out "full-parameter  up to mistral-7b, 7.24B; qwen2.5-7b fits with --predictor none --step-tokens 65536 --offload-folder FOLDER"
    expect_out "QLoRA           up to qwen2.5-32b, 32.8B"
    expect_out "      hybrid-train --model FOLDER --data ROWS --lora --cpu-mem 32GiB --no-shuffle --set lr=1e-4 --profile aggressive"
    command=$(sed -n 's/^      hybrid-train \(.*--qlora.*\)/\1/p' "$stdout" | sed 's/FOLDER/nano/')
    # shellcheck disable=SC2086 # the words are arguments
    seq 20000 > ROWS && run $command --plan
    expect_code 0
    expect_out "it fits"
}

test_a_way_that_is_asked_for_is_listed_alone() {
    list_for_a_16_gb_card --qlora --lora-rank 64 --verbose
    expect_code 0
    expect_out "QLoRA: adapters of rank 64"
    expect_out "QLoRA: details"
    expect_out "on the device"
    ! grep -q "full" "$stdout" || fail "$(cat "$stdout")"
    list_for_a_16_gb_card --train last:2
    expect_code 0
    expect_out "training last:2"
    expect_out "      hybrid-train --model FOLDER --data ROWS --cpu-mem 32GiB --train last:2"
    ! grep -q "LoRA tok" "$stdout" || fail "$(cat "$stdout")"
}

# GPT-2 has a context of 1,024 tokens: it is left out, and the others are planned.
test_settings_that_are_not_for_a_model_leave_it_out() {
    list_for_a_16_gb_card --seq-len 2048 --qlora
    expect_code 0
    row_of gpt2-124m | grep -qE '^124.4M +-$' || fail "$(cat "$stdout")"
    row_of qwen3-8b | grep -qE '^8.19B +[0-9,]+ ' || fail "$(cat "$stdout")"
    run --plan --card rtx5080 --seq-len 1000000
    expect_refusal "beyond the model's context"
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
    expect_refusal "step_tokens" "must be a multiple of 32"
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
test_shapes_of_a_custom_model_are_planned() {
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
    grep -q "^steps *1,000$" "$stdout" || fail "the steps are not printed alone"
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
