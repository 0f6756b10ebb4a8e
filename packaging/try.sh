#!/usr/bin/env bash
# Tries the packages of `make dist` as a user gets them: installs, runs and removes the tarball and the wheel.
#
#   packaging/try.sh FOLDER
#
# FOLDER has hybrid-train-*-linux-*.tar.gz, hybrid_train-*.whl, or both; nothing else of the sources is needed.
# nvcc is not in PATH, and LD_LIBRARY_PATH and CUDA_HOME are not set. With a card the packages also train on it.
# As root, cuBLAS is tried in each way: in the system, as pip's package, missing. Prints a table and the line
# "N passed, N failed".
set -uo pipefail

folder="$(cd "${1:?usage: packaging/try.sh FOLDER}" && pwd)"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-try-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/home" "$scratch/empty"
passed=0
failed=0
bin="" lib="" site="" has_card=""
if compgen -G '/dev/nvidia[0-9]*' > /dev/null || [ -e /dev/dxg ]; then has_card=1; fi

row() { printf '%-8s  %-40s  %-8s  %s\n' "$@"; }
row package what result detail
left_out() { row "$package" "$1" "left out" "$2"; }

# try WHAT COMMAND...: the command must succeed; its last line on standard output is the detail.
try() {
    local what="$1"
    shift
    if "$@" > "$scratch/out" 2> "$scratch/err"; then
        passed=$((passed + 1))
        row "$package" "$what" ok "$(tail -n 1 "$scratch/out" | cut -c1-120)"
    else
        failed=$((failed + 1))
        row "$package" "$what" FAILED ""
        tail -n 12 "$scratch/out" "$scratch/err" | sed 's/^/    /'
    fi
}

# ---- the environment of a user -----------------------------------------------------------------------

hide="" # set: a command before a program, for which the CUDA toolkits of this system are empty folders
cat > "$scratch/hide" << 'END'
#!/bin/sh
exec unshare --mount sh -c 'empty="$1"; shift
    for folder in /usr/local/cuda* /opt/cuda; do
        [ ! -d "$folder" ] || [ -L "$folder" ] || mount --bind "$empty" "$folder" || exit 1
    done
    exec "$@"' sh "$(dirname "$0")/empty" "$@"
END
chmod +x "$scratch/hide"

