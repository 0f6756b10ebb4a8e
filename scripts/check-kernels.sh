#!/bin/sh
# check-kernels.sh LOG ...: checks that all kernels fit the card with the least shared memory.
#
# A block of sm_120 (RTX 50) may have 99 KB of shared memory, 128 KB less than an H200. The logs are
# the output of `ptxas -v` for sm_120. Fails if a kernel spills registers or declares more shared
# memory than that; also if a source that requests more than 48 KB at launch neither asserts the
# limit at compile time (static_assert with "99 * 1024") nor adapts its size to the card
# (card.shared_bytes). Prints the number of kernels, and those with most registers and most shared
# memory.
set -u
limit=101376
logs=0
root=$(cd "$(dirname "$0")/.." && pwd)

[ $# -gt 0 ] || { echo "usage: check-kernels.sh LOG ..." >&2; exit 2; }

awk -v limit="$limit" '
    /Compiling entry function/ {
        kernel = ""
        if ($0 !~ /sm_120/) next
        split($0, quoted, "\047"); kernel = quoted[2]; count++
    }
    /bytes stack frame/ && kernel != "" {
        spilled = 0
        for (i = 2; i <= NF; i++) {
            if ($i == "bytes" && $(i + 1) == "spill") spilled += $(i - 1)
        }
        if (spilled > 0) {
            printf "%s: %s spills: %s\n", FILENAME, kernel, $0
            bad = 1
        }
    }
    /Used [0-9]+ registers/ && kernel != "" {
        registers = shared = 0
        for (i = 1; i <= NF; i++) {
            if ($i == "Used") registers = $(i + 1)
            if ($i == "bytes" && $(i + 1) ~ /^smem/) shared = $(i - 1)
        }
        if (registers > most_registers) { most_registers = registers; by_registers = kernel }
        if (shared > most_shared) { most_shared = shared; by_shared = kernel }
        if (shared > limit) {
            printf "%s: %s has %d bytes of shared memory; the limit is %d\n", FILENAME, kernel, shared, limit
            bad = 1
        }
    }
    END {
        if (count == 0) { print "no kernel was compiled for sm_120"; exit 1 }
        printf "sm_120: %d kernels, none may spill; most registers %d (%s), most static shared memory %d bytes%s\n",
            count, most_registers, by_registers, most_shared, by_shared == "" ? "" : " (" by_shared ")"
        exit bad
    }' "$@" || logs=1

# The logs do not show what is requested at launch. A source is responsible for its headers.
status=$logs
for source in "$root"/src/kernels/cuda/*.cu; do
    sources=$source
    for header in $(sed -n 's|^#include "\(kernels/cuda/[a-z_]*\.cuh\)"|\1|p' "$source"); do
        sources="$sources $root/src/$header"
    done
    grep -qE 'MaxDynamicSharedMemorySize|hy_launch_with_shared\(' "$source" || continue
    # shellcheck disable=SC2086 # names without blanks
    grep -qE 'static_assert\(.*<= *99 \* 1024|card[.>-]+shared_bytes' $sources && continue
    echo "${source#"$root"/}: requests dynamic shared memory without a limit (99 * 1024, or the card's)"
    status=1
done
exit $status
