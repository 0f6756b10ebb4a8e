/* cuda_open.c: finds and opens the CUDA backend. See cuda_link.h.
 *
 * The search order is HYBRID_CUDA_LIBRARY, next to the program, and the search path of the loader
 * (cuda_files.h). The error names what is missing: the driver, the device, the backend file,
 * cuBLAS, or code for the card's compute capability. */
#include <dlfcn.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda_files.h"
#include "kernels/cuda_link.h"
#include "kernels/ops.h"

#define LIBRARY HY_CUDA_LIBRARY

static const hy_cuda_host host = {.version = HY_CUDA_LINK_VERSION,
                                  .call_bytes = sizeof(hy_op_call),
                                  .fail = hy_fail_list,
                                  .error_message = hy_error_message,
                                  .op_check = hy_op_check,
                                  .check_fp8 = hy_op_check_fp8,
                                  .op_name = hy_op_name,
                                  .tensor_name = hy_op_tensor_name};

hy_status hy_cuda_backend_create(const hy_cuda_options *options, hy_backend **out) {
    char why[1024];
    *out = NULL;
    HY_FAIL_IF(!hy_cuda_has_driver(), HY_ERR_DEVICE,
               "there is no NVIDIA driver on this machine (libcuda.so.1 was not found)");
    void *library = hy_cuda_open_backend(why, sizeof why);
    HY_FAIL_IF(!library && why[0], HY_ERR_DEVICE, "the CUDA backend could not be opened: %s", why);
    HY_FAIL_IF(!library, HY_ERR_DEVICE,
               "there is an NVIDIA driver, but the CUDA backend (" LIBRARY
               ") was not found: build it with nvcc in PATH, install the package "
               "hybrid-train-cuda, or set HYBRID_CUDA_LIBRARY");
    hy_cuda_entry_function entry;
    *(void **)&entry = dlsym(library, HY_CUDA_ENTRY);
    HY_FAIL_IF(!entry, HY_ERR_DEVICE,
               LIBRARY " is not a CUDA backend: it has no function " HY_CUDA_ENTRY);
    /* The library stays open: CUDA cannot be unloaded safely. */
    hy_status status = entry(&host, options, out);
    if (status != HY_ERR_STATE) return status;
    return hy_fail(HY_ERR_DEVICE,
                   LIBRARY " and this program are from different builds: build both again, or set "
                           "HYBRID_CUDA_LIBRARY to the file that belongs to this program");
}
