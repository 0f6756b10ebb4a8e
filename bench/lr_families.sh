#!/bin/sh
# lr_families.sh: is the learning rate of the presets right for every family?
#
# Trains a small model in the form of each family (its norms, multipliers, windows and options, 4 layers, width 160)
# at a third of the rate that a model of this size has, at this rate and at three times the rate, and prints the
# held-out losses as the table of bench/README.md. Gemma 3 has its window in all 4 layers: its pattern needs 6.
# A family with another best rate than Llama's would need another rate in its presets.
#
#   bench/lr_families.sh TEXT [FAMILY ...]
#
#   TEXT    a text file, read as bytes, for example ../shared/data/tinyshakespeare.txt
#   FAMILY  a value of --architecture; default: all forms (Mistral and Ministral are built as Llama, Granite 4 as 3)
#   LR=0.002 STEPS=300 SEED=1 THREADS=1 HYBRID_BIN=build/bin
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -lt 1 ]; then
    echo "lr_families: skipped, it needs a text: see its first lines"
    exit 0
fi
text=$1
shift
[ $# -gt 0 ] || set -- llama qwen2 qwen3 gpt2 gemma2 gemma3_text olmo2 olmo3 gpt_neox phi3 smollm3 \
    granite ministral3 starcoder2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lr=${LR:-0.002} steps=${STEPS:-300}

options() { # what published models of the family have, beyond the defaults of --architecture
    case $1 in
    gemma2) echo '--arch-options {"attn_logit_softcapping":50,"final_logit_softcapping":30} --sliding-window 64' ;;
    gemma3_text | olmo3) echo '--sliding-window 64' ;;
    gpt_neox) echo '--arch-options {"rotary_pct":0.25} --tied-head false' ;;
    phi3) echo '--arch-options {"partial_rotary_factor":0.75}' ;;
    smollm3) echo '--arch-options {"no_rope_layers":[1,1,1,0]}' ;;
    # published models have the multipliers 12 and 1.4 / sqrt(layers), and a scaling of width / 256
    granite*) echo '--arch-options {"embedding_multiplier":12,"residual_multiplier":0.7,"logits_scaling":0.625}' ;;
    esac
}

loss_at() { # FAMILY RATE
    # shellcheck disable=SC2046 # options are words
    "${HYBRID_BIN:-$here/build/bin}/hybrid-train" --model nano --architecture "$1" $(options "$1") --layers 4 \
        --width 160 --heads 5 --mlp-width 416 --data "$text" --tokenizer none --batch-size 2 --steps "$steps" \
        --lr "$2" --seed "${SEED:-1}" --threads "${THREADS:-1}" --device cpu --precision fp32 --sample-tokens 0 \
        --eval-batches 60 --predictor none --no-checkpointing --out "$work/run" --overwrite > "$work/log" 2>&1 ||
        { cat "$work/log" >&2 && exit 1; }
    sed -n 's/.*"val_loss": \([0-9.]*\).*/\1/p' "$work/run/summary.json" | awk 'NR == 1 { printf "%.3f", $1 }'
}

echo "| family | lr / 3 | lr = $lr | 3 lr |"
echo "|---|---|---|---|"
for family; do
    row="| $family |"
    for factor in 1/3 1 3; do
        rate=$(awk "BEGIN { printf \"%.6g\", $lr * $factor }")
        row="$row $(loss_at "$family" "$rate") |"
    done
    echo "$row"
done
