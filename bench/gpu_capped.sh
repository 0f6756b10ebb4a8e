#!/bin/sh
# gpu_capped.sh: rows of bench/gpu_throughput on a card with all but 16,303 MiB occupied.
#
# Arguments go to gpu_throughput; without any: rows e, f and g. See hold.sh for LEAVE and HYBRID_BENCH.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- --row efg --steps 3 --warmup 1
exec "$here/bench/hold.sh" "${HYBRID_BENCH:-$here/build/bench}/gpu_throughput" "$@"
