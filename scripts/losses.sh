#!/usr/bin/env bash
# losses.sh: the losses of many small training runs, bit for bit, to compare two builds.
#
# It checks a change that should not affect the arithmetic: record before, record after, compare.
# Each run uses another path through the trainer (places, types, predictors, data, resuming, the
# library's API). Only computed values are written, so a build always writes the same file. Runs use
# the CPU with two threads, whatever the machine has. --gpu has a separate list for a card; there
# bits also depend on the matmul algorithms, so both builds must use the same table of them.
set -uo pipefail
export LC_ALL=C
export OMP_WAIT_POLICY=passive # waiting threads do not spin, because other work may share the machine

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
    cat << 'END'
Usage: scripts/losses.sh [--only RUN,RUN] BUILD_DIR OUT_FILE
       scripts/losses.sh --gpu TABLE [--only RUN,RUN] BUILD_DIR OUT_FILE
       scripts/losses.sh --compare FILE_A FILE_B
       scripts/losses.sh [--gpu TABLE] --list
       scripts/losses.sh --kind BUILD_DIR

Trains some dozens of small models with BUILD_DIR/bin/hybrid-train and with a program linked to
BUILD_DIR/lib/libhybrid.so, and writes one line for each step to OUT_FILE:

  RUN step=N phase=P loss=X grad_norm=X [val_loss=X] [predicted_steps=X rejected=B] ...
  RUN end steps=N ... final_loss=X val_loss=X

Numbers have all their digits. The same build writes the same file each time.

  --only RUN,RUN   these runs alone (and those that they start from)
  --gpu TABLE      the list for a CUDA device: bf16, fp8, adapters, NF4, state on the host and on disk,
                   prediction, two ranks on one card. TABLE keeps the matmul algorithms that were chosen:
                   a file that is not there yet is written, one that is there decides. Both builds that
                   are compared must be given the same table
  --compare        print the runs that differ, with their first differing lines; exit 1 if any does
  --list           the names of the runs
  --kind           what the bits depend on beside the code: processor, matrix library and its core
                   type, compiler, C library; files of different kinds cannot be compared

Before and after a change:
  scripts/losses.sh build before.txt
  ... edit, make ...
  scripts/losses.sh build after.txt
  scripts/losses.sh --compare before.txt after.txt

Exit codes: 0 done or equal, 1 a run failed or differs, 2 wrong usage.
END
}

die() { # die CODE MESSAGE
    echo "losses.sh: $2" >&2
    exit "$1"
}

# ---- comparing ----------------------------------------------------------------------------------

compare() { # compare FILE_A FILE_B
    [ -r "$1" ] || die 2 "cannot read $1"
    [ -r "$2" ] || die 2 "cannot read $2"
    awk '
        FNR == 1 { file++ }
        /^# kind / { kind[file] = $3; next }
        /^#/ || !NF { next }
        {
            if (!($1 in lines)) { order[++runs] = $1; lines[$1] = 0 }
            line[file, $1, ++count[file, $1]] = $0
            if (count[file, $1] > lines[$1]) lines[$1] = count[file, $1]
            total[file]++
        }
        END {
            if (kind[1] != kind[2]) print "recorded on different kinds: " kind[1] " and " kind[2]
            for (r = 1; r <= runs; r++) {
                run = order[r]
                for (i = 1; i <= lines[run]; i++) {
                    if (line[1, run, i] == line[2, run, i]) continue
                    a = line[1, run, i]; b = line[2, run, i]
                    if (a == "") a = run " ends before, or is not there"
                    if (b == "") b = run " ends before, or is not there"
                    printf "differs: %s, line %d of it\n  A  %s\n  B  %s\n", run, i, a, b
                    bad++
                    break
                }
            }
            if (!total[1] || !total[2]) { print "a file holds no runs"; exit 1 }
            if (bad) printf "%d of %d runs differ\n", bad, runs
            else printf "%d runs, %d lines: all equal\n", runs, total[1]
            exit bad > 0
        }' "$1" "$2"
}

# ---- running ------------------------------------------------------------------------------------

