/* process_figures.h: the resources of this process as reported by the system: memory, open files,
 * mappings. */
#ifndef HY_TESTS_PROCESS_FIGURES_H
#define HY_TESTS_PROCESS_FIGURES_H

#include <dirent.h>

#include "harness.h"

typedef struct process_figures {
    long rss, peak_rss; /* bytes: now, and the most since it was last reset */
    int files, mappings;
} process_figures;

/* "VmRSS:  1234 kB" of /proc/self/status, in bytes. */
static inline long status_bytes(const char *name) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0) kib = strtol(line + strlen(name) + 1, NULL, 10);
    }
    fclose(file);
    ck_assert_msg(kib >= 0, "/proc/self/status does not tell %s", name);
    return kib * 1024;
}

static inline int count_open_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static inline int count_mappings(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    int count = 0;
    ck_assert_ptr_nonnull(file);
    for (int c; (c = getc(file)) != EOF;) count += c == '\n';
    fclose(file);
    return count;
}

static inline process_figures process_now(void) {
    return (process_figures){.rss = status_bytes("VmRSS"),
                             .peak_rss = status_bytes("VmHWM"),
                             .files = count_open_files(),
                             .mappings = count_mappings()};
}

/* VmHWM begins anew at what is resident now; false where the system does not let us. */
static inline bool reset_peak_rss(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return false;
    bool is_done = fputs("5", file) >= 0;
    return fclose(file) == 0 && is_done;
}

#endif
