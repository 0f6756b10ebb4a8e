# results.sh: what a short run writes and says.

test_short_run_writes_metrics_summary_and_checkpoint() {
    run_tiny --out out
    expect_code 0
    expect_file out/metrics.jsonl
    expect_file out/summary.json
    expect_file out/checkpoint-6
    expect_same "$(find . -name '.*' ! -name . | wc -l)" 0 "unfinished files"
}

test_metrics_are_one_json_object_per_step() {
    run_tiny --out out
    expect_same "$(steps_of out)" 6 "lines"
    json_lines out/metrics.jsonl > /dev/null || exit 1
    tail -n 6 out/metrics.jsonl > steps
    values=$(json_lines steps) || exit 1
    for line in 1 2 3 4 5 6; do
        expect_keys "$values" $line step phase loss lr grad_norm tokens tokens_per_second seconds \
            confidence precision batch_size grad_accum vram_bytes vram_peak_bytes \
            host_pinned_bytes wait_seconds bytes_moved memory.weights memory.activations
        printf '%s\n' "$values" | grep -q "^$line.step$tab$line\$" || fail "step of line $line"
    done
    printf '%s\n' "$values" | grep -q "^6.tokens${tab}384\$" || fail "6 steps of 64 tokens are 384"
}

test_a_line_of_the_log_has_the_loss_of_its_step_in_the_metrics() {
    run_tiny --out out
    step=$(sed -n 's|^step \([0-9]*\)/.* loss .*|\1|p' "$stdout" | tail -n 1)
    [ "$step" -gt 1 ] || fail "no line of a later step: $(cat "$stdout")"
    loss=$(sed -n "s/.*\"step\": *$step,.*\"loss\": *\([0-9.]*\).*/\1/p" out/metrics.jsonl | tail -n 1)
    expect_out "step $step/6  "
    expect_out "  loss $(printf %.4f "$loss")  "
}

test_metrics_begin_with_the_command_and_what_it_makes() {
    run_tiny --out "a folder's name" --max-gpu-mem 1G
    expect_code 0
    head -n 1 "a folder's name/metrics.jsonl" > first
    values=$(json_values first) || exit 1
    expect_keys "$values" "" event step spent elapsed time version command model parameters device \
        data predictor steps_total tokens_per_step seq_len vram_budget_bytes host_budget_bytes \
        thresholds.target thresholds.warning thresholds.critical thresholds.emergency
    # Back from JSON: a backslash stands there twice.
    command=$(printf '%s\n' "$values" | sed -n "s/^\.command$tab//p" | sed 's/\\\\/\\/g')
    rm -r "a folder's name"
    eval "$command" > "$stdout" 2> "$stderr"
    code=$?
    expect_code 0
    expect_same "$(steps_of "a folder's name")" 6 "steps of the command that was recorded"
}

test_plan_of_the_run_is_written() {
    run_tiny --out out
    values=$(json_values out/plan.json) || exit 1
    expect_keys "$values" "" fits model parameters device vram_peak_bytes choices.batch_size \
        phases.full.vram_bytes phases.full.classes.weights.bytes phases.predict.vram_bytes
    run_tiny --plan --json
    expect_same "$(printf '%s\n' "$values" | grep phases | cksum)" \
        "$(json_values "$stdout" | grep phases | cksum)" "bytes by phase"
}

test_summary_has_the_promised_keys() {
    run_tiny --out out
    values=$(json_values out/summary.json) || exit 1
    expect_keys "$values" "" model parameters device steps full_steps predicted_steps \
        correct_steps backward_passes tokens seconds tokens_per_second final_loss val_loss
    for phase in warmup full predict correct; do
        expect_keys "$values" ".phases.$phase" steps seconds vram_planned_bytes vram_peak_bytes \
            wait_seconds
    done
    printf '%s\n' "$values" | grep -q "^.steps${tab}6\$" || fail "not 6 steps"
}

test_run_says_what_it_is_and_what_it_came_to() {
    run_tiny --out out
    for words in "step 6/6" "tokens/s" "planned" "true entropy of the source" "sample" \
        "talk to it:" "hybrid-chat --model out" "--resume out"; do
        expect_out "$words"
    done
    ! grep -q "measured" "$stdout" || fail "the tables of --verbose are there"
    run_tiny --out out --overwrite --verbose
    for words in "model     nano" "parameters" "device" "built-in" "steps     6 of 64 tokens" \
        "out       out" "saves     every 30 minutes, at the end and when stopped, and at new lowest held-out losses" "step 1/6" "step 6/6" "held-out loss" "saved out/checkpoint-6" "tokens/s" \
        "planned" "measured" "weights" "true entropy of the source" "5-gram" \
        "above the true entropy" "above the 5-gram" "sample" "everything is in out" \
        "--resume out"; do
        expect_out "$words"
    done
}

