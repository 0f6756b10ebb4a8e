# configuration.sh: files, --set, flags, their order of strength and their errors.

test_the_name_of_a_file_does_not_matter() {
    echo 'train: { batch_size = 3; seq_len = 64; };' > "adapter or preset.cfg"
    run --config "adapter or preset.cfg" --model gpt2-124m --print-config
    expect_code 0
    expect_out 'batch_size = 3;  # adapter or preset.cfg:1'
}

test_print_config_shows_the_origin_of_each_value() {
    cat > my.cfg <<'END'
train: {
  batch_size = 3;
  seq_len = 48;
};
END
    run --print-config --profile aggressive --config my.cfg --set seq_len=56 --lr 0.02
    expect_code 0
    expect_out 'profile = "aggressive";  # flag --profile'
    expect_out "batch_size = 3;  # my.cfg:2"
    expect_out "seq_len = 56;  # --set"
    expect_out "lr = 0.02;  # flag --lr"
    expect_out "beta1 = 0.9;  # "
    expect_nothing_written
}

test_flag_beats_set_beats_file_whatever_the_order() {
    echo 'train: { batch_size = 3; };' > a.cfg
    run --print-config --batch-size 5 --set batch_size=4 --config a.cfg
    expect_out "batch_size = 5;  # flag --batch-size"
    run --print-config --set batch_size=4 --config a.cfg
    expect_out "batch_size = 4;  # --set"
    run --print-config --config a.cfg --profile aggressive
    expect_out "batch_size = 3;  # a.cfg:1"
}

test_later_file_and_later_flag_win() {
    echo 'train: { batch_size = 3; };' > a.cfg
    echo 'train: { batch_size = 7; };' > b.cfg
    run --print-config --config a.cfg --config b.cfg
    expect_out "batch_size = 7;  # b.cfg:1"
    run --print-config --batch-size 5 --batch-size=6
    expect_out "batch_size = 6;  # flag --batch-size"
}

test_printed_config_loads_again_to_the_same_values() {
    run --print-config --profile aggressive --lr 0.0123 --prompt 'say "hi" \ there'
    cp "$stdout" printed.cfg
    run --print-config --config printed.cfg
    expect_code 0
    expect_same "$(sed 's/;  #.*//' "$stdout")" "$(sed 's/;  #.*//' printed.cfg)" "values"
}

test_card_file_is_found_by_name() {
    run --print-config --config rtx5080
    expect_code 0
    expect_out "# gpu/rtx5080:"
}

test_wrong_value_from_a_flag() {
    run --batch-size many
    expect_refusal "--batch-size" "many" "1 to 65536"
    run --device quantum
    expect_refusal "--device" "auto, cpu, cuda, cuda:N"
    run --device cuda:first
    expect_refusal "--device" "cuda:first" "cuda:N"
    run --tune much
    expect_refusal "--tune" "off, fast, max"
    run --profile agressive
    expect_refusal "agressive" "aggressive"
}

test_wrong_value_from_set() {
    run --set batch_size=0
    expect_refusal "--set" "batch_size" "1 to 65536"
    run --set nonsense=1
    expect_refusal "--set" "nonsense"
    run --set batch_size
    expect_refusal "--set needs key=value" '"batch_size"'
}

test_wrong_value_in_a_file_names_file_and_line() {
    printf 'train: {\n  seq_len = 32;\n  batch_size = -4;\n};\n' > bad.cfg
    run --config bad.cfg
    expect_refusal "bad.cfg:3" "batch_size" "1 to 65536"
    printf 'train: {\n  batch_sise = 4;\n};\n' > bad.cfg
    run --config bad.cfg
    expect_refusal "bad.cfg:2" "batch_sise" "batch_size"
    printf 'train: {\n  batch_size = ;\n};\n' > bad.cfg
    run --config bad.cfg
    expect_refusal "bad.cfg:2"
}

test_missing_config_file() {
    run --config nowhere.cfg
    expect_refusal "nowhere.cfg"
}

test_unknown_model_names_the_nearest() {
    run --model gpt2-142m
    expect_refusal "gpt2-142m" "gpt2-124m"
}

