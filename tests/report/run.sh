#!/usr/bin/env bash
# hybrid-report and the page that hybrid-train leaves, end to end; then the page in a browser: what is drawn
# are the run's numbers, nothing is wider than a phone, nothing is fetched, 100,000 steps open in two seconds.
#
# The browser is Chromium without a window (chromium, chromium-browser or google-chrome); where there is none
# those tests are skipped with a line. HYBRID_BIN or HYBRID_BUILD say where the programs are. Ends with the
# line "N passed, N failed".
set -uo pipefail
export LC_ALL=C

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
bin="${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-report-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
passed=0
failed=0

check() { # check NAME: the function of that name must succeed
    if "$1" > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        sed 's/^/      /' "$scratch/log"
    fi
}

for needed in hybrid-train hybrid-report; do
    [ -x "$bin/$needed" ] && continue
    echo "$bin/$needed is missing: build it first"
    echo "0 passed, 1 failed"
    exit 1
done

tiny=(--model nano --layers 1 --width 32 --heads 2 --seq-len 32 --batch-size 2 --grad-accum-steps 1
    --builtin-bytes 60000 --sample-tokens 0 --threads 1 --device cpu --quiet --save-model=false)
train() { "$bin/hybrid-train" "${tiny[@]}" "$@"; }
report() { "$bin/hybrid-report" "$@"; }
expect_code() { # CODE COMMAND...
    local expected="$1" code
    shift
    "$@" > out 2> err
    code=$?
    cat out err
    [ "$code" = "$expected" ] || { echo "exit code $code, expected $expected"; return 1; }
}

# ---- the programs ---------------------------------------------------------------------------------

a_run_leaves_its_report() {
    train --steps 120 --eval-every 40 --out run && grep -q '</html>' run/report.html &&
        grep -q '>finished<' run/report.html && grep -q -- '--eval-every 40' run/report.html
}

a_run_with_eval_rows_charts_their_accuracy() {
    printf '{"prompt": "a b", "choices": [" c", " d"], "answer": %s}\n' 0 1 0 > choices.jsonl
    printf '{"prompt": "a b", "answer": " c"}\n' > answers.jsonl
    train --steps 6 --eval-every 2 --eval-rows choices.jsonl --eval-rows answers.jsonl --out scored &&
        grep -q '"id":"accuracy".*"errors":"' scored/report.html &&
        grep -q '<dt>Accuracy</dt>' scored/report.html &&
        grep -q '<dt>Greedy accuracy</dt>' scored/report.html && grep -q '"choice_rows": 3' scored/summary.json
}

a_run_with_report_off_writes_none() {
    train --steps 3 --set save.report=false --out without && [ ! -e without/report.html ]
}

a_report_that_cannot_be_written_is_a_warning() {
    expect_code 0 train --steps 3 --out hindered || return 1
    mkdir -p hindered/.report.html.partial/full # where it is written before it gets its name
    expect_code 0 train --steps 5 --out hindered --resume hindered && grep -q 'could not write the report' err
}

a_stopped_run_leaves_its_report() {
    # A job in the background of a script does not get SIGINT; SIGTERM asks for the same.
    "$bin/hybrid-train" "${tiny[@]}" --steps 1000000 --out stopped > /dev/null &
    local job=$! waited=0
    until [ "$(wc -l 2> /dev/null < stopped/metrics.jsonl)" -gt 5 ] 2> /dev/null; do
        sleep 0.2
        waited=$((waited + 1))
        [ "$waited" -lt 300 ] || { kill "$job"; echo "no steps came"; return 1; }
    done
    kill -TERM "$job"
    wait "$job"
    local code=$?
    [ "$code" = 75 ] || { echo "exit code $code, expected 75"; return 1; }
    grep -q '>stopped<' stopped/report.html
}

one_run_is_written_into_its_folder() {
    rm -f run/report.html
    expect_code 0 report run/ && grep -q 'wrote run/report.html: 1 run' out && grep -q '</html>' run/report.html
}

