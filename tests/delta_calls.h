/* delta_calls.h: calls of the ops of gated delta layers, of random numbers, and what must hold of
 * them on every backend: convolution, gated delta rule, gates, and head norm that leaves gates out.
 *
 * A backward call takes what the reference's forward call wrote, rounded to its types. Comparisons
 * of two calls allow an error relative to the norm; 0: the same bits. */
#ifndef HY_TESTS_DELTA_CALLS_H
#define HY_TESTS_DELTA_CALLS_H

#include "kernel_rig.h"

/* Documents of 1 to some 40 tokens, for B sequences of T tokens. */
static inline void put_documents(trial *t, int at, int64_t B, int64_t T) {
    trial_tensor(t, at, HY_I32, 0, B * T);
    for (int64_t n = 0, start = 0; n < B * T; n++) {
        if (n % T == 0)
            start = 0;
        else if (roll(&t->dice, 0, 15) == 0)
            start = n % T;
        trial_put(t, at, n, (double)start);
    }
}

/* Gives the backward call a tensor of the forward call: as the reference left it. */
static inline void pass_on(trial *to, int at, const trial *from, int of) {
    const hy_tensor *source = &from->call.t[of];
    if (!source->data) return;
    int64_t rows = source->ndim > 1 ? hy_tensor_height(source) : 0;
    trial_tensor(to, at, source->dtype, rows, hy_tensor_count(source) / (rows ? rows : 1));
    for (int64_t i = 0; i < hy_tensor_count(source); i++) {
        trial_put(to, at, i, real_at(&from->exact.t[of], i));
    }
}

/* ---- sequences with states ------------------------------------------------------------------- */

/* Sequence b begins at: every third is idle, or at 0, or later. A call of one is at `later`. */
static inline int64_t delta_first_of(int64_t B, int64_t b) {
    return B == 1 ? 5 : b % 3 == 1 ? -1 : b % 3 == 2 ? 0 : 5 + b;
}

/* States (slots, a, b[, c]) of B sequences in a random order among 2 B + 1 slots; what must not be
 * read is NaN. dims: of a state, ended by 0. */
static inline void put_states(trial *t, int state, int first, int slots, int64_t B, hy_dtype dtype,
                              const int64_t *dims) {
    int64_t pool = 2 * B + 1, count = 1;
    int ndim = 1;
    for (; dims[ndim - 1]; ndim++) count *= dims[ndim - 1];
    trial_tensor(t, state, dtype, pool, count);
    hy_tensor *tensors[] = {&t->call.t[state], &t->exact.t[state]};
    for (int i = 0; i < 2; i++) {
        tensors[i]->ndim = ndim;
        for (int d = 1; d < ndim; d++) tensors[i]->shape[d] = dims[d - 1];
    }
    for (int64_t i = 0; i < pool * count; i++) trial_put(t, state, i, NAN);
    trial_tensor(t, first, HY_I32, 0, B);
    trial_tensor(t, slots, HY_I32, 0, B);
    for (int64_t b = 0; b < B; b++) {
        int64_t slot = (int64_t)hy_rng_permute(7, HY_RNG_TEST, (uint64_t)pool, (uint64_t)b);
        trial_put(t, first, b, (double)delta_first_of(B, b));
        trial_put(t, slots, b, delta_first_of(B, b) < 0 ? -1 : (double)slot);
        for (int64_t i = 0; delta_first_of(B, b) > 0 && i < count; i++) {
            trial_put(t, state, slot * count + i, 0.5 * roll_normal(&t->dice));
        }
    }
}

/* Positions of a cached op. */
typedef struct cached_places {
    int x, gates, state, out, first, slots; /* gates -1: none */
} cached_places;

