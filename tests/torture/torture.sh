#!/usr/bin/env bash
# torture.sh SEED [MINUTES [TRIAL]]: what an adversary would try, for MINUTES (2).
#
# Trials are numbered from 0, and everything in one follows from SEED and its number: with TRIAL, that one
# alone is done again and its folder is kept, as are those of trials that failed. A trial runs a program in a
# folder of its own and disturbs it:
#   kills         a signal at the n-th call that changes the disk, or at a random moment
#   faults        the n-th open, read, write, rename, fsync, unlink, mkdir, ftruncate, malloc or mmap fails,
#                 once or from there on, in a start, a save, a resume, an export, a report, or one of two
#                 processes on one run
#   inputs        a file of a run is damaged; and the fuzz targets, under their sanitizer, with the seed
#   environments  closed streams, limits, locales, odd names, a folder that is gone
#   rivals        --resume and --overwrite at once, of a run that another process works on
#   strangers     two ranks, and processes that are none at their ports and sockets (strangers.c)
# After each: no signal but the one that was sent, no file outside the run's folder changed, at most 2 GB and
# 20 s; and the run goes on, resumed where it has a checkpoint and begun anew where it has none, to the
# losses of an undisturbed one. The last lines are counts; exit code 1 when anything failed.
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="${HYBRID_BUILD:-$here/../../build}"
bin="${HYBRID_BIN:-$build/bin}"
tools="$build/tests/torture"
seed="${1:?usage: torture.sh SEED [MINUTES [TRIAL]]}"
minutes="${2:-2}"
only="${3:-}"
jobs="${HYBRID_TORTURE_JOBS:-$((2 * $(nproc 2> /dev/null || echo 2)))}"
# A file system in memory, if there is one: otherwise trials would mostly wait for the disk.
memory=/dev/shm
[ -d $memory ] && [ -w $memory ] || memory=/tmp
root="$(mktemp -d "${TMPDIR:-$memory}/hybrid-torture-XXXXXX")"
trap '[ -n "$only" ] || [ -s "$root/failed" ] || rm -rf "$root"' EXIT
export LC_ALL=C OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
unset NO_COLOR COLUMNS

tiny="--model nano --layers 1 --width 32 --heads 2 --seq-len 32 --batch-size 2 --steps 12 --save-every 4
      --grad-accum-steps 1 --sample-tokens 0 --threads 1 --device cpu"
arguments=(
    "$tiny --builtin-bytes 20000"
    "$tiny --builtin-bytes 20000 --predictor none --keep 1"
    "$tiny --data text.txt --eval-every 3"
)
scenarios=(start resume export report)
kinds=(open read write rename fsync unlink mkdir truncate malloc mmap)

# ---- what a trial leans on ---------------------------------------------------------------------

# draw N: a number below N in $drawn. Not in a subshell: RANDOM begins anew there, with nobody's seed.
draw() { drawn=$(((RANDOM * 32768 + RANDOM) % $1)); }

losses() {
    awk '/^{"event"/ { next }
         { match($0, /"step":[0-9]+/); s = substr($0, RSTART, RLENGTH)
           match($0, /"loss":[^,}]+/); print s, substr($0, RSTART, RLENGTH) }' "$1/metrics.jsonl" 2> /dev/null
}

wrong() { echo "$*" >> wrong; }

# guarded [OPTION ...] PROGRAM ARGUMENT ...: sets code, ended_by, and notes what is never right.
guarded() {
    "$tools/guard" report "$@" > stdout 2> stderr < /dev/null
    read -r code ended_by kib ms < report || { wrong "the guard itself failed"; return; }
    [ "$kib" -le 2097152 ] || wrong "$kib KiB of memory"
    [ "$ms" -lt 20000 ] || wrong "it took $ms ms"
}

# The folder of a trial, with a file beside the run that nobody may touch.
set_up() {
    rm -rf "$1" && mkdir -p "$1/beside" && cd "$1" || exit 2
    echo "not yours" > beside/file
    ln -s beside/file link
    cp "$root/text.txt" text.txt
}

outside() { # all but the run, what a trial itself writes, and what the program was asked to write
    find . \( -name out -o -name ex -o -name '.ex*' -o -name 'gone-*' \) -prune -o -type f ! -name stdout ! -name stderr \
        ! -name report ! -name 'report.?' ! -name wrong ! -name std.\? -print0 -o -type l -print0 |
        sort -z | xargs -0 cksum 2> /dev/null
}

