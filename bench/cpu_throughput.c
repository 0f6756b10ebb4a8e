/* cpu_throughput.c: the share of the machine's matmul speed that a training step reaches.
 *
 * Trains GPT-2 124M for a few steps through hybrid.h and times plain sgemm of OpenBLAS, with its
 * own threads on the same number of cores, between the steps. Each step is compared with the sgemm
 * before and after it, so that other load on the machine affects both; the result is the median
 * ratio. Model work is 6 operations per block and head weight and token, plus causal attention.
 *   build/bench/cpu_throughput [--batch N] [--seq N] [--steps N] [--model NAME] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hybrid.h"

typedef void (*sgemm_function)(int, int, int, int, int, int, float, const float *, int,
                               const float *, int, float, float *, int);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sort(double *values, int count) {
    for (int i = 0; i < count; i++) {
        for (int j = i + 1; j < count; j++) {
            if (values[j] >= values[i]) continue;
            double swap = values[i];
            values[i] = values[j];
            values[j] = swap;
        }
    }
}

/* Median rate of five products like a transformer's (rows x 768 x 3072), after one warm-up. */
static double sgemm_rate(int rows) {
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!library) return 0;
    sgemm_function sgemm = (sgemm_function)dlsym(library, "cblas_sgemm");
    void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
    if (!sgemm || !set_threads) return 0;
    int m = rows, n = 3072, k = 768;
    float *a = malloc((size_t)m * (size_t)k * 4), *b = malloc((size_t)n * (size_t)k * 4);
    float *c = malloc((size_t)m * (size_t)n * 4);
    double rates[6];
    for (int i = 0; i < m * k; i++) a[i] = (float)(i % 13) * 0.1f - 0.6f;
    for (int i = 0; i < n * k; i++) b[i] = (float)(i % 17) * 0.1f - 0.8f;
    set_threads(sysconf(_SC_NPROCESSORS_ONLN) > 0 ? (int)sysconf(_SC_NPROCESSORS_ONLN) : 1);
    for (int i = 0; i < 6; i++) {
        double begin = now();
        sgemm(101, 111, 112, m, n, k, 1, a, k, b, k, 0, c, n);
        rates[i] = 2.0 * m * n * k / (now() - begin);
    }
    set_threads(1); /* as the library keeps it */
    sort(rates + 1, 5);
    free(a);
    free(b);
    free(c);
    dlclose(library);
    return rates[3];
}

static const char *option(int argc, char **argv, const char *name, const char *fallback) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    }
    return fallback;
}

static int fail(void) {
    fprintf(stderr, "cpu_throughput: %s\n", hy_error_message());
    return 1;
}

int main(int argc, char **argv) {
    const char *batch = option(argc, argv, "--batch", "1"),
               *seq = option(argc, argv, "--seq", "1024");
    const char *model = option(argc, argv, "--model", "gpt2-124m");
    int steps = atoi(option(argc, argv, "--steps", "3"));
    const char *settings[][2] = {
        {"model", model}, {"batch_size", batch}, {"seq_len", seq},  {"grad_accum_steps", "1"},
        {"out", "none"},  {"precision", "fp32"}, {"steps", "1000"}, {"builtin_bytes", "400000"}};
    hy_config *config;
    hy_trainer *trainer;
    if (hy_config_create(&config) != HY_OK) return fail();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (hy_config_set(config, settings[i][0], settings[i][1], HY_FROM_CALLER) != HY_OK) {
            return fail();
        }
    }
    if (hy_trainer_create(config, NULL, &trainer) != HY_OK) return fail();
    hy_summary summary;
    hy_trainer_summary(trainer, &summary);
    printf("%s, %s\n%s x %s tokens of %s, %lld parameters\n", summary.device, summary.matmul, batch,
           seq, model, (long long)summary.parameters);
    int rows = atoi(batch) * atoi(seq);
    double before = sgemm_rate(rows), ratios[64];
    if (steps < 1 || steps > 64 || before <= 0) {
        fprintf(stderr, "cpu_throughput: needs 1 to 64 steps and OpenBLAS\n");
        return 1;
    }
    for (int i = 0; i <= steps; i++) { /* the first step is a warm-up */
        hy_step_info info;
        if (hy_trainer_step(trainer, &info) != HY_OK) return fail();
        double after = sgemm_rate(rows), sgemm = 0.5 * (before + after);
        double rate = summary.flops_per_token * (double)summary.tokens_per_step / info.seconds;
        printf("step %d%s: %.2f s, %.1f tokens/s, %.1f of %.1f GFLOP/s: %.3f\n", i,
               i ? "" : " (warm-up)", info.seconds, (double)summary.tokens_per_step / info.seconds,
               rate * 1e-9, sgemm * 1e-9, rate / sgemm);
        if (i > 0) ratios[i - 1] = rate / sgemm;
        before = after;
    }
    sort(ratios, steps);
    printf("training step over plain sgemm: ratio %.3f (median of %d; bar 0.600)\n",
           ratios[steps / 2], steps);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return 0;
}
