#!/usr/bin/env bash
# Completion in shells, for every program: what --complete answers, and what bash, zsh and fish make of
# it. A shell that is not installed is skipped with a line.
#
# The programs are in $HYBRID_BIN, else build/bin. Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bin="$(cd "${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}" && pwd)" || exit 1
programs=(hybrid-train hybrid-chat hybrid-generate hybrid-tokenize hybrid-export hybrid-report hybrid-top)
[ ! -x "$bin/hybrid-serve" ] || programs+=(hybrid-serve) # not built without libmicrohttpd
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-completion-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
export LC_ALL=C PATH="$bin:$PATH"
passed=0
failed=0
mkdir "$scratch/here" && cd "$scratch/here" || exit 1
mkdir -p runs/mine runs/other
touch corpus.txt

check() { # check NAME: the function of that name must succeed
    if ("$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1$(sed -n 's/^skipped/ (skipped/p' "$scratch/log")"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

same() { # same WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || { printf '%s: expected "%s", found "%s"\n' "$1" "$2" "$3"; return 1; }
}

every_program_of_the_build_is_known_here() {
    same "programs" "$(printf '%s\n' "${programs[@]}" | sort)" "$(cd "$bin" && printf '%s\n' hybrid-* | sort)"
}

rows_have_four_fields_and_known_types() {
    local program types='action|switch|choice|name|file|path|folder|topic|text|number|integer|bytes|key=value'
    for program in "${programs[@]}"; do
        "$program" --complete > rows || { echo "$program does not answer"; return 1; }
        awk -F '\t' -v types="^($types)\$" 'NF != 4 || $1 !~ /^(--[a-z0-9-]+|[A-Z]+)$/ || $4 == "" { print; bad = 1 }
            $2 !~ types { print "type of", $0; bad = 1 } END { exit bad || NR == 0 }' rows ||
            { echo "in $program"; return 1; }
    done
}

# hybrid-train's help is in pages; its list is tested in tests/cli.
rows_and_help_name_the_same_flags() {
    local program
    for program in "${programs[@]:1}"; do
        "$program" --complete | cut -f 1 | grep -e '^--' | sort > rows
        "$program" --help | grep -E '^  +--' | grep -oE -e '--[a-z][a-z-]*' | sort -u > help
        # A description may name another flag, but none that does not exist.
        comm -13 rows help > unknown
        for flag in $(cat rows); do grep -qx -e "$flag" help || echo "$flag"; done > missing
        [ ! -s unknown ] && [ ! -s missing ] ||
            { echo "$program: in help alone: $(cat unknown); in --complete alone: $(cat missing)"; return 1; }
    done
}

# ---- bash ----------------------------------------------------------------------------------------

# What bash would offer for a line, its last word unfinished.
in_bash() {
    bash -c 'source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        $(complete -p "$1" | sed "s/.*-F \([^ ]*\) .*/\1/") "$1" "${COMP_WORDS[COMP_CWORD]}" "$1"
        printf "%s\n" "${COMPREPLY[@]}"' bash "$root/completions/hybrid-train.bash" "$@"
}

bash_offers_flags_values_and_what_stands_alone() {
    same flags --batch-size "$(in_bash hybrid-train --batch-s)" &&
        same flags --interval "$(in_bash hybrid-top --int)" &&
        same flags --max-shard-size "$(in_bash hybrid-export runs --max)" &&
        same flags --temperature "$(in_bash hybrid-chat --tem)" &&
        same flags --repetition-penalty "$(in_bash hybrid-generate --rep)" &&
        same flags --shard-tokens "$(in_bash hybrid-tokenize --sh)" &&
        same flags --quiet "$(in_bash hybrid-report --qu)" &&
        same choices bf16 "$(in_bash hybrid-export --dtype b)" &&
        same choices chatml "$(in_bash hybrid-chat --chat-template cha)" &&
        same "prompts" corpus.txt "$(in_bash hybrid-generate --data cor)" &&
        same "choices after =" chatml "$(in_bash hybrid-chat --chat-template = cha)" &&
        same folders runs/mine "$(in_bash hybrid-chat --model runs/m)" &&
        same runs runs/mine "$(in_bash hybrid-top runs/m)" &&
        same "a second run" runs/other "$(in_bash hybrid-top runs/mine runs/o)" &&
        same "a run after a switch" runs/mine "$(in_bash hybrid-report --quiet runs/m)" &&
        same checkpoints runs/mine "$(in_bash hybrid-export runs/m)" &&
        same texts corpus.txt "$(in_bash hybrid-tokenize --plain cor)" &&
        same files corpus.txt "$(in_bash hybrid-train --data cor)"
}

# ---- fish ----------------------------------------------------------------------------------------

fish_offers_them_too() {
    local program
    command -v fish > /dev/null || { echo "skipped: there is no fish)"; return 0; }
    mkdir -p fish
    for program in "${programs[@]}"; do cp "$root/completions/hybrid-train.fish" "fish/$program.fish"; done
    in_fish() { # in_fish PROGRAM LINE
        HOME="$scratch" fish --no-config -c "source fish/$1.fish; complete -C '$1 $2'" | cut -f 1
    }
    same flags --interval "$(in_fish hybrid-top --int)" &&
        same choices bf16 "$(in_fish hybrid-export '--dtype b')" &&
        same runs runs/mine/ "$(in_fish hybrid-top runs/m)" &&
        same models nano "$(in_fish hybrid-train '--model nan')" &&
        same texts corpus.txt "$(in_fish hybrid-tokenize cor)"
}

# ---- zsh -----------------------------------------------------------------------------------------

# zsh completes on a terminal only: its own zpty plays one. The line that comes back is read.
in_zsh() { # in_zsh LINE
    HOME="$scratch" ZDOTDIR="$scratch" zsh -f -c '
        zmodload zsh/zpty
        zpty -b shell zsh -f -i
        zpty -w shell "PS1=; PATH=$2:\$PATH; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; unsetopt beep"
        zpty -w shell "bindkey \"^I\" complete-word; print READY"
        while zpty -r shell piece; do [[ $piece == *READY* && $piece != *print* ]] && break; done
        zpty -n -w shell "$3"$'"'\t'"'
        sleep 1
        zpty -n -w shell $'"'\x01print -r -- \"GOT<\x05>\"\n'"'
        while zpty -r shell piece "*GOT<*>*"; do [[ $piece == *$'"'\n'"'GOT\<*\>* ]] && break; done
        print -r -- ${${piece##*GOT<}%%>*}' zsh "$root/completions" "$bin" "$1"
}

zsh_offers_them_too() {
    command -v zsh > /dev/null || { echo "skipped: there is no zsh)"; return 0; }
    zsh -n "$root/completions/_hybrid-train" || return 1
    local found
    found="$(in_zsh 'hybrid-top --interv')"
    [[ "$found" == "hybrid-top --interval"* ]] || { echo "found \"$found\""; return 1; }
}

check every_program_of_the_build_is_known_here
check rows_have_four_fields_and_known_types
check rows_and_help_name_the_same_flags
check bash_offers_flags_values_and_what_stands_alone
check fish_offers_them_too
check zsh_offers_them_too

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
