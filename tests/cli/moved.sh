# moved.sh: a run is one folder: moved, copied, without the model it began as, and gone back in.

test_resume_of_a_copy_leaves_the_original_alone() {
    run_tiny --out out --steps 3
    expect_code 0
    cp -r out copy
    find out -type f -exec cksum {} + | sort > ../original
    run --resume copy --steps 6
    expect_code 0
    expect_file copy/checkpoint-6
    expect_same "$(find out -type f -exec cksum {} + | sort)" "$(cat ../original)" "the original"
    mkdir elsewhere
    mv copy elsewhere/run
    cd elsewhere || fail "no folder"
    run --resume run/checkpoint-3 --steps 7
    expect_code 0
    expect_file run/checkpoint-7
    [ ! -e copy ] && [ ! -e ../copy ] || fail "the run went on under its old name"
    run --resume run --out third --steps 8 # who names a folder gets it
    expect_code 0
    expect_file third/checkpoint-8
    [ ! -e run/checkpoint-8 ] || fail "run was continued although --out says third"
}

test_a_run_that_went_back_continues_from_its_branch() {
    run_tiny --out out --save-every 2 --keep 2
    expect_code 0
    expect_file out/checkpoint-6
    run --resume out/checkpoint-4 --steps 5
    expect_code 0
    expect_out "goes back to step 4 and abandons checkpoint-6 of out"
    run --resume out --steps 7
    expect_code 0
    expect_out "resumed out/checkpoint-5"
    expect_file out/checkpoint-7
    expect_file out/checkpoint-6.branch-0
    [ ! -e out/checkpoint-5 ] || fail "the current branch is not pruned"
}

golden=$here/../golden/hf
# A folder as people have them: weights of a Mistral, a tokenizer, a chat template, generation settings.
make_base() { # FOLDER
    cp -r "$golden/mistral" "$1"
    awk 'BEGIN {
        printf "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":95,\"content\":\"</s>\",\"special\":true,"
        printf "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
        printf "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
        printf "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"a\",\"continuing_subword_prefix\":null,"
        printf "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{"
        for (i = 0; i < 26; i++) printf "%s\"%c\":%d", i ? "," : "", 97 + i, i
        printf ",\" \":26,\"\\n\":27},\"merges\":[]}}"
    }' > "$1/tokenizer.json"
    echo '{"eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}' > "$1/tokenizer_config.json"
    echo '{"eos_token_id": 95, "temperature": 0.7}' > "$1/generation_config.json"
}

make_text() { # FILE SEED
    awk -v seed="$2" 'BEGIN { srand(seed); for (i = 0; i < 3000; i++) {
        printf "%c", 97 + int(26 * rand()); if (i % 7 == 6) printf " " } }' > "$1"
}

train_base() { # further flags
    run --model m/mistral --data text.txt --seq-len 8 --batch-size 2 --steps 3 --predictor none \
        --sample-tokens 0 --threads 1 --device cpu --lr 1e-3 "$@"
}

losses_of() { # METRICS
    grep -v '"event"' "$1" | grep -o '"loss": *[^,]*'
}

# All of a model's folder but the weights.
side_files() { # FOLDER
    (cd "$1" && find . -type f ! -name '*.safetensors' -exec cksum {} + | sort)
}

test_a_run_needs_its_base_no_more() {
    mkdir m
    make_base m/mistral
    make_text text.txt 1
    train_base --out out --steps 6 --save-every 3
    expect_code 0
    "$bin/hybrid-export" out --out before > /dev/null || fail "no export before"
    cp out/metrics.jsonl expected
    grep -q MistralForCausalLM before/config.json || fail "the base is no Mistral"
    mkdir -p far/away
    mv out far/away/run
    mv text.txt far/text.txt
    rm -r m
    cd far || fail "no folder"
    run --resume away/run/checkpoint-3
    expect_code 2
    expect_err "name the current path of the run's data (--data PATH)"
    run --resume away/run/checkpoint-3 --data text.txt
    expect_code 0
    losses_of ../expected > ../losses
    expect_same "$(losses_of away/run/metrics.jsonl)" "$(cat ../losses)" "losses"
    expect_same "$(wc -l < ../losses)" 6 "steps"
    expect_same "$(side_files away/run/model)" "$(side_files ../before)" "the run's model"
    mkdir here
    cd here || fail "no folder"
    run --eval-only --model ../away/run --data ../text.txt --device cpu
    expect_code 0
    echo "abc" | "$bin/hybrid-chat" --model ../away/run --device cpu --max-tokens 3 > said 2>&1 ||
        fail "no chat: $(cat said)"
    "$bin/hybrid-export" ../away/run --out after > /dev/null || fail "no export after"
    expect_same "$(side_files after)" "$(side_files ../../before)" "the export"
    cmp -s after/model.safetensors ../../before/model.safetensors || fail "other weights"
    rm ../away/run/origin/files/tokenizer.json
    "$bin/hybrid-export" ../away/run --out none 2> said && fail "exported without its tokenizer"
    grep -q "files/tokenizer.json is missing" said || fail "not named: $(cat said)"
    [ ! -e none ] || fail "something was written"
}

