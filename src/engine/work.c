/* work.c: the memory of passes: activations, workspace and buffers in one area. See work.h.
 *
 * Passes of all sizes and types share the area, and so do the predictor's rings, which come
 * after the evaluation's part. It holds nothing that outlives a step, so it can be freed and
 * allocated again between steps for another plan. Its live parts change with the phase
 * (phases/table.h): training's parts or those of forward-only batches are pushed on its arena,
 * and the ledger counts only these. A large forward-only batch uses memory that rows lend
 * outside of training. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- batch plans ----------------------------------------------------------------------------- */

static hy_status make_plan(hy_engine *e, const hy_pass_spec *spec, hy_dtype dtype, int32_t batch,
                           int32_t slices, hy_batch_plan **out) {
    bool is_training = batch == 0;
    hy_batch_options options = hy_pass_options(spec, &e->plan->choice, dtype, is_training);
    if (!is_training) options.batch = batch;
    options.slices = slices;
    return *out ? HY_OK : hy_batch_plan_create(e->model, e->device.backend, &options, out);
}

/* Makes the batch plans: training in its compute types, evaluation with the planned batch, and the
 * guard's few sequences. */
static hy_status make_plans(hy_engine *e, const hy_pass_spec *spec) {
    const hy_plan_work *planned = &e->plan->work;
    hy_dtype guarded = spec->eval_types[spec->eval_type_count - 1]; /* the last is Predict's */
    hy_work *w = e->work;
    HY_TRY(hy_optimizer_prepare(&e->plan->optimizer, &e->model->params, e->device.backend));
    if (!hy_model_has_passes(e->model)) return HY_OK;
    for (int i = 0; i < spec->type_count; i++) {
        hy_dtype dtype = spec->types[i];
        HY_TRY(make_plan(e, spec, dtype, 0, 1, &w->train[hy_plan_index(dtype)]));
    }
    for (int i = 0; i < spec->eval_type_count; i++) {
        int k = hy_plan_index(spec->eval_types[i]);
        HY_TRY(make_plan(e, spec, spec->eval_types[i], planned->eval_batch[k], planned->slices,
                         &w->eval[k]));
    }
    return make_plan(e, spec, guarded, planned->guard_batch, 1, &w->guard);
}

#define MOST_PLANS (2 * HY_PLAN_TYPES + 1)

static int list_plans(const hy_engine *e, hy_batch_plan *out[MOST_PLANS]) {
    const hy_work *w = e->work;
    int count = 0;
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        if (w->train[i]) out[count++] = w->train[i];
        if (w->eval[i]) out[count++] = w->eval[i];
    }
    if (w->guard) out[count++] = w->guard;
    return count;
}

/* Is it a forward-only batch in borrowed memory? */
static bool is_lent(const hy_engine *e, const hy_batch_plan *plan) {
    return e->plan->work.loan[1] && !plan->options.is_training && plan != e->work->guard;
}

/* A part of the whole block, from `at` on. */
static hy_arena part_of(const hy_engine *e, hy_ledger *ledger, uint64_t at, uint64_t size) {
    return (hy_arena){.backend = e->device.backend,
                      .ledger = ledger,
                      .place = HY_DEVICE,
                      .data = e->work->arena.data + at,
                      .size = size};
}

/* Sets the memory of a batch in borrowed memory: lent[1] is the start of the block that lends
 * workspace. lent[0] is the block that lends activations, or, if that is the same block, what is
 * left of it after the workspace. False: it does not fit, because prepared ops need more than the
 * planner assumed. */
