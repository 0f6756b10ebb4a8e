#!/usr/bin/env bash
# Makes sure that what building needs is there; silent and quick when it is.
#
#   scripts/install-deps.sh            what `make` and `make run` need
#   scripts/install-deps.sh --tests    also what `make test` needs, and Open MPI where it can be had
#
# Things are looked for themselves (a compiler, a header, a library), so that it does not matter how
# they came to the machine. What is missing is installed with apt-get as root or with sudo that asks
# no password; otherwise the one line to run is printed and the exit code is 1.
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
# Without libc's own headers a compiler is of no use; minimal systems have gcc but not them.
has_header stdio.h || missing+=(libc6-dev)
has_header libconfig.h || missing+=(libconfig-dev)
has_library libopenblas || missing+=(libopenblas0)
if [ "$wants_tests" = yes ]; then
    has_header check.h || missing+=(check)
    has_library libcurl || missing+=(libcurl4)
fi
# PCRE2 is wanted but not needed: without it the tokenizers whose split pattern is not built in are
# refused by name. What cannot be had is done without.
has_pcre2() {
    printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' |
        ${CC:-gcc} ${CPPFLAGS:-} -E -x c - > /dev/null 2>&1
}
if ! has_pcre2; then
    if [ ${#missing[@]} -gt 0 ]; then
        missing+=(libpcre2-dev)
    elif has_command apt-get && [ "$(id -u)" -eq 0 ]; then
        DEBIAN_FRONTEND=noninteractive timeout 60 \
            apt-get -qq install -y --no-install-recommends libpcre2-dev > /dev/null 2>&1 || true
    fi
fi

# Open MPI is wanted by tests but not needed: ranks under mpirun are passed over without it. Once it has been
# tried in vain this is said and not tried again for a day, because trying takes time.
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
    has_mpi || echo "Open MPI is not here (openmpi-bin, libopenmpi-dev): tests with mpirun are skipped"
}
if [ ${#missing[@]} -eq 0 ]; then
    try_mpi
    exit 0
fi

if ! has_command apt-get; then
    echo "Missing: ${missing[*]} (names as in Debian). Please install them with this system's" >&2
    echo "package manager; libconfig, OpenBLAS, Check and curl are the libraries." >&2
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
# Package lists that cannot be refreshed may still be good enough, so only the install decides.
apt_get update || echo "apt-get update failed; trying with the package lists that are here" >&2
if ! apt_get install -y --no-install-recommends "${missing[@]}"; then
    cat "$log" >&2
    echo "apt-get could not install ${missing[*]}" >&2
    exit 1
fi
try_mpi
