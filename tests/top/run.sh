#!/usr/bin/env bash
# hybrid-top end to end: pages of made-up runs at many sizes, their numbers, hostile text, runs that
# grow, and the live view on a pseudo-terminal (on_terminal.c): keys, sizes, signals.
#
# The program is $HYBRID_BIN/hybrid-top, else build/bin/hybrid-top. Ends with "N passed, N failed".
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
top="${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}/hybrid-top"
if [ ! -x "$top" ]; then
    echo "$top is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
fi
top="$(cd "$(dirname "$top")" && pwd)/hybrid-top"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-top-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
unset NO_COLOR COLUMNS LANG LC_CTYPE
export LC_ALL=C.UTF-8 TERM=xterm
passed=0
failed=0
cd "$scratch" || exit 1

${CC:-gcc} -std=c17 -D_GNU_SOURCE -O1 "$here/on_terminal.c" -o on_terminal || exit 1

check() { # check NAME: the function of that name must succeed
    if ("$1") > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

make_run() { "$here/make_run.sh" "$@"; }
once() { "$top" --once "$@"; }
live() { "$scratch/on_terminal" "$@"; } # live COLUMNSxROWS STEP ... -- PROGRAM ...

# shows TEXT ...: the page on standard input holds each of them.
shows() {
    local page text
    page="$(cat)"
    for text in "$@"; do
        [[ "$page" == *"$text"* ]] || { echo "no \"$text\" in:"; echo "$page"; return 1; }
    done
}

# What the driver says of a terminal that was given back, and of pages that stayed within it.
restored=("keys restored" "screen restored" "cursor shown" "wrap on" "colour off" "overflow 0"
    "unknown 0")

make_run mine 200 500 gpu
make_run 名前 40 100

# ---- pages ---------------------------------------------------------------------------------------

# fits WIDTH HEIGHT: no line is wider, no page higher.
fits() {
    local run wide rows
    for run in mine 名前 two many; do
        once "$run" --width "$1" --height "$2" > page || return 1
        wide=$(wc -L < page)
        rows=$(wc -l < page)
        [ "$wide" -le "$1" ] && [ "$rows" -le "$2" ] && [ "$rows" -ge 1 ] ||
            { echo "$1 x $2 gave $wide x $rows:"; cat page; return 1; }
    done
}

no_line_is_longer_than_the_page() {
    local size
    make_ranks two 2
    make_ranks many 256
    for size in 20 27 40 49 50 66 81 100 133 200 500; do fits "$size" 24 && fits "$size" 60 || return 1; done
    for size in 1 2 3 5 8 13 16 24 30 300; do fits 80 "$size" || return 1; done
    # And the width is used.
    once mine --width 200 > page
    [ "$(wc -L < page)" -eq 200 ]
}

a_page_holds_the_runs_numbers() {
    touch mine/metrics.jsonl
    once mine --width 120 | shows "mine" "running, last line" "tiny-1m, 1.23M parameters" "CPU: test" \
        "200 / 500" "40.0 %" "1m 40s so far" "2m 30s left" "0.5 s per step" "200.0k tokens" \
        "confidence 0.82" "7 accepted" "3 rejected" "35 steps predicted" "(outer)" \
        "2.1400 held out at 200" "2.1400 the best so far" "2004 tokens/s" "mfu 42.1 %" \
        "waiting 5.0 %" "3.00e-04" "gradient norm 0.75" "micro-batch 8 x 4" "1,000 tokens per step" \
        "98 % busy" "312 W" "64 °C" "12.0 GiB reserved" "3.00 GiB free on the card" \
        "device 9.00 of 12.0 GiB, normal, 75 %" "pinned 6.00 of 24.0 GiB, 25 %" \
        "memory is normal again" "memory is critical" "the guard rejected a jump"
}

# A custom run: two micro-batches in a step of 0.5 s, each with this many tokens.
make_own_run() { # FOLDER TOKENS [MORE OF THE START]
    mkdir -p "$1"
    { printf '%s' '{"event":"start","step":0,"spent":0,"elapsed":0,"time":1700000000,"model":"own"'
      echo ',"parameters":1234567,"device":"CPU: test","predictor":"none","steps_total":50,"grad_accum":2'"${3:-}}"
      awk -v tokens="$2" 'BEGIN { for (s = 1; s <= 20; s++)
        printf "{\"step\":%d,\"phase\":\"full\",\"loss\":2,\"lr\":0.001,\"tokens\":%d,\"tokens_per_second\":%d," \
            "\"seconds\":0.5,\"elapsed\":%g,\"spent\":%d,\"grad_accum\":2}\n", s, 2 * s * tokens, 4 * tokens, s / 2, s }'
    } > "$1/metrics.jsonl"
}

