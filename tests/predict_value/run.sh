#!/usr/bin/env bash
# bench/predict_value end to end, on a model so small that a run takes a fraction of a second.
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

tiny=(--threads 1 --steps 24 --lrs 8e-3 --seeds 1,2 --budgets 0.75,1.25 --arms outer,paid
    --set layers=1 --set width=16 --set mlp_width=32 --set batch_size=2 --set seq_len=16
    --set builtin_bytes=60000 --set eval_batches=1 --set lr_warmup_steps=3 --set full_steps=3
    --set correct_steps=1 --set guard_share=1)

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

wrong_usage_is_told_and_runs_nothing() {
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
    measure a --verify && grep -q '^PASS  same bits: 3 runs' "$scratch/a.out"
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
    while ! grep -q '^run 2 ' "$scratch/e.err" && [ $tries -lt 400 ]; do
        sleep 0.01
        tries=$((tries + 1))
    done
    kill -INT "$process"
    wait "$process"
    local code=$?
    # It may have been too fast to be caught.
    [ $code -eq 75 ] || [ $code -eq 0 ] || { echo "exit code $code"; return 1; }
    [ $code -eq 0 ] || grep -q 'the same command goes on' "$scratch/e.err" || return 1
    measure e && [ "$(losses a)" = "$(losses e)" ]
}

a_budget_that_a_control_misses_fails() {
    # the guard spends its passes in one piece: 2.7 units do not fit into what is left
    measure f --arms paid:guard_share=4 --set predict_from=0 --set predict_until=1 --set full_steps=4
    [ $? -eq 1 ] && grep -q '^FAIL  equal compute' "$scratch/f.out"
}

check help_teaches
check wrong_usage_is_told_and_runs_nothing
check a_measurement_leaves_table_json_and_curves
check finished_runs_are_not_run_again
check a_repeated_run_has_the_same_bits
check other_bits_are_noticed
check a_line_that_was_cut_off_is_run_again
check a_variant_of_outer_uses_the_same_adamw_runs
check another_optimizer_is_an_arm_and_a_baseline
check a_stopped_measurement_goes_on
check a_budget_that_a_control_misses_fails

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
