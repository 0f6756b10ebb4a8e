# adapters.sh: --lora, --adapter, OUT/adapter, hybrid-export --merge and hybrid-chat --adapter.

# A run to stand beside, and one that trains adapters beside it.
make_base() { run_tiny --seed 3 --out base && expect_code 0; }
run_lora() { run_tiny --init-from base --lora --lora-rank 4 "$@"; }

# The held-out loss of a model in fp32, on data that does not depend on the run.
loss_of() {
    "$program" --eval-only "$@" --precision fp32 --seed 5 --builtin-bytes 60000 --val-fraction 0.05 --seq-len 32 \
        --threads 1 --device cpu 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p'
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

test_another_run_in_its_folder_takes_the_adapter_away() {
    make_base
    run_lora --out tuned
    run_tiny --init-from base --adapter tuned --overwrite --out tuned
    expect_refusal "adapter = tuned/adapter is inside tuned, which --overwrite would delete"
    run_tiny --overwrite --out tuned
    expect_code 0
    [ ! -e tuned/adapter ] || fail "the adapter of the run before is there"
    mkdir -p mine/adapter
    run_tiny --out mine
    expect_refusal "mine/adapter already exists"
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
    expect_out "the run starts with the adapters of first/adapter"
    cmp -s first/adapter/adapter_model.safetensors second/adapter/adapter_model.safetensors ||
        fail "an adapter that does not learn is another one"
}

# Rows that no template is stored for, and two adapters: one with the default format, one with another.
make_rows() {
    for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        echo '{"question": "who is '$i'?", "answer": "'$i' it is"}'
    done > rows.jsonl
}
on_rows() { run_tiny --init-from base --data rows.jsonl --seq-len 256 "$@" && expect_code 0; }
rows_of() { sed -n 's/.*"row_format": "\(.*\)".*/\1/p' "$1/summary.json"; }

test_rows_are_written_as_those_of_the_adapter_or_run_before() {
    make_base
    make_rows
    on_rows --lora --chat-template alpaca --out first
    for from in first first/adapter; do
        on_rows --adapter $from --overwrite --out second
        expect_same "$(rows_of second)" "question and answer; chat template alpaca; loss on answers" "$from"
    done
    expect_out "chat template alpaca"
    rm first/adapter/hybrid_format.json # its checkpoint says it too
    on_rows --adapter first --overwrite --out second
    expect_same "$(rows_of second)" "question and answer; chat template alpaca; loss on answers" "checkpoint"
    for word in plain auto; do
        on_rows --adapter first --chat-template $word --overwrite --out third
        expect_same "$(rows_of third)" "question and answer; no chat template; loss on answers" "$word"
    done
    echo 'input: { chat_template = "plain"; }; lora: { adapter = "first"; }; profile = "aggressive";' > a.cfg
    on_rows --config a.cfg --overwrite --out third
    expect_same "$(rows_of third)" "question and answer; no chat template; loss on answers" "a file"
    grep -q 'lora_rank = 16;  # adapter' third/config.cfg || fail "the profile replaced the adapter's rank"
    on_rows --chat-template alpaca --out whole
    run_tiny --init-from whole --data rows.jsonl --seq-len 256 --out fourth
    expect_same "$(rows_of fourth)" "question and answer; chat template alpaca; loss on answers" "--init-from"
}

test_a_resumed_run_keeps_the_format_that_it_began_with() {
    make_base
    make_rows
    on_rows --lora --chat-template alpaca --out first
    on_rows --adapter first --chat-template auto --out second # as in version 0.2
    on_rows --adapter first --resume second --steps 8
    expect_same "$(rows_of second)" "question and answer; no chat template; loss on answers" "rows"
}

test_adapters_of_different_formats_are_named() {
    make_base
    make_rows
    on_rows --lora --chat-template alpaca --out first
    on_rows --lora --out second
    on_rows --lora --out third
    said="different formats (first: alpaca; second: lines); all of them are used with alpaca"
    look="--model base --data rows.jsonl --seq-len 256 --threads 1 --device cpu"
    # shellcheck disable=SC2086 # the words are arguments
    run_other hybrid-train --eval-only $look --adapter first,second
    expect_code 0
    expect_err "$said"
    expect_out "chat template alpaca"
    run_other hybrid-chat --model base --adapter first,second --prompt a --max-tokens 2 --device cpu
    expect_code 0
    expect_err "$said"
    # shellcheck disable=SC2086
    run_other hybrid-train --eval-only $look --adapter second,third
    ! grep -q "different formats" "$stderr" || fail "equal formats are named"
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

whole_case() { # ARCH TARGETS MODULES: what is trained whole comes back from OUT/adapter
    run_folder "$golden/$1" --lora --lora-rank 2 --lora-targets "$2" --lora-modules "$3" --lr 0.01 --overwrite \
        --out tuned
    expect_code 0
    # shellcheck disable=SC2086 # the words of $look are arguments
    of_run=$("$program" --eval-only --model tuned $look 2> /dev/null | grep '^loss')
    [ -n "$of_run" ] || fail "$*: no loss of the run"
    # shellcheck disable=SC2086
    found=$("$program" --eval-only --model "$golden/$1" --adapter tuned/adapter $look 2> "$stderr" | grep '^loss')
    expect_same "$found" "$of_run" "$*: base with adapter $(cat "$stderr")"
    run_folder "$golden/$1" --adapter tuned/adapter --steps 1 --lr 0 --overwrite --out further
    expect_code 0
    for file in adapter_model.safetensors adapter_config.json; do
        cmp -s further/adapter/$file tuned/adapter/$file || fail "$*: another $file after nothing was learned"
    done
}

test_matrices_that_have_no_adapters_may_be_trained_whole() {
    make_tokens
    look="--data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu"
    whole_case gpt2 c_fc c_attn,attn.c_proj
    whole_case gpt2 c_attn transformer.h.1.mlp.c_proj
    whole_case qwen2 mlp '*.attn.*'
    whole_case llama q_proj gate_proj,up_proj,down_proj
    whole_case qwen3 mlp 'blocks.1.attn.*'
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

test_flags_of_adapters_without_adapters() {
    for flag in "--lora-rank 8" "--lora-targets q_proj" "--lora-alpha 3" --rslora "--lora-dropout 0.1" \
        "--lora-modules embed" "--frozen-dtype nf4"; do
        # shellcheck disable=SC2086 # two words or one
        run_tiny $flag --out out
        expect_refusal "${flag%% *}" "add --lora or --qlora"
    done
    run_tiny --set lora_rank=8 --plan
    expect_refusal "--lora-rank 8" "add --lora or --qlora"
    run_tiny --lora-alpha 0 --no-rslora --lora-modules none --frozen-dtype auto --out none # ask for nothing
    expect_code 0
    run_tiny --train last:1 --frozen-dtype int8 --out none
    expect_code 0
    run_tiny --groups 'embed.*: frozen' --frozen-dtype int8 --out none
    expect_code 0
    make_base
    run_tiny --load-in-4bit --out out
    expect_refusal "--load-in-4bit" "--frozen-dtype nf4 has no effect without frozen weights: add --lora or --qlora"
    printf 'lora_r: 8\n' > axolotl.yml
    run_tiny --config axolotl.yml --out out
    expect_refusal "axolotl.yml:1" "has no effect without adapters: add --lora or --qlora"
    run_tiny --print-config
    cp "$stdout" printed.cfg
    run --config printed.cfg --out none
    expect_code 0
    run --resume base --lora-rank 8
    expect_code 2
    expect_err "--lora-rank 8 has no effect without adapters: the resumed run has no adapters"
    run --eval-only --model base --lora-rank 8 --device cpu
    expect_refusal "--lora-rank 8" "add --adapter FOLDER"
}

test_adapters_beside_random_weights_are_warned_of() {
    run_tiny --lora --out out
    expect_code 0
    [ "$(grep -c 'of the adapters are random, because nano is a shape without weights' "$stderr")" = 1 ] ||
        fail "$(cat "$stderr")"
    make_base
    run_lora --out tuned
    if grep -q random "$stderr"; then fail "$(cat "$stderr")"; fi
    run --resume out --steps 8
    if grep -q random "$stderr"; then fail "$(cat "$stderr")"; fi
}

test_targets_that_the_model_has_not() {
    run_tiny --lora --lora-targets q_proj,c_attn --out out
    expect_refusal "lora_targets" "c_attn" "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
}

test_the_first_lines_say_what_is_trained() {
    make_base
    run_lora --lora-alpha 12 --lora-targets q_proj,v_proj --lora-modules norm --rslora --lr 0.004 --steps 1 --out one
    expect_out "adapters  rank 4, alpha 12 (rsLoRA), in q_proj,v_proj; also trained: norm"
    expect_out "trained   544 of 43,616 parameters, lr up to 0.004"
    run_tiny --qlora --width 64 --steps 1 --out two
    expect_out "adapters  rank 16, alpha 32, in all matrices of the blocks"
    grep -qE '^trained   [0-9,]+ of [0-9,]+ parameters, lr up to [0-9.e-]+; the frozen blocks are in nf4$' "$stdout" ||
        fail "$(head -n 8 "$stdout")"
    run_tiny --train last:1 --steps 1 --out three
    grep -qE '^trained   [0-9,]+ of [0-9,]+ parameters, lr up to [0-9.e-]+$' "$stdout" || fail "$(head "$stdout")"
    run_tiny --steps 1 --out four
    ! grep "^trained" "$stdout" || fail "all parameters are trained"
}

# A preset has no folder that frozen weights could be read from again.
test_a_checkpoint_with_frozen_weights_says_so() {
    run_tiny --lora --steps 1 --out drawn
    grep -qE 'checkpoint size: [0-9.]+ KiB, [0-9.]+ KiB of it frozen weights; a run with --model FOLDER' \
        "$stdout" || fail "$(head "$stdout")"
    run --plan --model tiny-llama --qlora --card rtx4060
    grep -qE '^checkpoint size: [0-9.]+ MiB, [0-9.]+ [KM]iB of it frozen weights; a run with --model FOLDER' \
        "$stdout" || fail "$(grep checkpoint "$stdout")"
    run --model drawn --lora --data builtin --builtin-bytes 60000 --steps 1 --seq-len 32 --out tuned --device cpu
    expect_refusal "drawn has no config.json"
    make_base
    run --model base --lora --builtin-bytes 60000 --steps 1 --seq-len 32 --out tuned --device cpu
    expect_code 0
    ! grep "frozen weights" "$stdout" || fail "the folder has them"
}

test_train_beside_lora() {
    run_tiny --lora --train last:1 --out out
    expect_refusal "train.train" "lora_modules"
}

test_modules_that_match_nothing() {
    run_tiny --lora --lora-modules nothing --out out
    expect_refusal "lora_modules" "nothing"
}

test_modules_that_no_adapter_file_can_hold() {
    run_tiny --layers 2 --lora --lora-modules 'blocks.1.*' --out out
    expect_refusal "lora_modules" "blocks.1.attn.qkv.weight already has an adapter" "embed, head, norms"
    run_tiny --lora --lora-targets mlp --lora-modules q_proj,v_proj --out out
    expect_refusal "lora_modules" "q_proj is listed without k_proj"
    run_tiny --lora --lora-targets mlp --lora-modules 'blocks.0.attn.*,*.mlp.down.weight' --out out
    expect_refusal "lora_modules" "mlp.down.weight already has an adapter"
}

test_a_folder_that_is_no_adapter() {
    mkdir empty
    run_tiny --adapter empty --out out
    expect_refusal "empty" "adapter_config.json"
}

test_a_run_leads_to_its_adapter() {
    make_base
    run_lora --lr 0.01 --out one
    run_lora --lr 0.01 --lora-rank 2 --out two
    apart=$(loss_of --model base --adapter one/adapter)
    [ -n "$apart" ] || fail "no loss"
    expect_same "$(loss_of --model base --adapter one)" "$apart" "by the run"
    expect_same "$(loss_of --model base --adapter one/)" "$apart" "by the run with a slash"
    run --eval-only --model base --adapter " two, one/adapter " --precision fp32 --seed 5 --builtin-bytes 60000 \
        --val-fraction 0.05 --seq-len 32 --threads 1 --device cpu
    expect_code 0
    expect_same "$(awk '$1 == "one" { print $2 }' "$stdout")" "$apart" "of two with spaces between"
    run_tiny --init-from base --adapter two --steps 1 --out three
    expect_code 0
    expect_out "the run starts with the adapters of two/adapter"
    grep -q "adapter = \"$(pwd -P)/two/adapter\"" three/config.cfg || fail "$(grep adapter three/config.cfg)"
}

test_what_a_refused_start_advises_is_accepted() {
    make_base
    base="$(pwd -P)/base/model"
    folder="--model base/model --seq-len 32 --batch-size 2 --steps 3 --threads 1 --device cpu"
    other="$folder --builtin-bytes 50000 --sample-tokens 0 --overwrite --out new"
    # shellcheck disable=SC2086
    run $folder --builtin-bytes 60000 --lora --out tuned
    expect_code 0
    run --resume tuned --builtin-bytes 50000
    expect_refusal "order of data" "--model $base --adapter tuned/adapter"
    # shellcheck disable=SC2086
    run $other --lora --init-from tuned
    expect_refusal "contains only adapters" "--model base/model --adapter tuned/adapter"
    # shellcheck disable=SC2086
    run $other --adapter tuned/adapter
    expect_code 0
    rm -r tuned/adapter
    run --resume tuned --qlora
    expect_refusal "hybrid-export tuned/checkpoint-3 --out FOLDER, then --model $base --adapter FOLDER"
    run --model tuned
    expect_refusal "hybrid-export tuned --out FOLDER writes"
    run_other hybrid-export tuned/checkpoint-3 --out FOLDER
    # shellcheck disable=SC2086
    run $other --adapter FOLDER --qlora
    expect_code 0
    run --resume tuned --lora-rank 2
    expect_refusal "hybrid-export tuned/checkpoint-3 --merge --out FOLDER, then --model FOLDER"
    run --resume tuned --adapter FOLDER
    expect_refusal "leave out --adapter"
    # shellcheck disable=SC2086
    run $folder --builtin-bytes 60000 --out whole
    expect_code 0
    run --resume whole --optimizer muon
    expect_refusal "continue with that optimizer" "--model $base --init-from whole/checkpoint-3"
    # shellcheck disable=SC2086
    run $other --init-from whole/checkpoint-3 --optimizer muon
    expect_code 0
}

test_a_model_that_is_a_run_or_an_adapter() {
    make_base
    run_lora --out tuned
    run --model tuned --lora
    expect_refusal "tuned has no config.json" "--adapter tuned/adapter"
    run --model tuned/adapter
    expect_refusal "this is an adapter" "use --adapter tuned/adapter"
    run --model tuned/checkpoint-6 --lora
    expect_refusal "this is a checkpoint; hybrid-export tuned/checkpoint-6 --out FOLDER writes"
    run_other hybrid-chat --model tuned/adapter
    expect_code 2
    expect_err "flag --model: "
    expect_err "this is an adapter"
    run --eval-only --model nobody
    expect_refusal "flag --model: unknown model nobody"
}

test_an_alpha_out_of_range_is_reported_with_its_file() {
    make_base
    run_lora --out tuned
    cp -r tuned/adapter bad
    sed 's/"lora_alpha": .*/"lora_alpha": 2000000,/' tuned/adapter/adapter_config.json > bad/adapter_config.json
    run --eval-only --model base --adapter bad
    expect_refusal "error: bad/adapter_config.json: lora_alpha is 2e+06" "up to 1000000"
    # together they would have one beyond it: no line of a file says so
    run_lora --lora-rank 8 --out wide
    sed 's/"lora_alpha": .*/"lora_alpha": 900000,/' tuned/adapter/adapter_config.json > bad/adapter_config.json
    run --eval-only --model base --adapter bad,wide/adapter
    expect_refusal "error: bad,wide/adapter: lora.lora_alpha = 1800000"
}

test_an_adapter_for_another_model() {
    make_base
    run_lora --out tuned
    expect_code 0
    run_tiny --width 64 --adapter tuned/adapter --out other
    expect_refusal "adapter_model.safetensors" "another"
}

expect_no_resume() { # what is said, then flags
    said=$1
    shift
    run --resume tuned --steps 8 "$@"
    expect_code 2
    expect_err "$said when this was saved and is"
}

test_a_resumed_run_cannot_become_another_function() {
    make_tokens
    run_folder "$golden/llama" --lora --lora-rank 2 --lora-alpha 5 --lora-targets mlp --steps 6 --out tuned
    expect_code 0
    run_folder "$golden/llama" --lora --lora-rank 3 --out another
    expect_no_resume "lora.lora_alpha was 5" --lora-alpha 6
    expect_err "is 6 now"
    expect_no_resume "lora.lora_alpha was 5" --rslora
    expect_no_resume "lora.lora_rank was 2" --lora-rank 4
    expect_no_resume "lora.lora_targets was mlp" --lora-targets up_proj
    expect_no_resume "lora.lora_modules was none" --lora-modules norm
    expect_no_resume "train.frozen_dtype was auto" --frozen-dtype int8
    expect_no_resume "train.frozen_dtype was auto" --qlora
    expect_no_resume "optimizer.groups was " --groups 'blocks.0.*: frozen_dtype int8'
    expect_no_resume "lora.lora was true" --no-lora
    expect_no_resume "lora.lora_rank was 2" --adapter another/adapter
    run --resume tuned --steps 8 --adapter tuned/adapter
    expect_code 2
    expect_err "began with no adapter: --adapter tuned/adapter would be ignored"
    run --resume tuned --steps 8 --lora-rank 2 --lora-alpha 5 --lora-targets gate_proj,up,down_proj \
        --lora-dropout 0.1 --lr 1e-3 --frozen-dtype auto # nothing of it is another function
    expect_code 0
    run_folder "$golden/llama" --adapter another/adapter --steps 2 --out further
    run --resume further --adapter another/adapter --steps 3
    expect_code 0
}

test_frozen_weights_that_a_checkpoint_holds_may_be_decoded() {
    run_tiny --width 64 --mlp-width 128 --out first
    run_tiny --width 64 --mlp-width 128 --init-from first --qlora --out tuned
    expect_code 0
    run --resume tuned --steps 8 --frozen-dtype int8
    expect_code 2
    expect_err "train.frozen_dtype was nf4 when this was saved and is int8 now"
    run --resume tuned --steps 8 --frozen-dtype auto
    expect_code 0
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

# Types by name count wherever the base is read again: merging, evaluating and resuming.
test_groups_quantise_the_base_of_adapters() {
    make_tokens
    groups='blocks.*: frozen_dtype int8'
    run_folder "$golden/llama" --lora --lora-targets all --groups "$groups" --steps 6 --out named
    expect_code 0
    run_folder "$golden/llama" --lora --lora-targets all --frozen-dtype int8 \
        --groups 'embed.*: frozen_dtype auto' --steps 6 --out whole
    expect_code 0
    expect_same "$(losses named)" "$(losses whole)" "losses"
    for run in named whole; do
        run_other hybrid-export "$run" --out "merged-$run" --merge
        expect_code 0
    done
    cmp merged-named/model.safetensors merged-whole/model.safetensors || fail "another model"
    run_folder "$golden/llama" --lora --lora-targets all --steps 6 --out plain
    run_other hybrid-export plain --out merged-plain --merge
    ! cmp -s merged-named/model.safetensors merged-plain/model.safetensors || fail "not quantised"
    run --resume named --steps 8
    expect_code 0
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
    expect_err "was not found; name its folder (--base FOLDER)"
    run_other hybrid-export tuned --out merged --merge
    expect_code 2
    grep -q -e "--base" "$stderr" || fail "$(cat "$stderr")"
    run_other hybrid-export tuned --out merged --merge --base moved
    expect_code 0
    cp -r "$golden/llama3-rope" base
    run --resume tuned --steps 8
    expect_code 2
    expect_err "are not the base weights"
    run_other hybrid-export tuned --out another --merge --base "$golden/llama3-rope"
    expect_code 2
    grep -q "are not the base weights" "$stderr" || fail "$(cat "$stderr")"
    rm -r base
    mv moved base
    run --resume tuned --steps 8
    expect_code 0
}

test_a_base_that_moved_is_named() {
    run_tiny --out small
    mv small/model base
    set -- --lora --lora-rank 2 --lr 0.01 --seq-len 32 --batch-size 2 --grad-accum-steps 1 --builtin-bytes 60000 \
        --steps 6 --sample-tokens 0 --threads 1 --device cpu
    run --model base "$@" --save-every 3 --out tuned
    expect_code 0
    cp -r tuned cut
    rm -r cut/checkpoint-6 cut/adapter
    before=$(loss_of --model tuned)
    mkdir far
    mv base far/moved
    expect_same "$(loss_of --model tuned --base far/moved)" "$before" "loss"
    run_other hybrid-chat --model tuned --base far/moved --prompt ab --max-tokens 4 --quiet
    expect_code 0
    run_other hybrid-chat --model tuned --prompt ab --max-tokens 4 --quiet
    expect_code 2
    expect_err "name its folder (--base FOLDER)"
    run --resume cut --base far/moved
    expect_code 0
    cmp -s cut/adapter/adapter_model.safetensors tuned/adapter/adapter_model.safetensors || fail "another adapter"
    grep -q "far/moved\"" cut/adapter/adapter_config.json || fail "$(cat cut/adapter/adapter_config.json)"
    run --resume cut --steps 8 # which knows now
    expect_code 0
    run_other hybrid-export cut --merge --out merged
    expect_code 0
    mv far/moved again
    run_other hybrid-export cut --merge --out merged-again --base again --eval-batches 1
    expect_code 0
    cmp merged/model.safetensors merged-again/model.safetensors || fail "another model"
    run --resume cut --steps 9 --base merged
    expect_code 2
    expect_err "are not the base weights"
    run --model again "$@" --base again --out another
    expect_refusal "--base again has no effect"
    run_other hybrid-chat --model again --base again --prompt ab
    expect_code 2
    expect_err "--base is only for a run with adapters"
    run --eval-only --model again --adapter tuned/adapter --base again
    expect_refusal "--base again has no effect"
}

test_a_checkpoint_says_itself_that_it_lacks_its_base() { # of all that is looked for in older ones, too
    make_tokens
    run_folder "$golden/llama" --lora --lora-rank 2 --lora-targets gate_proj,up_proj --lr 0.01 --out tuned \
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

# ---- the base as it was trained ----------------------------------------------------------------------------------

# A base whose rows can be NF4, as a folder, and adapters that were trained beside its codes.
make_quantised() {
    run_tiny --width 64 --mlp-width 128 --seed 3 --lr 3e-3 --out small
    expect_code 0
    mv small/model base
    run --model base --qlora --lora-rank 4 --lr 0.01 --steps 12 --seq-len 32 --batch-size 2 --grad-accum-steps 1 \
        --builtin-bytes 60000 --sample-tokens 0 --threads 1 --device cpu --eval-batches 0 --out tuned
    expect_code 0
}

expect_near() { # two numbers within 1e-5, and what they are
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-5 && d > -1e-5) }' ||
        fail "$3: \"$1\" is not \"$2\""
}

test_a_qlora_run_is_looked_at_as_it_was_trained() {
    make_quantised
    closing=$(json_values tuned/summary.json | sed -n "s/^\.val_loss$tab//p")
    set -- --eval-only --threads 1 --device cpu --json
    loss() { sed -n 's/^ *"loss": \([0-9.]*\).*/\1/p'; }
    expect_near "$("$program" "$@" --model tuned 2> /dev/null | loss)" "$closing" "the run's own loss"
    set -- "$@" --seed 1 --builtin-bytes 60000 --seq-len 32 --batch-size 2
    for codes in --qlora "--frozen-dtype nf4"; do
        # shellcheck disable=SC2086 # two words
        "$program" "$@" --model base --adapter tuned/adapter $codes > out.json 2> /dev/null || fail "$codes"
        expect_near "$(loss < out.json)" "$closing" "base with adapter, $codes"
        json_values out.json | grep -q "^\.frozen_dtype${tab}nf4$" || fail "$(cat out.json)"
        json_values out.json | grep -q "^\.adapter${tab}tuned$" || fail "$(cat out.json)"
    done
    in_16=$("$program" "$@" --model base --adapter tuned/adapter 2> /dev/null | loss)
    [ "$in_16" != "$(loss < out.json)" ] || fail "codes change nothing"
    run --eval-only --model base --adapter tuned/adapter --seq-len 32 --builtin-bytes 60000
    expect_out "frozen weights  as in the folder"
    expect_out "tuned/adapter was trained with nf4; --frozen-dtype nf4 computes as in training"
    run --model base --adapter tuned/adapter --seq-len 32 --batch-size 2 --builtin-bytes 60000 --steps 1 --out none
    expect_out "tuned/adapter was trained with nf4"
    expect_near "$("$program" "$@" --model tuned --frozen-dtype auto 2> /dev/null | loss)" "$in_16" "in 16 bits"
}

test_every_storage_of_the_base_is_looked_at_as_it_was_trained() {
    make_quantised
    for codes in nf4_single int8 fp8; do
        run --model base --lora --frozen-dtype $codes --lora-rank 4 --lr 0.01 --steps 6 --seq-len 32 --batch-size 2 \
            --grad-accum-steps 1 --builtin-bytes 60000 --sample-tokens 0 --threads 1 --device cpu --eval-batches 0 \
            --out "in-$codes"
        expect_code 0
        closing=$(json_values "in-$codes/summary.json" | sed -n "s/^\.val_loss$tab//p")
        found=$("$program" --eval-only --threads 1 --device cpu --json --model "in-$codes" 2> /dev/null |
            sed -n 's/^ *"loss": \([0-9.]*\).*/\1/p')
        expect_same "$(echo "$found" | cut -c 1-9)" "$(echo "$closing" | cut -c 1-9)" "$codes"
        "$program" --eval-only --threads 1 --device cpu --json --model "in-$codes" > out.json 2> /dev/null
        json_values out.json | grep -q "^\.frozen_dtype$tab$codes$" || fail "$(cat out.json)"
    done
}

test_chat_takes_the_base_as_it_was_trained() {
    make_quantised
    set -- --prompt Nina --max-tokens 20 --temperature 0 --quiet --device cpu --threads 1
    run_other hybrid-chat --model tuned "$@"
    expect_code 0
    of_run=$(cat "$stdout")
    run_other hybrid-chat --model base --adapter tuned/adapter --frozen-dtype nf4 "$@"
    expect_same "$(cat "$stdout")" "$of_run" "what is said"
    run_other hybrid-chat --model base --frozen-dtype nf8 "$@"
    expect_code 2
    grep -q "nf8" "$stderr" || fail "$(cat "$stderr")"
}

# ---- side by side ------------------------------------------------------------------------------------------------

make_three() {
    make_base
    run_lora --lr 0.01 --out one
    run_lora --lr 0.02 --lora-rank 2 --rslora --lora-targets q_proj,v_proj,down_proj --out two
    run_lora --lr 0.02 --lora-rank 7 --lora-targets k_proj --lora-modules embed --out three
    expect_code 0
}

test_several_adapters_are_looked_at_together() {
    make_three
    set -- --eval-only --model base --precision fp32 --seed 5 --builtin-bytes 60000 --seq-len 32 --threads 1 \
        --device cpu
    run "$@" --adapter three/adapter,one/adapter,two/adapter
    expect_code 0
    expect_nothing_written
    together=$(awk '$2 ~ /^[0-9]\.[0-9]+$/ { print $1, $2 }' "$stdout")
    alone="(none) $("$program" "$@" 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p')"
    for name in three one two; do
        loss=$("$program" "$@" --adapter $name/adapter 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p')
        alone="$alone
$name $loss"
    done
    expect_same "$together" "$alone" "losses"
    run "$@" --adapter three/adapter,one/adapter --json
    expect_code 0
    values=$(json_values "$stdout")
    printf '%s\n' "$values" | grep "adapter$tab" | sed "s/.*$tab//" > names
    expect_same "$(tr '\n' ' ' < names)" "null three one " "names"
}

test_alpha_by_a_flag_counts_for_each_of_several() {
    make_base
    run_lora --lr 0.01 --lora-rank 2 --out one
    run_lora --lr 0.02 --lora-rank 4 --rslora --lora-targets q_proj,down_proj --out two
    set -- --eval-only --model base --precision fp32 --seed 5 --builtin-bytes 60000 --seq-len 32 --threads 1 \
        --device cpu
    for flags in "--lora-alpha 8" "--lora-alpha 3 --rslora" "--no-rslora"; do # 8 is what the two have together
        # shellcheck disable=SC2086 # several words
        run "$@" --adapter one/adapter,two/adapter $flags
        expect_code 0
        for name in one two; do
            # shellcheck disable=SC2086
            alone=$("$program" "$@" --adapter $name/adapter $flags 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p')
            expect_same "$(awk -v n=$name '$1 == n { print $2 }' "$stdout")" "$alone" "$flags, $name"
        done
    done
}

test_chat_changes_between_adapters() {
    make_three
    set -- --max-tokens 20 --temperature 0 --device cpu --threads 1
    said=$(printf '/adapter\nNina\n/reset\n/adapter two\nNina\n/reset\n/adapter none\nNina\n/adapter nobody\nNina\n' |
        "$bin/hybrid-chat" --model base --adapter one/adapter,two/adapter "$@" 2> "$stderr"; echo "code $?")
    grep -q "error: adapter nobody is not loaded; accepted: one, two, none" "$stderr" || fail "$(cat "$stderr")"
    alone=$(printf '* one\n  two\n  none\n'
        for which in "--adapter one/adapter" "--adapter two/adapter" ""; do
            # shellcheck disable=SC2086 # two words or none
            echo Nina | "$bin/hybrid-chat" --model base $which "$@" 2> /dev/null
        done
        echo "code 2") # whoever asks for nobody gets no answer
    expect_same "$said" "$alone" "what is said"
}

test_adapters_that_cannot_be_side_by_side() {
    make_three
    set -- --eval-only --model base --device cpu
    run "$@" --adapter one/adapter,one/adapter/
    expect_refusal "one/adapter is named twice"
    run "$@" --adapter one/adapter,four/adapter
    expect_refusal "four/adapter was not found"
    run "$@" --adapter one/adapter,base
    expect_refusal "base is not an adapter" "adapter_config.json" "hybrid-export makes one from a checkpoint"
    run_tiny --width 64 --lora --lora-rank 2 --out other
    run "$@" --adapter one/adapter,other/adapter
    expect_refusal "other/adapter" "another"
    run "$@" --adapter one/adapter,three/adapter --lora-rank 5
    expect_refusal "three/adapter" "its rank is 7, but lora_rank is 5"
    run "$@" --adapter one/adapter,three/adapter --lora-targets attention
    expect_refusal "one/adapter" "an adapter for gate_proj" "lora_targets = attention"
    chmod 000 two/adapter/adapter_model.safetensors
    if [ "$(id -u)" != 0 ]; then
        run "$@" --adapter one/adapter,two/adapter
        expect_code 1
        expect_err "two/adapter"
    fi
    run_tiny --init-from base --adapter one/adapter,three/adapter --out new
    expect_refusal "starts from one adapter"
    run --eval-only --model one --adapter two/adapter --device cpu
    expect_refusal "holds adapters; name their base model"
}

test_an_adapter_knows_the_weights_of_its_base() {
    make_tokens
    cp -r "$golden/llama" base
    run_folder base --lora --lora-rank 2 --out tuned
    expect_code 0
    mv base moved
    set -- --data shard.bin --seq-len 8 --device cpu --threads 1
    run --eval-only --model moved --adapter tuned/adapter "$@"
    expect_code 0
    cp -r moved other
    run_folder moved --steps 1 --lr 0.01 --out whole
    expect_code 0
    run --eval-only --model whole/model --adapter tuned/adapter "$@"
    expect_refusal "tuned/adapter" "are not the base weights"
    run_folder whole/model --adapter tuned/adapter --out further
    expect_refusal "are not the base weights"
    cp -r tuned/adapter apart # without the run's folder nobody knows
    run --eval-only --model whole/model --adapter apart "$@"
    expect_code 0
}

# ---- what is merged onto -----------------------------------------------------------------------------------------

# Bit for bit: a run that learns nothing merges to the numbers that a run with the same frozen codes writes.
same_codes() { # FOLDER CODES further flags
    folder=$1 codes=$2
    shift 2
    set -- --model "$folder" --frozen-dtype "$codes" --lr 0 --weight-decay 0 --steps 1 --batch-size 2 \
        --grad-accum-steps 1 --sample-tokens 0 --threads 1 --device cpu --overwrite "$@"
    run "$@" --lora --lora-rank 2 --out still
    expect_code 0
    run "$@" --train 'final_norm.*' --model-dtype fp32 --out coded
    expect_code 0
    run_other hybrid-export still --out merged --merge --dtype fp32 --overwrite
    expect_code 0
    grep -q ", quantised to $codes as in training" "$stderr" || fail "$(cat "$stderr")"
    cmp merged/model.safetensors coded/model/model.safetensors || fail "$folder, $codes: other numbers"
    run "$@" --frozen-dtype auto --train 'final_norm.*' --model-dtype fp32 --out plain
    run_other hybrid-export still --out merged --merge-onto folder --dtype fp32 --overwrite
    expect_code 0
    grep -q "original weights of .*; training used them in $codes;" "$stderr" || fail "$(cat "$stderr")"
    cmp merged/model.safetensors plain/model/model.safetensors || fail "$folder: not the folder's numbers"
    if cmp -s plain/model/model.safetensors coded/model/model.safetensors; then fail "$codes changes nothing"; fi
}

test_merging_is_onto_the_codes_that_training_had() {
    make_quantised
    same_codes base nf4 --builtin-bytes 60000 --seq-len 32
    for codes in nf4_single int8 fp8; do same_codes base $codes --builtin-bytes 60000 --seq-len 32; done
    make_tokens
    for arch in gpt2 llama qwen3; do same_codes "$golden/$arch" int8 --data shard.bin --seq-len 8; done
}

test_what_a_quantised_folder_left_as_it_was_stays_so() {
    make_tokens
    set -- --data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu
    for base in llama-some qwen2-skipped; do
        base=$here/../golden/bnb/$base
        run_folder "$base" --lora --lora-rank 2 --lr 0.01 --save-every 3 --overwrite --out tuned
        expect_code 0
        of_run=$("$program" --eval-only --model tuned "$@" 2> /dev/null | grep '^loss')
        [ -n "$of_run" ] || fail "$base: no loss"
        expect_same "$("$program" --eval-only --model "$base" --adapter tuned "$@" 2> /dev/null | grep '^loss')" \
            "$of_run" "$base with adapter"
        run_other hybrid-export tuned --merge --out merged --dtype fp32 --overwrite
        expect_code 0
        loss=$("$program" --eval-only --model merged "$@" 2> /dev/null | grep '^loss')
        case $base in # the other one is bf16, which its codes are rounded to where they are decoded
        *llama-some) expect_same "$loss" "$of_run" "$base merged" ;;
        esac
        cp tuned/adapter/adapter_model.safetensors whole
        rm -r tuned/checkpoint-6 tuned/adapter
        run --resume tuned
        expect_code 0
        cmp whole tuned/adapter/adapter_model.safetensors || fail "$base: another adapter after resuming"
    done
    run --model "$here/../golden/bnb/llama-some" --lora --data shard.bin --seq-len 8 --device cpu --plan
    expect_code 0
}

test_merging_shows_how_far_the_two_are_apart() {
    make_quantised
    run_other hybrid-export tuned --out as-trained --merge --dtype fp32 --eval-batches 0
    expect_code 0
    line=$(grep '^held-out loss: merged into the base as trained (nf4) ' "$stdout") || fail "$(cat "$stdout")"
    run_other hybrid-export tuned --out as-they-are --merge-onto folder --dtype fp32 --eval-batches 0
    expect_same "$(grep '^held-out loss' "$stdout")" "$line" "the other way round"
    set -- --eval-only --seed 1 --builtin-bytes 60000 --seq-len 32 --batch-size 2 --threads 1 --device cpu --json
    for out in as-trained as-they-are; do
        loss=$("$program" "$@" --model $out 2> /dev/null | sed -n 's/^ *"loss": \([0-9.]*\).*/\1/p')
        printf '%s\n' "$line" | grep -qF "$(printf '%.4f' "$loss")" || fail "$out has $loss: $line"
    done
    closing=$(json_values tuned/summary.json | sed -n "s/^\.val_loss$tab//p")
    printf '%s\n' "$line" | grep -qF "(nf4) $(printf '%.4f' "$closing")," || fail "the run had $closing: $line"
    awk 'BEGIN { for (i = 0; i < 400; i++) printf "Nina kept %d cups.\n", i }' > text.txt
    run_other hybrid-export tuned --out more --merge --data text.txt --eval-batches 2 --device cpu
    expect_code 0
    grep -q 'into the original weights.*; 128 tokens of ' "$stdout" || fail "$(cat "$stdout")"
    mv base moved
    run_other hybrid-export tuned --out again --merge --base moved --eval-batches 1
    expect_code 0
    grep -q '^held-out loss: merged into the base' "$stdout" || fail "$(cat "$stdout")"
}

test_a_merge_into_a_file_for_llama_cpp_shows_both_bases() {
    make_quantised
    run_other hybrid-export tuned --out as-trained --merge --eval-batches 0
    expect_code 0
    line=$(grep '^held-out loss: merged into the base as trained (nf4) ' "$stdout") || fail "$(cat "$stdout")"
    closing=$(grep '^merged into the base as trained (nf4)' "$stdout") || fail "$(cat "$stdout")"
    for onto in trained folder; do
        run_other hybrid-export tuned --gguf $onto.gguf --merge-onto $onto --type f32 --eval-batches 0
        expect_code 0
        cp "$stdout" table
        before=$(awk '$1 == "before" { print $2 }' table) other=$(awk '$1 == "original" { print $3 }' table)
        file=$(awk '$1 == "nearest" { print $4 }' table)
        printf '%s\n' "$line" | grep -qF "(nf4) $before, into the original weights $other" || fail "$line: $(cat table)"
        # f32 rounds nothing: the file has the loss of the base that it was merged into.
        [ "$onto" = trained ] && expect_same "$file" "$before" "the file on the base as trained"
        [ "$onto" = folder ] && expect_same "$file" "$other" "the file on the original weights"
        awk '$1 == "nearest" { print $5 }' table | grep -q '^[+-]0\.000[01]$' || fail "increase: $(cat table)"
        tail -n 2 tuned/exports.json | grep -qE '"nearest",[^}]*"increase":(0,|-?0\.000[01]|[^,]*e-)' ||
            fail "$(tail -n 2 tuned/exports.json)"
        [ "$onto" = folder ] || expect_same "$(grep '^merged into' table)" "$closing" "the better base"
        grep -q '^merged into .* lower loss$' table || fail "$(cat table)"
    done
    # Without adapters nothing is merged, although the frozen weights were quantised, too.
    run --model base --train '*norm*' --frozen-dtype nf4 --steps 2 --seq-len 32 --batch-size 2 --builtin-bytes 60000 \
        --sample-tokens 0 --threads 1 --device cpu --out norms
    expect_code 0
    run_other hybrid-export norms --gguf norms.gguf --type q8_0 --eval-batches 1
    expect_code 0
    ! grep '^merged' "$stdout" || fail "$(cat "$stdout")"
}

test_a_merge_may_be_quantised_and_adapters_alone_may_not() {
    make_quantised
    run_other hybrid-export tuned --out adapters --type nf4
    expect_code 2
    expect_err "adapters are not quantised, so type nf4 is for whole models; use --merge"
    run_other hybrid-export tuned --out merged --merge --type nf4 --eval-batches 0
    expect_code 0
    grep -q '^ *original base ' "$stdout" || fail "$(cat "$stdout")"
    grep -q '^ *nearest .* written$' "$stdout" || fail "$(cat "$stdout")"
    expect_file merged/model.safetensors
    run_other hybrid-export --merge --adapter tuned/adapter --base base --out again --type int8
    expect_code 0
    grep -q '"load_in_8bit": true' again/config.json || fail "$(cat again/config.json)"
}

test_an_adapter_is_merged_without_a_run() {
    make_tokens
    set -- --data shard.bin --seq-len 8 --precision fp32 --threads 1 --device cpu
    for case in gpt2 gpt2-untied-wte:gpt2-untied llama llama-whole:llama mistral qwen2 qwen2-tied:qwen2 qwen3; do
        adapter=$here/../golden/peft/${case%:*} base=$golden/${case#*:}
        run_other hybrid-export --merge --adapter "$adapter" --base "$base" --out merged --dtype fp32 --overwrite
        expect_code 0
        grep -q "merged $adapter into the weights of $base" "$stderr" || fail "$(cat "$stderr")"
        beside=$("$program" --eval-only --model "$base" --adapter "$adapter" "$@" 2> /dev/null | grep '^loss')
        [ -n "$beside" ] || fail "$case: no loss"
        expect_same "$("$program" --eval-only --model merged "$@" 2> /dev/null | grep '^loss')" "$beside" "$case"
    done
    cp -r "$golden/llama" base
    run_folder base --lora --lora-rank 2 --lora-modules norm --lr 0.01 --out tuned
    run_other hybrid-export tuned --merge --out by-run --dtype fp32
    run_other hybrid-export --merge --adapter tuned --out by-adapter --dtype fp32 # which names its base
    expect_code 0
    cmp by-run/model.safetensors by-adapter/model.safetensors || fail "other numbers than the run's"
}

test_an_adapter_that_cannot_be_merged() {
    make_tokens
    adapter=$here/../golden/peft/llama
    export="--merge --adapter $adapter --out merged"
    for case in "hybrid-export $export|--base FOLDER" \
        "hybrid-export $export --base $golden/gpt2|is not a matrix of this model" \
        "hybrid-export $export --base nano|shape without weights" \
        "hybrid-export $export --base nowhere|is nowhere, which is not there; name the base model's folder (--base FOLDER)" \
        "hybrid-export tuned $export|replaces the checkpoint argument; unexpected argument tuned" \
        "hybrid-export --adapter $adapter --out merged|needs --merge" \
        "hybrid-export $export --merge-onto trained|accepts only \"folder\", because there is no run; got trained" \
        "hybrid-export $export --eval-batches 3|need a run"; do
        # shellcheck disable=SC2086 # words
        run_other ${case%%|*}
        expect_code 2
        grep -q -e "${case#*|}" "$stderr" || fail "$case: $(cat "$stderr")"
        expect_nothing_written
    done
    cp -r "$golden/llama" base
    run_folder base --lora --lora-rank 2 --out tuned
    run_folder base --steps 1 --lr 0.01 --out whole
    run_other hybrid-export --merge --adapter tuned/adapter --base whole/model --out merged
    expect_code 2
    expect_err "are not the base weights"
}

test_a_base_that_was_not_quantised_has_one_loss() {
    make_base
    run_lora --out tuned
    run_other hybrid-export tuned --out merged --merge --eval-batches 1
    expect_code 0
    grep -q '^held-out loss: [0-9.]*; ' "$stdout" || fail "$(cat "$stdout")"
    grep -q "merged into the weights of" "$stderr" || fail "$(cat "$stderr")"
}

test_what_cannot_be_merged_onto() {
    run_tiny --width 64 --mlp-width 128 --out first
    run_tiny --width 64 --mlp-width 128 --init-from first --qlora --lora-rank 2 --out tuned
    expect_code 0
    run_other hybrid-export tuned --out merged --merge-onto folder
    expect_code 2
    grep -q "only as nf4" "$stderr" || fail "$(cat "$stderr")"
    run_tiny --width 64 --mlp-width 128 --init-from first --lora --frozen-dtype fp8 --lora-rank 2 --out in-fp8
    run_other hybrid-export in-fp8 --out merged --merge-onto folder
    grep -q "only as fp8" "$stderr" || fail "$(cat "$stderr")"
    run_other hybrid-export nowhere --out merged --merge-onto sixteen # what is wrong in any case comes first
    expect_code 2
    grep -q "merge-onto accepts trained or folder, but got sixteen" "$stderr" || fail "$(cat "$stderr")"
    run_other hybrid-export tuned --out merged --eval-batches 3
    expect_code 2
    grep -q -e "--merge" "$stderr" || fail "$(cat "$stderr")"
    expect_nothing_written
    run_other hybrid-export tuned --out merged --merge --eval-batches 0
    expect_code 0
    grep -q '^held-out loss: [0-9.]*; ' "$stdout" || fail "$(cat "$stdout")"
}

test_the_hint_names_the_adapter_of_a_run_only_for_its_last_checkpoint() {
    make_base
    run_tiny --model base/model --lora --lora-rank 4 --steps 4 --save-every 2 --keep 5 --out tuned
    expect_code 0
    older=$(ls -d tuned/checkpoint-* | sort | head -n 1)
    [ "$older" != "$(ls -d tuned/checkpoint-* | sort | tail -n 1)" ] || fail "there is one checkpoint: $older"
    run_tiny --model base/model --init-from tuned --out next
    expect_refusal "contains only adapters" "--model base/model --adapter tuned/adapter"
    run_tiny --model base/model --init-from "$older" --out next
    expect_refusal "contains only adapters" "hybrid-export $older --out FOLDER"
    ! grep -q "tuned/adapter" "$stderr" || fail "adapters of another step are named: $(cat "$stderr")"
}
