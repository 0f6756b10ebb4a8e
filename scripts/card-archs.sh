#!/usr/bin/env bash
# Prints the CUDA architectures of this machine's cards, for `make run`, which builds only those.
#
#   scripts/card-archs.sh NVCC    "none": there is no NVIDIA card
#                                 "89", "86 120": compute capabilities, each once
#                                 "all": there is a card, but nvidia-smi does not say which, or
#                                        NVCC does not know it
set -euo pipefail
nvcc="$1"

is_known() { [ "$1" -ge 75 ] && grep -qx "compute_$1" <<< "$known"; }

# Accepts "8.9" and similar; anything else that nvidia-smi prints is an error message.
cards="$({ timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null || true; } |
    sed -n 's/^ *\([0-9][0-9]*\)\.\([0-9]\) *$/\1\2/p' | sort -nu)"
if [ -z "$cards" ]; then
    # A driver without nvidia-smi, as in some containers; /dev/dxg is the driver's device in WSL.
    if compgen -G '/dev/nvidia[0-9]*' > /dev/null || [ -e /dev/dxg ]; then echo all; else echo none; fi
    exit 0
fi
known="$("$nvcc" --list-gpu-arch 2> /dev/null || true)"
wanted=()
for card in $cards; do
    if is_known "$card"; then wanted+=("$card"); fi
done
echo "${wanted[*]:-all}"
