# files.sh: the file of answers: order, interruptions, what is refused; standard input and output.

# The bytes that every other way of making them must give.
make_answers() { # COUNT FLAG ...
    make_model
    make_prompts "$1"
    shift
    answer --max-tokens 60 "$@"
    expect_code 0
    mv answers.jsonl ../whole
}

test_rows_keep_their_order_whatever_runs_beside_them() {
    make_model
    i=0
    while [ $i -lt 60 ]; do
        echo '{"id": '$i', "prompt": "Nina '$i'", "max_tokens": '$((1 + i * 37 % 90))'}'
        i=$((i + 1))
    done > prompts.jsonl
    answer --streams 16
    expect_code 0
    expect_same "$(value '[0-9]*.id' | tr '\n' ' ')" "$(seq 0 59 | tr '\n' ' ')" "order"
    cp answers.jsonl ../sixteen
    for flags in "--streams 1" "--streams 5" "--streams 64 --threads 2"; do
        # shellcheck disable=SC2086 # words
        answer --overwrite $flags
        expect_code 0
        cmp -s answers.jsonl ../sixteen || fail "$flags gives other answers"
    done
}

# A long row takes long to write, while other rows are being read.
test_long_rows_are_written_whole() {
    make_model
    note=$(printf '%500000s' '' | tr ' ' x)
    i=0
    while [ $i -lt 40 ]; do
        echo '{"id": '$i', "note": "'"$note"'", "prompt": "Nina", "max_tokens": 1}'
        yes '{"without": "prompt"}' | head -n 100
        i=$((i + 1))
    done > prompts.jsonl
    for _ in 1 2 3 4; do
        answer --skip-bad --streams 8 --overwrite
        expect_code 0
        whole=$(awk '/^{"id":[0-9]+,"note":"x+","prompt":"Nina","max_tokens":1,"text":".*}$/ {
            count += gsub(/x/, "") > 500000 }
            END { print count + 0 }' answers.jsonl)
        expect_same "$whole" 40 "long rows"
        expect_same "$(wc -l < answers.jsonl)" 4040 "rows"
    done
}

# Kills the command when the file has so many rows; the next one goes on.
test_a_killed_command_is_continued() {
    make_answers 300
    for most in 0 1 40 150 280; do
        "$generate" --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl \
            --max-tokens 60 --quiet > "$stdout" 2> "$stderr" &
        tries=0
        until [ -e answers.jsonl.part ] && [ "$(wc -l < answers.jsonl.part)" -ge $most ]; do
            [ $((tries += 1)) -lt 3000 ] && [ ! -e answers.jsonl ] || break
            sleep 0.01
        done
        kill -9 $! 2> ../kill
        wait $! 2> ../kill
        rm -f answers.jsonl # of a command that was faster than we are
    done
    cp answers.jsonl.part ../part 2> ../kill || : > ../part
    answer --max-tokens 60
    expect_code 0
    cmp -s answers.jsonl ../whole || fail "a continued file is another one"
    expect_same "$(find . -name '*.part*')" "" "files that are left"
    [ -s ../part ] || return 0
    grep -q 'of these [1-9][0-9]* before' "$stderr" || fail "nothing was continued: $(cat "$stderr")"
}