# expect_alive SIGNAL: the program ended by itself, or by the signal that was sent (0: none).
expect_alive() {
    [ "$ended_by" = 0 ] || [ "$ended_by" = "$1" ] || wrong "ended by signal $ended_by: $(tail -n 1 stderr)"
}

has_checkpoint() { compgen -G 'out/checkpoint-[0-9]*' > /dev/null; }

# goes_on CONFIG: without disturbance, to the losses of the undisturbed run.
goes_on() {
    local was_saved
    was_saved=$(grep -c '^saved ' stdout 2> /dev/null)
    if has_checkpoint; then
        guarded "$bin/hybrid-train" --resume out
    else
        [ "${was_saved:-0}" = 0 ] || wrong "what was saved is gone"
        # shellcheck disable=SC2086
        guarded "$bin/hybrid-train" ${arguments[$1]} --out out --overwrite
    fi
    [ "$code" = 0 ] || wrong "going on ended with code $code (signal $ended_by): $(tail -n 1 stderr)"
    [ "$(losses out)" = "$(losses "$root/whole-$1/out")" ] || wrong "the losses are others"
}

# scenario NAME CONFIG: the folder it begins with, and its command in $command.
scenario() {
    case $1 in
    start) read -r -a command <<< "$bin/hybrid-train ${arguments[$2]//$'\n'/ } --out out" ;;
    resume)
        cp -r "$root/half-$2/out" out
        command=("$bin/hybrid-train" --resume out)
        ;;
    export)
        cp -r "$root/whole-$2/out" out
        command=("$bin/hybrid-export" out --out ex)
        ;;
    report)
        cp -r "$root/whole-$2/out" out
        command=("$bin/hybrid-report" out)
        ;;
    esac
}

# ---- trials --------------------------------------------------------------------------------------

calls_of() { awk -v kinds="+$3+" 'index(kinds, "+" $1 "+") { n += $2 } END { print n + 0 }' "$root/counts-$1-$2"; }

trial_kill() {
    local config=$(($1 % 3)) name on=write+rename+fsync+unlink+mkdir+truncate count sent
    draw 3
    name=${scenarios[drawn]}
    scenario "$name" "$config"
    local before
    before=$(outside)
    draw 4
    if [ "$drawn" = 0 ]; then
        local all=(9 15 2)
        draw 3
        sent=${all[drawn]}
        draw 150
        what="$name, config $config: signal $sent after $drawn ms"
        guarded -s "$sent:$drawn" "${command[@]}"
    else
        sent=9
        draw $(($(calls_of "$name" "$config" "$on") + 1))
        count=$drawn
        what="$name, config $config: killed at call $count of $on"
        guarded env LD_PRELOAD="$tools/faults.so" "TORTURE=$on:$count:-9" "${command[@]}"
    fi
    expect_alive "$sent"
    [ "$(outside)" = "$before" ] || wrong "files outside the run changed"
    [ "$name" = start ] || has_checkpoint || wrong "no checkpoint is left"
    goes_on "$config"
}

trial_fault() {
    local config=$(($1 % 3)) name kind count errors=(28 5 12 24 13 4) error lasting="" before first=""
    draw 4
    name=${scenarios[drawn]}
    draw 8
    [ "$drawn" != 0 ] || { name=resume first=two; }
    draw ${#kinds[@]}
    kind=${kinds[drawn]}
    draw 6
    error=${errors[drawn]}
    # Interrupted calls happen to none but these, and never for ever.
    case $kind in read | write | open) ;; *) [ "$error" != 4 ] || error=5 ;; esac
    draw 3
    [ "$error" = 4 ] || [ "$drawn" != 0 ] || lasting=:lasting
    [ "$kind" != malloc ] || error=12
    draw $(($(calls_of "$name" "$config" "$kind") + 1))
    count=$drawn
    scenario "$name" "$config"
    before=$(outside)
    what="$first $name, config $config: call $count of $kind fails with error $error$lasting"
    if [ -n "$first" ]; then
        "$tools/guard" report.2 "${command[@]}" > std.o 2> std.e < /dev/null &
        guarded env LD_PRELOAD="$tools/faults.so" "TORTURE=$kind:$count:$error$lasting" "${command[@]}"
        expect_alive 0
        wait $!
        read -r code ended_by kib ms < report.2
    else
        guarded env LD_PRELOAD="$tools/faults.so" "TORTURE=$kind:$count:$error$lasting" "${command[@]}"
    fi
    expect_alive 0
    [ "$(outside)" = "$before" ] || wrong "files outside the run changed"
    [ "$name" = start ] || has_checkpoint || wrong "no checkpoint is left"
    if [ "$name" = export ] && [ "$code" = 0 ]; then
        cmp -s ex/model.safetensors "$root/whole-$config/ex/model.safetensors" || wrong "another export"
    fi
    goes_on "$config"
}

