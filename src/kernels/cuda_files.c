/* cuda_files.c: finds the CUDA backend and NVIDIA's libraries. See cuda_files.h.
 *
 * The backend is linked with cuBLAS, which is too large for our packages (500 MB). If the loader
 * does not find it, its error message names the file; this code opens a copy by its path, and the
 * loader then uses that copy for the backend. */
#include "kernels/cuda_files.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/beside.h"
#include "kernels/cuda_link.h"

#define PATH_BYTES 4096
#define PYTHON "/lib/python3*/{site,dist}-packages/nvidia/*/lib"

/* ---- NVIDIA's libraries ---------------------------------------------------------------------- */

/* The value of `variable`, or the folder of this code if it is NULL, precedes each pattern. */
static const struct {
    const char *variable, *folders;
} places[] = {{"CUDA_HOME", "/lib64"},
              {"CUDA_PATH", "/lib64"},
              {NULL, "/../../nvidia/*/lib"}, /* our own Python package */
              {"VIRTUAL_ENV", PYTHON},
              {"CONDA_PREFIX", "{/lib,/targets/*/lib," PYTHON "}"},
              {"HOME", "/.local" PYTHON},
              {"", "/usr{/local,}" PYTHON},
              {"", "{/usr/local/cuda,/usr/local/cuda-*,/opt/cuda}/lib64"}};
#define PLACES (sizeof places / sizeof places[0])

static bool pattern_of(size_t i, const char *file, char *out, size_t size) {
    char own[PATH_BYTES];
    const char *variable = places[i].variable, *base = "";
    if (!variable) base = hy_own_folder(own, sizeof own) ? own : NULL;
    if (variable && variable[0]) base = getenv(variable);
    if (!base || (variable && variable[0] && !base[0])) return false;
    return (size_t)snprintf(out, size, "%s%s/%s", base, places[i].folders, file) < size;
}

/* Opens a file that the pattern matches. `other` becomes the name of one that does not open. */
static void *open_match(const char *pattern, char *other, size_t size) {
    glob_t found;
    void *library = NULL;
    if (glob(pattern, GLOB_BRACE, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++) {
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        if (!library) snprintf(other, size, "%s", found.gl_pathv[i]);
    }
    globfree(&found);
    return library;
}

void *hy_open_nvidia(const char *file, char *other, size_t size) {
    char pattern[PATH_BYTES + 256];
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    other[0] = 0;
    for (size_t i = 0; i < PLACES && !library; i++) {
        if (pattern_of(i, file, pattern, sizeof pattern)) {
            library = open_match(pattern, other, size);
        }
    }
    return library;
}

/* A copy of the library with another version, for the message; "" if there is none. */
static void find_other(const char *file, char *other, size_t size) {
    char pattern[PATH_BYTES + 256], any[64];
    glob_t found;
    snprintf(any, sizeof any, "%.*s.so.[0-9]*", (int)strcspn(file, "."), file);
    for (size_t i = 0; i < PLACES && !other[0]; i++) {
        if (!pattern_of(i, any, pattern, sizeof pattern)) continue;
        if (glob(pattern, GLOB_BRACE, NULL, &found) != 0) continue;
        snprintf(other, size, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
}

/* ---- our backend ----------------------------------------------------------------------------- */

#define CUBLAS "libcublasLt.so."

/* The loader begins its message with the name or path of the file that it could not open. */
static bool cublas_of(const char *why, char *file, size_t size) {
    const char *name = strstr(why, CUBLAS);
    return name && (size_t)snprintf(file, size, CUBLAS "%d", atoi(name + strlen(CUBLAS))) < size;
}

static void *open_backend(char *why, size_t size) {
    return hy_open_beside(HY_CUDA_LIBRARY, "HYBRID_CUDA_LIBRARY", why, size);
}

void *hy_cuda_open_backend(char *why, size_t size) {
    char first[512], other[512], file[64];
    void *library = open_backend(first, sizeof first);
    snprintf(why, size, "%s", first);
    if (library || !cublas_of(first, file, sizeof file)) return library;
    if (hy_open_nvidia(file, other, sizeof other)) library = open_backend(first, sizeof first);
    if (library) return library;
    if (!other[0]) find_other(file, other, sizeof other);
    int version = atoi(file + strlen(CUBLAS));
    char package[64];
    snprintf(package, sizeof package,
             version < 13 ? "nvidia-cublas-cu%d" : "\"nvidia-cublas==%d.*\"", version);
    snprintf(
        why, size,
        "%.300s%s%.300s%s. It needs cuBLAS %d: `pip install %s`, or install the package "
        "libcublas-%d-* from NVIDIA's repository; CUDA_HOME or LD_LIBRARY_PATH names a copy in "
        "another folder",
        first, other[0] ? " (" : "", other, other[0] ? " does not fit)" : "", version, package,
        version);
    return NULL;
}

/* Without links and "..", for people. */
static void put_path(char *out, size_t size, const char *path) {
    char *real = realpath(path, NULL);
    snprintf(out, size, "%.500s", real ? real : path);
    free(real);
}

void hy_cuda_find_files(hy_cuda_files *out) {
    char why[1024], path[PATH_BYTES];
    Dl_info info;
    size_t (*version)(void);
    void *library = hy_cuda_open_backend(why, sizeof why);
    *out = (hy_cuda_files){0};
    if (library || why[0]) {
        hy_find_beside(HY_CUDA_LIBRARY, "HYBRID_CUDA_LIBRARY", path, sizeof path);
        put_path(out->backend, sizeof out->backend, path);
    }
    if (!library) {
        snprintf(out->cublas, sizeof out->cublas, "%s", why);
        return;
    }
    *(void **)&version = dlsym(library, "cublasLtGetVersion"); /* also searches what it needs */
    if (!version || !dladdr(*(void **)&version, &info)) return;
    int number = (int)version(), length;
    length = snprintf(out->cublas, sizeof out->cublas, "%d.%d.%d, ", number / 10000,
                      number / 100 % 100, number % 100);
    put_path(out->cublas + length, sizeof out->cublas - (size_t)length, info.dli_fname);
}
