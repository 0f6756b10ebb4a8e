/* delta.c: the gated delta rule, forward and for new tokens of sequences with states.
 *
 * A task is a value head of a sequence. It reads a tile of tokens once and takes each block of
 * columns of its state through them. */
#include "kernels/cpu/delta.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vector_math.h"

enum { WIDTH = HY_DELTA_COLS, TILE = 32 };

/* ---- layout and tokens ----------------------------------------------------------------------- */

hy_delta hy_delta_of(const hy_op_call *call, int qkv) {
    const hy_delta_attr *a = &call->attr.delta;
    return (hy_delta){.B = a->batch,
                      .T = a->seq,
                      .Hk = a->key_heads,
                      .H = a->heads,
                      .Dk = a->key_dim,
                      .Dv = a->value_dim,
                      .rows = hy_ceil_div(a->key_dim, HY_DELTA_ROWS) * HY_DELTA_ROWS,
                      .group = a->heads / a->key_heads,
                      .scale = 1.0f / sqrtf((float)a->key_dim),
                      .qkv = &call->t[qkv],
                      .gates = &call->t[qkv + 1],
                      .a_log = &call->t[qkv + 2],
                      .dt_bias = &call->t[qkv + 3]};
}

hy_delta_tokens hy_delta_take_tokens(const hy_delta *d, int64_t n, hy_cpu_workspace *workspace) {
    size_t floats = (size_t)n * sizeof(float), rows = (size_t)d->rows;
    return (hy_delta_tokens){
        .q = hy_cpu_take(workspace, floats * rows),
        .k = hy_cpu_take(workspace, floats * rows),
        .q_inverse = hy_cpu_take(workspace, floats),
        .k_inverse = hy_cpu_take(workspace, floats),
        .decay = hy_cpu_take(workspace, floats),
        .change = hy_cpu_take(workspace, floats),
        .strength = hy_cpu_take(workspace, floats),
    };
}

/* A row of the tile: x / |x| scale, padded with zeros; returns 1 / |x|. */
static float read_unit(const hy_delta *d, int64_t at, float scale, float *out) {
    float buffer[HY_DELTA_DIM_MAX];
    const float *x = hy_read(d->qkv, at, d->Dk, buffer);
    float inverse = 1.0f / sqrtf(hy_cpu_square_sum(x, d->Dk) + HY_DELTA_EPS);
    for (int64_t i = 0; i < d->Dk; i++) out[i] = x[i] * inverse * scale;
    for (int64_t i = d->Dk; i < d->rows; i++) out[i] = 0;
    return inverse;
}

void hy_delta_read_keys(const hy_delta *d, int64_t row, int64_t n, int64_t key_head,
                        const hy_delta_tokens *t) {
    int64_t width = hy_tensor_width(d->qkv);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (row + i) * width + key_head * d->Dk;
        t->q_inverse[i] = read_unit(d, at, d->scale, t->q + i * d->rows);
        t->k_inverse[i] = read_unit(d, at + d->Hk * d->Dk, 1, t->k + i * d->rows);
    }
}

static float element(const hy_tensor *t, int64_t at) {
    float buffer;
    return *hy_read(t, at, 1, &buffer);
}

hy_decay hy_delta_decay(const hy_delta *d, int64_t row, int64_t head) {
    hy_decay decay = {.rate = expf(element(d->a_log, head))};
    decay.x = element(d->gates, (2 * row + 1) * d->H + head) + element(d->dt_bias, head);
    decay.log = -decay.rate * (fmaxf(decay.x, 0) + log1pf(expf(-fabsf(decay.x))));
    return decay;
}

void hy_delta_read_gates(const hy_delta *d, int64_t row, int64_t n, int64_t head,
                         const hy_delta_tokens *t) {
    for (int64_t i = 0; i < n; i++) {
        float log = hy_delta_decay(d, row + i, head).log;
        t->decay[i] = expf(log);
        t->change[i] = expm1f(log);
        t->strength[i] = hy_sigmoid(element(d->gates, 2 * (row + i) * d->H + head));
    }
}

