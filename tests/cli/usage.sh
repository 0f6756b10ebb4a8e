# usage.sh: help, version, flags right and wrong, the actions that show something and stop.

test_help_teaches_by_example_and_writes_nothing() {
    run --help
    expect_code 0
    expect_out "hybrid-train --profile aggressive"
    expect_out "--resume"
    expect_out "--batch-size INTEGER"
    expect_out "Exit codes"
    expect_empty "$stderr"
    expect_nothing_written
}

test_help_all_shows_every_key() {
    run --print-config
    keys=$(sed -n 's/^ *\([a-z_0-9]*\) = .*/\1/p' "$stdout" | tr _ -)
    [ -n "$keys" ] || fail "no keys in --print-config"
    run --help=all
    expect_code 0
    for key in $keys; do expect_out "--$key"; done
}

test_help_on_a_key_shows_what_it_accepts() {
    for topic in lr --lr optimizer.lr; do
        run --help $topic
        expect_code 0
        expect_out "--lr NUMBER"
        expect_out "accepts: 0 to 10"
        expect_out "optimizer.lr"
    done
    run --help model
    expect_out "nano"
    expect_out "gpt2-124m"
}

test_help_on_nothing_known_suggests_a_topic() {
    run --help batchsize
    expect_refusal 'no help for "batchsize"' "did you mean batch-size?"
}

test_version() {
    run --version
    expect_code 0
    grep -qE '^hybrid-train [0-9]+\.[0-9]+\.[0-9]+$' "$stdout" || fail "$(cat "$stdout")"
}

test_unknown_flag_names_the_nearest() {
    run --batchsize 8
    expect_refusal "unknown flag --batchsize" "did you mean --batch-size?"
    run --batch=8
    expect_refusal "unknown flag --batch;" "did you mean --batch-size?"
    run --wholly-unlike-anything
    expect_refusal "unknown flag --wholly-unlike-anything" "--help all"
    run -x
    expect_refusal "unknown flag -x"
}

test_missing_value_says_what_is_accepted() {
    run --batch-size
    expect_refusal "--batch-size needs a value" "1 to 65536"
    run --batch-size --stesp 5
    expect_refusal "--batch-size needs a value"
    run --profile --quiet
    expect_refusal "--profile needs a value" "conservative, balanced, aggressive"
    run --set
    expect_refusal "--set needs a value" "key=value"
    run --config
    expect_refusal "--config needs a value"
}

test_stray_argument_names_the_flag_it_wants() {
    run book.txt
    expect_refusal 'unexpected argument "book.txt"' "--data book.txt"
    run my.cfg
    expect_refusal "--config my.cfg"
    run gpt2-124m
    expect_refusal "--model gpt2-124m"
}

test_switches_have_four_spellings() {
    run --print-config --shuffle False --bf16 True --device cpu
    expect_out "shuffle = false;  # flag --shuffle"
    expect_out 'precision = "bf16";  # flag --bf16'
    run --quiet yes
    expect_refusal 'unexpected argument "yes"'
    run --print-config --no-shuffle
    expect_out "shuffle = false;  # flag --shuffle"
    run --print-config --shuffle=false
    expect_out "shuffle = false;  # flag --shuffle"
    run --print-config --no-shuffle --shuffle
    expect_out "shuffle = true;  # flag --shuffle"
    run --no-shuffle=true
    expect_refusal "--no-shuffle takes no value"
    run --quiet=yes
    expect_refusal "--quiet takes no value"
}

test_a_choice_with_on_and_off_is_also_a_switch() {
    for flag in --packing --sample-packing --sample_packing "--packing True" --packing=on; do
        # shellcheck disable=SC2086 # a flag and its value
        run --print-config $flag --device cpu
        expect_out 'packing = "on";  # flag --packing'
    done
    run --print-config --no-sample-packing --tf32
    expect_out 'packing = "off";  # flag --packing'
    expect_out 'tf32 = "on";  # flag --tf32'
}

test_a_missing_value_names_the_flag_as_typed() {
    run --learning-rate
    expect_refusal "--learning-rate needs a value: number, 0 to 10"
    run --max_seq_length --quiet
    expect_refusal "--max_seq_length needs a value: integer"
}

test_names_from_other_trainers_are_understood() {
    run --print-config --no-checkpointing
    expect_out 'recompute = "none"'
    run --print-config --checkpoint-every-layer
    expect_out 'recompute = "all"'
    run --print-config --learning_rate 0.5 --finetuning_type lora --quantization-bit=4
    expect_out "lr = 0.5"
    expect_out "lora = true;  # flag --finetuning-type"
    expect_out 'frozen_dtype = "nf4"'
    run --print-config --adapter qlora
    expect_out "qlora = true;  # flag --adapter"
    run --wandb_project x
    expect_refusal "unknown flag --wandb_project; " "follow_metrics.py"
}

