#!/bin/sh
# gpu_phases.sh: what phases keep, move and wait for on a GPU: rows a to d of bench/gpu_phases.
#
# Rows a, b and c have the whole card. For row d bench/hold_memory leaves as much as an RTX 5080 has: LEAVE
# names another size in MiB. Arguments are rows ("ab d"); without any: all. HYBRID_BENCH names another
# folder of built measurements. Exit code 1 when a bar was missed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
rows=$(echo "${*:-abcd}" | tr -d ' ')
free=$(echo "$rows" | tr -d d)
missed=0
[ -z "$free" ] || "$programs/gpu_phases" --row "$free" || missed=1
case $rows in *d*) ;; *) exit $missed ;; esac
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
kill -0 $holder 2> /dev/null || exit $missed # no card, or nothing to hold: it has said so
"$programs/gpu_phases" --row d || missed=1
exit $missed
