/* cast.cuh: part of a stored weight as numbers (cast.cu). */
#pragma once

#include "kernels/cuda/cuda.cuh"

/* Elements of src from `first` on, as many as dst has, in dst's real type. first begins a row. */
hy_status hy_cuda_cast_part(const hy_cuda_run *run, const hy_tensor *src, int64_t first,
                            const hy_tensor *dst);
