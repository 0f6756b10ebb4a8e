/* muon.c: Muon (Jordan et al. 2024): matrices move along the orthogonal factor of their momentum.
 *
 * The momentum, Nesterov's unless told otherwise, is brought to length one and then, by a few
 * Newton-Schulz steps, near the orthogonal matrix next to it: x becomes a x + b (x x^T) x + c (x x^T)^2 x,
 * which drives every singular value towards 1 (roughly: these coefficients are for speed). A packed matrix
 * is its pieces, each for itself; a tall one is worked on from its other side, so that squares are of the
 * smaller one. Steps are as long as AdamW's, 0.2 of a weight's typical change: times 0.2 sqrt(the larger
 * side), after Liu et al. 2025, so that learning rates and decay carry over between widths.
 *
 * Every coefficient is a factor of a matmul: with x = s y,
 *   p = s^2 y y^T,   q = p + (c/b) p p,   y' = y + (b/a) q y,   s' = a s
 * is the same step, three matmuls and nothing else. s is known beforehand and goes into the update's
 * length. State changes in the last op alone, so an update that fails half-way can be made again.
 *
 * What is no matrix, or a table of tokens or a head, is AdamW's. */
#include <math.h>

#include "base/error.h"
#include "optim/optimizer.h"

#define NS_A 3.4445
#define NS_B -4.7750
#define NS_C 2.0315
#define SCALE 0.2 /* root mean square of AdamW's updates */
#define EPS 1e-7

/* ---- what it is given --------------------------------------------------------------------------- */

static const hy_optimizer_kind *delegate(const hy_optimizer *o, const hy_param *param) {
    (void)o;
    bool is_whole = param->ndim == 2 && param->part == 0 && param->shape[0] > 1;
    bool is_its_own = is_whole && param->is_hidden && param->shape[1] > 1;
    return hy_optimizer_kind_of(is_its_own ? HY_MUON : HY_ADAMW);
}

static hy_param_extent extent(const hy_optimizer *optimizer, const hy_param *param, int array) {
    (void)optimizer, (void)array;
    return (hy_param_extent){.count = param->count};
}

/* A matrix of a parameter. */
typedef struct piece {
    int64_t first, rows, cols; /* first element */
    int64_t side;              /* of the squares */
} piece;

static int piece_count(const hy_param *param) { return param->pieces > 0 ? param->pieces : 1; }

static piece piece_of(const hy_param *param, int index) {
    piece p = {.rows = param->shape[0], .cols = param->shape[1]};
    for (int i = 0; param->pieces > 0 && i < index; i++) p.first += param->piece_rows[i] * p.cols;
    if (param->pieces > 0) p.rows = param->piece_rows[index];
    p.side = p.rows < p.cols ? p.rows : p.cols;
    return p;
}

/* ---- workspace ---------------------------------------------------------------------------------- */

/* Where everything lies, from the start of the workspace. */
typedef struct room {
    uint64_t turns;  /* the matrix in every other step; what it ends as is at 0, for all pieces */
    uint64_t square; /* p, and q behind it */
    uint64_t next_square, total, ops;
} room;

static room room_of(const hy_optimizer *o, const hy_param *param) {
    uint64_t most = 0, square = 0;
    for (int i = 0; i < piece_count(param); i++) {
        piece p = piece_of(param, i);
        uint64_t bytes = hy_dtype_bytes(o->matrix_dtype, p.rows * p.cols);
        uint64_t side = hy_dtype_bytes(o->matrix_dtype, p.side * p.side);
        if (bytes > most) most = bytes;
        if (side > square) square = side;
    }
    room r = {.turns = hy_align(hy_dtype_bytes(o->matrix_dtype, param->count))};
    r.square = r.turns + hy_align(most);
    r.next_square = r.square + hy_align(square);
    r.total = r.next_square + hy_align(square);
    r.ops = r.total + hy_align(sizeof(double));
    return r;
}

/* ---- ops ---------------------------------------------------------------------------------------- */