test_groups_stand_in_the_plan_and_the_printed_config() {
    cat > my.cfg <<'END'
optimizer: {
  groups = "embed.*: lr_scale 0.1, decay=0;"
           " blocks.0.*: frozen";
};
END
    run --print-config --config my.cfg
    expect_code 0
    expect_out 'groups = "embed.*: lr_scale 0.1, decay=0; blocks.0.*: frozen";  # my.cfg:2'
    run_tiny --plan --config my.cfg
    expect_code 0
    expect_out "groups    embed.*: lr_scale 0.1, decay 0, 1 parameter of 8,192 numbers"
    expect_out "          blocks.0.*: frozen, 6 parameters of "
    run_tiny --plan --json --groups '*norm*: optimizer sgd'
    expect_code 0
    expect_keys "$(json_values "$stdout")" .groups.0 names changes parameters elements
    expect_nothing_written
}

test_wrong_groups_are_refused() {
    run --groups 'embed.*'
    expect_refusal "flag --groups" "group 1 (embed.*) has no colon" "lr_scale X, decay X"
    run --groups '*: decay 0; *: rate 3'
    expect_refusal "group 2" '"rate" is unknown' "optimizer NAME, frozen"
    printf 'optimizer: {\n  groups = "*: decay nan";\n};\n' > bad.cfg
    run --config bad.cfg
    expect_refusal "bad.cfg:2" "group 1" 'decay "nan"' "0 to 10"
    run_tiny --groups 'bloks.*: frozen'
    expect_refusal "optimizer.groups" '"bloks.*" matches no parameter' "embed.tokens.weight"
    run_tiny --groups "$(printf '%0600d' 0): frozen"
    expect_refusal "--groups" "at most 511"
}

test_a_resumed_run_may_change_rates_of_groups_and_not_their_state() {
    run_tiny --out out --steps 4 --groups 'embed.*: optimizer sgd, lr_scale 10'
    expect_code 0
    run --resume out --steps 6
    expect_code 0
    run --resume out --steps 8 --groups 'embed.*: optimizer sgd; *: lr_scale 0.5'
    expect_code 0
    run --resume out --steps 10 --groups ''
    expect_code 2
    expect_err "the optimizer of embed.tokens.weight was sgd when this was saved and is adamw now"
    run --resume out --steps 10 --groups 'embed.*: frozen'
    expect_code 2
    expect_err "embed.tokens.weight was trained when this was saved and is frozen now"
}

test_schedules_by_name() {
    run_tiny --plan --schedule inverse_sqrt --cooldown-shape linear
    expect_code 0
    run --schedule inverse-root
    expect_refusal "--schedule" "constant, linear, cosine, wsd, inverse_sqrt"
    run --cooldown-shape round
    expect_refusal "--cooldown-shape" "sqrt, linear"
}

test_warm_up_is_printed_as_it_will_be() {
    run --print-config --model gpt2-124m
    expect_out "lr_warmup_steps = 100;  # preset gpt2-124m"
    expect_out "lr_warmup_ratio = 0.33;  # "
    run --print-config --model gpt2-124m --lr-warmup-steps 50
    expect_out "lr_warmup_ratio = 1;  # "
    run --print-config --model gpt2-124m --lr-warmup-ratio 0.05
    expect_out "lr_warmup_steps = -1;  # "
}

