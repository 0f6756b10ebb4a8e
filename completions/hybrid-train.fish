# fish completion for hybrid-train. The program itself lists its flags and what they accept
# (--complete), so nothing here grows old: the list is read when completion is loaded.

complete -c hybrid-train -f

for row in (hybrid-train --complete 2>/dev/null)
    set -l field (string split \t -- $row)
    set -l long (string replace -r '^--' '' -- $field[1])
    switch $field[2]
        case action switch
            complete -c hybrid-train -l $long -d "$field[4]"
        case choice name
            complete -c hybrid-train -l $long -x -a (string replace -a ',' '' -- "$field[3]") -d "$field[4]"
        case file
            complete -c hybrid-train -l $long -r -F -a (string replace -a ',' '' -- "$field[3]") -d "$field[4]"
        case path
            complete -c hybrid-train -l $long -r -F -d "$field[4]"
        case folder
            complete -c hybrid-train -l $long -x -a '(__fish_complete_directories)' -d "$field[4]"
        case '*'
            complete -c hybrid-train -l $long -x -d "$field[4]"
    end
end
