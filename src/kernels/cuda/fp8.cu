/* fp8.cu: the largest magnitude of a tensor, and its fp8 values (fp8.h), in the same layout and
 * transposed.
 *
 * Both run at memory speed. To transpose, a block takes a tile of 128 rows and 128 columns: a
 * thread reads 16 neighbours of each of 4 rows, transposes them 4 x 4 in registers and writes words
 * of 4 rows to shared memory, from which whole lines of the transposed matrix are written. A shape
 * that is not a multiple of sixteen uses any_kernel. The counts in `seen` are integers, so the
 * order of additions does not matter. */
#include <cuda_fp8.h>

#include "kernels/cuda/chunks.cuh"
#include "kernels/cuda/largest.cuh"

#define THREADS 256

/* ---- the largest magnitude ------------------------------------------------------------------- */

#define PACKS_IN_FLIGHT 4

/* `packs` packs are read 16 bytes at a time, the rest by elements. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    largest_kernel(const T *x, int64_t packs, int64_t count, uint32_t *out) {
    constexpr int width = hy_pack<T>::count;
    int64_t step = (int64_t)gridDim.x * THREADS;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t largest = 0;
    for (int64_t i = first; i < packs; i += PACKS_IN_FLIGHT * step) {
        hy_pack<T> in[PACKS_IN_FLIGHT];
        HY_EACH(k, PACKS_IN_FLIGHT) {
            int64_t at = i + k * step;
            in[k] = at < packs ? hy_load_pack(x + at * width) : hy_zero_pack<T>();
        }
        HY_EACH(k, PACKS_IN_FLIGHT) {
            float v[width];
            hy_unpack(in[k], v);
            largest = hy_largest_of<width>(largest, v);
        }
    }
    for (int64_t i = packs * width + first; i < count; i += step) {
        largest = max(largest, hy_magnitude(hy_to_float(x[i])));
    }
    largest = hy_block_largest(largest);
    if (threadIdx.x == 0 && largest > 0) atomicMax(out, largest);
}

hy_status hy_cuda_largest(const hy_cuda_run *run) {
    const hy_tensor *x = &run->call->t[HY_LARGEST_X];
    int64_t count = hy_tensor_count(x);
    bool is_packed = (uintptr_t)x->data % 16 == 0;
    uint32_t *out;
    HY_TRY(hy_begin_largest(run, HY_LARGEST_OUT, &out));
    hy_by_type(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t packs = is_packed ? count / hy_pack<T>::count : 0;
        int64_t wanted = hy_ceil_div(is_packed ? packs : count, PACKS_IN_FLIGHT * THREADS);
        int64_t full = 8 * (int64_t)run->cuda->card.multiprocessors;
        unsigned blocks = (unsigned)(wanted < 1 ? 1 : wanted < full ? wanted : full);
        largest_kernel<T>
            <<<blocks, THREADS, 0, run->stream>>>((const T *)x->data, packs, count, out);
    });
    return hy_cuda_launched(run);
}

/* ---- one call -------------------------------------------------------------------------------- */

typedef struct to_fp8_call {
    const void *x;               /* (M,C) */
    const float *largest;        /* NULL: x is fp8 and has old_scale */
    const float *old_scale;      /* NULL: x is not fp8 */
    uint8_t *codes, *transposed; /* (M,C), (C,M); either may be NULL */
    float *codes_scale, *transposed_scale;
    double *seen;
    int64_t M, C;
    unsigned across; /* tiles per row of tiles */
    hy_dtype x_type, dtype;
} to_fp8_call;

#define NO_NUMBERS 0x7f7f7f7fu /* four fp8 NaNs */

/* How numbers are converted. */
struct coder {
    float inverse;
    uint32_t kept, none; /* bits of four values; all NaN if the inverse is NaN */
    bool is_counting;    /* count numbers that become zero */
};

/* Done once per call: stores scales and statistics. */
static __device__ void keep_scale(const to_fp8_call &p, float largest) {
    float scale = p.old_scale ? *p.old_scale : hy_fp8_scale(p.dtype, largest);
    if (p.codes_scale) *p.codes_scale = scale;
    if (p.transposed_scale) *p.transposed_scale = scale;
    if (!p.seen) return;
    /* for doubles that are not negative, larger numbers have larger bits, and NaN is above all */
    double wide = (double)largest;
    atomicMax((unsigned long long *)p.seen, (unsigned long long)__double_as_longlong(wide));
    atomicAdd(p.seen + 2, (double)(p.M * p.C));
}

