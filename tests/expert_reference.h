/* expert_reference.h: the ops of mixtures of experts, for reference.h. */
#ifndef HY_TESTS_EXPERT_REFERENCE_H
#define HY_TESTS_EXPERT_REFERENCE_H

#include "kernels/grouped.h"

/* ---- routing --------------------------------------------------------------------------------- */

/* The scores of a token into s, and what sums to 1 into p. Returns the log-sum-exp. */
static inline double reference_scores(const hy_op_call *c, const double *logits, int64_t E,
                                      double *s, double *p) {
    bool is_sigmoid = c->attr.route.score == HY_ROUTE_SIGMOID;
    double most = -INFINITY, sum = 0, total = 0;
    for (int64_t e = 0; e < E; e++) most = fmax(most, logits[e]);
    for (int64_t e = 0; e < E; e++) sum += exp(logits[e] - most);
    for (int64_t e = 0; e < E; e++) {
        s[e] = is_sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - most) / sum;
        total += s[e];
    }
    for (int64_t e = 0; e < E; e++) p[e] = s[e] / total;
    return most + log(sum);
}

static inline double reference_count(const hy_op_call *c, const int32_t *choice, int64_t n,
                                     int64_t k, int64_t e) {
    int64_t T = c->attr.route.seq, begin = n / T * T * k;
    double count = 0;
    for (int64_t i = begin; i < begin + T * k; i++) count += choice[i] == e;
    return count;
}

static inline void reference_route_losses(const hy_op_call *c, int64_t n, int64_t E, int64_t k) {
    const int32_t *choice = c->t[HY_ROUTE_CHOICE].data;
    double *losses = reference_data(c, HY_ROUTE_LOSSES) + n * HY_ROUTE_LOSSES_COUNT;
    double s[HY_ROUTE_EXPERTS_MAX], p[HY_ROUTE_EXPERTS_MAX], T = (double)c->attr.route.seq;
    double lse = reference_scores(c, reference_data(c, HY_ROUTE_LOGITS) + n * E, E, s, p);
    losses[0] = lse * lse;
    losses[1] = losses[2] = 0;
    for (int64_t e = 0; e < E; e++) {
        losses[1] += (double)E / ((double)k * T) * reference_count(c, choice, n, k, e) * p[e];
        if (p[e] > 0) losses[2] -= p[e] * log(p[e]);
    }
}

static inline void reference_route(const hy_op_call *c) {
    int64_t N = hy_tensor_height(&c->t[HY_ROUTE_LOGITS]),
            E = hy_tensor_width(&c->t[HY_ROUTE_LOGITS]);
    int64_t k = hy_tensor_width(&c->t[HY_ROUTE_CHOICE]);
    const double *bias = reference_data(c, HY_ROUTE_BIAS);
    for (int64_t n = 0; n < N; n++) {
        const double *logits = reference_data(c, HY_ROUTE_LOGITS) + n * E;
        int32_t *choice = (int32_t *)c->t[HY_ROUTE_CHOICE].data + n * k;
        double *weights = reference_data(c, HY_ROUTE_WEIGHTS) + n * k, sum = 0;
        double s[HY_ROUTE_EXPERTS_MAX], p[HY_ROUTE_EXPERTS_MAX];
        bool is_taken[HY_ROUTE_EXPERTS_MAX] = {false};
        reference_scores(c, logits, E, s, p);
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            double most = 0;
            for (int64_t e = 0; e < E; e++) {
                double key = bias ? s[e] + bias[e] : logits[e];
                if (is_taken[e] || (best >= 0 && key <= most)) continue;
                best = e, most = key;
            }
            is_taken[best] = true;
            choice[j] = (int32_t)best;
            sum += s[best];
        }
        for (int64_t j = 0; j < k; j++) {
            weights[j] = (double)c->attr.route.scale * s[choice[j]];
            if (c->attr.route.is_renormalised) weights[j] /= sum;
        }
    }
    for (int64_t n = 0; n < N && c->t[HY_ROUTE_LOSSES].data; n++) {
        reference_route_losses(c, n, E, k);
    }
}

/* The gradient of the losses and weights by scores s, then by logits. */
static inline void reference_route_bwd(const hy_op_call *c) {
    const hy_route_attr *a = &c->attr.route;
    int64_t N = hy_tensor_height(&c->t[HY_ROUTE_BWD_LOGITS]),
            E = hy_tensor_width(&c->t[HY_ROUTE_BWD_LOGITS]);
    int64_t k = hy_tensor_width(&c->t[HY_ROUTE_BWD_CHOICE]);
    const int32_t *choices = c->t[HY_ROUTE_BWD_CHOICE].data;
    for (int64_t n = 0; n < N; n++) {
        const double *logits = reference_data(c, HY_ROUTE_BWD_LOGITS) + n * E;
        const double *dweights = reference_data(c, HY_ROUTE_BWD_DWEIGHTS) + n * k;
        double *dlogits = reference_data(c, HY_ROUTE_BWD_DLOGITS) + n * E;
        double s[HY_ROUTE_EXPERTS_MAX], p[HY_ROUTE_EXPERTS_MAX];
        double slope[HY_ROUTE_EXPERTS_MAX] = {0};
        double lse = reference_scores(c, logits, E, s, p), sum = 0, product = 0, total = 0;
        double balanced = 0, mean = 0;
        for (int64_t j = 0; j < k; j++) {
            sum += s[choices[n * k + j]];
            product += dweights[j] * s[choices[n * k + j]];
        }
        for (int64_t j = 0; j < k; j++) {
            double d = a->is_renormalised ? (dweights[j] - product / sum) / sum : dweights[j];
            slope[choices[n * k + j]] += (double)a->scale * d;
        }
        for (int64_t e = 0; e < E; e++) total += s[e];
        double factor = a->balance != 0 ? (double)a->balance * (double)E / (double)(k * a->seq) : 0;
        for (int64_t e = 0; e < E && factor != 0; e++) {
            balanced += reference_count(c, choices, n, k, e) * p[e];
        }
        for (int64_t e = 0; e < E && factor != 0; e++) {
            slope[e] += factor * (reference_count(c, choices, n, k, e) - balanced) / total;
        }
        for (int64_t e = 0; e < E; e++) mean += slope[e] * s[e];
        for (int64_t e = 0; e < E; e++) {
            bool is_sigmoid = a->score == HY_ROUTE_SIGMOID;
            dlogits[e] = s[e] * (is_sigmoid ? slope[e] * (1 - s[e]) : slope[e] - mean);
            dlogits[e] += 2 * (double)a->z * lse * exp(logits[e] - lse);
        }
    }
}

