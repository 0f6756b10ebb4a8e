# signals.sh: stopping a run in order, at once, or by force, and going on exactly where it was.

long="$tiny --steps 600 --save-every 20 --predictor none"

# start ARGS: the program in the background, its number in $pid.
start() {
    "$program" "$@" > "$stdout" 2> "$stderr" < /dev/null &
    pid=$!
}

# wait_for COMMAND: until it succeeds, for a minute at most.
wait_for() {
    tries=0
    until eval "$*"; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "waited in vain for: $*"
        sleep 0.02
    done
}

# A step that takes seconds, as it is made of many micro-batches.
start_slow() {
    # shellcheck disable=SC2086
    start $tiny --steps 5 --grad-accum-steps 20000 --out out
    wait_for "grep -q '^out ' '$stdout' 2> /dev/null"
    sleep 0.3
}

undisturbed() {
    # shellcheck disable=SC2086
    run $long --out whole
    expect_code 0
}

test_interrupt_saves_and_resume_ends_with_the_same_losses() {
    undisturbed
    # shellcheck disable=SC2086
    start $long --out out
    wait_for "ls out/checkpoint-* > /dev/null 2>&1"
    kill -INT $pid
    wait $pid
    code=$?
    expect_code 75
    expect_err "stopping after this step"
    expect_err "press Ctrl-C again to stop at once"
    expect_out "stopped after step"
    expect_out "--resume out"
    [ "$(steps_of out)" -lt 600 ] || fail "it was not stopped"
    run --resume out
    expect_code 0
    expect_same "$(losses out | cksum)" "$(losses whole | cksum)" "losses"
    expect_same "$(json_values out/summary.json | grep -E '^.(final|val)_loss')" \
        "$(json_values whole/summary.json | grep -E '^.(final|val)_loss')" "final losses"
}

test_interrupt_breaks_off_the_last_validation() {
    # shellcheck disable=SC2086
    start $tiny --builtin-bytes 8M --val-fraction 0.5 --eval-every 0 --eval-batches 0 \
        --eval-batch-size 2 --out out
    wait_for "grep -q '^step 6/6' '$stdout' 2> /dev/null"
    kill -INT $pid
    wait $pid
    code=$?
    expect_code 75
    expect_err "a validation is broken off"
    expect_out "stopped in the validation after the last step 6 of 6"
    ls -d out/checkpoint-6 > /dev/null || fail "no checkpoint"
    run --resume out --eval-batches 1
    expect_code 0
    expect_out "everything is in out"
    grep -q '"event":"validation".*"val_loss"' out/metrics.jsonl || fail "no line of the validation"
}

test_terminate_stops_like_interrupt() {
    # shellcheck disable=SC2086
    start $long --out out
    wait_for "ls out/checkpoint-* > /dev/null 2>&1"
    kill -TERM $pid
    wait $pid
    code=$?
    expect_code 75
    run --resume out --out out
    expect_code 0
}

test_signal_while_the_run_is_being_made_stops_it_in_order_too() {
    # A text this long takes a while to write; the handler is there before that begins.
    # shellcheck disable=SC2086
    start $long --builtin-bytes 8M --out out
    wait_for "grep -Eq '^SigCgt:.*[4-7c-f][0-9a-f]{3}$' /proc/$pid/status"
    kill -TERM $pid
    wait $pid
    code=$?
    expect_code 75
    expect_out "stopped after step"
    run --resume out
    expect_code 0
    expect_same "$(steps_of out)" 600 "lines"
}

test_second_signal_ends_at_once() {
    start_slow
    kill -INT $pid
    wait_for "grep -q 'press Ctrl-C again to stop at once' '$stderr'"
    sleep 0.3
    kill -0 $pid 2> /dev/null || fail "the step ended too soon for this test"
    kill -INT $pid
    wait $pid
    code=$?
    expect_code 130
    [ ! -e out/checkpoint-1 ] || fail "the step was finished"
}

test_kill_loses_no_checkpoint_and_resume_gives_the_same_losses() {
    undisturbed
    # shellcheck disable=SC2086
    start $long --out out
    wait_for "ls -d out/checkpoint-*0 > /dev/null 2>&1"
    kill -KILL $pid
    wait $pid 2> /dev/null
    code=$?
    expect_code 137
    run --resume out
    expect_code 0
    expect_same "$(losses out | cksum)" "$(losses whole | cksum)" "losses"
}