test_a_run_of_before_is_exported_with_its_base_or_not_at_all() {
    mkdir m
    make_base m/mistral
    make_text text.txt 1
    train_base --out out
    expect_code 0
    rm -rf out/origin
    mv m elsewhere
    "$bin/hybrid-export" out --out exported 2> said
    expect_same $? 2 "exit code"
    grep -q "m/mistral, was not found" said || fail "$(cat said)"
    [ ! -e exported ] || fail "something was written"
    "$bin/hybrid-export" out --out exported --base elsewhere/mistral > /dev/null || fail "no export"
    expect_same "$(side_files exported)" "$(side_files out/model)" "the export"
}

test_changed_data_is_refused_on_resume() {
    mkdir m
    make_base m/mistral
    make_text text.txt 1
    train_base --out out
    expect_code 0
    make_text text.txt 2 # as long as before
    run --resume out --steps 6
    expect_code 2
    expect_err "is not the data that the run was trained on"
    make_text moved.txt 1
    run --resume out --steps 6 --data moved.txt
    expect_code 0
}

test_changed_held_out_data_is_reported_on_resume() {
    make_text text.txt 1
    make_text held.txt 2
    run_tiny --data text.txt --val-data held.txt --out out --steps 2
    expect_code 0
    run --resume out --steps 3
    expect_code 0
    ! grep -q "held out" "$stderr" || fail "$(cat "$stderr")"
    make_text held.txt 3
    run --resume out --steps 4
    expect_code 0
    expect_err "held.txt has changed since"
}

test_a_named_tokenizer_is_kept() {
    mkdir m
    make_base m/mistral
    mkdir named
    mv m/mistral/tokenizer.json named/
    make_text text.txt 1
    train_base --out out --tokenizer named
    expect_code 0
    rm -r m named
    run --resume out --steps 5
    expect_code 0
    expect_file out/model/tokenizer.json
    "$bin/hybrid-export" out/checkpoint-3 --out exported > /dev/null || fail "no export"
    expect_file exported/tokenizer.json
}

# The model would not have known where to end.
test_a_preset_with_a_tokenizer_exports_its_end_token() {
    make_text text.txt 1
    run_tiny --data text.txt --tokenizer "$here/../golden/rows" --vocab 1000 --out out
    expect_code 0
    for file in config.json generation_config.json; do
        id=$(json_values "out/model/$file" | awk '$1 ~ /eos_token_id$/ { print $NF }')
        case $id in '' | null) fail "$file has no end token: $(cat "out/model/$file")" ;; esac
    done
}

test_a_model_file_is_not_needed_again() {
    echo 'shape: { layers = 1; width = 32; heads = 2; mlp_width = 48; vocab = 256; context = 64; };' \
        > mine.cfg
    run --model mine.cfg --seq-len 32 --batch-size 2 --steps 3 --builtin-bytes 60000 \
        --sample-tokens 0 --threads 1 --device cpu --out out
    expect_code 0
    rm mine.cfg
    run --resume out --steps 5
    expect_code 0
    "$bin/hybrid-export" out --out exported > /dev/null || fail "no export"
    cmp -s exported/config.json out/model/config.json || fail "another config.json"
}

test_a_folder_of_the_users_is_not_replaced() {
    mkdir -p m out/origin
    make_base m/mistral
    make_text text.txt 1
    echo mine > out/origin/notes
    train_base --out out
    expect_code 2
    expect_err "out/origin already exists"
    expect_same "$(cat out/origin/notes)" mine "the user's file"
    rm -r out/origin
    train_base --out out --overwrite
    expect_code 0
    expect_file out/origin/files/tokenizer.json
    train_base --out out --overwrite --model nano --tokenizer none --builtin-bytes 60000 --data builtin
    expect_code 0
    [ ! -e out/origin ] || fail "the model of the run before is still kept"
}
