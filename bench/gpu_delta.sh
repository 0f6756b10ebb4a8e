#!/bin/sh
# gpu_delta.sh: compares our gated delta rule with flash-linear-attention's, speed and values, in one
# run.
#
# Needs python3 with PyTorch, Triton and flash-linear-attention (fla-core, einops), and a card; without
# them it says so and does nothing. HYBRID_FLA names a folder with these packages. Arguments go to
# bench/peers/torch_delta.py; HYBRID_BENCH names another folder of built measurements.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_delta
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="${HYBRID_FLA:-$here/build/fla}${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import sys, torch, einops; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "gpu_delta: skipped, no PyTorch with a CUDA device and flash-linear-attention here"
    exit 0
fi
echo "$ bench/gpu_delta.sh $*"
exec "$python" "$here/bench/peers/torch_delta.py" --ours "$program" "$@"
