/* visit.c: accesses a unit's weights and gradients through their stores. See visit.h.
 *
 * Two units may be large, embedding and head, and their copies take longer than a block
 * computes. Stores give them a buffer outside the ring, so they are fetched in chunks half a
 * pass before they are needed: the head during the blocks' forward, the embedding during their
 * backward, for its gradient sum and for the next pass. */
#include "model/visit.h"

#include "base/error.h"

static int32_t last_unit(const hy_frame *f) { return f->plan->model->params.units - 1; }

/* A tied head uses the embedding's table, and adds to its gradient if it is trained. */
static bool borrows_table(const hy_frame *f, int32_t unit) {
    return f->plan->model->shape.has_tied_head && unit == last_unit(f);
}

static int32_t table_of(const hy_frame *f) {
    return hy_params_find(&f->plan->model->params, 0, HY_P_TOKENS);
}

static bool borrows_sum(const hy_frame *f, int32_t unit) {
    return borrows_table(f, unit) && f->plan->model->params.list[table_of(f)].is_trainable;
}

/* Does a gradient sum exist when the pass reaches this unit? A tied head has already started the
 * token table's sum when the pass reaches the embedding. */
static bool goes_on(const hy_frame *f, int32_t unit) {
    return f->input->accumulate || (unit == 0 && borrows_sum(f, last_unit(f)));
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Something to do with each store of a unit's weights. */
typedef hy_status (*store_call)(hy_store *store, hy_stream *stream, int32_t unit);

static hy_status gather(hy_store *store, hy_stream *stream, int32_t unit) {
    (void)stream;
    return hy_store_prefetch(store, unit);
}

/* Trained and frozen parameters of the unit, and a tied head's table. */
static hy_status call_weights(const hy_frame *f, int32_t unit, store_call call) {
    const hy_batch_input *in = f->input;
    if (borrows_table(f, unit)) {
        HY_TRY(call(hy_batch_weights_of(in, table_of(f)), in->stream, 0));
    }
    bool has_fp8 = in->fp8 && in->fp8->layout.unit_bytes[unit] > 0;
    hy_store *trained = has_fp8 ? in->fp8 : in->weights;
    /* A pending update writes the fp8 copy in hook->before: it is not fetched before that. */
    bool is_pending = has_fp8 && f->pass == HY_PASS_FORWARD && in->hook && in->hook->before;
    bool is_early = call == gather && is_pending;
    if (trained && !is_early) HY_TRY(call(trained, in->stream, unit));
    return in->frozen ? call(in->frozen, in->stream, unit) : HY_OK;
}

/* With several ranks, weights may come from other ranks, ahead of time or now. */
static hy_status call_ranks(const hy_frame *f, int32_t unit, bool is_now) {
    const hy_unit_hook *hook = f->input->hook;
    hy_stream *stream = f->input->stream;
    if (!hook || !hook->fetch) return HY_OK;
    hy_status (*call)(void *, hy_stream *, int32_t) = is_now ? hook->await : hook->fetch;
    if (borrows_table(f, unit)) HY_TRY(call(hook->context, stream, 0));
    return call(hook->context, stream, unit);
}

/* ---- large units ----------------------------------------------------------------------------- */

/* The large unit that the pass reaches last is copied in chunks, one with each block, from the
 * second quarter of the blocks on. Before that, the large unit that the pass began with may still
 * be written back from the same buffer; uploads use one queue, so waiting for it would delay the
 * blocks. */
static hy_status gather_far_end(const hy_frame *f) {
    int32_t layers = f->plan->model->shape.layers;
    bool is_backward = f->pass == HY_PASS_BACKWARD;
    int32_t end = is_backward ? 0 : last_unit(f);
    int32_t done = is_backward ? layers - f->unit_index : f->unit_index - 1;
    bool is_block = f->unit_index > 0 && f->unit_index <= layers;
    if (!is_block || done < layers / 4) return HY_OK;
    bool wants_grads = f->pass != HY_PASS_EVAL && goes_on(f, end);
    hy_store *stores[] = {f->input->weights, f->input->frozen,
                          wants_grads ? f->input->grads : NULL};
    for (int i = 0; i < 3; i++) {
        bool is_apart = stores[i] && hy_store_has_own_buffer(stores[i], end);
        if (is_apart) HY_TRY(hy_store_prefetch_chunk(stores[i], end));
    }
    return HY_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Sums that start here are not fetched. Other contents of such a buffer do not matter: backward
 * writes every trained parameter completely, the norm and the update read only trained
 * parameters, and no op reads between tensors. */
static hy_status get_sum(const hy_frame *f, int32_t unit, bool is_begun) {
    hy_store *grads = f->input->grads;
    return is_begun ? hy_store_get(grads, f->input->stream, unit)
                    : hy_store_get_new(grads, f->input->stream, unit);
}

static hy_status gather_grads(const hy_frame *f, int32_t unit) {
    if (goes_on(f, unit)) HY_TRY(hy_store_prefetch(f->input->grads, unit));
    bool has_begun = f->input->accumulate && borrows_sum(f, unit);
    return has_begun ? hy_store_prefetch(f->input->grads, 0) : HY_OK;
}

/* ---- a visit --------------------------------------------------------------------------------- */

hy_status hy_visit_prepare(const hy_frame *f, int32_t unit) {
    const hy_unit_hook *hook = f->input->hook;
    bool is_forward = f->pass == HY_PASS_FORWARD;
    HY_TRY(call_ranks(f, unit, false));
    HY_TRY(call_weights(f, unit, gather));
    /* Backward begins with the head: its gradients are copied during the last block's forward. */
    bool wants_grads = f->pass == HY_PASS_BACKWARD || (is_forward && unit == last_unit(f));
    if (wants_grads) HY_TRY(gather_grads(f, unit));
    return is_forward && hook && hook->ahead ? hook->ahead(hook->context, unit) : HY_OK;
}

hy_status hy_visit_enter(const hy_frame *f, int direction) {
    const hy_unit_hook *hook = f->input->hook;
    hy_stream *stream = f->input->stream;
    int32_t unit = f->unit_index, next = unit + direction;
    int32_t lowest = f->pass == HY_PASS_BACKWARD ? f->plan->model->lowest_trained : 0;
    if (next >= lowest && next <= last_unit(f)) HY_TRY(hy_visit_prepare(f, next));
    HY_TRY(gather_far_end(f));
    /* A unit is used first in the forward pass; the head only in backward. */
    bool is_eval = f->pass == HY_PASS_EVAL;
    hy_pass first = unit == last_unit(f) ? HY_PASS_BACKWARD : HY_PASS_FORWARD;
    if (hook && hook->before && (is_eval || f->pass == first)) {
        if (is_eval && borrows_table(f, unit)) HY_TRY(hook->before(hook->context, stream, 0));
        HY_TRY(hook->before(hook->context, stream, unit));
    }
    HY_TRY(call_ranks(f, unit, true));
    if (f->unit->pass[f->pass].uses_params) HY_TRY(call_weights(f, unit, hy_store_get_read));
    if (f->pass != HY_PASS_BACKWARD) return HY_OK;
    if (borrows_sum(f, unit)) HY_TRY(get_sum(f, 0, f->input->accumulate));
    return get_sum(f, unit, goes_on(f, unit));
}

hy_status hy_visit_leave(const hy_frame *f) {
    const hy_unit_hook *hook = f->input->hook;
    hy_stream *stream = f->input->stream;
    int32_t unit = f->unit_index;
    if (f->pass == HY_PASS_BACKWARD) {
        if (hook && hook->after) HY_TRY(hook->after(hook->context, stream, unit));
        if (borrows_sum(f, unit)) HY_TRY(hy_store_release_changed(f->input->grads, stream, 0));
        HY_TRY(hy_store_release_changed(f->input->grads, stream, unit));
    }
    return f->unit->pass[f->pass].uses_params ? call_weights(f, unit, hy_store_release) : HY_OK;
}
