/* delta_bwd.c: backward of the gated delta rule.
 *
 * A task is a key head of a sequence, with all value heads that use it. It walks the tokens once
 * forward and keeps the state before each chunk; then chunks backward: the states inside a chunk are
 * computed again, with the same bits, and the tokens are walked backward with the gradient G of the
 * state. With S' = decay S, e = v - S' k and u = strength e, a token S'' = S' + k u', out = S''' q
 * gives
 *     G += q dout'   dq = S'' dout   du = G' k   dv = strength du   dstrength = du e
 *     dk = G u - S' dv   G -= k dv'   d(log decay) = <G, S'>   G = decay G
 * There are at most CHUNKS chunks, so the states that are kept do not grow with long sequences. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/delta.h"

enum { WIDTH = HY_DELTA_BACK_COLS, CHUNK = 32, CHUNKS = 128 };

static hy_delta delta_of(const hy_op_call *call) {
    hy_delta d = hy_delta_of(call, HY_DELTA_BWD_QKV);
    d.doc_starts = call->t[HY_DELTA_BWD_DOC_STARTS].data;
    return d;
}

/* Tokens of a chunk. */
static int64_t chunk_of(const hy_delta *d) {
    return hy_min64(d->T, hy_max64(CHUNK, hy_ceil_div(d->T, CHUNKS)));
}

static int64_t blocks_of(const hy_delta *d) { return hy_ceil_div(d->Dv, WIDTH); }
static int64_t size_of(const hy_delta *d) { return WIDTH * d->rows; }

/* ---- a chunk --------------------------------------------------------------------------------- */

typedef struct scratch {
    hy_delta_tokens tokens;
    float *v, *dout, *dv;    /* (chunk, WIDTH): a block of columns */
    float *error;            /* (chunk, WIDTH) */
    float *dq, *dk;          /* (chunk, rows) */
    float *dstrength, *dlog; /* (chunk) */
    float *zeros;            /* (WIDTH, rows): the state before a document */
    float *inside;           /* (chunk, WIDTH, rows): states after each token of a block */
    float *gradient;         /* (group, blocks, WIDTH, rows): of the states */
    float *starts;           /* (chunks, group, blocks, WIDTH, rows): states before chunks */
} scratch;

static scratch take_scratch(const hy_delta *d, hy_cpu_workspace *workspace) {
    int64_t chunk = chunk_of(d);
    size_t floats = (size_t)chunk * sizeof(float), block = (size_t)size_of(d) * sizeof(float);
    size_t states = block * (size_t)(d->group * blocks_of(d));
    return (scratch){
        .tokens = hy_delta_take_tokens(d, chunk, workspace),
        .v = hy_cpu_take(workspace, floats * WIDTH),
        .dout = hy_cpu_take(workspace, floats * WIDTH),
        .error = hy_cpu_take(workspace, floats * WIDTH),
        .dv = hy_cpu_take(workspace, floats * WIDTH),
        .dq = hy_cpu_take(workspace, floats * (size_t)d->rows),
        .dk = hy_cpu_take(workspace, floats * (size_t)d->rows),
        .dstrength = hy_cpu_take(workspace, floats),
        .dlog = hy_cpu_take(workspace, floats),
        .zeros = hy_cpu_take(workspace, block),
        .inside = hy_cpu_take(workspace, block * (size_t)chunk),
        .gradient = hy_cpu_take(workspace, states),
        .starts = hy_cpu_take(workspace, states * (size_t)hy_ceil_div(d->T, chunk)),
    };
}

/* A chunk of a task: rows [row, row + n) of the call. */
typedef struct chunk {
    const hy_op_call *call;
    const hy_delta *d;
    const scratch *s;
    const hy_delta_steps *steps;
    int64_t row, n, key_head;
} chunk;