static inline cached_places cached_places_of(hy_op_kind kind) {
    if (kind == HY_OP_CONV_CACHED) {
        return (cached_places){HY_CONV_CACHED_X,     -1,
                               HY_CONV_CACHED_STATE, HY_CONV_CACHED_Y,
                               HY_CONV_CACHED_FIRST, HY_CONV_CACHED_SLOTS};
    }
    return (cached_places){HY_DELTA_CACHED_QKV, HY_DELTA_CACHED_GATES, HY_DELTA_CACHED_STATE,
                           HY_DELTA_CACHED_OUT, HY_DELTA_CACHED_FIRST, HY_DELTA_CACHED_SLOTS};
}

static inline int64_t cached_batch(const hy_op_call *call) {
    return hy_tensor_count(&call->t[cached_places_of(call->kind).first]);
}

static inline int32_t *call_seq(hy_op_call *call) {
    bool is_conv =
        call->kind == HY_OP_CONV || call->kind == HY_OP_CONV_BWD || call->kind == HY_OP_CONV_CACHED;
    return is_conv ? &call->attr.conv.seq : &call->attr.delta.seq;
}

/* Before a comparison with the reference: rows of idle sequences, and states that no sequence of
 * the call has, become 0 in both; `before` is the state as it was: those states must be unchanged. */
static inline void forget_unused(trial *t, const hy_tensor *before) {
    cached_places p = cached_places_of(t->call.kind);
    const int32_t *first = t->call.t[p.first].data, *slots = t->call.t[p.slots].data;
    hy_tensor *state = &t->call.t[p.state], *out = &t->call.t[p.out];
    int64_t B = cached_batch(&t->call), rows = hy_tensor_count(out) / B;
    int64_t count = hy_tensor_count(state) / state->shape[0];
    size_t bytes = (size_t)count * hy_dtype_size(state->dtype);
    for (int64_t slot = 0; slot < state->shape[0]; slot++) {
        bool is_used = false;
        for (int64_t b = 0; b < B; b++) is_used |= first[b] >= 0 && slots[b] == slot;
        if (is_used) continue;
        ck_assert_mem_eq((char *)state->data + (size_t)slot * bytes,
                         (char *)before->data + (size_t)slot * bytes, bytes);
        for (int64_t i = 0; i < count; i++) trial_put(t, p.state, slot * count + i, 0);
    }
    for (int64_t b = 0; b < B; b++) {
        for (int64_t i = 0; first[b] < 0 && i < rows; i++) trial_put(t, p.out, b * rows + i, 0);
    }
}

/* `rows` rows of sequence b from its row `at` on; *first is where they begin. */
static inline hy_op_call cached_part(const hy_op_call *call, int64_t b, int32_t at, int32_t rows,
                                     int32_t *first) {
    cached_places p = cached_places_of(call->kind);
    hy_op_call part = *call;
    int32_t T = *call_seq(&part);
    const int row_places[] = {p.x, p.out, p.gates};
    for (int i = 0; i < 3; i++) {
        if (row_places[i] < 0) continue;
        part.t[row_places[i]] = hy_tensor_rows(&call->t[row_places[i]], b * T + at, rows);
    }
    *first = ((const int32_t *)call->t[p.first].data)[b];
    if (*first >= 0) *first += at;
    part.t[p.first] = hy_tensor_1d(first, HY_I32, 1);
    part.t[p.slots] = hy_tensor_rows(&call->t[p.slots], b, 1);
    *call_seq(&part) = rows;
    if (call->kind == HY_OP_DELTA_CACHED) part.attr.delta.batch = 1;
    return part;
}

/* The rows of one tensor and another are alike. */
static inline void check_alike(const hy_op_call *call, int at, const hy_tensor *a,
                               const hy_tensor *b, double allowed) {
    double wrong = 0, size = 0;
    bool is_same = memcmp(a->data, b->data, hy_tensor_bytes(a)) == 0;
    for (int64_t i = 0; !is_same && i < hy_tensor_count(a); i++) {
        double x = real_at(a, i), y = real_at(b, i);
        if (isnan(x) && isnan(y)) continue;
        wrong += (x - y) * (x - y);
        size += y * y;
    }
    ck_assert_msg(is_same || (allowed > 0 && wrong <= allowed * allowed * size),
                  "%s: %s differs by %.3g, allowed %.3g", hy_op_name(call->kind),
                  hy_op_tensor_name(call->kind, at), sqrt(wrong / size), allowed);
}

