#!/bin/sh
# gpu_capped.sh: rows of bench/gpu_throughput on a card of which others hold all but 16,303 MiB.
#
# Starts bench/hold_memory, which leaves as much as an RTX 5080 has, waits until it holds the rest, and
# runs `gpu_throughput` with the arguments given; without any: rows e, f and g. LEAVE names another size in
# MiB, HYBRID_BENCH another folder of built measurements.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
log=$(mktemp)
"$programs/hold_memory" --leave "${LEAVE:-16303}" > "$log" 2>&1 < /dev/null &
holder=$!
trap 'kill $holder 2> /dev/null; rm -f "$log"' EXIT
tries=0
until [ -s "$log" ] || [ $tries -ge 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
cat "$log"
kill -0 $holder 2> /dev/null || exit 0 # no card, or nothing to hold: it has said so
[ $# -gt 0 ] || set -- --row efg --steps 3 --warmup 1
"$programs/gpu_throughput" "$@"