test_what_a_crash_leaves_behind_the_last_row_is_cut_off() {
    make_answers 40
    make_part # 20 rows
    for rows in 0 20 39; do
        mkdir again && cp answers.jsonl.part answers.jsonl.part.json again/
        head -n $rows ../whole > answers.jsonl.part
        case $rows in
        0) printf '{"id":0,"prom' ;;
        20) printf '{"id":20,"prompt":"Nina 20 ","text":"half' ;;
        39) printf '{}{}\n{"id": 7}\n%0900d' 0 ;; # longer than the last row
        esac >> answers.jsonl.part
        answer --max-tokens 60
        expect_code 0
        cmp -s answers.jsonl ../whole || fail "after $rows rows and a torn one the file is another one"
        rm answers.jsonl
        mv again/* . && rmdir again
    done
}

# Leaves the first 20 of 40 rows, as an interrupted command does.
make_part() {
    "$generate" --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl --streams 1 \
        --max-tokens 60 --quiet > "$stdout" 2> "$stderr" &
    until [ -s answers.jsonl.part ]; do sleep 0.01; done
    kill -INT $! 2> ../kill
    wait $!
    expect_same "$?" 75 "exit code of an interrupted command"
    [ -s answers.jsonl.part.json ] || fail "the settings are gone"
    head -n 20 ../whole > answers.jsonl.part
}

test_other_settings_and_other_data_are_refused_by_name() {
    make_answers 40
    make_part
    cp prompts.jsonl ../prompts
    while read -r words flags; do
        # shellcheck disable=SC2086 # words
        answer --max-tokens 60 $flags
        expect_generate_error "answers.jsonl.part.json was begun with other settings: " \
            "$(echo "$words" | tr '~' ' ')" "--overwrite starts over"
        expect_nothing_written
    done << 'END'
temperature~was~0.7~and~is~0.5; --temperature 0.5
seed~was~1~and~is~2; --seed 2
answers~was~1~and~is~2; --answers 2
stop~1~was~not~set~and~is~x; --stop x
top_k~was~0~and~is~5; --top-k 5
logprobs~was~0~and~is~1;~top_logprobs~was~0~and~is~2; --top-logprobs 2
system~was~~and~is~S --system S
context~was~512~and~is~256; --context 256
column~prompt~was~not~set~and~is~prompt; --columns prompt=prompt
chat_template~was~plain~and~is~lines --chat-template lines
END
    answer
    expect_generate_error "max_tokens was 60 and is 256;"
    sed 's/Nina 3 /Nino 3 /' ../prompts > prompts.jsonl
    answer --max-tokens 60
    expect_generate_error "the data changed;"
    cp ../prompts prompts.jsonl
    mv model earlier
    "$train" --config earlier/config.cfg --seed 9 --steps 3 --quiet --out model > "$stdout" 2>&1 ||
        fail "no second model: $(cat "$stdout")"
    answer --max-tokens 60
    expect_generate_error "the weights changed;"
    rm -r model
    mv earlier model
    answer --max-tokens 60
    expect_code 0
    expect_err "of these 20 before"
    cmp -s answers.jsonl ../whole || fail "after refusals the file is another one"
}

test_an_existing_file_is_replaced_only_on_request() {
    make_answers 40
    echo old > answers.jsonl
    answer --max-tokens 60
    expect_generate_error "answers.jsonl exists already; --overwrite replaces it"
    expect_same "$(cat answers.jsonl)" old "the file"
    answer --max-tokens 60 --overwrite
    expect_code 0
    cmp -s answers.jsonl ../whole || fail "it was not replaced"
    rm answers.jsonl
    make_part
    answer --max-tokens 5 --overwrite
    expect_code 0
    expect_err "40 rows; "
    expect_same "$(wc -l < answers.jsonl | tr -d ' ')" 40 "rows"
    expect_same "$(find . -name '*.part*')" "" "files that are left"
}

test_a_part_without_its_settings_is_not_touched() {
    make_model
    make_prompts 2
    echo mine > answers.jsonl.part
    answer
    expect_generate_error "answers.jsonl.part has rows of another call"
    expect_same "$(cat answers.jsonl.part)" mine "the file"
    echo '{}' > answers.jsonl.part.json
    answer
    expect_generate_error 'answers.jsonl.part.json: "format" is missing'
    answer --overwrite
    expect_code 0
}

test_two_commands_do_not_write_one_file() {
    make_model
    make_prompts 400
    "$generate" --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl --max-tokens 100 \
        --quiet > "$stdout" 2> ../first &
    first=$!
    until [ -s answers.jsonl.part ]; do sleep 0.01; done
    kill -STOP $first
    answer --max-tokens 100
    kill -CONT $first
    expect_generate_error "answers.jsonl.part is being written by another process"
    kill -INT $first
    wait $first
    expect_same "$?" 75 "exit code of the first"
}

test_an_interrupted_command_without_rows_leaves_nothing() {
    make_model
    (sleep 20 & wait) | "$generate" --model model --device cpu --data - --out answers.jsonl > "$stdout" 2> "$stderr" &
    until grep -q 'format of messages' "$stderr" 2> ../kill; do sleep 0.05; done
    sleep 0.3
    kill -TERM $!
    wait $!
    expect_same "$?" 75 "exit code"
    expect_err "stopped after 0 rows"
    expect_same "$(find . -name '*.part*')" "" "files that are left"
}

test_standard_input_and_output() {
    make_answers 40
    input=prompts.jsonl
    run_generate --model model --data - --out - --max-tokens 60 --quiet
    expect_code 0
    expect_empty "$stderr"
    cmp -s "$stdout" ../whole || fail "standard output has other answers"
    run_generate --model model --data - --out answers.jsonl --max-tokens 60
    expect_code 0
    cmp -s answers.jsonl ../whole || fail "rows of standard input have other answers"
    run_generate --model model --data prompts.jsonl --out - --max-tokens 60
    cmp -s "$stdout" ../whole || fail "standard output has other answers"
    head -c 0 prompts.jsonl > ../empty
    input=../empty
    run_generate --model model --data - --out -
    expect_code 0
    expect_empty "$stdout"
}

# The next row is written only when the answer to this one is there.
test_rows_of_a_pipe_are_answered_as_they_come() {
    make_model
    mkfifo rows answers
    timeout 60 "$generate" --model model --device cpu --threads 1 --data - --out - --max-tokens 5 --quiet \
        < rows > answers 2> "$stderr" &
    exec 7> rows 8< answers
    for i in 1 2 3; do
        printf '\n{"id": %d, "prompt": "ab"}\n' $i >&7
        read -r line <&8 || fail "no answer to row $i: $(cat "$stderr")"
        case $line in '{"id":'$i,*'"end":"max_tokens"}') ;; *) fail "row $i: $line" ;; esac
    done
    exec 7>&-
    wait $!
    expect_same "$?" 0 "exit code"
    exec 8<&-
}

test_a_bad_row_of_standard_input_ends_after_the_rows_before_it() {
    make_model
    make_prompts 5
    printf '%s\n' '{"oh": 1}' '{"prompt": "never asked"}' >> prompts.jsonl
    input=prompts.jsonl
    run_generate --model model --data - --out - --max-tokens 5
    expect_generate_error "standard input:6: the row has the keys (oh)"
    expect_same "$(wc -l < "$stdout" | tr -d ' ')" 5 "rows before it"
    run_generate --model model --data - --out - --max-tokens 5 --skip-bad
    expect_code 0
    expect_same "$(wc -l < "$stdout" | tr -d ' ')" 7 "rows"
}

test_a_full_disk_is_reported_and_the_file_can_be_continued() {
    [ "${VARIANT:-}" != tsan ] || skip "the thread sanitizer cannot run with a limit on files"
    make_answers 40
    (ulimit -f 4 && "$generate" --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl \
        --max-tokens 60 > "$stdout" 2> "$stderr")
    expect_same "$?" 1 "exit code"
    expect_err "answers.jsonl.part: File too large"
    answer --max-tokens 60
    expect_code 0
    cmp -s answers.jsonl ../whole || fail "the continued file is another one"
}

test_the_prompts_are_none_of_the_files_that_are_written() {
    make_model
    make_prompts 3
    cp prompts.jsonl answers.jsonl.part
    cp prompts.jsonl ../rows
    for name in answers.jsonl.part answers.jsonl; do
        [ "$name" = answers.jsonl ] && mv answers.jsonl.part answers.jsonl
        run_generate --model model --data "$name" --out answers.jsonl --overwrite
        expect_generate_error "$name has the prompts"
        cmp -s "$name" ../rows || fail "$name has changed"
    done
}

test_links_and_special_files_are_not_replaced() {
    make_model
    make_prompts 2
    ln -s elsewhere answers.jsonl
    answer --overwrite
    expect_generate_error "answers.jsonl is a link"
    rm answers.jsonl
    mkfifo answers.jsonl
    answer --overwrite
    expect_generate_error "answers.jsonl is a special file"
}

test_a_file_that_appears_meanwhile_stays() {
    make_model
    make_prompts 200
    "$generate" --model model --device cpu --threads 1 --data prompts.jsonl --out answers.jsonl --max-tokens 60 \
        --quiet > "$stdout" 2> "$stderr" &
    until [ -s answers.jsonl.part ] || [ -e answers.jsonl ]; do sleep 0.01; done
    echo precious > answers.jsonl
    wait $!
    expect_same "$?" 2 "exit code"
    expect_err "answers.jsonl has appeared in the meantime"
    expect_same "$(cat answers.jsonl)" precious "the file"
}

# Settings of an interrupted command must not be found beside rows of another one.
test_rows_of_standard_input_do_not_seem_to_belong_to_a_file() {
    make_answers 40
    make_part
    printf '%s\n' '{"prompt": "other"}' '{"oh": 1}' > other.jsonl
    input=other.jsonl
    run_generate --model model --data - --out answers.jsonl --max-tokens 60 --overwrite
    expect_generate_error "standard input:2"
    unset input
    answer --max-tokens 60
    [ "$code" -ne 0 ] || cmp -s answers.jsonl ../whole || fail "answers of two commands are mixed"
}

test_another_configuration_of_the_model_is_refused() {
    make_answers 40
    make_part
    find model -name '*.json' -path '*checkpoint*' | head -n 1 > ../found
    echo >> "$(cat ../found)"
    answer --max-tokens 60
    expect_generate_error "weights"
}

test_values_in_csv_are_numbers() {
    make_model
    printf 'prompt,seed,max_tokens,min_p,stop\nhi,5,2,0.1,x\nho,,,,\n' > rows.csv
    run_generate --model model --data rows.csv --out answers.jsonl --max-tokens 4 --temperature 0
    expect_code 0
    expect_same "$(sed -n 's/.*"max_tokens":"\([0-9]*\)".*/\1/p' answers.jsonl | tr "\n" " ")" "2  " "values"
}
