#!/bin/sh
# run.sh [SUITE ...]: end-to-end tests of hybrid-chat and of hybrid-train --eval-only.
#
# The programs are found as tests/cli finds hybrid-train: $HYBRID_BIN, else the build's bin folder.
# Without arguments all suites run. The last line says how many tests passed and failed.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/harness.sh"
json_values() { awk -f "$here/../cli/json.awk" "$1" || fail "$1 is not JSON"; }

train=$program
chat=$(dirname "$train")/hybrid-chat
for needed in "$train" "$chat"; do
    [ -x "$needed" ] && continue
    echo "$needed is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
done

# A small model that has seen some text: the folder "model". Every test runs in a folder of its own, so
# it is made once and copied.
# shellcheck disable=SC2086 # the words of $tiny are arguments
make_model() {
    if [ ! -d "$root/model" ]; then
        "$train" $tiny --steps 30 --quiet --out "$root/model" --sample-tokens 0 > "$root/log" 2>&1 ||
            fail "no model: $(cat "$root/log")"
    fi
    cp -R "$root/model" model
}

run_chat() {
    program=$chat
    run --device cpu --threads 1 "$@"
}

run_chat_with() { # INPUT FLAG ...
    printf '%b' "$1" > ../input
    shift
    find . | sort > "$before"
    timeout -k 5 100 "$chat" --device cpu --threads 1 "$@" > "$stdout" 2> "$stderr" < ../input
    code=$?
    find . | sort > "$after"
}

for suite in ${*:-chat eval_only}; do
    run_suite "$suite"
done
finish
