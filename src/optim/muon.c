/* muon.c: Muon (Jordan et al. 2024): matrices move along the orthogonal factor of their momentum.
 *
 * The momentum (Nesterov's by default) is scaled to norm one. A few Newton-Schulz steps then bring
 * it near the closest orthogonal matrix: x becomes a x + b (x x^T) x + c (x x^T)^2 x, which moves
 * every singular value towards 1 (roughly: these coefficients are chosen for speed). A packed
 * matrix is treated as separate pieces; a tall matrix is transposed, so that x x^T is as small as
 * possible. Updates are scaled to the size of AdamW's, an rms of 0.2: times 0.2 sqrt(larger
 * side), after Liu et al. 2025, so learning rates and decay carry over between widths.
 *
 * Every coefficient is a factor of a matmul: with x = s y,
 *     p = s^2 y y^T,   q = p + (c/b) p p,   y' = y + (b/a) q y,   s' = a s
 * is the same step with three matmuls and nothing else. s is known beforehand and becomes part of
 * the update's length. Only the last op changes state, so an update that fails half-way can be
 * repeated.
 *
 * Momentum rises over the first updates (as in the NanoGPT speedruns), because early gradients are
 * outdated sooner.
 *
 * Small matrices do not fill a GPU, so all matrices of one shape in a window (consecutive
 * parameters updated together) are multiplied together. The algorithm is chosen for a batch size
 * that depends only on the shape, so the bits of a matrix do not depend on the other matrices, nor
 * on what stays in memory.
 *
 * AdamW updates convolutions, token embeddings, heads, and everything that is not a matrix. */
#include <math.h>

#include "base/error.h"
#include "optim/optimizer.h"

#define NS_A 3.4445
#define NS_B -4.7750
#define NS_C 2.0315
#define SCALE 0.2 /* root mean square of AdamW's updates */
#define EPS 1e-7
#define RISE 0.1 /* the momentum starts this much lower */

/* ---- the matrices of a parameter ------------------------------------------------------------- */

static const hy_optimizer_kind *delegate(const hy_optimizer *o, const hy_param *param) {
    (void)o;
    bool is_whole = param->ndim == 2 && param->part == 0 && param->shape[0] > 1;
    bool is_its_own = is_whole && param->is_hidden && param->shape[1] > 1;
    return hy_optimizer_kind_of(is_its_own ? HY_MUON : HY_ADAMW);
}

/* One matrix of a parameter. */
typedef struct piece {
    int64_t first, rows, cols; /* first element */
    int64_t side;              /* side of the squares */
} piece;

static piece piece_of(const hy_param *param, int index) {
    piece p = {.rows = hy_param_piece_rows(param, index), .cols = hy_param_width(param)};
    for (int i = 0; i < index; i++) p.first += hy_param_piece_rows(param, i) * p.cols;
    p.side = p.rows < p.cols ? p.rows : p.cols;
    return p;
}

/* ---- a window: consecutive parameters that are updated together ------------------------------ */

/* Matrices of one shape, one after another. */
typedef struct group {
    int64_t first; /* first element in the window */
    int64_t rows, cols, side;
    int32_t count;
} group;

#define GROUPS_MAX (HY_WINDOW_PARAMS * HY_PARAM_PIECES)

/* The layout of the workspace: the matrices of a window, and the buffers after them. `first` and
 * groups count elements, all other positions are bytes. */
typedef struct plan {
    /* of each parameter: its first element; its pieces follow in order */
    int64_t first[HY_WINDOW_PARAMS];
    group groups[GROUPS_MAX];
    int group_count;
    /* Newton-Schulz steps alternate between two buffers: the window's own, which comes first, and
     * the one at `turns`. */
    uint64_t turns, square, next_square, ops; /* square: p, followed by q */
} plan;

/* The number of matrices multiplied at a time, for which an algorithm is chosen: enough to fill a
 * card. Another number would give other bits. */
static int32_t batch_most(int64_t elements) {
    int64_t most = ((int64_t)32 << 20) / elements;
    return most < 1 ? 1 : most > 32 ? 32 : (int32_t)most;
}

/* Whether all pieces of a parameter have the same shape. */
static bool is_even(const hy_param *param) {
    for (int i = 1; i < hy_param_pieces(param); i++) {
        if (piece_of(param, i).rows != piece_of(param, 0).rows) return false;
    }
    return true;
}

