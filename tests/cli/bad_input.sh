# bad_input.sh: wrong data, shapes, numbers and folders: exit code 2, one message, nothing written.

# bytes N OCTAL: N times one byte.
bytes() { head -c "$1" /dev/zero | tr '\000' "$2"; }

# A shard as llm.c writes it: 256 int32 of header (20240520, 1, count), then uint16 tokens.
shard() { # magic count-of-tokens-in-header tokens-written token
    printf "$1"'\001\000\000\000'
    printf "\\$(printf %o $(($2 % 256)))\\$(printf %o $(($2 / 256)))\\000\\000"
    head -c 1012 /dev/zero
    i=0
    while [ $i -lt "$3" ]; do
        printf "$4"
        i=$((i + 1))
    done
}
magic='\210\330\064\001'

test_missing_data_file() {
    run_tiny --data nowhere.txt --out out
    expect_refusal "nowhere.txt"
}

test_empty_data_file() {
    : > empty.txt
    run_tiny --data empty.txt --out out
    expect_refusal "empty.txt"
}

# As from a variable that is not set; the built-in text is not what was meant.
test_empty_data_path() {
    run_tiny --data "" --out out
    expect_refusal "--data is empty"
}

test_empty_data_folder() {
    mkdir texts
    run_tiny --data texts --out out
    expect_refusal "texts"
}

test_good_shard_is_accepted() {
    shard "$magic" 2000 2000 '\101\000' > good.bin
    run_tiny --data good.bin --out out
    expect_code 0
    expect_file out/summary.json
}

test_shard_with_a_wrong_header() {
    shard '\001\002\003\004' 2000 2000 '\101\000' > wrong.bin
    run_tiny --data wrong.bin --out out
    expect_refusal "wrong.bin"
}

test_shard_with_a_cut_tail() {
    shard "$magic" 2000 1999 '\101\000' > cut.bin
    run_tiny --data cut.bin --out out
    expect_refusal "cut.bin" "2000"
}

test_shard_with_tokens_beyond_the_vocabulary() {
    shard "$magic" 2000 2000 '\054\001' > big.bin
    run_tiny --data big.bin --out out
    expect_refusal "big.bin" "300" "255"
}

test_sequence_longer_than_the_data() {
    bytes 100 x > short.txt
    run_tiny --data short.txt --seq-len 400 --out out
    expect_refusal "short.txt" "100 tokens" "401"
}

test_sequence_longer_than_the_context() {
    run_tiny --context 16 --out out
    expect_refusal "32" "16"
}

test_heads_that_do_not_divide_the_width() {
    run_tiny --width 30 --heads 4 --out out
    expect_refusal "30" "4"
}

test_kv_heads_that_do_not_divide_the_heads() {
    run_tiny --heads 4 --kv-heads 3 --out out
    expect_refusal "3" "4"
}

test_negative_and_absurd_numbers() {
    for wrong in "--steps -5" "--batch-size 0" "--layers 99999999" "--lr -1" "--lr nan" "--lr inf" \
        "--seq-len 1e300" "--val-fraction 1.5" "--seed -1" "--threads -2" "--builtin-bytes 1" \
        "--batch-size 99999999999999999999" "--beta1 1" "--temperature -0.5" "--keep 1.5"; do
        # shellcheck disable=SC2086
        run_tiny $wrong --out out
        expect_refusal "${wrong%% *}" "accepted"
    done
}

test_model_that_can_never_fit() {
    run_tiny --layers 1000 --width 65536 --out out
    expect_refusal
}

test_output_folder_that_cannot_be_made() {
    : > file
    run_tiny --out file/below/out
    expect_refusal "file/below/out"
}

test_output_folder_without_permission() {
    [ "$(id -u)" != 0 ] || skip "root may write everywhere"
    mkdir locked
    chmod 500 locked
    run_tiny --out locked/out
    expect_refusal "locked"
    chmod 700 locked
}

