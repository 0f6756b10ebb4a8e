# device.sh: the device a run computes on, where there is no GPU; what is missing is said in one line.
# tests/gpu/run-errors.sh has what needs a card.

has_driver() { ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1'; }

# A library of the driver's name that holds nothing: a driver, as far as looking for one goes.
stand_in_driver() {
    command -v ${CC:-gcc} > /dev/null || skip "no compiler"
    has_driver && skip "a driver is here"
    echo 'int nothing;' | ${CC:-gcc} -shared -fPIC -x c - -o libcuda.so.1 2> /dev/null ||
        skip "no shared library can be made"
    LD_LIBRARY_PATH=$PWD
    export LD_LIBRARY_PATH
}

test_a_card_without_a_driver_is_refused() {
    has_driver && skip "a driver is here"
    run_tiny --device cuda --out out
    expect_refusal "device is cuda" "no NVIDIA driver"
    run --selftest --device cuda
    expect_refusal "no NVIDIA driver"
    expect_empty "$stdout"
}

test_a_backend_file_that_is_not_there_is_named() {
    stand_in_driver
    HYBRID_CUDA_LIBRARY=$PWD/no-such-file.so
    export HYBRID_CUDA_LIBRARY
    run_tiny --device cuda --out out
    expect_refusal "CUDA backend could not be opened" "no-such-file.so"
}

test_a_file_that_is_no_backend_is_named() {
    stand_in_driver
    HYBRID_CUDA_LIBRARY=$PWD/libcuda.so.1
    export HYBRID_CUDA_LIBRARY
    run_tiny --device cuda --out out
    expect_refusal "not a CUDA backend"
}

test_without_a_card_auto_computes_on_the_cpu() {
    has_driver && skip "a driver is here"
    run_tiny --device auto --steps 2 --out out
    expect_code 0
    expect_out "CPU"
}

test_selftest_of_the_cpu_reports_and_passes() {
    run --selftest --device cpu
    expect_code 0
    expect_empty "$stderr"
    for word in version system CPU matmul attention adamw "matmul, fp32" GB/s \
        "tests passed" "compared with known answers"; do
        expect_out "$word"
    done
    grep -q FAILED "$stdout" && fail "$(cat "$stdout")"
    expect_nothing_written
    run --selftest --device cpu --quiet
    expect_code 0
    expect_empty "$stdout"
}
