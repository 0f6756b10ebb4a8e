#!/usr/bin/env bash
# hybrid_train.Optimizer in transformers' Trainer and TRL's SFTTrainer: 50 losses against torch's AdamW, and a resume.
#
# Needs a Python with torch, transformers, accelerate and trl, which HYBRID_TRAINERS_PYTHON names (else python3);
# without them the case is left out. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
python="${HYBRID_TRAINERS_PYTHON:-python3}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-trainers-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
[ "${VARIANT:-release}" = release ] || {
    echo "left out: a library with a sanitizer needs a Python that has it too"
    echo "0 passed, 0 failed"
    exit 0
}
"$python" "$root/python/builder/write.py" "$root/include" "$root/python/hybrid_train"
HYBRID_LIBRARY="$build/lib/libhybrid.so" PYTHONPATH="$root/python" \
    "$python" "$root/tests/trainers/check_trainers.py" 2> "$scratch/log"
case $? in
0) echo "1 passed, 0 failed" ;;
77) echo "left out: HYBRID_TRAINERS_PYTHON names a Python with torch, transformers, accelerate and trl"
    echo "0 passed, 0 failed" ;;
*) tail -n 20 "$scratch/log"
    echo "0 passed, 1 failed"
    exit 1 ;;
esac