/* Each sequence alone, in parts of `chunk` rows, gives what all of them do together. */
static inline void check_cached_parts(const hy_op_call *call, int32_t chunk, double allowed,
                                      call_runner run) {
    cached_places p = cached_places_of(call->kind);
    hy_op_call all = *call, parts = *call;
    all.t[p.state] = copy_tensor(&call->t[p.state]);
    all.t[p.out] = copy_tensor(&call->t[p.out]);
    parts.t[p.state] = copy_tensor(&call->t[p.state]);
    parts.t[p.out] = copy_tensor(&call->t[p.out]);
    int32_t T = *call_seq(&all), first, rows;
    run(&all);
    for (int64_t b = cached_batch(call) - 1; b >= 0; b--) {
        for (int32_t at = 0; at < T; at += rows) {
            rows = chunk < T - at ? chunk : T - at;
            hy_op_call part = cached_part(&parts, b, at, rows, &first);
            run(&part);
        }
        hy_op_call one = cached_part(&parts, b, 0, T, &first);
        hy_op_call same = cached_part(&all, b, 0, T, &first);
        if (first >= 0) check_alike(call, p.out, &one.t[p.out], &same.t[p.out], allowed);
    }
    check_alike(call, p.state, &parts.t[p.state], &all.t[p.state], allowed);
    free(all.t[p.state].data);
    free(all.t[p.out].data);
    free(parts.t[p.state].data);
    free(parts.t[p.out].data);
}

/* ---- documents ------------------------------------------------------------------------------- */

/* Tensors of an op with a row for each token, ended by -1; the position of doc_starts. */
typedef struct document_places {
    int rows[7], doc_starts;
} document_places;

static inline document_places document_places_of(hy_op_kind kind) {
    switch (kind) {
    case HY_OP_CONV: return (document_places){{HY_CONV_X, HY_CONV_Y, -1}, HY_CONV_DOC_STARTS};
    case HY_OP_CONV_BWD:
        return (document_places){{HY_CONV_BWD_DY, HY_CONV_BWD_X, HY_CONV_BWD_DX, -1},
                                 HY_CONV_BWD_DOC_STARTS};
    case HY_OP_DELTA:
        return (document_places){{HY_DELTA_QKV, HY_DELTA_GATES, HY_DELTA_OUT, -1},
                                 HY_DELTA_DOC_STARTS};
    default:
        return (document_places){{HY_DELTA_BWD_DOUT, HY_DELTA_BWD_QKV, HY_DELTA_BWD_GATES,
                                  HY_DELTA_BWD_DQKV, HY_DELTA_BWD_DGATES, -1},
                                 HY_DELTA_BWD_DOC_STARTS};
    }
}

/* Rows [row, row + n) of a call as a sequence of their own, without gradients of parameters. */
static inline hy_op_call document_of(const hy_op_call *call, int64_t row, int64_t n) {
    document_places p = document_places_of(call->kind);
    hy_op_call one = *call;
    for (int i = 0; p.rows[i] >= 0; i++) {
        one.t[p.rows[i]] = hy_tensor_rows(&call->t[p.rows[i]], row, n);
    }
    one.t[p.doc_starts] = (hy_tensor){0};
    if (call->kind == HY_OP_CONV_BWD) one.t[HY_CONV_BWD_DWEIGHT] = (hy_tensor){0};
    if (call->kind == HY_OP_DELTA_BWD) {
        one.t[HY_DELTA_BWD_DA_LOG] = one.t[HY_DELTA_BWD_DDT_BIAS] = (hy_tensor){0};
    }
    if (call->kind == HY_OP_DELTA || call->kind == HY_OP_DELTA_BWD) one.attr.delta.batch = 1;
    *call_seq(&one) = (int32_t)n;
    return one;
}

