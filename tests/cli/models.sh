# models.sh: --model FOLDER, OUT/model and hybrid-export: folders in Hugging Face's format, in and out.

golden=$here/../golden/hf
export_program=$(dirname "$program")/hybrid-export

# A shard of 2000 tokens below 96, as llm.c writes it.
make_tokens() {
    {
        printf '\210\330\064\001\001\000\000\000\320\007\000\000'
        head -c 1012 /dev/zero
    } > shard.bin
    i=0
    while [ $i -lt 2000 ]; do
        printf "\\$(printf %o $((33 + (i * i + 7 * i) % 60)))\\000"
        i=$((i + 1))
    done >> shard.bin
}

run_model() { # MODEL further flags
    model=$1
    shift
    run --model "$model" --data shard.bin --seq-len 8 --batch-size 2 --steps 2 --predictor none \
        --sample-tokens 0 --threads 1 --device cpu --lr 0 "$@"
}

run_export() {
    find . | sort > "$before"
    "$export_program" "$@" > "$stdout" 2> "$stderr" < /dev/null
    code=$?
    find . | sort > "$after"
}

expect_export_refusal() {
    expect_code 2
    expect_same "$(grep -c '^hybrid-export: error: ' "$stderr")" 1 "lines of error"
    for fragment in "$@"; do expect_err "$fragment"; done
    expect_nothing_written
}

# Weights that did not change leave as they came, tensor for tensor: the data behind the headers.
weights_of() { # FILE
    length=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +$((9 + length)) "$1" | cksum
}

test_a_folder_is_trained_and_written_again() {
    make_tokens
    run_model "$golden/llama" --out out
    expect_code 0
    expect_out "loaded the weights of"
    expect_file out/model/config.json
    expect_file out/model/model.safetensors
    run_model out --out again # a finished run stands for its model
    expect_code 0
    expect_out "loaded the weights of out/model"
    expect_same "$(cksum < again/model/model.safetensors)" "$(cksum < out/model/model.safetensors)" \
        "weights after a second way through"
}

test_a_folder_brings_shape_and_regime() {
    run --model "$golden/qwen3" --print-config
    expect_code 0
    expect_out "head_size = 4;"
    expect_out "qk_norm = true;"
    expect_out "vocab = 96;"
    expect_out "lr = 2e-05;"
}

test_a_checkpoint_is_exported() {
    make_tokens
    run_model "$golden/mistral" --out out
    expect_code 0
    run_export out --out exported --max-shard-size 12KB
    expect_code 0
    expect_out "wrote exported"
    expect_file exported/model.safetensors.index.json
    run_export out/checkpoint-2 --out one --dtype fp32
    expect_code 0
    expect_file one/model.safetensors
    grep -q '"dtype": "float32"' one/config.json || fail "config.json does not say float32"
    run_export out --out one
    expect_export_refusal "one" "already"
    run_export out --out one --overwrite --dtype bf16
    expect_code 0
    expect_same "$(weights_of one/model.safetensors)" "$(weights_of out/model/model.safetensors)" \
        "weights of the run and of its checkpoint"
}

test_a_checkpoint_is_exported_without_the_folder_it_came_from() {
    make_tokens
    cp -r "$golden/qwen2" source
    run_model source --out out
    expect_code 0
    rm -r source
    run_export out --out exported --dtype bf16
    expect_code 0
    expect_empty "$stderr"
    cmp -s exported/config.json out/model/config.json || fail "another config.json"
    expect_same "$(weights_of exported/model.safetensors)" \
        "$(weights_of out/model/model.safetensors)" "weights"
}

# A resume goes back to an older checkpoint and says so; an export is what was asked for, or an error.
test_no_older_checkpoint_is_exported_in_silence() {
    run_tiny --out out --save-every 2 --no-save-model
    expect_code 0
    local newest
    newest=$(ls -d out/checkpoint-* | sort -t- -k2 -n | tail -n 1)
    echo x >> "$newest/weights.safetensors"
    run_export out --out one
    expect_code 2
    grep -q "the newest checkpoint, is not complete" "$stderr" || fail "not refused: $(cat "$stderr")"
    [ ! -e one ] || fail "something was exported"
    run_export "$(sed -n 's/.*the one before it, name \([^ :]*\).*/\1/p' "$stderr")" --out one
    expect_code 0
}

test_a_preset_becomes_a_folder() {
    run_tiny --out out
    expect_code 0
    expect_file out/model/config.json
    grep -q LlamaForCausalLM out/model/config.json || fail "no architecture in config.json"
    run_tiny --out without --no-save-model
    expect_code 0
    [ ! -e without/model ] || fail "without/model was written"
}

test_a_shape_that_transformers_lacks_is_reported() {
    run_tiny --out out --norm layernorm
    expect_code 0
    expect_err "out/model is not written"
    expect_file out/summary.json
    run_export out --out exported
    expect_export_refusal "no architecture"
}

