# hostile.sh: folders and files that somebody prepared, and odd surroundings: nothing outside the run's
# folder is changed, nothing waits for ever, nothing crashes.

programs=$(dirname "$program")

# A run of six steps in $1.
make_run() {
    run_tiny --out "$1" --quiet
    expect_code 0
}

# ---- planted links -------------------------------------------------------------------------------

test_a_report_is_not_written_through_a_planted_link() {
    make_run out
    rm out/report.html
    echo mine > victim
    ln -s ../victim out/.report.html.partial
    "$programs/hybrid-report" out > "$stdout" 2> "$stderr" || fail "$(cat "$stderr")"
    expect_same "$(head -c 20 victim)" mine "a file outside the folder"
    grep -q '</html>' out/report.html || fail "no page"
}

test_a_resumed_run_writes_through_no_link_of_its_folder() {
    make_run out
    echo mine > victim
    mkdir elsewhere
    for name in .plan.json.partial .config.cfg.partial .summary.json.partial .metrics.jsonl.partial \
        .report.html.partial .model.partial report.html plan.json summary.json; do
        rm -rf "out/$name"
        ln -s ../victim "out/$name"
    done
    rm -rf out/tensorboard
    ln -s ../elsewhere out/tensorboard
    run --resume out --steps 8
    expect_code 0
    expect_err "out/tensorboard: it is a link"
    expect_same "$(head -c 20 victim)" mine "a file outside the folder"
    expect_same "$(ls elsewhere)" "" "a folder outside"
    mv out/metrics.jsonl lines
    ln -s ../lines out/metrics.jsonl
    cp lines copy
    run --resume out --steps 10 --quiet
    expect_code 2
    expect_err "out/metrics.jsonl"
    cmp -s lines copy || fail "lines were added to a file outside the folder"
}

# ---- closed streams --------------------------------------------------------------------------------

# The files of a run must not get the numbers of messages.
test_closed_streams_keep_messages_out_of_the_files() {
    i=0
    while [ $i -lt 40 ]; do
        printf '{"prompt":"number %s","completion":"answer %s"}\n' $i $i
        i=$((i + 1))
    done > rows.jsonl
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    timeout 60 "$program" $tiny --batch-size 4 --data rows.jsonl --out out >&- 2>&- <&-
    expect_same "$?" 0 "exit code with closed streams"
    json_lines out/metrics.jsonl > /dev/null
    json_values out/summary.json > /dev/null
    head -c 15 out/report.html | grep -q DOCTYPE || fail "messages are in the page"
    for closed in '>&-' '2>&-' '<&-'; do
        rm -rf out
        eval 'timeout 60 "$program" $tiny --data rows.jsonl --out out '"$closed" \
            > "$stdout" 2> "$stderr" || fail "exit code with $closed"
        eval '"$programs/hybrid-report" out '"$closed" > "$stdout" 2>&1 || fail "report $closed"
        eval '"$programs/hybrid-export" out --out model --overwrite '"$closed" > "$stdout" 2>&1 ||
            fail "export $closed: $(cat "$stdout")"
        rm -rf model
    done
}

# ---- what never ends -------------------------------------------------------------------------------

# A sanitizer's own memory breaks every limit.
limit() { [ "${VARIANT:-release}" != release ] || ulimit "$@"; }

# Soon, with a refusal that names the file, and in little memory.
expect_soon_refused() { # NAME ARGUMENTS...
    name=$1
    shift
    (limit -d 1000000 && timeout -k 1 60 "$program" "$@" > "$stdout" 2> "$stderr" < /dev/null)
    expect_same "$?" 2 "exit code for $name: $(head -c 300 "$stderr")"
    expect_err "$name"
}

test_pipes_devices_and_endless_files_are_refused() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    set -- $tiny --out out
    mkfifo pipe
    : > hollow
    truncate -s 1T hollow || skip "no sparse files here"
    for odd in pipe hollow /dev/zero /dev/urandom; do
        rm -rf model
        mkdir model
        expect_soon_refused "$odd" --config "$odd" "$@"
        expect_soon_refused "$odd" --tokenizer "$odd" --data /etc/passwd "$@"
        expect_soon_refused "$odd" "$@" --model "$odd"
        ln -s "$(cd "$(dirname "$odd")" && pwd)/$(basename "$odd")" model/config.json
        expect_soon_refused model/config.json "$@" --model model
    done
    for odd in pipe /dev/zero; do expect_soon_refused "$odd" "$@" --data "$odd"; done
    [ ! -e out ] || fail "a folder was made"
}

