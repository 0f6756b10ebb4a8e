/* reference_delta.h: part of reference.h: causal convolution, the gated delta rule and gates. */
#ifndef HY_TESTS_REFERENCE_DELTA_H
#define HY_TESTS_REFERENCE_DELTA_H

/* Included by reference.h, behind reference_data and reference_put. */

static inline double reference_sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Whether row n sees row m, which may be of another sequence or not exist. */
static inline bool reference_reaches(const hy_tensor *doc_starts, int64_t T, int64_t n, int64_t m) {
    int64_t start = doc_starts->data ? ((const int32_t *)doc_starts->data)[n] : 0;
    return m >= 0 && m / T == n / T && m % T >= start;
}

/* ---- convolution ----------------------------------------------------------------------------- */

static inline double reference_conv_sum(const hy_op_call *c, int x, int doc_starts, int64_t n,
                                        int64_t column) {
    int64_t C = hy_tensor_width(&c->t[x]), J = hy_tensor_width(&c->t[x + 1]);
    double z = 0;
    for (int64_t j = 0; j < J; j++) {
        int64_t m = n - J + 1 + j;
        if (!reference_reaches(&c->t[doc_starts], c->attr.conv.seq, n, m)) continue;
        z += reference_data(c, x + 1)[column * J + j] * reference_data(c, x)[m * C + column];
    }
    return z;
}

static inline void reference_conv(const hy_op_call *c) {
    int64_t C = hy_tensor_width(&c->t[HY_CONV_X]);
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_CONV_X]); i++) {
        double z = reference_conv_sum(c, HY_CONV_X, HY_CONV_DOC_STARTS, i / C, i % C);
        reference_data(c, HY_CONV_Y)[i] = z * reference_sigmoid(z);
    }
}

static inline void reference_conv_bwd(const hy_op_call *c) {
    const hy_tensor *starts = &c->t[HY_CONV_BWD_DOC_STARTS];
    int64_t C = hy_tensor_width(&c->t[HY_CONV_BWD_X]),
            J = hy_tensor_width(&c->t[HY_CONV_BWD_WEIGHT]);
    int64_t count = hy_tensor_count(&c->t[HY_CONV_BWD_X]);
    double *dx = reference_data(c, HY_CONV_BWD_DX), *dw = reference_data(c, HY_CONV_BWD_DWEIGHT);
    double *sums = calloc((size_t)(C * J), sizeof *sums);
    memset(dx, 0, (size_t)count * sizeof *dx);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = i / C, column = i % C;
        double z = reference_conv_sum(c, HY_CONV_BWD_X, HY_CONV_BWD_DOC_STARTS, n, column);
        double part = reference_sigmoid(z);
        double dz = reference_data(c, HY_CONV_BWD_DY)[i] * part * (1 + z * (1 - part));
        for (int64_t j = 0; j < J; j++) {
            int64_t m = n - J + 1 + j;
            if (!reference_reaches(starts, c->attr.conv.seq, n, m)) continue;
            dx[m * C + column] += dz * reference_data(c, HY_CONV_BWD_WEIGHT)[column * J + j];
            sums[column * J + j] += dz * reference_data(c, HY_CONV_BWD_X)[m * C + column];
        }
    }
    for (int64_t i = 0; dw && i < C * J; i++) reference_put(c, &dw[i], sums[i]);
    free(sums);
}

static inline void reference_conv_cached(const hy_op_call *c) {
    const int32_t *first = c->t[HY_CONV_CACHED_FIRST].data,
                  *slots = c->t[HY_CONV_CACHED_SLOTS].data;
    int64_t C = hy_tensor_width(&c->t[HY_CONV_CACHED_X]), T = c->attr.conv.seq;
    int64_t J = hy_tensor_width(&c->t[HY_CONV_CACHED_WEIGHT]);
    const double *w = reference_data(c, HY_CONV_CACHED_WEIGHT);
    double *all = calloc((size_t)(J - 1 + T), sizeof *all); /* of a column: kept rows, new rows */
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_CONV_CACHED_FIRST]) * C; i++) {
        int64_t b = i / C, column = i % C;
        if (first[b] < 0) continue;
        double *kept = reference_data(c, HY_CONV_CACHED_STATE) + slots[b] * (J - 1) * C + column;
        for (int64_t j = 0; j < J - 1; j++) all[j] = first[b] == 0 ? 0 : kept[j * C];
        for (int64_t t = 0; t < T; t++) {
            int64_t at = (b * T + t) * C + column;
            double z = 0;
            all[J - 1 + t] = reference_data(c, HY_CONV_CACHED_X)[at];
            for (int64_t j = 0; j < J; j++) z += w[column * J + j] * all[t + j];
            reference_data(c, HY_CONV_CACHED_Y)[at] = z * reference_sigmoid(z);
        }
        for (int64_t j = 0; j < J - 1; j++) kept[j * C] = all[T + j];
    }
    free(all);
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