static bool fits(const group *g, piece p) { return g->rows == p.rows && g->cols == p.cols; }

static void add_piece(plan *out, piece p, int64_t first, bool may_join) {
    group *last = may_join ? &out->groups[out->group_count - 1] : NULL;
    if (last && fits(last, p) && last->count < batch_most(p.rows * p.cols)) {
        last->count++;
        return;
    }
    out->groups[out->group_count++] =
        (group){.first = first, .rows = p.rows, .cols = p.cols, .side = p.side, .count = 1};
}

/* Appends the pieces of a parameter; the first begins a new group if its shape differs. */
static int64_t add_param(plan *out, const hy_param *param, int64_t first, bool may_join) {
    for (int i = 0; i < hy_param_pieces(param); i++) {
        piece p = piece_of(param, i);
        add_piece(out, p, first + p.first, may_join || i > 0);
    }
    return first + param->count;
}

/* Groups begin at aligned addresses, because the algorithm of a matmul depends on the alignment. */
#define ROUND 256

/* Parameters with equal pieces are adjacent; a parameter with different pieces has its own groups.
 * Returns the number of elements. */
static int64_t lay_out(plan *out, const hy_param *const *params, int count) {
    bool is_placed[HY_WINDOW_PARAMS] = {false};
    int64_t elements = 0;
    out->group_count = 0;
    for (int i = 0; i < count; i++) {
        piece own = piece_of(params[i], 0);
        if (!is_placed[i]) elements = (elements + ROUND - 1) / ROUND * ROUND;
        for (int k = i; k < count; k++) {
            bool is_alike =
                is_even(params[i]) && is_even(params[k]) &&
                fits(&(group){.rows = own.rows, .cols = own.cols}, piece_of(params[k], 0));
            if (is_placed[k] || (k > i && !is_alike)) continue;
            out->first[k] = elements;
            elements = add_param(out, params[k], elements, k > i);
            is_placed[k] = true;
        }
    }
    return elements;
}

/* The bytes of `elements`. */
static uint64_t bytes_of(const hy_optimizer *o, int64_t elements) {
    return hy_align(hy_dtype_bytes(o->matrix_dtype, elements));
}