/* Every document of a call gives what it gives as a sequence of its own. */
static inline void check_documents_apart(const hy_op_call *call, double allowed, call_runner run) {
    document_places p = document_places_of(call->kind);
    hy_op_call together = *call, apart = *call;
    const int32_t *starts = call->t[p.doc_starts].data;
    int64_t T = *call_seq(&together), N = hy_tensor_count(&call->t[p.doc_starts]);
    for (int i = 0; p.rows[i] >= 0; i++) {
        if (!(hy_op_access(call->kind, p.rows[i]) & HY_ACCESS_WRITE)) continue;
        together.t[p.rows[i]] = copy_tensor(&call->t[p.rows[i]]);
        apart.t[p.rows[i]] = copy_tensor(&call->t[p.rows[i]]);
    }
    run(&together);
    for (int64_t row = 0, n; row < N; row += n) {
        n = 1;
        while (row + n < N && (row + n) % T != 0 && starts[row + n] != (row + n) % T) n++;
        hy_op_call one = document_of(&apart, row, n);
        run(&one);
    }
    for (int i = 0; p.rows[i] >= 0; i++) {
        int at = p.rows[i];
        if (!(hy_op_access(call->kind, at) & HY_ACCESS_WRITE)) continue;
        check_alike(call, at, &apart.t[at], &together.t[at], allowed);
        free(apart.t[at].data);
        free(together.t[at].data);
    }
}

/* ---- convolution ----------------------------------------------------------------------------- */

typedef struct conv_case {
    int32_t B, T, C, J;
    bool has_doc_starts;
} conv_case;

static const conv_case conv_cases[] = {
    {1, 1, 1, 4, false},   {2, 1, 70, 4, true},    {3, 5, 33, 2, true},   {1, 2, 515, 8, false},
    {2, 150, 40, 4, true}, {1, 700, 257, 4, true}, {5, 61, 300, 3, true}, {1, 9, 24, 8, true},
};
enum { CONV_CASES = sizeof conv_cases / sizeof conv_cases[0] };

static inline trial conv_trial(const conv_case *k, int mixture) {
    trial t = trial_begin(HY_OP_CONV, (uint64_t)(k->T * 10 + mixture));
    int64_t N = (int64_t)k->B * k->T;
    t.call.attr.conv.seq = k->T;
    trial_normal(&t, HY_CONV_X, pick_dtype(mixture, &t.dice), N, k->C, 0.2, 1.5);
    trial_normal(&t, HY_CONV_WEIGHT, pick_dtype(mixture, &t.dice), k->C, k->J, 0.1, 0.7);
    if (k->has_doc_starts) put_documents(&t, HY_CONV_DOC_STARTS, k->B, k->T);
    trial_tensor(&t, HY_CONV_Y, pick_dtype(mixture, &t.dice), N, k->C);
    return t;
}

static inline trial conv_bwd_trial(const conv_case *k, int mixture, bool wants_weight) {
    trial f = conv_trial(k, mixture), t = trial_begin(HY_OP_CONV_BWD, f.dice.seed + 5);
    int64_t N = (int64_t)k->B * k->T;
    t.call.attr = f.call.attr;
    trial_normal(&t, HY_CONV_BWD_DY, pick_dtype(mixture, &t.dice), N, k->C, 0, 1);
    pass_on(&t, HY_CONV_BWD_X, &f, HY_CONV_X);
    pass_on(&t, HY_CONV_BWD_WEIGHT, &f, HY_CONV_WEIGHT);
    pass_on(&t, HY_CONV_BWD_DOC_STARTS, &f, HY_CONV_DOC_STARTS);
    trial_tensor(&t, HY_CONV_BWD_DX, pick_dtype(mixture, &t.dice), N, k->C);
    if (wants_weight) {
        trial_normal(&t, HY_CONV_BWD_DWEIGHT, pick_grad_dtype(mixture, &t.dice), k->C, k->J, 0, 1);
    }
    trial_end(&f);
    return t;
}

