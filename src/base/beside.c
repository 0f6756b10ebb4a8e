/* beside.c: opens shared objects next to the program. See beside.h. */
#include "base/beside.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

bool hy_own_folder(char *out, size_t size) {
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

void hy_find_beside(const char *file, const char *variable, char *out, size_t size) {
    static const char *const beside[] = {
        "", "/../lib", "/../../lib", "/../../../lib", "/../lib/hybrid-train", "/../hybrid-train"};
    const char *given = getenv(variable);
    char folder[PATH_BYTES];
    bool has_folder = hy_own_folder(folder, sizeof folder);
    if (given && given[0]) {
        snprintf(out, size, "%s", given);
        return;
    }
    for (size_t i = 0; has_folder && i < sizeof beside / sizeof beside[0]; i++) {
        int length = snprintf(out, size, "%s%s/%s", folder, beside[i], file);
        if ((size_t)length < size && access(out, R_OK) == 0) return;
    }
    snprintf(out, size, "%s", file);
}

void *hy_open_beside(const char *file, const char *variable, char *why, size_t size) {
    char path[PATH_BYTES];
    hy_find_beside(file, variable, path, sizeof path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *error = library ? NULL : dlerror();
    /* The loader's message begins with the file that it did not find. */
    bool is_none = error && strcmp(path, file) == 0 && strncmp(error, file, strlen(file)) == 0;
    snprintf(why, size, "%s", error && !is_none ? error : "");
    return library;
}
