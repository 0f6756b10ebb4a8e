#!/usr/bin/env bash
# Runs on pairs of answers: losses, gradient norms and weights of 20 steps against the formulas in PyTorch and
# against TRL; and runs that are killed at random moments and resumed, which must end with the same bits.
#
# The comparison needs a Python with torch, transformers and trl, which HYBRID_TRAINERS_PYTHON names (else python3);
# without them it is left out. KILLS is the number of kills (50). Ends with the line "N passed, N failed".
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="${HYBRID_BUILD:-$root/build}"
train="$build/bin/hybrid-train"
python="${HYBRID_TRAINERS_PYTHON:-python3}"
kills="${KILLS:-50}"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-pairs-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
passed=0 failed=0

"$python" "$root/tests/trainers/check_pairs.py" "$train" > oracle.log 2> oracle.err
case $? in
0) passed=$((passed + 1)) && grep -E "^(ok|left out)" oracle.log ;;
77) echo "left out: HYBRID_TRAINERS_PYTHON names a Python with torch, transformers and trl" ;;
*) failed=$((failed + 1)) && grep -E "^(ok|FAILED|left out)" oracle.log; tail -n 20 oracle.err ;;
esac

for i in $(seq 0 199); do
    echo '{"prompt": "'$((i % 10))'+'$((i % 7))'?", "chosen": "'$((i % 10 + i % 7))'", "rejected": "none: '$i'"}'
done > pairs.jsonl

# Starts or goes on with the run in $1; the other arguments are flags. before=exec: in place of this shell.
run() {
    out="$1" && shift
    ${before:-} "$train" --model nano --data pairs.jsonl --out "$out" --steps 80 --seq-len 64 --batch-size 2 --save-every 2 \
        --keep 2 --eval-every 20 --sample-tokens 0 --threads 1 --device cpu --report false --tensorboard false \
        --quiet "$@"
}

# A kill before the first checkpoint leaves nothing to resume: the run then starts over.
resumed() {
    out="$1" && shift
    if ls "$out"/checkpoint-*/manifest.json > /dev/null 2>&1; then
        run "$out" "$@" --resume
    else
        run "$out" "$@" --overwrite
    fi
}

weights() { sha256sum "$1"/checkpoint-80/*.safetensors | cut -d ' ' -f 1; }

kill_and_resume() { # NAME COUNT FLAG ...
    name="$1" count="$2" && shift 2
    run whole "$@" --overwrite 2> run.err || { cat run.err && return 1; }
    for number in $(seq "$count"); do
        rm -rf killed
        before=exec resumed killed "$@" 2> /dev/null &
        child=$!
        sleep "0.$(printf '%03d' $((RANDOM % 1000)))"
        kill -9 $child 2> /dev/null
        wait $child 2> /dev/null
        resumed killed "$@" 2> run.err || { echo "$name, kill $number:" && cat run.err && return 1; }
        [ "$(weights killed)" = "$(weights whole)" ] || { echo "$name, kill $number: other weights" && return 1; }
    done
    echo "ok      $name, killed $count times"
}

third=$(((kills + 2) / 3))
for case in "dpo, all parameters:--task dpo" "dpo, adapters:--task dpo --lora" "orpo:--task orpo"; do
    # shellcheck disable=SC2086 # words
    if kill_and_resume "${case%%:*}" "$third" ${case#*:}; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
