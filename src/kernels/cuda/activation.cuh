/* activation.cuh: activation functions and their derivatives, for kernels. */
#pragma once

#include "kernels/cuda/chunks.cuh"

/* 2 u = x (A + B x^2) with u = sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548162726f

template <bool is_fast> static __device__ __forceinline__ float sigmoid(float x) {
    return is_fast ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

/* Packs have 8 16-bit elements. Singles may be fp32. */
template <typename A> static constexpr bool is_fast = A::width == 8;

/* Any activation function, and its derivative. */
template <bool is_fast> static __device__ __forceinline__ float act(hy_act kind, float v) {
    if (kind == HY_ACT_GELU) return v * (0.5f + 0.5f * erff(v * 0.70710678f));
    if (kind == HY_ACT_RELU2) return v < 0 ? 0.0f : v * v;
    if (kind == HY_ACT_SILU) return v * sigmoid<is_fast>(v);
    return v * sigmoid<is_fast>(v * (GELU_A + GELU_B * v * v));
}
template <bool is_fast> static __device__ __forceinline__ float act_slope(hy_act kind, float v) {
    if (kind == HY_ACT_GELU) { /* with the density of normal numbers */
        float density = 0.398942280f * (is_fast ? __expf(-0.5f * v * v) : expf(-0.5f * v * v));
        return 0.5f + 0.5f * erff(v * 0.70710678f) + v * density;
    }
    if (kind == HY_ACT_RELU2) return v < 0 ? 0.0f : 2.0f * v;
    float square = v * v;
    bool is_silu = kind == HY_ACT_SILU;
    float s = sigmoid<is_fast>(is_silu ? v : v * (GELU_A + GELU_B * square));
    return s + v * s * (1.0f - s) * (is_silu ? 1.0f : GELU_A + 3.0f * GELU_B * square);
}

/* The gradients of gate and up in place of g and u, from dy in d; and y in place of d. */
template <bool is_fast, int width>
static __device__ __forceinline__ void gate_gradient(hy_act kind, float *d, float *g, float *u) {
    HY_EACH(j, width) {
        float active = act<is_fast>(kind, g[j]), dup = d[j] * active, y = active * u[j];
        g[j] = d[j] * u[j] * act_slope<is_fast>(kind, g[j]);
        u[j] = dup;
        d[j] = y;
    }
}
