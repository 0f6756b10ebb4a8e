/* expert_calls.h: calls of the ops of mixtures of experts, of random numbers, and what must hold of
 * them on every backend. */
#ifndef HY_TESTS_EXPERT_CALLS_H
#define HY_TESTS_EXPERT_CALLS_H

#include "row_calls.h"

/* How tokens choose: any experts, all of them the same k, or only some experts. */
enum { LOAD_EVEN, LOAD_ONE, LOAD_SOME, LOADS };

typedef struct experts_case {
    int64_t tokens, experts, chosen;
    int64_t in, out; /* widths of a row and of its result */
    int load;
} experts_case;

/* One token, more experts than rows, sizes that no tile divides, and whole tiles. */
static const experts_case experts_cases[] = {
    {1, 4, 2, 8, 16, LOAD_EVEN},     {3, 9, 4, 24, 40, LOAD_EVEN},
    {70, 5, 1, 33, 17, LOAD_EVEN},   {64, 8, 2, 64, 128, LOAD_ONE},
    {45, 16, 3, 72, 56, LOAD_SOME},  {70, 3, 3, 72, 264, LOAD_EVEN},
    {130, 6, 1, 128, 72, LOAD_ONE},  {100, 7, 2, 136, 136, LOAD_SOME},
    {40, 600, 2, 16, 24, LOAD_EVEN},
};
enum { EXPERTS_CASES = sizeof experts_cases / sizeof experts_cases[0] };

/* ---- choices --------------------------------------------------------------------------------- */

/* The choices of token n: different experts. */
static inline void draw_choice(const experts_case *c, dice *d, int32_t *choice) {
    int64_t most =
        c->load == LOAD_SOME && c->experts / 2 >= c->chosen ? c->experts / 2 : c->experts;
    for (int64_t j = 0; j < c->chosen; j++) {
        bool is_new = false;
        while (!is_new) {
            choice[j] = (int32_t)(c->load == LOAD_ONE ? c->experts - 1 - j : roll(d, 0, most - 1));
            is_new = true;
            for (int64_t i = 0; i < j; i++) is_new = is_new && choice[i] != choice[j];
        }
    }
}

static inline trial sort_trial(const experts_case *c) {
    trial t = trial_begin(HY_OP_SORT_EXPERTS, (uint64_t)(c->tokens * 10 + c->load));
    trial_tensor(&t, HY_SORT_EXPERTS_CHOICE, HY_I32, c->tokens, c->chosen);
    trial_tensor(&t, HY_SORT_EXPERTS_ORDER, HY_I32, 0, c->tokens * c->chosen);
    trial_tensor(&t, HY_SORT_EXPERTS_PLACE, HY_I32, c->tokens, c->chosen);
    trial_tensor(&t, HY_SORT_EXPERTS_OFFSETS, HY_I32, 0, c->experts + 1);
    for (int64_t n = 0; n < c->tokens; n++) {
        int32_t choice[HY_ROUTE_CHOSEN_MAX];
        draw_choice(c, &t.dice, choice);
        for (int64_t j = 0; j < c->chosen; j++) {
            trial_put(&t, HY_SORT_EXPERTS_CHOICE, n * c->chosen + j, choice[j]);
        }
    }
    return t;
}

static inline void check_ints(const trial *t, int at) {
    const hy_tensor *found = &t->call.t[at], *expected = &t->exact.t[at];
    for (int64_t i = 0; i < hy_tensor_count(found); i++) {
        int32_t x = ((const int32_t *)found->data)[i], y = ((const int32_t *)expected->data)[i];
        ck_assert_msg(x == y, "%s: element %lld of %s is %d, expected %d", hy_op_name(t->call.kind),
                      (long long)i, hy_op_tensor_name(t->call.kind, at), x, y);
    }
}

/* Gives an op what sorting made: tensor `at` of the trial from tensor `from` of a sorted one. */
static inline void take_sorted(trial *t, int at, const trial *sorted, int from) {
    const hy_tensor *x = &sorted->exact.t[from];
    bool is_matrix = x->ndim == 2;
    trial_tensor(t, at, HY_I32, is_matrix ? x->shape[0] : 0, x->shape[x->ndim - 1]);
    for (int64_t i = 0; i < hy_tensor_count(x); i++) {
        trial_put(t, at, i, ((const int32_t *)x->data)[i]);
    }
}

static inline trial sorted_trial(const experts_case *c) {
    trial sorted = sort_trial(c);
    reference_run(&sorted.exact);
    return sorted;
}

