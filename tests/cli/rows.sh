# rows.sh: rows of JSON as data: what is read, what is told, what is refused.

rows() { # COUNT: sums, one a line
    i=0
    while [ $i -lt "$1" ]; do
        echo "{\"question\": \"$((i % 9))+$((i % 5))?\", \"answer\": \"$((i % 9 + i % 5))\"}"
        i=$((i + 1))
    done
}

test_rows_are_trained_on_and_their_count_is_told() {
    rows 40 > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_out "packed into"
    expect_file out/summary.json
}

test_malformed_rows_are_told_and_skipped() {
    { rows 20; echo '{"question": "cut off'; echo '{"question": "no answer"}'; rows 20; } > sums.jsonl
    run_tiny --data sums.jsonl --out out
    expect_code 0
    expect_err "sums.jsonl:21: "
    expect_err 'sums.jsonl:22: "answer" is missing'
    expect_err "2 of 42 rows were malformed and skipped"
}

test_malformed_rows_stop_the_program_when_asked() {
    { rows 20; echo '{"question": "cut off'; } > sums.jsonl
    run_tiny --data sums.jsonl --bad-rows stop --out out
    expect_refusal "sums.jsonl:21"
}

test_rows_of_an_unknown_kind_are_refused() {
    echo '{"left": 1, "right": 2}' > odd.jsonl
    run_tiny --data odd.jsonl --out out
    expect_refusal "odd.jsonl:1" "left, right" "messages"
}

test_conversations_need_a_template() {
    echo '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}' > c.jsonl
    run_tiny --data c.jsonl --out out
    expect_refusal "c.jsonl" "chat_template" "chatml, llama2, llama3, mistral, alpaca"
}

test_a_mixture_names_the_part_that_is_wrong() {
    rows 40 > sums.jsonl
    run_tiny --data sums.jsonl:2,nowhere.jsonl:1 --out out
    expect_refusal "nowhere.jsonl"
    run_tiny --data sums.jsonl:0,sums.jsonl:1 --out out
    expect_refusal "weight" "sums.jsonl:0"
}

test_a_mixture_with_weights_runs() {
    rows 40 > sums.jsonl
    rows 10 > few.jsonl
    run_tiny --data sums.jsonl:2,few.jsonl:1 --out out
    expect_code 0
    expect_out "2 paths"
}
