# eval_only.sh: hybrid-train --eval-only.

run_eval() {
    program=$train
    run --eval-only --device cpu --threads 1 "$@"
}

test_it_reports_the_loss_that_the_run_had() {
    make_model
    run_eval --model model --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_keys "$values" "" model data device loss perplexity bits_per_byte tokens sequences \
        seconds tokens_per_second
    had=$(json_values model/summary.json | sed -n "s/^\.val_loss$tab//p")
    expect_same "$(printf '%s\n' "$values" | sed -n "s/^\.loss$tab//p")" "$had" "loss"
    expect_nothing_written
}

test_it_reports_on_any_data() {
    make_model
    awk 'BEGIN { for (i = 0; i < 500; i++) print "line " i }' > text
    run_eval --model model/checkpoint-30 --data text
    expect_code 0
    for words in "model/checkpoint-30" "text" "loss" "perplexity" "bits per byte" "tokens counted"; do
        expect_out "$words"
    done
    expect_nothing_written
}

test_all_of_the_data_is_counted() {
    make_model
    awk 'BEGIN { for (i = 0; i < 640; i++) printf "%c", 97 + i * i % 26 }' > once
    cat once once > twice
    run_eval --model model --data once --json
    one=$(json_values "$stdout" | sed -n "s/^\.tokens$tab//p")
    run_eval --model model --data twice --json
    two=$(json_values "$stdout" | sed -n "s/^\.tokens$tab//p")
    expect_same "$one" 639 "tokens of 640 bytes in windows of 32"
    expect_same "$two" 1279 "tokens of 1280 bytes"
}

test_wrong_input_is_named() {
    run_eval --data x
    expect_refusal "without weights"
    make_model
    run_eval --model model --data nowhere
    expect_refusal "nowhere"
    run_eval --model nowhere
    expect_refusal "nowhere"
}