test_doctor_fits_one_screen_and_writes_nothing() {
    run --doctor
    expect_code 0
    for word in CPU GFLOP/s memory pinnable disk CUDA "what fits" "Planned values"; do
        expect_out "$word"
    done
    grep -qE '^ *memory +.* available, [0-9.]+ GB/s' "$stdout" || fail "$(cat "$stdout")"
    grep -qE '^ *pinnable +[0-9.]+ [KMGT]iB: .*(free memory|control group|WSL2)' "$stdout" ||
        fail "$(cat "$stdout")"
    grep -qE '^ *disk +.* free here, reads [0-9.]+ GB/s, writes [0-9.]+ GB/s$' "$stdout" ||
        fail "$(cat "$stdout")"
    grep -qE '^ *gpt2-124m +124.4M( +([0-9,]+ +[0-9.]+ +[0-9.]+|no)){3}$' "$stdout" || fail "$(cat "$stdout")"
    [ "$(wc -l < "$stdout")" -le 45 ] || fail "$(wc -l < "$stdout") lines"
    expect_nothing_written
}

test_doctor_measures_the_offload_folder() {
    mkdir spill
    run --doctor --offload-folder spill
    expect_code 0
    expect_out "free in spill, reads"
    [ -z "$(ls -A spill)" ] || fail "left in the folder: $(ls -A spill)"
    run --doctor --offload-folder nowhere
    expect_code 0
    grep -qE '^ *disk +.*nowhere' "$stdout" || fail "$(cat "$stdout")"
}

test_list_models_shows_sizes_and_shapes() {
    run --list-models
    expect_code 0
    grep -qE '^ *gpt2-124m +124,439,808 +12 +768 +12 +12 +50257 +1024$' "$stdout" ||
        fail "$(cat "$stdout")"
    expect_out "qwen2.5-7b"
}

test_complete_lists_flags_in_four_fields() {
    run --complete
    expect_code 0
    awk -F '\t' 'NF != 4 || $1 !~ /^--[a-z0-9-]+$/ { print; bad = 1 } END { exit bad }' "$stdout" ||
        fail "malformed lines"
    grep -q "^--device${tab}choice${tab}auto, cpu, cuda${tab}" "$stdout" || fail "no --device"
    grep -q "^--model${tab}name${tab}.*nano" "$stdout" || fail "no models"
    grep -q "^--no-overwrite${tab}switch" "$stdout" || fail "no negated switch"
}

test_bash_completion_asks_the_program() {
    command -v bash > /dev/null || skip "no bash"
    # What the shell would offer for a line, its last word unfinished.
    cat > ask.bash <<'END'
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_hybrid "$1" "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"
END
    offered() { bash ask.bash "$here/../../completions/hybrid-train.bash" "$program" "$@"; }
    expect_same "$(offered --batch-s)" "--batch-size" "flags"
    expect_same "$(offered --device cu)" "cuda" "values of a choice"
    expect_same "$(offered --model gpt2-12)" "gpt2-124m" "built-in models"
    touch corpus.txt
    expect_same "$(offered --data cor)" "corpus.txt" "files"
}

test_man_page_names_every_flag_of_the_program() {
    page=$here/../../docs/man/hybrid-train.1
    run --help program
    flags=$(sed -n 's/^  \(-[a-zA-Z], \)\{0,1\}--\([a-z-]*\).*/\2/p' "$stdout")
    [ -n "$flags" ] || fail "no flags in --help program"
    for flag in $flags; do
        sed 's/\\-/-/g' "$page" | grep -q -e "--$flag" || fail "--$flag is not in the man page"
    done
}

test_full_disk_behind_standard_output_is_an_error() {
    [ -w /dev/full ] || skip "no /dev/full"
    "$program" --print-config > /dev/full 2> "$stderr"
    code=$?
    expect_code 1
    expect_err "cannot write to standard output"
}

test_flags_of_other_trainers_lead_to_ours() {
    run --dry-run
    expect_code 2
    expect_err "unknown flag --dry-run; use --plan"
    run --device-map auto
    expect_err "unknown flag --device-map; the planner places weights by itself"
    run --wandb_project mine
    expect_err "examples/follow_metrics.py"
    run --max_seq_length 64 --use-bf16 --target-modules q_proj --vram 8GiB --lora_r 4 --use-lora \
        --print-config
    expect_code 0
    expect_out "seq_len = 64"
}

test_a_card_that_is_too_old_is_refused_with_its_reason() {
    for card in V100 "Tesla V100-SXM2-32GB" "GTX 1080"; do
        run --plan --card "$card" --model nano
        expect_refusal "card \"$card\" is not supported" "compute capability 7.5"
    done
}

test_json_is_obeyed_by_what_only_looks() {
    for action in --doctor --list-models --print-config; do
        run $action --json
        expect_code 0
        expect_same "$(wc -l < "$stdout")" 1 "lines of $action --json"
        json_values "$stdout" > values || fail "$action --json is no JSON"
        [ -s values ] || fail "$action --json says nothing"
        [ $action != --doctor ] || expect_keys "$(cat values)" "" cpu ram_bytes models.0.full.fits \
            models.0.lora.device_bytes models.0.qlora.host_pinned_bytes largest.full largest.qlora
    done
}

test_a_card_is_known_by_its_number() {
    run --plan --model nano --card 4090
    expect_code 0
    expect_out "RTX 4090"
    run --plan --model nano --card 6000
    expect_code 2
}
