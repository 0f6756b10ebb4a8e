#!/bin/sh
# gpu_phases.sh: memory, copies and waiting of the phases on a GPU: rows a to g of bench/gpu_phases.
#
# Rows a, b and c have the whole card; d to g what an RTX 5080 has (hold.sh; LEAVE names another size in
# MiB), and row e both, one after the other: its speed on the small card has to be 0.93 of that on the
# whole one. Arguments are rows ("ab d"); without any: a to d, as e to g take three minutes more. FOLDER is where
# row g has state on disk (/tmp), HYBRID_BENCH another folder of built measurements. Exit code 1 when a bar
# was missed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
programs=${HYBRID_BENCH:-$here/build/bench}
rows=$(echo "${*:-abcd}" | tr -d ' ')
folder=${FOLDER:-/tmp}
missed=0
phases() { "$programs/gpu_phases" --folder "$folder" --row "$@" || missed=1; }
held() { "$here/bench/hold.sh" "$programs/gpu_phases" --folder "$folder" --row "$@" || missed=1; }
only() { echo "$rows" | tr -cd "$1"; }

[ -z "$(only abc)" ] || phases "$(only abc)"
[ -z "$(only dfg)" ] || held "$(only dfg)"
[ -n "$(only e)" ] || exit $missed

log=$(mktemp)
trap 'rm -f "$log"' EXIT
rate() { sed -n 's/^  \([0-9]*\) tokens\/s in Full.*/\1/p' "$log"; }
phases e > "$log"
cat "$log"
whole=$(rate)
held e > "$log"
cat "$log"
small=$(rate)
[ -n "$whole" ] && [ -n "$small" ] || exit $missed # no card: it was said
awk -v a="$small" -v b="$whole" 'BEGIN {
    printf "row e: %d tokens/s on the small card, %d on the whole one, ratio %.3f: bar 0.93: %s\n",
        a, b, a / b, (a >= 0.93 * b ? "bar reached" : "BELOW THE BAR")
    exit !(a >= 0.93 * b) }' || missed=1
exit $missed