/* doc_starts are of no use here. */
static inline trial conv_cached_trial(const conv_case *k, int mixture) {
    trial t = trial_begin(HY_OP_CONV_CACHED, (uint64_t)(k->T * 10 + mixture));
    int64_t N = (int64_t)k->B * k->T;
    t.call.attr.conv.seq = k->T;
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    trial_normal(&t, HY_CONV_CACHED_X, dtype, N, k->C, 0.2, 1.5);
    trial_normal(&t, HY_CONV_CACHED_WEIGHT, pick_dtype(mixture, &t.dice), k->C, k->J, 0.1, 0.7);
    put_states(&t, HY_CONV_CACHED_STATE, HY_CONV_CACHED_FIRST, HY_CONV_CACHED_SLOTS, k->B,
               mixture < PURE_TYPES ? dtype : HY_F32, (const int64_t[]){k->J - 1, k->C, 0});
    trial_tensor(&t, HY_CONV_CACHED_Y, pick_dtype(mixture, &t.dice), N, k->C);
    return t;
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

typedef struct delta_case {
    int32_t B, T, Hk, H, Dk, Dv;
    bool has_doc_starts;
    double gate; /* mean of a: -6: decays near 1, 4: near 0, 0: all of them */
} delta_case;

static const delta_case delta_cases[] = {
    {1, 1, 1, 1, 16, 16, false, 0},   {2, 7, 1, 2, 5, 3, true, 0},
    {1, 65, 2, 2, 64, 32, true, -6},  {3, 33, 2, 4, 24, 40, true, 4},
    {1, 130, 1, 3, 33, 70, true, 0},  {2, 300, 2, 2, 128, 128, false, -6},
    {1, 64, 1, 1, 256, 256, true, 0}, {2, 200, 3, 6, 20, 17, true, -3},
};
enum { DELTA_CASES = sizeof delta_cases / sizeof delta_cases[0] };

static inline int64_t delta_width(const delta_case *k) {
    return 2 * (int64_t)k->Hk * k->Dk + (int64_t)k->H * k->Dv;
}

/* qkv, gates, a_log and dt_bias, from position `at` on. */
static inline void put_delta_inputs(trial *t, int at, const delta_case *k, int mixture) {
    int64_t N = (int64_t)k->B * k->T;
    t->call.attr.delta = (hy_delta_attr){.batch = k->B,
                                         .seq = k->T,
                                         .key_heads = k->Hk,
                                         .heads = k->H,
                                         .key_dim = k->Dk,
                                         .value_dim = k->Dv};
    trial_normal(t, at, pick_dtype(mixture, &t->dice), N, delta_width(k), 0.1, 1);
    trial_tensor(t, at + 1, pick_dtype(mixture, &t->dice), N, 2 * k->H);
    for (int64_t i = 0; i < N * 2 * k->H; i++) {
        bool is_decay = i % (2 * k->H) >= k->H;
        trial_put(t, at + 1, i, (is_decay ? k->gate : 0.5) + 2 * roll_normal(&t->dice));
    }
    trial_normal(t, at + 2, pick_dtype(mixture, &t->dice), 0, k->H, 0, 0.7);
    trial_normal(t, at + 3, pick_dtype(mixture, &t->dice), 0, k->H, 0.3, 0.5);
}

static inline trial delta_trial(const delta_case *k, int mixture) {
    trial t = trial_begin(HY_OP_DELTA, (uint64_t)(k->T * 10 + mixture));
    put_delta_inputs(&t, HY_DELTA_QKV, k, mixture);
    if (k->has_doc_starts) put_documents(&t, HY_DELTA_DOC_STARTS, k->B, k->T);
    trial_tensor(&t, HY_DELTA_OUT, pick_dtype(mixture, &t.dice), (int64_t)k->B * k->T,
                 (int64_t)k->H * k->Dv);
    return t;
}

static inline trial delta_bwd_trial(const delta_case *k, int mixture, bool wants_parameters) {
    trial f = delta_trial(k, mixture), t = trial_begin(HY_OP_DELTA_BWD, f.dice.seed + 5);
    int64_t N = (int64_t)k->B * k->T;
    t.call.attr = f.call.attr;
    trial_normal(&t, HY_DELTA_BWD_DOUT, pick_dtype(mixture, &t.dice), N, (int64_t)k->H * k->Dv, 0,
                 1);
    for (int i = 0; i < 4; i++) pass_on(&t, HY_DELTA_BWD_QKV + i, &f, HY_DELTA_QKV + i);
    pass_on(&t, HY_DELTA_BWD_DOC_STARTS, &f, HY_DELTA_DOC_STARTS);
    trial_tensor(&t, HY_DELTA_BWD_DQKV, pick_dtype(mixture, &t.dice), N, delta_width(k));
    trial_tensor(&t, HY_DELTA_BWD_DGATES, pick_dtype(mixture, &t.dice), N, 2 * k->H);
    for (int i = HY_DELTA_BWD_DA_LOG; wants_parameters && i <= HY_DELTA_BWD_DDT_BIAS; i++) {
        trial_normal(&t, i, pick_grad_dtype(mixture, &t.dice), 0, k->H, 0, 1);
    }
    trial_end(&f);
    return t;
}

static inline trial delta_cached_trial(const delta_case *k, int mixture) {
    trial t = trial_begin(HY_OP_DELTA_CACHED, (uint64_t)(k->T * 10 + mixture));
    put_delta_inputs(&t, HY_DELTA_CACHED_QKV, k, mixture);
    put_states(&t, HY_DELTA_CACHED_STATE, HY_DELTA_CACHED_FIRST, HY_DELTA_CACHED_SLOTS, k->B,
               HY_F32, (const int64_t[]){k->H, k->Dk, k->Dv, 0});
    trial_tensor(&t, HY_DELTA_CACHED_OUT, pick_dtype(mixture, &t.dice), (int64_t)k->B * k->T,
                 (int64_t)k->H * k->Dv);
    return t;
}

/* Sequences that begin at 0 with a cache give what they give without. */
static inline void check_cached_as_whole(const hy_op_call *whole, double allowed, call_runner run) {
    bool is_conv = whole->kind == HY_OP_CONV;
    hy_op_call call = {.kind = is_conv ? HY_OP_CONV_CACHED : HY_OP_DELTA_CACHED,
                       .attr = whole->attr};
    hy_op_call plain = *whole;
    cached_places p = cached_places_of(call.kind);
    int out = is_conv ? HY_CONV_Y : HY_DELTA_OUT;
    int64_t B = hy_tensor_height(&whole->t[out]) / *call_seq(&call);
    const hy_delta_attr *a = &whole->attr.delta;
    for (int i = 0; i < (is_conv ? 2 : 4); i++) call.t[i] = whole->t[i];
    hy_tensor *state = &call.t[p.state];
    *state = is_conv ? (hy_tensor){.ndim = 3,
                                   .dtype = HY_F32,
                                   .shape = {B, hy_tensor_width(&whole->t[HY_CONV_WEIGHT]) - 1,
                                             hy_tensor_width(&whole->t[HY_CONV_X])}}
                     : (hy_tensor){.ndim = 4,
                                   .dtype = HY_F32,
                                   .shape = {B, a->heads, a->key_dim, a->value_dim}};
    state->data = malloc(hy_tensor_bytes(state));
    memset(state->data, 0xff, hy_tensor_bytes(state));
    call.t[p.out] = copy_tensor(&whole->t[out]);
    call.t[p.first] = hy_tensor_1d(calloc((size_t)B, 4), HY_I32, B);
    call.t[p.slots] = hy_tensor_1d(calloc((size_t)B, 4), HY_I32, B);
    for (int64_t b = 0; b < B; b++) ((int32_t *)call.t[p.slots].data)[b] = (int32_t)(B - 1 - b);
    plain.t[is_conv ? HY_CONV_DOC_STARTS : HY_DELTA_DOC_STARTS] = (hy_tensor){0};
    run(&plain);
    run(&call);
    check_alike(&call, p.out, &call.t[p.out], &plain.t[out], allowed);
    free(state->data);
    free(call.t[p.out].data);
    free(call.t[p.first].data);
    free(call.t[p.slots].data);
}

/* ---- gates ----------------------------------------------------------------------------------- */

typedef struct gate_case {
    int64_t N, X;
    int32_t H, D, column, stride;
    bool has_weight;
} gate_case;

static const gate_case gate_cases[] = {
    {1, 1, 1, 1, 0, 1, false},
    {7, 100, 3, 20, 25, 27, false},
    {130, 16 * 128, 16, 128, 0, 128, true},
    {33, 4 * 128 + 64, 4, 64, 64, 128, false},
    {600, 200, 5, 24, 3, 40, true},
    {9, 2048, 2, 1000, 48, 1000, true},
    {1100, 128, 8, 16, 0, 16, true}, /* a warp of a large card has several heads */
};
enum { GATE_CASES = sizeof gate_cases / sizeof gate_cases[0] };

static inline trial gate_trial(const gate_case *k, int mixture) {
    trial t = trial_begin(HY_OP_GATE, (uint64_t)(k->N * 10 + mixture));
    t.call.attr.gate.heads = k->H;
    t.call.attr.gate.head_dim = k->D;
    t.call.attr.gate.column = k->column;
    t.call.attr.gate.stride = k->stride;
    t.call.attr.gate.eps = 1e-6f;
    trial_normal(&t, HY_GATE_X, pick_dtype(mixture, &t.dice), k->N, (int64_t)k->H * k->D, 0.2, 2);
    trial_normal(&t, HY_GATE_GATE, pick_dtype(mixture, &t.dice), k->N, k->X, 0, 2);
    if (k->has_weight) {
        trial_normal(&t, HY_GATE_WEIGHT, pick_dtype(mixture, &t.dice), 0, k->D, 1, 0.3);
        trial_tensor(&t, HY_GATE_RSTD, HY_F32, k->N, k->H);
    }
    trial_tensor(&t, HY_GATE_Y, pick_dtype(mixture, &t.dice), k->N, (int64_t)k->H * k->D);
    return t;
}

/* dgate has numbers before: those that belong to no gate must stay. */
static inline trial gate_bwd_trial(const gate_case *k, int mixture, bool wants_weight) {
    trial f = gate_trial(k, mixture), t = trial_begin(HY_OP_GATE_BWD, f.dice.seed + 5);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, HY_GATE_BWD_DY, pick_dtype(mixture, &t.dice), k->N, (int64_t)k->H * k->D, 0,
                 1);
    pass_on(&t, HY_GATE_BWD_X, &f, HY_GATE_X);
    pass_on(&t, HY_GATE_BWD_GATE, &f, HY_GATE_GATE);
    pass_on(&t, HY_GATE_BWD_WEIGHT, &f, HY_GATE_WEIGHT);
    pass_on(&t, HY_GATE_BWD_RSTD, &f, HY_GATE_RSTD);
    trial_tensor(&t, HY_GATE_BWD_DX, pick_dtype(mixture, &t.dice), k->N, (int64_t)k->H * k->D);
    trial_normal(&t, HY_GATE_BWD_DGATE, pick_dtype(mixture, &t.dice), k->N, k->X, 0, 1);
    if (k->has_weight && wants_weight) {
        trial_normal(&t, HY_GATE_BWD_DWEIGHT, pick_grad_dtype(mixture, &t.dice), 0, k->D, 0, 1);
    }
    trial_end(&f);
    return t;
}

