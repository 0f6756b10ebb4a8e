# adapters.sh: --lora, --adapter, OUT/adapter, hybrid-export --merge and hybrid-chat --adapter.

bin=$(dirname "$program")

# A run to stand beside, and one that trains adapters beside it.
make_base() { run_tiny --seed 3 --out base && expect_code 0; }
run_lora() { run_tiny --init-from base --lora --lora-rank 4 "$@"; }

# The held-out loss of a model in fp32, on data that does not depend on the run.
loss_of() {
    "$program" --eval-only "$@" --precision fp32 --seed 5 --builtin-bytes 60000 --val-fraction 0.05 --seq-len 32 \
        --threads 1 --device cpu 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p'
}

run_other() { # PROGRAM further arguments
    name=$1
    shift
    find . | sort > "$before"
    "$bin/$name" "$@" > "$stdout" 2> "$stderr" < /dev/null
    code=$?
    find . | sort > "$after"
}

test_a_run_leaves_an_adapter_and_not_a_model() {
    make_base
    run_lora --out tuned
    expect_code 0
    expect_out "the adapter is in"
    expect_file tuned/adapter/adapter_config.json
    expect_file tuned/adapter/adapter_model.safetensors
    [ ! -e tuned/model ] || fail "a model was written too"
    values=$(json_values tuned/adapter/adapter_config.json)
    printf '%s\n' "$values" | grep -q "^\.r${tab}4$" || fail "the rank is not 4: $values"
    printf '%s\n' "$values" | grep -q "^\.lora_alpha${tab}8$" || fail "alpha is not 8: $values"
}

test_run_base_with_adapter_and_merged_model_have_one_loss() {
    make_base
    run_lora --out tuned --lr 0.01
    expect_code 0
    run_other hybrid-export tuned --out merged --merge
    expect_code 0
    expect_file merged/config.json
    run_other hybrid-export tuned --out alone
    expect_code 0
    cmp -s alone/adapter_model.safetensors tuned/adapter/adapter_model.safetensors || fail "exports differ"
    of_run=$(loss_of --model tuned)
    [ -n "$of_run" ] || fail "no loss of the run"
    expect_same "$(loss_of --model base --adapter alone)" "$of_run" "base with adapter"
    expect_same "$(loss_of --model merged)" "$of_run" "merged model"
    [ "$(loss_of --model base)" != "$of_run" ] || fail "the adapter changed nothing"
}

test_a_resumed_run_has_the_bits_of_one_that_went_on() {
    make_base
    run_lora --lora-dropout 0.2 --lora-targets q_proj,down_proj --out whole
    expect_code 0
    run_lora --lora-dropout 0.2 --lora-targets q_proj,down_proj --save-every 3 --out cut
    expect_code 0
    rm -r cut/checkpoint-6 cut/adapter
    run --resume cut
    expect_code 0
    expect_same "$(losses cut)" "$(losses whole)" "losses"
    cmp -s cut/adapter/adapter_model.safetensors whole/adapter/adapter_model.safetensors ||
        fail "another adapter"
}

test_a_run_goes_on_from_an_adapter() {
    make_base
    run_lora --out first --lora-targets attention --lr 0.01
    expect_code 0
    run_tiny --init-from base --adapter first/adapter --steps 2 --lr 0 --out second
    expect_code 0
    expect_out "the adapters begin as those of first/adapter"
    cmp -s first/adapter/adapter_model.safetensors second/adapter/adapter_model.safetensors ||
        fail "an adapter that does not learn is another one"
}

test_qlora_keeps_its_base_small() {
    make_base
    run_tiny --init-from base --qlora --lora-rank 4 --out tuned
    expect_code 0
    run --plan --model qwen2.5-7b --qlora --card rtx5080 --cpu-mem 28GiB --batch-size 2 --seq-len 2048
    expect_code 0
    expect_out "it fits"
}

test_modules_beside_adapters_go_with_them() {
    make_base
    run_lora --out tuned --lora-modules embed --lr 0.01
    expect_code 0
    json_values tuned/adapter/adapter_config.json | grep -q "embed_tokens" || fail "embed_tokens is not named"
    expect_same "$(loss_of --model base --adapter tuned/adapter)" "$(loss_of --model tuned)" "loss"
}

test_chat_takes_an_adapter() {
    make_base
    run_lora --out tuned
    expect_code 0
    run_other hybrid-chat --model base --adapter tuned/adapter --prompt "a" --max-tokens 5 --temperature 0 --quiet
    expect_code 0
    with=$(cat "$stdout")
    run_other hybrid-chat --model tuned --prompt "a" --max-tokens 5 --temperature 0 --quiet
    expect_same "$with" "$(cat "$stdout")" "what is said"
}

# ---- what is refused ----------------------------------------------------------------------------------------

test_a_rank_of_zero() {
    run_tiny --lora --lora-rank 0 --out out
    expect_refusal "lora-rank" "1 to 1024"
}

test_targets_that_the_model_has_not() {
    run_tiny --lora --lora-targets q_proj,c_attn --out out
    expect_refusal "lora_targets" "c_attn" "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
}

test_modules_that_match_nothing() {
    run_tiny --lora --lora-modules nothing --out out
    expect_refusal "lora_modules" "nothing"
}

test_a_folder_that_is_no_adapter() {
    mkdir empty
    run_tiny --adapter empty --out out
    expect_refusal "empty" "adapter_config.json"
}

test_an_adapter_for_another_model() {
    make_base
    run_lora --out tuned
    expect_code 0
    run_tiny --width 64 --adapter tuned/adapter --out other
    expect_refusal "adapter_model.safetensors" "another"
}

test_a_truncated_adapter() {
    make_base
    run_lora --out tuned
    expect_code 0
    cp -r tuned/adapter broken
    head -c 3000 tuned/adapter/adapter_model.safetensors > broken/adapter_model.safetensors
    run_tiny --init-from base --adapter broken --out other
    expect_refusal "broken/adapter_model.safetensors"
}

test_merging_where_there_is_nothing_to_merge() {
    make_base
    run_other hybrid-export base --out merged --merge
    expect_code 2
    grep -q "no adapters" "$stderr" || fail "$(cat "$stderr")"
    expect_nothing_written
}
