/* gpu_harness.h: one backend for a test program of the CUDA backend, and its main function.
 *
 * Programs do not fork: a CUDA context does not live on in a child. Without a device they say what
 * is missing and return 2. HYBRID_GPU_TESTS=small leaves out what is slow under
 * compute-sanitizer. */
#ifndef HY_TESTS_GPU_HARNESS_H
#define HY_TESTS_GPU_HARNESS_H

#include "harness.h"
#include "kernels/kernels.h"

typedef struct gpu_rig {
    hy_backend *backend;
    hy_stream *stream;
    char *device; /* the block that calls are laid out in */
    size_t capacity;
    unsigned shifted; /* bit i: tensor i begins one element after an aligned address */
    bool is_small;
} gpu_rig;

static gpu_rig gpu;

/* HYBRID_GPU_TESTS_SHARED=101376: as an RTX 5080 would run it. */
static inline hy_cuda_options gpu_options(void) {
    const char *shared = getenv("HYBRID_GPU_TESTS_SHARED");
    hy_cuda_options options = {.tune = HY_TUNE_OFF};
    if (shared) options.shared_limit = (size_t)strtoul(shared, NULL, 10);
    return options;
}

/* HYBRID_GPU_TESTS_DEVICE=cpu runs the tests of ops on the CPU backend: to try the tests
 * themselves. */
static inline hy_backend *gpu_backend(void) {
    hy_cuda_options options = gpu_options();
    hy_cpu_options cpu = {.threads = 2};
    hy_backend *backend = NULL;
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    if (device && strcmp(device, "cpu") == 0) {
        return hy_cpu_backend_create(&cpu, &backend) == HY_OK ? backend : NULL;
    }
    return hy_cuda_backend_create(&options, &backend) == HY_OK ? backend : NULL;
}

/* HYBRID_GPU_TESTS=small and more than a few thousand elements: not this one. */
static inline bool gpu_leaves_out(int64_t elements) { return gpu.is_small && elements > 20000; }

static inline int gpu_main(Suite *suite, const char *program) {
    const char *amount = getenv("HYBRID_GPU_TESTS");
    gpu.is_small = amount && strcmp(amount, "small") == 0;
    gpu.backend = gpu_backend();
    if (!gpu.backend) {
        fprintf(stderr, "%s needs a CUDA device: %s\n", program, hy_error_message());
        return 2;
    }
    if (gpu.backend->stream_create(gpu.backend, "test", &gpu.stream) != HY_OK) {
        fprintf(stderr, "%s: %s\n", program, hy_error_message());
        return 2;
    }
    printf("%s on %s\n", program, gpu.backend->facts.name);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    gpu.backend->release(gpu.backend, HY_DEVICE, gpu.device, gpu.capacity);
    gpu.backend->stream_destroy(gpu.stream);
    gpu.backend->destroy(gpu.backend);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define GPU_TEST_MAIN(make_suite)                                                                  \
    int main(int argc, char **argv) {                                                              \
        (void)argc;                                                                                \
        return gpu_main(make_suite(), argv[0]);                                                    \
    }

#endif
