#!/usr/bin/env bash
# Adapters between our programs and PEFT itself: what one trains, writes or merges, the other computes the same with.
#
# Needs Python with torch, transformers and peft ($HYBRID_PYTHON, else python3); without them the suite is skipped.
# The programs are in $HYBRID_BIN. Ends with the line "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export HYBRID_BIN="${HYBRID_BIN:-${HYBRID_BUILD:-$here/../../build}/bin}"
python="${HYBRID_PYTHON:-python3}"

# Without importing them, which takes seconds.
finds='import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))'
if ! "$python" -c "$finds" torch transformers peft 2> /dev/null; then
    echo "skipped: $python has no package peft, or none of those it needs"
    echo "0 passed, 0 failed"
    exit 0
fi
for program in hybrid-train hybrid-export; do
    if [ ! -x "$HYBRID_BIN/$program" ]; then
        echo "$HYBRID_BIN/$program is missing: build it first"
        echo "0 passed, 1 failed"
        exit 1
    fi
done

scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-peft-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
cd "$scratch" && "$python" "$here/compare.py" "$here/../golden"
