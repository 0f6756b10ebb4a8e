/* sizer.c: bytes and seconds of a choice. See sizer.h.
 *
 * A candidate's batch plan gives its bytes, and its op lists give the time. The needs of the
 * head depend only on the loss chunks, and those of the blocks do not, so both are computed once
 * and combined. */
#include "plan/sizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LARGEST_EVAL_FACTOR 8 /* evaluation batches have at most this many training batches */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

hy_batch_options hy_pass_options(const hy_pass_spec *spec, const hy_plan_choice *c, hy_dtype dtype,
                                 bool is_training) {
    bool offloads = is_training && c->activations != HY_DEVICE;
    return (hy_batch_options){.batch = c->batch,
                              .seq = spec->seq,
                              .chunks = c->loss_chunks,
                              .mlp_chunks = c->mlp_chunks,
                              .dtype = hy_step_activations(dtype),
                              .grad_dtype = spec->grad_dtype,
                              .fp8 = dtype == HY_E4M3 ? spec->fp8 : (hy_fp8_use){0},
                              .frozen_dtype = hy_step_activations(spec->types[0]),
                              .recompute = is_training ? hy_recompute_groups(c->recompute) : 0,
                              .recompute_layers = is_training ? c->recompute_layers : 0,
                              .offloads = offloads,
                              .ring_depth = offloads ? c->ring_depth : 0,
                              .is_training = is_training,
                              .has_doc_starts = spec->has_doc_starts,
                              .budget = spec->budget};
}

/* At least two, or the noise cannot be measured. */
uint64_t hy_guard_sequences(double guard_share, const hy_plan_choice *c, int32_t ranks) {
    double wanted = floor(guard_share * ((double)c->batch * c->accum * ranks) + 0.5);
    return wanted < 2 ? 2 : (uint64_t)wanted;
}

/* ---- the work area --------------------------------------------------------------------------- */

static void add_bytes(hy_plan_work *w, const hy_batch_bytes *b, bool is_training, uint64_t rows) {
    hy_batch_bytes *most = is_training ? &w->train : &w->eval;
    uint64_t activations = is_training ? b->activations : hy_align(b->activations);
    uint64_t workspace = is_training ? b->workspace : hy_align(b->workspace);
    most->activations = larger(most->activations, activations);
    most->workspace = larger(most->workspace, workspace);
    most->ring = larger(most->ring, b->ring);
    most->host = larger(most->host, b->host);
    if (!is_training) w->eval_area = larger(w->eval_area, activations + workspace);
    w->rows = larger(w->rows, rows);
}

void hy_work_add(hy_plan_work *w, const hy_batch_plan *plan) {
    add_bytes(w, &plan->bytes, plan->options.is_training,
              (uint64_t)hy_batch_sequences(plan) * (uint64_t)plan->size.seq);
}

void hy_work_buffers(const hy_pass_spec *spec, const hy_plan_work *w,
                     uint64_t bytes[HY_BUFFER_COUNT]) {
    const hy_shape *shape = &spec->model->shape;
    uint64_t units = (uint64_t)spec->model->params.units;
    uint64_t array = w->rows * sizeof(int32_t);
    const hy_loss *loss = &spec->model->loss;
    bool is_of_answers = loss->kind != HY_LOSS_NEXT_TOKEN;
    const uint64_t all[HY_BUFFER_COUNT] = {
        [HY_BUFFER_TOKENS] = array,
        [HY_BUFFER_TARGETS] = array,
        [HY_BUFFER_DOC_STARTS] = spec->has_doc_starts ? array : 0,
        [HY_BUFFER_LOSSES] = array,
        [HY_BUFFER_TOKEN_LOSSES] = is_of_answers ? array : 0,
        [HY_BUFFER_REFERENCE] = hy_loss_has_reference(loss) ? array : 0,
        [HY_BUFFER_POLICY] = loss->kind == HY_LOSS_POLICY ? w->rows * sizeof(hy_policy_token) : 0,
        [HY_BUFFER_LOSS_STATS] = (uint64_t)hy_loss_stats(loss->kind) * sizeof(double),
        [HY_BUFFER_LOSS_SUM] = sizeof(double),
        [HY_BUFFER_SQUARE_SUM] = sizeof(double),
        [HY_BUFFER_DOTS] = 3 * sizeof(double),
        [HY_BUFFER_CLIP] = 2 * sizeof(float) + 2 * sizeof(int32_t),
        [HY_BUFFER_FP8] = hy_uses_fp8(&spec->fp8)
                              ? units * (HY_SEEN * sizeof(double) + HY_LINEARS * sizeof(float))
                              : 0,
        [HY_BUFFER_ROPE] = (uint64_t)hy_shape_rope_floats(shape, spec->seq) * sizeof(float),
        [HY_BUFFER_SUMS] = w->sums,
    };
    memcpy(bytes, all, sizeof all);
}

