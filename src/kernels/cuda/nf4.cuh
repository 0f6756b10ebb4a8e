/* nf4.cuh: 4-bit values and their scales (nf4.h), for kernels.
 *
 * Products and sums are rounded separately, as on the CPU: nothing here may become a fused
 * multiply-add. */
#pragma once

#include "kernels/cuda/cuda.cuh"
#include "kernels/nf4.h"

static __device__ const float hy_nf4_level_table[16] = {HY_NF4_LEVELS};
static __device__ const float hy_nf4_map_table[127] = {HY_NF4_MAP};

/* A tensor in nf4. */
typedef struct hy_nf4_codes {
    const uint8_t *codes;
    const float *plain;    /* the scale of each block in fp32; NULL: scales have two levels: */
    const float2 *pairs;   /* scale and offset of a group of blocks */
    const uint8_t *scales; /* the byte of each block's scale */
    int shift;             /* log2 of a group */
} hy_nf4_codes;

static inline hy_nf4_codes hy_nf4_codes_of(const hy_tensor *t) {
    hy_nf4_codes c = {(const uint8_t *)t->data, NULL, NULL, NULL, 0};
    int64_t blocks = hy_tensor_count(t) / t->quant.block;
    if (t->quant.group == 0) {
        c.plain = t->quant.scale;
        return c;
    }
    c.pairs = (const float2 *)t->quant.scale;
    while (1 << c.shift < t->quant.group) c.shift++;
    c.scales = (const uint8_t *)(c.pairs + (blocks >> c.shift));
    return c;
}

/* The number that the byte of a scale represents. */
__device__ __forceinline__ float hy_nf4_map_at(int code) {
    int from_zero = abs(code - 127);
    float size = code == 127 ? 0.0f : code == 255 ? 1.0f : __ldg(hy_nf4_map_table + from_zero - 1);
    return code < 127 ? -size : size;
}

/* The scale of a block. All threads of a launch take the same branch. */
__device__ __forceinline__ float hy_nf4_scale_at(const hy_nf4_codes &c, int64_t block) {
    if (c.plain) return __ldg(c.plain + block);
    float size = hy_nf4_map_at(__ldg(c.scales + block));
    float2 pair = __ldg(c.pairs + (block >> c.shift));
    return __fadd_rn(__fmul_rn(size, pair.x), pair.y);
}

/* One element. */
__device__ __forceinline__ float hy_nf4_at(const hy_nf4_codes &c, int64_t i) {
    int level = c.codes[i / 2] >> (i % 2 ? 0 : 4) & 15;
    return __fmul_rn(__ldg(hy_nf4_level_table + level), hy_nf4_scale_at(c, i / HY_NF4_BLOCK));
}