/* d = alpha op(a) op(b) + c. */
static hy_op_call product(hy_tensor a, hy_tensor b, hy_tensor c, hy_tensor d, double alpha) {
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul.alpha = (float)alpha};
    call.t[HY_MATMUL_A] = a;
    call.t[HY_MATMUL_B] = b;
    call.t[HY_MATMUL_C] = c;
    call.t[HY_MATMUL_D] = d;
    return call;
}

enum { GRAM, SQUARE, STEP, PRODUCTS };

/* The three matmuls of a step from x to y, with x = scale times what it stands for. */
static void list_products(const piece *p, hy_tensor x, hy_tensor y, hy_tensor gram,
                          hy_tensor square, double scale, hy_op_call out[PRODUCTS]) {
    const hy_tensor none = {0};
    bool is_tall = p->rows > p->cols;
    out[GRAM] = product(x, x, none, gram, scale * scale);
    out[GRAM].attr.matmul.trans_a = is_tall;
    out[GRAM].attr.matmul.trans_b = !is_tall;
    out[SQUARE] = product(gram, gram, gram, square, NS_C / NS_B);
    out[STEP] = product(is_tall ? x : square, is_tall ? square : x, x, y, NS_B / NS_A);
}

static hy_tensor square_at(const hy_optimizer *o, void *data, const piece *p) {
    return hy_tensor_2d(data, o->matrix_dtype, p->side, p->side);
}

static uint64_t workspace(const hy_optimizer *o, const hy_param *param, hy_backend *backend) {
    void *somewhere = (void *)(uintptr_t)HY_ALIGNMENT; /* what is absent needs no workspace */
    uint64_t most = 0;
    for (int i = 0; i < piece_count(param); i++) {
        piece p = piece_of(param, i);
        hy_tensor x = hy_tensor_2d(somewhere, o->matrix_dtype, p.rows, p.cols);
        hy_tensor square = square_at(o, somewhere, &p);
        hy_op_call calls[PRODUCTS + 1];
        list_products(&p, x, x, square, square, 1, calls);
        calls[PRODUCTS] = (hy_op_call){.kind = HY_OP_SQ_NORM, .t[HY_REDUCE_X] = x};
        for (int k = 0; k <= PRODUCTS; k++) {
            uint64_t bytes = backend->workspace(backend, &calls[k]);
            if (bytes > most) most = bytes;
        }
    }
    return room_of(o, param).ops + most;
}

static double flops(const hy_optimizer *o, const hy_param *param) {
    double sum = 0;
    for (int i = 0; i < piece_count(param); i++) {
        piece p = piece_of(param, i);
        double side = (double)p.side, all = (double)(p.rows * p.cols);
        sum += o->muon_steps * (4 * side * all + 2 * side * side * side);
    }
    return sum;
}

/* ---- the update --------------------------------------------------------------------------------- */

typedef struct work {
    const hy_param_update *u;
    hy_backend *backend;
    hy_stream *stream;
    char *base;
    room room;
} work;

static hy_status enqueue(const work *w, hy_op_call call) {
    uint64_t bytes = (uint64_t)hy_tensor_bytes(&w->u->workspace);
    call.workspace = hy_tensor_1d(w->base + w->room.ops, HY_U8, (int64_t)(bytes - w->room.ops));
    return w->backend->enqueue(w->stream, &call);
}

/* Momentum as the step will leave it, or ahead of that. */
static hy_status blend(const work *w) {
    const hy_optimizer *o = w->u->optimizer;
    hy_op_call call = {
        .kind = HY_OP_MUON_BLEND,
        .attr.muon = {.momentum = (float)o->muon_momentum, .is_nesterov = o->is_muon_nesterov}};
    call.t[HY_MUON_BLEND_OUT] = hy_tensor_1d(w->base, o->matrix_dtype, w->u->param->count);
    call.t[HY_MUON_BLEND_GRAD] = w->u->grad;
    call.t[HY_MUON_BLEND_M] = w->u->arrays[0];
    call.t[HY_MUON_BLEND_CLIP] = w->u->clip;
    return enqueue(w, call);
}