static bool place_lent(hy_engine *e, const hy_plan_work *w) {
    const hy_batch_bytes *lent = &w->lent;
    uint64_t area = hy_work_lent_area(w, e->plan->state.work_rings);
    for (int i = 1; i >= 0; i--) {
        hy_arena *out = &e->work->lent[i];
        *out = w->loan[i] == HY_LOAN_AREA ? part_of(e, &e->state->ledger, 0, area)
                                          : hy_state_lent(e->state, w->loan[i]);
        if (i == 0 && w->loan[0] == w->loan[1]) {
            uint64_t before = lent->workspace < out->size ? lent->workspace : out->size;
            if (out->data) out->data += before;
            out->size -= before;
        }
        if (out->size < (i == 0 ? lent->activations : lent->workspace)) return false;
    }
    return true;
}

/* Counts what the prepared batch plans need, with the planner's own functions. False: the borrowed
 * memory is too small. */
static bool count_work(hy_engine *e, const hy_pass_spec *spec) {
    hy_batch_plan *plans[MOST_PLANS];
    hy_plan_work *planned = &e->plan->work;
    hy_plan_work counted = {.guard_batch = planned->guard_batch,
                            .forward = planned->forward,
                            .backward = planned->backward,
                            .slices = planned->slices,
                            .loan = {planned->loan[0], planned->loan[1]}};
    for (int i = 0, count = list_plans(e, plans); i < count; i++) {
        const hy_batch_plan *p = plans[i];
        uint64_t rows = (uint64_t)hy_batch_sequences(p) * (uint64_t)p->size.seq;
        if (rows > counted.rows) counted.rows = rows;
        if (is_lent(e, p)) {
            uint64_t activations = hy_align(p->bytes.activations);
            uint64_t workspace = hy_align(p->bytes.workspace);
            if (activations > counted.lent.activations) counted.lent.activations = activations;
            if (workspace > counted.lent.workspace) counted.lent.workspace = workspace;
        } else {
            hy_work_add(&counted, p);
        }
    }
    for (int i = 0; i < HY_PLAN_TYPES; i++) counted.eval_batch[i] = planned->eval_batch[i];
    hy_work_total(&counted, spec, e->plan->state.work_rings);
    e->plan->device -= hy_plan_work_bytes(planned);
    e->plan->device += hy_plan_work_bytes(&counted);
    *planned = counted;
    return !planned->loan[1] || place_lent(e, planned);
}

/* Borrows no memory: evaluation uses micro-batches of training's size in its own area. */
static void give_up_loan(hy_engine *e) {
    hy_plan_work *w = &e->plan->work;
    w->loan[0] = w->loan[1] = 0;
    w->slices = 1;
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        if (e->work->eval[i]) hy_batch_plan_destroy(e->work->eval[i]);
        e->work->eval[i] = NULL;
    }
}

/* ---- a batch for a pass ---------------------------------------------------------------------- */

hy_status hy_work_send_batch(hy_engine *e, const hy_batch *batch, int64_t rows) {
    hy_backend *b = e->device.backend;
    const hy_pass_buffers *to = &e->work->buffers;
    const struct {
        void *to;
        const void *from; /* NULL: there is no such array */
    } arrays[] = {{to->tokens, batch->tokens},
                  {to->targets, batch->targets},
                  {to->doc_starts, batch->doc_starts},
                  {to->reference, batch->reference}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        size_t bytes = (size_t)rows * sizeof(int32_t);
        if (arrays[i].from) HY_TRY(b->copy(e->device.compute, arrays[i].to, arrays[i].from, bytes));
    }
    if (!to->policy) return HY_OK;
    if (batch->policy)
        return b->copy(e->device.compute, to->policy, batch->policy,
                       (size_t)rows * sizeof *batch->policy);
    hy_op_call fill = {.kind = HY_OP_FILL}; /* a share of 0 */
    fill.t[HY_FILL_DST] = hy_tensor_1d(to->policy, HY_F32, rows * HY_POLICY_NUMBERS);
    return b->enqueue(e->device.compute, &fill);
}