static void clear(float *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

static void read_values(const chunk *c, int64_t head, int64_t block) {
    hy_delta_block at = hy_delta_block_at(c->d, hy_delta_values(c->d), head, block, WIDTH);
    hy_delta_read_block(c->d->qkv, at, c->row, c->n, c->s->v);
}

static hy_delta_token token_at(const chunk *c, int64_t i) {
    return hy_delta_token_at(c->d, &c->s->tokens, i, c->s->v + i * WIDTH);
}

/* The state before token i of the chunk, which is `earlier` or the start of a document. */
static const float *state_before(const chunk *c, int64_t i, const float *earlier) {
    return hy_delta_begins(c->d, c->row + i) ? c->s->zeros : earlier;
}

/* Takes the states of all value heads through the chunk. */
static void walk_forward(const chunk *c, const float *from, float *to) {
    const hy_delta *d = c->d;
    int64_t size = size_of(d);
    hy_delta_read_keys(d, c->row, c->n, c->key_head, &c->s->tokens);
    for (int64_t i = 0; i < d->group * blocks_of(d); i++, from += size, to += size) {
        int64_t head = c->key_head * d->group + i / blocks_of(d), block = i % blocks_of(d);
        if (block == 0) hy_delta_read_gates(d, c->row, c->n, head, &c->s->tokens);
        read_values(c, head, block);
        for (int64_t k = 0; k < c->n; k++) {
            hy_delta_token token = token_at(c, k);
            const float *before = state_before(c, k, k > 0 ? to : from);
            c->steps->advance(&token, d->rows, before, to, c->s->error);
        }
    }
}

/* The state before token i in one block of columns, when the states inside are known. */
static const float *state_inside(const chunk *c, int64_t i, const float *start) {
    return state_before(c, i, i > 0 ? c->s->inside + (i - 1) * size_of(c->d) : start);
}

/* Computes the states inside the chunk for one block of columns. */
static void walk_inside(const chunk *c, const float *start) {
    for (int64_t i = 0; i < c->n; i++) {
        hy_delta_token token = token_at(c, i);
        c->steps->advance(&token, c->d->rows, state_inside(c, i, start),
                          c->s->inside + i * size_of(c->d), c->s->error + i * WIDTH);
    }
}

/* Walks one block of columns back through the chunk. */
static void walk_back(const chunk *c, const float *start, float *gradient) {
    const scratch *s = c->s;
    int64_t rows = c->d->rows, size = size_of(c->d);
    for (int64_t i = c->n - 1; i >= 0; i--) {
        hy_delta_back back = {.token = token_at(c, i),
                              .before = state_inside(c, i, start),
                              .after = s->inside + i * size,
                              .error = s->error + i * WIDTH,
                              .dout = s->dout + i * WIDTH,
                              .gradient = gradient,
                              .dq = s->dq + i * rows,
                              .dk = s->dk + i * rows,
                              .dv = s->dv + i * WIDTH};
        c->steps->back(&back, rows);
        s->dstrength[i] += back.dstrength;
        s->dlog[i] += back.dlog;
        if (hy_delta_begins(c->d, c->row + i)) clear(gradient, size);
    }
}

/* Writes the gradients of gates, and adds those of a_log and dt_bias to the sums of the sequence:
 * (2, H) each. */
static void write_gates(const chunk *c, int64_t head) {
    const hy_delta *d = c->d;
    const scratch *s = c->s;
    const hy_tensor *dgates = &c->call->t[HY_DELTA_BWD_DGATES];
    double *sums = (double *)c->call->workspace.data + c->row / d->T * 2 * d->H + head;
    for (int64_t i = c->n - 1; i >= 0; i--) {
        int64_t at = 2 * (c->row + i) * d->H + head;
        hy_decay decay = hy_delta_decay(d, c->row + i, head);
        float strength = s->tokens.strength[i];
        float db = s->dstrength[i] * strength * (1 - strength);
        float da = -s->dlog[i] * decay.rate / (1 + expf(-decay.x));
        hy_cpu_narrow(dgates->dtype, &db, hy_element(dgates, at), 1);
        hy_cpu_narrow(dgates->dtype, &da, hy_element(dgates, at + d->H), 1);
        sums[0] += (double)s->dlog[i] * (double)decay.log;
        sums[d->H] += (double)da;
    }
}

/* The gradient of x, of which `unit` = x inverse scale was used, from that of unit. */
HY_CLONES static void unit_gradient(const float *unit, const float *dunit, float inverse,
                                    float scale, float *dx, int64_t n) {
    float dot = 0;
    HY_SIMD_SUM(dot)
    for (int64_t i = 0; i < n; i++) dot += unit[i] * dunit[i];
    float along = dot / scale;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dx[i] = inverse * (dunit[i] * scale - unit[i] * along);
}

static void write_keys(const chunk *c) {
    const hy_delta *d = c->d;
    const scratch *s = c->s;
    const hy_delta_tokens *t = &s->tokens;
    const hy_tensor *dqkv = &c->call->t[HY_DELTA_BWD_DQKV];
    int64_t width = hy_tensor_width(dqkv), keys = d->Hk * d->Dk;
    float buffer[HY_DELTA_DIM_MAX];
    for (int64_t i = 0, n = 0; i < c->n; i++, n += d->rows) {
        int64_t at = (c->row + i) * width + c->key_head * d->Dk;
        float *dq = hy_target(dqkv, at, buffer);
        unit_gradient(t->q + n, s->dq + n, t->q_inverse[i], d->scale, dq, d->Dk);
        hy_write(dqkv, at, d->Dk, dq);
        float *dk = hy_target(dqkv, at + keys, buffer);
        unit_gradient(t->k + n, s->dk + n, t->k_inverse[i], 1, dk, d->Dk);
        hy_write(dqkv, at + keys, d->Dk, dk);
    }
}

/* `starts`: the states of all value heads before the chunk. */
static void chunk_back(const chunk *c, const float *starts) {
    const hy_delta *d = c->d;
    const scratch *s = c->s;
    const hy_tensor *t = c->call->t;
    float *gradient = s->gradient;
    clear(s->dq, c->n * d->rows);
    clear(s->dk, c->n * d->rows);
    hy_delta_read_keys(d, c->row, c->n, c->key_head, &s->tokens);
    for (int64_t head = c->key_head * d->group; head < (c->key_head + 1) * d->group; head++) {
        clear(s->dstrength, c->n);
        clear(s->dlog, c->n);
        hy_delta_read_gates(d, c->row, c->n, head, &s->tokens);
        for (int64_t b = 0; b < blocks_of(d); b++, starts += size_of(d), gradient += size_of(d)) {
            read_values(c, head, b);
            hy_delta_read_block(&t[HY_DELTA_BWD_DOUT], hy_delta_block_at(d, 0, head, b, WIDTH),
                                c->row, c->n, s->dout);
            walk_inside(c, starts);
            walk_back(c, starts, gradient);
            hy_delta_write_block(&t[HY_DELTA_BWD_DQKV],
                                 hy_delta_block_at(d, hy_delta_values(d), head, b, WIDTH), c->row,
                                 c->n, s->dv);
        }
        write_gates(c, head);
    }
    write_keys(c);
}

/* ---- the op ---------------------------------------------------------------------------------- */

static size_t share_of(const hy_delta *d) {
    hy_cpu_workspace workspace = {0};
    take_scratch(d, &workspace);
    return workspace.used;
}

/* Sums of a_log and dt_bias for each sequence, then the scratch of workers. */
static size_t sums_bytes(const hy_delta *d) {
    return hy_cpu_aligned((size_t)(d->B * 2 * d->H) * sizeof(double));
}

size_t hy_cpu_delta_bwd_workspace(const hy_op_call *call, int threads) {
    hy_delta d = delta_of(call);
    return sums_bytes(&d) + share_of(&d) * (size_t)hy_min64(threads, d.B * d.Hk);
}

static void delta_bwd_task(const hy_cpu_run *run, int64_t task, int worker) {
    hy_delta d = delta_of(run->call);
    /* with few tasks, helpers that get none have no scratch */
    int64_t share = d.B * d.Hk < run->threads ? task : worker;
    hy_cpu_workspace workspace = {.base = (char *)run->call->workspace.data + sums_bytes(&d) +
                                          share_of(&d) * (size_t)share};
    scratch s = take_scratch(&d, &workspace);
    int64_t states = d.group * blocks_of(&d) * size_of(&d), length = chunk_of(&d);
    int64_t chunks = hy_ceil_div(d.T, length), first = task / d.Hk * d.T;
    chunk c = {.call = run->call,
               .d = &d,
               .s = &s,
               .steps = hy_delta_steps_get(),
               .key_head = task % d.Hk};
    clear(s.zeros, size_of(&d));
    for (int64_t i = 0; i + 1 < chunks; i++) {
        c.row = first + i * length;
        c.n = hy_min64(length, d.T - i * length);
        walk_forward(&c, s.starts + i * states, s.starts + (i + 1) * states);
    }
    clear(s.gradient, states);
    for (int64_t i = chunks - 1; i >= 0; i--) {
        c.row = first + i * length;
        c.n = hy_min64(length, d.T - i * length);
        chunk_back(&c, s.starts + i * states);
    }
}

hy_status hy_cpu_delta_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *da_log = &call->t[HY_DELTA_BWD_DA_LOG],
                    *ddt_bias = &call->t[HY_DELTA_BWD_DDT_BIAS];
    hy_delta d = delta_of(call);
    double *sums = call->workspace.data;
    HY_TRY(hy_check_doc_starts(call, d.doc_starts, d.B * d.T, d.T));
    memset(sums, 0, sums_bytes(&d));
    hy_cpu_for_each(run, d.B * d.Hk, delta_bwd_task);
    bool adds = call->attr.accumulate;
    if (da_log->data) hy_cpu_fold_columns(sums, d.B, 2 * d.H, da_log, adds);
    if (ddt_bias->data) hy_cpu_fold_columns(sums + d.H, d.B, 2 * d.H, ddt_bias, adds);
    return HY_OK;
}
