#!/usr/bin/env bash
# The programs in examples/ do what they say, with and without prediction, and the guide shows them as
# they are.
#
# Started by tests/run.sh after a build; HYBRID_BUILD is where that build lies. Ends with the line
# "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
examples="${HYBRID_BUILD:-$root/build}/examples"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-examples-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

check() { # check NAME: the function of that name must succeed, in an empty folder
    mkdir "$scratch/$1"
    if (cd "$scratch/$1" && "$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

# The number that follows WORDS on the last line that has them: last_number FILE WORDS
last_number() { sed -n "s/.*$2 \([0-9.]*\).*/\1/p" "$1" | tail -n 1; }
is_below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'; }

logistic_comes_close_to_the_best_possible() { # PREDICTOR
    "$examples/logistic" "$1" > out || return 1
    cat out
    local loss best
    loss="$(last_number out 'held-out loss')" best="$(last_number out 'the best possible')"
    is_below "$loss" "$(awk -v b="$best" 'BEGIN { print b + 0.005 }')"
}
logistic_learns_with_prediction() {
    logistic_comes_close_to_the_best_possible outer && grep -q accepted out
}
logistic_learns_without_prediction() {
    logistic_comes_close_to_the_best_possible none && ! grep -q predicted out
}

convnet_reads_the_digits() { # PREDICTOR
    "$examples/convnet" "$1" > out || return 1
    cat out
    is_below 95 "$(last_number out accuracy)"
}
convnet_learns_with_prediction() { convnet_reads_the_digits outer && grep -q accepted out; }
convnet_learns_without_prediction() { convnet_reads_the_digits none && ! grep -q predicted out; }

an_example_prints_what_is_wrong_and_fails() {
    local name
    for name in logistic convnet; do
        "$examples/$name" nonsense > out 2> err && return 1
        cat err
        grep -q 'predictor = nonsense is not accepted' err || return 1
    done
}

ask_answers_every_question() {
    "$(dirname "$examples")/bin/hybrid-train" --model nano --layers 1 --width 32 --heads 2 --steps 3 \
        --device cpu --quiet --out run --sample-tokens 0 || return 1
    "$examples/ask" run "hello" "and again" > out || return 1
    cat out
    [ "$(grep -c 'tokens)$' out)" = 2 ] && ! "$examples/ask" nowhere "hello" 2> err && grep -q nowhere err
}

watch_looks_at_memory_and_reads_a_run() {
    "$examples/watch" > out || return 1
    cat out
    grep -q 'memory is normal after step 20' out && grep -q 'weights .* live of' out &&
        grep -q '^step 30  loss' out || return 1
    "$(dirname "$examples")/bin/hybrid-train" --model nano --layers 1 --width 32 --heads 2 --steps 3 \
        --device cpu --quiet --out run --sample-tokens 0 || return 1
    "$examples/watch" run > out || return 1
    cat out
    grep -q '^run: nano, .* finished' out && grep -q 'step 3, full, loss' out && [ -s report.html ] &&
        ! "$examples/watch" nowhere 2> err && grep -q nowhere err
}

# Five cannot share twelve micro-batches.
ranks_come_to_the_same_loss_however_many() {
    local count
    for count in 1 2 3; do "$examples/ranks" "$count" > "out$count" || return 1; done
    cat out1 out2 out3
    [ "$(sed 's/^1 //' out1)" = "$(sed 's/^2 //' out2)" ] && [ "$(wc -l < out3)" = 1 ] &&
        is_below "$(last_number out3 'held-out loss')" 0.02 || return 1
    ! "$examples/ranks" 5 2> err && grep -q 'use a multiple of 5' err
}

an_example_writes_nothing() {
    "$examples/convnet" > /dev/null && [ -z "$(ls -A)" ]
}

# A listing in the guide follows a line "<!-- examples/NAME.c -->" and is a piece of that file.
the_guide_shows_the_examples_as_they_are() {
    awk -v root="$root" '
        function read_all(path,   text, line) {
            text = ""
            while ((getline line < path) > 0) text = text line "\n"
            close(path)
            return text
        }
        /^<!-- examples\/.*\.c -->$/ { file = $2; next }
        /^```c$/ && file { inside = 1; block = ""; next }
        /^```$/ && inside {
            inside = 0
            listings++
            if (!index(read_all(root "/" file), block)) {
                print "docs/library.md: a listing is not what " file " says:"
                printf "%s", block
                wrong = 1
            }
            file = ""
            next
        }
        inside { block = block $0 "\n" }
        END { exit wrong || listings < 6 }
    ' "$root/docs/library.md"
}

metrics_are_followed_by_a_page_of_python() {
    command -v python3 > /dev/null || return 0
    "$(dirname "$examples")/bin/hybrid-train" --model nano --layers 1 --width 32 --heads 2 --steps 3 \
        --device cpu --quiet --out run --sample-tokens 0 || return 1
    timeout 60 python3 "$root/examples/follow_metrics.py" run --pause 0.2 > out || return 1
    cat out
    [ "$(wc -l < out)" = 3 ] && grep -q "^3 {.*'loss': " out
}

for name in logistic_learns_with_prediction logistic_learns_without_prediction \
    convnet_learns_with_prediction convnet_learns_without_prediction \
    an_example_prints_what_is_wrong_and_fails ask_answers_every_question metrics_are_followed_by_a_page_of_python \
    watch_looks_at_memory_and_reads_a_run ranks_come_to_the_same_loss_however_many an_example_writes_nothing \
    the_guide_shows_the_examples_as_they_are; do
    check "$name"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