void hy_delta_read_block(const hy_tensor *of, hy_delta_block block, int64_t row, int64_t n,
                         float *values) {
    int64_t width = hy_tensor_width(of);
    float buffer[WIDTH];
    for (int64_t i = 0; i < n; i++, values += block.width) {
        const float *x = hy_read(of, (row + i) * width + block.at, block.cols, buffer);
        memcpy(values, x, (size_t)block.cols * sizeof *x);
        memset(values + block.cols, 0, (size_t)(block.width - block.cols) * sizeof *x);
    }
}

void hy_delta_write_block(const hy_tensor *of, hy_delta_block block, int64_t row, int64_t n,
                          const float *values) {
    int64_t width = hy_tensor_width(of);
    for (int64_t i = 0; i < n; i++, values += block.width) {
        void *to = hy_element(of, (row + i) * width + block.at);
        hy_cpu_narrow(of->dtype, values, to, block.cols);
    }
}

/* ---- a head ---------------------------------------------------------------------------------- */

static int64_t blocks_of(const hy_delta *d) { return hy_ceil_div(d->Dv, WIDTH); }

/* What a task needs besides the tensors. */
typedef struct scratch {
    hy_delta_tokens tokens;
    float *v;     /* (TILE, WIDTH) */
    float *state; /* (blocks, rows, WIDTH) */
} scratch;

static size_t state_bytes(const hy_delta *d) {
    return (size_t)(blocks_of(d) * d->rows * WIDTH) * sizeof(float);
}

static scratch take_scratch(const hy_delta *d, hy_cpu_workspace *workspace) {
    int64_t tile = hy_min64(TILE, d->T);
    return (scratch){.tokens = hy_delta_take_tokens(d, tile, workspace),
                     .v = hy_cpu_take(workspace, (size_t)tile * WIDTH * sizeof(float)),
                     .state = hy_cpu_take(workspace, state_bytes(d))};
}

static size_t workspace_of(const hy_delta *d, int threads) {
    hy_cpu_workspace workspace = {0};
    take_scratch(d, &workspace);
    return workspace.used * (size_t)threads;
}

