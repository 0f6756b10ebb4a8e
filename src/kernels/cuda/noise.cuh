/* noise.cuh: random numbers on the device: the functions of base/rng.h, and stochastic rounding.
 *
 * A number is a pure function of (seed, stream, index), and the words equal those of the CPU bit
 * for bit, so a run may move between them. Rounding to 16 bits takes 16 random bits and rounds up
 * with the probability of the part that is cut off; HY_OP_ADAMW in kernels.h defines which bits of
 * an element's word each of its numbers uses. */
#pragma once

#include "base/rng.h"
#include "kernels/cuda/cuda.cuh"

/* Philox4x32-10: hy_philox of base/rng.h. */
__device__ __forceinline__ uint4 hy_device_philox(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    HY_EACH(round, 10) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* hy_rng_normal, in double precision: rounded to fp32 it equals the CPU's except in rare cases.
 * cospi(2 v) is cos(2 pi v) without the reduction of large angles. */
__device__ __forceinline__ double hy_device_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint4 word = hy_device_philox(seed, stream, index);
    uint64_t a = (uint64_t)word.y << 32 | word.x, b = (uint64_t)word.w << 32 | word.z;
    double u = ((double)(a >> 11) + 1.0) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cospi(2.0 * v);
}

/* The rounding words of logical elements first to first + 3: one counter, or two if first is not a
 * multiple of 4. `first` has the same remainder in all threads, so there is no divergence. */
__device__ __forceinline__ void hy_rounding_words(uint64_t seed, uint64_t first,
                                                  uint32_t words[4]) {
    int skipped = (int)(first & 3);
    uint4 a = hy_device_philox(seed, HY_RNG_ROUNDING, first >> 2);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    if (skipped == 0) return;
    uint4 b = hy_device_philox(seed, HY_RNG_ROUNDING, (first >> 2) + 1);
    uint32_t w[7] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z};
    /* A shift by 1 to 3 in two selects: an index known only at run time would use local memory. */
    HY_EACH(i, 5) w[i] = skipped & 2 ? w[i + 2] : w[i];
    HY_EACH(i, 4) words[i] = skipped & 1 ? w[i + 1] : w[i];
}

__device__ __forceinline__ uint32_t hy_param_bits(uint32_t word) { return word & 0xffffu; }
__device__ __forceinline__ uint32_t hy_m_bits(uint32_t word) { return word >> 16; }
__device__ __forceinline__ uint32_t hy_v_bits(uint32_t word) { return word * 0x9E3779B1u >> 16; }

/* fp32 bits with x rounded to bf16 in the upper half: 16 random bits are added below it, to be cut
 * off. Infinity has no lower half to carry from; a NaN of the hardware has all ones and gets
 * none. */
__device__ __forceinline__ uint32_t hy_dithered(float x, uint32_t random16) {
    return __float_as_uint(x) + (x == x ? random16 : 0);
}

/* The upper halves of two words. */
__device__ __forceinline__ uint32_t hy_upper_halves(uint32_t first, uint32_t second) {
    return __byte_perm(first, second, 0x7632);
}

/* fp16: as above with 13 bits cut off, or in units of 2^-24 if the result is subnormal. */
__device__ __forceinline__ uint32_t hy_round_f16(float x, uint32_t random16) {
    uint32_t u = __float_as_uint(x), magnitude = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (magnitude >= 0x477fe000u) return __half_as_ushort(__float2half_rn(x)); /* from 65504 on */
    if (magnitude >= 0x38800000u) {
        return sign | (magnitude - 0x38000000u + (random16 >> 3)) >> 13;
    }
    float units = __uint_as_float(magnitude) * 0x1p24f;
    return sign | (uint32_t)__fadd_rn(units, (float)random16 * 0x1p-16f);
}