test_existing_run_needs_resume_or_overwrite() {
    run_tiny --out out
    expect_code 0
    sum=$(cat out/metrics.jsonl out/summary.json | cksum)
    run_tiny --out out
    expect_refusal "out" "--resume" "--overwrite"
    expect_same "$(cat out/metrics.jsonl out/summary.json | cksum)" "$sum" "the first run's files"
    run_tiny --out out --steps 2 --overwrite
    expect_code 0
    expect_same "$(steps_of out)" 2 "lines after --overwrite"
}

test_a_folder_of_the_user_is_never_removed() {
    run_tiny --out out --save-every 2
    for name in report.html metrics.jsonl summary.json plan.json config.cfg sample.json exports.json \
        checkpoint-4/weights.safetensors tensorboard/mine model/model.safetensors origin/mine; do
        rm -rf copy
        cp -r out copy
        rm -rf "copy/$name"
        mkdir -p "copy/$name"
        echo mine > "copy/$name/diary.txt"
        run_tiny --out copy --overwrite
        expect_refusal "copy/$name"
        case $name in
        config.cfg | tensorboard/* | model/* | origin/*) ;;
        *)
            run --resume copy --steps 8
            expect_refusal "copy/$name"
            ;;
        esac
        expect_file "copy/$name/diary.txt"
    done
    export=$(dirname "$program")/hybrid-export
    "$export" out --out exported --quiet || fail "no export"
    rm exported/model.safetensors
    mkdir exported/model.safetensors
    echo mine > exported/model.safetensors/diary.txt
    "$export" out --out exported --overwrite > "$stdout" 2> "$stderr"
    code=$?
    expect_code 2
    expect_err "exported/model.safetensors is a folder"
    expect_file exported/model.safetensors/diary.txt
}

test_nothing_to_resume() {
    run --resume
    expect_refusal "resume"
    run --resume nowhere
    expect_refusal "nowhere"
    mkdir empty
    run --resume empty
    expect_refusal "empty"
}

test_checkpoint_of_another_shape() {
    run_tiny --out out
    expect_code 0
    run --resume out --layers 2
    expect_refusal "another model"
    run --resume out --width 64
    expect_refusal "another model"
}

test_checkpoint_of_another_preset() {
    run_tiny --out out
    expect_code 0
    run --resume out --model tiny-gpt2
    expect_refusal "cannot resume" "has the model nano" "model tiny-gpt2 is set by flag --model"
}

damage() { printf XXXX | dd of="$1" bs=1 seek=2000 conv=notrunc 2> /dev/null; }

test_damaged_checkpoint_is_named() {
    run_tiny --out out --steps 2
    expect_code 0
    damage out/checkpoint-2/weights.safetensors
    run --resume out
    [ "$code" != 0 ] || fail "a damaged checkpoint was loaded"
    expect_err "checkpoint-2"
}

test_damaged_checkpoint_gives_way_to_the_one_before() {
    run_tiny --out out --save-every 3
    expect_code 0
    whole=$(losses out)
    damage out/checkpoint-6/weights.safetensors
    run --resume out
    expect_code 0
    expect_err "warning"
    expect_err "checkpoint-6"
    expect_same "$(losses out)" "$whole" "losses"
}

# Whether there is a card or not: the message says what is missing, and nothing is written.
test_card_that_is_not_there() {
    run_tiny --device cuda:99 --out out
    expect_refusal "device is cuda:99" "CUDA is not available"
}

# The data would be refused, too: what is cheap to check comes first.
test_folder_adapters_and_weights_are_checked_before_data() {
    run_tiny --out out --steps 2
    expect_code 0
    run_tiny --out out --data none.txt
    expect_refusal "out already holds a run"
    run --resume out --lora --data none.txt
    expect_refusal "lora.lora was false when this was saved"
    mkdir empty
    cp out/model/config.json empty/
    run --model empty --data none.txt --out other
    expect_refusal "empty has no model.safetensors"
}

test_a_new_model_for_a_larger_tokenizer_names_the_vocabulary() {
    for i in 1 2 3 4 5 6 7 8 9; do echo "The keeper of light $i is called Ole, and the sea is wide."; done > text.txt
    run_tiny --data text.txt --tokenizer "$here/../golden/rows" --vocab 20
    expect_refusal "the model's vocabulary has the ids 0 to 19" "--vocab "
    vocab=$(sed -n 's/.*--vocab \([0-9]*\).*/\1/p' "$stderr")
    run_tiny --data text.txt --tokenizer "$here/../golden/rows" --vocab "$vocab" --steps 1 --seq-len 8
    expect_code 0
}

