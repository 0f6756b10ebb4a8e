/* cuda_driver.c: is NVIDIA's driver here, and for how many cards? It is a library of its own, apart from card and
 * toolkit. Apart from cuda_open.c too, so that whoever brings a backend of their own (tests do) can still ask. */
#include <dlfcn.h>

#include "base/beside.h"
#include "kernels/cuda_link.h"

bool hy_cuda_has_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    dlclose(driver);
    return true;
}

bool hy_cuda_has_backend(void) {
    char why[256];
    return hy_cuda_has_driver() &&
           hy_open_beside(HY_CUDA_LIBRARY, "HYBRID_CUDA_LIBRARY", why, sizeof why) != NULL;
}

#define SUCCESS 0

int hy_cuda_card_count(void) {
    int (*init)(unsigned flags);
    int (*get_count)(int *out);
    int count = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 0;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&get_count = dlsym(driver, "cuDeviceGetCount");
    bool is_known = init && get_count && init(0) == SUCCESS && get_count(&count) == SUCCESS;
    /* The driver stays open: it may have threads by now. */
    return is_known ? count : 0;
}