/* Makes a matrix of E times `rows` rows one of three dimensions, experts first. */
static inline void stack_experts(trial *t, int at, int64_t E) {
    hy_tensor *both[] = {&t->call.t[at], &t->exact.t[at]};
    for (int i = 0; i < 2; i++) {
        both[i]->shape[2] = both[i]->shape[1];
        both[i]->shape[1] = both[i]->shape[0] / E;
        both[i]->shape[0] = E;
        both[i]->ndim = 3;
    }
}

/* ---- routing --------------------------------------------------------------------------------- */

typedef struct route_case {
    int64_t sequences, seq, experts, chosen;
    hy_route_score score;
    bool is_renormalised, has_bias;
} route_case;

static const route_case route_cases[] = {
    {1, 1, 1, 1, HY_ROUTE_SOFTMAX, false, false},   {2, 9, 8, 2, HY_ROUTE_SOFTMAX, true, false},
    {3, 7, 64, 8, HY_ROUTE_SOFTMAX, false, false},  {1, 50, 33, 4, HY_ROUTE_SIGMOID, true, true},
    {2, 31, 128, 8, HY_ROUTE_SIGMOID, false, true}, {1, 20, 300, 32, HY_ROUTE_SOFTMAX, true, true},
    {5, 3, 1024, 6, HY_ROUTE_SIGMOID, true, false},
};
enum { ROUTE_CASES = sizeof route_cases / sizeof route_cases[0] };

static inline trial route_trial(const route_case *c, int mixture) {
    int64_t N = c->sequences * c->seq;
    trial t = trial_begin(HY_OP_ROUTE, (uint64_t)(N * 10 + mixture));
    t.call.attr.route = (hy_route_attr){.score = c->score,
                                        .is_renormalised = c->is_renormalised,
                                        .scale = 2.5f,
                                        .seq = (int32_t)c->seq};
    trial_normal(&t, HY_ROUTE_LOGITS, pick_dtype(mixture, &t.dice), N, c->experts, 0.5, 2);
    if (c->has_bias) trial_normal(&t, HY_ROUTE_BIAS, HY_F32, 0, c->experts, 0, 0.2);
    trial_tensor(&t, HY_ROUTE_CHOICE, HY_I32, N, c->chosen);
    trial_tensor(&t, HY_ROUTE_WEIGHTS, HY_F32, N, c->chosen);
    trial_tensor(&t, HY_ROUTE_LOSSES, HY_F32, N, HY_ROUTE_LOSSES_COUNT);
    return t;
}

static inline trial route_bwd_trial(const route_case *c, int mixture, float z, float balance) {
    int64_t N = c->sequences * c->seq;
    experts_case of = {N, c->experts, c->chosen, 0, 0, LOAD_EVEN};
    trial sorted = sort_trial(&of), t = trial_begin(HY_OP_ROUTE_BWD, (uint64_t)(N + mixture));
    memcpy(sorted.exact.t[HY_SORT_EXPERTS_CHOICE].data, sorted.call.t[HY_SORT_EXPERTS_CHOICE].data,
           (size_t)(N * c->chosen) * sizeof(int32_t));
    t.call.attr.route = (hy_route_attr){.score = c->score,
                                        .is_renormalised = c->is_renormalised,
                                        .scale = 2.5f,
                                        .z = z,
                                        .balance = balance,
                                        .seq = (int32_t)c->seq};
    trial_normal(&t, HY_ROUTE_BWD_DWEIGHTS, HY_F32, N, c->chosen, 0, 1);
    trial_normal(&t, HY_ROUTE_BWD_LOGITS, pick_dtype(mixture, &t.dice), N, c->experts, 0.5, 2);
    take_sorted(&t, HY_ROUTE_BWD_CHOICE, &sorted, HY_SORT_EXPERTS_CHOICE);
    trial_tensor(&t, HY_ROUTE_BWD_DLOGITS, pick_dtype(mixture, &t.dice), N, c->experts);
    trial_end(&sorted);
    return t;
}

/* Rows with NaN, an infinity or nothing but minus infinity choose the first experts, with NaN
 * weights and gradients; the others are as before. */