a_custom_run_is_counted_in_steps() {
    local older=',"tokens_per_step":2,"seq_len":1,"batch_size":1' page
    make_own_run own 1
    make_own_run own-older 1 "$older"
    make_own_run own-tokens 1000
    for page in own own-older; do
        once "$page" --width 120 > page
        shows "own, 1.23M parameters" "2 steps/s" "2 micro-batches per step" "0.5 s per step" < page || return 1
        ! grep -E 'tokens|micro-batch 1' page || return 1
    done
    once own-tokens --width 120 > page
    shows "4000 tokens/s" "40.0k tokens" "2 micro-batches per step" < page || return 1
    ! grep 'tokens per step' page || return 1
    once own mine --width 200 | shows "2 steps/s" "2004 tok/s"
}

# A run of so many ranks: steps of 0.5 s; rank r of n waits r/2n seconds, the last has most memory.
make_ranks() { # FOLDER RANKS
    mkdir -p "$1"
    awk -v n="$2" '
    function array(key, first, more) {
        printf ",\"%s\":[", key
        for (r = 0; r < n; r++) printf "%s%.6g", r ? "," : "", first + r * more
        printf "]"
    }
    BEGIN {
        printf "{\"event\":\"start\",\"step\":0,\"model\":\"m\",\"ranks\":%d,\"zero_stage\":2,\"transport\":\"sockets\"}\n", n
        for (s = 1; s <= 20; s++) {
            printf "{\"step\":%d,\"phase\":\"full\",\"loss\":2,\"seconds\":0.5,\"elapsed\":%g", s, s / 2
            array("rank_seconds", 0.5, 0); array("rank_waited", 0, 0.5 / n); array("rank_exchanged", 0.06, 0)
            array("rank_bytes", 3145728, 0); array("rank_memory", 1048576, 1048576); print "}"
        }
    }' > "$1/metrics.jsonl"
}

ranks_have_a_row_each_and_the_slowest_is_marked() {
    make_ranks two 2
    once two --width 120 > page
    shows "2   slowest 0: 0.5 s per step, waited 0 %" "ZeRO stage 2   over sockets" < page || return 1
    grep -qE '^rank 0 +0.5 s per step +waited +0 % +link +12 % +1.00 MiB +3.00 MiB sent +slowest$' page &&
        grep -qE '^rank 1 +0.5 s per step +waited +50 % +link +12 % +2.00 MiB +3.00 MiB sent$' page || return 1
    ! once mine --width 120 | grep -iE '^ranks?'
}

# NCCL's exchanges are not timed.
a_link_that_was_not_timed_is_not_shown_as_idle() {
    make_ranks untimed 2
    sed -i 's/"rank_exchanged":[[][^]]*]/"rank_exchanged":[null,null]/' untimed/metrics.jsonl
    once untimed --width 120 > page
    grep -qE '^rank 1 +0.5 s per step +waited +50 % +2.00 MiB +3.00 MiB sent$' page
}

many_ranks_are_summed_up() {
    make_ranks many 256
    once many --width 120 --height 60 > page
    shows "256   slowest 0" "memory 1.00 MiB to 256.0 MiB" < page || return 1
    sed -n 's/^rank \([0-9]*\) .*sent *\(.*\)/\1 \2/p' page > found
    printf '%s\n' "0 slowest" "128 median" "255 waits most" | diff - found || return 1
    make_ranks eight 8
    [ "$(once eight --height 60 | grep -c '^rank [0-7]')" -eq 8 ]
}