static __device__ __forceinline__ coder begin_codes(const to_fp8_call &p) {
    float largest = p.largest ? *p.largest : 0.0f;
    if (blockIdx.x == 0 && threadIdx.x == 0) keep_scale(p, largest);
    coder c;
    c.inverse = hy_fp8_inverse(p.dtype, largest);
    c.none = c.inverse == c.inverse ? 0 : NO_NUMBERS;
    c.kept = c.none ? 0 : 0xffffffffu;
    c.is_counting = p.seen != NULL;
    return c;
}

/* All threads of the block must call it, once. */
static __device__ __forceinline__ void keep_lost(const to_fp8_call &p, uint32_t lost) {
    __shared__ uint32_t of_warp[THREADS / 32];
    if (!p.seen) return;
    for (int d = 16; d > 0; d >>= 1) lost += __shfl_xor_sync(0xffffffffu, lost, d);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = lost;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < THREADS / 32; w++) lost += of_warp[w];
    if (lost > 0) atomicAdd(p.seen + 1, (double)lost);
}

/* ---- fp8 values ------------------------------------------------------------------------------ */

/* Converts four numbers that are already scaled; the first is in the lowest byte. For finite
 * numbers the hardware's conversion and hy_fp8_encode give the same bits. */
template <bool is_e4m3> static __device__ __forceinline__ uint32_t four_codes(const float *v) {
#if __CUDA_ARCH__ >= 890
    const __nv_fp8_interpretation_t kind = is_e4m3 ? __NV_E4M3 : __NV_E5M2;
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[0], v[1]), __NV_SATFINITE, kind);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2], v[3]), __NV_SATFINITE, kind);
    return low | high << 16;
#else
    uint32_t word = 0;
    HY_EACH(i, 4) word |= (uint32_t)hy_fp8_encode(is_e4m3 ? HY_E4M3 : HY_E5M2, v[i]) << 8 * i;
    return word;
#endif
}

/* Whether a number other than zero becomes zero: its product is at most half of the smallest value,
 * as ties go to even. */
template <bool is_e4m3> static __device__ __forceinline__ uint32_t is_lost(float x, float product) {
    const float half = is_e4m3 ? 0x1p-10f : 0x1p-17f;
    return (uint32_t)(x != 0) & (uint32_t)(fabsf(product) <= half);
}

template <bool is_e4m3>
static __device__ __forceinline__ uint8_t code_of(float x, const coder &c, uint32_t *lost) {
    float v[4] = {x * c.inverse, 0, 0, 0};
    if (c.is_counting) *lost += is_lost<is_e4m3>(x, v[0]);
    return (uint8_t)((four_codes<is_e4m3>(v) & c.kept) | c.none);
}