test_quiet_run_stops_without_a_word() {
    # shellcheck disable=SC2086
    start $long --out out --quiet
    wait_for "ls out/checkpoint-* > /dev/null 2>&1"
    kill -INT $pid
    wait $pid
    code=$?
    expect_code 75
    expect_empty "$stdout"
    expect_empty "$stderr"
}

test_reader_that_leaves_does_not_end_the_run() {
    # shellcheck disable=SC2086
    { "$program" $long --out out 2> "$stderr"; echo $? > code; } | head -n 1 > /dev/null
    expect_same "$(cat code)" 0 "exit code"
    expect_file out/checkpoint-600
}

test_data_shortened_in_mid_run_is_an_error_with_a_checkpoint_that_goes_on() {
    awk 'BEGIN { for (i = 0; i < 6000; i++) print "line", i, i * 7919 % 1000 }' > text.txt
    cp text.txt copy.txt
    # shellcheck disable=SC2086
    run $tiny --steps 2000 --predictor none --data text.txt --save-every 0 --out whole
    expect_code 0
    # shellcheck disable=SC2086
    start $tiny --steps 2000 --predictor none --data text.txt --save-every 0 --out out
    wait_for "grep -q '\"step\":5,' out/metrics.jsonl 2> /dev/null"
    : > text.txt
    wait $pid
    code=$?
    expect_code 1
    expect_err "text.txt has become shorter since it was opened"
    expect_err "the run is saved: --resume continues it"
    steps=$(steps_of out)
    [ "$steps" -lt 2000 ] || fail "it ran to its end"
    expect_file "out/checkpoint-$steps"
    cp copy.txt text.txt
    run --resume out
    expect_code 0
    expect_same "$(losses out | cksum)" "$(losses whole | cksum)" "losses"
}

test_data_shortened_before_a_validation_leaves_the_step_in_the_record() {
    awk 'BEGIN { for (i = 0; i < 30000; i++) print "line", i, i * 7919 % 1000 }' > text.txt
    head -c 400000 text.txt > start.txt
    # Training data stays readable, held-out data does not.
    # shellcheck disable=SC2086
    start $tiny --steps 3000 --predictor none --data text.txt --eval-every 500 --out out
    wait_for "grep -q '\"step\":5,' out/metrics.jsonl 2> /dev/null"
    cp start.txt text.txt
    wait $pid
    code=$?
    expect_code 1
    expect_err "text.txt has become shorter"
    steps=$(steps_of out)
    expect_file "out/checkpoint-$steps"
}

# What a folder holds, without what its owner writes all the time.
kept_of() { find "$1" ! -name metrics.jsonl ! -name '*.partial*' ! -name 'events*' | sort; }

test_a_live_run_is_left_alone_by_every_other() {
    # shellcheck disable=SC2086
    start $tiny --steps 5 --grad-accum-steps 20000 --out out
    live=$pid
    wait_for "grep -q '^out ' '$stdout' 2> /dev/null"
    kept=$(kept_of out)
    mine="process $live on host $(uname -n)"
    # shellcheck disable=SC2086
    for how in "--resume out" "$tiny --out out --overwrite" "$tiny --out out --resume out"; do
        run $how
        expect_refusal "out is in use by $mine"
    done
    run_tiny --out out
    expect_refusal "already holds a run"
    expect_same "$(kept_of out)" "$kept" "the live run's folder"
    kill -KILL "$live"
    wait "$live" 2> /dev/null
    expect_file out/.lock
    run_tiny --out out --overwrite
    expect_code 0
    [ ! -e out/.lock ] || fail "a run that ended leaves its lock"
}

test_of_two_runs_that_begin_in_one_folder_one_goes_on() {
    # shellcheck disable=SC2086
    "$program" $tiny --out out > one 2>&1 < /dev/null &
    one=$!
    # shellcheck disable=SC2086
    "$program" $tiny --out out > two 2>&1 < /dev/null &
    two=$!
    wait $one; first=$?
    wait $two; second=$?
    case "$first $second" in
    "0 2" | "2 0") ;;
    *) fail "exit codes $first and $second: $(cat one two)" ;;
    esac
    grep -q "is in use by process\|already holds a run" one two || fail "not said: $(cat one two)"
    expect_same "$(steps_of out)" 6 "steps of the one"
}
