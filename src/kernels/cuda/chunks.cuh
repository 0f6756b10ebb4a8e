/* chunks.cuh: matrices that are read and written in chunks, as fp32.
 *
 * A chunk is either a pack of 16 bytes (hy_packs: all tensors of one type, rows a multiple of a
 * pack) or one element of any type (hy_singles: odd widths, mixed types). Kernels are written once
 * for both; hy_by_chunks chooses. `fetch` loads a chunk as it is in memory, so that many loads can
 * be in flight in few registers; `open` converts it to fp32. */
#pragma once

#include <initializer_list>

#include "kernels/cuda/cuda.cuh"

/* ---- packs as fp32 --------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ void hy_unpack(const hy_pack<T> &pack, float *v) {
    HY_EACH(j, hy_pack<T>::count) v[j] = hy_to_float(pack.v[j]);
}
/* bf16 is the upper half of fp32. Read as words, a pack stays in four registers; element by
 * element, the compiler would use eight. */
__device__ __forceinline__ void hy_unpack(const hy_pack<__nv_bfloat16> &pack, float *v) {
    const uint32_t *words = (const uint32_t *)&pack;
    HY_EACH(j, 4) {
        v[2 * j] = __uint_as_float(words[j] << 16);
        v[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
}

/* 16-bit types are rounded in pairs: one instruction instead of three. */
__device__ __forceinline__ void hy_round_pair(float a, float b, __nv_bfloat16 *out) {
    *(__nv_bfloat162 *)out = __floats2bfloat162_rn(a, b);
}
__device__ __forceinline__ void hy_round_pair(float a, float b, __half *out) {
    *(__half2 *)out = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void hy_round_pair(float a, float b, float *out) {
    out[0] = a;
    out[1] = b;
}

template <typename T> __device__ __forceinline__ hy_pack<T> hy_packed(const float *v) {
    hy_pack<T> pack;
#pragma unroll
    for (int j = 0; j < hy_pack<T>::count; j += 2) hy_round_pair(v[j], v[j + 1], &pack.v[j]);
    return pack;
}

/* Makes the compiler forget what it knows about a pack: numbers that are needed again later are
 * then unpacked again instead of being kept in twice the registers. */
template <typename T> __device__ __forceinline__ void hy_stay_packed(hy_pack<T> &pack) {
    int4 *bits = (int4 *)&pack;
    asm volatile("" : "+r"(bits->x), "+r"(bits->y), "+r"(bits->z), "+r"(bits->w));
}

template <typename T> __device__ __forceinline__ hy_pack<T> hy_zero_pack() {
    hy_pack<T> pack;
    *(int4 *)&pack = make_int4(0, 0, 0, 0);
    return pack;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

template <typename T> struct hy_packs {
    static constexpr int width = hy_pack<T>::count;
    typedef hy_pack<T> chunk;
    T *data;

    static hy_packs of(const hy_tensor *t) { return {(T *)t->data}; }
    __device__ __forceinline__ chunk fetch(int64_t i) const { return hy_load_pack(data + i); }
    __device__ __forceinline__ void open(const chunk &p, float *v) const { hy_unpack(p, v); }
    __device__ __forceinline__ void store(int64_t i, const float *v) const {
        hy_store_pack(data + i, hy_packed<T>(v));
    }
    /* as store rounds it */
    __device__ __forceinline__ float rounded(float x) const {
        return hy_to_float(hy_from_float<T>(x));
    }
};

struct hy_singles {
    static constexpr int width = 1;
    typedef float chunk;
    void *data;
    hy_dtype dtype;

    static hy_singles of(const hy_tensor *t) { return {t->data, t->dtype}; }
    __device__ __forceinline__ chunk fetch(int64_t i) const { return hy_load_any(data, i, dtype); }
    __device__ __forceinline__ void open(chunk p, float *v) const { v[0] = p; }
    __device__ __forceinline__ void store(int64_t i, const float *v) const {
        hy_store_any(data, i, dtype, v[0]);
    }
    __device__ __forceinline__ float rounded(float x) const {
        if (dtype == HY_BF16) return __bfloat162float(__float2bfloat16_rn(x));
        return dtype == HY_F16 ? __half2float(__float2half_rn(x)) : x;
    }
};

/* Whether rows of `columns` elements of these tensors can be read in packs. Absent tensors do not
 * matter. */
static inline bool hy_fit_packs(int64_t columns, std::initializer_list<const hy_tensor *> tensors) {
    const hy_tensor *first = *tensors.begin();
    int64_t size = first->dtype == HY_F32 ? 4 : 2;
    if (columns * size % 16 != 0) return false;
    for (const hy_tensor *t : tensors) {
        if (hy_has(t) && (t->dtype != first->dtype || (uintptr_t)t->data % 16 != 0)) return false;
    }
    return true;
}

/* Calls f with an object of the access type that fits: hy_by_chunks(C, {x, y}, [&](auto access) {
 * using A = decltype(access); kernel<A><<<...>>>(A::of(x), A::of(y)); }) */
template <typename F>
static inline void hy_by_chunks(int64_t columns, std::initializer_list<const hy_tensor *> tensors,
                                F f) {
    if (!hy_fit_packs(columns, tensors)) {
        f(hy_singles{});
    } else {
        hy_by_type((*tensors.begin())->dtype, [&](auto zero) { f(hy_packs<decltype(zero)>{}); });
    }
}

/* ---- elementwise kernels --------------------------------------------------------------------- */

/* A thread takes HY_STEPS chunks, a block's width apart: all are loaded before any is stored, which
 * keeps enough loads in flight and makes in-place work safe. */
#define HY_STEPS 4
#define HY_STEP_THREADS 256

static inline unsigned hy_step_blocks(int64_t chunks) {
    return (unsigned)hy_ceil_div(chunks, HY_STEPS * HY_STEP_THREADS);
}

__device__ __forceinline__ int64_t hy_step_first() {
    return (int64_t)blockIdx.x * (HY_STEPS * HY_STEP_THREADS) + threadIdx.x;
}

/* Row and chunk within the row of a running index, advanced without further divisions. */
struct hy_walk {
    int64_t row;
    int64_t chunk;

    __device__ __forceinline__ hy_walk(int64_t index, int64_t per_row) {
        row =
            index < (1ll << 31) ? (int64_t)((uint32_t)index / (uint32_t)per_row) : index / per_row;
        chunk = index - row * per_row;
    }
    __device__ __forceinline__ void move(int64_t by, int64_t per_row) {
        for (chunk += by; chunk >= per_row; chunk -= per_row) row++;
    }
};
