/* cast.cuh: part of a stored weight as numbers (cast.cu). */
#pragma once

#include "kernels/cuda/cuda.cuh"

/* Which parts of dst are needed: quantised experts of `each` elements that have rows. */
typedef struct hy_cast_filter {
    const int32_t *offsets; /* NULL: all */
    uint32_t each;
} hy_cast_filter;

__device__ __forceinline__ bool hy_is_needed(const hy_cast_filter &filter, int64_t at) {
    if (!filter.offsets) return true;
    uint32_t expert = (uint32_t)at / filter.each;
    return filter.offsets[expert] < filter.offsets[expert + 1];
}

/* Elements of src from `first` on, as many as dst has, in dst's real type. first begins a row. With
 * a filter, dst has at most 2^32 elements, and those that are not needed may be left as they are. */
hy_status hy_cuda_cast_part(const hy_cuda_run *run, const hy_tensor *src, int64_t first,
                            const hy_tensor *dst, hy_cast_filter filter);