static inline void reference_sort_experts(const hy_op_call *c) {
    const int32_t *choice = c->t[HY_SORT_EXPERTS_CHOICE].data;
    int32_t *order = c->t[HY_SORT_EXPERTS_ORDER].data, *place = c->t[HY_SORT_EXPERTS_PLACE].data;
    int32_t *offsets = c->t[HY_SORT_EXPERTS_OFFSETS].data, at = 0;
    int64_t rows = hy_tensor_count(&c->t[HY_SORT_EXPERTS_CHOICE]);
    int64_t E = hy_tensor_count(&c->t[HY_SORT_EXPERTS_OFFSETS]) - 1;
    for (int64_t e = 0; e < E; e++) {
        offsets[e] = at;
        for (int64_t i = 0; i < rows; i++) {
            if (choice[i] != e) continue;
            order[at] = (int32_t)i;
            place[i] = at++;
        }
    }
    offsets[E] = at;
}

/* ---- matmuls --------------------------------------------------------------------------------- */

/* The row of an operand at position p. */
static inline int64_t reference_row(const hy_op_call *c, int operand, int rows, int64_t p) {
    const int32_t *index = c->t[rows].data;
    return index ? index[p] / hy_grouped_share(c, operand, rows) : p;
}

static inline void reference_grouped_matmul(const hy_op_call *c) {
    const double *a = reference_data(c, HY_GROUPED_MATMUL_A),
                 *b = reference_data(c, HY_GROUPED_MATMUL_B),
                 *bias = reference_data(c, HY_GROUPED_MATMUL_BIAS);
    const int32_t *offsets = c->t[HY_GROUPED_MATMUL_OFFSETS].data;
    double *d = reference_data(c, HY_GROUPED_MATMUL_D);
    int64_t K = hy_tensor_width(&c->t[HY_GROUPED_MATMUL_A]),
            N = hy_tensor_width(&c->t[HY_GROUPED_MATMUL_D]);
    int64_t E = c->t[HY_GROUPED_MATMUL_B].shape[0];
    for (int64_t e = 0; e < E; e++) {
        for (int64_t p = offsets[e]; p < offsets[e + 1]; p++) {
            const double *x =
                a + reference_row(c, HY_GROUPED_MATMUL_A, HY_GROUPED_MATMUL_ROWS, p) * K;
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                for (int64_t i = 0; i < K; i++) {
                    sum += x[i] * b[e * N * K + (c->attr.grouped.trans_b ? n * K + i : i * N + n)];
                }
                sum *= (double)c->attr.grouped.alpha;
                reference_put(c, &d[p * N + n], bias ? sum + bias[e * N + n] : sum);
            }
        }
    }
}

static inline void reference_grouped_grad(const hy_op_call *c) {
    const double *a = reference_data(c, HY_GROUPED_GRAD_A),
                 *b = reference_data(c, HY_GROUPED_GRAD_B);
    const int32_t *offsets = c->t[HY_GROUPED_GRAD_OFFSETS].data;
    const hy_tensor *d = &c->t[HY_GROUPED_GRAD_D];
    int64_t M = d->shape[1], N = d->shape[2];
    for (int64_t i = 0; i < hy_tensor_count(d); i++) {
        int64_t e = i / (M * N), m = i / N % M, n = i % N;
        double sum = 0;
        for (int64_t p = offsets[e]; p < offsets[e + 1]; p++) {
            sum += a[reference_row(c, HY_GROUPED_GRAD_A, HY_GROUPED_GRAD_ROWS_A, p) * M + m] *
                   b[reference_row(c, HY_GROUPED_GRAD_B, HY_GROUPED_GRAD_ROWS_B, p) * N + n];
        }
        reference_put(c, (double *)d->data + i, (double)c->attr.grouped.alpha * sum);
    }
}

static inline void reference_sum_rows(const hy_op_call *c) {
    const double *y = reference_data(c, HY_SUM_ROWS_Y),
                 *residual = reference_data(c, HY_SUM_ROWS_RESIDUAL);
    const int32_t *place = c->t[HY_SUM_ROWS_PLACE].data;
    int64_t C = hy_tensor_width(&c->t[HY_SUM_ROWS_Y]),
            k = hy_tensor_width(&c->t[HY_SUM_ROWS_PLACE]);
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_SUM_ROWS_OUT]); i++) {
        double sum = residual ? residual[i] : 0;
        for (int64_t j = 0; j < k; j++) sum += y[place[i / C * k + j] * C + i % C];
        reference_data(c, HY_SUM_ROWS_OUT)[i] = sum;
    }
}

#endif
