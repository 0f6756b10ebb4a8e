#!/bin/sh
# run.sh: the other half of the tests of hybrid-train in tests/cli, so that each half ends in time on a slow machine.
exec "$(dirname "$0")/../cli/run.sh" adapters moved device ranks results terminal signals hostile