test_yaml_and_json_say_the_same_as_libconfig() {
    printf 'train: {\n  seq_len = 64;\n  lora_r = 4;\n};\n' > wrong.cfg
    printf 'seq_len = 64;\noptimizer: {\n  lr = 0.002;\n};\nlora: { lora_targets = "q_proj,v_proj"; };\nname = "say \\"hi\\" \\\\ you";\n' > a.cfg
    printf '# a comment\nmax_seq_length: 64\noptimizer:\n  lr: 2e-3\nlora:\n  lora_targets: [q_proj, v_proj]\nname: "say \\"hi\\" \\\\ you"\nnotes:\ntokens: null\n' > a.yaml
    printf '{"seq_len": 64,\n "optimizer": {"lr": 0.002},\n "target_modules": ["q_proj", "v_proj"],\n "name": "say \\"hi\\" \\\\ you"}\n' > a.json
    for file in a.cfg a.yaml a.json; do
        run --config $file --lora --print-config
        expect_code 0
        sed 's/ *#.*//' "$stdout" > $file.out
        cmp -s a.cfg.out $file.out || fail "$file: $(diff a.cfg.out $file.out)"
    done
    expect_out 'seq_len = 64'
    printf 'seq_len: 64\n\nsteps: many\n' > b.yml
    run --config b.yml
    expect_refusal "b.yml:3: train.steps = many is not accepted; accepted: "
    printf 'train:\n  lr: 1\n' > b.yml
    run --config b.yml
    expect_refusal "b.yml:2: unknown key train.lr" "did you mean optimizer.lr"
    printf 'a: &x 1\nb: *x\n' > b.yml
    run --config b.yml
    expect_refusal "b.yml:1: anchors are not accepted"
    printf 'seq_len: 64\nseq_len: 32\n' > b.yml
    run --config b.yml
    expect_refusal "b.yml:2: duplicate"
    printf '{"seq_len": 64,\n "steps" 5}' > b.json
    run --config b.json
    expect_refusal "b.json:2: "
    printf 'device_map: auto\n' > b.yml
    run --config b.yml
    expect_refusal "b.yml:1: unknown key device_map; the planner places weights"
    for text in '- 1' '[[1]]: 2' 'a: [[1]]' '5' 'train: {a: {b: {c: 1}}}' '--- 1' '? {a: 1}'; do
        printf '%s\n' "$text" > b.yml
        run --config b.yml
        expect_refusal "b.yml:1: "
    done
    head -c 300000 /dev/zero | tr '\0' '#' > b.yml
    run --config b.yml
    expect_refusal "b.yml is too large"
}

# Each key of a file that Axolotl reads is either accepted or reported with its line.
test_a_file_of_axolotl_is_read_and_all_unknown_keys_are_reported() {
    cat > a.yml <<'END'
base_model: tiny-llama
load_in_8bit: false
load_in_4bit: true
strict: false

datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: qlora
lora_model_dir:
sequence_len: 2048
sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules:
  - gate_proj
  - v_proj
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
END
    run --config a.yml --print-config
    expect_code 2
    grep -o '[a-z.]*:[0-9]*: unknown key [a-z_]*' "$stderr" > found
    expect_same "$(sed 's/.*:\([0-9]*\): unknown key/\1/' found | tr '\n' ',')" \
        "4 strict,6 datasets,32 gradient_checkpointing_kwargs,36 evals_per_epoch,38 special_tokens," "keys"
    expect_err "use data: FILE"
    expect_same "$(grep -c '^hybrid-train: ' "$stderr")" 1 "messages"
    sed '4,8d; 32,33d; 36d; 38,39d' a.yml > b.yml
    run --config b.yml --print-config
    expect_code 0
    for line in 'qlora = true;' 'frozen_dtype = "nf4";' 'lora_targets = "gate_proj,v_proj";' \
        'precision = "auto";' 'packing = "on";' 'recompute = "all";' 'epochs = 1;'; do
        expect_out "$line"
    done
}

test_all_mistakes_of_a_file_are_reported() {
    printf 'steps = 3;\ntrain: { batch_size = -4; nonsense = 1; };\ntrian: { };\nlr = 50;\n' > a.cfg
    run --config a.cfg
    expect_code 2
    for part in "a.cfg:2: train.batch_size = -4" "a.cfg:2: unknown key train.nonsense" \
        "a.cfg:3: unknown group trian" "a.cfg:4: optimizer.lr = 50"; do
        expect_err "$part"
    done
    i=0
    while [ $i -lt 99 ]; do
        echo "nothing_like_it_$i: 1"
        i=$((i + 1))
    done > many.yaml
    run --config many.yaml
    expect_code 2
    grep -qE '^  and [0-9]+ more$' "$stderr" || fail "$(cat "$stderr")"
}

test_the_method_in_adapter_is_not_a_folder_for_evaluation() {
    run_tiny --out out --quiet
    expect_code 0
    for method in lora qlora; do
        run --eval-only --model out --adapter $method
        expect_refusal "adapter $method was not found"
    done
}