static inline void check_route_nan(call_runner run) {
    enum { N = 5, E = 7, K = 3 };
    float logits[N][E] = {{0}}, weights[N * K], dweights[N * K] = {0}, dlogits[N * E];
    int32_t choice[N * K];
    for (int n = 0; n < N; n++) {
        for (int e = 0; e < E; e++) logits[n][e] = n == 3 ? -INFINITY : (float)(e * 3 % 7);
    }
    logits[1][4] = NAN;
    logits[2][6] = INFINITY;
    logits[4][2] = -INFINITY;
    for (int score = 0; score < 2; score++) {
        hy_op_attr attr = {.route = {.score = (hy_route_score)score, .scale = 1, .seq = N}};
        hy_op_call f = {.kind = HY_OP_ROUTE, .attr = attr};
        hy_op_call b = {.kind = HY_OP_ROUTE_BWD, .attr = attr};
        f.t[HY_ROUTE_LOGITS] = hy_tensor_2d(logits, HY_F32, N, E);
        f.t[HY_ROUTE_CHOICE] = hy_tensor_2d(choice, HY_I32, N, K);
        f.t[HY_ROUTE_WEIGHTS] = hy_tensor_2d(weights, HY_F32, N, K);
        b.t[HY_ROUTE_BWD_DWEIGHTS] = hy_tensor_2d(dweights, HY_F32, N, K);
        b.t[HY_ROUTE_BWD_LOGITS] = f.t[HY_ROUTE_LOGITS];
        b.t[HY_ROUTE_BWD_CHOICE] = f.t[HY_ROUTE_CHOICE];
        b.t[HY_ROUTE_BWD_DLOGITS] = hy_tensor_2d(dlogits, HY_F32, N, E);
        run(&f);
        run(&b);
        for (int i = 0; i < N * K; i++) {
            bool is_lost = i / K >= 1 && i / K <= 3;
            static const int32_t best[2][K] = {{2, 4, 6}, {4, 6, 1}};
            ck_assert_int_eq(choice[i], is_lost ? i % K : best[i / K == 4][i % K]);
            ck_assert_msg(isnan(weights[i]) == is_lost, "weight %d is %g", i, (double)weights[i]);
        }
        for (int i = 0; i < N * E; i++) ck_assert(isnan(dlogits[i]) == (i / E >= 1 && i / E <= 3));
    }
}

/* Equal logits: the lower expert first. */
static inline void check_route_ties(call_runner run) {
    enum { E = 70, K = 9 };
    float logits[E], weights[K];
    int32_t choice[K];
    for (int e = 0; e < E; e++) logits[e] = (float)(e % 10 == 7);
    hy_op_call f = {.kind = HY_OP_ROUTE, .attr.route = {.scale = 1, .is_renormalised = true}};
    f.t[HY_ROUTE_LOGITS] = hy_tensor_2d(logits, HY_F32, 1, E);
    f.t[HY_ROUTE_CHOICE] = hy_tensor_2d(choice, HY_I32, 1, K);
    f.t[HY_ROUTE_WEIGHTS] = hy_tensor_2d(weights, HY_F32, 1, K);
    run(&f);
    for (int j = 0; j < K; j++) ck_assert_int_eq(choice[j], j < 7 ? 10 * j + 7 : j - 7);
}

/* ---- weights of rows ------------------------------------------------------------------------- */

static inline trial weighted_swiglu_trial(hy_op_kind kind, int64_t N, int64_t F, int mixture) {
    trial t = trial_begin(kind, (uint64_t)(N * F + mixture));
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    bool is_forward = kind == HY_OP_SWIGLU;
    int weights = is_forward ? HY_SWIGLU_WEIGHTS : HY_SWIGLU_BWD_WEIGHTS;
    if (is_forward) {
        trial_normal(&t, HY_SWIGLU_GATE_UP, dtype, N, 2 * F, 0, 2);
        trial_tensor(&t, HY_SWIGLU_Y, dtype, N, F);
    } else {
        trial_normal(&t, HY_SWIGLU_BWD_DY, dtype, N, F, 0, 1);
        trial_normal(&t, HY_SWIGLU_BWD_GATE_UP, dtype, N, 2 * F, 0, 2);
        trial_tensor(&t, HY_SWIGLU_BWD_DGATE_UP, dtype, N, 2 * F);
        trial_tensor(&t, HY_SWIGLU_BWD_ACTIVE, dtype, N, F);
        trial_tensor(&t, HY_SWIGLU_BWD_DWEIGHTS, HY_F32, 0, N);
    }
    trial_normal(&t, weights, HY_F32, 0, N, 0.5, 0.3);
    trial_tensor(&t, weights + 1, HY_I32, 0, N);
    for (int64_t i = 0; i < N; i++) trial_put(&t, weights + 1, i, (double)((i * 7 + 3) % N));
    return t;
}

