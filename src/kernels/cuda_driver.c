/* cuda_driver.c: whether the driver and our backend are present, and how many cards there are. The
 * driver is a separate library, independent of card and toolkit. This file is separate from
 * cuda_open.c, so that programs with their own backend (tests) can use it. */
#include <dlfcn.h>

#include "kernels/cuda_files.h"
#include "kernels/kernels.h"

bool hy_cuda_has_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    dlclose(driver);
    return true;
}

bool hy_cuda_has_backend(void) {
    char why[1024];
    return hy_cuda_has_driver() && hy_cuda_open_backend(why, sizeof why) != NULL;
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
    /* The driver stays open: it may have started threads. */
    return is_known ? count : 0;
}
