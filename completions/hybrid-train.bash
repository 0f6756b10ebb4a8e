# bash completion for hybrid-train. The program itself lists its flags and what they accept
# (--complete), so nothing here grows old.

_hybrid_train_offer() { # words separated by blanks
    # shellcheck disable=SC2207 # flags, choices and names hold no blanks
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
}

_hybrid_train_files() { # compgen's option: -f for files, -d for folders
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
    compopt -o filenames 2> /dev/null
}

_hybrid_train() {
    local program=$1 cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD - 1]}
    local list row type accepted

    # "--flag=value" arrives as three words.
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $flag == "=" ]] && ((COMP_CWORD >= 2)); then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    list=$("$program" --complete 2> /dev/null) || return
    row=$(awk -F '\t' -v flag="$flag" '$1 == flag { print $2 "\t" $3 }' <<< "$list")
    type=${row%%$'\t'*}
    accepted=${row#*$'\t'}

    case $type in
    choice | name) _hybrid_train_offer "${accepted//,/}" ;;
    file)
        _hybrid_train_files -f
        # shellcheck disable=SC2207
        COMPREPLY+=($(compgen -W "${accepted//,/}" -- "$cur"))
        ;;
    path) _hybrid_train_files -f ;;
    folder) _hybrid_train_files -d ;;
    topic) _hybrid_train_offer "all $(awk -F '\t' '{ print substr($1, 3) }' <<< "$list")" ;;
    "" | action | switch) _hybrid_train_offer "$(awk -F '\t' '{ print $1 }' <<< "$list")" ;;
    esac
}

complete -F _hybrid_train hybrid-train
