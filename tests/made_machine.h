/* made_machine.h: simulated machines: a folder with the files of /proc and /sys that a test
 * needs. */
#ifndef HY_TESTS_MADE_MACHINE_H
#define HY_TESTS_MADE_MACHINE_H

#include "harness.h"

static char machine[256], proc[300], sys[300];

static inline void make_machine(void) {
    temp_folder(machine);
    snprintf(proc, sizeof proc, "%s/proc", machine);
    snprintf(sys, sizeof sys, "%s/sys", machine);
}
static inline void drop_machine(void) { remove_folder(machine); }

static inline void write_file(const char *root, const char *name, const char *text) {
    char path[700], parent[700];
    snprintf(path, sizeof path, "%s/%s", root, name);
    must(hy_path_parent(parent, sizeof parent, path));
    must(hy_dir_make(parent));
    must(hy_file_write_atomic(path, text, strlen(text)));
}

#endif
