/* cuda_open.c: finding and opening the CUDA backend. See cuda_link.h.
 *
 * Looked for, in this order: HYBRID_CUDA_LIBRARY; beside the library or program that holds this code
 * (lib/ of a build or an installation, lib/hybrid-train of a package); where the loader looks. What is
 * missing is said in words: the driver, the device, the backend file, or a compute capability it was
 * built for. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/cuda_link.h"
#include "kernels/ops.h"

#define LIBRARY "libhybrid_cuda.so"
#define PATH_BYTES 4096

static hy_status fail_in_words(hy_status status, const char *format, va_list arguments) {
    char message[HY_ERROR_MESSAGE_MAX];
    vsnprintf(message, sizeof message, format, arguments);
    return hy_fail(status, "%s", message);
}

static const hy_cuda_host host = {.version = HY_CUDA_LINK_VERSION,
                                  .call_bytes = sizeof(hy_op_call),
                                  .fail = fail_in_words,
                                  .op_check = hy_op_check,
                                  .op_name = hy_op_name,
                                  .tensor_name = hy_op_tensor_name};

/* The folder of the file that holds this function: bin/ of a program, lib/ of the shared library. */
static bool own_folder(char *out, size_t size) {
    Dl_info info;
    char real[PATH_BYTES];
    ssize_t length = -1;
    if (dladdr((void *)(uintptr_t)hy_cuda_backend_create, &info) && strchr(info.dli_fname, '/')) {
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

/* Opens the first file that is there; `why` says what was wrong with one that is there but would not
 * open, or is left empty when there is none. */
static void *open_library(char *why, size_t size) {
    static const char *const beside[] = {
        "", "/../lib", "/../../lib", "/../../../lib", "/../lib/hybrid-train", "/../hybrid-train"};
    const char *given = getenv("HYBRID_CUDA_LIBRARY");
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    why[0] = 0;
    if (given && given[0]) return open_at(given, why, size);
    if (own_folder(folder, sizeof folder)) {
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
            snprintf(path, sizeof path, "%s%s/" LIBRARY, folder, beside[i]);
            if (access(path, R_OK) == 0) return open_at(path, why, size);
        }
    }
    char ignored[256];
    return open_at(LIBRARY, ignored, sizeof ignored);
}

hy_status hy_cuda_backend_create(const hy_cuda_options *options, hy_backend **out) {
    char why[512];
    *out = NULL;
    HY_FAIL_IF(!hy_cuda_has_driver(), HY_ERR_DEVICE,
               "there is no NVIDIA driver here (libcuda.so.1 was not found)");
    void *library = open_library(why, sizeof why);
    HY_FAIL_IF(!library && why[0], HY_ERR_DEVICE, "the CUDA backend could not be opened: %s", why);
    HY_FAIL_IF(!library, HY_ERR_DEVICE,
               "an NVIDIA driver is here, but the CUDA backend (" LIBRARY
               ") is not beside the program: build it with nvcc in PATH, or set "
               "HYBRID_CUDA_LIBRARY");
    hy_cuda_entry_function entry;
    *(void **)&entry = dlsym(library, HY_CUDA_ENTRY);
    HY_FAIL_IF(!entry, HY_ERR_DEVICE, LIBRARY " is not a CUDA backend: it has no " HY_CUDA_ENTRY);
    /* The library stays open: CUDA does not survive being unloaded. */
    hy_status status = entry(&host, options, out);
    if (status != HY_ERR_STATE) return status;
    return hy_fail(HY_ERR_DEVICE,
                   LIBRARY " is of another build than this program: build both again, or set "
                           "HYBRID_CUDA_LIBRARY to the one that belongs to it");
}
