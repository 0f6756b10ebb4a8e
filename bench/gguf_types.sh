#!/bin/sh
# gguf_types.sh: what does each type of a GGUF file cost in held-out loss?
#
# Exports a run in each type, rounded to nearest and calibrated, and prints the tables of hybrid-export: size, loss and
# increase of every file. If LLAMA_QUANTIZE names llama.cpp's llama-quantize, its files of the same types are measured,
# too: one line each, to compare with the row "nearest".
#
#   bench/gguf_types.sh RUN HELD_OUT_TEXT CALIBRATION_TEXT
#
# TYPES="q4_0 q4_k_m" SEQ_LEN=1024 (that of the run) HYBRID_BIN=build/bin
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -ne 3 ]; then
    echo "gguf_types: skipped, it needs a run and two texts: see its first lines"
    exit 0
fi
bin=${HYBRID_BIN:-$here/build/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bin/hybrid-export" "$1" --gguf "$work/whole.gguf" --type f32 --quiet
for type in ${TYPES:-q4_0 q5_0 q4_k_m q5_k_m q6_k}; do
    echo "== $type"
    "$bin/hybrid-export" "$1" --gguf "$work/ours.gguf" --type "$type" --calibrate "$3" --data "$2" --overwrite 2> "$work/log" ||
        { cat "$work/log" >&2 && exit 1; }
    [ -n "${LLAMA_QUANTIZE:-}" ] || continue
    "$LLAMA_QUANTIZE" "$work/whole.gguf" "$work/theirs.gguf" "$type" > "$work/log" 2>&1
    "$bin/hybrid-train" --eval-only --model "$work/theirs.gguf" --data "$2" --seq-len "${SEQ_LEN:-1024}" \
        --eval-batches 0 2> "$work/log" | sed -n 's/^loss  */llama-quantize  /p'
done