/* dx may be dy. */
static inline void check_gate_in_place(const gate_case *k, int mixture, call_runner run) {
    trial t = gate_bwd_trial(k, mixture, true);
    hy_op_call same = t.call;
    hy_tensor dy = copy_tensor(&t.call.t[HY_GATE_BWD_DY]);
    hy_tensor dx = t.call.t[HY_GATE_BWD_DX];
    t.call.t[HY_GATE_BWD_DX] = dx = (hy_tensor){
        realloc(dx.data, hy_tensor_bytes(&dy)), {dy.shape[0], dy.shape[1]}, 2, dy.dtype, {0}};
    same.t[HY_GATE_BWD_DY] = same.t[HY_GATE_BWD_DX] = dy;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(dy.data, dx.data, hy_tensor_bytes(&dy));
    free(dy.data);
    trial_end(&t);
}

/* ---- head norm with gates -------------------------------------------------------------------- */

typedef struct gated_norm_case {
    int64_t N;
    int32_t H, K, D;
} gated_norm_case;

static const gated_norm_case gated_norm_cases[] = {
    {1, 1, 1, 16}, {7, 4, 2, 40}, {131, 6, 1, 64}, {19, 3, 3, 256}};
enum { GATED_NORM_CASES = sizeof gated_norm_cases / sizeof gated_norm_cases[0] };

