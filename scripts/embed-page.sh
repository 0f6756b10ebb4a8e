#!/bin/sh
# embed-page.sh OUT.c HEADER PREFIX NAME=FILE[,FILE...]...: converts the style and the script of a
# page to C strings PREFIX_NAME, which HEADER declares. Several files become one string, in the
# given order. Next to each string is the base64 of its SHA-256, PREFIX_NAME_hash, for the security
# policy of the page. Needs a POSIX shell, sed, tr, sha256sum and base64.
set -eu
LC_ALL=C
export LC_ALL

if [ $# -lt 4 ]; then
    echo "usage: $0 OUT.c HEADER PREFIX NAME=FILE[,FILE...]..." >&2
    exit 2
fi
out=$1
header=$2
prefix=$3
shift 3

# A question mark is escaped because "??/" would be a trigraph in standard C.
quote() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/?/\\?/g' -e 's/^/    "/' -e 's/$/\\n"/'; }

# The digest is hexadecimal; base64 needs its bytes.
hash() {
    for byte in $(sha256sum | cut -c 1-64 | sed 's/../0x& /g'); do
        # shellcheck disable=SC2059 # the format is the byte itself
        printf "$(printf '\\%03o' "$byte")"
    done | base64
}

embed() { # NAME FILE...
    name=$1
    shift
    printf 'const char %s_%s[] =\n' "$prefix" "$name"
    cat "$@" | quote
    printf '    ;\nconst char %s_%s_hash[] = "%s";\n\n' "$prefix" "$name" "$(cat "$@" | hash)"
}

mkdir -p "$(dirname "$out")"
part=$out.part.$$
trap 'rm -f "$part"' EXIT
{
    echo '/* Made by scripts/embed-page.sh. */'
    echo "#include \"$header\""
    echo
    for one in "$@"; do
        # shellcheck disable=SC2046 # names of our files hold no blanks
        embed "${one%%=*}" $(printf '%s' "${one#*=}" | tr ',' ' ')
    done
} >"$part"
mv "$part" "$out"
trap - EXIT