trial_input() {
    local config=$(($1 % 3)) files file before
    cp -r "$root/half-$config/out" out
    mapfile -t files < <(find out -type f | sort)
    draw ${#files[@]}
    file=${files[drawn]}
    "$tools/mutate" "$file" $((seed * 1000000 + $1))
    before=$(outside)
    draw 3
    case $drawn in
    0) command=("$bin/hybrid-report" out) ;;
    1) command=("$bin/hybrid-export" out --out ex) ;;
    2) command=("$bin/hybrid-train" --resume out) ;;
    esac
    what="damaged $file, then ${command[0]##*/}"
    guarded "${command[@]}"
    expect_alive 0
    [ "$(outside)" = "$before" ] || wrong "files outside the run changed"
    case $file in
    out/checkpoint-*)
        [ "${command[1]}" != --resume ] || [ "$code" != 0 ] ||
            [ "$(losses out)" = "$(losses "$root/whole-$config/out")" ] || wrong "the losses are others"
        ;;
    esac
}

trial_environment() {
    local config=$(($1 % 3)) options=() settings=() out=out before args values any
    args=${arguments[$config]//$'\n'/ }
    draw 600
    any=$drawn
    draw 16
    case $drawn in
    0) settings=(-u HOME -u USER -u PATH) ;;
    1) settings=(HOME=/nonexistent/home "TMPDIR=$PWD/nowhere") ;;
    2) options=(-c 0) ;;
    3) options=(-c 1) ;;
    4) options=(-c 2) ;;
    5) options=(-c 0 -c 1 -c 2) ;;
    6) options=(-f "$any") ;;
    7) values=(LC_ALL=tr_TR.UTF-8 LC_ALL=de_DE.UTF-8 LC_ALL=xx LANG= LC_NUMERIC=fr_FR.UTF-8) settings=("${values[any % 5]}") ;;
    8) values=(000 777 277 177 077) options=(-u "${values[any % 5]}") ;;
    9) options=(-n "$((3 + any % 30))") ;;
    10) options=(-a "$((16 + any))") ;;
    11) values=('a b' 'ä' "new
line" './././out' 'deep/er/out' "$(printf 'x%.0s' {1..200})") out=out/${values[any % 6]} ;;
    12) values=(COLUMNS=0 COLUMNS=99999999999 TERM= TERM=nonsense OMP_NUM_THREADS=-1 OMP_NUM_THREADS=100000) settings=("${values[any % 6]}") ;;
    13) out=out && mkdir out && echo mine > out/notes.txt ;;
    14) mkdir out && chmod 500 out ;;
    15) options=(-g) args=${args/text.txt/../text.txt} ;;
    esac
    before=$(outside)
    what="config $config: ${options[*]} ${settings[*]} --out $out"
    read -r -a command <<< "$bin/hybrid-train $args"
    # The program is started by its full path, so that no PATH is needed.
    guarded "${options[@]}" env "${settings[@]}" "${command[@]}" --out "$out"
    expect_alive 0
    chmod -R u+rwX out 2> /dev/null
    [ "$(outside)" = "$before" ] || wrong "files outside the run changed"
    [ "$code" != 0 ] || [ "${options[*]}" = -g ] ||
        [ "$(losses "$out")" = "$(losses "$root/whole-$config/out")" ] || wrong "the losses are others"
    [ ! -e out/notes.txt ] || [ "$(cat out/notes.txt)" = mine ] || wrong "the user's file changed"
    [ "$out" != out ] || [ -e out/notes.txt ] || [ "${options[*]}" = -g ] || goes_on "$config"
}

