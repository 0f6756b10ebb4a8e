# configuration.sh: files, --set, flags, their order of strength and their errors.

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
