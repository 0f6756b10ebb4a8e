/* dots.c: dot products with one order of sums. See dots.h.
 *
 * The tile is written once with vector types and compiled for each vector width of the machine.
 * Operands need no transposition: a vector of a row of a times one of a row of b is added to a
 * vector of sums. */
#include "kernels/cpu/dots.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/lanes.h"

/* Vectors of a row of x that are in registers with their sums. */
enum { VECTORS = 4 };

#define DEFINE_DOTS(NAME, TARGET, ROWS, COLS, LANES)                                               \
    typedef float NAME##_vector __attribute__((vector_size(4 * (LANES)), aligned(4)));             \
    typedef int32_t NAME##_index __attribute__((vector_size(4 * (LANES))));                        \
                                                                                                   \
    /* Adds the lanes of n vectors; the sums become the first n floats. */                         \
    TARGET static void NAME##_add_lanes(NAME##_vector *v, int n) {                                 \
        for (int width = (LANES); width > 1; width /= 2, n = (n + 1) / 2) {                        \
            for (int i = 0; 2 * i < n; i++) {                                                      \
                NAME##_vector x = v[2 * i], y = v[2 * i + 1];                                      \
                v[i] = HY_ADD_NEIGHBOURS(NAME##_index, x, y, LANES);                               \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET static inline __attribute__((always_inline)) void NAME##_tile(                          \
        int rows, int64_t depth, const float *a, const float *const *b, float *sums) {             \
        NAME##_vector sum[ROWS][COLS];                                                             \
        HY_UNROLLED for (int r = 0; r < rows; r++) {                                               \
            HY_UNROLLED for (int c = 0; c < (COLS); c++) sum[r][c] = (NAME##_vector){0};           \
        }                                                                                          \
        int64_t k = 0;                                                                             \
        for (; k + (LANES) <= depth; k += (LANES), a += rows * (LANES)) {                          \
            HY_UNROLLED for (int c = 0; c < (COLS); c++) {                                         \
                NAME##_vector of_b = *(const NAME##_vector *)(b[c] + k);                           \
                HY_UNROLLED for (int r = 0; r < rows; r++) {                                       \
                    sum[r][c] += *(const NAME##_vector *)(a + r * (LANES)) * of_b;                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        if (k < depth) {                                                                           \
            HY_UNROLLED for (int c = 0; c < (COLS); c++) {                                         \
                NAME##_vector of_b = {0};                                                          \
                memcpy(&of_b, b[c] + k, (size_t)(depth - k) * sizeof(float));                      \
                HY_UNROLLED for (int r = 0; r < rows; r++) {                                       \
                    sum[r][c] += *(const NAME##_vector *)(a + r * (LANES)) * of_b;                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int r = 0; r < rows; r++) {                                               \
            HY_UNROLLED for (int c = 0; c < (COLS); c++) {                                         \
                ((NAME##_vector *)sums)[r * (COLS) + c] = sum[r][c];                               \
            }                                                                                      \
        }                                                                                          \
        NAME##_add_lanes((NAME##_vector *)sums, rows *(COLS));                                     \
    }                                                                                              \
                                                                                                   \
    TARGET static void NAME##_run(int rows, int64_t depth, const float *a, const float *const *b,  \
                                  float *sums) {                                                   \
        _Static_assert(((ROWS) * (COLS) + 1) * (LANES) <= HY_DOTS_TILE, "a tile of sums");         \
        _Static_assert((COLS) <= HY_DOTS_COLS, "columns of a tile");                               \
        switch (rows) {                                                                            \
        case 1: NAME##_tile(1, depth, a, b, sums); return;                                         \
        case 2: NAME##_tile(2, depth, a, b, sums); return;                                         \
        case 3: NAME##_tile(3, depth, a, b, sums); return;                                         \
        default: NAME##_tile(ROWS, depth, a, b, sums);                                             \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Columns [at, at + vectors * LANES) of the weighted sums; of the last vector, `last`. */     \
    TARGET static inline __attribute__((always_inline)) void NAME##_part(                          \
        int rows, int vectors, int64_t n, const float *weights, int64_t weights_ld,                \
        const float *const *x, int64_t at, int64_t last, float *out, int64_t out_ld) {             \
        NAME##_vector sum[ROWS][VECTORS], row[VECTORS];                                            \
        size_t end = (size_t)last * sizeof(float), whole = sizeof row[0];                          \
        HY_UNROLLED for (int r = 0; r < rows; r++) {                                               \
            HY_UNROLLED for (int v = 0; v < vectors; v++) {                                        \
                sum[r][v] = (NAME##_vector){0};                                                    \
                memcpy(&sum[r][v], out + r * out_ld + at + v * (LANES),                            \
                       last < (LANES) ? end : whole);                                              \
            }                                                                                      \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            HY_UNROLLED for (int v = 0; v < vectors; v++) {                                        \
                if (last < (LANES)) row[v] = (NAME##_vector){0};                                   \
                memcpy(&row[v], x[i] + at + v * (LANES), last < (LANES) ? end : whole);            \
            }                                                                                      \
            HY_UNROLLED for (int r = 0; r < rows; r++) {                                           \
                HY_UNROLLED for (int v = 0; v < vectors; v++) sum[r][v] +=                         \
                    weights[r * weights_ld + i] * row[v];                                          \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int r = 0; r < rows; r++) {                                               \
            HY_UNROLLED for (int v = 0; v < vectors; v++) {                                        \
                memcpy(out + r * out_ld + at + v * (LANES), &sum[r][v],                            \
                       last < (LANES) ? end : whole);                                              \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET static inline __attribute__((always_inline)) void NAME##_rows(                          \
        int rows, int64_t n, const float *weights, int64_t weights_ld, const float *const *x,      \
        int64_t width, float *out, int64_t out_ld) {                                               \
        int64_t at = 0;                                                                            \
        for (; at + VECTORS * (LANES) <= width; at += VECTORS * (LANES)) {                         \
            NAME##_part(rows, VECTORS, n, weights, weights_ld, x, at, LANES, out, out_ld);         \
        }                                                                                          \
        for (; at + (LANES) <= width; at += (LANES)) {                                             \
            NAME##_part(rows, 1, n, weights, weights_ld, x, at, LANES, out, out_ld);               \
        }                                                                                          \
        if (at < width) {                                                                          \
            NAME##_part(rows, 1, n, weights, weights_ld, x, at, width - at, out, out_ld);          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET static void NAME##_weigh(int rows, int64_t n, const float *weights, int64_t weights_ld, \
                                    const float *const *x, int64_t width, float *out,              \
                                    int64_t out_ld) {                                              \
        switch (rows) {                                                                            \
        case 1: NAME##_rows(1, n, weights, weights_ld, x, width, out, out_ld); return;             \
        case 2: NAME##_rows(2, n, weights, weights_ld, x, width, out, out_ld); return;             \
        case 3: NAME##_rows(3, n, weights, weights_ld, x, width, out, out_ld); return;             \
        default: NAME##_rows(ROWS, n, weights, weights_ld, x, width, out, out_ld);                 \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static const hy_dots NAME = {ROWS, COLS, LANES, NAME##_run, NAME##_weigh};

#if defined(__x86_64__)
DEFINE_DOTS(dots_sse, , 3, 4, 4)
DEFINE_DOTS(dots_avx2, __attribute__((target("avx2,fma"))), 3, 4, 8)
DEFINE_DOTS(dots_avx512, __attribute__((target("avx512f,fma"))), 4, 6, 16)

const hy_dots *hy_dots_get(void) {
    if (__builtin_cpu_supports("avx512f")) return &dots_avx512;
    bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_fma ? &dots_avx2 : &dots_sse;
}
#else
DEFINE_DOTS(dots_128, , 4, 6, 4)

const hy_dots *hy_dots_get(void) { return &dots_128; }
#endif

void hy_dots_pack(const hy_dots *dots, const float *x, int64_t at, int64_t n, int rows, int r,
                  float *packed) {
    int64_t lanes = dots->lanes;
    for (int64_t i = 0; i < n; i += lanes) {
        float *out = packed + (at + i) * rows + r * lanes;
        int64_t some = n - i < lanes ? n - i : lanes;
        memcpy(out, x + i, (size_t)some * sizeof *out);
        memset(out + some, 0, (size_t)(lanes - some) * sizeof *out);
    }
}