/* Sixteen neighbours of a row as in memory. */
template <typename T> struct sixteen {
    static constexpr int width = hy_pack<T>::count, packs = 16 / width;
    hy_pack<T> p[packs];

    __device__ __forceinline__ void fetch(const T *from) {
        HY_EACH(i, packs) p[i] = hy_load_pack(from + i * width);
    }

    template <bool is_e4m3>
    __device__ __forceinline__ uint4 encode(const coder &c, uint32_t *lost) const {
        uint32_t words[4];
        HY_EACH(i, packs) {
            float v[width];
            hy_unpack(p[i], v);
            HY_EACH(j, width) v[j] *= c.inverse;
            HY_EACH(j, width / 4) {
                uint32_t word = four_codes<is_e4m3>(v + 4 * j);
                words[i * width / 4 + j] = (word & c.kept) | c.none;
            }
            if (!c.is_counting) continue;
            float x[width];
            hy_unpack(p[i], x);
            HY_EACH(j, width) *lost += is_lost<is_e4m3>(x[j], v[j]);
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
};

/* Values that are already fp8. */
template <> struct sixteen<uint8_t> {
    uint4 codes;

    __device__ __forceinline__ void fetch(const uint8_t *from) { codes = *(const uint4 *)from; }
    template <bool is_e4m3>
    __device__ __forceinline__ uint4 encode(const coder &, uint32_t *) const {
        return codes;
    }
};

/* ---- in the same layout ---------------------------------------------------------------------- */

#define GROUPS 4 /* groups of sixteen per thread, a block's width apart */

template <typename T, bool is_e4m3>
static __global__ void __launch_bounds__(THREADS) encode_kernel(to_fp8_call p) {
    const T *x = (const T *)p.x;
    int64_t count = p.M * p.C, groups = count / 16;
    int64_t first = (int64_t)blockIdx.x * (GROUPS * THREADS) + threadIdx.x;
    uint32_t lost = 0;
    sixteen<T> in[GROUPS];
    HY_EACH(k, GROUPS) {
        int64_t i = first + k * THREADS;
        if (i < groups) in[k].fetch(x + 16 * i);
    }
    coder c = begin_codes(p);
    HY_EACH(k, GROUPS) {
        int64_t i = first + k * THREADS;
        if (i < groups) *(uint4 *)(p.codes + 16 * i) = in[k].template encode<is_e4m3>(c, &lost);
    }
    int64_t last = 16 * groups + threadIdx.x;
    if (blockIdx.x == 0 && last < count) {
        p.codes[last] = code_of<is_e4m3>(hy_to_float(x[last]), c, &lost);
    }
    keep_lost(p, lost);
}

/* ---- transposed ------------------------------------------------------------------------------ */

#define TILE 128
#define COLUMN_WORDS (TILE / 4) /* words of a column of the tile: four rows each */

/* The start of a column of the tile. Sixteen columns are written at once, and each of the eight
 * neighbouring threads of a warp writes four words further: there are no bank conflicts. */
static __device__ __forceinline__ int column_at(int column) {
    return column * COLUMN_WORDS + column / 16 * 4;
}

/* Transposes four rows of four values. */
static __device__ __forceinline__ void transpose_four(uint32_t r0, uint32_t r1, uint32_t r2,
                                                      uint32_t r3, uint32_t *out) {
    uint32_t a = __byte_perm(r0, r1, 0x5140), b = __byte_perm(r2, r3, 0x5140);
    uint32_t c = __byte_perm(r0, r1, 0x7362), d = __byte_perm(r2, r3, 0x7362);
    out[0] = __byte_perm(a, b, 0x5410);
    out[COLUMN_WORDS] = __byte_perm(a, b, 0x7632);
    out[2 * COLUMN_WORDS] = __byte_perm(c, d, 0x5410);
    out[3 * COLUMN_WORDS] = __byte_perm(c, d, 0x7632);
}

/* For M and C that are multiples of sixteen, and memory aligned to 16 bytes. */
template <typename T, bool is_e4m3, bool has_codes>
static __global__ void __launch_bounds__(THREADS) tile_kernel(to_fp8_call p) {
    __shared__ __align__(16) uint32_t columns[TILE * COLUMN_WORDS + TILE / 16 * 4];
    int64_t tile_row = (int64_t)(blockIdx.x / p.across) * TILE;
    int64_t tile_col = (int64_t)(blockIdx.x % p.across) * TILE;
    int across = threadIdx.x % 8, down = threadIdx.x / 8;
    int64_t row = tile_row + 4 * down, col = tile_col + 16 * across;
    uint32_t lost = 0;
    bool is_inside = row < p.M && col < p.C;
    sixteen<T> in[4];
    if (is_inside) {
        HY_EACH(r, 4) in[r].fetch((const T *)p.x + (row + r) * p.C + col);
    }
    coder c = begin_codes(p);
    if (is_inside) {
        uint4 made[4];
        HY_EACH(r, 4) {
            made[r] = in[r].template encode<is_e4m3>(c, &lost);
            if (has_codes) *(uint4 *)(p.codes + (row + r) * p.C + col) = made[r];
        }
        uint32_t *to = columns + column_at(16 * across) + down;
        transpose_four(made[0].x, made[1].x, made[2].x, made[3].x, to);
        transpose_four(made[0].y, made[1].y, made[2].y, made[3].y, to + 4 * COLUMN_WORDS);
        transpose_four(made[0].z, made[1].z, made[2].z, made[3].z, to + 8 * COLUMN_WORDS);
        transpose_four(made[0].w, made[1].w, made[2].w, made[3].w, to + 12 * COLUMN_WORDS);
    }
    __syncthreads();
    int64_t out_row = tile_row + 16 * across;
    HY_EACH(k, TILE / 32) {
        int column = 32 * k + down;
        if (tile_col + column >= p.C || out_row >= p.M) continue;
        uint4 codes = *(const uint4 *)(columns + column_at(column) + 4 * across);
        *(uint4 *)(p.transposed + (tile_col + column) * p.M + out_row) = codes;
    }
    keep_lost(p, lost);
}

/* ---- any shape ------------------------------------------------------------------------------- */

#define ANY_TILE 32

static __device__ __forceinline__ uint8_t any_code(const to_fp8_call &p, int64_t at, const coder &c,
                                                   uint32_t *lost) {
    if (p.old_scale) return ((const uint8_t *)p.x)[at];
    float x = hy_load_any(p.x, at, p.x_type);
    return p.dtype == HY_E4M3 ? code_of<true>(x, c, lost) : code_of<false>(x, c, lost);
}

static __global__ void __launch_bounds__(THREADS) any_kernel(to_fp8_call p) {
    __shared__ uint8_t tile[ANY_TILE][ANY_TILE + 1];
    int64_t row = (int64_t)(blockIdx.x / p.across) * ANY_TILE;
    int64_t col = (int64_t)(blockIdx.x % p.across) * ANY_TILE;
    int lane = threadIdx.x % ANY_TILE;
    coder c = begin_codes(p);
    uint32_t lost = 0;
    for (int r = threadIdx.x / ANY_TILE; r < ANY_TILE; r += THREADS / ANY_TILE) {
        if (row + r >= p.M || col + lane >= p.C) continue;
        int64_t at = (row + r) * p.C + col + lane;
        uint8_t code = any_code(p, at, c, &lost);
        if (p.codes) p.codes[at] = code;
        tile[r][lane] = code;
    }
    __syncthreads();
    for (int k = threadIdx.x / ANY_TILE; k < ANY_TILE && p.transposed; k += THREADS / ANY_TILE) {
        if (col + k >= p.C || row + lane >= p.M) continue;
        p.transposed[(col + k) * p.M + row + lane] = tile[lane][k];
    }
    keep_lost(p, lost);
}

/* ---- launching ------------------------------------------------------------------------------- */

static unsigned cut(to_fp8_call *p, int side) {
    p->across = (unsigned)hy_ceil_div(p->C, side);
    return (unsigned)(p->across * hy_ceil_div(p->M, side));
}

template <typename T, bool is_e4m3>
static void launch_round(const hy_cuda_run *run, to_fp8_call p) {
    if (!p.transposed) {
        int64_t blocks = hy_ceil_div(p.M * p.C, 16 * GROUPS * THREADS);
        encode_kernel<T, is_e4m3><<<(unsigned)blocks, THREADS, 0, run->stream>>>(p);
        return;
    }
    unsigned blocks = cut(&p, TILE);
    auto kernel = p.codes ? tile_kernel<T, is_e4m3, true> : tile_kernel<T, is_e4m3, false>;
    kernel<<<blocks, THREADS, 0, run->stream>>>(p);
}

static to_fp8_call call_of(const hy_op_call *call) {
    const hy_tensor *t = call->t, *x = &t[HY_TO_FP8_X], *codes = &t[HY_TO_FP8_CODES],
                    *transposed = &t[HY_TO_FP8_TRANSPOSED];
    to_fp8_call p = {};
    p.x = x->data, p.x_type = x->dtype;
    p.M = hy_height(x), p.C = hy_width(x);
    p.dtype = hy_has(codes) ? codes->dtype : transposed->dtype;
    p.codes = (uint8_t *)codes->data, p.transposed = (uint8_t *)transposed->data;
    p.codes_scale = hy_has(codes) ? codes->quant.scale : NULL;
    p.transposed_scale = hy_has(transposed) ? transposed->quant.scale : NULL;
    if (hy_is_fp8(x->dtype)) {
        p.old_scale = x->quant.scale;
    } else {
        p.largest = (const float *)t[HY_TO_FP8_LARGEST].data;
        p.seen = (double *)t[HY_TO_FP8_SEEN].data;
    }
    return p;
}

hy_status hy_cuda_to_fp8(const hy_cuda_run *run) {
    to_fp8_call p = call_of(run->call);
    uintptr_t bits = (uintptr_t)p.x | (uintptr_t)p.codes | (uintptr_t)p.transposed;
    bool is_round = bits % 16 == 0 && (!p.transposed || (p.M % 16 == 0 && p.C % 16 == 0));
    if (!is_round) {
        unsigned blocks = cut(&p, ANY_TILE);
        any_kernel<<<blocks, THREADS, 0, run->stream>>>(p);
    } else if (p.old_scale) {
        unsigned blocks = cut(&p, TILE);
        tile_kernel<uint8_t, true, false><<<blocks, THREADS, 0, run->stream>>>(p);
    } else {
        hy_by_type(p.x_type, [&](auto zero) {
            using T = decltype(zero);
            if (p.dtype == HY_E4M3)
                launch_round<T, true>(run, p);
            else
                launch_round<T, false>(run, p);
        });
    }
    return hy_cuda_launched(run);
}