test_a_wrong_architecture_or_option_leads_to_the_right_one() {
    run --architecture gemma3
    expect_refusal "did you mean gemma3_text?"
    run --architecture mixtral
    expect_refusal "mixtral is not accepted (a mixture of experts)"
    ! grep -q "did you mean" "$stderr" || fail "another model is suggested: $(cat "$stderr")"
    run --architecture gemma3_text --arch-options '{"sliding_window": 32}'
    expect_refusal "use --sliding-window"
    run --architecture gemma3_text --arch-options '{"head_dim": 16}'
    expect_refusal "use --head-size"
    run --architecture gpt2 --arch-options '{"n_embd": 16}'
    expect_refusal "use --width"
    run --architecture granite --arch-options '{"embeding_multiplier": 3}'
    expect_refusal "did you mean embedding_multiplier?"
    run --architecture granite --arch-options '{"layer_types": ["attention"]}'
    expect_refusal "is not an option of granite"
    run --architecture olmo3 --arch-options '{"layer_types": ["full_attention"]}'
    expect_refusal "use --sliding-layers"
    run --architecture starcoder2 --arch-options '{"use_bias": false}'
    expect_refusal "use --qkv-bias and --proj-bias"
    run --architecture modernbert-decoder
    expect_refusal "modernbert-decoder is not accepted"
    ! grep -q "an encoder" "$stderr" || fail "a decoder is called an encoder: $(cat "$stderr")"
    mkdir folder
    for class in MixtralForCausalLM:experts MambaForCausalLM:Mamba; do
        echo "{\"architectures\": [\"${class%:*}\"]}" > folder/config.json
        run --model folder
        expect_refusal "${class%:*} is not supported" "${class#*:}" Mistral3ForConditionalGeneration
    done
}

test_a_plan_warns_of_what_a_run_refuses() {
    # shellcheck disable=SC2086
    run $tiny --out base
    expect_code 0
    run --plan --model base/model
    expect_code 0
    expect_empty "$stderr"
    mv base/model/model.safetensors kept
    run --plan --model base/model
    expect_code 0
    expect_err "warning: the run of this plan cannot start: base/model has no model.safetensors"
    expect_out "it fits"
    head -c 2000 kept > base/model/model.safetensors
    run --plan --model base/model
    expect_code 0
    expect_err "cannot start"
    mv kept base/model/model.safetensors
    # shellcheck disable=SC2086
    run $tiny --plan --init-from nobody
    expect_code 0
    expect_err "cannot start: nobody"
    # shellcheck disable=SC2086
    run $tiny --plan --early-stop 2 --eval-every 0
    expect_code 0
    expect_err "cannot start: early_stop is 2"
    # shellcheck disable=SC2086
    run --model base/model --seq-len 32 --batch-size 2 --steps 2 --lora --out tuned
    expect_code 0
    rm tuned/adapter/adapter_model.safetensors
    run --plan --model base/model --adapter tuned/adapter
    expect_code 0
    expect_err "cannot start: cannot open tuned/adapter/adapter_model.safetensors"
}

test_a_mistyped_run_is_not_a_name_of_the_hub() {
    mkdir runs
    run --model runs/typo
    expect_refusal "runs/typo: no such file or folder (runs exists)"
    ! grep -q -e "--download" "$stderr" || fail "a download is advised: $(cat "$stderr")"
    run --model someone/model
    expect_refusal "--download someone/model"
}
