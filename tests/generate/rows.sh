# rows.sh: what a row asks, and how it is written back.

test_every_kind_of_row_is_asked_as_its_text() {
    make_talker
    cat > prompts.jsonl << 'END'
{"text": "<user>ab<assistant>"}
{"prompt": "ab"}
{"question": "ab", "answer": "not read"}
{"instruction": "ab", "input": "", "output": "not read"}
{"messages": [{"role": "user", "content": "ab"}]}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "not read"}]}
{"conversations": [{"from": "human", "value": "ab"}]}
{"prompt": [{"role": "user", "content": "ab"}], "completion": [{"role": "assistant", "content": "x"}]}
{"prompt": "ab", "choices": ["x", "y"], "answer": 1}
{"tokens": [60, 117, 115, 101, 114, 62, 97, 98, 60, 97, 115, 115, 105, 115, 116, 97, 110, 116, 62]}
END
    run_generate --model model/model --data prompts.jsonl --out answers.jsonl --temperature 0 --max-tokens 12
    expect_code 0
    expect_same "$(wc -l < answers.jsonl | tr -d ' ')" 11 "rows"
    first=$(value 1.answer)
    [ ${#first} -gt 0 ] || fail "the first row has no answer"
    for i in 2 3 4 5 6 7 8 9 10 11; do
        expect_same "$(value "$i.text")" "$first" "row $i"
    done
}

test_systems_and_tools_are_in_the_prompt() {
    make_talker
    cat > prompts.jsonl << 'END'
{"text": "<system>S<user>ab<assistant>"}
{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "ab"}]}
{"system": "S", "prompt": "ab"}
{"text": "[f]<system>T<user>ab<assistant>"}
{"messages": [{"role": "user", "content": "ab"}], "tools": [{"name": "f"}]}
END
    run_generate --model model/model --data prompts.jsonl --out answers.jsonl --temperature 0 --system T
    expect_code 0
    expect_same "$(value 2.text)" "$(value 1.answer)" "a system message"
    expect_same "$(value 3.text)" "$(value 1.answer)" "the key system"
    expect_same "$(value 5.text)" "$(value 4.answer)" "--system and tools"
    [ "$(value 1.answer)" != "$(value 4.answer)" ] || fail "the system message does not count"
}

test_the_answer_is_that_of_hybrid_chat() {
    make_talker
    echo '{"prompt": "Nina sang"}' > prompts.jsonl
    for model in model model/model; do
        run_generate --model $model --data prompts.jsonl --out - --temperature 0 --max-tokens 40
        expect_code 0
        cp "$stdout" ../row
        program=$chat
        run --model $model --device cpu --threads 1 --prompt "Nina sang" --temperature 0 --max-tokens 40
        expect_code 0
        expect_same "$(value 1.text ../row)" "$(cat "$stdout")" "the answer of $model"
    done
}

test_rows_are_written_as_they_are() {
    make_model
    printf '%s\n' '{ "id" : 1.50,  "prompt": "a \" }{ [\u00e9" , "more": {"x": [1e3, null , {}], "y": ""} }' \
        '{"text": "old", "end": "e", "prompt": "b", "error": "was", "logprobs": 1}' \
        '{"text": "c"}' > prompts.jsonl
    answer --max-tokens 3 --temperature 0
    expect_code 0
    sed -e 's/"text":"[^"]*","end":"[^"]*"}$/"text":ANSWER}/' -e 's/"answer":"[^"]*","end":"[^"]*"}$/"answer":ANSWER}/' \
        answers.jsonl > ../shape
    printf '%s\n' '{"id":1.50,"prompt":"a \" }{ [\u00e9","more":{"x":[1e3,null,{}],"y":""},"text":ANSWER}' \
        '{"prompt":"b","logprobs":1,"text":ANSWER}' '{"text":"c","answer":ANSWER}' > ../expected
    cmp -s ../shape ../expected || fail "$(cat ../shape)"
}

