# fish completion for hybrid-train and its sister programs: this file is installed once for each
# program, under its name. The program lists its flags and their values (--complete) when completion
# is loaded, so this file never becomes outdated.

set -l program (status basename | string replace -r '\.fish$' '')

complete -c $program -f

for row in ($program --complete 2>/dev/null)
    set -l field (string split \t -- $row)
    set -l long (string replace -r '^--' '' -- $field[1])
    # Positional arguments have no dashes.
    if test $long = $field[1]
        switch $field[2]
            case folder
                complete -c $program -a '(__fish_complete_directories)'
            case path
                complete -c $program -F
        end
        continue
    end
    switch $field[2]
        case action switch
            complete -c $program -l $long -d "$field[4]"
        case choice name
            complete -c $program -l $long -x -a (string replace -a ',' '' -- "$field[3]") -d "$field[4]"
        case file
            complete -c $program -l $long -r -F -a (string replace -a ',' '' -- "$field[3]") -d "$field[4]"
        case path
            complete -c $program -l $long -r -F -d "$field[4]"
        case folder
            complete -c $program -l $long -x -a '(__fish_complete_directories)' -d "$field[4]"
        case '*'
            complete -c $program -l $long -x -d "$field[4]"
    end
end
