#!/usr/bin/env bash
# bench/time_to_loss.py end to end, on a model so small that a run takes a fraction of a second.
#
# The program it starts is $HYBRID_BUILD/bench/gpu_loss. Arms in PyTorch are run where $PYTHON (python3) has it.
# Ends with the line "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export HYBRID_BENCH="${HYBRID_BUILD:-$here/../../build}/bench" PYTHON="${PYTHON:-python3}"
suite=time_to_loss
program="$HYBRID_BENCH/gpu_loss"
. "$here/../measurement/harness.sh"

# shellcheck disable=SC2054 # commas of lists
tiny=(--device cpu --model smoke --no-compile --steps 12 --grid 2e-3,4e-3,8e-3 --seeds 1,2 --evals 4
    --eval-batches 2 --fractions 0.5,0.75 --set threads=1 --set layers=1 --set width=16 --set mlp_width=32
    --set batch_size=2 --set seq_len=16 --set context=16 --set builtin_bytes=60000)

has_torch() { "$PYTHON" -c 'import torch, numpy' 2> /dev/null; }

figures_are_those_worked_out_by_hand() {
    python3 "$root/tests/measurement/test_measurement.py" && python3 "$here/test_figures.py"
}

help_teaches() {
    python3 "$root/bench/time_to_loss.py" --help > "$scratch/help" && grep -q 'compute factor f' "$scratch/help" &&
        grep -q -e '--fractions' "$scratch/help"
}

held_out_losses_on_the_way_cost_no_training_time_and_change_nothing() {
    local settings=(model=tiny-gpt2 layers=1 width=16 heads=2 mlp_width=32 seq_len=16 batch_size=2 data=builtin
        builtin_bytes=2000000 device=cpu threads=1 steps=12 predictor=none eval_batches=0)
    "$HYBRID_BENCH/gpu_loss" "${settings[@]}" eval_every=0 > "$scratch/plain.json" 2> /dev/null || return 1
    "$HYBRID_BENCH/gpu_loss" --evals 4 "${settings[@]}" > "$scratch/evals.json" 2> /dev/null || return 1
    python3 - "$scratch/plain.json" "$scratch/evals.json" << 'END'
import json, sys
plain, evals = (json.load(open(path)) for path in sys.argv[1:])
assert [p[0] for p in plain["held_out"]] == [12], plain["held_out"]
assert [p[0] for p in evals["held_out"]] == [3, 6, 9, 12], evals["held_out"]
assert evals["val_loss"] == plain["val_loss"] == evals["held_out"][-1][3], (evals["val_loss"], plain["val_loss"])
seconds = [p[2] for p in evals["held_out"]]
assert seconds == sorted(seconds) and 0 < seconds[-1] == evals["train_s"], seconds
assert evals["train_s"] < 0.1 * evals["run_s"], evals  # 24 sequences learned, 25,000 looked at
END
}

a_run_that_diverges_has_a_code_of_its_own() {
    "$HYBRID_BENCH/gpu_loss" model=tiny-gpt2 layers=1 width=16 heads=2 mlp_width=32 seq_len=16 batch_size=2 \
        data=builtin builtin_bytes=60000 device=cpu threads=1 steps=60 predictor=none optimizer=sgd lr=10 \
        grad_clip=0 lr_warmup_steps=0
    [ $? -eq 3 ]
}

missing_requirements_are_reported() {
    HYBRID_TOKENS='' measure x --model lab || return 1
    grep -q 'skipped, there are no train.bin and val.bin in HYBRID_TOKENS/lab' "$scratch/x.out" || return 1
    measure x --program /nowhere/gpu_loss
    [ $? -eq 2 ] && grep -q 'make build/bench/gpu_loss' "$scratch/x.err" || return 1
    measure x --arms ac --python /nowhere/python --fractions none || return 1
    grep -q '^note: arm a omitted: /nowhere/python has no PyTorch' "$scratch/x.out"
}