hy_batch_input hy_work_input(hy_engine *e, hy_store *weights) {
    const hy_pass_buffers *b = &e->work->buffers;
    return (hy_batch_input){.stream = e->device.compute,
                            .weights = weights,
                            .frozen = hy_engine_frozen(e),
                            .tokens = b->tokens,
                            .targets = b->targets,
                            .doc_starts = b->doc_starts,
                            .rope = b->rope,
                            .losses = b->losses,
                            .token_losses = b->token_losses,
                            .reference = b->reference,
                            .policy = b->policy,
                            .loss_stats = b->loss_stats};
}

hy_status hy_work_clear_stats(hy_engine *e) {
    hy_op_call fill = {.kind = HY_OP_FILL};
    if (!e->work->buffers.loss_stats) return HY_OK;
    fill.t[HY_FILL_DST] =
        hy_tensor_1d(e->work->buffers.loss_stats, HY_F64, hy_loss_stats(e->model->loss.kind));
    return e->device.backend->enqueue(e->device.compute, &fill);
}

hy_status hy_work_reference(hy_batch_plan *plan, const hy_batch_input *input) {
    hy_batch_input reference = *input;
    reference.token_losses = (float *)input->reference; /* this one pass writes it */
    reference.loss_scale = 1; /* not used: the same for all passes, so that a graph serves them */
    reference.accumulate = false;
    return hy_batch_reference(plan, &reference);
}

/* ---- what is live ---------------------------------------------------------------------------- */

static hy_status push_part(hy_arena *arena, hy_class cls, uint64_t bytes) {
    void *unused; /* place_plans sets the addresses */
    return bytes ? hy_arena_push(arena, cls, bytes, &unused) : HY_OK;
}

/* Marks what is live in the area during a phase. A class has one place: if layers keep their
 * activations on the host, the part on the device counts as workspace. */
static hy_status push_parts(hy_engine *e, const hy_phase_row *phase) {
    const hy_plan_work *w = &e->plan->work;
    hy_arena *passes = &e->work->passes;
    if (hy_phase_trains(phase)) {
        hy_class cls = w->train.host > 0 ? HY_WORKSPACE : HY_ACTIVATIONS;
        HY_TRY(push_part(passes, cls, w->activations));
        return push_part(passes, HY_WORKSPACE, w->workspace);
    }
    hy_forward_area area = hy_plan_forward_area(e->plan, phase);
    HY_TRY(push_part(passes, HY_ACTIVATIONS, area.activations));
    HY_TRY(push_part(passes, HY_WORKSPACE, area.workspace));
    HY_TRY(push_part(passes, HY_WORKSPACE, area.rings));
    if (!hy_plan_borrows(e->plan, phase)) return HY_OK;
    HY_TRY(push_part(&e->work->lent[0], HY_ACTIVATIONS, w->lent.activations));
    return push_part(&e->work->lent[1], HY_WORKSPACE, w->lent.workspace);
}

static void clear_parts(hy_engine *e) {
    hy_arena_clear(&e->work->passes);
    for (int i = 0; i < 2; i++) hy_arena_clear(&e->work->lent[i]);
}

/* Marks memory that only optimizer steps need as live or free: rows, and activations on the
 * host. */
static void book_steps(hy_engine *e, bool is_live) {
    hy_state_book_steps(e->state, is_live);
    hy_arena_set_live(&e->work->host_arena, is_live);
}

/* Prepares rows to lend their memory: finishes the update, moves optimizer state away if its memory
 * is lent (Evaluate; Predict has already started it), and writes rings back. */
static hy_status vacate(hy_engine *e, const hy_phase_row *phase) {
    const int32_t *loan = e->plan->work.loan;
    if (!hy_plan_borrows(e->plan, phase)) return HY_OK;
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    if (phase->back == HY_RETURNS_AT_END) {
        HY_TRY(hy_offload_begin(e->state, hy_plan_offload_in(e->plan, phase)));
        HY_TRY(hy_offload_wait_away(e->state));
    }
    for (int i = 0; i < 2; i++) {
        if (loan[i] != HY_LOAN_AREA) HY_TRY(hy_state_vacate(e->state, loan[i]));
    }
    return HY_OK;
}

