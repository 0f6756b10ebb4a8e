#!/usr/bin/env bash
# Installs the packages that building needs; silent and fast if nothing is missing.
#
#   scripts/install-deps.sh            for `make` and `make run`
#   scripts/install-deps.sh --tests    also for `make test`, and Open MPI if it is available
#
# It checks for the compiler, headers and libraries themselves, so it does not matter how they were
# installed. Missing packages are installed with apt-get, as root or with sudo without a password;
# otherwise the command to run is printed and the exit code is 1.
set -euo pipefail

wants_tests=no
case "${1:-}" in
"") ;;
--tests) wants_tests=yes ;;
*)
    echo "usage: scripts/install-deps.sh [--tests]" >&2
    exit 2
    ;;
esac

has_command() { command -v "$1" > /dev/null 2>&1; }
has_header() { printf '#include <%s>\n' "$1" | ${CC:-gcc} ${CPPFLAGS:-} -E -x c - > /dev/null 2>&1; }
has_library() {
    local cache
    cache="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2> /dev/null || true)"
    [[ "$cache" == *"$1"* ]]
}

missing=()
has_command ${CC:-gcc} || missing+=(gcc)
has_command make || missing+=(make)
has_command pkg-config || missing+=(pkg-config)
# A compiler needs the headers of libc; minimal systems have gcc without them.
has_header stdio.h || missing+=(libc6-dev)
has_header libconfig.h || missing+=(libconfig-dev)
has_header yaml.h || missing+=(libyaml-dev)
has_library libopenblas || missing+=(libopenblas0)
if [ "$wants_tests" = yes ]; then
    has_header check.h || missing+=(check)
    has_library libcurl || missing+=(libcurl4)
fi
# Optional: without PCRE2, tokenizers with a split pattern that is not built in are rejected; without
# libmicrohttpd, hybrid-serve is not built.
has_pcre2() {
    printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' |
        ${CC:-gcc} ${CPPFLAGS:-} -E -x c - > /dev/null 2>&1
}
optional=()
has_pcre2 || optional+=(libpcre2-dev)
has_header microhttpd.h || optional+=(libmicrohttpd-dev)
if [ ${#missing[@]} -gt 0 ]; then
    missing+=(${optional[@]+"${optional[@]}"})
elif [ ${#optional[@]} -gt 0 ] && has_command apt-get && [ "$(id -u)" -eq 0 ]; then
    DEBIAN_FRONTEND=noninteractive timeout 60 \
        apt-get -qq install -y --no-install-recommends "${optional[@]}" > /dev/null 2>&1 || true
fi

# Open MPI is optional for tests: without it, tests with mpirun are skipped. After a failed attempt
# this is printed and not tried again for a day, because it takes time.
has_mpi() { has_command mpicc && has_command mpirun; }
mpi_tried="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/hybrid-train/no-mpi"
try_mpi() {
    if [ "$wants_tests" = no ] || has_mpi; then return 0; fi
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if has_command apt-get && [ -z "$(find "$mpi_tried" -mtime -1 2> /dev/null)" ]; then
        echo "Installing openmpi-bin libopenmpi-dev with apt-get, for tests of several processes"
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y \
            --no-install-recommends openmpi-bin libopenmpi-dev > /dev/null 2>&1 ||
            { mkdir -p "${mpi_tried%/*}" && : > "$mpi_tried"; } 2> /dev/null || true
    fi
    has_mpi || echo "Open MPI is missing (openmpi-bin, libopenmpi-dev): tests with mpirun are skipped"
}
if [ ${#missing[@]} -eq 0 ]; then
    try_mpi
    exit 0
fi

if ! has_command apt-get; then
    echo "Missing: ${missing[*]} (Debian package names). Please install them with this system's" >&2
    echo "package manager; libconfig, libyaml, libmicrohttpd, OpenBLAS, Check and curl are the libraries." >&2
    exit 1
fi

run_as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if has_command sudo && sudo -n true 2> /dev/null; then
        run_as_root=(sudo)
    else
        echo "Missing packages. Please run this line, then try again:" >&2
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
fi

echo "Installing ${missing[*]} with apt-get"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
apt_get() {
    "${run_as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=120 "$@" > "$log" 2>&1
}
# Old package lists may be good enough, so only the result of the install counts.
apt_get update || echo "apt-get update failed; trying with the old package lists" >&2
if ! apt_get install -y --no-install-recommends "${missing[@]}"; then
    cat "$log" >&2
    echo "apt-get could not install ${missing[*]}" >&2
    exit 1
fi
try_mpi