test_a_resumed_run_without_steps_left_says_so() {
    run_tiny --out out
    run --resume out --steps 5
    expect_code 0
    expect_out "resumed out/checkpoint-6: 6 steps done, more than the 5 of this run; nothing is left to train"
    expect_out "--resume out --steps 12" # trains longer
    run --resume out --steps 6
    expect_out "resumed out/checkpoint-6: 6 of 6 steps done; nothing is left to train"
    run --resume out --steps 8
    expect_out "resumed out/checkpoint-6: 6 of 8 steps done"
    ! grep -q "nothing is left" "$stdout" || fail "$(cat "$stdout")"
}

test_no_difference_of_losses_is_negative() {
    run_tiny --out out
    expect_code 0
    ! grep -E '^ *(above|below|better).* -[0-9]' "$stdout" || fail "a loss above another is negative"
}

test_out_none_writes_nothing() {
    run_tiny --out none
    expect_code 0
    expect_out "no files are written"
    expect_nothing_written
}

test_default_folder_is_below_runs() {
    run_tiny
    expect_code 0
    expect_same "$(ls runs | grep -c '^nano-')" 1 "runs/nano-*"
}

test_quiet_says_nothing() {
    run_tiny --out out --quiet
    expect_code 0
    expect_empty "$stdout"
    expect_empty "$stderr"
    expect_file out/summary.json
    run_tiny --out out -q
    expect_code 2
    expect_empty "$stdout"
    expect_err "hybrid-train: error: "
}

test_json_is_alone_on_standard_output() {
    run_tiny --out none --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_keys "$values" "" model parameters steps final_loss val_loss phases.full.steps
    expect_err "held-out loss"
    run_tiny --out none --json --quiet
    json_values "$stdout" > /dev/null || exit 1
    expect_empty "$stderr"
}

test_no_escape_codes_away_from_a_terminal() {
    run_tiny --out out --eval-every 2 --save-every 2
    expect_code 0
    cat "$stdout" "$stderr" > all
    ! grep -q "$escape" all || fail "an escape code"
    ! grep -q "$return_mark" all || fail "a carriage return"
}

test_sample_shows_control_bytes_safely() {
    # Tokens 27 and 7 only: whatever the model samples is a control byte.
    i=0
    while [ $i -lt 400 ]; do
        printf '\033\007\033\033'
        i=$((i + 1))
    done > control.txt
    run_tiny --data control.txt --out none --steps 40 --lr 0.01 --temperature 0.1
    expect_code 0
    ! grep -q "$escape" "$stdout" || fail "an escape code reached the terminal"
    expect_out '\x1b'
}

test_same_seed_same_losses_and_another_seed_others() {
    run_tiny --out a --seed 5
    run_tiny --out b --seed 5
    run_tiny --out c --seed 6
    expect_same "$(losses a)" "$(losses b)" "losses of one seed"
    [ "$(losses a)" != "$(losses c)" ] || fail "the seed changes nothing"
}

test_finished_run_goes_on_to_more_steps() {
    run_tiny --out out
    run --resume out --steps 8
    expect_code 0
    expect_same "$(steps_of out)" 8 "lines"
    expect_same "$(grep -c '^{"event":"start"' out/metrics.jsonl)" 2 "beginnings"
    expect_file out/checkpoint-8
}

test_printed_command_resumes_the_run() {
    run_tiny --out "a folder's name"
    expect_code 0
    command=$(sed -n 's/^train longer with: *//p' "$stdout")
    eval "$command" > "$stdout" 2> "$stderr"
    code=$?
    expect_code 0
    expect_same "$(steps_of "a folder's name")" 12 "lines"
}

test_plan_shows_the_table_and_stops() {
    run_tiny --plan --optim-place pinned
    expect_code 0
    for words in "weights" "optim" "pinned" "total" "allocated before the first step" "checkpoint size: " \
        "checkpoints are saved every 30 minutes" \
        "it fits"; do
        expect_out "$words"
    done
    expect_nothing_written
}

test_a_plan_for_a_card_says_whose_host_memory_it_uses() {
    run --plan --model tiny-llama --card rtx4060
    grep -qE '^host +[0-9.]+ GiB of memory, as on this machine; --cpu-mem sets another size$' "$stdout" ||
        fail "$(head -n 8 "$stdout")"
    run --plan --model tiny-llama --card rtx4060 --cpu-mem 32GiB
    ! grep "^host" "$stdout" || fail "the memory was given"
    run_tiny --plan
    ! grep "^host" "$stdout" || fail "the plan is for this machine"
    run --plan --card rtx4060
    expect_out "as on this machine; --cpu-mem sets another size"
    run --plan --card rtx4060 --cpu-mem 32
    expect_refusal "memory.cpu_mem = 32 is not accepted" "did you mean 32GiB?"
}