/* One token of one head, and gradients of what is named alike. */
typedef struct reference_delta_token {
    double q[HY_DELTA_DIM_MAX], k[HY_DELTA_DIM_MAX], v[HY_DELTA_DIM_MAX];
    double decay, strength;
} reference_delta_token;

/* x / |x|, and the gradient of x from that of x / |x|. */
static inline void reference_unit(const double *x, int64_t n, double *unit) {
    double square = (double)HY_DELTA_EPS;
    for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) unit[i] = x[i] / sqrt(square);
}
static inline void reference_unit_bwd(const double *x, const double *dunit, int64_t n, double *dx) {
    double square = (double)HY_DELTA_EPS, dot = 0;
    for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) dot += x[i] * dunit[i];
    for (int64_t i = 0; i < n; i++) dx[i] += (dunit[i] - x[i] * dot / square) / sqrt(square);
}

/* Where a head's query, key and value begin in a row of qkv. */
typedef struct reference_places {
    int64_t q, k, v;
} reference_places;

static inline reference_places reference_delta_places(const hy_delta_attr *a, int64_t row,
                                                      int64_t head) {
    int64_t key = head / (a->heads / a->key_heads), keys = (int64_t)a->key_heads * a->key_dim;
    int64_t at = row * (2 * keys + (int64_t)a->heads * a->value_dim);
    return (reference_places){at + key * a->key_dim, at + keys + key * a->key_dim,
                              at + 2 * keys + head * a->value_dim};
}

/* The log of the decay; *slope: of it along `a`. Tensor `qkv` of the call is followed by gates,
 * a_log and dt_bias. */
static inline double reference_log_decay(const hy_op_call *c, int qkv, int64_t row, int64_t head,
                                         double *slope) {
    int64_t H = c->attr.delta.heads;
    double x =
        reference_data(c, qkv + 1)[(2 * row + 1) * H + head] + reference_data(c, qkv + 3)[head];
    double rate = exp(reference_data(c, qkv + 2)[head]);
    if (slope) *slope = -rate * reference_sigmoid(x);
    return -rate * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
}

static inline void reference_read_token(const hy_op_call *c, int qkv, int64_t row, int64_t head,
                                        reference_delta_token *t) {
    const hy_delta_attr *a = &c->attr.delta;
    const double *x = reference_data(c, qkv);
    reference_places at = reference_delta_places(a, row, head);
    reference_unit(x + at.q, a->key_dim, t->q);
    reference_unit(x + at.k, a->key_dim, t->k);
    for (int64_t i = 0; i < a->key_dim; i++) t->q[i] /= sqrt((double)a->key_dim);
    for (int64_t j = 0; j < a->value_dim; j++) t->v[j] = x[at.v + j];
    t->decay = exp(reference_log_decay(c, qkv, row, head, NULL));
    t->strength = reference_sigmoid(reference_data(c, qkv + 1)[2 * row * a->heads + head]);
}

/* `after` may be `before`; out may be NULL. */
static inline void reference_delta_step(const hy_delta_attr *a, const reference_delta_token *t,
                                        const double *before, double *after, double *out) {
    int64_t Dk = a->key_dim, Dv = a->value_dim;
    for (int64_t j = 0; j < Dv; j++) {
        double known = 0, sum = 0;
        for (int64_t i = 0; i < Dk; i++) known += t->decay * before[i * Dv + j] * t->k[i];
        double write = t->strength * (t->v[j] - known);
        for (int64_t i = 0; i < Dk; i++) {
            after[i * Dv + j] = t->decay * before[i * Dv + j] + t->k[i] * write;
            sum += after[i * Dv + j] * t->q[i];
        }
        if (out) out[j] = sum;
    }
}

static inline bool reference_begins(const hy_tensor *doc_starts, int64_t T, int64_t n) {
    return !reference_reaches(doc_starts, T, n, n - 1);
}

static inline void reference_delta(const hy_op_call *c) {
    const hy_delta_attr *a = &c->attr.delta;
    int64_t states = (int64_t)a->key_dim * a->value_dim, rows = (int64_t)a->batch * a->seq;
    double *state = calloc((size_t)states, sizeof *state);
    reference_delta_token token;
    for (int64_t head = 0; head < a->heads; head++) {
        for (int64_t n = 0; n < rows; n++) {
            if (reference_begins(&c->t[HY_DELTA_DOC_STARTS], a->seq, n)) {
                memset(state, 0, (size_t)states * sizeof *state);
            }
            reference_read_token(c, HY_DELTA_QKV, n, head, &token);
            reference_delta_step(a, &token, state, state,
                                 reference_data(c, HY_DELTA_OUT) +
                                     (n * a->heads + head) * a->value_dim);
        }
    }
    free(state);
}

