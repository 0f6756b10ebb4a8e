#!/usr/bin/env bash
# Modules with blocks: losses of 100 steps against plain torch and in all places, and a run that is killed at 30 moments.
#
# Needs a Python with torch, which PYTHON names (else python3); without it the case is left out. Ends with the line
# "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
python="${PYTHON:-python3}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-blocks-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
leave_out() {
    echo "left out: $1"
    echo "0 passed, 0 failed"
    exit 0
}
[ "${VARIANT:-release}" = release ] || leave_out "a library with a sanitizer needs a Python that has it too"
"$python" -c 'import torch' 2> /dev/null || leave_out "$python has no torch; PYTHON names one that has it"
HYBRID_BUILD="$build" "$python" "$root/python/builder/hybrid_build.py" "$scratch" > "$scratch/log" 2>&1 &&
    "$python" -m zipfile -e "$scratch"/*.whl "$scratch/package" || {
    tail -n 20 "$scratch/log"
    echo "0 passed, 1 failed"
    exit 1
}
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$scratch/package" OMP_NUM_THREADS=1 "$python" "$root/tests/python/run_tests.py" \
    long_blocks