const hy_phase_row *hy_engine_phase(const hy_engine *e) {
    return e->phase ? e->phase : &hy_phase_table[HY_FULL];
}

hy_status hy_engine_enter_phase(hy_engine *e, const hy_phase_row *to) {
    const hy_phase_row *from = hy_engine_phase(e);
    bool trained = hy_phase_trains(from), trains = hy_phase_trains(to);
    if (trained == trains && from->borrower == to->borrower) {
        hy_ledger_enter(&e->state->ledger, to->phase);
        e->phase = to;
        return HY_OK;
    }
    if (!trains) HY_TRY(vacate(e, to));
    clear_parts(e);
    if (trained && !trains) book_steps(e, false);
    hy_ledger_enter(&e->state->ledger, to->phase);
    if (trains && !trained) book_steps(e, true);
    e->phase = to;
    HY_TRY(push_parts(e, to));
    return from->back == HY_RETURNS_AT_END ? hy_offload_return(e->state) : HY_OK;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static hy_status take_staging(hy_engine *e, size_t rows) {
    hy_backend *b = e->device.backend;
    e->work->staging_rows = rows;
    e->work->staging = calloc(2, sizeof *e->work->staging);
    HY_FAIL_IF(!e->work->staging, HY_ERR_MEMORY, "not enough memory for the buffers of a batch");
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &e->work->staging[i];
        const struct {
            void **array;
            bool is_there;
        } arrays[] = {{(void **)&s->tokens, true},
                      {(void **)&s->targets, true},
                      {(void **)&s->losses, true},
                      {(void **)&s->doc_starts, e->work->buffers.doc_starts},
                      {(void **)&s->reference, e->work->buffers.reference}};
        for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
            if (!arrays[k].is_there) continue;
            HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof(int32_t), arrays[k].array));
        }
        HY_TRY(b->event_create(b, &s->is_done));
    }
    return HY_OK;
}

static hy_status fill_rope(hy_engine *e, const hy_pass_spec *spec, size_t bytes) {
    if (!bytes) return HY_OK;
    float *table = malloc(bytes);
    if (!table) return hy_fail(HY_ERR_MEMORY, "not enough memory for the rope table");
    hy_shape_rope_tables(&e->model->shape, spec->seq, table);
    hy_status status =
        e->device.backend->copy(e->device.compute, e->work->buffers.rope, table, bytes);
    if (status == HY_OK) status = e->device.backend->stream_sync(e->device.compute);
    free(table);
    return status;
}

static size_t fp8_stats_bytes(const hy_engine *e) {
    return (size_t)e->model->params.units * HY_SEEN * sizeof(double);
}

hy_status hy_work_take_buffers(hy_engine *e, hy_arena *arena, const hy_pass_spec *spec,
                               const hy_plan_work *work) {
    uint64_t bytes[HY_BUFFER_COUNT];
    void *at[HY_BUFFER_COUNT] = {0};
    hy_work_buffers(spec, work, bytes);
    for (int i = 0; i < HY_BUFFER_COUNT; i++) {
        if (bytes[i]) HY_TRY(hy_arena_push(arena, HY_DATA, bytes[i], &at[i]));
    }
    hy_pass_buffers b = {
        .tokens = at[HY_BUFFER_TOKENS],
        .targets = at[HY_BUFFER_TARGETS],
        .doc_starts = at[HY_BUFFER_DOC_STARTS],
        .losses = at[HY_BUFFER_LOSSES],
        .token_losses = at[HY_BUFFER_TOKEN_LOSSES],
        .reference = at[HY_BUFFER_REFERENCE],
        .policy = at[HY_BUFFER_POLICY],
        .loss_stats = at[HY_BUFFER_LOSS_STATS],
        .loss_sum = at[HY_BUFFER_LOSS_SUM],
        .square_sum = at[HY_BUFFER_SQUARE_SUM],
        .dots = at[HY_BUFFER_DOTS],
        .clip = at[HY_BUFFER_CLIP],
        .fp8_stats = at[HY_BUFFER_FP8],
        .rope = at[HY_BUFFER_ROPE],
        .reduce_workspace = hy_tensor_1d(at[HY_BUFFER_SUMS], HY_U8, (int64_t)bytes[HY_BUFFER_SUMS]),
    };
    if (b.fp8_stats) b.largest = (float *)(b.fp8_stats + HY_SEEN * e->model->params.units);
    e->work->buffers = b;
    HY_TRY(take_staging(e, (size_t)work->rows));
    return fill_rope(e, spec, (size_t)bytes[HY_BUFFER_ROPE]);
}

