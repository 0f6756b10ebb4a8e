#!/bin/sh
# embed.sh OUT.c: converts the files under configs/ to one C file, so that the programs find their
# profiles, model presets and card files wherever they are installed. src/config/builtin.h declares
# the table, which is sorted by name. Needs only a POSIX shell, ls, sed and sort.
set -eu
LC_ALL=C
export LC_ALL

if [ $# -ne 1 ]; then
    echo "usage: $0 OUT.c" >&2
    exit 2
fi
out=$1
configs=$(cd "$(dirname "$0")/../configs" && pwd)

# One row per file. A question mark is escaped because "??/" would be a trigraph in standard C.
embed() { # kind folder
    names=$(cd "$2" && ls | sed -n 's/\.cfg$//p' | sort)
    if [ -z "$names" ]; then
        echo "$0: no .cfg files in $2" >&2
        return 1
    fi
    for name in $names; do
        printf '    {"%s", "%s",\n' "$1" "$name"
        sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/?/\\?/g' -e 's/^/     "/' -e 's/$/\\n"/' \
            "$2/$name.cfg"
        printf '    },\n'
    done
}

mkdir -p "$(dirname "$out")"
part=$out.part.$$
trap 'rm -f "$part"' EXIT
{
    echo '/* Made by scripts/embed.sh from configs/. */'
    echo '#include "config/builtin.h"'
    echo
    echo 'const hy_builtin_file hy_builtin_files[] = {'
    embed profile "$configs"
    embed model "$configs/models"
    embed gpu "$configs/gpu"
    echo '    {NULL, NULL, NULL},'
    echo '};'
} >"$part"
mv "$part" "$out"
trap - EXIT