static plan plan_of(const hy_optimizer *o, const hy_param *const *params, int count) {
    plan p;
    uint64_t most = 0, square = 0;
    int64_t elements = lay_out(&p, params, count);
    for (int i = 0; i < p.group_count; i++) {
        const group *g = &p.groups[i];
        uint64_t all = bytes_of(o, g->count * g->rows * g->cols);
        uint64_t sides = bytes_of(o, g->count * g->side * g->side);
        if (all > most) most = all;
        if (sides > square) square = sides;
    }
    p.turns = bytes_of(o, elements);
    p.square = p.turns + most;
    p.next_square = p.square + square;
    p.ops = p.next_square + square;
    return p;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* The matrices of a group as one tensor. */
static hy_tensor matrices_at(const hy_optimizer *o, void *data, const group *g) {
    return hy_tensor_2d(data, o->matrix_dtype, g->count * g->rows, g->cols);
}

/* Their products x x^T, or polynomials of these. */
static hy_tensor squares_at(const hy_optimizer *o, void *data, const group *g) {
    return hy_tensor_2d(data, o->matrix_dtype, g->count * g->side, g->side);
}

/* d = alpha op(a) op(b) + c, for each matrix of the group. */
static hy_op_call product(const group *g, hy_tensor a, hy_tensor b, hy_tensor c, hy_tensor d,
                          double alpha) {
    hy_op_call call = {.kind = HY_OP_MATMUL,
                       .attr.matmul = {.alpha = (float)alpha,
                                       .batch = g->count,
                                       .batch_most = batch_most(g->rows * g->cols)}};
    call.t[HY_MATMUL_A] = a;
    call.t[HY_MATMUL_B] = b;
    call.t[HY_MATMUL_C] = c;
    call.t[HY_MATMUL_D] = d;
    return call;
}

enum { GRAM, SQUARE, STEP, PRODUCTS };

/* The three matmuls of a step from x to y; the true matrix is scale times x. */
static void list_products(const group *g, hy_tensor x, hy_tensor y, hy_tensor gram,
                          hy_tensor square, double scale, hy_op_call out[PRODUCTS]) {
    const hy_tensor none = {0};
    bool is_tall = g->rows > g->cols;
    out[GRAM] = product(g, x, x, none, gram, scale * scale);
    out[GRAM].attr.matmul.trans_a = is_tall;
    out[GRAM].attr.matmul.trans_b = !is_tall;
    out[SQUARE] = product(g, gram, gram, gram, square, NS_C / NS_B);
    out[STEP] = product(g, is_tall ? x : square, is_tall ? square : x, x, y, NS_B / NS_A);
}

/* Scales each matrix of x to norm one, into `to`. */
static hy_op_call scaling(const group *g, hy_tensor x, hy_tensor to) {
    hy_op_call call = {.kind = HY_OP_TO_UNIT, .attr.to_unit.eps = (float)EPS};
    call.t[HY_TO_UNIT_X] = hy_tensor_2d(x.data, x.dtype, g->count, g->rows * g->cols);
    call.t[HY_TO_UNIT_Y] = hy_tensor_2d(to.data, to.dtype, g->count, g->rows * g->cols);
    return call;
}

/* All calls that a group needs, on memory that is never read. */
static void list_calls(const hy_optimizer *o, const group *g, hy_op_call out[PRODUCTS + 1]) {
    void *somewhere = (void *)(uintptr_t)HY_ALIGNMENT;
    hy_tensor x = matrices_at(o, somewhere, g), square = squares_at(o, somewhere, g);
    list_products(g, x, x, square, square, 1, out);
    out[PRODUCTS] = scaling(g, x, x);
}

static uint64_t workspace(const hy_optimizer *o, const hy_param *const *params, int count,
                          hy_backend *backend) {
    plan p = plan_of(o, params, count);
    uint64_t most = 0;
    for (int i = 0; i < p.group_count; i++) {
        hy_op_call calls[PRODUCTS + 1];
        list_calls(o, &p.groups[i], calls);
        for (int k = 0; k <= PRODUCTS; k++) {
            uint64_t bytes = backend->workspace(backend, &calls[k]);
            if (bytes > most) most = bytes;
        }
    }
    return p.ops + most;
}

static hy_status prepare(const hy_optimizer *o, const hy_param *const *params, int count,
                         hy_backend *backend) {
    plan p = plan_of(o, params, count);
    for (int i = 0; i < p.group_count; i++) {
        hy_op_call calls[PRODUCTS + 1];
        list_calls(o, &p.groups[i], calls);
        for (int k = 0; k <= PRODUCTS; k++) HY_TRY(backend->prepare(backend, &calls[k]));
    }
    return HY_OK;
}

/* Muon may take a fifth of a step if it saves half of the steps (docs/performance.md). Our
 * measurements end at 124M parameters. For 1.2B, published results save a tenth of the steps (arXiv
 * 2509.02046), so for large models it may take half of that. */
#define SHARE_MOST 0.2
#define SHARE_LARGE 0.05
#define LARGE 500000000 /* parameters */

double hy_muon_share_most(const hy_params *params) {
    return params->elements > LARGE ? SHARE_LARGE : SHARE_MOST;
}

static double flops(const hy_optimizer *o, const hy_param *param) {
    double sum = 0;
    for (int i = 0; i < hy_param_pieces(param); i++) {
        piece p = piece_of(param, i);
        double side = (double)p.side, all = (double)(p.rows * p.cols);
        sum += o->muon_steps * (4 * side * all + 2 * side * side * side);
    }
    return sum;
}

/* ---- the update ------------------------------------------------------------------------------ */

/* The stream and memory of the ops. */
typedef struct work {
    const hy_optimizer *o;
    hy_backend *backend;
    hy_stream *stream;
    char *base;
    plan plan;
    hy_tensor ops; /* workspace of the ops */
} work;

static hy_status enqueue(const work *w, hy_op_call call) {
    call.workspace = w->ops;
    return w->backend->enqueue(w->stream, &call);
}

/* The momentum of an update that follows `count` others; early gradients are outdated soon. */
static float momentum_at(const hy_optimizer *o, int64_t count) {
    double missing =
        o->muon_momentum_warmup > count ? 1 - (double)count / (double)o->muon_momentum_warmup : 0;
    return (float)fmax(0, o->muon_momentum - RISE * missing);
}

/* The momentum after this step, or Nesterov's look-ahead of it. */
static hy_status blend(const work *w, const hy_param_update *u) {
    hy_op_call call = {.kind = HY_OP_MUON_BLEND,
                       .attr.muon = {.momentum = momentum_at(w->o, u->count),
                                     .is_nesterov = w->o->is_muon_nesterov}};
    call.t[HY_MUON_BLEND_OUT] = u->made_ahead;
    call.t[HY_MUON_BLEND_GRAD] = u->grad;
    call.t[HY_MUON_BLEND_M] = u->arrays[0];
    call.t[HY_MUON_BLEND_CLIP] = u->clip;
    return enqueue(w, call);
}

/* Orthogonalizes a group. The result must be at the group's place in the window, so with an odd
 * number of steps it begins at the other place. */
static hy_status orthogonalize(const work *w, const group *g) {
    const hy_optimizer *o = w->o;
    char *own = w->base + hy_dtype_bytes(o->matrix_dtype, g->first);
    hy_tensor x = matrices_at(o, own, g);
    hy_tensor turns[2] = {x, matrices_at(o, w->base + w->plan.turns, g)};
    hy_tensor gram = squares_at(o, w->base + w->plan.square, g);
    hy_tensor square = squares_at(o, w->base + w->plan.next_square, g);
    double scale = 1;
    int at = o->muon_steps % 2;
    HY_TRY(enqueue(w, scaling(g, x, turns[at])));
    for (int i = 0; i < o->muon_steps; i++, at ^= 1, scale *= NS_A) {
        hy_op_call calls[PRODUCTS];
        list_products(g, turns[at], turns[at ^ 1], gram, square, scale, calls);
        for (int k = 0; k < PRODUCTS; k++) HY_TRY(enqueue(w, calls[k]));
    }
    return HY_OK;
}

static hy_status work_ahead(hy_param_update *updates, int count, hy_backend *backend,
                            hy_stream *stream) {
    const hy_param *params[HY_WINDOW_PARAMS];
    const hy_optimizer *o = updates[0].optimizer;
    for (int i = 0; i < count; i++) params[i] = updates[i].param;
    work w = {.o = o,
              .backend = backend,
              .stream = stream,
              .base = updates[0].workspace.data,
              .plan = plan_of(o, params, count)};
    int64_t bytes = hy_tensor_bytes(&updates[0].workspace) - (int64_t)w.plan.ops;
    w.ops = hy_tensor_1d(w.base + w.plan.ops, HY_U8, bytes);
    for (int i = 0; i < count; i++) {
        char *place = w.base + hy_dtype_bytes(o->matrix_dtype, w.plan.first[i]);
        updates[i].made_ahead = hy_tensor_1d(place, o->matrix_dtype, params[i]->count);
        HY_TRY(blend(&w, &updates[i]));
    }
    for (int i = 0; i < w.plan.group_count; i++) HY_TRY(orthogonalize(&w, &w.plan.groups[i]));
    return HY_OK;
}

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    const hy_optimizer *o = u->optimizer;
    hy_op_call call = hy_optimizer_call(u, HY_OP_MUON);
    call.attr.muon = (hy_muon_attr){.lr = u->lr,
                                    .momentum = momentum_at(o, u->count),
                                    .weight_decay = u->weight_decay,
                                    .is_cautious = o->is_cautious};
    call.t[HY_UPDATE_DIRECTION] = u->made_ahead;
    double scale = SCALE * pow(NS_A, o->muon_steps);
    for (int i = 0; i < HY_MUON_PIECES; i++) {
        bool is_there = i < hy_param_pieces(u->param);
        piece p = piece_of(u->param, is_there ? i : 0);
        double larger = (double)(p.rows > p.cols ? p.rows : p.cols);
        call.attr.muon.coefficient[i] = (float)(scale * sqrt(larger));
        int64_t end = is_there ? p.first + p.rows * p.cols : u->param->count;
        if (i < HY_MUON_PIECES - 1) call.attr.muon.ends[i] = end;
    }
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_muon = {
    .name = "muon",
    .prior = 0.30,
    .is_whole = true,
    .lr_factor = 4,
    .beta2 = "0.99",
    .arrays = {"m"},
    .delegate = delegate,
    .workspace = workspace,
    .prepare = prepare,
    .flops = flops,
    .work_ahead = work_ahead,
    .update = update,
};