static inline trial gated_norm_trial(const gated_norm_case *k, int mixture) {
    trial t = trial_begin(HY_OP_HEAD_NORM, (uint64_t)(k->N * 10 + mixture));
    int64_t P = (int64_t)(k->H + 2 * k->K) * k->D;
    t.call.attr.heads.batch = 1;
    t.call.attr.heads.seq = (int32_t)k->N;
    t.call.attr.heads.heads = k->H;
    t.call.attr.heads.kv_heads = k->K;
    t.call.attr.heads.head_dim = k->D;
    t.call.attr.heads.eps = 1e-6f;
    t.call.attr.heads.norm_offset = 1;
    t.call.attr.heads.has_gates = true;
    trial_normal(&t, HY_HEAD_NORM_QKV, pick_dtype(mixture, &t.dice), k->N, P + (int64_t)k->H * k->D,
                 0.2, 2);
    trial_normal(&t, HY_HEAD_NORM_WQ, pick_dtype(mixture, &t.dice), 0, k->D, 0, 0.3);
    trial_normal(&t, HY_HEAD_NORM_WK, pick_dtype(mixture, &t.dice), 0, k->D, 0, 0.3);
    trial_tensor(&t, HY_HEAD_NORM_OUT, pick_dtype(mixture, &t.dice), k->N, P);
    trial_tensor(&t, HY_HEAD_NORM_RSTD, HY_F32, k->N, k->H + k->K);
    return t;
}

