#!/bin/sh
# run.sh [SUITE ...]: end-to-end tests of hybrid-generate.
#
# The programs are found as tests/cli finds hybrid-train: $HYBRID_BIN, else the build's bin folder.
# Without arguments all suites run. The last line says how many tests passed and failed.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/harness.sh"
json_lines() { awk -v lines=1 -f "$here/../cli/json.awk" "$1" || fail "$1 is not JSON line by line"; }

train=$program
chat=$(dirname "$train")/hybrid-chat
generate=$(dirname "$train")/hybrid-generate
for needed in "$train" "$chat" "$generate"; do
    [ -x "$needed" ] && continue
    echo "$needed is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
done

# A small model that has seen some text: the folder "model". Every test runs in a folder of its own, so
# it is made once and copied. Its tokens are bytes, so an answer has as many bytes as tokens.
# shellcheck disable=SC2086 # the words of $tiny are arguments
make_model() {
    if [ ! -d "$root/model" ]; then
        "$train" $tiny --steps 60 --quiet --out "$root/model" --sample-tokens 0 > "$root/log" 2>&1 ||
            fail "no model: $(cat "$root/log")"
    fi
    cp -R "$root/model" model
}

# The model's folder with a template that names the roles.
make_talker() {
    make_model
    cat > model/model/chat_template.jinja << 'END'
{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>
END
}

run_generate() {
    program=$generate
    run --device cpu --threads 1 "$@"
}

# Answers prompts.jsonl; the answers are in answers.jsonl.
answer() {
    run_generate --model model --data prompts.jsonl --out answers.jsonl "$@"
}

make_prompts() { # COUNT
    i=0
    while [ $i -lt "$1" ]; do
        echo '{"id": '$i', "prompt": "Nina '$i' "}'
        i=$((i + 1))
    done > prompts.jsonl
}

value() { # PATH [FILE]: of the answers, as in "3.text"
    json_lines "${2:-answers.jsonl}" | sed -n "s/^$1$tab//p"
}

expect_generate_error() {
    expect_code 2
    expect_same "$(grep -c '^hybrid-generate: error: ' "$stderr")" 1 "lines of error"
    for fragment in "$@"; do expect_err "$fragment"; done
}

for suite in ${*:-rows files usage}; do
    run_suite "$suite"
done
finish
