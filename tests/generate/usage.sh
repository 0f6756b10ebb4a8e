# usage.sh: what hybrid-generate prints and refuses.

test_it_says_what_it_does() {
    make_model
    make_prompts 3
    answer --max-tokens 4 --streams 2
    expect_code 0
    expect_empty "$stdout"
    expect_err "model/checkpoint-60: "
    expect_err "2 streams, context of 512 tokens, tokenizer bytes"
    expect_err "format of messages: the text alone, without a chat template"
    expect_err "answers.jsonl: 3 rows; 12 tokens of answers, 21 of prompts, "
    expect_err "; 3 of 3 answers ended by length"
    expect_same "$(wc -l < "$stderr" | tr -d ' ')" 4 "lines"
    answer --overwrite --quiet
    expect_code 0
    expect_empty "$stderr"
}

test_progress_is_one_line_on_a_terminal() {
    command -v script > /dev/null || skip "no script(1)"
    make_model
    make_prompts 200
    TERM=xterm script -qec "$generate --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl \
        --max-tokens 100" /dev/null > "$stdout" < /dev/null
    expect_same "$(grep -c 'answers.jsonl: 200 rows; ' "$stdout")" 1 "closing lines"
    tr '\r' '\n' < "$stdout" | grep -qE '^[0-9]+ of 200 rows, answers .* tok/s, prompts .* tok/s, [0-9]+ running, [0-9]+ waiting' ||
        fail "no progress: $(tr '\r' '\n' < "$stdout" | head)"
    expect_same "$(tr '\r' '\n' < "$stdout" | awk 'length > 80' | grep -c running)" 0 "progress lines longer than the terminal"
}

test_wrong_usage() {
    make_prompts 2
    while read -r reason flags; do
        # shellcheck disable=SC2086 # words
        run_generate $flags
        expect_generate_error "$(echo "$reason" | tr '~' ' ')"
        expect_nothing_written
    done << 'END'
--data~FILE~is~missing --out x
--out~FILE~is~missing --data prompts.jsonl
cannot~read~nowhere.jsonl:~No~such~file --data nowhere.jsonl --out x
no~run~found --data prompts.jsonl --out x
unknown~flag~--max-token;~did~you~mean~--max-tokens? --max-token 5
--answers~is~"0";~accepted:~whole~numbers~from~1 --answers 0
--top-logprobs~is~"21";~accepted:~whole~numbers~from~0~to~20 --top-logprobs 21
nowhere --model nowhere --data prompts.jsonl --out x
END
}

test_wrong_files_are_named() {
    make_model
    make_prompts 2
    : > empty.jsonl
    printf 'just\ntext\n' > plain.txt
    printf 'a,b\n1,2\n' > other.csv
    mkdir folder
    while read -r reason flags; do
        # shellcheck disable=SC2086 # words
        run_generate --model model $flags
        expect_generate_error "$(echo "$reason" | tr '~' ' ')"
        expect_nothing_written
    done << 'END'
empty.jsonl~contains~no~rows --data empty.jsonl --out x
plain.txt~is~not~a~file~of~rows;~expected~JSON~lines,~a~JSON~array~or~CSV --data plain.txt --out x
other.csv:~the~column~names: --data other.csv --out x
cannot~open~nofolder/x.part --data prompts.jsonl --out nofolder/x
folder~exists~already --data prompts.jsonl --out folder
folder~is~a~folder --data prompts.jsonl --out folder --overwrite
"nothing=x"~maps~no~column --data prompts.jsonl --out x --columns nothing=x
accepted:~1~to~512 --data prompts.jsonl --out x --context 100000
--base~is~only~for~a~run~with~adapters --model model/model --data prompts.jsonl --out x --base model
END
}

test_help_and_version() {
    run_generate --help
    expect_code 0
    for words in "hybrid-generate --model" "--answers" "--stop" "Exit codes"; do expect_out "$words"; done
    expect_same "$(awk 'length > 80' "$stdout" | wc -l | tr -d ' ')" 0 "lines longer than 80"
    run_generate --version
    expect_code 0
    expect_out "hybrid-generate "
}
