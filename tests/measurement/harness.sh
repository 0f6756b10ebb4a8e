# harness.sh: what suites of measurements in Python share. Sourced by run.sh of a suite, which first sets `suite`, the
# measurement's name in bench/, and `program`, what it starts. A test is a function; `check NAME` runs it in a subshell.
# `finish` ends the suite with the line "N passed, N failed".

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export PYTHONDONTWRITEBYTECODE=1
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-measurement-XXXXXX")"
export TMPDIR="$scratch"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

if ! command -v python3 > /dev/null; then
    echo "skipped, there is no python3 here"
    echo "0 passed, 0 failed"
    exit 0
fi
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi

measure() { # measure DIR [OPTION ...]: with the options in the array `tiny` before; output in DIR.out and DIR.err
    local name="$1"
    shift
    timeout -k 5 300 python3 "$root/bench/$suite.py" "${tiny[@]}" --out "$scratch/$name" "$@" \
        > "$scratch/$name.out" 2> "$scratch/$name.err"
}

refuses() { # refuses OPTION:VALUE ...: each is code 2, and nothing is made
    local wrong
    for wrong in "$@"; do
        measure refused "${wrong%%:*}" "${wrong#*:}"
        [ $? -eq 2 ] || { echo "$wrong: not exit code 2"; return 1; }
    done
    [ ! -e "$scratch/refused" ]
}

stop_when() { # stop_when SIGNAL CONDITION DIR [OPTION ...]: ends a measurement; it must say that it can go on, by code 75
    local signal="$1" condition="$2" name="$3" process tries=0
    shift 3
    python3 "$root/bench/$suite.py" "${tiny[@]}" --out "$scratch/$name" "$@" \
        > "$scratch/$name.out" 2> "$scratch/$name.err" &
    process=$!
    while ! $condition && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill "-$signal" "$process"
    wait "$process"
    [ $? -eq 75 ] && grep -q 'the same command continues' "$scratch/$name.err" || { cat "$scratch/$name.err"; return 1; }
}

has_lines() { # has_lines FILE PATTERN ...
    local file="$1" line
    shift
    for line in "$@"; do
        grep -q -e "$line" "$file" || { echo "no line $line in"; cat "$file"; return 1; }
    done
}

check() { # check NAME: the function of that name must succeed
    if ("$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
