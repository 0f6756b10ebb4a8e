#!/bin/sh
# run.sh: end-to-end tests of `hybrid-train --plan`: for cards that are not here, for budgets, for all
# models at once. The program is found as in tests/cli/run.sh, whose harness this uses.
suites=$(cd "$(dirname "$0")" && pwd)
here=$(cd "$suites/../cli" && pwd)
. "$here/harness.sh"
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi
run_suite ../plan/plan
finish