test_wrong_use_of_export() {
    run_export --out there
    expect_export_refusal "no run found"
    run_export somewhere
    expect_export_refusal "--out FOLDER or --gguf FILE is missing"
    run_export nowhere --out x
    expect_export_refusal "nowhere"
    run_export . --out x
    expect_export_refusal "checkpoint"
    run_export . --out x --dtype
    expect_export_refusal "--dtype"
    run_export . --out x --max-shard-size many
    expect_export_refusal "many"
    run_export --wrong
    expect_export_refusal "--wrong"
    run_export --help
    expect_code 0
    expect_out "Usage: hybrid-export"
}

test_an_export_is_not_named_like_a_file_of_another_format() {
    run_tiny --out out --no-save-model
    for name in x.gguf x.GGUF/ x.safetensors x.bin x.zip; do
        run_export out --out $name
        expect_export_refusal "$name looks like" "name a folder"
    done
    run_export out --out x.gguf
    expect_err "--gguf FILE"
    run_export out --out model-v1.2
    expect_code 0
}

test_a_run_becomes_a_file_for_llama_cpp() {
    run_tiny --out out --no-save-model
    run_export out --gguf x.gguf --type q8_0
    expect_code 0
    expect_out "wrote x.gguf"
    expect_err "bits per weight"
    expect_same "$(head -c 4 x.gguf)" GGUF "beginning of the file"
    run_export out --gguf x.gguf
    expect_export_refusal "x.gguf already exists" "--overwrite"
    run_export out --gguf x.gguf --type f32 --overwrite
    expect_code 0
    run_export out --gguf y.gguf --out folder
    expect_export_refusal "--out writes a folder and --gguf writes a file"
    run_export out --gguf y.gguf --dtype bf16
    expect_export_refusal "--dtype is for folders" "q4_k_m"
    run_export out --gguf y.gguf --type q9
    expect_export_refusal "q9 is not accepted" "q4_k_m"
    run_export out --out folder --type q8_0
    expect_export_refusal "type q8_0 is not accepted for a folder" "nf4, nf4_single, int8"
    run_export out --gguf none/y.gguf
    expect_export_refusal "none/y.gguf"
}

test_wrong_models() {
    mkdir empty
    run --model empty --out out
    expect_refusal "empty" "config.json"
    run --model Nobody/no-such-model --out out
    expect_refusal "Nobody/no-such-model" "hub"
    mkdir bad
    echo '{"architectures": ["BertModel"]}' > bad/config.json
    run --model bad --out out
    expect_refusal "bad/config.json" "BertModel" "LlamaForCausalLM"
    cp "$golden/llama/config.json" bad/config.json
    make_tokens
    run_model bad --out out
    expect_refusal "bad" "model.safetensors"
}

test_a_file_for_llama_cpp_is_calibrated_and_measured() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --width 64 --out out
    expect_code 0
    seq 4000 > text.txt
    run_export out --gguf small.gguf --type q4_0 --calibrate text.txt
    expect_code 0
    expect_out "nearest"
    expect_out "calibrated"
    expect_same "$(grep -c ' written$' "$stdout")" 1 "files written"
    expect_same "$(find . -name '*.gguf*')" ./small.gguf "files"
    # The run's folder and its report have the same figures.
    for name in before calibrated nearest; do
        loss=$(sed -n "s/^ *$name .* \([0-9]\.[0-9]*\)\( *[+-].*\)*$/\1/p" "$stdout")
        found=$(grep "\"rounding\":\"$name\"" out/exports.json | sed "s/.*\"$name\",\(\"bytes\":[0-9]*,\)*\"loss\":\([0-9.]*\).*/\2/")
        expect_same "$(printf '%.4f' "$found")" "$loss" "loss of $name in exports.json"
        grep -q "<td class=\"text\">$name<.*$loss" out/report.html || fail "$name is not in the report"
    done
    run_export out --gguf again.gguf --type q8_0 --eval-batches 1
    expect_code 0
    expect_same "$(grep -c '^{"time"' out/exports.json)" 2 "exports that are remembered"
    expect_same "$(grep -c 'again.gguf' out/report.html)" 1 "lines about the second one in the report"
    rm again.gguf
    echo 'mine' > out/exports.json # not ours: it is left alone, and the file is written
    run_export out --gguf again.gguf --type q8_0 --eval-batches 1
    expect_code 0
    expect_err "exports.json is not a list"
    expect_same "$(cat out/exports.json)" mine "a file of the user's"
    rm again.gguf
    run --eval-only --model small.gguf --data text.txt --device cpu
    expect_code 0
    run_export out --gguf other.gguf --type q4_0 --calibrate missing.txt
    expect_code 2
    expect_same "$(echo *.gguf*)" small.gguf "files after an error"
    run_export out --out folder --calibrate text.txt
    expect_code 2
    run_tiny --out narrow
    run_export narrow --out folder --type nf4 --calibrate text.txt
    expect_code 0
    expect_err "of the matrices are rounded to nearest: the lengths of their rows are not multiples of 64"
    run_export out --gguf other.gguf --device cpu
    expect_code 2
    expect_err "--device is for measuring losses: add --eval-batches N, --data FILE or --calibrate FILE"
}

