# blocks.awk: the code blocks of a Markdown page, or the examples of a manual page, as files.
#
#   awk -v out=FOLDER -f blocks.awk PAGE
#
# Writes FOLDER/NNN.KIND for each block and prints a line for it: NNN, KIND, line of the page, and the
# comment that stands right before the block ("<!-- examples/train.c -->" gives "examples/train.c").
# Commands of a block lie beside it: NNN.MM.cmd, and NNN.MM.out for what is shown after them.
#
#   sh         every line is a command; a backslash goes on, << END takes lines up to END, for up to done
#   console    lines that begin with "$ " are commands, the others are what they print
#   c, libconfig, jsonl, json, text    as they are called
#
# A block without a name is console when a line begins with "$ ", sh when it begins with a command that
# this project has, else text. In a manual page .nf blocks, and .B lines below EXAMPLES, that begin with
# such a command are sh.

function is_command(line) {
    return line ~ /^(build\/[a-z]+\/|bench\/|hybrid-[a-z]+|make( |$)|sudo |cc |gcc |git |echo )/
}

function kind_of(   i) {
    if (name != "") return name == "bash" ? "sh" : name
    for (i = 1; i <= count; i++) if (lines[i] ~ /^\$ /) return "console"
    if (is_command(lines[1])) return "sh"
    return lines[1] ~ /^ *[a-z_]+ = .*;/ ? "libconfig" : "text"
}

# The command that begins in line i: sets `command`, returns the line behind it.
function read_command(i, text,   end) {
    command = text
    while (command ~ /\\$/ && i < count) command = command "\n" lines[++i]
    if (command ~ /^(for|while) /) {
        while (command !~ /(^|\n| )done/ && i < count) command = command "\n" lines[++i]
    }
    if (match(command, /<< *['"]?[A-Z_]+['"]?/)) {
        end = substr(command, RSTART, RLENGTH)
        gsub(/[<'" ]/, "", end)
        while (i < count && lines[i] != end) command = command "\n" lines[++i]
    }
    return i + 1
}

function write_command(text) {
    file = sprintf("%s/%03d.%02d", out, block, ++commands)
    print text > (file ".cmd")
    close(file ".cmd")
    printf "" > (file ".out")
}

function write_sh(   i) {
    for (i = 1; i <= count;) {
        if (lines[i] ~ /^[ \t]*(#.*)?$/) { i++; continue }
        i = read_command(i, lines[i])
        write_command(command)
        close(file ".out")
    }
}

function write_console(   i) {
    file = ""
    for (i = 1; i <= count;) {
        if (lines[i] ~ /^\$ /) {
            if (file != "") close(file ".out")
            i = read_command(i, substr(lines[i], 3))
            write_command(command)
            continue
        }
        if (file != "") print lines[i] > (file ".out")
        i++
    }
    if (file != "") close(file ".out")
}

function end_block(   kind, i, path) {
    kind = kind_of()
    block++
    commands = 0
    path = sprintf("%s/%03d.%s", out, block, kind)
    printf "" > path
    for (i = 1; i <= count; i++) print lines[i] > path
    close(path)
    if (kind == "sh") write_sh()
    if (kind == "console") write_console()
    printf "%03d\t%s\t%d\t%s\n", block, kind, first, remark
    remark = ""
}

function begin_block(what) {
    name = what
    count = 0
    first = FNR
    is_inside = 1
}

function from_roff(line) {
    gsub(/\\-/, "-", line)
    gsub(/\\f[A-Z]/, "", line)
    gsub(/\\e/, "\\", line)
    return line
}

# ---- manual pages ----
FILENAME ~ /\.[0-9]$/ && /^\.SH/ { is_examples = /EXAMPLES/ }
FILENAME ~ /\.[0-9]$/ && /^\.nf/ { begin_block(""); next }
FILENAME ~ /\.[0-9]$/ && /^\.fi/ && is_inside { is_inside = 0; end_block(); next }
FILENAME ~ /\.[0-9]$/ && is_inside { lines[++count] = from_roff($0); next }
FILENAME ~ /\.[0-9]$/ && is_examples && /^\.B / {
    begin_block("")
    lines[++count] = from_roff(substr($0, 4))
    is_inside = 0
    end_block()
}
FILENAME ~ /\.[0-9]$/ { next }

# ---- pages ----
/^```/ && is_inside { is_inside = 0; end_block(); next }
is_inside { lines[++count] = $0; next }
/^```/ { begin_block(substr($0, 4)); next }
/^<!-- .* -->$/ { remark = substr($0, 6, length($0) - 9); next }
/[^ \t]/ { remark = "" }