/* x to length one, into `to`. */
static hy_status scale_to_one(const work *w, hy_tensor x, hy_tensor to) {
    hy_tensor total = hy_tensor_1d(w->base + w->room.total, HY_F64, 1);
    hy_op_call norm = {.kind = HY_OP_SQ_NORM}, unit = {.kind = HY_OP_TO_UNIT};
    norm.t[HY_REDUCE_X] = x;
    norm.t[HY_REDUCE_OUT] = total;
    unit.attr.to_unit.eps = (float)EPS;
    unit.t[HY_TO_UNIT_X] = x;
    unit.t[HY_TO_UNIT_TOTAL] = total;
    unit.t[HY_TO_UNIT_Y] = to;
    HY_TRY(enqueue(w, norm));
    return enqueue(w, unit);
}

/* Ends where the piece lies in the blend: with an odd number of steps it begins at the other place. */
static hy_status orthogonalize(const work *w, const piece *p) {
    const hy_optimizer *o = w->u->optimizer;
    char *own = w->base + hy_dtype_bytes(o->matrix_dtype, p->first);
    hy_tensor x = hy_tensor_2d(own, o->matrix_dtype, p->rows, p->cols);
    hy_tensor turns[2] = {x, hy_tensor_2d(w->base + w->room.turns, x.dtype, p->rows, p->cols)};
    hy_tensor gram = square_at(o, w->base + w->room.square, p);
    hy_tensor square = square_at(o, w->base + w->room.next_square, p);
    double scale = 1;
    int at = o->muon_steps % 2;
    HY_TRY(scale_to_one(w, x, turns[at]));
    for (int i = 0; i < o->muon_steps; i++, at ^= 1, scale *= NS_A) {
        hy_op_call calls[PRODUCTS];
        list_products(p, turns[at], turns[at ^ 1], gram, square, scale, calls);
        for (int k = 0; k < PRODUCTS; k++) HY_TRY(enqueue(w, calls[k]));
    }
    return HY_OK;
}

static hy_status move(const work *w) {
    const hy_param_update *u = w->u;
    const hy_optimizer *o = u->optimizer;
    hy_op_call call = {.kind = HY_OP_MUON,
                       .attr.muon = {.lr = u->lr,
                                     .momentum = (float)o->muon_momentum,
                                     .weight_decay = u->weight_decay,
                                     .is_cautious = o->is_cautious,
                                     .seed = u->seed,
                                     .first = (uint64_t)u->param->first},
                       .t = {[HY_MUON_PARAM] = u->weight,
                             [HY_MUON_GRAD] = u->grad,
                             [HY_MUON_M] = u->arrays[0],
                             [HY_MUON_CLIP] = u->clip,
                             [HY_MUON_MASTER] = u->master}};
    call.t[HY_MUON_DIRECTION] = hy_tensor_1d(w->base, o->matrix_dtype, u->param->count);
    double scale = SCALE * pow(NS_A, o->muon_steps);
    for (int i = 0; i < HY_MUON_PIECES; i++) {
        bool is_there = i < piece_count(u->param);
        piece p = piece_of(u->param, is_there ? i : 0);
        double larger = (double)(p.rows > p.cols ? p.rows : p.cols);
        call.attr.muon.coefficient[i] = (float)(scale * sqrt(larger));
        int64_t end = is_there ? p.first + p.rows * p.cols : u->param->count;
        if (i < HY_MUON_PIECES - 1) call.attr.muon.ends[i] = end;
    }
    return enqueue(w, call);
}

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    work w = {.u = u,
              .backend = backend,
              .stream = stream,
              .base = u->workspace.data,
              .room = room_of(u->optimizer, u->param)};
    HY_TRY(blend(&w));
    for (int i = 0; i < piece_count(u->param); i++) {
        piece p = piece_of(u->param, i);
        HY_TRY(orthogonalize(&w, &p));
    }
    return move(&w);
}

const hy_optimizer_kind hy_optimizer_muon = {
    .name = "muon",
    .arrays = {"m"},
    .extent = extent,
    .delegate = delegate,
    .workspace = workspace,
    .flops = flops,
    .update = update,
};