uint64_t hy_state_sums(const hy_optimizer *optimizer, const hy_params *params, hy_backend *b,
                       hy_dtype grad_dtype) {
    uint64_t most = hy_optimizer_workspace(optimizer, params, b, grad_dtype);
    for (int32_t i = 0; i < params->count; i++) {
        if (!params->list[i].is_trainable) continue;
        hy_op_call dot = {.kind = HY_OP_DIFF_DOT};
        dot.t[HY_DIFF_DOT_A] = hy_tensor_1d(NULL, HY_F32, params->list[i].count);
        most = larger(most, b->workspace(b, &dot));
    }
    return most;
}

/* Evaluation uses training's activations and workspace as one block, followed by the predictor's
 * rings; together they may need more than training. The buffers of the data come after both. */
void hy_work_total(hy_plan_work *w, const hy_pass_spec *spec, uint64_t rings) {
    w->activations = hy_align(w->train.activations);
    w->workspace = w->train.workspace;
    if (w->eval_area + rings > w->activations + w->workspace) {
        w->workspace = w->eval_area + rings - w->activations;
    }
    if (spec->area > w->activations + w->workspace) w->workspace = spec->area - w->activations;
    w->workspace = hy_align(w->workspace);
    w->caller = spec->caller;
    if (w->rows == 0) w->rows = 1; /* a custom model: no passes */
    hy_op_call sum = {.kind = HY_OP_SUM};
    sum.t[HY_REDUCE_X] = hy_tensor_1d(NULL, HY_F32, (int64_t)w->rows);
    w->sums = larger(spec->state_sums, spec->backend->workspace(spec->backend, &sum));
    uint64_t bytes[HY_BUFFER_COUNT];
    hy_work_buffers(spec, w, bytes);
    w->data = 0;
    for (int i = 0; i < HY_BUFFER_COUNT; i++) w->data += hy_align(bytes[i]);
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* The newest first: similar choices come in series. */
static const hy_sized_pass *find_pass(const hy_sizer *z, const hy_sized_pass *key) {
    for (int32_t i = z->passes->count - 1; i >= 0; i--) {
        const hy_sized_pass *a = &z->passes->pass[i];
        if (a->batch == key->batch && a->chunks == key->chunks &&
            a->mlp_chunks == key->mlp_chunks && a->recompute == key->recompute &&
            a->recompute_layers == key->recompute_layers && a->offloads == key->offloads &&
            a->ring_depth == key->ring_depth && a->is_eval == key->is_eval &&
            a->dtype == key->dtype && a->grad_dtype == key->grad_dtype) {
            return a;
        }
    }
    return NULL;
}

static void time_pass(const hy_sizer *z, const hy_batch_plan *plan, hy_sized_pass *out) {
    int32_t head = plan->model->params.units - 1;
    for (int32_t unit = 0; unit < head; unit++) {
        int32_t alike = hy_batch_alike(plan, unit);
        if (alike == 0) continue; /* counted with an equal unit */
        out->forward += alike * hy_plan_pass_seconds(plan, unit, HY_PASS_FORWARD, &z->speed);
        out->backward += alike * hy_plan_pass_seconds(plan, unit, HY_PASS_BACKWARD, &z->speed);
    }
    out->head = hy_plan_pass_seconds(plan, head, HY_PASS_BACKWARD, &z->speed);
    if (z->spec.has_reference_pass)
        out->head += hy_plan_pass_seconds(plan, head, HY_PASS_EVAL, &z->speed);
}

hy_status hy_sizer_pass(hy_sizer *z, hy_sized_pass *out) {
    out->grad_dtype = z->spec.grad_dtype;
    const hy_sized_pass *known = find_pass(z, out);
    hy_plan_choice choice = {.batch = out->batch,
                             .loss_chunks = out->chunks,
                             .mlp_chunks = out->mlp_chunks,
                             .recompute = out->recompute,
                             .recompute_layers = out->recompute_layers,
                             .activations = out->offloads ? HY_PINNED : HY_DEVICE,
                             .ring_depth = out->ring_depth};
    hy_batch_options options = hy_pass_options(&z->spec, &choice, out->dtype, !out->is_eval);
    options.is_sizing = true;
    hy_batch_plan *plan;
    if (known) {
        *out = *known;
        return HY_OK;
    }
    HY_TRY(hy_batch_plan_create(z->spec.model, z->spec.backend, &options, &plan));
    out->bytes = plan->bytes;
    if (!out->is_eval) time_pass(z, plan, out);
    hy_batch_plan_destroy(plan);
    if (z->passes->count < HY_SIZED_PASSES) z->passes->pass[z->passes->count++] = *out;
    return HY_OK;
}

/* Blocks are sized with the smallest head (one token per chunk), the head without recomputing. Only
 * one unit uses the workspace at a time, so the larger counts. */
hy_status hy_sizer_step(hy_sizer *z, const hy_plan_choice *c, hy_dtype dtype, hy_sized_pass *out) {
    hy_sized_pass head = {
        .batch = c->batch, .chunks = c->loss_chunks, .mlp_chunks = c->mlp_chunks, .dtype = dtype};
    *out = (hy_sized_pass){.batch = c->batch,
                           .chunks = c->batch * z->spec.seq,
                           .mlp_chunks = c->mlp_chunks,
                           .recompute = c->recompute,
                           .recompute_layers = c->recompute_layers,
                           .offloads = c->activations != HY_DEVICE,
                           .ring_depth = c->activations != HY_DEVICE ? c->ring_depth : 0,
                           .dtype = dtype};
    HY_TRY(hy_sizer_pass(z, out));
    HY_TRY(hy_sizer_pass(z, &head));
    out->head = head.head;
    out->bytes.workspace = larger(out->bytes.workspace, head.bytes.workspace);
    return HY_OK;
}

/* ---- forward-only batches -------------------------------------------------------------------- */

/* The bytes of training with everything recomputed. The evaluation batch must not depend on what
 * training recomputes or where it is kept, or validation would give different bits. */
static hy_status least_work(hy_sizer *z, const hy_plan_choice *choice, uint64_t *bytes) {
    hy_plan_choice least = *choice;
    hy_batch_bytes most = {0};
    least.recompute = HY_RECOMPUTE_ALL;
    least.recompute_layers = 0;
    least.activations = HY_DEVICE;
    for (int i = 0; i < z->spec.type_count; i++) {
        hy_sized_pass sized;
        HY_TRY(hy_sizer_step(z, &least, z->spec.types[i], &sized));
        most.activations = larger(most.activations, sized.bytes.activations);
        most.workspace = larger(most.workspace, sized.bytes.workspace);
    }
    *bytes = most.activations + most.workspace;
    return HY_OK;
}

/* The largest multiple of the micro-batch that fits into the training area. Enough rows keep a
 * GPU busy; more would only mean more matmuls to time. */
static hy_status size_eval(hy_sizer *z, const hy_plan_choice *c, hy_dtype dtype,
                           uint64_t most_bytes, hy_sized_pass *out) {
    int64_t most = z->spec.backend->facts.is_gpu ? HY_BUSY_ROWS : INT32_MAX;
    int32_t factor = z->spec.eval_batch ? 1 : LARGEST_EVAL_FACTOR;
    while (factor > 1 && (int64_t)factor * c->batch * z->spec.seq > most) factor /= 2;
    for (;; factor /= 2) {
        *out = (hy_sized_pass){.batch = z->spec.eval_batch ? z->spec.eval_batch : factor * c->batch,
                               .chunks = c->loss_chunks,
                               .mlp_chunks = c->mlp_chunks,
                               .is_eval = true,
                               .dtype = dtype};
        HY_TRY(hy_sizer_pass(z, out));
        if (factor == 1 || out->bytes.activations + out->bytes.workspace <= most_bytes)
            return HY_OK;
    }
}

static void set_times(const hy_sized_pass *pass, hy_plan_work *out) {
    out->forward = pass->forward;
    out->backward = pass->backward + pass->head;
}

hy_status hy_sizer_clock(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *work) {
    hy_batch_options options = hy_pass_options(&z->spec, choice, z->spec.types[0], true);
    hy_sized_pass pass = {0};
    hy_batch_plan *plan;
    options.is_sizing = true;
    HY_TRY(hy_batch_plan_create(z->spec.model, z->spec.backend, &options, &plan));
    z->speed.clock = z->spec.backend;
    time_pass(z, plan, &pass);
    z->speed.clock = NULL;
    hy_batch_plan_destroy(plan);
    set_times(&pass, work);
    return HY_OK;
}

/* All passes of a choice, training and forward-only. */
static hy_status size_passes(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *out) {
    const hy_pass_spec *spec = &z->spec;
    uint64_t most_bytes, rows = (uint64_t)choice->batch * (uint64_t)spec->seq;
    uint64_t ranks = spec->ranks > 1 ? (uint64_t)spec->ranks : 1;
    uint64_t guarded = hy_guard_sequences(spec->guard_share, choice, spec->ranks);
    hy_sized_pass sized;
    for (int i = spec->type_count - 1; i >= 0; i--) {
        HY_TRY(hy_sizer_step(z, choice, spec->types[i], &sized));
        add_bytes(out, &sized.bytes, true, rows);
        set_times(&sized, out); /* the last call is the first type's */
    }
    HY_TRY(least_work(z, choice, &most_bytes));
    for (int i = 0; i < spec->eval_type_count; i++) {
        HY_TRY(size_eval(z, choice, spec->eval_types[i], most_bytes, &sized));
        add_bytes(out, &sized.bytes, false, (uint64_t)sized.batch * (uint64_t)spec->seq);
        out->eval_batch[hy_plan_index(spec->eval_types[i])] = sized.batch;
        /* The last type is Predict's. */
        uint64_t wanted = (guarded + ranks - 1) / ranks;
        out->guard_batch = wanted < (uint64_t)sized.batch ? (int32_t)wanted : sized.batch;
    }
    /* Places decide how many slices there will be: data buffers are long enough for the most. */
    uint64_t slices = (uint64_t)hy_most_slices(spec, out);
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        out->rows = larger(out->rows, slices * (uint64_t)(out->eval_batch[i] * spec->seq));
    }
    return HY_OK;
}

