#!/usr/bin/env bash
# Our event files, read by TensorBoard itself: what it returns must be what metrics.jsonl says.
#
# Needs Python with the package tensorboard ($HYBRID_PYTHON, else python3); without it the suite is
# skipped. The program is $HYBRID_BIN/hybrid-train. Ends with the line "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
program="${HYBRID_BIN:-${HYBRID_BUILD:-$here/../../build}/bin}/hybrid-train"
python="${HYBRID_PYTHON:-python3}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-oracle-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

if ! "$python" -c 'import tensorboard' 2> /dev/null; then
    echo "skipped: $python has no package tensorboard"
    echo "0 passed, 0 failed"
    exit 0
fi
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi

small=(--model nano --layers 1 --width 32 --heads 2 --seq-len 32 --batch-size 2
    --grad-accum-steps 1 --builtin-bytes 60000 --eval-batches 1 --threads 1 --device cpu --quiet
    --predictor outer --full-steps 4 --correct-steps 2 --fork-budget 0 --confidence-threshold 0
    --predict-from 0 --lr-warmup-steps 3)

check() { # check NAME: the function of that name must succeed
    if (cd "$scratch" && "$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

compare() { "$python" "$here/event_files.py" "$@"; }

a_run() {
    "$program" "${small[@]}" --out whole --steps 40 --eval-every 7 && compare whole
}

# Steps 6 to 12 are done twice: the last checkpoints are lost, as if the run had been killed.
a_run_that_was_killed_and_resumed() {
    "$program" "${small[@]}" --out killed --steps 12 --eval-every 4 --save-every 5 --keep 0 &&
        rm -r killed/checkpoint-10 killed/checkpoint-12 &&
        "$program" --resume killed --steps 30 --quiet && compare killed
}

a_run_that_goes_on_twice() {
    "$program" "${small[@]}" --out longer --steps 10 &&
        "$program" --resume longer --steps 20 --quiet &&
        "$program" --resume longer --steps 30 --quiet && compare longer
}

# The newest record is half written: a reader of a run that goes on gets all the others.
a_file_that_is_cut() {
    local file
    "$program" "${small[@]}" --out cut --steps 30 || return 1
    file=$(echo cut/tensorboard/events.*)
    truncate -s -7 "$file"
    grep -v '^$' cut/metrics.jsonl | head -n -1 > lines && mv lines cut/metrics.jsonl
    compare cut
}

check a_run
check a_run_that_was_killed_and_resumed
check a_run_that_goes_on_twice
check a_file_that_is_cut
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