# Numbers of a file that nobody can have measured.
ranks_beyond_reason_are_no_obstacle() {
    mkdir -p odd
    echo '{"step":1,"loss":2,"rank_seconds":[1e300,null],"rank_waited":[1e308,-5],"rank_exchanged":[-1,"x"],"rank_bytes":[1e300,-7],"rank_memory":[-1e300,1e300]}' > odd/metrics.jsonl
    once odd --width 120 > page && shows "rank 0" "rank 1" < page && ! grep -i nan page
}

# Step 200 of make_run: 2 + 8 / 200.
the_training_loss_is_that_of_the_latest_step() { once mine | shows "2.0400 training"; }

bars_are_as_long_as_their_share() {
    once mine --width 112 --ascii > page
    awk '$1 == "all" || $1 == "weights" || $1 == "grads" || $1 == "activations" {
             bar = substr($0, 13, 38); full = gsub(/#/, "", bar); print $1, full }' page > found
    # 38 cells are 12 GiB.
    printf '%s\n' "all 28" "weights 9" "grads 6" "activations 12" | diff - found &&
        grep -q '^all .*:.*|' page
}

the_plan_is_shaded_and_what_exceeds_it_is_marked() {
    make_run planned 70 100
    # Of 4 GiB of activations six were planned, of 3 GiB of weights two; 38 cells are 12 GiB.
    cat > planned/plan.json <<'JSON'
{"phases": {"full": {"vram_bytes": 9663676416, "classes": {
    "weights": {"place": "device", "dtype": "bf16", "bytes": 2147483648},
    "activations": {"place": "device", "dtype": "bf16", "bytes": 6442450944},
    "master": {"place": "pinned", "dtype": "fp32", "bytes": 2147483648}}}}}
JSON
    once planned --width 112 --ascii > page
    awk '$1 == "activations" { bar = substr($0, 13, 38); print gsub(/#/, "", bar), gsub(/:/, "", bar) }' page > found
    printf '12 6\n' | diff - found && grep -qE '^weights .*!3.00 GiB' page &&
        grep -qE '^activations .* 4.00 GiB' page && grep -qE '^master .* 2.00 GiB' page
}

a_rejected_move_and_the_phases_are_in_the_strip() {
    once mine --width 100 | shows "fffffPccffff" "xcc" "last 70 lines"
}

events_and_notes_of_steps_are_listed_together_newest_first() {
    once mine --width 120 --height 40 | sed -n '/^Events/,$s/.* step \([0-9]*\) *\([a-z]*\).*/\1 \2/p' > found
    printf '%s\n' "180 rejected" "120 rejected" "60 rejected" "31 memory" "30 batch" "0 start" | diff - found
}

without_a_card_there_is_no_row_for_it() {
    ! once 名前 --width 120 | grep -E '^GPU|mfu'
}

ascii_is_ascii() {
    local page
    for page in "$(LC_ALL=C once mine 名前)" "$(once mine --ascii)"; do
        ! LC_ALL=C grep -n '[^ -~]' <<< "$page" || return 1
    done
    once mine | LC_ALL=C grep -q '[^ -~]'
}

output_that_is_no_terminal_gets_one_page_without_codes() {
    "$top" mine > page && shows "200 / 500" < page && ! grep -q "$(printf '\033')" page
}

# ---- states --------------------------------------------------------------------------------------

silence_is_judged_by_the_runs_own_steps() {
    make_run quick 50 100
    touch -d '5 seconds ago' quick/metrics.jsonl && once quick | shows "running, last line" || return 1
    touch -d '40 seconds ago' quick/metrics.jsonl && once quick | shows "quiet for 4" "a step takes 0.5 s" || return 1
    touch -d '2 hours ago' quick/metrics.jsonl && once quick | shows "stalled for 2h 00m" || return 1
    ! once quick | grep -q ' left' || { echo "a stalled run has no time left"; return 1; }
    # The same silence with steps of a minute is nothing.
    make_run slow 50 100
    sed -i 's/"seconds":0.5/"seconds":60/' slow/metrics.jsonl
    touch -d '2 minutes ago' slow/metrics.jsonl && once slow | shows "running, last line 2m 0" || return 1
    touch -d '10 minutes ago' slow/metrics.jsonl && once slow | shows "quiet for 10m" || return 1
    touch -d '2 hours ago' slow/metrics.jsonl && once slow | shows "stalled for 2h 00m, a step takes 1m 00s"
}

a_run_that_ended_says_how() {
    make_run over 100 100
    echo '{"finished":true,"steps":100,"spent":100,"steps_total":100}' > over/summary.json
    once over | shows "finished" "100 / 100" "100.0 %" "took 50 s" || return 1
    make_run half 50 100
    echo '{"finished":false,"steps":50,"spent":50,"steps_total":100}' > half/summary.json
    once half | shows "stopped" "50 / 100" "50.0 %"
}

a_run_without_a_step_is_waited_for() {
    mkdir empty
    once empty | shows "empty" "waiting for the first step" || return 1
    make_run begun 0 100
    once begun | shows "waiting for the first step" "tiny-1m" "start"
}

lines_that_nobody_understands_are_no_obstacle() {
    make_run odd 30 100
    { echo 'not json'; echo '{"event":"comet","step":30,"spent":30,"elapsed":15,"text":"seen"}'
      printf '{"step":31,"phase":"full","lo'; } >> odd/metrics.jsonl
    once odd --width 100 | shows "30 / 100" "comet" "seen"
}

# ---- hostile text --------------------------------------------------------------------------------

text_of_files_cannot_drive_the_terminal() {
    MODEL='a\\u001b[2J\\u001b]0;owned\\u0007b\\nc\\u009b31md' make_run "$(printf 'bad\033[31mname')" 30 100
    printf '%s\n' '{"event":"k\u001b[2J","step":30,"spent":30,"elapsed":15,"text":"t\u001b[1Au\r\u202ev"}' \
        >> "$(printf 'bad\033[31mname')/metrics.jsonl"
    for locale in C C.UTF-8; do
        LC_ALL=$locale once "$(printf 'bad\033[31mname')" --width 160 > page || return 1
        ! LC_ALL=C grep -n '[[:cntrl:]]' page || return 1
        ! grep -n "$(printf '\302\233')" page || return 1
        shows 'bad\x1b[31mname' 'a\x1b[2J\x1b]0;owned\x07b c' 't\x1b[1Au\x0d\u202ev' < page || return 1
    done
    live 80x24 "wait=Memory" type=q end -- "$top" "$(printf 'bad\033[31mname')" | shows "exit 0" "${restored[@]}"
}

wide_characters_take_two_columns() {
    MODEL="模型模型模型模型模型模型模型模型模型模型" make_run wide 30 100
    local width
    for width in 20 21 22 23 24 25 26; do
        once wide --width $width --height 17 > page
        [ "$(wc -L < page)" -le "$width" ] && grep -q '^Step' page || { cat page; return 1; }
    done
    once wide | shows "模型模型, 1.23M parameters"
}

# ---- which runs ----------------------------------------------------------------------------------

the_newest_run_is_taken_where_none_is_named() {
    mkdir -p elsewhere/runs && cd elsewhere || return 1
    ! "$top" 2> message && grep -q "no run found in runs/" message || return 1
    make_run runs/old 10 100
    make_run runs/new 20 100
    touch -d '1 hour ago' runs/old/metrics.jsonl
    once | shows "runs/new" "20 / 100" || return 1
    touch -d '2 hours ago' runs/new/metrics.jsonl
    once | shows "runs/old" "10 / 100" || return 1
    mkdir runs/just-begun && touch runs/just-begun/config.cfg
    once | shows "runs/just-begun" "waiting"
}

several_runs_have_a_line_each() {
    make_run other 60 100
    once mine other --width 120 > page
    shows ">1 mine" " 2 other" "40.0 %" "60.0 %" "200 / 500" < page && ! grep -q '60 / 100' page
}

# ---- usage ---------------------------------------------------------------------------------------

refuses() { # refuses FRAGMENT ARGUMENT ...: exit code 2, one line that holds the fragment
    local fragment=$1 code
    shift
    "$top" "$@" > out 2> message
    code=$?
    [ "$code" = 2 ] && [ ! -s out ] && [ "$(wc -l < message)" = 1 ] &&
        grep -qF -e "$fragment" message || { echo "$* gave $code:"; cat out message; return 1; }
}

wrong_usage_is_refused_with_what_would_be_right() {
    refuses "did you mean --interval?" mine --intervall 2 &&
        refuses "accepted: 0.1 to 3600 seconds" mine --interval 0 &&
        refuses "accepted: 0.1 to 3600 seconds" mine --interval nan &&
        refuses "accepted: 20 to 500 columns" mine --once --width 19 &&
        refuses "accepted: 20 to 500 columns" mine --once --width 80.5 &&
        refuses "accepted: 1 to 300 rows" mine --height &&
        refuses "takes no value" mine --once=yes &&
        refuses "nowhere" nowhere
}

help_teaches_and_the_manual_page_names_every_flag() {
    "$top" --help > help && [ "$("$top" -h)" = "$(cat help)" ] || return 1
    shows "Usage: hybrid-top" "runs/mine" "Exit codes" "Keys" < help || return 1
    local flag flags
    flags=$(grep -oE -e '--[a-z-]+' help | sort -u)
    [ -n "$flags" ] || return 1
    for flag in $flags; do
        sed 's/\\-/-/g' "$root/docs/man/hybrid-top.1" | grep -q -e "$flag" ||
            { echo "$flag is not in the manual page"; return 1; }
    done
    [ "$(wc -L < help)" -le 92 ] && "$top" --version | grep -qE '^hybrid-top [0-9]'
}

a_full_disk_behind_the_page_is_an_error() {
    [ -w /dev/full ] || return 0
    once mine > /dev/full 2> message
    [ $? = 1 ] && grep -q "cannot write" message
}

# ---- on a terminal -------------------------------------------------------------------------------

# The line with the time since the last line differs; the last one is that of the keys.
the_live_page_is_the_printed_one() {
    live 100x30 wait=Memory screen type=q end -- env NO_COLOR=1 "$top" mine > shown || return 1
    sed -n '2,29p' shown > live-rows
    once mine --width 100 --height 29 | sed -n '2,29p' > once-rows
    diff once-rows live-rows && shows "q quit" "exit 0" "colours none" "${restored[@]}" < shown
}

a_screen_of_any_size_is_drawn_within_it() {
    live 80x24 wait=Memory size=120x40 "wait=free on the card" size=40x10 "gone=Memory " \
        "wait=Speed" size=20x4 gone=Speed size=200x60 "wait=GiB free" size=1x1 "gone=GiB" \
        size=80x24 wait=Memory type=q end -- "$top" mine | shows "exit 0" "colours used" "${restored[@]}"
}

keys_do_what_help_says() {
    live 100x30 wait=Memory type=p wait=paused type=p gone=paused "type= " wait=paused "type= " \
        "type=?" "wait=keys and symbols" "type=\e" "gone=keys and symbols" "type=?" "wait=keys and symbols" \
        "type=?" wait=Memory type=+ "wait=every 2.0 s" type=+ "wait=every 5.0 s" type=--- \
        "wait=every 0.5 s" type=xyz "type=\e[15~" type=Q end -- "$top" mine |
        shows "exit 0" "${restored[@]}"
}

other_runs_are_chosen_with_arrows_and_digits() {
    make_run second 60 100
    make_run third 70 100
    live 100x30 "wait=>1 mine" "wait=200 / 500" "type=\e[B" "wait=>2 second" "wait=60 / 100" \
        "type=\eOC" "wait=>3 third" "type=\e[C" "wait=>1 mine" "type=\e[A" "wait=>3 third" type=2 \
        "wait=60 / 100" type=9 type=q end -- "$top" mine second third | shows "exit 0"
}

a_paused_view_stands_still() {
    make_run paused 20 100
    live 100x30 "wait=20 / 100" type=p wait=paused "run=$here/make_run.sh paused 40 100" bytes \
        "wait=20 / 100" type=p "wait=40 / 100" type=q end -- "$top" --interval 0.1 paused |
        shows "bytes 0" "exit 0"
}

a_growing_run_is_followed() {
    mkdir growing
    make_run later 31 100
    live 100x30 "wait=waiting for the first step" "run=head -n 11 later/metrics.jsonl > growing/metrics.jsonl" \
        "wait=10 / 100" "run=sed -n '12,21p' later/metrics.jsonl >> growing/metrics.jsonl" \
        "wait=20 / 100" "run=tail -n +22 later/metrics.jsonl >> growing/metrics.jsonl" "wait=31 / 100" \
        "wait=memory is critical" "run=head -n 6 later/metrics.jsonl > short; mv short growing/metrics.jsonl" \
        "wait=5 / 100" type=q end -- "$top" --interval 0.1 growing | shows "exit 0"
}

# Seven looks in which nothing but the age changes: a full page is some 3,500 bytes.
an_unchanged_page_is_not_drawn_again() {
    make_run still 20 100
    touch -d '1 hour ago' still/metrics.jsonl
    live 100x30 wait=stalled bytes type=q end -- "$top" --interval 0.1 still > out
    [ "$(sed -n 's/^bytes //p' out)" -lt 400 ] || { cat out; return 1; }
}

every_end_gives_the_terminal_back() {
    local signal
    for signal in 15 2 1; do # SIGTERM, SIGINT, SIGHUP
        live 90x28 wait=Memory "signal=$signal" end -- "$top" mine | shows "exit 75" "${restored[@]}" || return 1
    done
    live 90x28 wait=Memory "signal=6" end -- "$top" mine | shows "signal 6" "${restored[@]}" || return 1
    # In the help page, and in the middle of drawing.
    live 90x28 wait=Memory "type=?" "wait=keys and symbols" signal=15 end -- "$top" mine |
        shows "exit 75" "${restored[@]}" || return 1
    live 200x60 wait=mine signal=15 end -- "$top" --interval 0.1 mine | shows "exit 75" "${restored[@]}"
}

suspending_gives_the_terminal_back_for_a_while() {
    live 90x28 wait=Memory "type=\z" stopped > out signal=18 wait=Memory size=100x30 "wait=GiB free" \
        type=q end -- "$top" mine || return 1
    [ "$(grep -c 'keys restored' out)" = 2 ] && [ "$(grep -c 'screen restored' out)" = 2 ] &&
        [ "$(grep -c 'cursor shown' out)" = 2 ] && shows "exit 0" < out
}

a_dumb_terminal_gets_one_page() {
    live 100x40 "wait=200 / 500" end -- env TERM=dumb "$top" mine | shows "exit 0" "colours none"
}

check no_line_is_longer_than_the_page
check a_page_holds_the_runs_numbers
check a_custom_run_is_counted_in_steps
check ranks_have_a_row_each_and_the_slowest_is_marked
check a_link_that_was_not_timed_is_not_shown_as_idle
check many_ranks_are_summed_up
check ranks_beyond_reason_are_no_obstacle
check the_training_loss_is_that_of_the_latest_step
check bars_are_as_long_as_their_share
check the_plan_is_shaded_and_what_exceeds_it_is_marked
check a_rejected_move_and_the_phases_are_in_the_strip
check events_and_notes_of_steps_are_listed_together_newest_first
check without_a_card_there_is_no_row_for_it
check ascii_is_ascii
check output_that_is_no_terminal_gets_one_page_without_codes
check silence_is_judged_by_the_runs_own_steps
check a_run_that_ended_says_how
check a_run_without_a_step_is_waited_for
check lines_that_nobody_understands_are_no_obstacle
check text_of_files_cannot_drive_the_terminal
check wide_characters_take_two_columns
check the_newest_run_is_taken_where_none_is_named
check several_runs_have_a_line_each
check wrong_usage_is_refused_with_what_would_be_right
check help_teaches_and_the_manual_page_names_every_flag
check a_full_disk_behind_the_page_is_an_error
check the_live_page_is_the_printed_one
check a_screen_of_any_size_is_drawn_within_it
check keys_do_what_help_says
check other_runs_are_chosen_with_arrows_and_digits
check a_paused_view_stands_still
check a_growing_run_is_followed
check an_unchanged_page_is_not_drawn_again
check every_end_gives_the_terminal_back
check suspending_gives_the_terminal_back_for_a_while
check a_dumb_terminal_gets_one_page

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
