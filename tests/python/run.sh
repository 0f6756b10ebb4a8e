#!/usr/bin/env bash
# The Python package as a stranger gets it: a wheel is made of the build, installed into a fresh virtual
# environment, and tested from there.
#
#   tests/python/run.sh [MODULE...]      all tests, or those of the modules named (test_torch)
#
# PYTHON names the interpreter (python3). What needs NumPy or torch is tested where that interpreter has them.
# Started by tests/run.sh after a build. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
here="$root/tests/python"
build="${HYBRID_BUILD:-$root/build}"
python="${PYTHON:-python3}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-python-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT

leave_out() {
    echo "left out: $*"
    echo "0 passed, 0 failed"
    exit 0
}
give_up() {
    echo "FAIL  $*"
    echo "0 passed, 1 failed"
    exit 1
}

[ "${VARIANT:-release}" = release ] || leave_out "a library with a sanitizer needs a Python that has it too"
command -v "$python" > /dev/null || leave_out "there is no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || leave_out "$python is older than 3.9"
"$python" -c 'import venv, ensurepip' 2> /dev/null || leave_out "$python has no venv (the package python3-venv)"

# The package is what is installed, never the folder beside us.
unset PYTHONPATH PYTHONHOME HYBRID_LIBRARY
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HYBRID_ROOT="$root" HYBRID_BUILD="$build" PYTHON="$python"

"$python" -c 'import setuptools, wheel' 2> /dev/null ||
    "$python" -m pip download --quiet --no-deps --dest "$scratch/tools" setuptools wheel ||
    leave_out "$python has no setuptools or wheel (python3-setuptools, python3-wheel), and pip cannot download them"
"$root/packaging/wheel.sh" "$scratch/wheels" || give_up "the wheel could not be made"
"$python" -m venv "$scratch/venv" || give_up "no virtual environment could be made"
ours="$scratch/venv/bin/python"
HYBRID_WHEEL="$(ls "$scratch"/wheels/*.whl)"
export HYBRID_WHEEL
"$ours" -m pip install --quiet --no-index "$HYBRID_WHEEL" || give_up "the wheel could not be installed"

# First without anything else: nothing but Python is needed.
cd "$scratch" || exit 1
passed=0 failed=0
run() { # MODULE...
    "$ours" "$here/run_tests.py" "$@" 2>&1 | tee "$scratch/said"
    local counts
    counts=$(grep -aoE '^[0-9]+ passed, [0-9]+ failed' "$scratch/said" | tail -n 1)
    [ -n "$counts" ] || counts="0 passed, 1 failed" # it crashed
    passed=$((passed + ${counts%% *}))
    counts=${counts#*, }
    failed=$((failed + ${counts%% *}))
}
plain=(test_interface test_runs test_generate test_wheel)
others=(test_arrays test_torch test_blocks test_mistakes test_data test_plan_blocks test_optimizer test_cuda test_resume test_examples test_docs)
if [ $# -gt 0 ]; then
    plain=() others=("$@")
fi
[ ${#plain[@]} -eq 0 ] || run "${plain[@]}"

# Then with NumPy and torch, where the interpreter has them: they are found behind the environment's own.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$scratch/theirs"
for module in numpy torch; do
    "$python" -c "import $module" 2> /dev/null || echo "$python has no $module: what needs it is left out"
done
site="$("$ours" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp "$scratch/theirs" "$site/theirs.pth"
run "${others[@]}"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