# OpenBLAS asked again and again for what it did not get, deaf to every signal.
test_little_address_space_is_reported_at_once() {
    [ "${VARIANT:-release}" = release ] || skip "a sanitizer needs more"
    (ulimit -v 140000 && timeout -k 1 60 "$program" $tiny --threads 1 --out out > "$stdout" 2> "$stderr")
    expect_same "$?" 1 "exit code: $(head -c 300 "$stderr")"
    expect_err "not enough memory for matmuls"
}

test_a_resumed_run_refuses_metrics_without_an_end() {
    make_run out
    rm out/metrics.jsonl
    truncate -s 1T out/metrics.jsonl || skip "no sparse files here"
    expect_soon_refused out/metrics.jsonl --resume out --steps 8
    rm out/metrics.jsonl
    mkfifo out/metrics.jsonl
    expect_soon_refused out/metrics.jsonl --resume out --steps 8
}

test_standard_input_without_an_end_is_refused() {
    make_run out
    (limit -d 1000000 && timeout -k 1 60 "$programs/hybrid-chat" --model out \
        < /dev/zero > "$stdout" 2> "$stderr")
    expect_same "$?" 2 "exit code of hybrid-chat"
    expect_err "the message has more than"
}

test_a_file_of_many_keys_is_refused_at_once() {
    awk 'BEGIN { for (i = 0; i < 200000; i++) print "key_" i " = " i ";" }' > many.cfg
    awk 'BEGIN { for (i = 0; i < 200000; i++) print "train: { steps = " i "; };" }' > again.cfg
    awk 'BEGIN { for (i = 0; i < 20000; i++) print "k" i "=1" }' > dense.cfg
    awk 'BEGIN { for (i = 0; i < 30000; i++) print "# " i; print "lr = 2x;" }' > long.cfg
    for file in many again dense long; do
        timeout -k 1 30 "$program" --config $file.cfg --print-config > "$stdout" 2> "$stderr"
        expect_same "$?" 2 "exit code for $file"
    done
    expect_err "long.cfg:30001: syntax error"
}

# ---- text that commands a terminal -------------------------------------------------------------------

# Neither ESC nor another control character, nor U+009B, which is ESC [ in one; UTF-8 stays.
expect_harmless() {
    if LC_ALL=C tr -d '\n\t' < "$1" | LC_ALL=C grep -q "[$(printf '\001-\037\177')]\|$(printf '\302\233')"
    then
        fail "control characters in: $(cat -v "$1")"
    fi
}

test_no_escape_sequence_of_a_file_reaches_the_terminal() {
    evil=$(printf 'x\033]0;evil\007\033[2J\302\2331mü')
    mkdir "model$evil" "$evil"
    printf '{"model_type": "%s", "architectures": ["\\u001b[2J\\u009b1m"]}' 'ü\u001b[31m' \
        > "model$evil/config.json"
    printf 'steps = 1;\nkey = "%s";\n' "$evil" > "$evil.cfg"
    printf '{"messages":[{"role":"%s","content":"a"}]}\n' '\u001b[2J\u009b' > "rows$evil.jsonl"
    printf 'prompt = "%s"; data = "%s";\n' "$evil" "nowhere$evil" > prompt.cfg
    for option in "--model=model$evil" "--config=$evil.cfg" "--data=rows$evil.jsonl" "--$evil=1" \
        "--set=prompt$evil=2" "--resume=$evil" "--config=prompt.cfg"; do
        run_tiny --out none "$option"
        expect_code 2
        expect_harmless "$stderr"
        expect_harmless "$stdout"
    done
    run --config prompt.cfg --print-config
    expect_code 0
    expect_harmless "$stdout"
    expect_out 'x\x1b]0;evil\x07\x1b[2J\xc2\x9b1mü'
    cp -r "model$evil" "checkpoint-1"
    "$programs/hybrid-export" "$evil" --out model > "$stdout" 2> "$stderr" && fail "it was exported"
    expect_harmless "$stderr"
    run_tiny --out "out$evil" --prompt "$evil"
    expect_code 0
    expect_harmless "$stderr"
    expect_harmless "$stdout"
    expect_out 'ü'
    "$programs/hybrid-report" "out$evil" > "$stdout" || fail "no report"
    expect_harmless "$stdout"
    "$programs/hybrid-top" --once "out$evil" > "$stdout" || fail "no page"
    expect_harmless "$stdout"
}

# ---- refused memory ----------------------------------------------------------------------------------

