/* blas.h: a single-threaded sgemm, from OpenBLAS if it is present and fast, otherwise our own.
 *
 * OpenBLAS is opened at run time, once per process. Its handle is the only state of this backend
 * outside its own objects, because a shared library belongs to the process. We manage the threads:
 * every call computes its matmul on one thread, and callers run several at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "hybrid_types.h"

/* c = alpha op(a) op(b) + beta c, row-major: c (m,n), op(a) (m,k), op(b) (k,n); ld* are the lengths
 * of stored rows. With beta 0 the old content of c does not matter, not even NaN. */
typedef struct hy_gemm {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    float alpha, beta;
    bool trans_a, trans_b;
} hy_gemm;

typedef void (*hy_cblas_sgemm)(int order, int trans_a, int trans_b, int m, int n, int k,
                               float alpha, const float *a, int lda, const float *b, int ldb,
                               float beta, float *c, int ldc);

/* The library that computes matmuls. */
typedef struct hy_blas {
    hy_cblas_sgemm library; /* NULL: hy_own_sgemm */
    char detail[256];       /* "OpenBLAS 0.3.21, core type neoversev1 (its own choice)" */
    char warning[512];      /* "": no warning */
} hy_blas;

/* HY_ERR_MEMORY if there is not enough memory for OpenBLAS with this many threads; call it before
 * the first use. */
hy_status hy_blas_check_memory(int threads);
/* The BLAS of the process, loaded and timed at the first call; never fails, never NULL. */
const hy_blas *hy_blas_get(void);

void hy_sgemm(const hy_blas *blas, const hy_gemm *g);

/* Our own (sgemm.c): blocked, packed, vectorised by the compiler. Uses a few hundred KB of
 * stack. */
void hy_own_sgemm(const hy_gemm *g);

/* The best rate of `calls` matmuls of n x n matrices on one thread, in operations per second. */
double hy_sgemm_rate(const hy_blas *blas, int64_t n, int calls, float *scratch);
