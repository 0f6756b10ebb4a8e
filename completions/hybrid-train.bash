# bash completion for hybrid-train and its sister programs. Each program lists its flags and
# their values (--complete), so this file never becomes outdated. Installed once for each of them.

_hybrid_offer() { # words separated by blanks
    # shellcheck disable=SC2207 # flags, choices and names hold no blanks
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
}

_hybrid_files() { # compgen's option: -f for files, -d for folders
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
    compopt -o filenames 2> /dev/null
}

# What stands alone: a row without dashes says of which type it is.
_hybrid_alone() {
    local type
    type=$(awk -F '\t' '$1 !~ /^-/ { print $2; exit }' <<< "$list")
    case $type in
    path) _hybrid_files -f ;;
    folder) _hybrid_files -d ;;
    *) _hybrid_offer "$flags" ;;
    esac
}

_hybrid() {
    local program=$1 cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]}
    local list flags row type accepted

    # "--flag=value" arrives as three words.
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $flag == "=" ]] && ((COMP_CWORD >= 2)); then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    list=$("$program" --complete 2> /dev/null) || return
    flags=$(awk -F '\t' '$1 ~ /^-/ { print $1 }' <<< "$list")
    row=$(awk -F '\t' -v flag="$flag" '$1 == flag { print $2 "\t" $3 }' <<< "$list")
    type=${row%%$'\t'*}
    accepted=${row#*$'\t'}

    case $type in
    choice | name) _hybrid_offer "${accepted//,/}" ;;
    file)
        _hybrid_files -f
        # shellcheck disable=SC2207
        COMPREPLY+=($(compgen -W "${accepted//,/}" -- "$cur"))
        ;;
    path) _hybrid_files -f ;;
    folder) _hybrid_files -d ;;
    topic) _hybrid_offer "all ${flags//--/}" ;;
    "" | action | switch)
        if [[ $cur == -* ]]; then _hybrid_offer "$flags"; else _hybrid_alone; fi
        ;;
    esac
}

complete -F _hybrid hybrid-train hybrid-chat hybrid-generate hybrid-serve hybrid-tokenize hybrid-export hybrid-report hybrid-top
