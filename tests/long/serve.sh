#!/usr/bin/env bash
# hybrid-serve with 200 clients, of which many misbehave, for HYBRID_SERVE_SECONDS (60; a release takes 300);
# with the client of the package openai and with lm-evaluation-harness, which HYBRID_OPENAI_PYTHON (python3) may
# have; and its page in Chromium.
# What is not installed is left out. All traffic is to 127.0.0.1. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bin="${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}"
serve="${HYBRID_SERVE:-$bin/hybrid-serve}"
tests="$root/tests/serve"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-serve-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0
if [ ! -x "$serve" ] || ! command -v python3 > /dev/null; then
    echo "left out: there is no hybrid-serve or no python3"
    echo "0 passed, 0 failed"
    exit 0
fi
"$tests/model.sh" "$bin" "$scratch/tiny" || { echo "0 passed, 1 failed"; exit 1; }

run() { # NAME COMMAND...: adds up its last line
    local name="$1" good bad
    shift
    "$@" > "$scratch/log" 2>&1
    if [ $? -eq 77 ]; then
        echo "$name: left out, the package is missing"
        return
    fi
    echo "$name:"
    cat "$scratch/log"
    good=0 bad=1 # one that crashed
    read -r good bad <<< "$(tail -n 1 "$scratch/log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')"
    passed=$((passed + ${good:-0}))
    failed=$((failed + ${bad:-1}))
}

run "200 clients" python3 "$tests/storm.py" "$serve" "$scratch/tiny" "${HYBRID_SERVE_SECONDS:-60}" 200
run "openai's client" "${HYBRID_OPENAI_PYTHON:-python3}" "$tests/openai_client.py" "$serve" "$scratch/tiny"
if [ -d "${HYBRID_DATA:-$root/../shared/data}/tokenizers/gpt2" ]; then
    run "lm-evaluation-harness" "${HYBRID_OPENAI_PYTHON:-python3}" "$tests/three_ways.py" "$bin" \
        "${HYBRID_DATA:-$root/../shared/data}/tokenizers/gpt2"
else
    echo "lm-evaluation-harness: left out, there is no tokenizer"
fi
chromium="$(command -v chromium chromium-browser google-chrome | head -n 1)"
if [ -n "$chromium" ]; then
    run "the page in a browser" python3 "$tests/browser.py" "$serve" "$scratch/tiny" "$chromium"
else
    echo "the page in a browser: left out, there is no Chromium"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
