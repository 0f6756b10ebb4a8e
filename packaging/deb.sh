#!/usr/bin/env bash
# Makes Debian packages of an installation: `make deb` calls it.
#
#   packaging/deb.sh STAGE OUT VERSION [CUDA-VERSION]
#
# STAGE is the result of `make install PREFIX=/usr DESTDIR=STAGE`, with libraries in the system's
# folder for this architecture and the CUDA backend, if any, in usr/lib/hybrid-train. OUT receives
# the packages:
#
#   hybrid-train        programs, manual pages, completion, configuration files
#   hybrid-train-cuda   the CUDA backend, if it was built
#   libhybrid0          the shared library
#   libhybrid-dev       headers, static library, pkg-config file
#
# The same tree and compiler give the same bytes: times are SOURCE_DATE_EPOCH, or the time of the
# newest commit. DEBFULLNAME and DEBEMAIL name the maintainer.
set -euo pipefail
umask 022

stage="$(cd "$1" && pwd)"
mkdir -p "$2"
out="$(cd "$2" && pwd)"
version="$3"
cuda="${4:-}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v "$tool" > /dev/null || {
        echo "$tool is missing: sudo apt-get install dpkg-dev" >&2
        exit 1
    }
done
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2> /dev/null ||
    stat -c %Y "$root/CHANGELOG.md")}"
architecture="$(dpkg-architecture -qDEB_HOST_ARCH)"
libraries="usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)"
maintainer="${DEBFULLNAME:-the hybrid-train authors} <${DEBEMAIL:-hybrid-train@example.com}>"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# ---- which file goes into which package ---------------------------------------------------------

# move PACKAGE PATTERN...: moves the matching files of the stage; every pattern must match.
move() {
    local package="$1" pattern path
    shift
    for pattern in "$@"; do
        compgen -G "$stage/$pattern" > /dev/null || {
            echo "deb.sh: $stage has no $pattern" >&2
            exit 1
        }
        for path in "$stage"/$pattern; do
            mkdir -p "$work/$package/$(dirname "${path#"$stage"/}")"
            mv "$path" "$work/$package/${path#"$stage"/}"
        done
    done
}

move libhybrid-dev usr/include "$libraries/libhybrid.a" "$libraries/libhybrid.so" "$libraries/pkgconfig"
move libhybrid0 "$libraries/libhybrid.so.*"
[ -z "$cuda" ] || move hybrid-train-cuda usr/lib/hybrid-train/libhybrid_cuda.so
move hybrid-train usr/bin usr/share
left="$(find "$stage" ! -type d)"
[ -z "$left" ] || { echo "deb.sh: no package includes $left" >&2; exit 1; }

# Debian's zsh searches here for functions of packages.
mv "$work/hybrid-train/usr/share/zsh/site-functions" "$work/hybrid-train/usr/share/zsh/vendor-completions"

# ---- control files --------------------------------------------------------------------------

about_hybrid_train="trains transformer language models on one ordinary machine
 Trains and fine-tunes language models of the GPT-2, Llama, Mistral and Qwen
 families from the command line, all of their parameters, on a CPU or on one
 NVIDIA GPU. Weights, gradients, optimizer state and activations are moved
 between the card, host memory and disk, so that models larger than the card
 can be trained. Programs to watch runs, to talk to a model and to export it
 are included."
about_hybrid_train_cuda="trains transformer language models: CUDA backend
 What hybrid-train and libhybrid0 open to compute on an NVIDIA GPU of compute
 capability 7.5 or newer. It needs NVIDIA's driver and cuBLAS, which are not
 part of Debian."
about_libhybrid0="trains transformer language models: shared library
 The library behind hybrid-train: configuration, training, evaluation and
 decoding from C."
about_libhybrid_dev="trains transformer language models: development files
 Headers, static library and pkg-config file of the library behind
 hybrid-train."

# fields PACKAGE DEPENDS: prints section and relations; DEPENDS are the packages of linked
# libraries.
fields() {
    local opened="libopenblas0, zlib1g, libzstd1, libcurl4, ca-certificates"
    case "$1" in
    hybrid-train) printf 'Section: science\nDepends: %s\nRecommends: %s, libedit2\nSuggests: hybrid-train-cuda\n' "$2" "$opened" ;;
    libhybrid0) printf 'Section: libs\nMulti-Arch: same\nDepends: %s\nRecommends: %s\nSuggests: hybrid-train-cuda\n' "$2" "$opened" ;;
    libhybrid-dev)
        printf 'Section: libdevel\nMulti-Arch: same\nDepends: libhybrid0 (= %s), libc6-dev, libconfig-dev, libyaml-dev, libpcre2-dev\n' "$version"
        ;;
    hybrid-train-cuda)
        printf 'Section: science\nDepends: hybrid-train (= %s) | libhybrid0 (= %s), %s\n' "$version" "$version" "$2"
        printf 'Recommends: libcublas-%s\n' "${cuda//./-}"
        ;;
    esac
}

