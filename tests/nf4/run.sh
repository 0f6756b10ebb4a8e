#!/usr/bin/env bash
# What bitsandbytes makes of random matrices and models, where $PYTHON (python3) has it, against ours, bit for bit.
#
# Fifty matrices as it stores them: tests/golden/make_nf4.py makes them and build/tests/test_model_nf4 compares. Twelve
# models that it has quantised, as transformers saves and runs them (where $PYTHON has that too): made by
# tests/golden/make_bnb.py, read by build/tests/test_bnb. Both programs do the same with a few that are kept. And what
# hybrid-export --type writes, against what bitsandbytes makes of the same folders: check_exports.py.
# HYBRID_NF4_SEED takes others. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
python="${PYTHON:-python3}"
seed="${HYBRID_NF4_SEED:-1}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-nf4-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
export PYTHONDONTWRITEBYTECODE=1
passed=0 failed=0

# run_case NAME COMMAND PATTERN: what the command prints goes into a log, of which lines like this are shown
run_case() {
    if "$2" > "$scratch/log" 2>&1; then
        echo "ok    $1 ($(grep "$3" "$scratch/log" | tail -n 1))"
        passed=$((passed + 1))
    else
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
        failed=$((failed + 1))
    fi
}

matrices() {
    "$python" "$root/tests/golden/make_nf4.py" --random 50 --seed "$seed" "$scratch/cases.safetensors" &&
        HYBRID_NF4_CASES="$scratch/cases.safetensors" "$build/tests/test_model_nf4"
}

models() {
    "$python" "$root/tests/golden/make_bnb.py" --random 12 --seed "$seed" "$scratch/models" &&
        HYBRID_BNB_CASES="$scratch/models" CK_RUN_CASE=numbers "$build/tests/test_bnb"
}

exports() {
    TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 "$python" "$root/tests/nf4/check_exports.py" "$build/bin/hybrid-export"
}

if ! "$python" -c 'import bitsandbytes, safetensors.torch' 2> /dev/null; then
    echo "skipped, $python has no bitsandbytes"
    echo "0 passed, 0 failed"
    exit 0
fi
run_case random_matrices_are_stored_as_bitsandbytes_stores_them matrices 'offsets are equal'
if "$python" -c 'import transformers, accelerate' 2> /dev/null; then
    run_case models_that_bitsandbytes_quantised_are_read_as_they_are models 'matrices stayed'
    run_case exports_are_those_of_bitsandbytes_and_transformers_runs_them exports 'exports are those'
else
    echo "skipped, $python has no transformers: models that bitsandbytes quantised"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
