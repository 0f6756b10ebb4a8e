#!/bin/sh
# gpu_attention.sh: compares our attention with PyTorch's flash backend, speed and values, in one run.
#
# Needs python3 with PyTorch and a card; without them it says so and does nothing. Arguments go to
# bench/peers/torch_attention.py; HYBRID_BENCH names another folder of built measurements.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/gpu_attention
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    case " $* " in
    *" --device cpu "*) ;;
    *) echo "gpu_attention: skipped, no PyTorch with a CUDA device here"; exit 0 ;;
    esac
fi
echo "$ bench/gpu_attention.sh $*"
exec "$python" "$here/bench/peers/torch_attention.py" --ours "$program" "$@"