# ---- one package --------------------------------------------------------------------------------

# The dynamically linked programs and libraries of a tree.
linked() { find "$1" -type f \( -path '*/bin/*' -o -name '*.so*' \); }

# "libc6 (>= 2.34), ..." for the files of a package.
needed_by() {
    local folder files options=()
    mapfile -t files < <(linked "$1")
    [ ${#files[@]} -gt 0 ] || return 0
    # cuBLAS is not in the system's packages; a recommendation names its package.
    if [ -n "$cuda" ]; then
        for folder in "${CUDA_LIBRARIES:-/usr/local/cuda/lib64}"; do options+=("-l$folder"); done
        options+=(--ignore-missing-info "-xlibcublas-${cuda//./-}")
    fi
    mkdir -p "$work/shlibs/debian"
    printf 'Source: hybrid-train\n\nPackage: any\nArchitecture: any\n' > "$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "${options[@]}" "${files[@]}" 2> "$work/shlibs/log") |
        sed 's/^shlibs:Depends=//' || { cat "$work/shlibs/log" >&2; exit 1; }
}

document() { # PACKAGE: writes usr/share/doc
    local doc="$work/$1/usr/share/doc/$1"
    mkdir -p "$doc"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: hybrid-train"
        echo
        echo "Files: *"
        sed -n 's/^Copyright (c) /Copyright: /p' "$root/LICENSE"
        echo "License: Expat"
        sed -e '1,/^Copyright/d' "$root/LICENSE" | sed -e '1{/^$/d}' -e 's/^$/./' -e 's/^/ /'
    } > "$doc/copyright"
    printf 'hybrid-train (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md in the sources.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n > "$doc/changelog.gz"
}

package() {
    local name="$1" tree="$work/$1" depends about="about_${1//-/_}" file
    while read -r file; do strip --strip-unneeded --remove-section=.comment --remove-section=.note "$file"; done \
        < <(linked "$tree")
    find "$tree" -name '*.a' -exec strip --strip-debug --remove-section=.comment --enable-deterministic-archives {} +
    find "$tree" -path '*/man/*' -type f -exec gzip -9n {} +
    find "$tree" -name '*.so*' -type f -exec chmod 644 {} +
    document "$name"
    depends="$(needed_by "$tree")"
    mkdir -p "$tree/DEBIAN"
    {
        echo "Package: $name"
        [ "$name" = hybrid-train ] || echo "Source: hybrid-train"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: $maintainer"
        echo "Installed-Size: $(du -k --apparent-size -s --exclude=DEBIAN "$tree" | cut -f1)"
        fields "$name" "$depends"
        echo "Priority: optional"
        echo "Description: ${!about}"
    } > "$tree/DEBIAN/control"
    if [ "$name" = libhybrid0 ]; then
        echo "activate-noawait ldconfig" > "$tree/DEBIAN/triggers"
        echo "libhybrid 0 libhybrid0 (>= $version)" > "$tree/DEBIAN/shlibs"
    fi
    (cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z |
        xargs -0 md5sum > DEBIAN/md5sums)
    find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/${name}_${version}_$architecture.deb" > /dev/null
    echo "$out/${name}_${version}_$architecture.deb"
}

# The shared library comes first, because the others may be linked with it.
for name in libhybrid0 libhybrid-dev hybrid-train ${cuda:+hybrid-train-cuda}; do package "$name"; done
