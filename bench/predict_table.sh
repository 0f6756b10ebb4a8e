#!/bin/sh
# predict_table.sh: how much compute does each predictor save with each optimizer? Prints one table.
#
# For each optimizer build/bench/predict_value is run with that optimizer alone as the baseline and the
# predictors over it as arms, at equal compute, each arm at the best of its own learning rates. The grids
# have the same number of rates for every optimizer. What is compared is always the same optimizer with and
# without prediction: the table does not compare optimizers with each other. See --help.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${HYBRID_BENCH:-$here/build/bench}/predict_value
long="outer:full_steps=25:correct_steps=5:outer_mu=0.7:outer_eta=0.5"
long="$long,outer:full_steps=25:correct_steps=5:outer_mu=0.5:outer_eta=0.8"
long="$long,outer:full_steps=45:correct_steps=5:outer_mu=0.7:outer_eta=0.5"
long="$long,outer:full_steps=45:correct_steps=5:outer_mu=0.5:outer_eta=0.8"
arms="outer,$long,line"
optimizers=adamw,muon,lion,sgd
seeds=1,2,3
size="" model="" data="" out="" own_rates="" options="" device="" steps=""

usage() {
    cat << END
predict_table.sh: what is each predictor worth over each optimizer, at equal compute?

Runs predict_value for each optimizer and prints one table of compute factors: the least of the seeds,
their mean and the most, and in brackets the mean gain in held-out loss, in nats. 1.05: the optimizer
alone needs 5 % more compute for the same loss. Where an optimizer's loss does not fall with its budget,
as in short noisy runs, its factors mean nothing; look at the gains then, and at an arm that moves nothing.
"edge" marks an arm whose best learning rate is the first or last of its grid: its factor may change
with a wider one. All factors of a column are doubtful where the optimizer alone is at the edge.

  bench/predict_table.sh                                    from scratch, smoke size, on a CPU
  bench/predict_table.sh --model FOLDER --data text.txt     full fine-tuning of a folder
  HYBRID_TOKENS=tokens bench/predict_table.sh --size lab    on a GPU, on token shards in tokens/lab

Ctrl-C stops after the step (exit code 75); the same command continues.

  --size NAME            of predict_value; smoke, or tune with --model
  --model FOLDER         Hugging Face or llama2.c folder whose weights are fine-tuned
  --data FILE            text or token shards; what the size has: tune tinyshakespeare.txt in \$HYBRID_DATA
                         or ../shared/data, lab \$HYBRID_TOKENS/lab/train.bin and val.bin
  --optimizers LIST      $optimizers
  --lrs OPTIMIZER=LIST   its learning rates; may be repeated
  --arms LIST            of predict_value, without the optimizer, which is added; those without
                         prediction are there always; the default: outer, outer with windows of 30 and
                         50 steps and mu/eta of 0.7/0.5 and 0.5/0.8, line
  --seeds LIST           $seeds
  --out DIR              a folder per optimizer, and table.md; runs/predict_table-SIZE
  --device NAME          cuda for lab and long, else what hybrid-train takes
  --steps, --budgets, --threads, --set KEY=VALUE: as of predict_value

Exit code: 0 done, or skipped for want of data or a card; 1 a check of predict_value failed or a run
broke; 2 wrong usage; 75 stopped.
END
}

wrong() {
    echo "predict_table: $1" >&2
    exit 2
}

skip() {
    echo "predict_table: skipped, $1"
    exit 0
}

