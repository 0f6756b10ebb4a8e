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

# A backend of another build that needs a cuBLAS which no system has, and that library in $1.
stand_in_backend() {
    mkdir -p "$1"
    printf '%s\n' '#include <stddef.h>' 'size_t cublasLtGetVersion(void) { return 770102; }' |
        ${CC:-gcc} -shared -fPIC -x c - -o "$1/libcublasLt.so.77" -Wl,-soname,libcublasLt.so.77 &&
        printf '%s\n' 'unsigned long cublasLtGetVersion(void);' \
            'int hy_cuda_entry(void) { return cublasLtGetVersion() == 0 ? 0 : 6; }' |
        ${CC:-gcc} -shared -fPIC -x c - -o backend.so -x none "$1/libcublasLt.so.77" 2> /dev/null ||
        skip "no shared library can be made"
    HYBRID_CUDA_LIBRARY=$PWD/backend.so
    export HYBRID_CUDA_LIBRARY
}

test_a_missing_cublas_is_named_with_its_packages() {
    stand_in_driver
    stand_in_backend elsewhere
    run_tiny --device cuda --out out
    expect_refusal "libcublasLt.so.77" "cuBLAS 77" 'pip install "nvidia-cublas==77.*"' "libcublas-77-"
    run --doctor
    expect_code 0
    expect_out "backend     $PWD/backend.so"
    expect_out "nvidia-cublas==77"
    # A copy that is not right is named.
    mkdir -p toolkit/lib64
    cp elsewhere/libcublasLt.so.77 toolkit/lib64/libcublasLt.so.76
    export CUDA_HOME="$PWD/toolkit"
    run_tiny --device cuda --out out
    expect_refusal "toolkit/lib64/libcublasLt.so.76 does not fit" "cuBLAS 77"
    echo damaged > toolkit/lib64/libcublasLt.so.77
    run_tiny --device cuda --out out
    expect_refusal "toolkit/lib64/libcublasLt.so.77 does not fit" "cuBLAS 77"
}

test_cublas_is_found_in_python_packages_and_in_the_toolkit() {
    stand_in_driver
    stand_in_backend elsewhere
    packages=lib/python3.12/site-packages/nvidia
    for place in VIRTUAL_ENV:/$packages/cu13/lib VIRTUAL_ENV:/$packages/cublas/lib CONDA_PREFIX:/lib \
        CUDA_HOME:/lib64 HOME:/.local/$packages/cu13/lib; do
        rm -rf there && mkdir -p "there${place#*:}" && cp elsewhere/libcublasLt.so.77 "there${place#*:}"
        # Open now, it is of another build.
        (export "${place%%:*}=$PWD/there" && run_tiny --device cuda --out out &&
            expect_refusal "different builds") || fail "$place"
        (export "${place%%:*}=$PWD/there" && run --doctor &&
            expect_out "cuBLAS      77.1.2, $PWD/there${place#*:}/libcublasLt.so.77") || fail "$place"
    done
    # A damaged copy in the loader's path does not hide a good one.
    echo damaged > libcublasLt.so.77
    export HOME="$PWD/there"
    run_tiny --device cuda --out out
    expect_refusal "different builds"
}

test_doctor_names_the_backend_and_cublas_without_a_driver() {
    has_driver && skip "a driver is here"
    stand_in_backend elsewhere
    export LD_LIBRARY_PATH="$PWD/elsewhere"
    run --doctor
    expect_out "no NVIDIA driver"
    expect_out "backend     $PWD/backend.so"
    expect_out "cuBLAS      77.1.2, $PWD/elsewhere/libcublasLt.so.77"
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