several_runs_are_written_here() {
    expect_code 0 report run stopped && grep -q 'wrote report.html: 2 runs' out &&
        grep -q 'Side by side' report.html
}

a_run_in_progress_is_reported_as_far_as_it_came() {
    mkdir -p going
    head -n 20 run/metrics.jsonl > going/metrics.jsonl || return 1
    printf '{"step":20,"lo' >> going/metrics.jsonl
    expect_code 0 report going --out going.html --quiet && [ ! -s out ] && [ ! -s err ] &&
        grep -q '>in progress<' going.html
}

wrong_usage_is_reported() {
    expect_code 2 report && grep -q 'no run found' err &&
        expect_code 2 report nowhere && grep -q 'nowhere' err &&
        expect_code 2 report run --fast && grep -q -- '--fast' err &&
        expect_code 2 report run --out && grep -q 'needs a value: FILE' err &&
        mkdir -p empty && expect_code 2 report empty && grep -q 'no readable line in metrics.jsonl' err &&
        expect_code 2 report run --out nowhere/page.html && [ ! -e nowhere ] &&
        expect_code 0 report --help && grep -q 'Usage' out && expect_code 0 report --version
}

unreadable_lines_are_reported() {
    mkdir -p broken
    { cat going/metrics.jsonl; printf '\nnonsense\n'; } > broken/metrics.jsonl
    expect_code 0 report broken && grep -q 'skipped 2 lines of metrics.jsonl that could not be read' err
}

# ---- the page in a browser --------------------------------------------------------------------------

browser=""
for name in chromium chromium-browser google-chrome; do
    browser="$(command -v "$name")" && break
done

# look NAME PAGE [WIDTH]: the page as the browser has it after drawing, in NAME.dom; what it asked the network
# for in NAME.requests. Requests of the browser itself carry no origin. Addresses are not resolved. A window
# of a phone's width is not to be had: with a width the page is put into a frame of that width, used as in
# use.js, and then put into the frame's place.
look() {
    local page="$2"
    if [ $# -gt 2 ]; then
        page="$1-frame.html"
        cat > "$page" << END
<!DOCTYPE html><iframe id="frame" width="$3" height="900" src="$2"></iframe><script>
$(cat "$root/tests/report/use.js")
document.getElementById('frame').onload = event => {
    const page = event.target.contentDocument;
    use(page, event.target.contentWindow);
    document.replaceChild(document.adoptNode(page.documentElement), document.documentElement);
};
</script>
END
    fi
    timeout -k 5 90 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --disable-extensions \
        --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
        --hide-scrollbars --allow-file-access-from-files --host-resolver-rules='MAP * ~NOTFOUND' \
        --user-data-dir="$scratch/profile-$1" --log-net-log="$scratch/$1.net" --enable-logging=stderr \
        --window-size=1400,900 --dump-dom "file://$scratch/$page" > "$1.dom" 2> "$1.err"
    grep '"initiator":' "$1.net" | grep -v '"initiator":"not an origin"' |
        grep -oE '"url":"(https?|wss?|ftp):[^"]*' > "$1.requests"
    rm -rf "$scratch/profile-$1"
}

of_page() { grep -oE '<html[^>]*>' "$1.dom" | grep -oE "data-$2=\"[^\"]*\"" | cut -d'"' -f2; }
of_curve() { # NAME CHART CURVE ATTRIBUTE
    tr '\n' ' ' < "$1.dom" | sed -e 's/<figure/\n<figure/g' | grep -F "data-chart=\"$2\"" |
        grep -oE '<path[^>]*data-name[^>]*>' |
        grep -F "data-name=\"$3\"" | grep -oE "data-$4=\"[^\"]*\"" | head -n 1 | cut -d'"' -f2
}

# The same of the metrics: least, greatest, last and count of a key. A move has no loss, norm and speed of its
# own.
of_metrics() { # FILE KEY
    local moves='no line'
    case "$2" in loss | grad_norm | tokens_per_second) moves='"phase":"predict"' ;; esac
    grep -v '"event"' "$1" | grep -v "$moves" | grep -oE "\"$2\":[-0-9.e+]+" | cut -d: -f2 |
        awk 'NR == 1 { min = max = $1 } { if ($1 < min) min = $1; if ($1 > max) max = $1; last = $1 }
            END { printf "%.12g %.12g %.12g %d\n", min, max, last, NR }'
}

