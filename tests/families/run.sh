#!/usr/bin/env bash
# run.sh [FAMILY ...]: everything that users do with a model family, through the programs, on a CPU.
#
# For each value of --architecture: a folder of transformers is loaded; a small model of the family with its
# options is trained from scratch, with LoRA, QLoRA and in fp8; runs are resumed, exported, merged and talked to.
# The table of families in docs/models.md states the results: HYBRID_UPDATE_DOCS=1 writes it, otherwise a
# difference is a failure. Ends with the line "N passed, N failed".
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${HYBRID_BIN:-${HYBRID_BUILD:-$root/build}/bin}
page=$root/docs/models.md
scratch=$(mktemp -d "${TMPDIR:-/tmp}/hybrid-families-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0

# ---- what differs between families ---------------------------------------------------------------------------------

examples() { # published models, for the table
    case $1 in
    gpt2) echo "GPT-2 124M to 1.5B" ;;
    llama) echo "Llama 2, 3.1, 3.2; SmolLM2; TinyLlama" ;;
    mistral) echo "Mistral 7B" ;;
    ministral) echo "Ministral 8B" ;;
    qwen2) echo "Qwen2, Qwen2.5" ;;
    qwen3) echo "Qwen3 0.6B to 32B" ;;
    gemma2) echo "Gemma 2 2B to 27B" ;;
    gemma3_text) echo "Gemma 3 270M to 27B (text)" ;;
    olmo2) echo "OLMo 2 1B to 32B" ;;
    olmo3) echo "OLMo 3 7B, 32B" ;;
    gpt_neox) echo "Pythia 14M to 12B" ;;
    phi3) echo "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini" ;;
    smollm3) echo "SmolLM3 3B" ;;
    granite) echo "Granite 3" ;;
    granitemoehybrid) echo "Granite 4 (dense)" ;;
    ministral3) echo "Ministral 3 (text)" ;;
    starcoder2) echo "StarCoder2 3B, 7B, 15B" ;;
    qwen3_5_text) echo "Qwen3.5, Qwen3.6 0.8B to 27B (text)" ;;
    esac
}

options() { # the parts that only this family has; a family without a line is tried as it is
    case $1 in
    gemma2) set_options '{"attn_logit_softcapping": 30, "final_logit_softcapping": 20, "query_pre_attn_scalar": 24}' \
        --sliding-window 12 --sliding-layers sf ;;
    gemma3_text) set_options '{"query_pre_attn_scalar": 24, "rope_local_base_freq": 5000}' \
        --sliding-window 12 --sliding-layers sf ;;
    olmo3 | ministral) set_options '' --sliding-window 12 --sliding-layers sf ;;
    gpt_neox) set_options '{"rotary_pct": 0.5}' ;;
    phi3) set_options '{"partial_rotary_factor": 0.5}' --sliding-window 12 ;;
    starcoder2) set_options '' --kv-heads 1 --sliding-window 12 ;;
    smollm3) set_options '{"no_rope_layers": [1, 0]}' ;;
    qwen3_5_text) set_options '{"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "partial_rotary_factor": 0.5}' ;;
    granite | granitemoehybrid) set_options '{"embedding_multiplier": 3, "residual_multiplier": 0.7,
        "attention_multiplier": 0.2, "logits_scaling": 2}' ;;
    ministral3) set_options '{"rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 10000,
        "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1}}' --rope-scaling yarn --rope-factor 4 \
        --rope-original-context 8 ;;
    *) set_options '' ;;
    esac
}
set_options() { # ARCH-OPTIONS FLAG..
    flags=(--architecture "$family")
    [ -z "$1" ] || flags+=(--arch-options "$1")
    shift
    flags+=("$@")
}

# ---- trying --------------------------------------------------------------------------------------------------------

small=(--layers 2 --width 64 --heads 2 --mlp-width 128 --context 64)
usual=(--seq-len 32 --batch-size 2 --grad-accum-steps 1 --builtin-bytes 60000 --sample-tokens 0 --threads 1
    --device cpu --precision fp32 --model-dtype fp32)