# Each allocation until the settings are printed, one refused or all from it on: exit code 0 or 1 and a
# message, not a signal. Later ones are the matter of test_oom. While OpenBLAS is opened its own libraries
# allocate, and libgfortran ends the process; nothing can be done about that here.
test_a_refused_allocation_at_the_start_is_an_error() {
    printf 'steps = 2; prompt = "a" "b"; optimizer: { lr = 0.01; };\n' > a.cfg
    # shellcheck disable=SC2086 # a compiler of two words
    ${CC:-gcc} -shared -fPIC -O1 "$here/refuse.c" -o refuse.so -ldl 2> "$stderr" || skip "no shared object"
    LD_PRELOAD=./refuse.so "$program" --config a.cfg --print-config > plain 2> "$stderr" ||
        skip "this program cannot be preloaded"
    for all in "" 1; do
        n=0 unharmed=0
        while [ $n -lt 1000 ] && [ $unharmed -lt 12 ]; do
            env REFUSE_AT=$n ${all:+REFUSE_ALL=1} LD_PRELOAD=./refuse.so \
                "$program" --config a.cfg --print-config > "$stdout" 2> "$stderr"
            code=$?
            [ $code -le 1 ] || fail "allocation $n${all:+ and all after it}: exit code $code"
            [ $code = 0 ] || [ -s "$stderr" ] || fail "allocation $n: no message"
            unharmed=$((code == 0 ? unharmed + 1 : 0))
            n=$((n + ${all:-0} * 4 + 1))
        done
        [ $n -gt 50 ] || fail "only $n allocations"
    done
}

# ---- files of the user's ---------------------------------------------------------------------------

test_a_run_replaces_no_file_that_is_not_a_runs() {
    for name in report.html plan.json model; do
        mkdir -p "at-$name" && echo mine > "at-$name/$name"
        run_tiny --out "at-$name" --quiet
        expect_code 2
        expect_err "at-$name/$name already exists"
        expect_same "$(ls "at-$name")" "$name" "what is in the folder"
        expect_same "$(cat "at-$name/$name")" mine "the user's file"
    done
}

test_overwrite_removes_what_is_a_runs_alone() {
    make_run out
    mkdir out/checkpoint-best out/checkpoint-77
    for name in checkpoint-notes.txt checkpoint-best/a checkpoint-77/a checkpoint-6.txt; do
        echo mine > "out/$name"
    done
    run_tiny --out out --quiet --overwrite
    expect_code 0
    for name in checkpoint-notes.txt checkpoint-best/a checkpoint-77/a checkpoint-6.txt; do
        expect_same "$(cat "out/$name")" mine "out/$name"
    done
}

test_an_export_empties_no_folder_that_is_no_model() {
    make_run out
    mkdir here other && echo mine > here/file && echo mine > other/file
    (cd here && "$programs/hybrid-export" ../out --out . --overwrite) > "$stdout" 2> "$stderr"
    expect_same "$?" 2 "exit code of --out ."
    expect_err "choose a folder with a name"
    "$programs/hybrid-export" out --out other --overwrite > "$stdout" 2> "$stderr"
    expect_same "$?" 2 "exit code of --out other"
    expect_err "other is not replaced"
    expect_same "$(cat here/file other/file)" "mine
mine" "the user's files"
}

test_a_users_lock_file_is_left_alone() {
    mkdir out
    echo precious > out/.lock
    run_tiny --out out
    expect_code 2
    expect_err "is not the lock file of a run"
    expect_same "$(cat out/.lock)" precious "the user's file"
}

test_overwrite_does_not_remove_what_the_run_begins_with() {
    make_run out
    run_tiny --init-from out/checkpoint-6 --out out --overwrite
    expect_code 2
    expect_err "which --overwrite would delete"
    expect_file out/checkpoint-6
    run --model out/model --steps 2 --out out --overwrite
    expect_code 2
    expect_file out/model/model.safetensors
}

test_users_files_beside_a_model_stay() {
    make_run out
    echo mine > out/model/notes.md
    run --resume out --steps 8
    expect_code 0
    expect_same "$(cat out/model/notes.md)" mine "the user's file in model/"
    [ ! -e out/model/.lock ] || fail "a lock lies in model/"
}

# await COMMAND: until it succeeds.
await() {
    for _ in $(seq 200); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.05
    done
    fail "waited in vain for: $*"
}

# Another run had the name by then: from its second save on the first one wrote there, without a lock.
test_a_run_with_a_replaced_folder_continues_in_another() {
    make_run other
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    "$program" $tiny --out out --steps 100000 --save-every 300 --sample-tokens 0 > log 2>&1 &
    live=$!
    await test -e out/checkpoint-300
    mv out moved
    cp -r other out
    find out -type f -exec cksum {} + | sort > before
    await sh -c 'ls -d out-2/checkpoint-*'
    sleep 0.3
    kill -INT $live
    wait $live
    expect_same $? 75 "exit code: $(tail -n 2 log)"
    expect_same "$(find out -type f -exec cksum {} + | sort)" "$(cat before)" "the other run"
    run --resume out-2 --steps 1
    expect_code 0
}
