#!/usr/bin/env bash
# The quick part of the documents' test: what the pages name is there. Links and files, flags of the
# programs, keys, functions and words of the source; every command is one that bash can read and that a
# program of ours understands; the formulas of docs/memory.md give the plan's bytes.
#
# Started by tests/run.sh after a build. commands.sh, in `make test-all`, runs the commands. Ends with the
# line "N passed, N failed".
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/pages.sh"
. "$here/formulas.sh"

check() { # NAME: the function prints what is wrong, or nothing
    local wrong
    wrong=$("$1" 2>&1)
    if [ -z "$wrong" ]; then
        pass
        echo "ok    $1"
    else
        fail "$1" <<< "$wrong"
    fi
}

text_pages() { pages | grep '\.md$'; }

# ---- links ---------------------------------------------------------------------------------------

# PAGE, LINK of every link that stays in the tree. The notebook is a record: only its links are checked.
links() {
    local page
    for page in $(text_pages) $(cd "$root" && ls docs/notebook/*.md); do
        grep -oE '\]\([^)]+\)' "$root/$page" | sed -e 's/^](//' -e 's/)$//' |
            grep -vE '^[a-z]+:' | sed "s|^|$page |"
    done
}

anchors() { # FILE: as headings get them
    grep -E '^#+ ' "$1" | sed -E 's/^#+ //' | tr '[:upper:]' '[:lower:]' |
        sed -E -e 's/[^a-z0-9 _-]//g' -e 's/ /-/g'
}

every_link_leads_to_a_file_and_a_heading() {
    local page link target
    while read -r page link; do
        target=$root/$(dirname "$page")/${link%%#*}
        [ "${link%%#*}" ] || target=$root/$page
        [ -e "$target" ] || echo "$page: $link is not there"
        [[ $link != *#* ]] || anchors "$target" | grep -qxF "${link#*#}" ||
            echo "$page: $link: no such heading"
    done < <(links)
}

# ---- names -----------------------------------------------------------------------------------------

# PAGE NAME for each that fits, of the pages' code: what stands between backticks, and blocks.
names_like() { # PATTERN
    local page
    for page in $(text_pages); do
        { grep -oE '`[^`]+`' "$root/$page"
            cat "$scratch/blocks/$page"/[0-9]*.{sh,cmd,c} 2> /dev/null; } |
            grep -oE -- "$1" | sort -u | sed "s|^|$page |"
    done
}

# Files of the tree are named by their paths; what is built, by where it lands.
folders='src|tests|bench|docs|configs|examples|include|make|python|scripts|build'
every_file_of_the_tree_is_there() {
    local page path
    while read -r page path; do
        case $path in
        *'*'* | *[A-Z][A-Z]* | build/*/) continue ;; # a pattern, or a name to be put in
        build/bench/*)
            path=bench/${path##*/}
            [ -e "$root/$path.cu" ] && path+=.cu || path+=.c
            ;;
        build/examples/*) path=examples/${path##*/}.c ;;
        build/bin/*) path=src/cli/$(tr - _ <<< "${path##*/}").c ;;
        build/*) continue ;;
        esac
        [ -e "$root/${path%/}" ] || echo "$page: $path is not there"
    done < <(names_like "(^|[ \`(])($folders)/[A-Za-z0-9_./*-]*[A-Za-z0-9_/*]" | sed 's/ [`( ]*/ /')
}

# What how.list says of names that are not ours.
foreign() { # flags, names
    local i
    for i in "${!rule_pages[@]}"; do
        [ "${rule_hows[i]}" != "$1" ] || echo "${rule_commands[i]}"
    done
}

# All words of the source, once.
source_words() {
    cat "$root"/include/*.h "$root"/src/*/*.[ch] "$root"/src/*/*/*.[ch] "$root"/src/*/*/*.cu* \
        "$root"/examples/*.c "$root"/bench/*.[ch] "$root"/bench/*.cu "$root"/bench/*.sh "$root"/bench/*.py "$root"/bench/*/*.[ch] \
        "$root"/python/*/*.py "$root"/configs/*.cfg "$root"/tests/*.[ch] "$root"/tests/run.sh "$root"/Makefile \
        "$root"/make/*.mk 2> /dev/null | tr -cs 'A-Za-z0-9_' '\n' | sort -u
}

# Keys of the configuration, functions, fields, keys of the metrics: words with an underscore.
every_name_is_one_of_the_source() {
    local page name
    source_words > "$scratch/words"
    foreign names >> "$scratch/words"
    sort -uo "$scratch/words" "$scratch/words"
    names_like '[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]*[A-Za-z0-9]' | sort -k 2 > "$scratch/named"
    awk 'NR == FNR { known[$1]; next } !($2 in known) { print $1 ": no " $2 " in the source" }' \
        "$scratch/words" "$scratch/named"
}

every_key_with_its_group_is_there() {
    "$bin/hybrid-train" --complete | awk -F '\t' '{ gsub(/-/, "_", $1); print substr($1, 3) }' |
        sort -u > "$scratch/keys"
    local page name
    while read -r page name; do
        grep -qx "${name#*.}" "$scratch/keys" || echo "$page: no key $name"
    done < <(names_like '\b(train|memory|optimizer|phases|save|eval|input|shape)\.[a-z][a-z_0-9]+' |
        grep -vE '\.(c|h|md|sh|mk|jsonl|json|cfg|txt|bin|html|svg)$|phases\.(warmup|full|predict|correct)$')
}

# ---- flags -----------------------------------------------------------------------------------------

flags_of() { # PROGRAM
    "$bin/$1" --complete 2> /dev/null | awk -F '\t' '
        /^--/ { print $1 } $2 == "switch" { sub(/^--/, "--no-", $1); print $1 }'
    "$bin/$1" --help 2> /dev/null | grep -oE -- '--[a-z][a-z0-9-]+'
    [ "$1" != hybrid-train ] || awk -F '`' '/aliases: begin/ { on = 1 } /aliases: end/ { on = 0 }
        on { for (i = 2; i < NF; i += 2) { gsub(/_/, "-", $i); print "--" $i } }' "$root/docs/configuration.md"
}

# A file of flags for each program; those of measurements are looked for in their source.
list_flags() {
    local program
    for program in "$bin"/hybrid-*; do
        program=${program##*/}
        flags_of "$program" | sort -u > "$scratch/flags.$program"
    done
    cat "$root"/bench/*.[ch] "$root"/bench/*.sh "$root"/bench/*.py "$root"/bench/*/*.[ch] "$root"/bench/*/*.py \
        "$root"/tests/gpu/*.sh "$root"/scripts/*.sh 2> /dev/null |
        grep -oE -- '--[a-z][a-z0-9-]+' | sort -u > "$scratch/flags.bench"
    foreign flags > "$scratch/flags.foreign"
}

every_flag_named_anywhere_exists() {
    cat "$scratch"/flags.* | sort -u > "$scratch/flags"
    names_like '(^|[ `"(])--[a-z][a-z0-9-]+' | sed 's/ [ `"(]*/ /' |
        awk 'NR == FNR { known[$1]; next } !($2 in known) { print $1 ": no program has " $2 }' \
            "$scratch/flags" -
}

