/* scratch.h: a folder for targets that parse files by name, in memory where the system has such a
 * place: what they write lives for one input. */
#ifndef HY_TESTS_FUZZ_SCRATCH_H
#define HY_TESTS_FUZZ_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void make_scratch(char *folder, size_t size) {
    const char *given = getenv("TMPDIR"), *base = given && *given ? given : "/tmp";
    if (access("/dev/shm", W_OK) == 0) base = "/dev/shm";
    snprintf(folder, size, "%s/hy-fuzz-XXXXXX", base);
    if (mkdtemp(folder)) return;
    fprintf(stderr, "no folder in %s\n", base);
    abort();
}

static inline void put_scratch(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (file && fwrite(data, 1, size, file) == size && fclose(file) == 0) return;
    fprintf(stderr, "%s cannot be written\n", path);
    abort();
}

#endif