wrong_usage_is_code_2() {
    refuses --arms:x --grid:0 --grid:1e-3,1e-3 --seeds:1.5 --d:beta2 --fractions:0.001 --bogus:1
}

wrong_settings_of_an_arm_are_found_before_anything_long() {
    measure z --arms cd --d no_such_key=1
    [ $? -eq 1 ] && grep -q no_such_key "$scratch/z.err" && [ ! -s "$scratch/z/runs.jsonl" ] || return 1
    measure z --arms cd --d batch_size=4
    [ $? -eq 1 ] && grep -q 'tokens per step' "$scratch/z.err" && [ ! -s "$scratch/z/runs.jsonl" ]
}

our_arms_are_measured_and_compared() {
    measure a --arms cd --d beta2=0.8 || { cat "$scratch/a.err"; return 1; }
    # (3 rates + 1 more seed) for c, and for d 2 fractions of 2 seeds more
    [ "$(wc -l < "$scratch/a/runs.jsonl")" -eq 12 ] || { wc -l "$scratch/a/runs.jsonl"; return 1; }
    has_lines "$scratch/a.out" '^  d  ours, beta2=0.8 .* 12$' 'compute factor f' 'at an edge of the grid' \
        '^note: (c) is what the others are compared with' || return 1
    grep -q '<polyline' "$scratch/a/seconds.svg" && grep -q '</svg>' "$scratch/a/steps.svg" &&
        python3 -c 'import json, sys; json.load(open(sys.argv[1]))["factors"]["d"]' "$scratch/a/results.json"
}

finished_runs_are_not_made_again() {
    cp "$scratch/a/runs.jsonl" "$scratch/kept.jsonl"
    truncate -s -40 "$scratch/kept.jsonl" # the last line is cut off
    measure b --arms cd --d beta2=0.8 --resume "$scratch/kept.jsonl" || return 1
    [ "$(grep -c '^run ' "$scratch/b.err")" -eq 1 ] && [ "$(wc -l < "$scratch/kept.jsonl")" -eq 12 ]
}

a_run_has_ended() { grep -q '^run 1 ' "$scratch/e.err"; }

a_stopped_measurement_goes_on() {
    stop_when INT a_run_has_ended e --arms cd --d beta2=0.8 --steps 3000 --fractions none || return 1
    local made
    made=$(wc -l < "$scratch/e/runs.jsonl")
    [ "$made" -ge 1 ] && measure e --arms cd --d beta2=0.8 --steps 3000 --fractions none || return 1
    [ "$(grep -c '^run ' "$scratch/e.err")" -eq $((8 - made)) ]
}

pytorch_trains_the_same_run() {
    measure c --arms abc --grid 4e-3 --seeds 3 --fractions none --set schedule=wsd --set grad_accum_steps=2 \
        --set vocab=1030 || { cat "$scratch/c.err"; return 1; }
    python3 - "$scratch/c/runs.jsonl" << 'END'
import json, sys
runs = {run["arm"]: run for run in map(json.loads, open(sys.argv[1]))}
assert len(runs["a"]["held_out"]) == len(runs["c"]["held_out"]) == 4
for theirs, ours in zip(runs["a"]["held_out"], runs["c"]["held_out"]):
    assert theirs[0] == ours[0] and abs(theirs[3] - ours[3]) < 2e-5, (theirs, ours)
assert "b" not in runs or abs(runs["b"]["val_loss"] - runs["a"]["val_loss"]) > 1e-4
END
}

check figures_are_those_worked_out_by_hand
check help_teaches
check held_out_losses_on_the_way_cost_no_training_time_and_change_nothing
check a_run_that_diverges_has_a_code_of_its_own
check missing_requirements_are_reported
check wrong_usage_is_code_2
check wrong_settings_of_an_arm_are_found_before_anything_long
check our_arms_are_measured_and_compared
check finished_runs_are_not_made_again
check a_stopped_measurement_goes_on
if has_torch; then check pytorch_trains_the_same_run; else echo "skip  pytorch_trains_the_same_run: no PyTorch here"; fi

finish
