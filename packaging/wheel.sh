#!/usr/bin/env bash
# Makes a wheel of the Python package with the library of a build: `make wheel` and `make dist` call it.
#
#   packaging/wheel.sh OUT
#
# PYTHON names the interpreter (python3), HYBRID_BUILD the build folder (build/). The setuptools and wheel of that
# Python are used, so no network is needed; without them, pip downloads them for this build. Exit code 3: that Python
# lacks pip, or lacks the others and they could not be downloaded.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
installed=(--no-build-isolation)
"$python" -c 'import setuptools, sys, wheel; sys.exit(int(setuptools.__version__.split(".")[0]) < 64)' 2> /dev/null ||
    installed=()
lacks() {
    echo "no wheel: $python needs pip, setuptools 64 or newer, and wheel (packages python3-pip, python3-setuptools," \
        "python3-wheel), or pip and a network" >&2
    exit 3
}
"$python" -m pip --version > /dev/null 2>&1 || lacks
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps ${installed[@]+"${installed[@]}"} \
    --wheel-dir "$1" "$root/python" || {
    [ ${#installed[@]} -gt 0 ] || lacks
    exit 1
}
ls -sh "$1"/hybrid_train-*.whl