# At most a twentieth of the file; one matrix of this model is less than that.
test_matrices_that_lose_most_are_tried_with_a_larger_type() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --width 64 --mlp-width 64 --layers 6 --out out
    expect_code 0
    seq 4000 > text.txt
    run_export out --gguf small.gguf --type q4_0 --calibrate text.txt --eval-batches 1
    expect_code 0
    awk '$1 == "larger" { larger = $2 } $1 == "nearest" { same = $2 } $NF == "written" { kept = $2 }
        END { exit !(larger > same && larger <= 1.05 * same + 0.1 && (kept == same || kept == larger)) }' \
        "$stdout" || fail "$(cat "$stdout")"
    run_export out --gguf large.gguf --type q8_0 --calibrate text.txt --eval-batches 1
    expect_code 0
    grep -q larger "$stdout" && fail "q8_0 is the largest type: $(cat "$stdout")"
    run_export out --gguf mixed.gguf --type q4_k_m --calibrate text.txt --eval-batches 1
    expect_code 0
    expect_out larger
}

test_a_folder_for_bitsandbytes_is_written_and_measured() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --width 64 --out out
    expect_code 0
    seq 4000 > text.txt
    for type in nf4 nf4_single int8; do
        run_export out --out small --type $type --data text.txt --overwrite
        expect_code 0
        expect_out "nearest"
        expect_same "$(grep -c ' written$' "$stdout")" 1 "folders written"
        expect_same "$(find . -maxdepth 1 -name '*small*')" ./small "folders"
        grep -q '"quantization_config"' small/config.json || fail "config.json has no quantization_config"
        loss=$(grep nearest "$stdout" | grep -o '[0-9]\.[0-9]\{4\}' | head -n 1)
        run --eval-only --model small --frozen-dtype auto --data text.txt --seq-len 32 --device cpu --threads 1
        expect_code 0
        awk -v a="$loss" '$1 == "loss" { exit !(a - $2 < 2e-4 && $2 - a < 2e-4) }' "$stdout" ||
            fail "the table says $loss: $(cat "$stdout")"
    done
    run_export out --out again --type nf4 --calibrate text.txt
    expect_code 0
    expect_out "calibrated"
    expect_out "nearest"
    expect_same "$(grep -c ' written$' "$stdout")" 1 "folders written"
    expect_same "$(find . -maxdepth 1 -name '*again*')" ./again "folders"
    rm -r again
    run_export out/model --out again --type nf4
    expect_code 0
    expect_err "matrices of blocks in nf4, the rest in bf16"
    mkdir mine
    touch mine/notes
    run_export out --out mine --type nf4 --eval-batches 1 --overwrite
    expect_export_refusal "it is not a model's folder"
    run_export out --out x --type int8 --calibrate text.txt
    expect_export_refusal "types in blocks" "int8"
    run_export out --out x --calibrate text.txt
    expect_export_refusal "--calibrate needs --gguf FILE or --type"
    run_export out --out x --eval-batches 1
    expect_export_refusal "need --merge, --gguf, --type or --scale auto"
    run --model small --lora --steps 2 --seq-len 32 --batch-size 2 --data text.txt --device cpu --out none
    expect_code 0
    expect_out "keep their codes from bitsandbytes"
}

test_what_cannot_be_measured_is_refused_at_once() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --out out
    expect_code 0
    run_export out/model --gguf x.gguf --type q4_0 --eval-batches 1
    expect_export_refusal "out/model has no held-out data" "--data"
    seq 4000 > text.txt
    run_export out --gguf x.gguf --type bf16 --calibrate text.txt
    expect_export_refusal "types in blocks" "bf16"
    run_export out/model --gguf x.gguf --merge
    expect_export_refusal "out/model" "without adapters"
    expect_same "$(find . -name '*.gguf*')" "" "files"
}

test_a_folder_keeps_a_tokenizer_that_is_not_supported() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --out first
    expect_code 0
    cp -r first/model folder
    rm -f folder/tokenizer*
    echo a > folder/vocab.txt
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny --model folder --tokenizer none --steps 1 --out second
    expect_code 0
    expect_err "the tokenizer was copied as it is: "
    expect_err "vocab.txt, which is not supported"
    expect_file second/model/vocab.txt
    expect_file second/model/model.safetensors
}
