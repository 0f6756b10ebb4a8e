#!/usr/bin/env bash
# Fifty random matrices as bitsandbytes stores them, where $PYTHON (python3) has it, against ours, bit for bit.
#
# tests/golden/make_nf4.py makes them and build/tests/test_model_nf4 compares; that program does the same with a
# few that are kept. HYBRID_NF4_SEED takes others. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
python="${PYTHON:-python3}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-nf4-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT

if ! PYTHONDONTWRITEBYTECODE=1 "$python" -c 'import bitsandbytes, safetensors.torch' 2> /dev/null; then
    echo "skipped, $python has no bitsandbytes"
    echo "0 passed, 0 failed"
    exit 0
fi
name=random_matrices_are_stored_as_bitsandbytes_stores_them
cases="$scratch/cases.safetensors"
if "$python" "$root/tests/golden/make_nf4.py" --random 50 --seed "${HYBRID_NF4_SEED:-1}" "$cases" > "$scratch/log" 2>&1 &&
    HYBRID_NF4_CASES="$cases" "$build/tests/test_model_nf4" >> "$scratch/log" 2>&1; then
    echo "ok    $name ($(grep 'offsets are equal' "$scratch/log"))"
    echo "1 passed, 0 failed"
else
    echo "FAIL  $name"
    sed 's/^/      /' "$scratch/log"
    echo "0 passed, 1 failed"
    exit 1
fi