hy_status hy_sizer_work(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *out) {
    hy_plan_state state;
    *out = (hy_plan_work){0};
    if (hy_model_has_passes(z->spec.model)) HY_TRY(size_passes(z, choice, out));
    hy_rows_need(z->rows, choice, &z->rings, &state);
    hy_work_total(out, &z->spec, state.work_rings);
    return HY_OK;
}

int32_t hy_sizer_chunks(const hy_sizer *z, int32_t batch, uint64_t logits) {
    const hy_pass_spec *spec = &z->spec;
    uint64_t row = (uint64_t)hy_shape_vocab_rows(&spec->model->shape) *
                   hy_dtype_size(hy_step_activations(spec->types[0]));
    int64_t rows = (int64_t)batch * spec->seq;
    return hy_batch_divide(rows, (int64_t)(((uint64_t)rows * row + logits - 1) / logits));
}

void hy_sizer_state(hy_sizer *z, const hy_plan_choice *choice, hy_plan_state *out) {
    hy_rows_need(z->rows, choice, &z->rings, out);
    bool is_here = choice->state[HY_PLAN_OPTIM] == HY_DEVICE;
    if (hy_offload_moves(z->offload) && is_here) out->moved = out->bytes[HY_PLAN_OPTIM];
}

/* ---- creating -------------------------------------------------------------------------------- */