# One learning rate and its neighbours, a factor of two apart: where each optimizer alone is best, by eye.
rates() { # OPTIMIZER
    found=$(echo "$own_rates" | sed -n "s/^$1=//p" | tail -1)
    [ -n "$found" ] && echo "$found" && return
    case $size/$1 in
        smoke/adamw) echo 4e-3,8e-3,1.6e-2 ;;
        smoke/muon) echo 1.6e-2,3.2e-2,6.4e-2 ;;
        smoke/lion) echo 8e-3,1.6e-2,3.2e-2 ;;
        smoke/sgd) echo 0.1,0.2,0.4 ;;
        tune/adamw) echo 2e-3,4e-3,8e-3 ;;
        tune/muon) echo 4e-3,8e-3,1.6e-2 ;;
        tune/lion) echo 8e-4,1.6e-3,3.2e-3 ;;
        tune/sgd) echo 0.07,0.14,0.28 ;;
        */adamw) echo 1e-3,2e-3,4e-3 ;;
        */muon) echo 4e-3,8e-3,1.6e-2 ;;
        */lion) echo 1e-4,2e-4,4e-4 ;;
        */sgd) echo 0.1,0.2,0.4 ;;
        *) echo "" ;;
    esac
}

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h)
            usage
            exit 0
            ;;
    esac
    [ $# -ge 2 ] || wrong "$1 needs a value, or is no option; --help lists them"
    case $1 in
        --size) size=$2 ;;
        --model) model=$2 ;;
        --data) data=$2 ;;
        --out) out=$2 ;;
        --arms) arms=$2 ;;
        --optimizers) optimizers=$2 ;;
        --seeds) seeds=$2 ;;
        --device) device=$2 ;;
        --steps) steps=$2 ;;
        --lrs)
            case $2 in
                ?*=?*) own_rates="$own_rates
$2" ;;
                *) wrong "--lrs \"$2\": expected OPTIMIZER=LIST, as in adamw=1e-3,2e-3,4e-3" ;;
            esac
            ;;
        --budgets | --threads | --set) options="$options $1 $2" ;;
        *) wrong "unknown option $1; --help lists them" ;;
    esac
    shift 2
done
[ -n "$size" ] || size=$([ -n "$model" ] && echo tune || echo smoke)
[ "$size" != tune ] || [ -n "$model" ] || wrong "size tune wants --model FOLDER"
[ -x "$program" ] || wrong "$program is missing: make build/bench/predict_value"
list=$(echo "$optimizers" | tr , ' ')
for optimizer in $list; do
    [ -n "$(rates "$optimizer")" ] || wrong "no learning rates for $optimizer: give --lrs $optimizer=LIST"
done

# ---- what the size needs --------------------------------------------------------------------------

if [ "$size" = tune ] && [ -z "$data" ]; then
    for folder in "${HYBRID_DATA:-}" "$here/../shared/data"; do
        [ -n "$data" ] || [ ! -f "$folder/tinyshakespeare.txt" ] || data=$folder/tinyshakespeare.txt
    done
    [ -n "$data" ] || skip "no tinyshakespeare.txt in HYBRID_DATA or ../shared/data; --data FILE names another text"
fi
[ -z "$model" ] || [ -e "$model" ] || skip "there is no folder $model"
[ -z "$data" ] || [ -e "$data" ] || skip "there is no $data"
case $size in
    lab | long)
        device=${device:-cuda}
        if [ -z "$data" ]; then
            tokens=${HYBRID_TOKENS:-}/lab
            if [ ! -f "$tokens/train.bin" ] || [ ! -f "$tokens/val.bin" ]; then
                skip "no train.bin and val.bin in HYBRID_TOKENS/lab ($tokens): bench/peers/make_shards.py --bpe 8192 makes them"
            fi
            data=$tokens/train.bin
            options="$options --set vocab=8192 --set val_data=$tokens/val.bin"
        fi
        # As many steps as the longest run of 1.2 times that sees no text twice, of 37.8 million tokens.
        [ "$size" = long ] || steps=${steps:-950}
        case $options in *--budgets*) ;; *) options="$options --budgets 0.9,1.1,1.2" ;; esac
        ;;
esac
case $device in cuda*) nvidia-smi > /dev/null 2>&1 || skip "no CUDA device here" ;; esac
out=${out:-runs/predict_table-$size}
set -- --size "$size" --seeds "$seeds"
[ -z "$model" ] || set -- "$@" --model "$model"
[ -z "$data" ] || set -- "$@" --data "$data"
[ -z "$steps" ] || set -- "$@" --steps "$steps"
[ -z "$device" ] || set -- "$@" --set "device=$device"
# shellcheck disable=SC2086 # options and their values
set -- "$@" $options

# ---- running --------------------------------------------------------------------------------------

over() { # OPTIMIZER: the arms, each with it
    echo "$arms" | tr , '\n' | sed "s/\$/:optimizer=$1/" | paste -s -d , -
}

