#!/bin/sh
# run-errors.sh: what the program says when a card is asked for and something of it is missing, on a
# machine that has one. Each is one line of error and exit code 2, and nothing is written. Also that the
# self-test passes and that a run on the card works from the command line.
here=$(cd "$(dirname "$0")/../cli" && pwd)
. "$here/harness.sh"

test_no_device_that_the_process_may_see() {
    CUDA_VISIBLE_DEVICES=
    export CUDA_VISIBLE_DEVICES
    run_tiny --device cuda --out out
    expect_refusal "device cuda" "no device"
    run --selftest --device cuda
    expect_refusal "no device"
}

test_auto_without_a_device_says_so_and_computes_on_the_cpu() {
    CUDA_VISIBLE_DEVICES=
    export CUDA_VISIBLE_DEVICES
    run_tiny --device auto --steps 2 --out out
    expect_code 0
    expect_out "computing on the CPU"
}

test_a_card_that_is_not_there() {
    run_tiny --device cuda:99 --out out
    expect_refusal "cuda:99" "there is no CUDA device 99"
}

test_a_backend_file_that_is_not_there() {
    HYBRID_CUDA_LIBRARY=/no/such/libhybrid_cuda.so
    export HYBRID_CUDA_LIBRARY
    run_tiny --device cuda --out out
    expect_refusal "could not be opened" "/no/such/libhybrid_cuda.so"
}

test_a_file_that_is_no_backend() {
    HYBRID_CUDA_LIBRARY=libcuda.so.1
    export HYBRID_CUDA_LIBRARY
    run_tiny --device cuda --out out
    expect_refusal "not a CUDA backend"
}

test_a_model_that_does_not_fit_is_refused_in_words() {
    run --model qwen2.5-7b --vocab 152064 --device cuda --max-gpu-mem 1GiB --steps 1 --out out \
        --builtin-bytes 60000
    expect_refusal "short"
}

test_selftest_of_the_card_reports_and_passes() {
    run --selftest --device cuda
    [ "$code" = 0 ] || fail "exit code $code: $(cat "$stdout" "$stderr")"
    for word in driver GPU "attention backward" "copy to the card" TFLOP/s "tests passed"; do
        expect_out "$word"
    done
    grep -q FAILED "$stdout" && fail "$(cat "$stdout")"
    for way in forward backward; do
        grep -qE "attention $way, .* of 128, (our own|cuDNN's) " "$stdout" || fail "$(cat "$stdout")"
    done
    expect_nothing_written
}

test_a_run_on_the_card_stops_and_resumes() {
    run_tiny --device cuda --tune off --steps 4 --out out
    expect_code 0
    expect_file out/summary.json
    expect_file out/checkpoint-4
    run --resume out --steps 8
    expect_code 0
    expect_file out/checkpoint-8
}

echo "errors"
for name in $(sed -n 's/^test_\([a-z0-9_]*\)().*/\1/p' "$0"); do run_test "$name"; done
finish
