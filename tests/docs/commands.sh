#!/usr/bin/env bash
# Runs what the pages tell people to type, in order, page by page, each page in a fresh folder that looks
# like a clone (stage.sh). A command must succeed; what the page shows of its output must be printed
# (shown.awk). how.list names those that are not simply run. Listings in C are compiled, configurations
# loaded, rows of JSON trained on.
#
#   tests/docs/commands.sh [PAGE...]      all pages, or those named
#
# Part of `make test-all`. HYBRID_DOCS_LIMIT: seconds for one command (240). Ends with the line
# "N passed, N failed".
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/pages.sh"
. "$here/stage.sh"
limit=${HYBRID_DOCS_LIMIT:-240}

# ---- commands --------------------------------------------------------------------------------------

# Runs a text in the page's folder; what it printed is in $scratch/said, its exit code in $code.
run_text() { # TEXT
    (cd "$folder" && timeout -k 5 "$limit" bash -c "(exit ${code:-0}); $1") \
        > "$scratch/said" 2>&1 < /dev/null
    code=$?
}

# As "plan": for a card that is not here, unless the command names one.
planned() { # COMMAND
    local text
    text=$(sed -E 's/ --device [^ ]+//' <<< "$1")
    [[ $text == *--plan* ]] || text="$text --plan"
    [[ $text == *--card* ]] || text="$text --card rtx5080"
    [[ $text == *--cpu-mem* ]] || text="$text --cpu-mem 62GiB"
    echo "$text"
}

# The command as it is run, in $text; empty where nothing is.
as_run() { # COMMAND FILE
    case $how in
    run | code*) text=$(cat "$2") ;;
    plan) text=$(planned "$1") ;;
    dry) text="make -n -C '$root' --no-print-directory $(quoted_variables) ${1#*make}" ;;
    named) text= ;;
    *) text="echo 'how.list: $how is none of plan, dry, named, code N'; exit 1" ;;
    esac
}

quoted_variables() { [ ${#variables[@]} = 0 ] || printf '%q ' "${variables[@]}"; }

# A page shows a failure by asking for the exit code next.
is_failure_shown() { # FILE.cmd
    local number=${1%.cmd} next
    next=${number%.*}.$(printf %02d $((10#${number##*.} + 1))).cmd
    [ -e "$next" ] && [ "$(cat "$next")" = 'echo $?' ]
}

check_command() { # FILE.cmd
    local command text wrong='' exact=0 expected=0 began=$SECONDS
    command=$(flat "$1")
    choose_how "$page" "$command"
    as_run "$command" "$1"
    if [ -z "$text" ]; then
        skipped=$((skipped + 1))
        return
    fi
    run_text "$text"
    case $how in code*) expected=${how#code } ;; esac
    if is_failure_shown "$1"; then
        [ "$code" -ne 0 ] || wrong="it succeeded"
    elif [ "$code" -ne "$expected" ]; then
        wrong="exit code $code instead of $expected"
    fi
    [[ $command != *--plan* && $command != *formulas.sh* ]] || exact=1
    if [ -z "$wrong" ] && [[ $how == run || $how == code* ]]; then
        wrong=$(awk -v exact=$exact -f "$here/shown.awk" "${1%.cmd}.out" "$scratch/said")
    fi
    tell "$wrong" "$(place_of "$1"): ${command%%$'\n'*}" $((SECONDS - began))
}

tell() { # WRONG WHAT SECONDS
    if [ -z "$1" ]; then
        pass
        printf 'ok    %s%s\n' "$2" "$([ "${3:-0}" -lt 5 ] || echo " ($3 s)")"
    else
        fail "$2" < <(echo "$1"; tail -n 25 "$scratch/said")
    fi
}

# ---- other blocks ----------------------------------------------------------------------------------

cc="${CC:-gcc} -std=c17 -Wall -Wextra -Werror -Wno-unused -I$root/include"

# A whole program is built; a piece of one is compiled as the middle of a file or of a function.
check_c() { # FILE REMARK
    local source=$folder/listing.c
    if [[ $2 == examples/* ]]; then
        return # tests/examples holds it against the example, which is built
    elif grep -q '^int main' "$1"; then
        cp "$1" "$source"
        run_text "$cc listing.c -o listing \$(pkg-config --libs hybrid)"
    else
        { cat "$here/listing.h"
            if grep -qE '^(static|typedef|struct|#include)' "$1"; then cat "$1"; else
                echo 'hy_status fragment(void) {'; cat "$1"; echo 'return HY_OK; }'
            fi; } > "$source"
        run_text "$cc -fsyntax-only listing.c"
    fi
    report_block "$1" "a listing"
}

report_block() { # FILE WHAT
    local wrong=''
    [ "$code" = 0 ] || wrong="exit code $code"
    code=0
    tell "$wrong" "$(place_of "$1"): $2"
}

check_block() { # NUMBER KIND REMARK
    local file=$blocks/$1.$2 command
    code=0
    case $2 in
    sh | console) for command in "$blocks/$1".[0-9]*.cmd; do check_command "$command"; done ;;
    c) check_c "$file" "$3" ;;
    libconfig)
        run_text "hybrid-train --config '$file' --print-config"
        report_block "$file" "a configuration"
        ;;
    jsonl)
        cp "$file" "$folder/shown.jsonl"
        run_text "hybrid-train --model ~/models/Qwen2.5-0.5B-Instruct --data shown.jsonl --steps 1 \
            --bad-rows stop --out none --sample-tokens 0"
        report_block "$file" "rows of data"
        ;;
    json)
        run_text "awk -f '$root/tests/cli/json.awk' '$file'"
        report_block "$file" "an object of JSON"
        ;;
    esac
}

check_page() {
    local number kind remark
    blocks=$scratch/blocks/$page folder=$scratch/stage/$page
    [ -s "$blocks/index" ] || return
    mkdir -p "$folder" && lay_out "$page" "$folder"
    while IFS=$'\t' read -r number kind _ remark; do
        check_block "$number" "$kind" "$remark"
    done < "$blocks/index"
}

skipped=0
if ! set_up_stage; then
    fail "the stage could not be set up" < "$scratch/log"
    finish
    exit 1
fi
[ $# -gt 0 ] || mapfile -t all < <(pages)
for page in "${@:-${all[@]}}"; do check_page; done
echo "$skipped commands were checked for their names alone: how.list says why"
finish
