# gguf.sh: --model FILE.gguf: a file for llama.cpp as the start of a run, as a base of adapters, for evaluation and chat.

# A model of bytes with rows that blocks of 32 and 256 numbers cut, as a folder and as a file of TYPE.
make_file() { # TYPE
    run_tiny --architecture llama --width 256 --heads 4 --mlp-width 256 --seed 3 --out base
    expect_code 0
    run_other hybrid-export base --gguf "$1.gguf" --type "$1" --quiet
    expect_code 0
}

run_file() { # FILE further flags
    file=$1
    shift
    run --model "$file" --seq-len 32 --batch-size 2 --steps 2 --builtin-bytes 60000 --sample-tokens 0 --threads 1 \
        --device cpu "$@"
}

loss_of() {
    "$program" --eval-only "$@" --precision fp32 --seed 5 --builtin-bytes 60000 --val-fraction 0.05 --seq-len 32 \
        --threads 1 --device cpu 2> /dev/null | sed -n 's/^loss *\([0-9.]*\) .*/\1/p'
}

test_a_file_has_the_loss_of_the_folder_it_was_made_of() {
    make_file f32
    folder=$(loss_of --model base/model)
    [ -n "$folder" ] || fail "no loss"
    expect_same "$(loss_of --model f32.gguf)" "$folder" "loss of the file"
    run_other hybrid-export base/model --gguf q4_k_m.gguf --type q4_k_m --quiet
    expect_code 0
    awk -v a="$(loss_of --model q4_k_m.gguf)" -v b="$folder" 'BEGIN { exit !(a != b && a - b < 0.1 && b - a < 0.1) }' ||
        fail "the loss of q4_k_m is $(loss_of --model q4_k_m.gguf), that of the folder $folder"
}

test_a_run_from_a_file_resumes_and_exports_without_it() {
    make_file q8_0
    run_file q8_0.gguf --out out
    expect_code 0
    expect_out "loaded the weights of q8_0.gguf"
    for name in config.json tokenizer.json tokenizer_config.json; do
        expect_file out/model/$name
        expect_file out/origin/files/$name
    done
    rm q8_0.gguf
    run --resume out --steps 3 --device cpu --threads 1 --sample-tokens 0
    expect_code 0
    run_other hybrid-export out --out written
    expect_code 0
    expect_file written/tokenizer.json
    grep -q '"model.embed_tokens.weight"' written/model.safetensors || fail "the tensors have other names"
    run_file written --out again
    expect_code 0
}

test_adapters_beside_a_file_are_merged_into_it() {
    make_file q4_k_m
    run_file q4_k_m.gguf --lora --lora-rank 4 --frozen-dtype nf4 --out quantised
    expect_code 0
    run_file q4_k_m.gguf --lora --lora-rank 4 --out tuned
    expect_code 0
    run_other hybrid-export tuned --merge --out one
    expect_code 0
    run_other hybrid-export --merge --adapter tuned/adapter --out two
    expect_code 0
    cmp -s one/model.safetensors two/model.safetensors || fail "the merged weights differ"
    cp q4_k_m.gguf other.gguf
    printf x | dd of=other.gguf bs=1 seek=$(($(wc -c < other.gguf) - 40)) conv=notrunc 2> /dev/null
    run_other hybrid-export tuned --merge --base other.gguf --out three
    expect_code 2
    expect_err "are not the base weights that the run was trained with"
}

test_a_file_answers_and_shows_rows() {
    make_file f16
    run_other hybrid-chat --model f16.gguf --prompt "abc" --max-tokens 3 --device cpu
    expect_code 0
    printf '{"prompt": "one", "completion": "two"}\n' > rows.jsonl
    run --model f16.gguf --data rows.jsonl --show-rows 1
    expect_code 0
    expect_out "two"
}

test_a_folder_with_one_file_is_that_file() {
    make_file f16
    mkdir folder
    mv f16.gguf folder/
    run_file folder --plan
    expect_code 0
    cp folder/f16.gguf folder/other.gguf
    run_file folder --plan
    expect_code 2
    expect_err "folder contains 2 model files; name one of them: f16.gguf, other.gguf"
}

test_wrong_files_are_refused_by_name() {
    run_file absent.gguf
    expect_code 2
    expect_err "absent.gguf: no such file"
    echo "not a model" > wrong.gguf
    run_file wrong.gguf
    expect_code 2
    expect_err "wrong.gguf is not a GGUF file"
    printf 'GGUF\003\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000' > empty.gguf
    run_file empty.gguf
    expect_code 2
    expect_err "general.architecture is missing; supported: gpt2, llama"
}

test_a_file_with_a_unigram_tokenizer_is_measured_and_trained_on() {
    for i in 1 2 3 4 5 6 7 8 9; do echo "The keeper of light $i is called Ole, and the sea is wide."; done > text.txt
    for i in 1 2 3 4 5; do cat text.txt text.txt > more.txt && mv more.txt text.txt; done
    run_tiny --data text.txt --tokenizer "$here/../golden/sentencepiece/unigram.model" --vocab 352 --out first
    expect_code 0
    run_other hybrid-export first --gguf u.gguf --type q8_0 --eval-batches 1
    expect_code 0
    expect_out "written"
    run_file u.gguf --data text.txt --out second
    expect_code 0
    expect_file second/model/tokenizer.model
    expect_file second/model/tokenizer.json
}