matches() { # NAME CHART CURVE METRICS KEY: a curve has the least, greatest and last value of a key
    local min max last count
    read -r min max last count < <(of_metrics "$4" "$5")
    [ "$count" -gt 0 ] || { echo "no $5 in $4"; return 1; }
    local drawn="" key
    for key in min max last points width height; do drawn="$drawn $(of_curve "$1" "$2" "$3" "$key")"; done
    echo "$2/$3: drawn (least most last points width height)$drawn; run $min $max $last $count"
    awk -v drawn="$drawn" -v min="$min" -v max="$max" -v last="$last" -v count="$count" '
        function near(a, b) { return (a - b) ^ 2 <= (1e-6 * b) ^ 2 + 1e-24 }
        BEGIN {
            n = split(drawn, d, " ")
            exit !(n == 6 && near(d[1], min) && near(d[2], max) && near(d[3], last) &&
                d[4] > 0 && d[4] <= count && d[5] > 100 && (d[6] > 10 || min == max))
        }'
}

curves_are_drawn_with_the_runs_numbers() {
    matches desk loss training run/metrics.jsonl loss &&
        matches desk loss held-out run/metrics.jsonl val_loss &&
        matches desk lr 'learning rate' run/metrics.jsonl lr &&
        matches desk speed speed run/metrics.jsonl tokens_per_second &&
        matches desk memory activations run/metrics.jsonl activations &&
        matches desk memory 'peak within the step' run/metrics.jsonl vram_peak_bytes &&
        matches desk grad_norm 'gradient norm' run/metrics.jsonl grad_norm
}

runs_are_laid_over_each_other() {
    local runs
    runs="$(grep -oE '<path[^>]*data-name="training, mean[^>]*>' phone.dom |
        grep -oE 'data-run="[0-9]"' | sort -u | wc -l)"
    [ "$runs" = 3 ] || { echo "curves of $runs runs are drawn, expected 3"; return 1; }
}

nothing_is_wider_than_the_window() {
    local name window width
    for name in desk phone long; do
        window="$(of_page "$name" window)"
        width="$(of_page "$name" width)"
        echo "$name: window $window, page $width"
        [ "$window" -ge 370 ] && [ "$width" -le "$window" ] || return 1
    done
    [ "$(of_page phone window)" = 375 ] && [ "$(of_page desk window)" = 1280 ]
}

the_script_has_no_complaints() {
    [ -n "$(of_page desk ready)" ] && [ -n "$(of_page phone ready)" ] && [ -n "$(of_page long ready)" ] &&
        ! grep -hE 'CONSOLE|Uncaught' desk.err phone.err long.err
}

no_request_leaves_the_page() {
    cat desk.requests phone.requests long.requests
    [ "$(of_page desk requests)" = 0 ] && [ ! -s desk.requests ] && [ ! -s phone.requests ] &&
        [ ! -s long.requests ]
}

# What shows that the count above would see a request: the same page with requests put in and its policy
# taken out. With the policy in place the same requests are not made.
a_request_would_be_noticed_and_the_policy_stops_it() {
    cat unguarded.requests
    local seen
    seen="$(grep -c 'hybrid.invalid' unguarded.requests)"
    [ "$seen" -ge 2 ] || { echo "the count sees no request"; return 1; }
    cat guarded.requests
    [ ! -s guarded.requests ] && grep -q 'Content Security Policy' guarded.err &&
        [ -n "$(of_page guarded ready)" ]
}

the_page_answers_pointer_keys_and_buttons() {
    local name what
    for name in desk phone; do
        for what in axis cursor keys zoom whole legend scale theme; do
            echo "$name $what: $(of_page "$name" "use-$what")"
            [ "$(of_page "$name" "use-$what")" = yes ] || return 1
        done
    done
}

