#!/usr/bin/env bash
# Runs that learn from rewards: losses, gradient norms and weights of 20 steps against the formulas in PyTorch and
# against TRL; and runs that are killed and resumed, which must end with the same weights and metrics. They are killed
# at random moments, while the reward program scores, between journal and update, and while a checkpoint is written.
#
#   tests/long/rewards.sh [KILLS]
#
# The comparison needs a Python with torch, transformers, peft and trl, which HYBRID_TRAINERS_PYTHON names (else
# python3); without them, or with ORACLE=0, it is left out. KILLS is the number of kills (50). Ends with the line
# "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
train="$build/bin/hybrid-train"
python="${HYBRID_TRAINERS_PYTHON:-python3}"
kills="${1:-${KILLS:-50}}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-rewards-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
passed=0 failed=0

if [ "${ORACLE:-1}" = 1 ]; then
    "$python" "$root/tests/trainers/check_rewards.py" "$train" > oracle.log 2> oracle.err
    case $? in
    0) passed=$((passed + 1)) && grep -E "^(ok|left out)" oracle.log ;;
    77) echo "left out: HYBRID_TRAINERS_PYTHON names a Python with torch, transformers, peft and trl" ;;
    *) failed=$((failed + 1)) && grep -E "^(ok|FAILED|left out)" oracle.log; tail -n 20 oracle.err ;;
    esac
fi

steps=24 prompts=4
for i in $(seq 0 119); do
    echo '{"prompt": "'$((i % 10))'+'$((i % 7))'=", "answer": "'$((i % 10 + i % 7))'", "number": '"$i"'}'
done > rows.jsonl

