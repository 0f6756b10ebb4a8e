#!/usr/bin/env bash
# Modules with blocks: losses of 100 steps against plain torch and in all places, and a run that is killed at 30 moments.
#
# Needs a Python with torch, which PYTHON names (else python3); without it the case is left out. Ends with the line
# "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
python="${PYTHON:-python3}"
leave_out() {
    echo "left out: $1"
    echo "0 passed, 0 failed"
    exit 0
}
[ "${VARIANT:-release}" = release ] || leave_out "a library with a sanitizer needs a Python that has it too"
"$python" -c 'import torch' 2> /dev/null || leave_out "$python has no torch; PYTHON names one that has it"
"$python" "$root/python/builder/write.py" "$root/include" "$root/python/hybrid_train"
HYBRID_LIBRARY="$build/lib/libhybrid.so" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
    "$python" "$root/tests/python/run_tests.py" long_blocks