static scratch scratch_of(const hy_op_call *call, const hy_delta *d, int worker) {
    size_t share = workspace_of(d, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    return take_scratch(d, &workspace);
}

/* Takes the state of head `head` through the T tokens from row `row` on. With resets, documents
 * begin with a state of zeros. */
static void walk(const hy_delta *d, const scratch *s, const hy_tensor *out, int64_t row,
                 int64_t head, bool resets) {
    const hy_delta_steps *steps = hy_delta_steps_get();
    int64_t size = d->rows * WIDTH, end = row + d->T;
    for (int64_t n; row < end; row += n) {
        n = hy_min64(TILE, end - row);
        hy_delta_read_keys(d, row, n, head / d->group, &s->tokens);
        hy_delta_read_gates(d, row, n, head, &s->tokens);
        for (int64_t b = 0; b < blocks_of(d); b++) {
            float *state = s->state + b * size;
            hy_delta_read_block(d->qkv, hy_delta_block_at(d, hy_delta_values(d), head, b, WIDTH),
                                row, n, s->v);
            for (int64_t i = 0; i < n; i++) {
                hy_delta_token token = hy_delta_token_at(d, &s->tokens, i, s->v + i * WIDTH);
                if (resets && hy_delta_begins(d, row + i)) {
                    memset(state, 0, (size_t)size * sizeof *state);
                }
                steps->forward(&token, d->rows, state, s->v + i * WIDTH);
            }
            hy_delta_write_block(out, hy_delta_block_at(d, 0, head, b, WIDTH), row, n, s->v);
        }
    }
}

/* ---- whole sequences ------------------------------------------------------------------------- */

static hy_delta delta_of(const hy_op_call *call) {
    hy_delta d = hy_delta_of(call, HY_DELTA_QKV);
    d.doc_starts = call->t[HY_DELTA_DOC_STARTS].data;
    return d;
}

size_t hy_cpu_delta_workspace(const hy_op_call *call, int threads) {
    hy_delta d = delta_of(call);
    return workspace_of(&d, threads);
}

static void delta_task(const hy_cpu_run *run, int64_t task, int worker) {
    hy_delta d = delta_of(run->call);
    scratch s = scratch_of(run->call, &d, worker);
    walk(&d, &s, &run->call->t[HY_DELTA_OUT], task / d.H * d.T, task % d.H, true);
}

hy_status hy_cpu_delta(const hy_cpu_run *run) {
    hy_delta d = delta_of(run->call);
    HY_TRY(hy_check_doc_starts(run->call, d.doc_starts, d.B * d.T, d.T));
    hy_cpu_for_each(run, d.B * d.H, delta_task);
    return HY_OK;
}

/* ---- sequences with states ------------------------------------------------------------------- */

size_t hy_cpu_delta_cached_workspace(const hy_op_call *call, int threads) {
    hy_delta d = hy_delta_of(call, HY_DELTA_CACHED_QKV);
    return workspace_of(&d, threads);
}

/* Copies the state (Dk, Dv) of a head to blocks, or back. */
static void load_state(const hy_delta *d, const float *from, float *blocks) {
    memset(blocks, 0, state_bytes(d));
    for (int64_t b = 0; b < blocks_of(d); b++, blocks += d->rows * WIDTH) {
        hy_delta_block of = hy_delta_block_at(d, 0, 0, b, WIDTH);
        for (int64_t r = 0; r < d->Dk; r++) {
            memcpy(blocks + r * WIDTH, from + r * d->Dv + of.at, (size_t)of.cols * sizeof *from);
        }
    }
}

static void store_state(const hy_delta *d, const float *blocks, float *to) {
    for (int64_t b = 0; b < blocks_of(d); b++, blocks += d->rows * WIDTH) {
        hy_delta_block of = hy_delta_block_at(d, 0, 0, b, WIDTH);
        for (int64_t r = 0; r < d->Dk; r++) {
            memcpy(to + r * d->Dv + of.at, blocks + r * WIDTH, (size_t)of.cols * sizeof *to);
        }
    }
}

static void cached_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_tensor *t = run->call->t;
    hy_delta d = hy_delta_of(run->call, HY_DELTA_CACHED_QKV);
    int64_t b = task / d.H, head = task % d.H;
    int32_t first = ((const int32_t *)t[HY_DELTA_CACHED_FIRST].data)[b];
    int32_t slot = ((const int32_t *)t[HY_DELTA_CACHED_SLOTS].data)[b];
    if (first < 0) return;
    scratch s = scratch_of(run->call, &d, worker);
    float *state =
        (float *)t[HY_DELTA_CACHED_STATE].data + ((int64_t)slot * d.H + head) * d.Dk * d.Dv;
    if (first == 0) {
        memset(s.state, 0, state_bytes(&d));
    } else {
        load_state(&d, state, s.state);
    }
    walk(&d, &s, &t[HY_DELTA_CACHED_OUT], b * d.T, head, false);
    store_state(&d, s.state, state);
}

hy_status hy_cpu_delta_cached(const hy_cpu_run *run) {
    const hy_tensor *t = run->call->t;
    HY_TRY(hy_check_slots(run->call, &t[HY_DELTA_CACHED_FIRST], &t[HY_DELTA_CACHED_SLOTS],
                          t[HY_DELTA_CACHED_STATE].shape[0]));
    hy_cpu_for_each(run, hy_tensor_count(&t[HY_DELTA_CACHED_FIRST]) * run->call->attr.delta.heads,
                    cached_task);
    return HY_OK;
}