static inline void reference_delta_cached(const hy_op_call *c) {
    const hy_delta_attr *a = &c->attr.delta;
    const int32_t *first = c->t[HY_DELTA_CACHED_FIRST].data,
                  *slots = c->t[HY_DELTA_CACHED_SLOTS].data;
    int64_t states = (int64_t)a->key_dim * a->value_dim;
    reference_delta_token token;
    for (int64_t i = 0; i < (int64_t)a->batch * a->heads; i++) {
        int64_t b = i / a->heads, head = i % a->heads;
        if (first[b] < 0) continue;
        double *state =
            reference_data(c, HY_DELTA_CACHED_STATE) + (slots[b] * a->heads + head) * states;
        if (first[b] == 0) memset(state, 0, (size_t)states * sizeof *state);
        for (int64_t n = b * a->seq; n < (b + 1) * a->seq; n++) {
            reference_read_token(c, HY_DELTA_CACHED_QKV, n, head, &token);
            reference_delta_step(a, &token, state, state,
                                 reference_data(c, HY_DELTA_CACHED_OUT) +
                                     (n * a->heads + head) * a->value_dim);
        }
    }
}

/* Back through one token: *d gets its gradients, `gradient` becomes that of the state before. */
static inline void reference_delta_back(const hy_delta_attr *a, const reference_delta_token *t,
                                        const double *before, const double *after,
                                        const double *dout, double *gradient,
                                        reference_delta_token *d) {
    int64_t Dk = a->key_dim, Dv = a->value_dim;
    memset(d, 0, sizeof *d);
    for (int64_t j = 0; j < Dv; j++) {
        double known = 0, du = 0;
        for (int64_t i = 0; i < Dk; i++) {
            known += t->decay * before[i * Dv + j] * t->k[i];
            d->q[i] += after[i * Dv + j] * dout[j];
            gradient[i * Dv + j] += t->q[i] * dout[j];
            du += gradient[i * Dv + j] * t->k[i];
        }
        double error = t->v[j] - known;
        d->strength += du * error;
        d->v[j] = du * t->strength;
        for (int64_t i = 0; i < Dk; i++) {
            double *g = &gradient[i * Dv + j];
            d->k[i] += *g * t->strength * error - t->decay * before[i * Dv + j] * d->v[j];
            *g -= t->k[i] * d->v[j];
            d->decay += *g * before[i * Dv + j];
            *g *= t->decay;
        }
    }
}

/* Adds the gradients of a token to those of the tensors; sums: of a_log and dt_bias. */
static inline void reference_write_token(const hy_op_call *c, int64_t row, int64_t head,
                                         const reference_delta_token *t, reference_delta_token *d,
                                         double *sums) {
    const hy_delta_attr *a = &c->attr.delta;
    const double *x = reference_data(c, HY_DELTA_BWD_QKV);
    double *dx = reference_data(c, HY_DELTA_BWD_DQKV),
           *dgates = reference_data(c, HY_DELTA_BWD_DGATES);
    double slope, log = reference_log_decay(c, HY_DELTA_BWD_QKV, row, head, &slope);
    reference_places at = reference_delta_places(a, row, head);
    for (int64_t i = 0; i < a->key_dim; i++) d->q[i] /= sqrt((double)a->key_dim);
    reference_unit_bwd(x + at.q, d->q, a->key_dim, dx + at.q);
    reference_unit_bwd(x + at.k, d->k, a->key_dim, dx + at.k);
    for (int64_t j = 0; j < a->value_dim; j++) dx[at.v + j] = d->v[j];
    dgates[2 * row * a->heads + head] = d->strength * t->strength * (1 - t->strength);
    dgates[(2 * row + 1) * a->heads + head] = d->decay * t->decay * slope;
    sums[head] += d->decay * t->decay * log;
    sums[a->heads + head] += d->decay * t->decay * slope;
}