test_an_array_and_csv_are_rows_too() {
    make_model
    printf '[\n  {"prompt": "ab",\n   "n": [1,\n 2]},\n  {"prompt": "cd"}\n]\n' > prompts.json
    printf 'prompt,n\nab,1\n"cd",2\n' > prompts.csv
    for file in prompts.json prompts.csv; do
        run_generate --model model --data $file --out $file.out --temperature 0 --max-tokens 8
        expect_code 0
        expect_same "$(wc -l < $file.out | tr -d ' ')" 2 "rows of $file"
    done
    expect_same "$(value 2.text prompts.csv.out)" "$(value 2.text prompts.json.out)" "the answer"
    expect_same "$(value 1.n prompts.csv.out)" 1 "a column of its own"
}

test_columns_have_other_names() {
    make_model
    printf '%s\n' '{"problem": "ab", "prompt": "no"}' '{"problem": "cd"}' > prompts.jsonl
    answer --columns prompt=problem --temperature 0
    expect_code 0
    cp answers.jsonl ../mapped
    printf '%s\n' '{"prompt": "ab"}' '{"prompt": "cd"}' > prompts.jsonl
    answer --temperature 0 --overwrite
    for i in 1 2; do expect_same "$(value $i.text)" "$(value $i.text ../mapped)" "row $i"; done
}

test_values_of_a_row_replace_the_flags() {
    make_model
    cat > prompts.jsonl << 'END'
{"prompt": "ab", "temperature": 0, "max_tokens": 7}
{"prompt": "ab", "seed": 30}
{"prompt": "ab", "top_k": 1, "stop": null, "max_tokens": 7}
{"prompt": "ab", "seed": 4, "top_p": 0.5}
{"prompt": "ab", "temperature": 0, "stop": ["never this", "ha"]}
{"prompt": "ab", "temperature": 0, "stop": "ha"}
END
    answer --max-tokens 24
    expect_code 0
    expect_same "$(value 1.text)" "$(value 3.text)" "greedy by temperature and by top_k"
    expect_same "$(value 1.end)" max_tokens "the end of row 1"
    expect_same "$(value 5.text)" "$(value 6.text)" "a stop text and a list of them"
    expect_same "$(value 6.end)" stop_text "the end of row 6"
    case $(value 6.text) in *ha*) fail "the stop text is in the answer" ;; esac
    cp answers.jsonl ../one
    echo '{"prompt": "ab"}' > prompts.jsonl
    answer --max-tokens 24 --seed 30 --overwrite
    expect_same "$(value 1.text)" "$(value 2.text ../one)" "the row with seed 30"
    answer --max-tokens 24 --temperature 0 --stop "never this" --stop ha --overwrite
    expect_same "$(value 1.text)" "$(value 5.text ../one)" "--stop"
    answer --max-tokens 24 --seed 4 --top-p 0.5 --overwrite
    expect_same "$(value 1.text)" "$(value 4.text ../one)" "the row with top_p"
}

# Answer i of row r has seed + r * answers + i.
test_several_answers_have_seeds_of_their_own() {
    make_model
    printf '%s\n' '{"prompt": "ab"}' '{"prompt": "ab"}' > prompts.jsonl
    answer --answers 3 --seed 10 --max-tokens 16
    expect_code 0
    cp answers.jsonl ../three
    i=0
    while [ $i -lt 6 ]; do
        echo '{"prompt": "ab", "seed": '$((10 + i))'}'
        i=$((i + 1))
    done > prompts.jsonl
    answer --max-tokens 16 --overwrite
    i=0
    while [ $i -lt 6 ]; do
        expect_same "$(value $((i / 3 + 1)).texts.$((i % 3)) ../three)" "$(value $((i + 1)).text)" "answer $i"
        expect_same "$(value $((i / 3 + 1)).ends.$((i % 3)) ../three)" "$(value $((i + 1)).end)" "end $i"
        i=$((i + 1))
    done
    expect_same "$(json_lines answers.jsonl | grep -c 'text')" 6 "texts"
    expect_same "$(json_lines answers.jsonl | grep 'text' | cut -f 2 | sort -u | wc -l | tr -d ' ')" 6 "different texts"
}

