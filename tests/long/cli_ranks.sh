#!/bin/sh
# cli_ranks.sh: the program with several ranks (tests/cli/ranks.sh), with what make test leaves out.
HYBRID_TEST_LONG=1
export HYBRID_TEST_LONG
exec sh "$(dirname "$0")/../cli/run.sh" ranks
