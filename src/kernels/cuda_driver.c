/* cuda_driver.c: is NVIDIA's driver here? It is a library of its own, apart from card and toolkit. Apart
 * from cuda_open.c too, so that whoever brings a backend of their own (tests do) can still ask. */
#include <dlfcn.h>

#include "kernels/kernels.h"

bool hy_cuda_has_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    dlclose(driver);
    return true;
}
