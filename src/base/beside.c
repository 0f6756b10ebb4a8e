/* beside.c: opens shared objects next to the program. See beside.h. */
#include "base/beside.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* The folder of the file that contains this function: bin/ of a program, lib/ of the shared
 * library. */
static bool own_folder(char *out, size_t size) {
    Dl_info info;
    char real[PATH_BYTES];
    ssize_t length = -1;
    if (dladdr((void *)(uintptr_t)hy_open_beside, &info) && strchr(info.dli_fname, '/')) {
        length = snprintf(real, sizeof real, "%s", info.dli_fname);
    } else {
        length = readlink("/proc/self/exe", real, sizeof real - 1);
    }
    if (length <= 0 || (size_t)length >= sizeof real) return false;
    real[length] = 0;
    char *slash = strrchr(real, '/');
    if (!slash) return false;
    *slash = 0;
    return (size_t)snprintf(out, size, "%s", real) < size;
}

static void *open_at(const char *path, char *why, size_t size) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *error = library ? NULL : dlerror();
    if (error) snprintf(why, size, "%s", error);
    return library;
}

void *hy_open_beside(const char *file, const char *variable, char *why, size_t size) {
    static const char *const beside[] = {
        "", "/../lib", "/../../lib", "/../../../lib", "/../lib/hybrid-train", "/../hybrid-train"};
    const char *given = getenv(variable);
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    why[0] = 0;
    if (given && given[0]) return open_at(given, why, size);
    if (own_folder(folder, sizeof folder)) {
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
            snprintf(path, sizeof path, "%s%s/%.60s", folder, beside[i], file);
            if (access(path, R_OK) == 0) return open_at(path, why, size);
        }
    }
    char ignored[256];
    return open_at(file, ignored, sizeof ignored);
}
