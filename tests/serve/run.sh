#!/usr/bin/env bash
# hybrid-serve over HTTP: answers, streams, errors, limits, and how it ends. With curl and the standard
# library of Python; all traffic is to 127.0.0.1.
#
# The programs are in $HYBRID_BIN, else in the build's bin folder; HYBRID_SERVE names another server. Where
# libmicrohttpd was missing there is no hybrid-serve, and the suite is left out. Ends with the line
# "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
bin="${HYBRID_BIN:-${HYBRID_BUILD:-$here/../../build}/bin}"
serve="${HYBRID_SERVE:-$bin/hybrid-serve}"
if [ ! -x "$serve" ] || ! command -v python3 > /dev/null || ! command -v curl > /dev/null; then
    echo "left out: there is no hybrid-serve, no python3 or no curl"
    echo "0 passed, 0 failed"
    exit 0
fi
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-serve-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT

"$here/model.sh" "$bin" "$scratch/tiny" || { echo "0 passed, 1 failed"; exit 1; }
python3 "$here/cases.py" "$serve" "$scratch/tiny"
