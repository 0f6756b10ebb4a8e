#!/usr/bin/env bash
# Debian packages and the tarball, as someone gets them who has nothing else: installed and unpacked in bare
# roots made with debootstrap, used, and removed without a trace.
#
# Needs root, debootstrap and a mirror; without them the cases are left out, and it says why. The roots are kept
# in build/test-roots, or in the folder that HYBRID_TEST_ROOTS names. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
out="${HYBRID_BUILD:-$root/build}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-packages-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
roots="${HYBRID_TEST_ROOTS:-$out/test-roots}"
passed=0
failed=0
variables=()
eval "variables=(${HYBRID_MAKE_ARGS:-})"

build() {
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory BUILD="$out" \
        PACKAGES="$scratch/packages" "${variables[@]}" "$@"
}
check() { # check NAME: the function of that name must succeed
    if "$1" > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        tail -n 30 "$scratch/log" | sed 's/^/      /'
    fi
}
skip_all() {
    echo "left out: $1"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

# ---- what needs no root --------------------------------------------------------------------------------------

packages_are_made() { build deb && ls -l "$scratch/packages" && [ "$(ls "$scratch"/packages/*.deb | wc -l)" -ge 3 ]; }

the_same_tree_gives_the_same_packages() {
    (cd "$scratch/packages" && sha256sum ./*.deb) > "$scratch/sums" && build deb &&
        (cd "$scratch/packages" && sha256sum -c "$scratch/sums")
}

lintian_finds_no_error() {
    command -v lintian > /dev/null || { echo "no lintian here"; return 0; }
    lintian --allow-root --fail-on error "$scratch"/packages/*.deb
}

command -v dpkg-shlibdeps > /dev/null || skip_all "dpkg-dev is not here"
check packages_are_made
check the_same_tree_gives_the_same_packages
check lintian_finds_no_error

# ---- roots ---------------------------------------------------------------------------------------------------

[ "$(id -u)" -eq 0 ] || skip_all "the rest needs root"
command -v debootstrap > /dev/null || skip_all "debootstrap is not here"
unshare --mount true 2> /dev/null || skip_all "no mounts of its own are allowed here"

fresh_root() { # SUITE: a bare root in $scratch/SUITE, as new
    mkdir -p "$roots"
    if [ ! -e "$roots/$1/etc/debian_version" ]; then
        debootstrap --variant=minbase "$1" "$roots/$1.new" > "$scratch/debootstrap.log" 2>&1 || return 1
        mv "$roots/$1.new" "$roots/$1"
    fi
    rm -rf "${scratch:?}/$1"
    cp -a "$roots/$1" "$scratch/$1"
}
# In the root, with an empty home and nothing of this environment; /proc, by which the loader knows where a
# program lies, is there for as long as the command runs.
inside() { # SUITE COMMAND...
    local suite="$1"
    shift
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' sh "$scratch/$suite" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/someone LC_ALL=C \
        DEBIAN_FRONTEND=noninteractive "$@"
}

# A short training, and what one does with a model then. $2 stands before the programs' names.
use() {
    local suite="$1" at="$2"
    inside "$suite" mkdir -p /home/someone
    inside "$suite" "${at}hybrid-train" --steps 40 --out /home/someone/run || return 1
    inside "$suite" "${at}hybrid-train" --eval-only --model /home/someone/run || return 1
    inside "$suite" "${at}hybrid-chat" --model /home/someone/run --prompt "Mara" --max-tokens 20 || return 1
    inside "$suite" "${at}hybrid-export" /home/someone/run --out /home/someone/exported --dtype bf16 || return 1
    inside "$suite" test -s /home/someone/exported/model.safetensors || return 1
    inside "$suite" "${at}hybrid-train" --selftest --device cpu || return 1
    # What is opened when it is needed, and is not there, is named with its package.
    ! inside "$suite" "${at}hybrid-train" --download some/model > "$scratch/download" 2>&1 &&
        cat "$scratch/download" && grep -q 'apt-get install libcurl4' "$scratch/download"
}

# ---- packages ------------------------------------------------------------------------------------------------

codename="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
files() { inside "$codename" find / -xdev ! -path '/home*' ! -path '/var/*' ! -path '/proc*' ! -path '/tmp*' \
    ! -path '/etc/ld.so.cache' | LC_ALL=C sort; }

packages_are_installed_with_what_they_depend_on() {
    fresh_root "$codename" || { tail "$scratch/debootstrap.log"; return 1; }
    local name needed
    needed="$(for name in "$scratch"/packages/*.deb; do dpkg-deb -f "$name" Depends; done | tr ',' '\n' |
        sed -e 's/[(|].*//' -e 's/ //g' | sort -u | grep -v hybrid)"
    # shellcheck disable=SC2086
    inside "$codename" apt-get -qq update && inside "$codename" apt-get -qq install -y --no-install-recommends $needed || return 1
    mkdir "$scratch/$codename/tmp/packages" && cp "$scratch"/packages/*.deb "$scratch/$codename/tmp/packages" || return 1
    files > "$scratch/before"
    inside "$codename" sh -c 'apt-get -qq install -y --no-install-recommends /tmp/packages/*.deb'
}

installed_packages_train_talk_and_export() { use "$codename" ""; }

manual_pages_and_the_shared_library_are_in_place() {
    inside "$codename" test -s /usr/share/man/man1/hybrid-train.1.gz || {
        # minimal roots leave manual pages out
        grep -r 'path-exclude' "$scratch/$codename/etc/dpkg" || return 1
    }
    inside "$codename" ldconfig -p | grep libhybrid.so.0 && inside "$codename" dpkg --verify hybrid-train libhybrid0 libhybrid-dev
}

removed_packages_leave_nothing() {
    inside "$codename" sh -c 'dpkg --purge $(dpkg-query -W -f "\${Package}\n" "*hybrid*" | grep hybrid)' || return 1
    files > "$scratch/after"
    diff "$scratch/before" "$scratch/after"
}

check packages_are_installed_with_what_they_depend_on
check installed_packages_train_talk_and_export
check manual_pages_and_the_shared_library_are_in_place
check removed_packages_leave_nothing

# ---- the tarball ---------------------------------------------------------------------------------------------

the_tarball_runs_on_a_bare_system_with_an_old_glibc() {
    build dist && fresh_root bullseye || return 1
    (cd "$scratch/packages" && sha256sum -c ./*.sha256) || return 1
    mkdir -p "$scratch/bullseye/opt/any place"
    tar -C "$scratch/bullseye/opt/any place" --strip-components=1 -xzf "$scratch"/packages/*.tar.gz || return 1
    use bullseye "/opt/any place/bin/" || return 1
    inside bullseye "/opt/any place/bin/hybrid-train" --doctor > "$scratch/doctor"
    cat "$scratch/doctor"
    grep OpenBLAS "$scratch/doctor" || return 1
    # Without nvcc there is no backend in it; else it is found, and what is missing is named.
    [ ! -e "$scratch/bullseye/opt/any place/lib/libhybrid_cuda.so" ] ||
        { grep 'backend .*libhybrid_cuda.so' "$scratch/doctor" && grep 'pip install .*nvidia-cublas' "$scratch/doctor"; }
}

# Unpacked and installed beside this system's libraries; on the card, where there is one.
tarball_and_wheel_are_installed_used_and_removed() { "$root/packaging/try.sh" "$scratch/packages"; }

check the_tarball_runs_on_a_bare_system_with_an_old_glibc
check tarball_and_wheel_are_installed_used_and_removed

# ---- the Dockerfile ------------------------------------------------------------------------------------------

# The RUN lines of a stage, each on one line.
steps() {
    sed -e ':a' -e '/\\$/N' -e 's/\\\n *//' -e 'ta' "$root/Dockerfile" |
        awk -v stage="$1" '/^FROM /{ is_it = $NF == stage } is_it && sub(/^RUN /, "")'
}
run_steps() { # STAGE: in the root named like it
    local step
    [ -n "$(steps "$1")" ] || { echo "no steps of $1"; return 1; }
    while IFS= read -r step; do
        echo "+ $step"
        inside "$1" sh -c "$step" < /dev/null || return 1
    done < <(steps "$1")
}

# Without a daemon: the steps of the CPU image's two stages, in roots of the same Debian.
the_steps_of_the_dockerfile_make_a_system_that_trains() {
    local debian
    debian="$(sed -n 's/^ARG DEBIAN=//p' "$root/Dockerfile")"
    fresh_root "$debian" && mv "$scratch/$debian" "$scratch/build-cpu" || return 1
    mkdir "$scratch/build-cpu/source"
    tar -C "$root" --exclude=./build --exclude=./.git --exclude=./runs -cf - . | tar -C "$scratch/build-cpu/source" -xf - || return 1
    run_steps build-cpu || return 1
    fresh_root "$debian" && mv "$scratch/$debian" "$scratch/cpu" && mv "$scratch/build-cpu/packages" "$scratch/cpu/packages" || return 1
    run_steps cpu || return 1
    inside cpu test ! -e /packages || return 1
    chroot --userspec=1000:1000 "$scratch/cpu" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/work \
        sh -c 'cd /work && hybrid-train --steps 20 --out runs/first && hybrid-chat --model runs/first --prompt Mara --max-tokens 9'
}

check the_steps_of_the_dockerfile_make_a_system_that_trains

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
