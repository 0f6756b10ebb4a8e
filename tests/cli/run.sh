#!/bin/sh
# run.sh [SUITE ...]: end-to-end tests of the program hybrid-train.
#
# The program is $HYBRID_TRAIN, else $HYBRID_BIN/hybrid-train, else build/bin/hybrid-train. Without
# arguments the first half of the suites runs; tests/cli_runs/run.sh has the rest. The last line says how many tests
# passed and failed.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/harness.sh"
if [ ! -x "$program" ]; then
    echo "$program is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi
for suite in ${*:-usage configuration bad_input rows stream models gguf}; do
    run_suite "$suite"
done
finish