names_of_runs_stay_text() {
    [ -n "$(of_page phone ready)" ] && ! grep -q 'pwned</title>' phone.dom && ! grep -q '<img' phone.dom &&
        grep -q '&lt;img src=x' phone.dom
}

# Busy machines are slow at times: the best of three looks counts.
a_hundred_thousand_steps_open_in_two_seconds() {
    local size again
    size="$(wc -c < long.html)"
    for again in 1 2 3; do
        echo "$size bytes, ready after $(of_page long ready) ms"
        if [ "$(of_page long ready)" -lt 2000 ] || [ "$again" = 3 ]; then break; fi
        look long long.html
    done
    [ "$size" -lt 3145728 ] && [ "$(of_page long ready)" -lt 2000 ] &&
        matches long loss training long/metrics.jsonl loss
}

make_long_run() {
    mkdir -p long
    awk 'BEGIN {
        srand(1)
        for (i = 1; i <= 100000; i++) {
            n = rand()
            loss = i == 54321 ? 30.5 : 2 + 4 * exp(-i / 9000) + n / 10
            printf "{\"step\":%d,\"phase\":\"%s\",\"loss\":%.9g,", i, i % 20 < 15 ? "full" : "correct", loss
            printf "\"lr\":%.9g,\"grad_norm\":%.9g,\"tokens\":%d,", 3e-4 * (1 - i / 100001), n, i * 4096
            printf "\"tokens_per_second\":%.9g,\"seconds\":%.9g,\"elapsed\":%.9g,", 9000 + n, 0.4 + n, i * 0.5
            printf "\"confidence\":%.3g,\"wait_seconds\":%.9g,\"bytes_moved\":%d,", n, n / 100, 1e8 * n
            printf "\"spent\":%d,\"vram_bytes\":%d,\"vram_peak_bytes\":%d,", i, 9e8, 1e9 + i % 977
            printf "\"memory\":{\"weights\":%d,\"grads\":%d,", 3e8 + i % 7, 2e8 + i % 11
            printf "\"activations\":%d}}\n", 4e8 + i % 997
        }
    }' > long/metrics.jsonl
}

make_pages() {
    local hostile='<img src=x onerror=document.title="pwned">'
    cp -R stopped "$hostile" && cp -R run again && make_long_run && report long --out long.html &&
        report run again "$hostile" --out three.html && cp run/report.html desk.html || return 1
    local asks='<img src="http://hybrid.invalid/pixel"><link rel="stylesheet" href="https://hybrid.invalid/font">'
    sed "s#<main>#<main>$asks#" desk.html > guarded.html
    sed 's#<meta http-equiv="Content-Security-Policy"[^>]*>##' guarded.html > unguarded.html
}

look_at_pages() {
    look long long.html # alone: its time is measured
    look desk desk.html 1280 & look phone three.html 375 &
    look guarded guarded.html & look unguarded unguarded.html &
    wait
}

check a_run_leaves_its_report
check a_run_with_eval_rows_charts_their_accuracy
check a_run_with_report_off_writes_none
check a_report_that_cannot_be_written_is_a_warning
check a_stopped_run_leaves_its_report
check one_run_is_written_into_its_folder
check several_runs_are_written_here
check a_run_in_progress_is_reported_as_far_as_it_came
check wrong_usage_is_reported
check unreadable_lines_are_reported

if [ -z "$browser" ]; then
    echo "skipped: no chromium, chromium-browser or google-chrome here to open the page in"
elif [ "${VARIANT:-release}" != release ]; then
    echo "skipped: the page is opened in a browser with the plain build"
else
    check make_pages
    look_at_pages
    check curves_are_drawn_with_the_runs_numbers
    check runs_are_laid_over_each_other
    check nothing_is_wider_than_the_window
    check the_script_has_no_complaints
    check no_request_leaves_the_page
    check a_request_would_be_noticed_and_the_policy_stops_it
    check the_page_answers_pointer_keys_and_buttons
    check names_of_runs_stay_text
    check a_hundred_thousand_steps_open_in_two_seconds
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
