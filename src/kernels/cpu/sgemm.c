/* sgemm.c: our own sgemm, for machines without a usable OpenBLAS.
 *
 * The classic scheme: a block of b (KC x NC) is packed into panels of NR columns, a block of a (MC
 * x KC) into panels of MR rows, and a kernel with an MR x NR tile of c in registers processes them.
 * The kernel is written once with vector types and compiled for each vector width of the machine.
 * Packing pads with zeros, so the kernel needs no checks at borders. */
#include <string.h>

#include "kernels/cpu/blas.h"

enum {
    NR = 16,     /* columns of a kernel's tile of c */
    MR_MAX = 12, /* most rows of it */
    MC = 96,     /* a multiple of every kernel's MR: 3, 6, 12 */
    KC = 256,    /* depth of a block: MC * KC * 4 = 96 KB stay in L2 */
    NC = 192
};

/* One kernel: tile[MR][NR] = sum over k of a[k][MR] b[k][NR], both packed. */
typedef void (*kernel_function)(int64_t k, const float *a, const float *b, float *tile);

typedef struct kernel {
    int rows;
    kernel_function run;
} kernel;

#define DEFINE_KERNEL(NAME, TARGET, ROWS, LANES)                                                   \
    typedef float NAME##_vector __attribute__((vector_size(4 * (LANES)), aligned(4)));             \
    TARGET static void NAME(int64_t k, const float *restrict a, const float *restrict b,           \
                            float *restrict tile) {                                                \
        enum { VECTORS = NR / (LANES) };                                                           \
        NAME##_vector sum[ROWS][VECTORS];                                                          \
        memset(sum, 0, sizeof sum);                                                                \
        for (int64_t p = 0; p < k; p++, a += (ROWS), b += NR) {                                    \
            NAME##_vector column[VECTORS];                                                         \
            _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; v++) column[v] =                 \
                *(const NAME##_vector *)(b + v * (LANES));                                         \
            _Pragma("GCC unroll 16") for (int i = 0; i < (ROWS); i++) {                            \
                _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; v++) sum[i][v] +=            \
                    a[i] * column[v];                                                              \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < (ROWS); i++) {                                \
            _Pragma("GCC unroll 16") for (int v = 0; v < VECTORS; v++) *                           \
                (NAME##_vector *)(tile + i * NR + v * (LANES)) = sum[i][v];                        \
        }                                                                                          \
    }

#if defined(__x86_64__)
DEFINE_KERNEL(kernel_sse, , 3, 4)
DEFINE_KERNEL(kernel_avx2, __attribute__((target("avx2,fma"))), 6, 8)
DEFINE_KERNEL(kernel_avx512, __attribute__((target("avx512f,fma"))), 12, 16)

static kernel choose_kernel(void) {
    if (__builtin_cpu_supports("avx512f")) return (kernel){12, kernel_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return (kernel){6, kernel_avx2};
    }
    return (kernel){3, kernel_sse};
}
#else
DEFINE_KERNEL(kernel_128, , 6, 4) /* 24 sums in 32 registers */

static kernel choose_kernel(void) { return (kernel){6, kernel_128}; }
#endif

/* Packs lines [first, first + count) of an operand (rows of op(a) or columns of op(b)), at depths
 * [k0, k0 + depth), into panels of `panel` lines. is_across: a stored row holds all lines at one
 * depth. */
static void pack(const float *x, int64_t ld, bool is_across, int64_t first, int64_t count,
                 int64_t k0, int64_t depth, int panel, float *restrict out) {
    for (int64_t i = 0; i < count; i += panel) {
        int64_t here = count - i < panel ? count - i : panel;
        for (int64_t p = k0; p < k0 + depth; p++, out += panel) {
            for (int64_t r = 0; r < here; r++) {
                int64_t line = first + i + r;
                out[r] = is_across ? x[p * ld + line] : x[line * ld + p];
            }
            for (int64_t r = here; r < panel; r++) out[r] = 0;
        }
    }
}

/* c += alpha tile, for the part of the tile inside c. */
static void add_tile(const hy_gemm *g, int64_t i, int64_t rows, int64_t j, int64_t cols,
                     const float *tile) {
    for (int64_t r = 0; r < rows; r++) {
        float *c = g->c + (i + r) * g->ldc + j;
        for (int64_t q = 0; q < cols; q++) c[q] += g->alpha * tile[r * NR + q];
    }
}

static void scale_c(const hy_gemm *g) {
    if (g->beta == 1) return;
    for (int64_t i = 0; i < g->m; i++) {
        float *c = g->c + i * g->ldc;
        if (g->beta == 0) {
            memset(c, 0, (size_t)g->n * sizeof *c);
        } else {
            for (int64_t j = 0; j < g->n; j++) c[j] *= g->beta;
        }
    }
}

void hy_own_sgemm(const hy_gemm *g) {
    _Alignas(64) float a[MC * KC], b[KC * NC], tile[MR_MAX * NR];
    kernel best = choose_kernel();
    scale_c(g);
    for (int64_t j0 = 0; j0 < g->n; j0 += NC) {
        int64_t cols = g->n - j0 < NC ? g->n - j0 : NC;
        for (int64_t k0 = 0; k0 < g->k; k0 += KC) {
            int64_t depth = g->k - k0 < KC ? g->k - k0 : KC;
            pack(g->b, g->ldb, !g->trans_b, j0, cols, k0, depth, NR, b);
            for (int64_t i0 = 0; i0 < g->m; i0 += MC) {
                int64_t rows = g->m - i0 < MC ? g->m - i0 : MC;
                pack(g->a, g->lda, g->trans_a, i0, rows, k0, depth, best.rows, a);
                for (int64_t j = 0; j < cols; j += NR) {
                    for (int64_t i = 0; i < rows; i += best.rows) {
                        best.run(depth, a + i * depth, b + j * depth, tile);
                        add_tile(g, i0 + i, rows - i < best.rows ? rows - i : best.rows, j0 + j,
                                 cols - j < NR ? cols - j : NR, tile);
                    }
                }
            }
        }
    }
}
