# harness.sh: what the suites of this folder share. Sourced by run.sh.
#
# A test is a function test_NAME; it runs in a subshell, in an empty folder of its own, and passes
# when nothing calls `fail`. `run` starts the program and keeps its exit code in $code, its output
# in $stdout and $stderr (files outside the folder), and what the folder held before and after.

program=${HYBRID_TRAIN:-${HYBRID_BIN:-${HYBRID_BUILD:-$here/../../build}/bin}/hybrid-train}
case $program in
/*) ;;
*) program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program") ;;
esac

root=$(mktemp -d "${TMPDIR:-/tmp}/hybrid-cli-XXXXXX")
trap 'rm -rf "$root"' EXIT
exec 3>&1
passed=0
failed=0

# What surrounds the tests must not colour them.
unset NO_COLOR COLUMNS LANG LC_CTYPE
export LC_ALL=C TERM=xterm
escape=$(printf '\033')
return_mark=$(printf '\r')
tab=$(printf '\t')

fail() { # on the suite's own output, also from inside a substitution
    echo "    $*" >&3
    exit 1
}

skip() {
    echo "  skipped: $*"
    exit 0
}

# The run of every test that needs one: a model of one small block on a short built-in text.
tiny="--model nano --layers 1 --width 32 --heads 2 --seq-len 32 --batch-size 2 --steps 6
      --grad-accum-steps 1 --builtin-bytes 60000 --sample-tokens 20 --threads 1 --device cpu"

run() { # with $input as standard input, where a test sets it
    find . | sort > "$before"
    timeout -k 5 100 "$program" "$@" > "$stdout" 2> "$stderr" < "${input:-/dev/null}"
    code=$?
    find . | sort > "$after"
}

bin=$(dirname "$program")
run_other() { # PROGRAM further arguments: another program beside it
    name=$1
    shift
    find . | sort > "$before"
    "$bin/$name" "$@" > "$stdout" 2> "$stderr" < /dev/null
    code=$?
    find . | sort > "$after"
}

run_tiny() {
    # shellcheck disable=SC2086 # the words of $tiny are arguments
    run $tiny "$@"
}

expect_code() {
    [ "$code" = "$1" ] || fail "exit code $code, expected $1: $(tail -n 3 "$stderr")"
}

expect_out() {
    grep -qF -e "$1" "$stdout" || fail "standard output lacks \"$1\": $(head -n 20 "$stdout")"
}
expect_err() { grep -qF -e "$1" "$stderr" || fail "standard error lacks \"$1\": $(cat "$stderr")"; }
expect_empty() { [ ! -s "$1" ] || fail "expected nothing, got: $(head -n 5 "$1")"; }
expect_file() { [ -e "$1" ] || fail "$1 is missing"; }
expect_same() { [ "$1" = "$2" ] || fail "$3: \"$1\" is not \"$2\""; }
expect_nothing_written() {
    cmp -s "$before" "$after" || fail "written: $(diff "$before" "$after")"
}

# Wrong input: exit code 2, one line of error that holds each fragment, no output, nothing written.
expect_refusal() {
    expect_code 2
    expect_same "$(grep -c '^hybrid-train: error: ' "$stderr")" 1 "lines of error"
    expect_same "$(grep -vc '^hybrid-train: warning: ' "$stderr")" 1 "lines on standard error"
    for fragment in "$@"; do expect_err "$fragment"; done
    expect_nothing_written
}

json_values() { awk -f "$here/json.awk" "$1" || fail "$1 is not JSON"; }
json_lines() { awk -v lines=1 -f "$here/json.awk" "$1" || fail "$1 is not JSON line by line"; }

# expect_keys VALUES PREFIX KEY ...: "PREFIX.KEY" is among the values for each key.
expect_keys() {
    values=$1 prefix=$2
    shift 2
    for key in "$@"; do
        printf '%s\n' "$values" | grep -q "^$prefix\.$key$tab" || fail "no key $prefix.$key"
    done
}

# How many lines of a run's metrics are steps; the others tell of what happened between them.
steps_of() { grep -vc '^{"event":' "$1/metrics.jsonl"; }

# "step loss" of every step of a run, as written.
losses() {
    awk '/^{"event"/ { next }
         { match($0, /"step":[0-9]+/); s = substr($0, RSTART, RLENGTH)
           match($0, /"loss":[^,}]+/); print s, substr($0, RSTART, RLENGTH) }' "$1/metrics.jsonl"
}

run_test() {
    name=$1
    mkdir -p "$root/$name/folder"
    before=$root/$name/before after=$root/$name/after
    stdout=$root/$name/stdout stderr=$root/$name/stderr
    if (cd "$root/$name/folder" && "test_$name"); then
        passed=$((passed + 1))
        echo "  ok      $name"
    else
        failed=$((failed + 1))
        echo "  FAILED  $name"
    fi
    rm -rf "${root:?}/$name"
}

run_suite() {
    echo "$1"
    # shellcheck disable=SC1090
    . "$here/$1.sh"
    names=$(sed -n 's/^test_\([a-z0-9_]*\)() {.*/\1/p' "$here/$1.sh")
    for name in $names; do run_test "$name"; done
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
