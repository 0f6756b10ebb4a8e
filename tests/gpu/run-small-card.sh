#!/bin/sh
# run-small-card.sh: ops whose kernels depend on the shared memory of a block, as on an RTX 5080 (99 KB).
#
# Started by `make test-gpu` after a build, on any card: a variable limits the backend to that amount.
# Ends with the line "N passed, N failed".
out=${HYBRID_BUILD:-build}
export HYBRID_GPU_TESTS_SHARED=101376 CK_VERBOSITY=minimal
passed=0
failed=0
for name in heads ops; do
    if "$out/tests/gpu/test_gpu_$name" > /dev/null 2>&1; then
        passed=$((passed + 1))
        echo "  ok      test_gpu_$name with 99 KB"
    else
        failed=$((failed + 1))
        echo "  FAILED  test_gpu_$name with 99 KB: run it with HYBRID_GPU_TESTS_SHARED=$HYBRID_GPU_TESTS_SHARED"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
