/* gpu_heading.h: prints command line, card and date at the start of a GPU measurement.
 *
 * Figures without them cannot be repeated. Without an NVIDIA driver a measurement is skipped with a
 * message, so that all measurements can be run on any machine. */
#ifndef BENCH_GPU_HEADING_H
#define BENCH_GPU_HEADING_H

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "trainer/trainer.h"

/* The value after the last `name` on the command line, or `fallback`. */
static inline const char *gpu_option(int argc, char **argv, const char *name,
                                     const char *fallback) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) fallback = argv[i + 1];
    }
    return fallback;
}

static inline bool gpu_flag(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return true;
    }
    return false;
}

static inline bool gpu_is_asked(const char *device) { return strncmp(device, "cuda", 4) == 0; }

/* True, after a message, if there cannot be a card. */
static inline bool gpu_is_absent(const char *program, const char *device) {
    if (!gpu_is_asked(device) || hy_cuda_has_driver()) return false;
    printf("%s: skipped, no NVIDIA driver found\n", program);
    return true;
}

static inline void gpu_heading(int argc, char **argv, const hy_device_facts *facts) {
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("$");
    for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
    printf("\n%s; %s; %s\n", facts->name, facts->detail, date);
}

#endif
