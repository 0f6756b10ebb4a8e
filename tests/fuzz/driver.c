/* driver.c: runs a fuzz target on damaged copies of its seeds for a while.
 *
 *   fuzz_NAME                 for $HYBRID_FUZZ_SECONDS (10) on the seeds in tests/fuzz/seeds/NAME, damaged by
 *                             numbers from $HYBRID_FUZZ_SEED (0) x 2^32 on
 *   fuzz_NAME FILE ...        on these files as they are, once each: to look at one that failed
 *
 * A target is a file fuzz_NAME.c with LLVMFuzzerTestOneInput, as libFuzzer wants it, so it can be
 * linked with that instead. Here inputs follow from a number alone: the same on every machine. When
 * a sanitizer ends the program, the input is left in $TMPDIR/fuzz_NAME.crash. The last line counts
 * as a test suite's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "mutate.h"

#define ROUNDS_MAX 6
#define INPUT_MAX ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __asan_set_death_callback(void (*callback)(void)) __attribute__((weak));

typedef struct seed {
    char *data;
    size_t size;
} seed;

static struct {
    const char *name; /* fuzz_NAME */
    seed *seeds;
    size_t count;
    const uint8_t *input; /* what is being tried */
    size_t size;
} run;

static void keep_input(void) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/%s.crash", folder && *folder ? folder : "/tmp", run.name);
    FILE *file = run.input ? fopen(path, "wb") : NULL;
    if (!file) return;
    fwrite(run.input, 1, run.size, file);
    fclose(file);
    fprintf(stderr, "the input is in %s\n", path);
}

static void try_input(const uint8_t *data, size_t size) {
    run.input = data;
    run.size = size;
    LLVMFuzzerTestOneInput(data, size);
}

static bool read_seeds(void) {
    char folder[4096], **names;
    snprintf(folder, sizeof folder, "%s/tests/fuzz/seeds/%s", HY_SOURCE_DIR,
             run.name + strlen("fuzz_"));
    if (hy_dir_list(folder, &names, &run.count) != HY_OK) return false;
    run.seeds = calloc(run.count + 1, sizeof *run.seeds);
    for (size_t i = 0; i < run.count; i++) {
        char path[4096];
        seed *s = &run.seeds[i];
        bool is_read = hy_path_join(path, sizeof path, folder, names[i]) == HY_OK &&
                       hy_file_read(path, &s->data, &s->size) == HY_OK && s->size < INPUT_MAX;
        if (!is_read) return false;
    }
    hy_dir_list_free(names, run.count);
    return run.count > 0;
}

/* Copies a seed, or the beginning of one and the end of another, and damages it. Every 64th input
 * is left whole. Returns its size; `out` has INPUT_MAX and room to grow. */
static size_t make_input(uint8_t *out, uint64_t number) {
    const seed *a = &run.seeds[hy_rng_below(number, HY_RNG_TEST, 0, run.count)];
    const seed *b = &run.seeds[hy_rng_below(number, HY_RNG_TEST, 1, run.count)];
    size_t size = a->size;
    memcpy(out, a->data, size);
    if (number % 64 == 0) return size;
    if (number % 8 == 1) {
        size_t cut = hy_rng_below(number, HY_RNG_TEST, 2, a->size + 1);
        size_t from = hy_rng_below(number, HY_RNG_TEST, 3, b->size + 1);
        size = cut + (b->size - from) < INPUT_MAX ? cut + (b->size - from) : cut;
        if (size > cut) memcpy(out + cut, b->data + from, b->size - from);
    }
    uint64_t rounds = 1 + hy_rng_below(number, HY_RNG_TEST, 4, ROUNDS_MAX);
    for (uint64_t i = 0; i < rounds; i++) size = mutate_once(out, size, number, i);
    return size;
}

static int fuzz(double seconds) {
    uint8_t *input = malloc(INPUT_MAX + MUTATION_GROWTH);
    const char *wanted = getenv("HYBRID_FUZZ_SEED");
    uint64_t first = (wanted ? strtoull(wanted, NULL, 10) : 0) << 32, number = first;
    double began = hy_clock(), slowest = 0;
    if (!input || !read_seeds()) {
        printf("%s: no seeds: %s\n0 passed, 1 failed\n", run.name, hy_error_message());
        free(input);
        return EXIT_FAILURE;
    }
    for (double now = began; now - began < seconds; number++) {
        size_t size = make_input(input, number);
        /* A copy of its own size, so that reading past the end is noticed. */
        uint8_t *exact = malloc(size ? size : 1);
        memcpy(exact, input, size);
        try_input(exact, size);
        free(exact);
        double after = hy_clock();
        if (after - now > slowest) slowest = after - now;
        now = after;
    }
    printf("%s: %llu inputs, the slowest took %.0f ms\n1 passed, 0 failed\n", run.name,
           (unsigned long long)(number - first), slowest * 1e3);
    for (size_t i = 0; i < run.count; i++) free(run.seeds[i].data);
    free(run.seeds);
    free(input);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *wanted = getenv("HYBRID_FUZZ_SECONDS");
    run.name = slash ? slash + 1 : argv[0];
    if (__asan_set_death_callback) __asan_set_death_callback(keep_input);
    if (argc == 1) return fuzz(wanted && *wanted ? strtod(wanted, NULL) : 10);
    for (int i = 1; i < argc; i++) {
        seed s;
        if (hy_file_read(argv[i], &s.data, &s.size) != HY_OK) {
            fprintf(stderr, "%s: %s\n", run.name, hy_error_message());
            return EXIT_FAILURE;
        }
        try_input((const uint8_t *)s.data, s.size);
        free(s.data);
    }
    return EXIT_SUCCESS;
}
