#!/usr/bin/env bash
# Runs test programs and shell suites, some at a time, and adds up their cases. Those that measure time, press keys
# at given moments or build in this tree run alone, after the others. One that fails runs once more, alone: whether
# ranks meet within seconds depends on what else the machine does. A pass then counts, and is named at the end.
#
#   tests/run.sh PROGRAM|SUITE.sh ...
#
# HYBRID_TEST_JOBS: how many at a time (2, where there are as many cores; sanitizers: 1).
# A Check program reports "Checks: N, Failures: N, Errors: N"; a shell suite ends with a line
# "N passed, N failed". One that reports neither (it crashed) counts as one failed case. What a
# failing one printed is shown; all output is kept in $HYBRID_BUILD/tests/logs. The last line is always
# "N passed, N failed"; the exit code is 1 when anything failed.
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
variant="${VARIANT:-release}"
out="${HYBRID_BUILD:-$root/build}"
logs="$out/tests/logs"
mkdir -p "$logs"

export CK_VERBOSITY=normal
# No program may hang the rest.
limit="${HYBRID_TEST_LIMIT:-1200}"
# The programs under test, for the shell suites.
export HYBRID_BIN="${HYBRID_BIN:-$out/bin}"
suite_options=()
jobs="${HYBRID_TEST_JOBS:-$([ "$(nproc 2>/dev/null || echo 1)" -gt 1 ] && echo 2 || echo 1)}"
[ "$variant" = release ] || jobs=1
case "$variant" in
asan)
    # One process per program, so one search for leaks: on 64-bit ARM each takes seconds, because
    # the sanitizer walks a map of the whole address space. Shell suites start a program many
    # times, so they search for leaks on other processors only.
    export CK_FORK=no
    export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}"
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
    [ "$(uname -m)" = aarch64 ] && suite_options=(env "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0")
    ;;
tsan)
    # The thread sanitizer does not follow a process with threads into its forked children.
    export CK_FORK=no
    export TSAN_OPTIONS="${TSAN_OPTIONS:-exitcode=66:allocator_may_return_null=1:suppressions=$root/tests/tsan.supp}"
    ;;
esac

name_of() { # PROGRAM|SUITE.sh
    local name
    name="$(basename "$1" .sh)"
    [ "$name" = run ] && name="$(basename "$(dirname "$1")")"
    echo "$name"
}

# Runs one and leaves "GOOD BAD STATUS" in its result file.
run_one() { # PROGRAM|SUITE.sh
    local item=$1 name log began status counts good bad all failures errors seconds
    name="$(name_of "$item")"
    log="$logs/$name.log"
    began=$(date +%s.%N)
    if [[ "$item" == *.sh ]]; then
        "${suite_options[@]}" timeout -k 10 "$limit" "$item" > "$log" 2>&1
    else
        timeout -k 10 "$limit" "$item" > "$log" 2>&1
    fi
    status=$?
    [ "$status" -ne 124 ] || echo "$name was ended after $limit seconds" >> "$log"
    seconds=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')

    if counts=$(grep -aoE 'Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+' "$log" | tail -n 1) &&
        [ -n "$counts" ]; then
        read -r all failures errors <<< "$(tr -cs '0-9' ' ' <<< "$counts")"
        bad=$((failures + errors))
        good=$((all - bad))
    elif counts=$(grep -aoE '[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1) &&
        [ -n "$counts" ]; then
        read -r good bad <<< "$(tr -cs '0-9' ' ' <<< "$counts")"
    else
        good=0
        bad=1
    fi
    # A sanitizer can fail a program all of whose cases passed.
    [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    echo "$good $bad $status" > "$logs/$name.result"
    printf '%-24s %4d passed, %d failed  %6s s\n' "$name" "$good" "$bad" "$seconds"
}

# What a failing one said. Suites list every case: those that failed.
show_failure() { # PROGRAM|SUITE.sh STATUS
    local log
    log="$logs/$(name_of "$1").log"
    echo "---- $(name_of "$1") (exit code $2), from $log:"
    { [[ "$1" == *.sh ]] && grep -a -B 6 -A 12 FAIL "$log"; } || tail -n 60 "$log"
    echo "----"
}

rm -f "$logs"/*.result
running=0
# Long ones first, so that none is left alone at the end: those named here, other suites, programs.
long=(cli cli_runs test_engine_exact test_oom test_own_ranks adapter_value python all test_steering test_ranks_frozen
    test_ranks_steering test_predict test_engine_limits test_selftest test_optimizer_run test_trainer_card)
first=()
suites=()
programs=()
alone=()
for item in "$@"; do
    case "$item" in
    */test_ranks_overlap | */chat/run.sh | */report/run.sh | */packages.sh | */commands.sh) alone+=("$item") ;;
    *.sh) suites+=("$item") ;;
    *) programs+=("$item") ;;
    esac
done
for name in "${long[@]}"; do
    for item in "$@"; do
        [ "$(name_of "$item")" = "$name" ] && first+=("$item")
    done
done
is_first() { # PROGRAM|SUITE.sh
    local item
    for item in "${first[@]}"; do [ "$item" = "$1" ] && return; done
    return 1
}
begin() { # PROGRAM|SUITE.sh: beside those that run, when there is a free place
    if [ "$running" -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
    fi
    run_one "$1" &
    running=$((running + 1))
}
for item in "${first[@]}"; do begin "$item"; done
for item in "${suites[@]}" "${programs[@]}"; do is_first "$item" || begin "$item"; done
wait
for item in "${alone[@]}"; do run_one "$item"; done

has_failed() { # PROGRAM|SUITE.sh
    local good=0 bad=1 status
    read -r good bad status < "$logs/$(name_of "$1").result"
    [ "$bad" -gt 0 ]
}
again=()
for item in "$@"; do
    has_failed "$item" || continue
    name="$(name_of "$item")"
    mv "$logs/$name.log" "$logs/$name.first.log"
    run_one "$item"
    has_failed "$item" || again+=("$name")
done

passed=0
failed=0
for item in "$@"; do
    good=0 bad=1 status=1 # one that left no result
    read -r good bad status < "$logs/$(name_of "$item").result"
    passed=$((passed + good))
    failed=$((failed + bad))
    [ "$bad" -eq 0 ] || show_failure "$item" "$status"
done

for name in "${again[@]}"; do
    echo "$name passed only when it ran again, alone; the first time:"
    grep -a -E '(:[FE]:|FAIL)' "$logs/$name.first.log" | head -n 5
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
