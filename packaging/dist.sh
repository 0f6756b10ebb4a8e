#!/usr/bin/env bash
# Makes a tarball of programs and library for any Linux of this architecture, and a Python wheel with the
# same files: `make dist` calls it.
#
#   packaging/dist.sh OUT VERSION [BUILD NVCC CUDA-VERSION "ARCH..."]
#
# BUILD has the objects of the CUDA backend, which is left out if there is no nvcc.
#
# A program needs the glibc it was linked with, or a newer one. The oldest supported is 2.31, of
# Debian 11. On a newer system, the compiler uses headers and libraries from a small Debian 11 root.
# It is made with debootstrap (which needs root) in build/dist-root and kept there; HYBRID_DIST_ROOT
# names another folder, HYBRID_DIST_MIRROR the mirror for debootstrap. HYBRID_DIST_HERE=1 uses the
# libraries of this system instead.
#
# libconfig, libyaml, libmicrohttpd with GnuTLS, PCRE2, zlib, zstd and OpenBLAS with the Fortran runtime are included in lib/, with
# their licences; the programs find them wherever the folder is. libcurl (--download), libedit and
# cuBLAS (500 MB) are not included.
set -euo pipefail
umask 022

mkdir -p "$1"
out="$(cd "$1" && pwd)"
version="$2" build="${3:-}" nvcc="${4:-}" cuda="${5:-}" archs="${6:-}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
wanted=2.31
name="hybrid-train-$version-linux-$(uname -m)"
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2> /dev/null ||
    stat -c %Y "$root/CHANGELOG.md")}"

fail() {
    echo "dist: $*" >&2
    exit 1
}
is_newer() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$1" ]; }

# ---- headers and libraries on a newer system ------------------------------------------------

system="" # prefix of their paths
folder="/usr/lib/$(${CC:-gcc} -print-multiarch)"
packages=libc6-dev,libconfig-dev,libyaml-dev,libpcre2-dev,libmicrohttpd-dev,libopenblas0-pthread,zlib1g,libzstd1

find_old_root() {
    local why
    system="${HYBRID_DIST_ROOT:-$root/build/dist-root}"
    [ ! -e "$system/.complete" ] || return 0
    why="glibc is $glibc here and $wanted is to be enough:"
    [ "$(id -u)" -eq 0 ] || fail "$why this needs a Debian 11 root with its libraries, and making one needs root" \
        "(HYBRID_DIST_HERE=1 makes a tarball for glibc $glibc)"
    command -v debootstrap > /dev/null || fail "$why debootstrap is missing: sudo apt-get install debootstrap"
    echo "making a Debian 11 root in $system"
    rm -rf "$system"
    mkdir -p "$system"
    debootstrap --variant=minbase --include="$packages" bullseye "$system" \
        ${HYBRID_DIST_MIRROR:+"$HYBRID_DIST_MIRROR"} > "$system.log" 2>&1 ||
        { tail -n 5 "$system.log" >&2; fail "debootstrap failed; see $system.log"; }
    # Absolute links of the root lead out of it, because the linker runs outside. Not all
    # architectures have a lib64.
    local link
    { find "$system/usr/lib" "$system/lib64" "$system/usr/lib64" -type l -lname '/*' 2> /dev/null || true; } |
        while read -r link; do ln -sfr "$system$(readlink "$link")" "$link"; done
    touch "$system/.complete"
}

glibc="$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)"
if is_newer "$glibc" "$wanted" && [ -z "${HYBRID_DIST_HERE:-}" ]; then find_old_root; fi

# ---- the tree -----------------------------------------------------------------------------------

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
tree="$work/$name"
mkdir -p "$tree/lib" "$tree/licenses"

# Even so, a compiler searches this system's folders first, unless -B names others.
compiler="${CC:-gcc}${system:+ --sysroot=$system -B$system$folder}"

# $ORIGIN as DT_RPATH, not RUNPATH, so that libraries of OpenBLAS are searched in the same folder.
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory -s -j"$(nproc)" install NVCC= MPICC= \
    CC="$compiler" BUILD="$work/build" PREFIX= DESTDIR="$tree" \
    LDFLAGS="-Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/../lib'" > /dev/null
sed -i -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' -e 's|^libdir=.*|libdir=${prefix}/lib|' \
    -e 's|^includedir=.*|includedir=${prefix}/include|' "$tree/lib/pkgconfig/hybrid.pc"
find "$tree/bin" -type f -exec strip --strip-unneeded {} +
strip --strip-unneeded "$tree/lib/libhybrid.so.$version"
strip --strip-debug --enable-deterministic-archives "$tree/lib/libhybrid.a"

