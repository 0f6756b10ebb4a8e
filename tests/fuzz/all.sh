#!/usr/bin/env bash
# Runs the fuzz targets that it is given, as many at a time as there are cores, each for
# $HYBRID_FUZZ_SECONDS (10). What a failing one printed is shown. The last line counts as a test suite's.
set -uo pipefail

targets=(${HYBRID_FUZZ_TARGETS:?the targets, separated by blanks})
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
cores="$(nproc 2>/dev/null || echo 2)"

printf '%s\n' "${targets[@]}" |
    xargs -P "$cores" -I TARGET sh -c '"$1" > "$2/$(basename "$1").log" 2>&1 || :' _ TARGET "$logs"

passed=0
for target in "${targets[@]}"; do
    log="$logs/$(basename "$target").log"
    if grep -q '^1 passed, 0 failed$' "$log"; then
        passed=$((passed + 1))
        grep 'inputs, the slowest' "$log"
    else
        echo "$(basename "$target") failed:"
        tail -n 60 "$log"
    fi
done
echo "$passed passed, $((${#targets[@]} - passed)) failed"
[ "$passed" -eq "${#targets[@]}" ]