/* N must have no divisor 7: order is then a permutation. */
static const int64_t weighted_sizes[][2] = {{1, 5}, {3, 64}, {17, 200}, {130, 1032}};

/* ---- grouped matmuls ------------------------------------------------------------------------- */

typedef struct grouped_form {
    bool trans_b, reads_rows, has_bias, accumulate;
} grouped_form;

static const grouped_form grouped_forms[] = {{true, true, false, false},
                                             {true, false, true, false},
                                             {false, false, false, true},
                                             {false, true, false, false},
                                             {true, true, false, true}};
enum { GROUPED_FORMS = sizeof grouped_forms / sizeof grouped_forms[0] };

static inline trial grouped_trial(const experts_case *c, const grouped_form *form, int mixture) {
    trial sorted = sorted_trial(c);
    trial t = trial_begin(HY_OP_GROUPED_MATMUL, (uint64_t)(c->tokens * 100 + mixture));
    int64_t R = c->tokens * c->chosen, b_rows = form->trans_b ? c->out : c->in;
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    t.call.attr.accumulate = form->accumulate;
    t.call.attr.grouped.trans_b = form->trans_b;
    t.call.attr.grouped.alpha = 0.5f;
    trial_normal(&t, HY_GROUPED_MATMUL_A, dtype, form->reads_rows ? c->tokens : R, c->in, 0, 1);
    trial_normal(&t, HY_GROUPED_MATMUL_B, dtype, c->experts * b_rows,
                 form->trans_b ? c->in : c->out, 0, 1);
    stack_experts(&t, HY_GROUPED_MATMUL_B, c->experts);
    take_sorted(&t, HY_GROUPED_MATMUL_OFFSETS, &sorted, HY_SORT_EXPERTS_OFFSETS);
    trial_normal(&t, HY_GROUPED_MATMUL_D, pick_grad_dtype(mixture, &t.dice), R, c->out, 0, 1);
    if (form->reads_rows) {
        take_sorted(&t, HY_GROUPED_MATMUL_ROWS, &sorted, HY_SORT_EXPERTS_ORDER);
    }
    if (form->has_bias) {
        trial_normal(&t, HY_GROUPED_MATMUL_BIAS, dtype, c->experts, c->out, 0, 1);
    }
    trial_end(&sorted);
    return t;
}

/* which: 0 neither operand is read through rows, 1 a, 2 b. */
static inline trial grouped_grad_trial(const experts_case *c, int which, bool accumulate,
                                       int mixture) {
    trial sorted = sorted_trial(c);
    trial t = trial_begin(HY_OP_GROUPED_GRAD, (uint64_t)(c->tokens * 100 + mixture));
    int64_t R = c->tokens * c->chosen;
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    t.call.attr.accumulate = accumulate;
    t.call.attr.grouped.alpha = 0.5f;
    trial_normal(&t, HY_GROUPED_GRAD_A, dtype, which == 1 ? c->tokens : R, c->out, 0, 1);
    trial_normal(&t, HY_GROUPED_GRAD_B, dtype, which == 2 ? c->tokens : R, c->in, 0, 1);
    take_sorted(&t, HY_GROUPED_GRAD_OFFSETS, &sorted, HY_SORT_EXPERTS_OFFSETS);
    trial_normal(&t, HY_GROUPED_GRAD_D, pick_grad_dtype(mixture, &t.dice), c->experts * c->out,
                 c->in, 0, 1);
    stack_experts(&t, HY_GROUPED_GRAD_D, c->experts);
    if (which == 1) take_sorted(&t, HY_GROUPED_GRAD_ROWS_A, &sorted, HY_SORT_EXPERTS_ORDER);
    if (which == 2) take_sorted(&t, HY_GROUPED_GRAD_ROWS_B, &sorted, HY_SORT_EXPERTS_ORDER);
    trial_end(&sorted);
    return t;
}