about_cuda="This build has no CUDA backend: for an NVIDIA GPU build from the sources with nvcc in PATH."
if [ -n "$nvcc" ]; then
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$root" --no-print-directory -s cuda BUILD="$build" NVCC="$nvcc" \
        CUDA_ARCHS="$archs" CUDA_FILE="$tree/lib/libhybrid_cuda.so" \
        CUDA_LINK_EXTRA="${system:+-Xcompiler --sysroot=$system,-B$system$folder}"
    strip --strip-unneeded "$tree/lib/libhybrid_cuda.so"
    about_cuda="lib/libhybrid_cuda.so is for NVIDIA GPUs (${archs// /, }, as sm_ numbers; newer ones by PTX) and was made with CUDA $cuda.
It needs a driver for CUDA ${cuda%%.*} (580 or newer for CUDA 13, 550 for CUDA 12) and cuBLAS ${cuda%%.*}, from pip
(nvidia-cublas), a CUDA toolkit or the package libcublas-${cuda//./-}. bin/hybrid-train --doctor shows what was found."
fi
cp "$root/LICENSE" "$root/CHANGELOG.md" "$tree"
cat > "$tree/README" << END
hybrid-train $version for Linux on $(uname -m), glibc $wanted or newer.

Nothing has to be installed. Put this folder where you like and run bin/hybrid-train; bin/hybrid-train --help
shows examples, man -l share/man/man1/hybrid-train.1 the manual. Programs of your own: pkg-config finds
lib/pkgconfig/hybrid.pc with PKG_CONFIG_PATH.

lib/ holds libconfig, libyaml, libmicrohttpd, GnuTLS, PCRE2, zlib, zstd, OpenBLAS and Fortran's runtime as Debian has built them; their licences, and which
packages they are of, are in licenses/. --download opens the system's libcurl, hybrid-chat its libedit.

$about_cuda
END

# ---- third-party libraries ----------------------------------------------------------------------

# The package of a file; systems with /lib in /usr may list it under either name.
package_of() {
    local file
    for file in "$1" "${1#/usr}"; do
        dpkg-query --admindir="$system/var/lib/dpkg" -S "$file" 2> /dev/null | sed 's/:.*//' && return 0
    done
    fail "$1 belongs to no package, so its licence is unknown"
}

take() { # NAME: copies a library, and the licence of the package it came with
    local file package
    # Links are resolved inside the root; OpenBLAS comes from one of several packages.
    if [ "$1" = libopenblas.so.0 ]; then file="$folder/openblas-pthread/$1"; else file="$folder/$1"; fi
    [ -e "$system$file" ] || fail "$file is missing; it is in one of the packages ${packages//,/ }"
    install -m 755 "$system$file" "$tree/lib/$1"
    package="$(package_of "$file")"
    install -m 644 "$system/usr/share/doc/$package/copyright" "$tree/licenses/$package"
    printf '%s: lib/%s, of Debian package %s\n' \
        "$(dpkg-query --admindir="$system/var/lib/dpkg" -W -f '${source:Package} ${source:Version}\n' "$package" |
            head -n 1)" "$1" "$package" >> "$tree/licenses/packages"
}

# Libraries that are opened at run time, and everything that they and ours need, except glibc and
# GCC's libgcc_s, which every glibc system has.
wanted_by() { objdump -p "$@" | sed -n 's/^  NEEDED *//p' | sort -u; }
pending="libopenblas.so.0 libz.so.1 libzstd.so.1 $(wanted_by "$tree"/bin/* "$tree/lib/libhybrid.so.$version" | tr '\n' ' ')"
while [ -n "$pending" ]; do
    read -r library pending <<< "$pending"
    case "$library" in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux* | libgcc_s.so.* | libhybrid.so.*) continue ;;
    esac
    [ ! -e "$tree/lib/$library" ] || continue
    take "$library"
    pending="$pending $(wanted_by "$tree/lib/$library" | tr '\n' ' ')"
done
LC_ALL=C sort -o "$tree/licenses/packages" "$tree/licenses/packages"
cp "$system"/usr/share/common-licenses/{GPL-3,LGPL-2.1,LGPL-3} "$tree/licenses"

# ---- the required glibc, and the tarball --------------------------------------------------------

newest="$(find "$tree" -type f \( -path '*/bin/*' -o -name '*.so*' \) -exec objdump -T {} + |
    grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1)"
if is_newer "${newest#GLIBC_}" "$wanted" && [ -z "${HYBRID_DIST_HERE:-}" ]; then
    fail "a symbol of $newest is used, but only glibc $wanted may be required"
fi
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
echo "$out/$name.tar.gz: $(du -h "$out/$name.tar.gz" | cut -f1), needs ${newest/_/ }"
# The tarball is complete without the wheel, so missing tools of Python (exit code 3) are no failure.
HYBRID_BUILD="$tree" "$root/packaging/wheel.sh" "$out" || [ $? -eq 3 ]
