# json.awk: checks JSON and prints its scalars, one "path<TAB>value" a line (".a.b.0<TAB>12").
#
#   awk -f json.awk file           the whole input is one document
#   awk -v lines=1 -f json.awk     each line is one; paths begin with the line's number
#
# Anything that is not JSON ends it with exit code 1 and a line on standard error. Strings are
# printed as they stand, escapes included.
BEGIN { bad = 0 }
lines { parse($0, NR); next }
{ whole = whole $0 "\n" }
END {
    if (!bad && !lines) parse(whole, "")
    exit bad
}

function fail(what) {
    if (!bad) print "not JSON: " what " before: " substr(text, at, 40) > "/dev/stderr"
    bad = 1
    at = length(text) + 1
}

function blank() { while (substr(text, at, 1) ~ /^[ \t\r\n]$/) at++ }

# Takes one token that matches a pattern at this place.
function take(pattern,   rest) {
    rest = substr(text, at)
    if (!match(rest, pattern) || RSTART != 1) return ""
    at += RLENGTH
    return substr(rest, 1, RLENGTH)
}

function string(   token) {
    token = take("\"([^\"\\\\]|\\\\.)*\"")
    if (token == "") fail("a string is missing")
    return substr(token, 2, length(token) - 2)
}

function members(path,   key) {
    at++
    blank()
    if (substr(text, at, 1) == "}") { at++; return }
    while (!bad) {
        blank(); key = string(); blank()
        if (substr(text, at++, 1) != ":") { fail("a colon is missing"); return }
        value(path "." key)
        blank()
        if (substr(text, at, 1) == "}") { at++; return }
        if (substr(text, at++, 1) != ",") { fail("a comma is missing"); return }
    }
}

function elements(path,   n) {
    at++
    blank()
    if (substr(text, at, 1) == "]") { at++; return }
    for (n = 0; !bad; n++) {
        value(path "." n)
        blank()
        if (substr(text, at, 1) == "]") { at++; return }
        if (substr(text, at++, 1) != ",") { fail("a comma is missing"); return }
    }
}

function value(path,   c, token) {
    blank()
    c = substr(text, at, 1)
    if (c == "{") { members(path); return }
    if (c == "[") { elements(path); return }
    if (c == "\"") { token = string(); if (!bad) print path "\t" token; return }
    token = take("(true|false|null|-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?)")
    if (token == "") { fail("a value is missing"); return }
    print path "\t" token
}

function parse(document, path) {
    text = document
    at = 1
    value(path)
    blank()
    if (!bad && at <= length(text)) fail("something follows the document")
}
