# shown.awk: is what a page shows what the command printed?
#
#   awk [-v exact=1] -f shown.awk SHOWN PRINTED
#
# Lines that are shown must be among those that were printed, in that order; others may lie between them,
# and "..." and empty lines are let be. Blanks count once. Unless exact, numbers are not compared, with their
# units: speed, time and the last digits of a loss are the machine's. Nor is what a line says of the
# device, nor a sample of text. Prints the first line that is missing.

function plain(line) {
    gsub(/\r/, "", line)
    gsub(/[ \t]+/, " ", line)
    sub(/^ /, "", line)
    sub(/ $/, "", line)
    if (exact) return line
    if (line ~ /^device /) return "device"
    gsub(/[0-9][0-9.,]*(e[+-]?[0-9]+)?/, "#", line)
    while (match(line, /# ?(B|[KMGT]iB|[kMG]B|ms|us|s|m|h|d|k|M|%)[^A-Za-z]/) ||
           match(line, /# ?(B|[KMGT]iB|[kMG]B|ms|us|s|m|h|d|k|M|%)$/)) {
        last = substr(line, RSTART + RLENGTH - 1, 1)
        if (last ~ /[A-Za-z%]/) last = ""
        line = substr(line, 1, RSTART - 1) "#" last substr(line, RSTART + RLENGTH)
    }
    gsub(/-#/, "#", line)
    gsub(/#( #)+/, "#", line)
    return line
}

FILENAME == ARGV[1] {
    if ($0 ~ /^[ \t]*$/) { is_sample = 0; next }
    if (is_sample || $0 == "...") next
    if (!exact && $0 == "sample") is_sample = 1
    shown[++count] = plain($0)
    as_shown[count] = $0
    next
}
at < count && plain($0) == shown[at + 1] { at++ }
END {
    if (at < count) {
        print "shown and not printed, or not in this order: " as_shown[at + 1]
        exit 1
    }
}
