#!/bin/sh
# hold.sh COMMAND...: runs a command on a card of which another process holds all but 16,303 MiB.
#
# Starts bench/hold_memory, which leaves as much as an RTX 5080 has, waits until it holds the rest, runs the
# command, and lets go. LEAVE names another size in MiB, HYBRID_BENCH another folder of built measurements.
# Without a card nothing is run: hold_memory has said why.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
log=$(mktemp)
"$programs/hold_memory" --leave "${LEAVE:-16303}" > "$log" 2>&1 < /dev/null &
holder=$!
trap 'kill $holder 2> /dev/null || true; rm -f "$log"' EXIT
tries=0
until [ -s "$log" ] || [ $tries -ge 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
cat "$log"
kill -0 $holder 2> /dev/null || exit 0
"$@"