test_plan_that_does_not_fit_says_what_is_short() {
    run_tiny --plan --max-gpu-mem 4K
    expect_code 0
    expect_out "it does not fit"
    expect_out "max_gpu_mem"
}

test_plan_is_json_for_programs() {
    run_tiny --plan --json
    expect_code 0
    values=$(json_values "$stdout") || exit 1
    expect_keys "$values" "" fits vram_peak_bytes host_pinned_bytes disk_bytes checkpoint_bytes
    for phase in warmup full predict correct; do
        expect_keys "$values" ".phases.$phase" vram_bytes
        expect_keys "$values" ".phases.$phase.classes.weights" place dtype bytes
    done
}

test_every_program_takes_the_run_with_the_newest_step() {
    run_tiny --out runs/aaa --steps 4 --save-every 2 --no-save-model
    run_tiny --out runs/zzz-20990101-000000 --steps 2 --no-save-model
    touch -d '1 hour ago' runs/zzz-20990101-000000/metrics.jsonl
    touch runs/zzz-20990101-000000/config.cfg runs/zzz-20990101-000000/summary.json
    run --resume --steps 6 --no-save-model
    expect_code 0
    expect_err "resuming runs/aaa, the newest run in runs/"
    expect_same "$(steps_of runs/aaa)" 6 "steps of the resumed run"
    for name in report chat export; do
        case $name in
        report) set -- ;;
        chat) set -- --prompt a --max-tokens 1 --device cpu ;;
        export) set -- --out exported ;;
        esac
        "$(dirname "$program")/hybrid-$name" "$@" > "$stdout" 2> "$stderr" < /dev/null
        code=$?
        expect_code 0
        expect_err "using runs/aaa, the newest run in runs/"
    done
    "$(dirname "$program")/hybrid-top" --once > "$stdout" 2> "$stderr"
    expect_out "runs/aaa"
    mkdir runs/begun
    cp runs/aaa/config.cfg runs/begun
    run --resume
    expect_refusal "cannot resume the newest run" "runs/begun"
}

# A jump's guard passes use compute of the budget of 40 steps, so the run makes fewer.
test_all_programs_count_the_same_steps() {
    run_tiny --out out --steps 40 --predictor outer --full-steps 4 --correct-steps 2 \
        --predict-from 0 --fork-budget 0 --lr-warmup-steps 6 --save-every 20 --eval-every 10
    expect_code 0
    steps=$(sed -n 's/^ *"steps": \([0-9]*\),*$/\1/p' out/summary.json | head -n 1)
    [ "$steps" -gt 30 ] && [ "$steps" -lt 40 ] || fail "$steps steps"
    expect_same "$(grep -ho '^step [0-9]*/[0-9]*' "$stdout" "$stderr" | tail -n 1)" \
        "step $steps/$steps" "the last line"
    awk '/^phases/ { on = 1 } on && ($1 == "warmup" || $1 == "full" || $1 == "correct") { sum += $2 }
        on && $1 == "predict" { jumps = $3 } on && $1 == "evaluate" { times = $3 }
        on && $1 == "all" { print sum, $2, jumps, times; exit }' "$stdout" > counts
    expect_same "$(cat counts)" "$steps $steps jumps times" "the table of phases"
    expect_file "out/checkpoint-$steps"
    expect_same "$(grep -o '^{"step":[0-9]*' out/metrics.jsonl | tail -n 1)" "{\"step\":$steps" \
        "the last line of the metrics"
    grep -q "<dt>Steps</dt><dd>$steps<small>of $steps</small>" out/report.html ||
        fail "the report has $(grep -o '<dt>Steps.*</small>' out/report.html)"
    "$(dirname "$program")/hybrid-top" --once out > "$stdout" 2> "$stderr"
    expect_out " $steps / $steps "
    # While jumps are still to come, lines of a resumed run and of hybrid-top agree, too.
    run --resume out/checkpoint-20 --out again --no-save-model
    expect_code 0
    "$(dirname "$program")/hybrid-top" --once again > top.txt
    last=$(grep -ho '^step [0-9]*/[0-9]*' "$stdout" "$stderr" | tail -n 1)
    grep -q " ${last#*/} / ${last#*/} " top.txt || fail "$last, but $(grep Step top.txt)"
}

test_evaluations_name_their_rows() {
    run_tiny --out out --no-save-model
    run --eval-only --model out --device cpu
    expect_code 0
    expect_out "of 32 tokens"
    expect_err "to compare with another model on the same rows, use --seq-len 32 for both"
    run --eval-only --model out --device cpu --seq-len 16 --json
    expect_keys "$(json_values "$stdout")" "" seq_len
    expect_empty "$stderr"
    run --eval-only --model out --device cpu --seq-len 16 --eval-batches 2
    expect_err "use --batch-size 2 for both"
}

