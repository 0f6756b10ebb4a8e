#!/usr/bin/env bash
# bench/predict_value and bench/predict_table.sh end to end, on a model so small that a run takes a fraction of a second.
#
# The program is $HYBRID_BUILD/bench/predict_value. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
program="${HYBRID_BUILD:-$root/build}/bench/predict_value"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-predict-value-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi

small=(--threads 1 --steps 24 --seeds 1,2 --budgets 0.75,1.25 --set layers=1 --set width=16 --set mlp_width=32
    --set batch_size=2 --set seq_len=16 --set builtin_bytes=60000 --set eval_batches=1 --set lr_warmup_steps=3 --set full_steps=3
    --set correct_steps=1 --set guard_share=1)
tiny=("${small[@]}" --lrs 8e-3 --arms outer,paid)

measure() { # measure DIR [OPTION ...]: output in DIR.out and DIR.err
    local name="$1"
    shift
    timeout -k 5 200 "$program" "${tiny[@]}" --out "$scratch/$name" "$@" \
        > "$scratch/$name.out" 2> "$scratch/$name.err"
}

check() { # check NAME: the function of that name must succeed
    if ("$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

losses() { # of the runs in DIR, without what is measured in seconds
    sed 's/"seconds":[^,]*,//' "$scratch/$1/runs.jsonl" | sort
}

help_teaches() {
    "$program" --help > "$scratch/help" && grep -q 'compute factor' "$scratch/help" &&
        grep -q -e '--verify' "$scratch/help" && grep -q 'smoke' "$scratch/help"
}

wrong_usage_is_reported_and_runs_nothing() {
    local wrong named
    while read -r wrong named; do
        # shellcheck disable=SC2086 # an option and its value
        "$program" --out "$scratch/wrong" ${wrong/:/ } > "$scratch/said" 2> "$scratch/told"
        [ $? -eq 2 ] || { echo "$wrong: not exit code 2"; return 1; }
        grep -q -e "$named" "$scratch/told" || { echo "$wrong: $(cat "$scratch/told")"; return 1; }
        [ ! -s "$scratch/said" ] || return 1
    done << 'END'
--size:huge "huge"
--arms:outer,inner "inner"
--baseline:inner --baseline
--lrs:0 positive
--lrs:1e-3,1e-3 once
--steps:3 whole
--bogus:1 --bogus
--verify:--steps --steps
--set:steps KEY=VALUE
--set:no_such_key=1 no_such_key
--data:/does/not/exist /does/not/exist
END
}

a_measurement_leaves_table_json_and_curves() {
    measure a || { cat "$scratch/a.out" "$scratch/a.err"; return 1; }
    [ "$(wc -l < "$scratch/a/runs.jsonl")" -eq 10 ] || return 1 # 3 arms, 2 seeds, 2 budgets x 2
    grep -q '^PASS  equal compute: 10 runs' "$scratch/a.out" || return 1
    grep -q '"compute_factor"' "$scratch/a/results.json" || return 1
    grep -q '<polyline' "$scratch/a/curves.svg" && grep -q '</svg>' "$scratch/a/curves.svg"
}

finished_runs_are_not_run_again() {
    measure a && ! grep -q '^run ' "$scratch/a.err" && [ "$(wc -l < "$scratch/a/runs.jsonl")" -eq 10 ]
}

a_repeated_run_has_the_same_bits() {
    measure a --verify && grep -q '^PASS  same bits: repeated 3 runs' "$scratch/a.out"
}

other_bits_are_noticed() {
    cp -r "$scratch/a" "$scratch/b" &&
        sed -i '1s/"loss":\([0-9]\)\./"loss":9./' "$scratch/b/runs.jsonl" || return 1
    measure b --verify
    [ $? -eq 1 ] && grep -q '^FAIL  same bits: adamw gave 9' "$scratch/b.out"
}

a_line_that_was_cut_off_is_run_again() {
    cp -r "$scratch/a" "$scratch/c" && truncate -s -40 "$scratch/c/runs.jsonl" || return 1
    measure c || return 1
    [ "$(grep -c '^run ' "$scratch/c.err")" -eq 1 ] && [ "$(losses a)" = "$(losses c)" ]
}

a_variant_of_outer_uses_the_same_adamw_runs() {
    cp -r "$scratch/a" "$scratch/d" && measure d --arms outer:outer_mu=0.2 || return 1
    [ "$(grep -c '^run ' "$scratch/d.err")" -eq 2 ] && ! grep -q '^run .*adamw' "$scratch/d.err"
}

another_optimizer_is_an_arm_and_a_baseline() {
    cp -r "$scratch/a" "$scratch/g" && measure g --arms plain:optimizer=sgd || return 1
    [ "$(grep -c '^run .*plain:optimizer=sgd' "$scratch/g.err")" -eq 2 ] || return 1
    ! grep -q '^run .*adamw' "$scratch/g.err" || return 1
    measure g --baseline plain:optimizer=sgd --arms adamw || return 1
    # its two budgets are new, and what was an arm before is not made again
    [ "$(grep -c '^run .*plain:optimizer=sgd' "$scratch/g.err")" -eq 4 ] || return 1
    ! grep -q '^run .*adamw' "$scratch/g.err" && grep -q 'gain on plain:optimizer=sgd' "$scratch/g.out"
}

a_stopped_measurement_goes_on() {
    "$program" "${tiny[@]}" --out "$scratch/e" > /dev/null 2> "$scratch/e.err" &
    local process=$! tries=0
    while ! grep -q '^run 2 ' "$scratch/e.err" && [ $tries -lt 6000 ]; do
        sleep 0.01
        tries=$((tries + 1))
    done
    kill -INT "$process"
    wait "$process"
    local code=$?
    # It may have been too fast to be caught.
    [ $code -eq 75 ] || [ $code -eq 0 ] || { echo "exit code $code"; return 1; }
    [ $code -eq 0 ] || grep -q 'the same command continues' "$scratch/e.err" || return 1
    measure e && [ "$(losses a)" = "$(losses e)" ]
}

a_budget_that_a_control_misses_fails() {
    # the guard spends its passes in one piece: 2.7 units do not fit into what is left
    measure f --arms paid:guard_share=4 --set predict_from=0 --set predict_until=1 --set full_steps=4
    [ $? -eq 1 ] && grep -q '^FAIL  equal compute' "$scratch/f.out"
}

an_arm_may_have_other_windows() {
    cp -r "$scratch/a" "$scratch/h" && measure h --arms outer:full_steps=0:correct_steps=1 || return 1
    [ "$(grep -c '^run .* outer' "$scratch/h.err")" -eq 2 ] || return 1
    # arm, spent, seconds, steps, moves: one before each step from 0.3 to 0.75 of 24 units, of 5/3 units each
    grep '^  outer:full' "$scratch/h.out" | awk 'NF == 7 && $5 >= 5 { found = 1 } END { exit !found }'
}

# ---- the table ------------------------------------------------------------------------------------

table() { # table DIR [OPTION ...]: output in DIR.out and DIR.err
    local name="$1"
    shift
    HYBRID_BENCH="$(dirname "$program")" timeout -k 5 200 "$root/bench/predict_table.sh" "${small[@]}" \
        --out "$scratch/$name" "$@" > "$scratch/$name.out" 2> "$scratch/$name.err"
}

the_table_has_a_column_for_each_optimizer() {
    table t --optimizers adamw,sgd --lrs adamw=8e-3 --lrs sgd=0.05,0.1,0.2 \
        --arms outer,outer:full_steps=0:correct_steps=1 || { cat "$scratch/t.err"; return 1; }
    grep -qx '| predictor | over adamw | over sgd |' "$scratch/t/table.md" || return 1
    local number='[<>~]\{0,1\}[0-9]\.[0-9]*'
    local factor="$number / $number / $number ([+-][0-9.]*)"
    grep -q '^| alone: loss (learning rate) | [0-9.]* (0.008) | [0-9.]* (0.[0-9]*)' "$scratch/t/table.md" &&
        grep -q "^| outer | $factor | $factor" "$scratch/t/table.md" &&
        grep -q "^| outer, window 1 | $factor | $factor" "$scratch/t/table.md" &&
        [ "$(wc -l < "$scratch/t/table.md")" -eq 5 ] && grep -q '^| outer |' "$scratch/t.out"
}

an_edge_of_the_grid_is_reported() { # of a single rate there is none; the least of these is far too low
    table u --optimizers adamw --lrs adamw=1e-5,8e-3 --arms outer || return 1
    grep -q '^| alone.* (0.008) edge |' "$scratch/u/table.md" && grep -q '^| outer .* edge |' "$scratch/u/table.md" &&
        ! grep -q '^| outer | [^|]*edge' "$scratch/t/table.md"
}

a_table_that_is_there_runs_nothing() {
    table t --optimizers adamw,sgd --lrs adamw=8e-3 --lrs sgd=0.05,0.1,0.2 \
        --arms outer,outer:full_steps=0:correct_steps=1 && ! grep -q '^run ' "$scratch/t.err"
}

the_table_refuses_wrong_usage_and_skips_what_is_not_there() {
    local wrong
    for wrong in "--bogus 1" "--lrs 1e-3" "--optimizers adagrad" "--size tune" "--steps" "--size huge"; do
        # shellcheck disable=SC2086 # an option and its value
        table v $wrong
        [ $? -eq 2 ] || { echo "$wrong: not exit code 2"; return 1; }
        [ -s "$scratch/v.err" ] || { echo "$wrong: nothing is said"; return 1; }
    done
    table v --data "$scratch/none.txt" && grep -q 'skipped, there is no' "$scratch/v.out" || return 1
    HYBRID_TOKENS="$scratch" table v --size lab && grep -q 'skipped, no train.bin' "$scratch/v.out" || return 1
    table v --model "$scratch/none" --data "$0" && grep -q 'skipped, there is no folder' "$scratch/v.out" || return 1
    "$root/bench/predict_table.sh" --help | grep -q 'compute factors'
}

the_table_stops_and_goes_on() {
    local process tries=0 code
    HYBRID_BENCH="$(dirname "$program")" "$root/bench/predict_table.sh" "${small[@]}" --optimizers adamw,sgd \
        --lrs adamw=4e-3,8e-3 --arms outer --out "$scratch/w" > "$scratch/w.out" 2> "$scratch/w.err" &
    process=$!
    while ! grep -q '^run 2 ' "$scratch/w.err" && [ $tries -lt 6000 ]; do
        sleep 0.01
        tries=$((tries + 1))
    done
    kill -TERM "$process"
    wait "$process"
    code=$?
    [ $code -eq 75 ] || [ $code -eq 0 ] || { echo "exit code $code"; return 1; }
    table w --optimizers adamw,sgd --lrs adamw=4e-3,8e-3 --arms outer && [ -f "$scratch/w/sgd/table.txt" ]
}

check help_teaches
check wrong_usage_is_reported_and_runs_nothing
check a_measurement_leaves_table_json_and_curves
check finished_runs_are_not_run_again
check a_repeated_run_has_the_same_bits
check other_bits_are_noticed
check a_line_that_was_cut_off_is_run_again
check a_variant_of_outer_uses_the_same_adamw_runs
check another_optimizer_is_an_arm_and_a_baseline
check an_arm_may_have_other_windows
check a_stopped_measurement_goes_on
check a_budget_that_a_control_misses_fails
check the_table_has_a_column_for_each_optimizer
check an_edge_of_the_grid_is_reported
check a_table_that_is_there_runs_nothing
check the_table_refuses_wrong_usage_and_skips_what_is_not_there
check the_table_stops_and_goes_on

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