/* dqkv has numbers before: those of gates must stay. */
static inline trial gated_norm_bwd_trial(const gated_norm_case *k, int mixture) {
    trial f = gated_norm_trial(k, mixture), t = trial_begin(HY_OP_HEAD_NORM_BWD, f.dice.seed + 5);
    int64_t P = (int64_t)(k->H + 2 * k->K) * k->D;
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, HY_HEAD_NORM_BWD_DOUT, pick_dtype(mixture, &t.dice), k->N, P, 0, 1);
    for (int i = 0; i < 3; i++) pass_on(&t, HY_HEAD_NORM_BWD_QKV + i, &f, HY_HEAD_NORM_QKV + i);
    pass_on(&t, HY_HEAD_NORM_BWD_RSTD, &f, HY_HEAD_NORM_RSTD);
    trial_normal(&t, HY_HEAD_NORM_BWD_DQKV, pick_dtype(mixture, &t.dice), k->N,
                 P + (int64_t)k->H * k->D, 0, 1);
    for (int i = HY_HEAD_NORM_BWD_DWQ; i <= HY_HEAD_NORM_BWD_DWK; i++) {
        trial_normal(&t, i, pick_grad_dtype(mixture, &t.dice), 0, k->D, 0, 1);
    }
    trial_end(&f);
    return t;
}

#endif
