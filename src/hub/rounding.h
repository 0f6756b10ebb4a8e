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
#include "hybrid.h"
#include "model/params.h"

typedef struct hy_moments {
    int64_t size;      /* columns of the matrix */
    float *u;          /* (size, size): H before factoring, then U above the diagonal */
    float *importance; /* (size): d_i after factoring */
    float *diagonal;   /* (size): of H, after factoring */
} hy_moments;

hy_status hy_moments_init(hy_moments *moments, int64_t size); /* all zero */
void hy_moments_fini(hy_moments *moments);                    /* accepts {0} */
/* Replaces H by its factors, after adding `damping` times the mean diagonal to the diagonal: inputs
 * that were always zero, and linear dependence, are allowed. HY_ERR_NUMERIC if H is not finite, or
 * not positive definite even so; the moments are of no use then. */
hy_status hy_moments_factor(hy_moments *moments, double damping, int threads);

/* What rounding changes in the products of a matrix, summed over inputs and rows. */
typedef struct hy_rounding_cost {
    double error;  /* squared change, by the damped H */
    double signal; /* squared products, as if the inputs did not depend on each other */
} hy_rounding_cost;

/* Rounds whole rows of numbers with factored moments; `out` receives the blocks. Adds to *cost. */
hy_status hy_round_rows(hy_block_type type, const float *numbers, int64_t rows,
                        const hy_moments *moments, void *out, hy_rounding_cost *cost);

typedef struct hy_tensor_cost {
    hy_block_type type;
    int64_t elements;
    hy_rounding_cost cost; /* {0}: it was not calibrated */
} hy_tensor_cost;

/* The tensors of a file. An export fills an empty list; another one with the same list gives the
 * tensors the types in it. */
typedef struct hy_tensor_costs {
    hy_tensor_cost *list; /* the caller frees it */
    int32_t count;
} hy_tensor_costs;

/* Measures H of a parameter's inputs; size 0: there are none, and the parameter is rounded to
 * nearest. An export asks for its matrices in the order of units, for the same one several times if
 * H has no factors. The caller frees the moments. */
typedef struct hy_moments_source {
    void *context;
    hy_status (*measure)(void *context, const hy_param *param, hy_moments *out);
    hy_tensor_costs *costs; /* may be NULL */
} hy_moments_source;

/* Measured and factored moments. If H has no factors, more damping is tried; if that fails, a
 * warning names the parameter, and the size is 0. */
hy_status hy_moments_take(const hy_moments_source *source, const hy_param *param, int threads,
                          const hy_observer *observer, hy_moments *out);
