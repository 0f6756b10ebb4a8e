/* rounding.cuh: stores numbers that an optimizer has changed in their types: 16-bit parameters
 * without master, and 16-bit state, are rounded stochastically with the noise that HY_OP_ADAMW in
 * kernels.h defines. */
#pragma once

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/quad.cuh"

/* Which bits of an element's word are used: see HY_OP_ADAMW. */
enum hy_noise_use { HY_PARAM_BITS, HY_M_BITS, HY_V_BITS };

/* Rounds stochastically to bf16. */
template <hy_noise_use use>
__device__ __forceinline__ hy_quad_bits hy_rounded(const float x[HY_QUAD],
                                                   const uint32_t words[HY_QUAD]) {
    hy_quad_bits bits;
    uint32_t u[HY_QUAD];
    HY_EACH(i, HY_QUAD) {
        u[i] = hy_dithered(x[i], use == HY_PARAM_BITS ? hy_param_bits(words[i])
                                 : use == HY_M_BITS   ? hy_m_bits(words[i])
                                                      : hy_v_bits(words[i]));
    }
    bits.w[0] = hy_upper_halves(u[0], u[1]);
    bits.w[1] = hy_upper_halves(u[2], u[3]);
    return bits;
}

/* Stores the updated parameter: in the master if there is one, and in the working copy. */
__device__ __forceinline__ void hy_store_param(const hy_view &param, const hy_view &master,
                                               int64_t at, int n, const float x[HY_QUAD],
                                               const uint32_t words[HY_QUAD]) {
    hy_quad_bits bits;
    if (master.data) hy_store(master, at, n, hy_narrow(x, HY_F32));
    if (master.data || param.dtype == HY_F32) {
        bits = hy_narrow(x, param.dtype);
    } else if (param.dtype == HY_BF16) {
        bits = hy_rounded<HY_PARAM_BITS>(x, words);
    } else {
        HY_EACH(i, HY_QUAD / 2) {
            bits.w[i] = hy_round_f16(x[2 * i], hy_param_bits(words[2 * i])) |
                        hy_round_f16(x[2 * i + 1], hy_param_bits(words[2 * i + 1])) << 16;
        }
    }
    hy_store(param, at, n, bits);
}
