# stream.sh: streamed rows: first steps while a pipe is open, kills, resumes, changed files. Sourced
# by run.sh.

streamed="--stream-rows on --stream-window 8Ki --predictor none --steps 150 --sample-tokens 0
          --save-every 20 --eval-every 40"

make_rows() { # COUNT: rows of different lengths, each with its number
    awk -v count="$1" 'BEGIN { for (i = 0; i < count; i++) {
        text = ""; for (k = 0; k < i * 7 % 23; k++) text = text " word" (i * k) % 10
        printf "{\"prompt\": \"row %d\", \"completion\": \"%s end\"}\n", i, text } }'
}

train() {
    # shellcheck disable=SC2086 # the words are arguments
    run $tiny $streamed "$@"
}

# start ARGS: the program in the background with standard input $input, its number in $pid.
start() {
    # shellcheck disable=SC2086
    "$program" $tiny $streamed "$@" > "$stdout" 2> "$stderr" < "${input:-/dev/null}" &
    pid=$!
}

wait_until() { # COMMAND succeeds, for a minute at most
    tries=0
    until eval "$*"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "waited in vain for: $*: $(cat "$stderr")"
        sleep 0.1
    done
}

has_steps() { [ -e "$1/metrics.jsonl" ] && [ "$(steps_of "$1")" -ge "$2" ]; }

expect_losses() {
    [ "$(losses "$1")" = "$(losses "$2")" ] || fail "$1 and $2 have other losses"
}

whole_run() { # the run without disturbance
    make_rows 900 > rows.jsonl
    train --data rows.jsonl --out whole
    expect_code 0
    expect_out "rows are streamed"
    expect_out "streamed in windows of"
}

test_steps_are_taken_before_a_pipe_ends_and_losses_are_those_of_the_file() {
    whole_run
    mkfifo pipe
    input=pipe start --data - --out piped
    exec 9> pipe
    head -c 20000 rows.jsonl >&9
    wait_until has_steps piped 5
    [ ! -e piped/standard-input.jsonl ] || fail "a part of the input has the name of the whole"
    tail -c +20001 rows.jsonl >&9
    exec 9>&-
    wait $pid || fail "exit code $?: $(cat "$stderr")"
    expect_losses piped whole
    cmp rows.jsonl piped/standard-input.jsonl || fail "the stored input is another one"
}

test_a_killed_run_continues_with_the_same_losses_from_files_packed_or_not() {
    whole_run
    gzip -k rows.jsonl
    for data in rows.jsonl rows.jsonl.gz; do
        start --data $data --out killed
        for steps in 22 45 90; do
            wait_until has_steps killed $steps
            kill -KILL $pid
            wait $pid 2> /dev/null
            start --resume killed
        done
        wait $pid || fail "exit code $?: $(cat "$stderr")"
        expect_losses killed whole
        rm -r killed
    done
}

test_a_run_on_standard_input_continues_from_its_copy() {
    whole_run
    input=rows.fifo
    mkfifo rows.fifo
    start --data - --out killed
    cat rows.jsonl > rows.fifo
    wait_until has_steps killed 45
    kill -KILL $pid
    wait $pid 2> /dev/null
    input= train --resume killed
    expect_code 0
    expect_losses killed whole
}

test_a_run_that_was_killed_before_its_input_ended_needs_the_same_rows_again() {
    whole_run
    mkfifo rows.fifo
    input=rows.fifo start --data - --out killed
    exec 9> rows.fifo
    head -c 30000 rows.jsonl >&9
    wait_until has_steps killed 45
    kill -KILL $pid
    exec 9>&-
    wait $pid 2> /dev/null
    train --resume killed
    expect_code 2
    sed 's/word7/WORD7/' rows.jsonl > rows.fifo &
    input=rows.fifo train --resume killed
    expect_code 2
    expect_err "not those that the run was trained on"
    cat rows.jsonl > rows.fifo &
    input=rows.fifo train --resume killed
    expect_code 0
    expect_losses killed whole
}

test_a_run_that_waits_for_a_silent_pipe_stops_with_a_checkpoint() {
    mkfifo rows.fifo
    make_rows 300 > rows.jsonl
    input=rows.fifo start --data - --out silent
    exec 9> rows.fifo
    cat rows.jsonl >&9
    wait_until has_steps silent 45
    sleep 1
    kill -INT $pid
    wait $pid
    expect_same $? 1 "exit code"
    expect_err "stopped while it waited for rows"
    ls -d silent/checkpoint-* > /dev/null || fail "no checkpoint"
    exec 9>&-
}

test_a_file_that_is_cut_ends_the_run_with_a_checkpoint_and_can_be_put_back() {
    make_rows 4000 > rows.jsonl
    cp rows.jsonl original
    train --data rows.jsonl --out whole --steps 600
    expect_code 0
    start --data rows.jsonl --out cut --steps 600
    wait_until has_steps cut 10
    truncate -s 60000 rows.jsonl
    wait $pid
    expect_same $? 1 "exit code"
    expect_err "rows.jsonl"
    cat original > rows.jsonl
    train --resume cut --steps 600
    expect_code 0
    expect_losses cut whole
}

test_ranks_share_the_order_of_streamed_rows() {
    make_rows 900 > rows.jsonl
    train --data rows.jsonl --out one --ranks 2
    expect_code 0
    start --data rows.jsonl --out two --ranks 2
    wait_until has_steps two 45
    kill -TERM $pid
    wait $pid
    train --resume two --ranks 2
    expect_code 0
    expect_losses two one
}

test_a_bad_row_in_a_later_window_is_reported_with_its_line() {
    { make_rows 400; echo '{"prompt": 3}'; make_rows 400; } > rows.jsonl
    train --data rows.jsonl --out bad --steps 300
    expect_code 0
    expect_err "rows.jsonl:401: "
    grep -q '1 of [0-9]* rows dropped' bad/report.html || fail "the report does not count the row"
    train --data rows.jsonl --out strict --bad-rows stop --steps 300
    expect_code 1
    expect_err "rows.jsonl:401: "
    expect_file strict/checkpoint-*
}

test_epochs_and_plans_of_streamed_rows_are_estimates() {
    make_rows 900 > rows.jsonl
    # shellcheck disable=SC2086
    run $tiny $streamed --data rows.jsonl --steps 0 --epochs 2 --out two
    expect_code 0
    run $tiny --data rows.jsonl --stream-rows on --stream-window 8Ki --plan
    expect_code 0
    expect_out "data read ahead"
}

test_an_input_that_cannot_be_stored_is_reported() {
    make_rows 900 > rows.jsonl
    mkfifo pipe
    input=pipe start --data - --out unstored --steps 600
    exec 9> pipe
    head -c 20000 rows.jsonl >&9
    wait_until has_steps unstored 5
    mkdir -p unstored/standard-input.jsonl/yours
    tail -c +20001 rows.jsonl >&9
    exec 9>&-
    wait $pid || fail "exit code $?: $(cat "$stderr")"
    expect_same "$(grep -c -- '--resume needs the same data on standard input again' "$stderr")" 1 "warnings"
    [ -d unstored/standard-input.jsonl/yours ] || fail "a folder of the user is gone"
}