train() { "$bin/hybrid-train" "${usual[@]}" "$@"; }
alike() { cmp "$1" "$2" || { echo "$1 and $2 differ" && return 1; }; }
loss_of() { # MODEL FLAG..: the held-out loss, on data that does not depend on the run
    local model=$1
    shift
    "$bin/hybrid-train" --eval-only --model "$model" --builtin-bytes 60000 --val-fraction 0.05 --seq-len 32 --seed 5 \
        --precision fp32 --threads 1 --device cpu "$@" | sed -n 's/^loss *\([0-9.]*\) .*/\1/p'
}
same_loss() { # of two models
    local a b
    a=$(loss_of "$1") b=$(loss_of "$2")
    echo "the losses of $1 and $2 are $a and $b"
    [ -n "$a" ] && [ "$a" = "$b" ]
}
last_loss() { grep -v '^{"event"' "$1/metrics.jsonl" | sed -n 's/.*"loss":\([^,}]*\).*/\1/p' | tail -n 1; }
planned_is_measured() { # of a run, in every class of every phase
    local over
    over=$(tr '{' '\n' < "$1/summary.json" |
        sed -n 's/.*"planned_bytes": \([0-9]*\), "measured_bytes": \([0-9]*\).*/\1 \2/p' | awk '$2 > $1')
    [ -z "$over" ] || { echo "measured more than planned: $over" && return 1; }
}

newest() { printf "%s\n" "$1"/checkpoint-* | sort -V | tail -n 1; }

try_load() {
    local found
    found=$(grep -lE "\"model_type\": \"$family\"" "$root"/tests/golden/*/*/config.json)
    [ -n "$found" ] || { echo "tests/golden has no folder of $family" && return 1; }
    for config in $found; do
        "$bin/hybrid-train" --eval-only --model "$(dirname "$config")" --data ../shard.bin --seq-len 16 --threads 1 \
            --device cpu 2> notes || { cat notes && return 1; }
        ! grep "unknown field" notes || return 1
    done
}

# From scratch, through all phases; cut and resumed; with recomputation, other places and ranks: the same bits.
try_train() {
    local jumps=(--steps 24 --save-every 8 --predictor outer --full-steps 4 --correct-steps 2 --predict-from 0
        --predict-until 1 --confidence-threshold 0 --fork-budget 0 --lr-warmup-steps 4)
    train "${flags[@]}" "${small[@]}" "${jumps[@]}" --out whole && planned_is_measured whole || return 1
    grep -E '"(rejected_)?moves": [1-9]' whole/summary.json || { echo "no prediction" && return 1; }
    cp -r whole cut && rm -r cut/model "$(newest cut)" && "$bin/hybrid-train" --resume cut &&
        alike cut/model/model.safetensors whole/model/model.safetensors || return 1
    local few=("${flags[@]}" "${small[@]}" --steps 2 --predictor none --no-checkpointing)
    train "${few[@]}" --out plain || return 1
    for part in norm attention mlp all; do
        train "${few[@]}" --recompute $part --out recompute && planned_is_measured recompute &&
            alike plain/model/model.safetensors recompute/model/model.safetensors || return 1
        rm -r recompute
    done
    train "${few[@]}" --weights-place disk --grads-place disk --optim-place pinned --activations-place pinned \
        --offload-folder . --out elsewhere &&
        alike plain/model/model.safetensors elsewhere/model/model.safetensors || return 1
    train "${few[@]}" --ranks 2 --zero-stage 1 --out ranks &&
        train "${few[@]}" --ranks 2 --zero-stage 3 --out sharded &&
        alike ranks/model/model.safetensors sharded/model/model.safetensors || return 1
    train "${few[@]}" --optimizer muon --out muon &&
        train "${few[@]}" --init-from whole --lr 0 --out further &&
        alike whole/model/model.safetensors further/model/model.safetensors
}

adapt() { # NAME FLAG..: a run with adapters, resumed, exported and merged
    local name=$1
    shift
    train --model whole/model --lora-rank 4 --lr 0.01 --steps 4 --save-every 2 "$@" --out "$name" &&
        planned_is_measured "$name" && cp -r "$name" "$name-cut" &&
        rm -r "$name-cut/adapter" "$(newest "$name-cut")" && "$bin/hybrid-train" --resume "$name-cut" &&
        alike "$name-cut/adapter/adapter_model.safetensors" "$name/adapter/adapter_model.safetensors" &&
        "$bin/hybrid-export" "$name" --out "$name-alone" &&
        alike "$name-alone/adapter_model.safetensors" "$name/adapter/adapter_model.safetensors" &&
        "$bin/hybrid-export" "$name" --out "$name-merged" --merge --dtype fp32 &&
        same_loss "$name" "$name-merged" && [ "$(loss_of whole)" != "$(loss_of "$name")" ]
}
try_lora() {
    adapt lora --lora && [ "$(loss_of whole/model --adapter lora/adapter)" = "$(loss_of lora)" ] &&
        train --model whole/model --adapter lora/adapter --steps 1 --lr 0 --out lora-further &&
        alike lora-further/adapter/adapter_model.safetensors lora/adapter/adapter_model.safetensors
}
try_qlora() {
    adapt qlora --qlora 2> notes || { cat notes && return 1; }
    ! grep "not stored in nf4" notes
}

