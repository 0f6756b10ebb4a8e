/* cuda_files.h: finds the CUDA backend and NVIDIA's libraries, which pip, the CUDA toolkit and
 * Linux distributions install in different folders. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Opens one of NVIDIA's libraries by its file name ("libnccl.so.2") and keeps it open, so that
 * other objects that need it get this copy. Searches: the path of the loader (LD_LIBRARY_PATH,
 * ldconfig); CUDA_HOME and CUDA_PATH; Python packages next to this library, of the active
 * environment, of the user and of the system; the usual folders of the CUDA toolkit. NULL: not
 * found; `other` is then a copy that could not be opened, or empty. */
void *hy_open_nvidia(const char *file, char *other, size_t size);

/* Opens libhybrid_cuda.so with the libraries that it needs. NULL: `why` says what is wrong with it,
 * or is empty if there is none. */
void *hy_cuda_open_backend(char *why, size_t size);

/* Where the backend and cuBLAS were found, also without a driver; or what is missing. */
typedef struct hy_cuda_files {
    char backend[512]; /* "/usr/lib/hybrid-train/libhybrid_cuda.so"; "": none */
    char cublas[1024]; /* "13.0.2, /usr/local/cuda/lib64/libcublasLt.so.13" */
} hy_cuda_files;

void hy_cuda_find_files(hy_cuda_files *out);
