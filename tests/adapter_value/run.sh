#!/usr/bin/env bash
# bench/adapter_value.py end to end, on a model so small that a run takes a fraction of a second.
#
# Its width is 64, because NF4 leaves narrower matrices as they are. The program it starts is
# $HYBRID_BIN/hybrid-train. Ends with the line "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export HYBRID_BIN="${HYBRID_BIN:-${HYBRID_BUILD:-$here/../../build}/bin}"
suite=adapter_value
program="$HYBRID_BIN/hybrid-train"
. "$here/../measurement/harness.sh"

# shellcheck disable=SC2054 # commas of lists
tiny=(--tiny --device cpu --base-steps 4 --base-set layers=1 --base-set width=64 --base-set mlp_width=64
    --base-set builtin_bytes=60000 --base-set threads=1 --set threads=1 --epochs 0.2 --seeds 1,2
    --lrs full=1e-3,3e-3,1e-2 --lrs lora=1e-2,3e-2,1e-1)

figures_are_those_worked_out_by_hand() {
    python3 "$root/tests/measurement/test_measurement.py" && python3 "$here/test_compare.py"
}

help_teaches() {
    python3 "$root/bench/adapter_value.py" --help > "$scratch/help" && grep -q 'ten times the rate' "$scratch/help" &&
        grep -q -e '--base-rows' "$scratch/help"
}

wrong_usage_is_code_2() {
    tiny+=(--arms "full,lora")
    refuses --arms:lora,none --arms:lora:rank --epochs:2,2 --rows-among:1 --lrs:lora=1e-3 --lrs:qlora=1e-3,2e-3,4e-3 --lrs:1e-3 --seeds:0 --set:lr --jobs:0 \
        --base-rows:3 --rows:rows.jsonl --bogus:1
}

missing_requirements_are_reported() {
    measure x --arms full,lora --program /nowhere/hybrid-train
    [ $? -eq 2 ] && grep -q 'make bin' "$scratch/x.err" || return 1
    HYBRID_TOKENS='' HYBRID_DATA='' python3 "$root/bench/adapter_value.py" --device cpu --out "$scratch/x" --rows a \
        --val-rows b > "$scratch/x.out" || return 1
    grep -q 'skipped, there are no train.bin and val.bin in HYBRID_TOKENS' "$scratch/x.out"
}

arms_are_measured_and_compared() {
    measure a --arms full,lora || { cat "$scratch/a.err"; return 1; }
    # the base before fine-tuning, (3 rates + 1 more seed) of each arm
    [ "$(wc -l < "$scratch/a/runs.jsonl")" -eq 9 ] || { wc -l "$scratch/a/runs.jsonl"; return 1; }
    has_lines "$scratch/a.out" '^base: 49,920 parameters, 4 steps' '^the base before fine-tuning: held-out loss' \
        '^  full  *0.2  *0.001: [0-9.]* *0.003: ' '^  full  full fine-tuning .* 1.0000  *49,920 ' '^  lora  LoRA r16 ' \
        'Best rate over that of full' '^lora: its held-out loss is .* within 2 %' || return 1
    python3 - "$scratch/a" << 'END'
import json, os, sys
lines = [json.loads(line) for line in open(os.path.join(sys.argv[1], "runs.jsonl"))]
tuned = [line for line in lines if line["arm"] != "none"]
steps = {line["steps"] for line in tuned}
assert len(steps) == 1 and {line["val_tokens"] for line in tuned} == {tuned[0]["val_tokens"]}, tuned
assert {line["trained"] for line in tuned if line["arm"] == "lora"} == {16 * (64 + 192 + 3 * (64 + 64))}, tuned
assert all(line["val_loss"] < lines[0]["val_loss"] for line in tuned), lines  # all learn
json.load(open(os.path.join(sys.argv[1], "results.json")))["arms"][1]["rate"]
END
}

finished_runs_are_not_made_again() {
    cp "$scratch/a/runs.jsonl" "$scratch/kept.jsonl"
    measure b --arms full,lora --resume "$scratch/kept.jsonl" || return 1
    [ "$(grep -c '^run ' "$scratch/b.err")" -eq 0 ] && [ ! -e "$scratch/b/base" ] || return 1
    truncate -s -40 "$scratch/kept.jsonl" # the last line is cut off
    measure b --arms full,lora --resume "$scratch/kept.jsonl" || return 1
    [ "$(grep -c '^run ' "$scratch/b.err")" -eq 1 ] && [ "$(wc -l < "$scratch/kept.jsonl")" -eq 9 ]
}