/* Stored experts give the bits of the numbers that they stand for. */
static inline void check_grouped_coded(hy_dtype stored, bool trans_b, int mixture,
                                       call_runner run) {
    static const experts_case c = {40, 6, 2, 128, 192, LOAD_SOME};
    grouped_form form = {.trans_b = trans_b, .reads_rows = true};
    trial t = grouped_trial(&c, &form, mixture);
    hy_tensor *b = &t.call.t[HY_GROUPED_MATMUL_B], before = *b, *d = &t.call.t[HY_GROUPED_MATMUL_D];
    hy_tensor codes = coded_rows(stored, before.shape[0] * before.shape[1], before.shape[2], 5);
    hy_tensor real = real_rows(&codes, t.call.t[HY_GROUPED_MATMUL_A].dtype);
    hy_tensor *both[] = {&real, &codes};
    for (int i = 0; i < 2; i++) {
        memcpy(both[i]->shape, before.shape, sizeof before.shape);
        both[i]->ndim = 3;
    }
    *b = real;
    run(&t.call);
    hy_tensor expected = copy_tensor(d);
    memset(d->data, 0, hy_tensor_bytes(d));
    *b = codes;
    run(&t.call);
    ck_assert_msg(memcmp(expected.data, d->data, hy_tensor_bytes(d)) == 0, "%s experts by %s",
                  hy_dtype_name(stored), hy_dtype_name(t.call.t[HY_GROUPED_MATMUL_A].dtype));
    *b = before;
    free(expected.data);
    free(real.data);
    free_rows(&codes);
    trial_end(&t);
}

/* A row has the same bits alone, without the rows of other tokens. */
static inline void check_grouped_rows_alone(const experts_case *c, int mixture, call_runner run) {
    grouped_form form = {.trans_b = true, .has_bias = true};
    trial t = grouped_trial(c, &form, mixture);
    t.call.attr.grouped.is_batch_invariant = true;
    run(&t.call);
    const int32_t *offsets = t.call.t[HY_GROUPED_MATMUL_OFFSETS].data;
    const hy_tensor *d = &t.call.t[HY_GROUPED_MATMUL_D];
    int32_t *alone = calloc((size_t)c->experts + 1, sizeof *alone);
    for (int64_t e = 0; e < c->experts; e++) {
        for (int64_t p = offsets[e]; p < offsets[e + 1]; p += 1 + p % 5) {
            hy_op_call one = t.call;
            hy_tensor row = hy_tensor_rows(d, p, 1), found = copy_tensor(&row);
            for (int64_t i = 0; i <= c->experts; i++) alone[i] = i > e;
            one.t[HY_GROUPED_MATMUL_A] = hy_tensor_rows(&t.call.t[HY_GROUPED_MATMUL_A], p, 1);
            one.t[HY_GROUPED_MATMUL_OFFSETS].data = alone;
            memset(found.data, 0, hy_tensor_bytes(&found));
            one.t[HY_GROUPED_MATMUL_D] = found;
            run(&one);
            ck_assert_msg(memcmp(found.data, row.data, hy_tensor_bytes(&row)) == 0,
                          "position %lld differs alone", (long long)p);
            free(found.data);
        }
    }
    free(alone);
    trial_end(&t);
}

/* ---- the sum of a token's rows --------------------------------------------------------------- */

static inline trial sum_rows_trial(const experts_case *c, bool has_residual, int mixture) {
    trial sorted = sorted_trial(c);
    trial t = trial_begin(HY_OP_SUM_ROWS, (uint64_t)(c->tokens * 100 + mixture));
    trial_normal(&t, HY_SUM_ROWS_Y, pick_dtype(mixture, &t.dice), c->tokens * c->chosen, c->out, 0,
                 1);
    take_sorted(&t, HY_SUM_ROWS_PLACE, &sorted, HY_SORT_EXPERTS_PLACE);
    if (has_residual) {
        trial_normal(&t, HY_SUM_ROWS_RESIDUAL, pick_dtype(mixture, &t.dice), c->tokens, c->out, 0,
                     1);
    }
    trial_tensor(&t, HY_SUM_ROWS_OUT, pick_dtype(mixture, &t.dice), c->tokens, c->out);
    trial_end(&sorted);
    return t;
}

/* The residual may be the result. */
static inline void check_sum_rows_in_place(const experts_case *c, int mixture, call_runner run) {
    trial t = sum_rows_trial(c, true, mixture);
    hy_op_call same = t.call;
    hy_tensor both = copy_tensor(&t.call.t[HY_SUM_ROWS_RESIDUAL]);
    same.t[HY_SUM_ROWS_RESIDUAL] = same.t[HY_SUM_ROWS_OUT] = both;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(both.data, t.call.t[HY_SUM_ROWS_OUT].data, hy_tensor_bytes(&both));
    free(both.data);
    trial_end(&t);
}

#endif