try_fp8() {
    for kind in "" --lora; do
        for precision in bf16 fp8; do
            # shellcheck disable=SC2086 # no flag where there is none
            train --model whole/model --steps 6 --lr 1e-3 --overwrite $kind --precision $precision --out $precision ||
                return 1
        done
        awk -v a="$(last_loss fp8)" -v b="$(last_loss bf16)" 'BEGIN {
            print "losses in fp8 and bf16:", a, b
            exit !(a > 0 && a != b && a < 1.03 * b && b < 1.03 * a)
        }' || return 1
    done
}

try_chat() {
    local ask=(--prompt "the " --temperature 0 --max-tokens 12 --quiet --threads 1 --device cpu)
    "$bin/hybrid-chat" --model whole "${ask[@]}" > answer && "$bin/hybrid-chat" --model exported "${ask[@]}" > other &&
        [ -s answer ] && alike answer other && "$bin/hybrid-chat" --model lora "${ask[@]}"
}

try_export() {
    "$bin/hybrid-export" whole --out exported && alike exported/model.safetensors whole/model/model.safetensors &&
        alike exported/config.json whole/model/config.json && same_loss whole exported
}

# ---- the table -----------------------------------------------------------------------------------------------------

row() { # FAMILY: what works, as a row of the table
    family=$1
    mkdir "$scratch/$family" && cd "$scratch/$family" || exit 1
    options "$family"
    local cells="" doing
    for doing in load train lora qlora fp8 export chat; do
        if "try_$doing" > "$doing.log" 2>&1; then
            cells="$cells yes |"
        else
            cells="$cells no |"
            echo "FAIL  $family: $doing" >&2
            tail -n 8 "$doing.log" | sed 's/^/      /' >&2
        fi
    done
    echo "| \`$family\` | $(examples "$family") |$cells"
    rm -rf "${scratch:?}/$family"
}

{ # 1000 tokens below 58, as llm.c writes them
    printf '\210\330\064\001\001\000\000\000\350\003\000\000'
    head -c 1012 /dev/zero
    for ((i = 0; i < 1000; i++)); do printf "\\$(printf %o $((1 + (i * i + 7 * i) % 57)))\\000"; done
} > "$scratch/shard.bin"

all=$("$bin/hybrid-train" --architecture '?' 2>&1 | sed -n 's/.*accepted: auto, //p' | tr -d ,)
[ "${VARIANT:-release}" = release ] || set -- ${*:-gemma3_text gpt_neox} # sanitizers are slow
begin='<!-- families: tests/families/run.sh writes this table -->'
{
    echo "$begin"
    echo "| architecture | published models, for example | load | train | LoRA | QLoRA | fp8 | export | chat |"
    echo "|---|---|---|---|---|---|---|---|---|"
} > "$scratch/table"
for family in ${*:-$all}; do
    [ -n "$(examples "$family")" ] || { echo "FAIL  $family has no published model in $0" && failed=$((failed + 1)); }
    line=$(row "$family")
    echo "$line" >> "$scratch/table"
    case $line in
    *" no |"*) failed=$((failed + 1)) ;;
    *) passed=$((passed + 1)) && echo "ok    $family" ;;
    esac
done

if [ $# = 0 ]; then
    sed -n "/^$(printf %s "$begin" | sed 's/[\/.]/\\&/g')/,/^\$/p" "$page" | sed '/^$/d' > "$scratch/there"
    if cmp -s "$scratch/table" "$scratch/there"; then
        passed=$((passed + 1))
    elif [ -n "${HYBRID_UPDATE_DOCS:-}" ] && [ -s "$scratch/there" ]; then
        awk -v begin="$begin" -v table="$scratch/table" '$0 == begin { while ((getline line < table) > 0) print line
            is_in = 1 } /^$/ { is_in = 0 } !is_in' "$page" > "$scratch/page" && cat "$scratch/page" > "$page"
    else
        echo "FAIL  docs/models.md has another table of families; HYBRID_UPDATE_DOCS=1 $0 writes it"
        failed=$((failed + 1))
    fi
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