static inline void reference_delta_bwd(const hy_op_call *c) {
    const hy_delta_attr *a = &c->attr.delta;
    int64_t T = a->seq, states = (int64_t)a->key_dim * a->value_dim;
    double *all =
        calloc((size_t)((T + 1) * states), sizeof *all); /* of a sequence: before, after */
    double *gradient = calloc((size_t)states, sizeof *gradient);
    double *sums = calloc((size_t)(2 * a->heads), sizeof *sums);
    double *zeros = calloc((size_t)states, sizeof *zeros);
    const hy_tensor *starts = &c->t[HY_DELTA_BWD_DOC_STARTS];
    reference_delta_token token, d;
    memset(c->t[HY_DELTA_BWD_DQKV].data, 0, hy_tensor_bytes(&c->t[HY_DELTA_BWD_DQKV]));
    for (int64_t i = 0; i < (int64_t)a->batch * a->heads; i++) {
        int64_t head = i % a->heads, row = i / a->heads * T;
        for (int64_t n = 0; n < T; n++) {
            bool begins = reference_begins(starts, T, row + n);
            reference_read_token(c, HY_DELTA_BWD_QKV, row + n, head, &token);
            reference_delta_step(a, &token, begins ? zeros : all + n * states,
                                 all + (n + 1) * states, NULL);
        }
        memset(gradient, 0, (size_t)states * sizeof *gradient);
        for (int64_t n = T - 1; n >= 0; n--) {
            bool begins = reference_begins(starts, T, row + n);
            const double *dout =
                reference_data(c, HY_DELTA_BWD_DOUT) + ((row + n) * a->heads + head) * a->value_dim;
            reference_read_token(c, HY_DELTA_BWD_QKV, row + n, head, &token);
            reference_delta_back(a, &token, begins ? zeros : all + n * states,
                                 all + (n + 1) * states, dout, gradient, &d);
            reference_write_token(c, row + n, head, &token, &d, sums);
            if (begins) memset(gradient, 0, (size_t)states * sizeof *gradient);
        }
    }
    for (int64_t i = 0; i < 2 * a->heads; i++) {
        double *out = reference_data(c, i < a->heads ? HY_DELTA_BWD_DA_LOG : HY_DELTA_BWD_DDT_BIAS);
        if (out) reference_put(c, &out[i % a->heads], sums[i]);
    }
    free(all);
    free(gradient);
    free(sums);
    free(zeros);
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* Where the gate of head i (counted through all rows) begins. */
static inline int64_t reference_gate_at(const hy_op_call *c, int gate, int64_t i) {
    int64_t H = c->attr.gate.heads;
    return i / H * hy_tensor_width(&c->t[gate]) + c->attr.gate.column + i % H * c->attr.gate.stride;
}

static inline void reference_gate(const hy_op_call *c) {
    int64_t D = c->attr.gate.head_dim, heads = hy_tensor_count(&c->t[HY_GATE_X]) / D;
    const double *w = reference_data(c, HY_GATE_WEIGHT);
    for (int64_t i = 0; i < heads; i++) {
        const double *x = reference_data(c, HY_GATE_X) + i * D;
        const double *gate =
            reference_data(c, HY_GATE_GATE) + reference_gate_at(c, HY_GATE_GATE, i);
        double *y = reference_data(c, HY_GATE_Y) + i * D, square = 0;
        for (int64_t j = 0; j < D; j++) square += x[j] * x[j] / (double)D;
        double rstd = 1 / sqrt(square + (double)c->attr.gate.eps);
        for (int64_t j = 0; j < D; j++) {
            double part = reference_sigmoid(gate[j]);
            y[j] = w ? x[j] * rstd * w[j] * gate[j] * part : x[j] * part;
        }
        if (w) reference_data(c, HY_GATE_RSTD)[i] = rstd;
    }
}

static inline void reference_gate_bwd(const hy_op_call *c) {
    int64_t D = c->attr.gate.head_dim, heads = hy_tensor_count(&c->t[HY_GATE_BWD_X]) / D;
    const double *w = reference_data(c, HY_GATE_BWD_WEIGHT);
    double *dw = reference_data(c, HY_GATE_BWD_DWEIGHT), *sums = calloc((size_t)D, sizeof *sums);
    for (int64_t i = 0; i < heads; i++) {
        int64_t at = reference_gate_at(c, HY_GATE_BWD_GATE, i);
        const double *dy = reference_data(c, HY_GATE_BWD_DY) + i * D,
                     *x = reference_data(c, HY_GATE_BWD_X) + i * D,
                     *gate = reference_data(c, HY_GATE_BWD_GATE) + at;
        double *dx = reference_data(c, HY_GATE_BWD_DX) + i * D,
               *dgate = reference_data(c, HY_GATE_BWD_DGATE) + at;
        double rstd = w ? reference_data(c, HY_GATE_BWD_RSTD)[i] : 1, mean = 0;
        for (int64_t j = 0; w && j < D; j++) {
            double silu = gate[j] * reference_sigmoid(gate[j]);
            mean += dy[j] * silu * w[j] * x[j] * rstd / (double)D;
            sums[j] += dy[j] * silu * x[j] * rstd;
        }
        for (int64_t j = 0; j < D; j++) {
            double part = reference_sigmoid(gate[j]), slope = part * (1 + gate[j] * (1 - part));
            dgate[j] = w ? dy[j] * x[j] * rstd * w[j] * slope : dy[j] * x[j] * part * (1 - part);
            dx[j] = w ? rstd * (dy[j] * gate[j] * part * w[j] - x[j] * rstd * mean) : dy[j] * part;
        }
    }
    for (int64_t j = 0; dw && j < D; j++) reference_put(c, &dw[j], sums[j]);
    free(sums);
}

#endif