test_log_probabilities_are_written() {
    make_model
    printf '%s\n' '{"prompt": "ab"}' '{"prompt": "cd"}' > prompts.jsonl
    answer --temperature 0 --max-tokens 5 --top-logprobs 3
    expect_code 0
    json_lines answers.jsonl > ../values
    for i in 1 2; do
        expect_same "$(grep -c "^$i\.logprobs\.[0-9]*\.token" ../values)" 5 "tokens of row $i"
        expect_same "$(grep -c "^$i\.logprobs\.[0-9]*\.top\.[0-9]*\.token" ../values)" 15 "likeliest tokens of row $i"
        # the most likely token was chosen, and its log-probability is below 0
        for t in 0 4; do
            expect_same "$(value "$i.logprobs.$t.token")" "$(value "$i.logprobs.$t.top.0.token")" "token $t"
            expect_same "$(value "$i.logprobs.$t.logprob")" "$(value "$i.logprobs.$t.top.0.logprob")" "logprob $t"
            case $(value "$i.logprobs.$t.logprob") in -*) ;; *) fail "a log-probability is not below 0" ;; esac
        done
    done
    answer --temperature 0 --max-tokens 5 --logprobs --answers 2 --overwrite
    expect_code 0
    json_lines answers.jsonl > ../values
    expect_same "$(grep -c '^2\.logprobs\.1\.[0-9]*\.logprob' ../values)" 5 "tokens of the second answer"
    ! grep -q '\.top\.' ../values || fail "likeliest tokens were not asked for"
}

test_bad_rows_are_named_before_anything_is_generated() {
    make_model
    make_prompts 100
    long=$(printf '%0600d' 0)
    while read -r reason row; do
        make_prompts 100
        echo "$row" >> prompts.jsonl
        answer
        expect_generate_error "prompts.jsonl:101: " "$(echo "$reason" | tr '~' ' ')"
        expect_nothing_written
    done << END
column~12 {"prompt": x}
expected~prompt,~text,~question {"story": "ab"}
"max_tokens"~is~not~a~whole~number {"prompt": "a", "max_tokens": -3}
"temperature"~is~not~a~number {"prompt": "a", "temperature": "hot"}
top_p~is~7 {"prompt": "a", "top_p": 7}
"stop"~is~neither~a~text~nor~a~list~of~texts {"prompt": "a", "stop": [1]}
unknown~role~"ghost" {"messages": [{"role": "ghost", "content": "a"}]}
the~row~has~no~question {"messages": [{"role": "assistant", "content": "b"}]}
element~1~of~"tokens"~is~not~a~token~id {"tokens": [1, "x"]}
token~1~of~the~prompt~is~999999,~expected~0~to~255 {"tokens": [1, 999999]}
the~prompt~has~600~tokens;~the~context~of~512~tokens {"prompt": "$long"}
END
}

test_bad_rows_can_be_skipped() {
    make_model
    printf '%s\n' '{"prompt": "ab"}' '{"prompt": 5 5}' '{"story": "x", "error": "old"}' '{"prompt": "cd"}' > prompts.jsonl
    answer --skip-bad --temperature 0
    expect_code 0
    expect_err "2 bad rows"
    expect_same "$(value 2.row)" '{\"prompt\": 5 5}' "a row that is not JSON"
    value 2.error | grep -q "prompts.jsonl:2: column 14" || fail "the reason of row 2: $(value 2.error)"
    expect_same "$(value 3.story)" x "a row without a prompt"
    value 3.error | grep -q "prompts.jsonl:3: the row has the keys (story, error)" || fail "$(value 3.error)"
    [ -n "$(value 4.text)" ] || fail "the row after them has no answer"
}
