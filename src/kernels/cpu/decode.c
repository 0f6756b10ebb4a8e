/* decode.c: reads quantised weights, with the bits of coded.h, as fast as they come from memory.
 *
 * A matmul decodes a few rows at a time and uses them for all rows of the other operand, so with
 * few of these most of its time is spent here. */
#include <math.h>

#include "kernels/cpu/rows.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- int8 and e4m3 --------------------------------------------------------------------------- */

HY_CLONES static void decode_int8(const int8_t *restrict codes, float scale, float *restrict out,
                                  int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = scale * (float)codes[i];
}

/* hy_fp8_decode without branches. */
static inline float e4m3_value(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7f;
    uint32_t normal = (size << 20) + (120u << 23),
             least = hy_float_bits((float)(int32_t)size * 0x1p-9f);
    uint32_t bits = hy_pick(size < 8, least, normal);
    return hy_bits_float(sign | hy_pick(size == 0x7f, 0x7fc00000u, bits));
}

HY_CLONES static void decode_e4m3(const uint8_t *restrict codes, float scale, float *restrict out,
                                  int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = e4m3_value(codes[i]) * scale;
}

/* ---- nf4 ------------------------------------------------------------------------------------- */

/* The elements of a block. A level is found in registers by its number; the numbers are unpacked
 * into 64 bits per byte, the high half first. */
typedef void (*nf4_decoder)(const uint8_t *codes, float scale, float *out);

#if defined(__x86_64__)
static const float levels[16] = {HY_NF4_LEVELS};

__attribute__((target("avx512f"))) static void nf4_avx512(const uint8_t *codes, float scale,
                                                          float *out) {
    __m512 values = _mm512_mul_ps(_mm512_loadu_ps(levels), _mm512_set1_ps(scale));
    __m512i number = _mm512_set1_epi64(0xf0000000f);
    for (int i = 0; i < HY_NF4_BLOCK; i += 16) {
        __m512i two = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(codes + i / 2)));
        two = _mm512_or_si512(_mm512_srli_epi64(two, 4), _mm512_slli_epi64(two, 32));
        two = _mm512_and_si512(two, number);
        _mm512_storeu_ps(out + i, _mm512_permutexvar_ps(two, values));
    }
}

__attribute__((target("avx2"))) static void nf4_avx2(const uint8_t *codes, float scale,
                                                     float *out) {
    __m256 factor = _mm256_set1_ps(scale);
    __m256 low = _mm256_mul_ps(_mm256_loadu_ps(levels), factor);
    __m256 high = _mm256_mul_ps(_mm256_loadu_ps(levels + 8), factor);
    __m256i number = _mm256_set1_epi64x(0xf0000000f);
    for (int i = 0; i < HY_NF4_BLOCK; i += 8) {
        __m256i two = _mm256_cvtepu8_epi64(_mm_loadu_si32(codes + i / 2));
        two = _mm256_or_si256(_mm256_srli_epi64(two, 4), _mm256_slli_epi64(two, 32));
        two = _mm256_and_si256(two, number);
        __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(two, 28));
        _mm256_storeu_ps(out + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, two),
                                                   _mm256_permutevar8x32_ps(high, two), is_high));
    }
}
#endif

static void nf4_any(const uint8_t *codes, float scale, float *out) {
    hy_nf4_decode(codes, 0, HY_NF4_BLOCK, &scale, out);
}

static nf4_decoder nf4_decoder_of_machine(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return nf4_avx512;
    if (__builtin_cpu_supports("avx2")) return nf4_avx2;
#endif
    return nf4_any;
}

/* ---- rounding -------------------------------------------------------------------------------- */

HY_CLONES static void round_bf16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = hy_bf16_to_f32(hy_f32_to_bf16(x[i]));
}

HY_CLONES static void round_f16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = hy_f16_to_f32(hy_f32_to_f16(x[i]));
}

/* ---- any type -------------------------------------------------------------------------------- */

/* The scales of a tensor, prepared: hy_coded_scale_at divides for each. */
typedef struct scales {
    const float *plain, *pairs;
    const uint8_t *codes;
    int shift; /* a group has 2^shift blocks */
} scales;

static scales scales_of(const hy_tensor *t, int64_t block) {
    int32_t group = t->quant.group;
    const float *all = t->quant.scale;
    if (group == 0) return (scales){.plain = all};
    int64_t pairs = hy_tensor_count(t) / block / group;
    return (scales){.pairs = all,
                    .codes = (const uint8_t *)(all + 2 * pairs),
                    .shift = __builtin_ctz((unsigned)group)};
}

static float scale_at(const scales *s, int64_t at) {
    return s->plain ? s->plain[at] : hy_nf4_scale(s->pairs + 2 * (at >> s->shift), s->codes[at]);
}

void hy_cpu_read_coded(const hy_tensor *t, int64_t at, int64_t n, hy_dtype dtype, float *out) {
    int64_t block = t->quant.block ? t->quant.block : hy_tensor_count(t);
    int64_t number = at / block, left = block - at % block;
    nf4_decoder decode_block = nf4_decoder_of_machine();
    scales of = scales_of(t, block);
    for (int64_t i = 0, some; i < n; i += some, left = block) {
        some = hy_min64(n - i, left);
        const uint8_t *codes = (const uint8_t *)t->data + hy_dtype_bytes(t->dtype, at + i);
        float scale = scale_at(&of, number++);
        if (t->dtype == HY_I8) {
            decode_int8((const int8_t *)codes, scale, out + i, some);
        } else if (t->dtype == HY_E4M3) {
            decode_e4m3(codes, scale, out + i, some);
        } else if (some == HY_NF4_BLOCK) {
            decode_block(codes, scale, out + i);
        } else {
            hy_nf4_decode(codes, at + i, some, &scale, out + i);
        }
    }
    if (dtype == HY_BF16) round_bf16(out, n);
    if (dtype == HY_F16) round_f16(out, n);
}