# Beside the shell, so that a signal to it alone is passed on at once; Ctrl-C goes to both.
measure() { # OPTION ...: the exit code of predict_value
    code=0
    "$program" "$@" > "$folder/new.txt" &
    child=$!
    wait $child || code=$?
    while [ $stopped != 0 ] && kill -0 $child 2> /dev/null; do
        code=0
        wait $child || code=$?
    done
    child=""
    return $code
}

stopped=0 failed=0 child=""
trap 'stopped=75; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null || true' INT TERM
mkdir -p "$out"
echo "$(date -u +%Y-%m-%d), $(uname -m), size $size${model:+, model $(basename "$model")}${data:+, data $(basename "$data")}"
for optimizer in $list; do
    [ $stopped = 0 ] || break
    folder=$out/$optimizer
    mkdir -p "$folder"
    code=0
    measure "$@" --baseline "plain:optimizer=$optimizer" --arms "$(over "$optimizer")" \
        --lrs "$(rates "$optimizer")" --out "$folder" || code=$?
    case $code in
        0 | 1)
            grep -q '^Held-out' "$folder/new.txt" || exit 1 # it broke, and has said why
            mv "$folder/new.txt" "$folder/table.txt"
            grep '^FAIL' "$folder/table.txt" | sed "s/^/$optimizer: /" || true
            [ $code = 0 ] || failed=1
            ;;
        75) stopped=75 ;;
        *) exit $code ;;
    esac
done

# ---- the table ------------------------------------------------------------------------------------

# Reads the block "Held-out loss of the last weights" of each table.txt, in the order of the list.
files=""
for optimizer in $list; do
    [ ! -f "$out/$optimizer/table.txt" ] || files="$files $out/$optimizer/table.txt"
done
if [ -n "$files" ]; then
    # shellcheck disable=SC2086 # a list
    awk '
        function short(label,    part, n, i, text, window) {
            n = split(label, part, ":")
            text = part[1]
            window = 0
            for (i = 2; i <= n; i++) {
                if (part[i] ~ /^optimizer=/ || part[i] ~ /^guard_share=/) continue
                if (part[i] ~ /^(full|correct)_steps=/) {
                    window += substr(part[i], index(part[i], "=") + 1)
                    continue
                }
                sub(/^outer_/, "", part[i])
                text = text " " part[i]
            }
            return window ? text ", window " window : text
        }
        FNR == 1 {
            optimizer = FILENAME
            sub(/\/table.txt$/, "", optimizer)
            sub(/.*\//, "", optimizer)
            order[++columns] = optimizer
        }
        /^Held-out loss of the last weights/ { reads = 1; next }
        /^$/ { reads = 0 }
        !reads || $1 == "arm" { next }
        {
            edge = /edge of the grid/ ? " edge" : ""
            name = short($1)
            if ($1 ~ /^plain/) {
                name = "alone: loss (learning rate)"
                value = $3 " (" $2 ")" edge
            } else if (/diverged with every/) {
                value = "diverged"
            } else {
                value = $0
                sub(/.*[+-][0-9.]+\)  /, "", value)
                split(value, f, / +/)
                value = f[1] " / " f[3] " / " f[5] " (" $6 ")" edge
            }
            if (!(name in seen)) rows[++count] = name
            seen[name] = 1
            cell[name, optimizer] = value
        }
        END {
            line = "| predictor |"
            rule = "|---|"
            for (c = 1; c <= columns; c++) {
                line = line " over " order[c] " |"
                rule = rule "---|"
            }
            print line "\n" rule
            for (r = 1; r <= count; r++) {
                line = "| " rows[r] " |"
                for (c = 1; c <= columns; c++) {
                    value = cell[rows[r], order[c]]
                    line = line " " (value == "" ? "-" : value) " |"
                }
                print line
            }
        }' $files > "$out/table.md"
    echo "compute factor over the same optimizer alone, least / mean / most of seeds $seeds (mean gain in nats):"
    cat "$out/table.md"
fi
[ $stopped = 0 ] || { echo "stopped; the same command continues" >&2; exit 75; }
exit $failed
