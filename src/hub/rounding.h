/* rounding.h: rounds a matrix to blocks so that its products change little.
 *
 * Rounding to nearest treats each number alone. Here columns are rounded from the first to the
 * last, and each column is first corrected for the errors of the columns before it. How much
 * follows from the second moments H = X^T X of the matrix's inputs X, which calibration measures.
 * With H = (U + I) D (U + I)^T, U strictly upper triangular, column i becomes
 *
 *   Q(w_i + sum over j < i of e_j U_ji),   e_j = w_j - Q_j
 *
 * and the squared error of the products is the sum of d_i times the squared rounding error of the
 * corrected column i (GPTQ, in the form that QuIP calls LDLQ). */
#pragma once

#include "formats/blocks.h"
#include "model/params.h"

typedef struct hy_moments {
    int64_t size;      /* columns of the matrix */
    float *u;          /* (size, size): H before factoring, then U above the diagonal */
    float *importance; /* (size): d_i after factoring */
} hy_moments;

hy_status hy_moments_init(hy_moments *moments, int64_t size); /* all zero */
void hy_moments_fini(hy_moments *moments);                    /* accepts {0} */
/* Replaces H by its factors. Inputs that were always zero, and linear dependence, are allowed:
 * a hundredth of the mean diagonal is added to the diagonal. HY_ERR_NUMERIC if H is not finite. */
hy_status hy_moments_factor(hy_moments *moments, int threads);

/* Who measures moments. An export asks for its matrices in the order of units. The caller frees
 * them; size 0: the parameter is rounded to nearest. */
typedef struct hy_moments_source {
    void *context;
    hy_status (*factored)(void *context, const hy_param *param, hy_moments *out);
} hy_moments_source;

/* Rounds whole rows of numbers with factored moments; `out` receives the blocks. */
hy_status hy_round_rows(hy_block_type type, const float *numbers, int64_t rows,
                        const hy_moments *moments, int threads, void *out);