test_a_run_may_hold_out_nothing() {
    run_tiny --out out --val-fraction 0
    expect_code 0
    expect_out "epoch 0."
    ! grep -q '"val_loss":[0-9]' out/metrics.jsonl || fail "a held-out loss was measured"
    run_tiny --out stop --val-fraction 0 --early-stop 2
    expect_refusal "eval.early_stop = 2 needs held-out data"
    printf '{"text": "only one row, and it is trained on, every letter of it"}\n' > one.jsonl
    run_tiny --out rows --val-fraction 0 --data one.jsonl
    expect_code 0
    run --resume out --steps 8
    expect_code 0
    expect_same "$(steps_of out)" 8 "steps"
}

test_a_short_tail_is_averaged() {
    run_tiny --out tail --steps 23 --tail-share 0.1 --predictor none
    expect_code 0
    run_tiny --out plain --steps 23 --predictor none
    cmp -s tail/model/model.safetensors plain/model/model.safetensors &&
        fail "the model is the last step's, not the average"
    grep -q '"tail_samples": *3' tail/checkpoint-23/trainer.json ||
        fail "$(grep -o '"tail_samples[^,]*' tail/checkpoint-23/trainer.json)"
}

test_jumps_along_a_line_are_no_longer_than_the_limits() {
    run_tiny --out line --steps 60 --predictor line --max-predict-steps 4 --full-steps 4 \
        --lr 1e-4 --confidence-threshold 0 --fork-budget 0
    expect_code 0
    awk 'match($0, /"predicted_steps":[0-9.]+/) {
            n++; if (substr($0, RSTART + 18, RLENGTH - 18) > 4) bad++ }
         END { exit bad > 0 || n == 0 }' line/metrics.jsonl || fail "$(grep -o 'predicted_steps":[0-9.]*' line/metrics.jsonl)"
}

test_matrices_that_nf4_leaves_are_named() {
    run_tiny --out base --width 36 --heads 2 --mlp-width 64
    expect_code 0
    run_tiny --out tuned --model base/model --qlora --lora-rank 2
    expect_err "frozen matrices are not stored in nf4: their rows are not a multiple of 64 numbers"
    run --plan --model base/model --qlora --device cpu
    expect_err "frozen matrices are not stored in nf4"
}

test_where_prediction_is_off_one_line_says_so() {
    run_tiny --out off
    expect_code 0
    expect_same "$(grep -ciE 'predict|jump|correct|confidence' "$stdout")" 1 "lines about prediction"
    expect_out "predict   off: it pays only in long AdamW runs from random weights; --predictor outer turns it on"
    run_tiny --predictor none --out none
    expect_same "$(grep -ciE 'predict|jump|correct|confidence' "$stdout")" 0 "lines about prediction"
    run_tiny --plan
    expect_same "$(grep -ciE 'predict|correct|snapshot|confidence' "$stdout")" 1 "lines of the plan"
    grep -q 'data-chart="confidence"' off/report.html && fail "the report draws a confidence"
    return 0
}

test_the_first_lines_name_the_family_and_an_unusual_type() {
    # shellcheck disable=SC2086
    run $tiny --architecture gemma3_text --gradient-checkpointing unsloth --bf16 --out none
    expect_code 0
    grep -q '^model  *nano, .* parameters, gemma3_text$' "$stdout" || fail "$(head -n 3 "$stdout")"
    expect_out "; computes in bf16"
    # shellcheck disable=SC2086
    run $tiny --out none
    ! grep "computes in" "$stdout" || fail "fp32 is usual on a CPU"
}

test_what_limits_nothing_and_a_tiny_held_out_set_are_named() {
    printf '{"prompt": "%s", "completion": "yes"}\n' one two three four five six seven eight nine ten > rows.jsonl
    run_tiny --cpu-mem 900TiB --data rows.jsonl --tokenizer none --chat-template plain --eval-every 2 --out none
    expect_code 0
    expect_out "cpu_mem is 900 TiB, but this machine has "
    expect_out " held-out tokens count, so the held-out loss varies by chance"
    expect_out "; --val-fraction or --val-data holds out more"
    run_tiny --seq-len 16 --batch-size 1 --eval-batches 2 --eval-every 2 --out none
    expect_out "; --eval-batches 0 measures all held-out data"
    run_tiny --cpu-mem 1GiB --eval-every 2 --out none
    ! grep -E "cpu_mem|varies by chance" "$stdout" || fail "nothing is unusual"
}