# The flags of a simple command against those of its program.
check_flags() { # PLACE SIMPLE-COMMAND
    local program=${2%% *} flag list
    program=${program##*/}
    case $2 in
    build/bench/* | bench/*) list=$scratch/flags.bench ;;
    *) list=$scratch/flags.$program ;;
    esac
    case $program in hybrid-*) [ -e "$list" ] || echo "$1: there is no $program" ;; esac
    [ -e "$list" ] || return 0
    for flag in $(grep -oE -- '(^| )--[a-z][a-z0-9-]+' <<< "$2"); do
        grep -qxF -- "$flag" "$list" || echo "$1: $program has no $flag"
    done
}

every_command_is_one_that_its_program_understands() {
    local file place simple
    for file in "$scratch"/blocks/*.md/*.cmd "$scratch"/blocks/*/*.md/*.cmd \
        "$scratch"/blocks/*/*/*.1/*.cmd; do
        place=$(place_of "$file")
        bash -n "$file" 2> "$scratch/said" || echo "$place: $(cat "$scratch/said")"
        while read -r simple; do check_flags "$place" "$simple"; done < <(flat "$file" |
            sed -e 's/^make run ARGS="\(.*\)"$/hybrid-train \1/' -e 's/ \(|\|&&\|;\) */\n/g' \
                -e 's/\$(/\n/g')
    done
}

every_block_has_a_kind_that_is_tested() {
    local page
    for page in $(pages); do
        awk -F '\t' -v page="$page" '$2 !~ /^(sh|console|c|libconfig|jsonl|json|python|text)$/ {
            print page ":" $3 ": blocks of kind " $2 " are not known to tests/docs" }' \
            "$scratch/blocks/$page/index"
    done
}

every_rule_fits_a_command() {
    local page file i
    for page in $(pages); do
        for file in "$scratch/blocks/$page"/*.cmd; do
            [ ! -e "$file" ] || choose_how "$page" "$(flat "$file")"
        done
    done
    for i in "${!rule_pages[@]}"; do
        case ${rule_hows[i]} in names | flags) continue ;; esac
        [ "${rule_is_used[i]}" ] || echo "how.list: no command fits ${rule_pages[i]} | ${rule_commands[i]}"
    done
}

the_index_lists_every_page() {
    local page
    for page in "$root"/docs/*.md; do
        page=${page##*/}
        [ "$page" = README.md ] || grep -qF "]($page)" "$root/docs/README.md" ||
            echo "docs/README.md does not list $page"
    done
}

# An entry of the troubleshooting page shows the trouble and the cure, and names a flag.
every_symptom_has_a_trouble_a_cure_and_a_flag() {
    awk '
        function end_entry() {
            if (entry != "" && (commands < 2 || !flags)) {
                print "docs/troubleshooting.md: " entry ": " commands + 0 " commands, " flags + 0 " flags"
            }
            commands = flags = 0
        }
        /^## / { end_entry(); entry = substr($0, 4) }
        /^```/ { kind = is_inside ? "" : substr($0, 4); is_inside = !is_inside; next }
        kind == "console" && /^\$ / && !/^\$ echo/ { commands++ }
        kind == "sh" && /^[a-z]/ { commands++ }
        /--[a-z]/ || /[A-Z]+_[A-Z]+/ { flags++ }
        END { end_entry() }
    ' "$root/docs/troubleshooting.md"
}

list_flags
for name in every_link_leads_to_a_file_and_a_heading every_file_of_the_tree_is_there \
    every_name_is_one_of_the_source every_key_with_its_group_is_there every_flag_named_anywhere_exists \
    every_command_is_one_that_its_program_understands every_block_has_a_kind_that_is_tested \
    every_rule_fits_a_command the_index_lists_every_page every_symptom_has_a_trouble_a_cure_and_a_flag \
    the_formulas_of_the_memory_page_give_the_plans_bytes; do
    check "$name"
done
finish