/* Host memory for results. */
static hy_status take_results(hy_engine *e, const hy_pass_spec *spec) {
    hy_backend *b = e->device.backend;
    if (e->work->buffers.fp8_stats) {
        HY_TRY(b->alloc(b, HY_PINNED, fp8_stats_bytes(e), (void **)&e->work->fp8_stats));
    }
    size_t guarded =
        2 * (size_t)hy_guard_sequences(spec->guard_share, &e->plan->choice, spec->ranks);
    e->work->guard_losses = malloc(guarded * sizeof *e->work->guard_losses);
    if (!e->work->guard_losses)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for the guard's losses");
    return b->alloc(b, HY_PINNED, sizeof *e->work->result, (void **)&e->work->result);
}

/* Allocates host memory for the activations that layers keep there, and their ring, which follows
 * the other activations. Batch plans of all types share it. */
static hy_status take_activations(hy_engine *e) {
    const hy_batch_plan *widest = NULL;
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        const hy_batch_plan *plan = e->work->train[i];
        if (plan && (!widest || plan->bytes.host > widest->bytes.host)) widest = plan;
    }
    uint64_t ring = e->plan->work.train.ring;
    hy_layout layout = {0};
    if (!widest || !widest->options.offloads) return HY_OK;
    hy_arena place = part_of(e, NULL, e->plan->work.activations - ring, ring);
    HY_TRY(hy_batch_offload_layout(widest, &layout));
    hy_status status = hy_arena_init(&e->work->host_arena, e->device.backend, &e->state->ledger,
                                     HY_PINNED, layout.bytes, "activations");
    if (status == HY_OK) {
        int32_t depth = widest->options.ring_depth ? widest->options.ring_depth : HY_OFFLOAD_DEPTH;
        status = hy_store_init_streamed(&e->work->activations, &e->work->host_arena, &place,
                                        HY_ACTIVATIONS, &layout, depth,
                                        &(hy_copies){e->device.copies, e->device.returns});
    }
    hy_layout_fini(&layout);
    for (int i = 0; i < HY_PLAN_TYPES && status == HY_OK; i++) {
        if (e->work->train[i]) hy_batch_plan_offload(e->work->train[i], &e->work->activations);
    }
    return status;
}

static void place_plans(hy_engine *e) {
    hy_batch_plan *plans[MOST_PLANS];
    char *activations = e->work->arena.data, *workspace = activations + e->plan->work.activations;
    for (int i = 0, count = list_plans(e, plans); i < count; i++) {
        char *after = activations + hy_align(plans[i]->bytes.activations);
        if (is_lent(e, plans[i])) {
            hy_batch_plan_place(plans[i], e->work->lent[0].data, e->work->lent[1].data);
            continue;
        }
        hy_batch_plan_place(plans[i], activations,
                            plans[i]->options.is_training ? workspace : after);
    }
}

hy_status hy_work_prepare(hy_engine *e) {
    hy_pass_spec spec;
    hy_pass_spec_init(&spec, &e->request, e->plan);
    return make_plans(e, &spec);
}