hy_status hy_sizer_create(const hy_sizer *from, const hy_rows_spec *spec, hy_sizer **out) {
    hy_sizer *z = *out = malloc(sizeof *z);
    if (!z) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    *z = *from;
    z->rows = calloc(1, sizeof *z->rows);
    z->owns_passes = !z->passes;
    if (!z->passes) z->passes = calloc(1, sizeof *z->passes);
    bool has_all = z->passes && z->rows;
    hy_status status = has_all ? hy_rows_init(z->rows, &z->spec.model->params, spec) : HY_OK;
    for (int i = 0; i < HY_ROW_COUNT && has_all; i++) {
        if (!z->rows->row[i].kind) continue;
        size_t most = (size_t)z->rows->row[i].layout.unit_count;
        z->rings.of[i] = calloc((HY_RING_MAX + 1) * (most + 1), sizeof *z->rings.of[i]);
        has_all = z->rings.of[i] != NULL;
    }
    if (!has_all) status = hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    if (status != HY_OK) hy_sizer_destroy(z);
    return status;
}

void hy_sizer_destroy(hy_sizer *z) {
    for (int i = 0; i < HY_ROW_COUNT; i++) free(z->rings.of[i]);
    if (z->rows) hy_rows_fini(z->rows);
    free(z->rows);
    if (z->owns_passes) free(z->passes);
    free(z);
}
