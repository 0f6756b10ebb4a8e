#!/bin/sh
# embed-page.sh OUT.c STYLE.css SCRIPT.js...: converts the style and the script of reports to C
# strings, for src/report/page.h. Several scripts become one, in the given order. Next to each
# string is the base64 of its SHA-256, for the security policy of the page. Needs a POSIX shell,
# sed, sha256sum and base64.
set -eu
LC_ALL=C
export LC_ALL

if [ $# -lt 3 ]; then
    echo "usage: $0 OUT.c STYLE.css SCRIPT.js..." >&2
    exit 2
fi
out=$1
style=$2
shift 2

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
    printf 'const char hy_report_%s[] =\n' "$name"
    cat "$@" | quote
    printf '    ;\nconst char hy_report_%s_hash[] = "%s";\n\n' "$name" "$(cat "$@" | hash)"
}

mkdir -p "$(dirname "$out")"
part=$out.part.$$
trap 'rm -f "$part"' EXIT
{
    echo '/* Made by scripts/embed-page.sh from src/report/page/. */'
    echo '#include "report/page.h"'
    echo
    embed style "$style"
    embed script "$@"
} >"$part"
mv "$part" "$out"
trap - EXIT