runs_at_a_time_give_the_same_losses() {
    measure c --arms full,lora --jobs 2 || { cat "$scratch/c.err"; return 1; }
    python3 - "$scratch/a/runs.jsonl" "$scratch/c/runs.jsonl" << 'END'
import json, sys
one, two = ({line["key"]: line["val_loss"] for line in map(json.loads, open(path))} for path in sys.argv[1:])
assert one == two, (one, two)
END
}

every_arm_runs() {
    local arms=full,lora,qlora,lora-embed,lora64,rslora,lora-muon,lora-lion rates=() arm
    for arm in ${arms//,/ }; do rates+=(--lrs "$arm=3e-3"); done
    measure d --arms "$arms" "${rates[@]}" --seeds 1 --epochs 0.1 || { cat "$scratch/d.err"; return 1; }
    [ "$(wc -l < "$scratch/d/runs.jsonl")" -eq 9 ] || { cat "$scratch/d.out"; return 1; }
    python3 - "$scratch/d/runs.jsonl" << 'END'
import json, sys
lines = {line["arm"]: line for line in map(json.loads, open(sys.argv[1]))}
of = {arm: lines[arm].get("trained") for arm in lines}
assert of["lora"] == of["qlora"] == of["rslora"] == of["lora-muon"] == of["lora-lion"] == of["lora64"] / 4, of
assert of["lora-embed"] == of["lora"] + 256 * 64, of
losses = [line["val_loss"] for line in lines.values()]
assert len(set(losses)) == len(losses), losses  # each arm is another run
END
}

epochs_and_settings_of_an_arm_are_tried_too() {
    # shellcheck disable=SC2054 # commas of lists
    local arms=(--arms full,full:batch_size=2,lora,lora:lora_rank=4 --lrs full:batch_size=2=1e-3,3e-3,1e-2
        --lrs lora:lora_rank=4=1e-2,3e-2,1e-1 --epochs 0.1,0.4)
    measure g "${arms[@]}" || { cat "$scratch/g.err"; return 1; }
    python3 - "$scratch/g" << 'END' || return 1
import json, os, sys
lines = [json.loads(line) for line in open(os.path.join(sys.argv[1], "runs.jsonl"))][1:]
assert len(lines) == 4 * (3 * 2 + 1), len(lines)
steps = {(line["arm"], line["epochs"]): line["steps"] for line in lines}
assert steps["full", 0.4] > 2 * steps["full", 0.1] and steps["full:batch_size=2", 0.4] > steps["full", 0.4], steps
assert {line["trained"] for line in lines if line["arm"] == "lora:lora_rank=4"} == {4 * (64 + 192 + 3 * (64 + 64))}
for arm in json.load(open(os.path.join(sys.argv[1], "results.json")))["arms"]:
    tried = [line for line in lines if line["arm"] == arm["name"] and line["seed"] == 1]
    best = min(tried, key=lambda line: line["val_loss"])
    assert (arm["rate"], arm["epochs"]) == (best["lr"], best["epochs"]), arm
END
    has_lines "$scratch/g.out" '^  lora:lora_rank=4  *0.1  *0.01: ' \
        '^  lora:lora_rank=4  *LoRA r16 lora_rank=4 ' '^lora:lora_rank=4: its held-out loss is .* at an edge'
}

out_of_time_is_code_75_and_reports_what_there_is() {
    cp "$scratch/a/runs.jsonl" "$scratch/some.jsonl"
    sed -i '$d' "$scratch/some.jsonl"
    measure e --arms full,lora --limit-s 0 --resume "$scratch/some.jsonl"
    [ $? -eq 75 ] || { cat "$scratch/e.err"; return 1; }
    grep -q '1 of 2 seeds' "$scratch/e.out" && grep -q 'out of time' "$scratch/e.err" &&
        [ ! -e "$scratch/e/base" ]
}

two_runs_are_in_progress() { [ -e "$scratch/f/run-full-0.003-100-1.log" ]; }

a_stopped_measurement_goes_on() {
    stop_when TERM two_runs_are_in_progress f --arms full,lora --epochs 100 --jobs 2 || return 1
    ! ls "$scratch"/adapter_value-* 2> /dev/null && [ "$(grep -c '"arm": "none"' "$scratch/f/runs.jsonl")" -eq 1 ]
}

check figures_are_those_worked_out_by_hand
check help_teaches
check wrong_usage_is_code_2
check missing_requirements_are_reported
check arms_are_measured_and_compared
check finished_runs_are_not_made_again
check runs_at_a_time_give_the_same_losses
check every_arm_runs
check epochs_and_settings_of_an_arm_are_tried_too
check out_of_time_is_code_75_and_reports_what_there_is
check a_stopped_measurement_goes_on

finish
