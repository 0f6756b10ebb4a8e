#!/bin/sh
# hold.sh COMMAND...: runs a command on a card with all but 16,303 MiB occupied by another process.
#
# Starts bench/hold_memory, which leaves as much as an RTX 5080 has, waits until it holds the rest, runs the
# command, and lets go. LEAVE names another size in MiB, HYBRID_BENCH another folder of built measurements.
# Without a card the command is not run, and hold_memory prints the reason.
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
