#!/usr/bin/env bash
# examples/notebook.ipynb, executed by nbconvert in an environment of its own, with a wheel of this tree.
#
# jupyter comes from PyPI; without a network the case is left out, and it says why. HYBRID_WHEEL names a wheel of
# `make dist`; without one it is made for this system, without CUDA. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-notebook-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
leave_out() {
    echo "left out: $1"
    echo "0 passed, 0 failed"
    exit 0
}
fail() {
    tail -n 40 "$scratch/log" | sed 's/^/      /'
    echo "FAIL  $1"
    echo "0 passed, 1 failed"
    exit 1
}

python3 -m venv "$scratch/env" > "$scratch/log" 2>&1 || leave_out "python3 has no venv here"
"$scratch/env/bin/pip" install --quiet --retries 1 nbconvert ipykernel > "$scratch/log" 2>&1 ||
    leave_out "nbconvert could not be installed: $(tail -n 1 "$scratch/log")"
if [ -z "${HYBRID_WHEEL:-}" ]; then
    HYBRID_DIST_HERE=1 env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory dist NVCC= \
        PACKAGES="$scratch/packages" > "$scratch/log" 2>&1 || fail "make dist"
    HYBRID_WHEEL="$(ls "$scratch"/packages/*.whl)"
fi

# The notebook runs in a folder of its own; what the cells wrote is in its copy.
mkdir "$scratch/home"
cp "$root/examples/notebook.ipynb" "$scratch/home"
(cd "$scratch/home" && env HYBRID_WHEEL="$HYBRID_WHEEL" HOME="$scratch/home" PATH="$scratch/env/bin:$PATH" \
    jupyter nbconvert --to notebook --execute --output done.ipynb --ExecutePreprocessor.timeout=600 notebook.ipynb) \
    > "$scratch/log" 2>&1 || fail the_notebook_runs
cp "$scratch/home/done.ipynb" "$scratch/log"
for text in "exit code 75" "held-out" "<iframe srcdoc=" "what fits"; do
    grep -qF -e "$text" "$scratch/home/done.ipynb" || fail "the notebook shows \"$text\""
done
[ -s "$scratch/home/runs/notebook/model/model.safetensors" ] || fail the_notebook_writes_a_model
echo "ok    the_notebook_installs_trains_resumes_and_shows_the_report"
echo "1 passed, 0 failed"
