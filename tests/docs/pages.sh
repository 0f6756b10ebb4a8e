# pages.sh: what the two suites of this folder share: which pages there are, their commands, and how each
# is to be treated. Sourced by run.sh and commands.sh.
#
# how.list says which commands are not simply run, and why; a line there that fits no command fails.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/docs
build=${HYBRID_BUILD:-$root/build}
bin=${HYBRID_BIN:-$build/bin}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/hybrid-docs-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

# What surrounds the suites must not colour what programs print.
unset COLUMNS LANG LC_CTYPE HYBRID_CUDA_LIBRARY
export LC_ALL=C NO_COLOR=1

# The pages, by their paths in the tree.
pages() { (cd "$root" && ls README.md CONTRIBUTING.md docs/*.md bench/README.md docs/man/*.1); }

pass() { passed=$((passed + 1)); }

fail() { # what is wrong; lines on standard input are shown below it
    failed=$((failed + 1))
    echo "FAIL  $*"
    sed 's/^/      /'
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# Takes all pages apart: the blocks of one lie in $scratch/blocks/PAGE, listed in its file "index".
take_apart() {
    local page folder
    for page in $(pages); do
        folder=$scratch/blocks/$page
        mkdir -p "$folder"
        awk -v out="$folder" -f "$here/blocks.awk" "$root/$page" > "$folder/index"
    done
}

# Where a block or one of its commands stands: README.md:60
place_of() { # FILE below $scratch/blocks
    local page=${1#"$scratch/blocks/"} number
    page=${page%/*} number=${1##*/}
    awk -F '\t' -v page="$page" -v number="${number%%.*}" \
        '$1 == number { print page ":" $3 }' "${1%/*}/index"
}

# A command as one line, without the comment behind it.
flat() { # FILE
    sed -e ':again' -e '/\\$/{N;s/\\\n/ /;b again' -e '}' "$1" |
        sed -e 's/[ \t][ \t]*# .*$//' -e 's/[ \t][ \t]*/ /g' -e 's/ $//'
}

# how.list: PAGE | HOW | COMMAND | REASON, where PAGE and COMMAND are patterns of the shell.
rule_pages=() rule_hows=() rule_commands=() rule_is_used=()
read_rules() {
    local page method pattern reason
    while IFS='|' read -r page method pattern reason; do
        rule_pages+=("$page") rule_hows+=("$method") rule_commands+=("$pattern")
        rule_is_used+=("")
        [ -n "$reason" ] || fail "how.list: no reason for $pattern" < /dev/null
    done < <(sed -e '/^#/d' -e '/^[ \t]*$/d' -e 's/ *| */|/g' "$here/how.list")
}

# Sets $how to what the first rule that fits says, to run where none does.
choose_how() { # PAGE COMMAND
    local i
    how=run
    for i in "${!rule_pages[@]}"; do
        # shellcheck disable=SC2053 # they are patterns
        [[ $1 == ${rule_pages[i]} && $2 == ${rule_commands[i]} ]] || continue
        how=${rule_hows[i]}
        rule_is_used[i]=yes
        return
    done
}

take_apart
read_rules