# Scores answers with a number that follows from the line, or with a random one. It notes the rows that it is asked
# for, and kills the run ($scratch/pid) at line number $KILL_LINE.
cat > score.sh << 'SCORE'
count=0
while read -r line; do
    number=${line##*\"number\":}
    number=${number# }
    echo "${number%%[!0-9]*}" >> "$ASKED"
    count=$((count + 1))
    if [ "$count" = "$KILL_LINE" ]; then
        until [ -s "$1/pid" ]; do sleep 0.01; done
        kill -9 "$(cat "$1/pid")"
        exit 1
    fi
    if [ "$2" = random ]; then
        echo $(($(od -An -N2 -tu2 /dev/urandom) % 7))
    else
        echo $((${#line} % 7))
    fi
done
SCORE

# Starts or goes on with the run in $1; the other arguments are flags. before=exec: in place of this shell.
run() {
    out="$1" && shift
    ${before:-} "$train" --model nano --data rows.jsonl --out "$out" --task grpo --steps $steps --seq-len 64 \
        --prompts $prompts --samples 4 --answer-tokens 16 --shuffle false --save-every 2 --sample-tokens 0 --threads 1 \
        --device cpu --report false --tensorboard false --quiet "$@"
}

has_checkpoint() { ls "$1"/checkpoint-*/manifest.json > /dev/null 2>&1; }

# A kill before the first checkpoint leaves nothing to resume: the run then starts over.
resumed() {
    if has_checkpoint "$1"; then run "$@" --resume; else run "$@" --overwrite; fi
}

weights() { sha256sum "$1"/checkpoint-$steps/*.safetensors 2> /dev/null | cut -d ' ' -f 1; }

# The lines of steps without times, and without the reason of a phase, which a resumed run repeats.
metrics() {
    grep '^{"step":' "$1/metrics.jsonl" | sed -E 's/"reason":"[^"]*",//
        s/"(tokens_per_second|[a-z_]*seconds|elapsed|rollout_speed|host_resident_bytes)":[^,}]*,?//g'
}

same() { # FOLDER FOLDER
    if [ -z "$(weights "$1")" ] || [ "$(weights "$1")" != "$(weights "$2")" ]; then
        echo "other weights" && return 1
    fi
    diff <(metrics "$1") <(metrics "$2") > metrics.diff && return
    echo "other metrics" && head -c 2000 metrics.diff
    return 1
}

same_as_whole() { same whole killed; }

# Rollouts in the journal of $1, without a torn line; no process is started.
journal_lines() {
    local list=()
    [ -e "$1/rewards.jsonl" ] && mapfile -t list < "$1/rewards.jsonl"
    lines=${#list[@]}
}

# Returns at a moment of the given kind, or when the run has ended.
wait_for() { # KIND CHILD FOLDER SECONDS
    local first i
    case "$1" in
    time) sleep "$(awk -v s="$4" -v r=$RANDOM 'BEGIN { print s * r / 32768 }')" ;;
    program)
        wait "$2" 2> /dev/null
        [ $? -eq 137 ] && hits[program]=$((${hits[program]:-0} + 1)) # by the program
        ;;
    journal)
        journal_lines "$3" && first=$lines
        first=$((first + 1 + RANDOM % 4))
        while kill -0 "$2" 2> /dev/null; do journal_lines "$3" && [ "$lines" -ge "$first" ] && break; done
        ;;
    saving)
        for ((i = RANDOM % 3; i >= 0; i--)); do
            while kill -0 "$2" 2> /dev/null; do compgen -G "$3/.checkpoint-*.partial" > partial && break; done
            [ "$i" -eq 0 ] && break
            while kill -0 "$2" 2> /dev/null; do compgen -G "$3/.checkpoint-*.partial" > partial || break; done
        done
        ;;
    esac
}

# Every row that was asked for in this attempt is of a rollout that was not in the journal when it began.
asked_once() { # FILE LINES
    local row
    while read -r row; do
        [ $((row / prompts)) -ge "$2" ] && continue
        echo "row $row was scored again, $2 rollouts were in the journal"
        return 1
    done < "$1"
}

# Kills a run of the flags in $3... up to $2 times, each at another kind of moment.
kill_run() { # SECONDS COUNT FLAG ...
    local seconds="$1" count="$2" kinds=(time journal program saving) kind child before_kill
    shift 2
    rm -rf killed
    while [ "$count" -gt 0 ]; do
        kind="${kinds[$((number % 4))]}"
        number=$((number + 1)) count=$((count - 1))
        rm -f pid asked
        : > asked
        lines=0
        has_checkpoint killed && journal_lines killed
        before_kill=$lines
        export ASKED="$scratch/asked" KILL_LINE=0
        [ "$kind" = program ] && KILL_LINE=$((1 + RANDOM % 128))
        before="exec" resumed killed "$@" 2> /dev/null &
        child=$!
        echo $child > pid
        wait_for "$kind" $child killed "$seconds"
        [ "$kind" != program ] && kill -9 $child 2> /dev/null && hits[$kind]=$((${hits[$kind]:-0} + 1))
        wait $child 2> /dev/null
        asked_once asked "$before_kill" || return 1
    done
    : > asked
    lines=0 KILL_LINE=0
    has_checkpoint killed && journal_lines killed
    before_kill=$lines
    resumed killed "$@" 2> run.err || { cat run.err && return 1; }
    asked_once asked "$before_kill"
}

# The run again, from its first checkpoint and its journal: it asks for nothing.
repeat_from_journal() {
    local first
    first="$(basename "$(printf '%s\n' killed/checkpoint-* | sort -t - -k 2 -n | head -n 1)")"
    rm -rf repeated && mkdir repeated && cp -r killed/{rewards.jsonl,metrics.jsonl,config.cfg,"$first"} repeated
    : > asked
    run repeated "$@" --resume 2> run.err || { cat run.err && return 1; }
    [ ! -s asked ] || { echo "scored again: $(head -n 1 asked)" && return 1; }
    cmp killed/rewards.jsonl repeated/rewards.jsonl && same killed repeated
}

check() { # NAME COUNT PROGRAM FLAG ...
    local name="$1" left="$2" program="$3" began seconds number=0 some compare=same_as_whole
    shift 3
    [ "$program" = random ] && compare=repeat_from_journal
    set -- "$@" --reward-program "sh '$scratch/score.sh' '$scratch' $program"
    export ASKED=/dev/null KILL_LINE=0
    began=$(date +%s.%N)
    run whole "$@" --overwrite 2> run.err || { cat run.err && return 1; }
    seconds=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { print (b - a) / 2 }')
    declare -A hits=()
    while [ "$left" -gt 0 ]; do
        some=$((left < 4 ? left : 4)) left=$((left - 4))
        if ! kill_run "$seconds" "$some" "$@" || ! "$compare" "$@"; then
            echo "FAILED  $name, $number kills" && return 1
        fi
    done
    echo "ok      $name, $number kills: ${hits[time]:-0} at random moments, ${hits[journal]:-0} between journal and" \
        "update, ${hits[program]:-0} in the program, ${hits[saving]:-0} while saving"
}

third=$(((kills + 2) / 3))
for case in "all parameters:same:--keep 2 --eval-every 8 --val-fraction 0.1 --reward ended" \
    "adapters, three updates:same:--keep 2 --lora --iterations 3 --kl 0.1 --eval-every 8 --val-fraction 0.1" \
    "random rewards:random:--keep 100 --val-fraction 0"; do
    IFS=: read -r name program flags <<< "$case"
    # shellcheck disable=SC2086 # words
    if check "$name" "$third" "$program" $flags; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
