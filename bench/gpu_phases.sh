#!/bin/sh
# gpu_phases.sh: what phases keep, move and wait for on a GPU: rows a to d of bench/gpu_phases.
#
# Rows a, b and c have the whole card; row d what an RTX 5080 has (hold.sh; LEAVE names another size in
# MiB). Arguments are rows ("ab d"); without any: all. HYBRID_BENCH names another folder of built
# measurements. Exit code 1 when a bar was missed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
rows=$(echo "${*:-abcd}" | tr -d ' ')
free=$(echo "$rows" | tr -d d)
missed=0
[ -z "$free" ] || "$programs/gpu_phases" --row "$free" || missed=1
case $rows in *d*) ;; *) exit $missed ;; esac
"$here/bench/hold.sh" "$programs/gpu_phases" --row d || missed=1
exit $missed
