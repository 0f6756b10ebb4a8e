# terminal.sh: the program on a terminal, played by script(1).

# on_terminal COMMAND: what it writes to a terminal goes to $stdout.
on_terminal() {
    command -v script > /dev/null || skip "no script(1)"
    TERM=xterm script -qec "$*" /dev/null > "$stdout" < /dev/null
    code=$?
}

test_terminal_shows_a_bar() {
    on_terminal "$program $(echo $tiny) --out out"
    expect_code 0
    expect_out "$return_mark["
    expect_out "6/6"
    expect_out "took"
    expect_out "$escape[3"
}

test_bar_uses_line_characters_in_a_utf8_locale() {
    on_terminal "LC_ALL=C.UTF-8 $program $(echo $tiny) --out out"
    expect_out "$(printf '\342\224\201')"
    on_terminal "LC_ALL=C $program $(echo $tiny) --out other"
    ! grep -q "$(printf '\342\224\201')" "$stdout" || fail "line characters in the C locale"
    expect_out "##"
}

test_no_color_means_no_escape_codes() {
    on_terminal "NO_COLOR=1 $program $(echo $tiny) --out out"
    expect_code 0
    expect_out "6/6"
    ! grep -q "$escape" "$stdout" || fail "an escape code under NO_COLOR"
    on_terminal "$program $(echo $tiny) --out other --no-color"
    expect_out "6/6"
    ! grep -q "$escape" "$stdout" || fail "an escape code under --no-color"
    on_terminal "NO_COLOR= $program $(echo $tiny) --out third"
    expect_out "$escape[3"
}

test_narrow_terminal_drops_fields_from_the_right() {
    on_terminal "NO_COLOR=1 COLUMNS=40 $program $(echo $tiny) --out out"
    expect_code 0
    tr '\r' '\n' < "$stdout" | grep '^\[' > bars
    [ -s bars ] || fail "no bars"
    awk 'length > 39 { print; bad = 1 } END { exit bad }' bars || fail "a bar is too wide"
    grep -q "loss" bars || fail "the loss went before other fields"
    ! grep -q "tok/s" bars || fail "40 columns cannot hold the speed"
    on_terminal "NO_COLOR=1 COLUMNS=120 $program $(echo $tiny) --out other"
    expect_out "lr "
    expect_out "tok/s"
}

test_dumb_terminal_gets_plain_lines() {
    on_terminal "TERM=dumb $program $(echo $tiny) --out out"
    expect_code 0
    expect_out "step 6/6"
    ! grep -q "$escape" "$stdout" || fail "an escape code"
}

test_help_is_coloured_on_a_terminal_only() {
    on_terminal "$program --help"
    expect_out "$escape["
    run --help
    ! grep -q "$escape" "$stdout" || fail "an escape code"
}

test_show_rows_colours_what_counts() {
    echo '{"question": "2+3?", "answer": "5"}' > sums.jsonl
    on_terminal "$program $(echo $tiny) --data sums.jsonl --show-rows 1"
    grep -qF "${escape}[32m5\\x00${escape}[0m" "$stdout" || fail "the answer has no colour: $(cat "$stdout")"
    grep -qF '[[' "$stdout" && fail "brackets beside colours"
    on_terminal "NO_COLOR=1 $program $(echo $tiny) --data sums.jsonl --show-rows 1"
    grep -qF '[[5\x00]]' "$stdout" || fail "the answer has no brackets: $(cat "$stdout")"
}