# The kind of machine and build that bits depend on, as a file name.
kind_of() { # kind_of BUILD_DIR
    local matmul core version compiler libc
    matmul="$("$1/bin/hybrid-train" "${tiny[@]}" --steps 1 --out none --json 2> /dev/null < /dev/null |
        sed -n 's/.*"matmul": "\(.*\)",/\1/p')"
    [ -n "$matmul" ] || die 1 "$1/bin/hybrid-train does not report its matmul library"
    version="$(sed -n 's/OpenBLAS \([^,]*\), .*/openblas\1/p' <<< "$matmul")"
    core="$(sed -n 's/.*core type \([^ ]*\).*/\1/p' <<< "$matmul")"
    compiler="$(readelf -p .comment "$1/bin/hybrid-train" 2> /dev/null |
        sed -n 's/.*GCC: (.*) \([0-9]*\).*/gcc\1/p; s/.*clang version \([0-9]*\).*/clang\1/p' | head -n 1)"
    libc="$(getconf GNU_LIBC_VERSION 2> /dev/null | tr -d ' ')"
    echo "$(uname -m)-${core:-own}-${version:-matmul}-${compiler:-cc}-${libc:-libc}"
}

# Prints one line for each step in OUT/metrics.jsonl, and one for the result. Events are omitted.
extract() { # extract RUN METRICS SUMMARY
    awk -v run="$1" '
        function value(key,   v) {
            if (!match($0, "\"" key "\":[^,}]*")) return ""
            v = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
            gsub(/"/, "", v)
            return v
        }
        function put(key,   v) { if ((v = value(key)) != "") printf " %s=%s", key, v }
        /^{"event"/ { next }
        {
            printf "%s step=%s phase=%s loss=%s grad_norm=%s", run, value("step"), value("phase"),
                value("loss"), value("grad_norm")
            put("val_loss"); put("predicted_steps"); put("rejected"); put("guard_before")
            put("guard_after"); put("skipped"); put("rolled_back"); put("residual_cosine")
            put("residual_length"); put("loss_scale"); put("spent"); put("confidence")
            print ""
        }' "$2"
    awk -v run="$1" '
        BEGIN {
            printf "%s end", run
            split("steps backward_passes moves rejected_moves divergences forks fork_gain tokens " \
                "final_loss val_loss", names, " ")
            for (i in names) is_wanted[names[i]] = 1
        }
        /^  "[a-z_]*":/ { # values of the run; those of a phase are indented further
            gsub(/[",:]/, "")
            if ($1 in is_wanted) printf " %s=%s", $1, $2
        }
        END { print "" }' "$3"
}

# A model of two small blocks on a short built-in text.
tiny=(--model nano --layers 2 --width 64 --heads 4 --mlp-width 128 --seq-len 64 --batch-size 2
    --grad-accum-steps 1 --builtin-bytes 120000 --steps 10 --lr-warmup-steps 2 --eval-every 5
    --eval-batches 4 --sample-tokens 0 --threads 2 --device cpu)
# Short windows with jumps between them.
moves=(--steps 24 --full-steps 3 --correct-steps 2 --predict-from 0.1 --predict-until 0.95
    --confidence-threshold 0 --guard-share 1 --fork-budget 0)
# Even a gradient of the usual norm counts as a divergence.
undone=("${moves[@]}" --steps 40 --predict-from 0.4 --grad-explosion 1 --cooldown-steps 2)
# No class of state on the device.
pinned=(--weights-place pinned --master-place pinned --grads-place pinned --optim-place pinned)
disk=(--weights-place disk --master-place disk --grads-place disk --optim-place disk
    --offload-folder offload --offload-size 1GB)
# Fine-tuning of the folder that the run `made` exported, on rows.
tuned=(--model made/model --data sums.jsonl --seq-len 64 --batch-size 2 --grad-accum-steps 1 --lr 1e-3
    --lr-warmup-steps 2 --eval-batches 4 --sample-tokens 0 --threads 2 --device cpu)
# Only bf16 weights: then every phase must be bf16.
bf16_only=(--precision bf16 --precision-correct same --master-dtype bf16)

wanted() { # wanted RUN: whether to record it
    [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]
}

train() { # train FOLDER [OPTION ...]
    local folder="$1"
    shift
    "$build/bin/hybrid-train" --predictor outer "$@" --quiet --no-report --no-tensorboard --out "$folder" \
        > log 2>&1 < /dev/null || { cat log >&2; die 1 "run $folder failed"; }
    local matmul
    matmul="$(sed -n 's/.*"matmul": "\(.*\)",/\1/p' "$folder/summary.json")"
    : "${first_matmul:=$matmul}"
    # Under heavy load, one bad timing may make the program drop its matmul library.
    [ "$matmul" = "$first_matmul" ] || die 1 "$folder used $matmul, others $first_matmul: run again"
}

record() { # record RUN: the results in the folder of that name
    extract "$1" "$1/metrics.jsonl" "$1/summary.json" >> "$out"
    echo "  $1"
}

# run NAME [OPTION ...]: one run of the small model.
run() {
    local name="$1"
    shift
    wanted "$name" || return 0
    train "$name" "${tiny[@]}" "$@" && record "$name"
}

# A run must show in its metrics or summary what it is meant to test.
must_show() { # must_show RUN PATTERN
    wanted "$1" || return 0
    grep -qE -e "$2" "$1/metrics.jsonl" "$1/summary.json" || die 1 "run $1 has no $2"
}

# A run in which jumps are made and accepted.
run_moves() { # run_moves NAME [OPTION ...]
    run "$1" "${moves[@]}" "${@:2}"
    must_show "$1" '"phase":"predict".*"rejected":false'
}

# resume NAME FROM CHECKPOINT: repeats the run in folder FROM from the checkpoint of that step on.
resume() {
    rm -rf "$1" && cp -r "$2" "$1" || exit 1
    find "$1" -maxdepth 1 -name 'checkpoint-*' ! -name "checkpoint-$3" -exec rm -r {} +
    "$build/bin/hybrid-train" --resume "$1" --quiet > log 2>&1 < /dev/null ||
        { cat log >&2; die 1 "run $1 failed"; }
    record "$1"
}

rows() { # rows COUNT: sums as JSON, of different lengths
    awk -v count="$1" 'BEGIN {
        for (i = 0; i < count; i++) {
            a = i * 7919 % 997; b = i * i % 89
            printf "{\"question\": \"%d+%d?\", \"answer\": \"%d%s\"}\n", a, b, a + b,
                i % 4 ? "" : ", because " a " and " b " are " (a + b)
        }
    }'
}

text() { # words in an order that repeats with errors
    awk 'BEGIN {
        split("the cat sat on a mat and saw one more dog that ran to it", w, " ")
        for (i = 0; i < 9000; i++) printf "%s%s", w[(i * i % 31 + i) % 15 + 1], i % 11 ? " " : ".\n"
    }'
}

library() { # library NAME: a run of tests/losses/library.c, which prints such lines itself
    wanted "library-$1" || return 0
    if [ ! -x library ]; then
        # The header of that build, if it is there: structs may differ.
        local include="$build/../include"
        [ -r "$include/hybrid.h" ] || include="$root/include"
        # shellcheck disable=SC2086 # CC may be "ccache gcc"
        ${CC:-cc} -std=c17 -D_GNU_SOURCE -O1 -I"$include" "$root/tests/losses/library.c" -L"$build/lib" \
            -Wl,-rpath,"$build/lib" -lhybrid -lm -o library || die 1 "tests/losses/library.c does not build"
    fi
    ./library "$1" > lines || die 1 "library-$1 failed"
    sed "s/^/library-$1 /" lines >> "$out"
    echo "  library-$1"
}

# All runs. --only accepts these names.
run_all() {
    local profile predictor strategy

    # the default job and its profiles; only the length is changed
    for profile in aggressive balanced conservative; do
        wanted "$profile" || continue
        train "$profile" --profile "$profile" --steps 12 --threads 2 --device cpu --eval-batches 8 \
            --sample-tokens 0
        record "$profile"
    done
    if wanted default-moves; then
        train default-moves --profile aggressive --steps 40 --threads 2 --device cpu --lr-warmup-steps 4 \
            --full-steps 4 --correct-steps 2 --eval-batches 8 --sample-tokens 0 && record default-moves
        must_show default-moves '"phase":"predict".*"rejected":false'
    fi
    run_moves aggressive-moves --profile aggressive --grad-accum-steps 4
    run_moves conservative-moves --profile conservative

    # places of state
    run streaming "${pinned[@]}"
    run streaming-resident "${pinned[@]}" --resident-units 1 --ring-depth 3
    run streaming-update-now "${pinned[@]}" --update now --grad-accum-steps 2
    run_moves streaming-moves "${pinned[@]}" --predictor-place pinned
    run disk "${disk[@]}"
    run_moves disk-moves "${disk[@]}" --predictor-place disk
    run activations-pinned --activations-place pinned --grad-accum-steps 2
    run activations-recomputed --activations-place pinned --recompute all

    # recomputation and micro-batches
    run accum-recompute --grad-accum-steps 3 --recompute all
    run recompute-some --recompute attention --recompute-layers 1
    run accum-no-normalize --grad-accum-steps 2 --no-normalize --scale-lr
    run loss-chunks --loss-chunks 4

    # types
    run optim-8bit --optim-dtype 8bit
    run optim-8bit-streaming --optimizer paged_adamw8bit
    run optim-bf16 --optim-dtype bf16
    run bf16 --precision bf16
    run bf16-streaming --precision bf16 "${pinned[@]}"
    run bf16-master "${bf16_only[@]}"
    run bf16-all "${bf16_only[@]}" --optim-dtype 8bit --grad-dtype bf16 \
        --grad-accum-steps 2
    run_moves bf16-master-moves "${bf16_only[@]}"
    run fp16 --precision fp16
    run_moves mixed-phases --precision bf16 --precision-correct fp32 --precision-warmup fp32

    # predictors, and m and v in Predict
    for predictor in outer line; do run_moves "predictor-$predictor" --predictor "$predictor"; done
    run_moves predictor-bf16 --predictor-dtype bf16 --no-snapshot
    run predictor-none "${moves[@]}" --predictor none
    for strategy in none pinned cpu compress drop; do
        run_moves "offload-$strategy" --offload-strategy "$strategy" --grad-accum-steps 2
    done
    run_moves offload-no-async --offload-strategy pinned --no-async-restore
    # above the initial confidence: a fork must first show that jumps pay
    run_moves forks --steps 60 --confidence-threshold 0.81 --fork-budget 0.5 --fork-steps 3
    must_show forks '"forks": [1-9]'
    # a bad step after a jump undoes it
    run rollback "${undone[@]}"
    must_show rollback '"rolled_back":true'
    run rollback-disk "${undone[@]}" "${disk[@]}"
    must_show rollback-disk '"rolled_back":true'
    run_moves tail --tail-share 0.4
    run tail-streaming --tail-share 0.5 "${pinned[@]}"

    # models
    run window --sliding-window 16
    run gpt2-shape --norm layernorm --positions learned --activation gelu --qkv-bias --proj-bias
    run grouped-heads --kv-heads 2 --qk-norm --no-tied-head

    # data
    run packing --data sums.jsonl --packing on
    run packing-accum --data sums.jsonl --packing on --grad-accum-steps 2 --loss-on all
    run rows-unpacked --data sums.jsonl --packing off
    run text --data words.txt
    run mixture --data words.txt:2,sums.jsonl:1
    run no-shuffle --data words.txt --no-shuffle --epochs 1 --steps 0 --max-batch-size 2 --batch-size 32

    # fine-tuning the result of another run
    if wanted fine-tuning || wanted fine-tuning-bf16 || wanted init-from; then
        train made "${tiny[@]}"
        if wanted fine-tuning; then
            train fine-tuning "${tuned[@]}" "${moves[@]}" --packing on && record fine-tuning
            must_show fine-tuning '"phase":"predict".*"rejected":false'
        fi
        if wanted fine-tuning-bf16; then
            train fine-tuning-bf16 "${tuned[@]}" --steps 8 --precision bf16 --optim-dtype 8bit &&
                record fine-tuning-bf16
        fi
        run init-from --init-from made --data words.txt
    fi

    # resuming: in a plain run, in a window between jumps, and with small streamed state
    if wanted resume || wanted resumed; then
        train resume "${tiny[@]}" --steps 12 --save-every 5 --keep 0 && record resume
        resume resumed resume 5
    fi
    if wanted resume-moves || wanted resumed-moves; then
        run_moves resume-moves --save-every 8 --keep 0 --tail-share 0.4 --offload-strategy pinned
        resume resumed-moves resume-moves 8
    fi
    if wanted resume-small || wanted resumed-small; then
        train resume-small "${tiny[@]}" --save-every 5 --keep 0 "${bf16_only[@]}" --optim-dtype 8bit \
            "${pinned[@]}" && record resume-small
        resume resumed-small resume-small 5
    fi

    # the library's API
    library steps
    library model
    library loop
}

# A model large enough for tensor cores, fp8 and several units in a ring.
card=(--model nano --layers 4 --width 256 --heads 4 --mlp-width 512 --seq-len 256 --batch-size 8
    --grad-accum-steps 2 --builtin-bytes 400000 --steps 16 --lr-warmup-steps 2 --eval-every 8
    --eval-batches 4 --sample-tokens 0 --device cuda --tune fast)

on_card() { # on_card NAME [OPTION ...]
    local name="$1"
    shift
    wanted "$name" || return 0
    train "$name" "${card[@]}" --tune-cache "$table" "$@" && record "$name"
}

run_gpu() {
    on_card gpu-fp32 --precision fp32
    on_card gpu-bf16 --precision bf16
    on_card gpu-bf16-master "${bf16_only[@]}" --grad-dtype bf16 --optim-dtype 8bit
    on_card gpu-fp8 --precision fp8 --fp8 all
    on_card gpu-fp8-streamed --precision fp8 --fp8 all "${pinned[@]}"
    on_card gpu-streamed --precision bf16 "${pinned[@]}" --resident-units 1
    on_card gpu-recomputed --precision bf16 --recompute all --activations-place pinned
    on_card gpu-disk --precision bf16 "${disk[@]}"
    on_card gpu-muon --precision bf16 --optimizer muon
    on_card gpu-moves --precision bf16 "${moves[@]}" --offload-strategy pinned --grad-accum-steps 2
    on_card gpu-moves-streamed --precision bf16 "${moves[@]}" "${pinned[@]}" --tail-share 0.4
    on_card gpu-lora --precision bf16 --lora --lora-rank 8 --predictor line
    on_card gpu-nf4 --precision bf16 --qlora --lora-rank 8 --predictor line
    on_card gpu-nf4-streamed --precision bf16 --qlora --lora-rank 8 --predictor line --weights-place pinned
    on_card gpu-ranks --precision bf16 --ranks 2 --zero-stage 2
    on_card gpu-ranks-sharded --precision bf16 --ranks 2 --zero-stage 3
    if wanted gpu-resume || wanted gpu-resumed; then
        train gpu-resume "${card[@]}" --tune-cache "$table" --precision bf16 --save-every 6 --keep 0 &&
            record gpu-resume
        resume gpu-resumed gpu-resume 6
    fi
}

# As above, with every run replaced by its name.
# shellcheck disable=SC2317 # "$runs" calls them
list() {
    wanted() { :; }
    train() { :; }
    run() { echo "$1"; }
    on_card() { echo "$1"; }
    record() { echo "$1"; }
    resume() { echo "$1"; }
    library() { echo "library-$1"; }
    must_show() { :; }
    "$runs"
}

# ---- the command --------------------------------------------------------------------------------

only=""
runs=run_all
table=""
while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help)
        usage
        exit 0
        ;;
    --list)
        list
        exit 0
        ;;
    --compare)
        [ $# -eq 3 ] || die 2 "--compare takes two files; --help shows how"
        compare "$2" "$3"
        exit
        ;;
    --kind)
        [ $# -eq 2 ] || die 2 "--kind takes a build folder; --help shows how"
        kind_of "$2"
        exit
        ;;
    --gpu)
        [ $# -ge 2 ] || die 2 "--gpu takes a file for matmul algorithms; --help shows how"
        runs=run_gpu
        table="$(cd "$(dirname "$2")" && pwd)/$(basename "$2")" || die 2 "there is no folder for $2"
        shift 2
        ;;
    --only)
        [ $# -ge 2 ] || die 2 "--only takes names of runs; --list shows them"
        only="$2"
        shift 2
        ;;
    -*) die 2 "unknown option $1; --help lists the options" ;;
    *) break ;;
    esac
done
[ $# -eq 2 ] || { usage >&2; exit 2; }
names="$(list)"
for name in ${only//,/ }; do
    grep -qx -e "$name" <<< "$names" || die 2 "there is no run $name; --list shows them"
done
[ -x "$1/bin/hybrid-train" ] || die 2 "$1/bin/hybrid-train is missing: build it first"
build="$(cd "$1" && pwd)"
: > "$2" || die 2 "cannot write $2"
out="$(cd "$(dirname "$2")" && pwd)/$(basename "$2")"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/hybrid-losses-XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" && mkdir offload || exit 1
rows 400 > sums.jsonl
text > words.txt
first_matmul=""
echo "# kind $(kind_of "$build")" >> "$out"
"$runs"
echo "$(grep -vc '^#' "$out") lines of $(grep -v '^#' "$out" | cut -d ' ' -f 1 | uniq | wc -l) runs in $out"