loader_knows() { { ldconfig -p 2> /dev/null || /sbin/ldconfig -p; } | sed -n "s/.*$1[^ ]* .*=> //p" | sort -u; }
# Some containers have the driver in a folder that only LD_LIBRARY_PATH names.
driver=""
if [ -z "$(loader_knows 'libcuda\.so\.1')" ]; then
    places="${LD_LIBRARY_PATH:-}"
    for place in ${places//:/ } /usr/local/nvidia/lib64; do
        if [ -e "$place/libcuda.so.1" ] && ! ls "$place"/libcublasLt* > /dev/null 2>&1; then driver="$place"; fi
    done
fi

environment=() # more variables
# shellcheck disable=SC2086 # $hide is a command or nothing
clean() {
    env -i HOME="$scratch/home" PATH=/usr/bin:/bin LC_ALL=C TERM=dumb ${driver:+LD_LIBRARY_PATH="$driver"} \
        ${environment[@]+"${environment[@]}"} $hide "$@"
}
toolkit_cublas() { ls /usr/local/cuda*/lib64/libcublasLt.so.[0-9]* /opt/cuda/lib64/libcublasLt.so.[0-9]* 2> /dev/null; }
# Copies that the packages of this Python have.
pip_cublas() {
    python3 -c 'import glob, sys
for p in sys.path:
    for file in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.[0-9]*"): print(file)' 2> /dev/null
}
found_cublas() { loader_knows 'libcublasLt\.so\.'; toolkit_cublas; pip_cublas; }
can_hide() { # no other copy is left
    [ "$(id -u)" -eq 0 ] && "$scratch/hide" true 2> /dev/null || return 1
    ! { loader_knows 'libcublasLt\.so\.'; toolkit_cublas; } | while read -r file; do
        "$scratch/hide" test ! -e "$file" || echo "$file"
    done | grep -q .
}

# ---- what is run; $bin has the programs, $lib the libraries -------------------------------------------

has_no_nvcc() { ! clean sh -c 'command -v nvcc' && echo "not in PATH"; }

trains() { # DEVICE
    local run="$scratch/home/run-$1"
    rm -rf "$run"
    clean "$bin/hybrid-train" --device "$1" --steps 40 --out "$run" > "$scratch/train" 2>&1 ||
        { cat "$scratch/train"; return 1; }
    clean "$bin/hybrid-train" --device "$1" --eval-only --model "$run" || return 1
    clean "$bin/hybrid-chat" --device cpu --model "$run" --prompt Mara --max-tokens 9 > /dev/null || return 1
    sed -n 's/^device  *//p' "$scratch/train"
}

doctor_says() { # FIELD TEXT
    clean "$bin/hybrid-train" --doctor > "$scratch/doctor" 2>&1 || { cat "$scratch/doctor"; return 1; }
    cat "$scratch/doctor"
    sed -n "s/^  \($1\)  *//p" "$scratch/doctor" | grep -F -e "$2"
}

is_refused_without_cublas() {
    ! clean "$bin/hybrid-train" --device cuda --steps 2 --out "$scratch/home/none" 2> "$scratch/refused" || return 1
    grep -F 'pip install' "$scratch/refused"
}

# Needs the network; without it, a link to the system's copy stands where pip's file is.
has_pip_cublas() {
    local site="$1" file major
    file="$(found_cublas | tail -n 1)"
    major="$(sed 's/.*libcublasLt\.so\.\([0-9]*\).*/\1/' <<< "$file")"
    if [ -x "$bin/pip" ] && [ -n "${HYBRID_TRY_PIP:-}" ]; then
        "$bin/pip" install --quiet "nvidia-cublas==$major.*" && echo "installed by pip" && return
    fi
    mkdir -p "$site/nvidia/cu$major/lib" && cp -L "$file" "$site/nvidia/cu$major/lib/libcublasLt.so.$major" &&
        echo "a copy of $file in nvidia/cu$major/lib"
}

use() { # the tries of a package that is installed
    try "runs without nvcc" has_no_nvcc
    try "trains on the CPU, evaluates, chats" trains cpu
    if [ ! -e "$lib/libhybrid_cuda.so" ]; then
        left_out "CUDA" "this package was built without nvcc"
        return
    fi
    try "--doctor names the CUDA backend" doctor_says backend libhybrid_cuda.so
    if [ -n "$has_card" ]; then
        try "--doctor names the card" doctor_says GPU GiB
        try "--doctor names cuBLAS" doctor_says cuBLAS libcublasLt
        try "trains on the card, evaluates, chats" trains cuda
    else
        try "--doctor says that there is no driver" doctor_says CUDA "no NVIDIA driver"
        left_out "trains on the card" "no card here"
    fi
}

# Without the system's cuBLAS: $1 is the folder for Python packages, if there is one.
use_other_cublas() {
    [ -e "$lib/libhybrid_cuda.so" ] || return
    if [ -z "$(found_cublas)" ] || ! can_hide; then
        left_out "cuBLAS from pip, or none" "needs root, and a cuBLAS in /usr/local/cuda or /opt/cuda"
        return
    fi
    hide="$scratch/hide"
    try "no cuBLAS: --doctor names the package" doctor_says "cuBLAS\|CUDA" "pip install"
    if [ -n "$(pip_cublas)" ]; then
        environment=(VIRTUAL_ENV="$(python3 -c 'import sys; print(sys.prefix)')")
        try "--doctor names cuBLAS of VIRTUAL_ENV" doctor_says cuBLAS /nvidia/
        if [ -n "$has_card" ]; then try "trains on the card with that cuBLAS" trains cuda; fi
        environment=()
    fi
    if [ -n "$has_card" ]; then try "no cuBLAS: a run on the card is refused" is_refused_without_cublas; fi
    if [ -n "${1:-}" ]; then
        hide=""
        try "cuBLAS as pip's package" has_pip_cublas "$1"
        hide="$scratch/hide"
        try "--doctor names pip's cuBLAS" doctor_says cuBLAS "$1/nvidia/"
        if [ -n "$has_card" ]; then try "trains on the card with pip's cuBLAS" trains cuda; fi
    fi
    hide=""
}

# ---- the tarball ----------------------------------------------------------------------------------------

unpack() {
    mkdir "$scratch/any place" && tar -C "$scratch/any place" --strip-components=1 -xzf "$tarball" &&
        bin="$scratch/any place/bin" lib="$scratch/any place/lib" && clean "$bin/hybrid-train" --version &&
        echo "$(du -h "$tarball" | cut -f1), $(du -sh "$scratch/any place" | cut -f1) unpacked"
}
leaves_nothing() { # caches are in the user's home
    rm -rf "$scratch/any place" "$scratch/env" && ! compgen -G "$scratch/home/.[a-z]*/hybrid*/*.so" && echo "no file left but runs and caches"
}

package=tarball
tarball="$(ls "$folder"/hybrid-train-*-linux-"$(uname -m)".tar.gz 2> /dev/null | tail -n 1)"
if [ -n "$tarball" ]; then
    try "unpacks anywhere" unpack
    use
    use_other_cublas
    try "is removed" leaves_nothing
else
    left_out "unpacks" "no tarball in $folder"
fi

# ---- the wheel ----------------------------------------------------------------------------------------------

# In an empty environment; without venv or pip the wheel is unpacked, as pip would do it.
install_wheel() {
    local how="pip"
    if python3 -m venv "$scratch/env" && "$scratch/env/bin/python" -m pip --version; then
        "$scratch/env/bin/python" -m pip install --quiet --no-index "$wheel" || return 1
        bin="$scratch/env/bin"
        site="$(echo "$scratch"/env/lib/python3*/site-packages)"
    else
        site="$scratch/env/lib/python3/site-packages" how="unpacked: no pip here"
        mkdir -p "$site" && python3 -m zipfile -e "$wheel" "$site" && chmod +x "$site"/hybrid_train/bin/* || return 1
        bin="$site/hybrid_train/bin"
    fi
    lib="$site/hybrid_train/lib"
    clean "$bin/hybrid-train" --version && echo "$(du -h "$wheel" | cut -f1), $(du -sh "$site/hybrid_train" | cut -f1) installed ($how)"
}
imports() {
    clean env PYTHONPATH="$site" "$(command -v python3)" -c 'import hybrid_train as h
print(h.__version__, h.Config(model="gpt2-124m")["layers"], "layers")'
}
uninstall() {
    if [ -x "$scratch/env/bin/pip" ]; then
        "$scratch/env/bin/pip" uninstall --quiet --yes hybrid-train || return 1
        [ ! -e "$bin/hybrid-train" ] && [ ! -e "$site/hybrid_train/lib" ] || return 1
    fi
    leaves_nothing
}

package=wheel
wheel="$(ls "$folder"/hybrid_train-*_"$(uname -m)".whl 2> /dev/null | tail -n 1)"
if [ -z "$wheel" ]; then
    left_out "installs" "no wheel in $folder"
elif ! command -v python3 > /dev/null; then
    left_out "installs" "no python3 here"
else
    try "installs into an empty environment" install_wheel
    try "is imported" imports
    use
    use_other_cublas "$site"
    try "is removed" uninstall
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
