#!/bin/sh
# run.sh: end-to-end tests of runs whose state lives on the host and on disk: killed, stopped, moved, and
# with folders and budgets that will not do. The program is found as in tests/cli/run.sh, whose harness
# this uses.
suites=$(cd "$(dirname "$0")" && pwd)
here=$(cd "$suites/../cli" && pwd)
. "$here/harness.sh"
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi
run_suite ../memory/memory
finish