hy_status hy_work_take(hy_engine *e) {
    hy_work *w = e->work;
    hy_pass_spec spec;
    hy_pass_spec_init(&spec, &e->request, e->plan);
    HY_TRY(make_plans(e, &spec));
    if (!count_work(e, &spec)) {
        give_up_loan(e);
        HY_TRY(make_plans(e, &spec));
        (void)count_work(e, &spec);
    }
    const hy_plan_work *need = &e->plan->work;
    uint64_t area = need->activations + need->workspace;
    HY_TRY(hy_arena_init(&w->arena, e->device.backend, &e->state->ledger, HY_DEVICE,
                         area + need->data, "activations and workspace"));
    w->passes = part_of(e, &e->state->ledger, 0, area);
    w->data = part_of(e, &e->state->ledger, area, need->data);
    uint64_t rings =
        e->plan->state.work_rings; /* at the end of the area; this part is never lent */
    w->ring_arena = part_of(e, NULL, area - rings, rings);
    if (need->loan[1]) (void)place_lent(e, need); /* its size was checked in count_work */
    uint64_t scratch =
        e->plan->choice.prediction_awaits_test ? 0 : e->state->rows->scratch[HY_PREDICTOR_BUFFERS];
    if (scratch) HY_TRY(hy_arena_push(&w->ring_arena, HY_WORKSPACE, scratch, (void **)&w->scratch));
    HY_TRY(push_parts(e, hy_engine_phase(e)));
    place_plans(e);
    HY_TRY(take_activations(e));
    HY_TRY(hy_work_take_buffers(e, &w->data, &spec, need));
    return take_results(e, &spec);
}

/* ---- giving back ----------------------------------------------------------------------------- */

void hy_work_release(hy_engine *e) {
    hy_work *w = e->work;
    hy_backend *b = e->device.backend;
    hy_batch_plan *plans[MOST_PLANS];
    size_t bytes = w->staging_rows * sizeof(int32_t);
    for (int i = 0, count = list_plans(e, plans); i < count; i++) hy_batch_plan_destroy(plans[i]);
    /* The count of the store is lost with it. */
    e->state->bytes_moved += w->activations.bytes_moved;
    hy_store_fini(&w->activations);
    for (int i = 0; w->staging && i < 2; i++) {
        hy_staging *s = &w->staging[i];
        void *arrays[] = {s->tokens, s->targets, s->doc_starts, s->reference, s->losses};
        for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
            if (arrays[k]) b->release(b, HY_PINNED, arrays[k], bytes);
        }
        if (s->is_done) b->event_destroy(s->is_done);
    }
    if (w->result) b->release(b, HY_PINNED, w->result, sizeof *w->result);
    if (w->fp8_stats) b->release(b, HY_PINNED, w->fp8_stats, fp8_stats_bytes(e));
    free(w->staging);
    free(w->guard_losses);
    clear_parts(e);
    hy_arena_clear(&w->data);
    hy_arena_fini(&w->host_arena);
    hy_arena_fini(&w->arena);
    *w = (hy_work){.is_gone = w->is_gone};
}

/* Enters Full, so that the memory of optimizer steps counts as live. */
hy_status hy_work_give_back(hy_engine *e) {
    if (e->work->is_gone) return HY_OK; /* an earlier change of plans failed */
    HY_TRY(hy_update_finish(e));        /* the clip factor is in the work area */
    HY_TRY(hy_engine_return_rings(e));
    HY_TRY(hy_engine_sync(e));
    if (!hy_phase_trains(hy_engine_phase(e))) {
        HY_TRY(hy_engine_enter_phase(e, &hy_phase_table[HY_FULL]));
    }
    hy_work_release(e);
    return HY_OK;
}

hy_status hy_engine_return_rings(hy_engine *e) {
    if (!e->work->rings_are_used) return HY_OK;
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    double begin = hy_clock();
    HY_TRY(hy_state_leave_work(e->state));
    e->state->host_waited += hy_clock() - begin;
    e->work->rings_are_used = false; /* set last: after a failure this is repeated */
    return HY_OK;
}
