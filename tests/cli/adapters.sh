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

test_a_run_that_began_with_an_adapter_is_what_it_trained() {
    make_base
    run_lora --out first
    expect_code 0
    run_tiny --init-from base --adapter first/adapter --lr 0.01 --out second
    expect_code 0
    trained=$(loss_of --model base --adapter second/adapter)
    [ "$trained" != "$(loss_of --model base --adapter first/adapter)" ] || fail "it learned nothing"
    expect_same "$(loss_of --model second)" "$trained" "with the first adapter there"
    rm -r first
    expect_same "$(loss_of --model second)" "$trained" "with the first adapter gone"
    run_other hybrid-export second --out alone
    expect_code 0
    cmp -s alone/adapter_model.safetensors second/adapter/adapter_model.safetensors || fail "another adapter"
    run --resume second --steps 8
    expect_code 0
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

test_train_beside_lora() {
    run_tiny --lora --train last:1 --out out
    expect_refusal "train.train" "lora_modules"
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

# ---- beside a model's folder: checkpoints hold what is trained, and name the rest ------------------------------

golden=$here/../golden/hf

make_tokens() { # a shard of 2000 tokens below 96, as llm.c writes it
    {
        printf '\210\330\064\001\001\000\000\000\320\007\000\000'
        head -c 1012 /dev/zero
        awk 'BEGIN { for (i = 0; i < 2000; i++) printf "%c%c", 33 + (i * i + 7 * i) % 60, 0 }'
    } > shard.bin
    [ "$(wc -c < shard.bin)" -eq 5024 ] || fail "the shard has $(wc -c < shard.bin) bytes"
}

run_folder() { # FOLDER further flags
    folder=$1
    shift
    run --model "$folder" --data shard.bin --seq-len 8 --batch-size 2 --grad-accum-steps 1 --steps 6 \
        --sample-tokens 0 --threads 1 --device cpu --precision fp32 "$@"
}

test_a_checkpoint_has_adapters_and_not_their_base() {
    for arch in gpt2 llama qwen3; do
        make_tokens
        cp -r "$golden/$arch" base
        rm -f base/expected.safetensors
        run_folder base --lora --lora-rank 2 --lora-dropout 0.1 --save-every 3 --lr 0.01 --out "$arch"
        expect_code 0
        if grep -aq 'norm1.weight' "$arch/checkpoint-6/weights.safetensors"; then fail "$arch: the base is saved"; fi
        cp -r "$arch" again
        rm -r again/checkpoint-6 again/adapter
        run --resume again
        expect_code 0
        cmp -s again/adapter/adapter_model.safetensors "$arch/adapter/adapter_model.safetensors" ||
            fail "$arch: another adapter after resuming"
        run_other hybrid-export "$arch" --out merged --merge --dtype fp32
        expect_code 0
        set -- --data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu
        of_run=$("$program" --eval-only --model "$arch" "$@" 2> /dev/null | grep '^loss')
        expect_same "$("$program" --eval-only --model merged "$@" 2> /dev/null | grep '^loss')" "$of_run" "merged"
        expect_same "$("$program" --eval-only --model base --adapter again/adapter "$@" 2> /dev/null |
            grep '^loss')" "$of_run" "base with adapter"
        rm -r base again merged
    done
}

test_a_checkpoint_with_a_little_of_its_base_lacks_the_rest() {
    make_tokens
    for modules in '*.norm1.*' embed norm; do
        run_folder "$golden/llama" --lora --lora-rank 2 --lora-modules "$modules" --lr 0.01 --overwrite --out tuned
        expect_code 0
        set -- --data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu
        of_run=$("$program" --eval-only --model tuned "$@" 2> /dev/null | grep '^loss')
        [ -n "$of_run" ] || fail "$modules: no loss of the run"
        expect_same "$("$program" --eval-only --model "$golden/llama" --adapter tuned/adapter "$@" 2> /dev/null |
            grep '^loss')" "$of_run" "$modules: base with adapter"
        run_other hybrid-export tuned --out merged --merge --dtype fp32 --overwrite
        expect_code 0
    done
}

test_a_base_that_is_gone_or_another_one() {
    make_tokens
    cp -r "$golden/llama" base
    run_folder base --qlora --lora-rank 2 --out tuned
    expect_code 0
    mv base moved
    run --resume tuned --steps 8
    expect_code 2
    expect_err "which are not there"
    run_other hybrid-export tuned --out merged --merge
    expect_code 2
    grep -q -e "--base" "$stderr" || fail "$(cat "$stderr")"
    run_other hybrid-export tuned --out merged --merge --base moved
    expect_code 0
    cp -r "$golden/llama3-rope" base
    run --resume tuned --steps 8
    expect_code 2
    expect_err "other weights"
    run_other hybrid-export tuned --out another --merge --base "$golden/llama3-rope"
    expect_code 2
    grep -q "other weights" "$stderr" || fail "$(cat "$stderr")"
    rm -r base
    mv moved base
    run --resume tuned --steps 8
    expect_code 0
}

test_a_checkpoint_says_itself_that_it_lacks_its_base() { # of all that is looked for in older ones, too
    make_tokens
    run_folder "$golden/llama" --lora --lora-rank 2 --lr 0.01 --out tuned \
        --lora-modules 'embed,norm,*.norm1.*,*.attn.qkv.weight,*.attn.out.weight,*.mlp.down.weight'
    expect_code 0
    set -- --data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu
    of_run=$("$program" --eval-only --model tuned "$@" 2> "$stderr" | grep '^loss')
    [ -n "$of_run" ] || fail "no loss of the run: $(cat "$stderr")"
}

test_an_adapter_names_its_model_by_a_whole_path() {
    make_tokens
    cp -r "$golden/llama" base
    run_folder base --lora --lora-rank 2 --out tuned
    expect_code 0
    grep -q "\"base_model_name_or_path\": \"$(pwd -P)/base\"" tuned/adapter/adapter_config.json ||
        fail "$(cat tuned/adapter/adapter_config.json)"
    run_other hybrid-export tuned --out alone
    cmp tuned/adapter/adapter_config.json alone/adapter_config.json || fail "exports differ"
}