# A run at any moment of its life stands still while two others want its folder.
trial_rival() {
    local config=$(($1 % 3)) live before after options rival pids=()
    draw 400
    what="config $config: others come after $drawn ms"
    read -r -a options <<< "${arguments[$config]//$'\n'/ } --out out --steps 100000 --save-every 3"
    "$bin/hybrid-train" "${options[@]}" > std.o 2> std.e < /dev/null &
    live=$!
    while [ ! -s out/.lock ] && kill -0 $live 2> /dev/null; do sleep 0.01; done
    sleep "$(printf '0.%03d' "$drawn")"
    kill -STOP $live
    # A thread stops when the call it is in has returned: it may have been a rename.
    while sed 's/.*) //' /proc/$live/task/*/stat 2> /dev/null | grep -qv '^[TtZX]'; do sleep 0.005; done
    before=$(find out | sort | while read -r f; do [ -d "$f" ] && echo "$f" || cksum "$f"; done)
    for rival in 1 2; do
        options=(--resume out)
        # shellcheck disable=SC2206
        [ $rival = 1 ] || options=(${arguments[$config]} --out out --overwrite)
        "$tools/guard" report.$rival "$bin/hybrid-train" "${options[@]}" > std.$rival 2>&1 < /dev/null &
        pids+=($!)
    done
    wait "${pids[@]}"
    for rival in 1 2; do
        [ "$(cut -d ' ' -f 1 report.$rival)" = 2 ] || wrong "rival $rival ended with $(cat report.$rival)"
        grep -q "in use by process $live on host $(hostname)" std.$rival ||
            wrong "rival $rival got the message $(tail -n 1 std.$rival)"
    done
    after=$(find out | sort | while read -r f; do [ -d "$f" ] && echo "$f" || cksum "$f"; done)
    [ "$before" = "$after" ] || wrong "the live run's folder changed"
    kill -CONT $live
    kill -INT $live
    wait $live
    code=$?
    [ $code = 75 ] || wrong "the live run ended with code $code: $(tail -n 1 std.e)"
    has_checkpoint || wrong "no checkpoint is left"
    [ ! -e out/.lock ] || wrong "its lock is left"
}

# Two ranks meet and train while strangers call them; with a secret at a port, without it at a Unix socket.
trial_stranger() {
    local port=$((15000 + $1 % 900 * 16)) secret="" options strangers second
    draw 2
    [ "$drawn" = 0 ] || secret="the secret of trial $1 of $seed"
    draw 500
    what="two ranks, secret '$secret', rank 1 after $drawn ms"
    read -r -a options <<< "${arguments[0]//$'\n'/ } --out out"
    rank() { # RANK REPORT
        env HYBRID_RANK="$1" HYBRID_RANKS=2 HYBRID_LOCAL_RANK="$1" HYBRID_LOCAL_RANKS=2 \
            HYBRID_ADDRESS="127.0.0.1:$port" HYBRID_JOB="torture-$seed-$trial" HYBRID_SECRET="$secret" \
            "$tools/guard" "$2" "$bin/hybrid-train" "${options[@]}" < /dev/null
    }
    local trial=$1 delay
    delay=$(printf '0.%03d' "$drawn")
    "$tools/strangers" $((seed * 1000000 + $1)) $port &
    strangers=$!
    { sleep "$delay"; rank 1 report.1 > std.1 2>&1; } &
    second=$!
    rank 0 report.0 > stdout 2> stderr
    wait $second
    kill $strangers 2> /dev/null || wrong "the strangers ended by themselves"
    wait $strangers 2> /dev/null
    for rank in 0 1; do
        read -r code ended_by kib ms < report.$rank || wrong "rank $rank left no report"
        [ "$code $ended_by" = "0 0" ] ||
            wrong "rank $rank ended with code $code (signal $ended_by): $(tail -qn 1 std.1 stderr | tr '\n' ' ')"
        [ "$ms" -lt 20000 ] && [ "$kib" -le 2097152 ] || wrong "rank $rank took $ms ms, $kib KiB"
    done
    [ "$(grep -c 'dropped a connection' stderr)" -le 2 ] || wrong "strangers are named more than once"
    [ "$(losses out)" = "$(losses "$root/two-ranks/out")" ] || wrong "the losses are others"
}

# trial NUMBER: one line in $root/done-KIND, and one in $root/failed when something was wrong.
trial() {
    local kind what="" folder="$root/trial-$1"
    RANDOM=$(cksum <<< "$seed $1" | cut -d ' ' -f 1)
    case $(($1 % 40)) in
    [0-4]) kind=kill ;;
    5) kind=environment ;;
    6 | 7 | 8) kind=input ;;
    9 | 29) kind=rival ;;
    19 | 39) kind=stranger ;;
    *) kind=fault ;;
    esac
    set_up "$folder"
    "trial_$kind" "$1"
    echo "$1" >> "$root/done-$kind"
    if [ -s wrong ]; then
        { flock 9
          echo "FAILED $kind, $what: $(tr '\n' ';' < wrong)"
          echo "       again: HYBRID_BUILD=$build tests/torture/torture.sh $seed 0 $1"
        } 9> "$root/lock" | tee -a "$root/failed"
    fi
    cd "$root" || exit 2
    [ -n "$only" ] || [ -s "$folder/wrong" ] || { chmod -R u+rwX "$folder" && rm -rf "$folder"; }
}

# ---- the whole -----------------------------------------------------------------------------------

began=$SECONDS
: > "$root/failed"
awk 'BEGIN { for (i = 0; i < 3000; i++) print "line", i, i * 7919 % 1000 }' > "$root/text.txt"
for config in 0 1 2; do
    for name in start resume export report; do
        set_up "$root/count-$name-$config"
        scenario "$name" "$config"
        guarded env LD_PRELOAD="$tools/faults.so" TORTURE_COUNTS="$root/counts-$name-$config" "${command[@]}"
        if [ "$code" != 0 ] || [ -s wrong ]; then
            echo "the undisturbed $name of config $config ended with code $code: $(cat stderr wrong 2> /dev/null)"
            exit 1
        fi
        if [ "$name" = start ]; then # others begin with what it left
            cp -r . "$root/whole-$config"
            cp -r . "$root/half-$config"
            rm -r "$root/half-$config"/out/{checkpoint-12,model,summary.json}
            has_checkpoint && compgen -G "$root/half-$config/out/checkpoint-*" > /dev/null ||
                cp -r "$root/whole-$config/out/checkpoint-12" "$root/half-$config/out/"
        fi
        [ "$name" != export ] || cp -r ex "$root/whole-$config/ex"
    done
done

set_up "$root/two-ranks"
# shellcheck disable=SC2086
guarded "$bin/hybrid-train" ${arguments[0]} --ranks 2 --out out
[ "$code" = 0 ] || { echo "two undisturbed ranks ended with code $code: $(cat stderr)"; exit 1; }

if [ -n "$only" ]; then
    trial "$only"
    echo "its folder: $root/trial-$only"
    [ ! -s "$root/failed" ]
    exit
fi

# A fifth of the time belongs to the parsers.
inputs=0
if [ -n "${HYBRID_FUZZ_TARGETS:-}" ]; then
    # shellcheck disable=SC2086
    set -- $HYBRID_FUZZ_TARGETS
    each=$(awk -v m="$minutes" -v j="$jobs" -v n=$# 'BEGIN { print m * 12 * j / n }')
    HYBRID_FUZZ_SECONDS=$each HYBRID_FUZZ_SEED=$seed "$here/../fuzz/all.sh" > "$root/fuzz" 2>&1 ||
        { echo "FAILED input, a fuzz target with HYBRID_FUZZ_SEED=$seed: $(grep -v passed "$root/fuzz")" | tee -a "$root/failed"; }
    inputs=$(awk '/inputs, the slowest/ { n += $2; if ($(NF - 1) > 20000) print "FAILED input, too slow:", $0 > "/dev/stderr" } END { print n + 0 }' "$root/fuzz")
fi

work() { # WORKER: every jobs-th trial
    local number=$1
    while awk -v m="$minutes" -v s=$((SECONDS - began)) 'BEGIN { exit !(s < 60 * m) }'; do
        trial "$number"
        number=$((number + jobs))
    done
}
for ((worker = 0; worker < jobs; worker++)); do work "$worker" & done
wait

count() { cat "$root/done-$1" 2> /dev/null | wc -l; }
echo "seed $seed: $(count kill) kills, $(count fault) faults, $((inputs + $(count input))) inputs," \
    "$(count environment) environments, $(count rival) rivals, $(count stranger) with strangers in" \
    "$((SECONDS - began)) s"
failed=$(grep -c '^FAILED' "$root/failed")
all=$(($(count kill) + $(count fault) + $(count input) + $(count environment) + $(count rival) + $(count stranger)))
echo "$((all - failed)) passed, $failed failed"
[ "$failed" -eq 0 ] || echo "their folders are in $root"
[ "$failed" -eq 0 ]
