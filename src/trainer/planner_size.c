/* planner_size.c: bytes and seconds of a choice. See planner_size.h.
 *
 * The batch plan of a candidate tells its bytes and its op lists the time. What the head needs depends on
 * the pieces of the loss alone and what the blocks need does not, so each is asked for once and they are
 * put together. State is counted by the stores' own rules. */
#include "trainer/planner_size.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "trainer/memory_plan.h"

/* As in batch_plans.c. */
#define HY_EVAL_FACTOR 8
#define HY_EVAL_BUSY_ROWS (1 << 16)

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- passes ---------------------------------------------------------------------------------------- */

/* The newest first: choices come in runs. */
static const hy_sized_pass *find_pass(const hy_sizer *z, const hy_sized_pass *key) {
    for (int32_t i = z->pass_count - 1; i >= 0; i--) {
        const hy_sized_pass *a = &z->passes[i];
        if (a->batch == key->batch && a->chunks == key->chunks && a->recompute == key->recompute &&
            a->recompute_layers == key->recompute_layers && a->offloads == key->offloads &&
            a->ring_depth == key->ring_depth && a->is_eval == key->is_eval &&
            a->dtype == key->dtype) {
            return a;
        }
    }
    return NULL;
}

static double seconds_of(const hy_sizer *z, const hy_batch_plan *plan, const hy_unit_plan *unit,
                         hy_pass pass) {
    return hy_plan_pass_seconds(plan, unit, pass, &z->speed);
}

static void time_pass(const hy_sizer *z, const hy_batch_plan *plan, hy_sized_pass *out) {
    double layers = z->model->shape.layers;
    double checkpointed = out->recompute_layers ? out->recompute_layers : layers;
    out->forward = seconds_of(z, plan, &plan->embedding, HY_PASS_FORWARD) +
                   layers * seconds_of(z, plan, &plan->checkpointed_block, HY_PASS_FORWARD);
    out->backward = seconds_of(z, plan, &plan->embedding, HY_PASS_BACKWARD) +
                    checkpointed * seconds_of(z, plan, &plan->checkpointed_block, HY_PASS_BACKWARD);
    if (checkpointed < layers) {
        out->backward +=
            (layers - checkpointed) * seconds_of(z, plan, &plan->stored_block, HY_PASS_BACKWARD);
    }
    out->head = seconds_of(z, plan, &plan->head, HY_PASS_BACKWARD);
}

/* `out` says what is asked for; the rest is filled in. */
static hy_status size_pass(hy_sizer *z, hy_sized_pass *out) {
    const hy_sized_pass *known = find_pass(z, out);
    hy_batch_options options = {.batch = out->batch,
                                .seq = z->seq,
                                .chunks = out->chunks,
                                .dtype = out->dtype,
                                .grad_dtype = z->grad_dtype,
                                .recompute = hy_recompute_groups(out->recompute),
                                .recompute_layers = out->recompute_layers,
                                .offloads = out->offloads,
                                .ring_depth = out->ring_depth,
                                .is_training = !out->is_eval,
                                .has_doc_starts = z->has_doc_starts,
                                .is_sizing = true,
                                .budget = z->budget};
    hy_batch_plan *plan;
    if (known) {
        *out = *known;
        return HY_OK;
    }
    HY_TRY(hy_batch_plan_create(z->model, z->backend, &options, &plan));
    out->bytes = plan->bytes;
    if (!out->is_eval) time_pass(z, plan, out);
    hy_batch_plan_destroy(plan);
    if (z->pass_count < HY_SIZED_PASSES) z->passes[z->pass_count++] = *out;
    return HY_OK;
}

/* Layers with a loss in as many pieces as there are rows, and the head with nothing recomputed: scratch
 * memory serves one unit at a time, so together they need the larger of both. */
static hy_status size_type(hy_sizer *z, const hy_plan_choice *c, hy_dtype dtype,
                           hy_sized_pass *out) {
    hy_sized_pass head = {.batch = c->batch, .chunks = c->loss_chunks, .dtype = dtype};
    *out = (hy_sized_pass){.batch = c->batch,
                           .chunks = c->batch * z->seq,
                           .recompute = c->recompute,
                           .recompute_layers = c->recompute_layers,
                           .offloads = c->activations != HY_DEVICE,
                           .ring_depth = c->activations != HY_DEVICE ? c->ring_depth : 0,
                           .dtype = dtype};
    HY_TRY(size_pass(z, out));
    HY_TRY(size_pass(z, &head));
    out->head = head.head;
    out->bytes.workspace = larger(out->bytes.workspace, head.bytes.workspace);
    return HY_OK;
}

/* ---- the work area ---------------------------------------------------------------------------------- */

/* Sizes of a batch for evaluation, as batch_plans.c chooses them: the largest multiple of the micro-batch
 * whose passes have room where training's are. */
static int32_t largest_eval_factor(const hy_sizer *z, int32_t batch) {
    int64_t most = z->backend->facts.is_gpu ? HY_EVAL_BUSY_ROWS : INT32_MAX;
    int32_t factor = HY_EVAL_FACTOR;
    while (factor > 1 && (int64_t)factor * batch * z->seq > most) factor /= 2;
    return factor;
}

/* The room that training has with everything recomputed, as batch_plans.c takes it for evaluation. */
static hy_status least_room(hy_sizer *z, const hy_plan_choice *choice, uint64_t *room) {
    hy_plan_choice least = *choice;
    hy_batch_bytes most = {0};
    least.recompute = HY_RECOMPUTE_ALL;
    least.recompute_layers = 0;
    least.activations = HY_DEVICE;
    for (int i = 0; i < z->type_count; i++) {
        hy_sized_pass sized;
        HY_TRY(size_type(z, &least, z->types[i], &sized));
        most.activations = larger(most.activations, sized.bytes.activations);
        most.workspace = larger(most.workspace, sized.bytes.workspace);
    }
    *room = most.activations + most.workspace;
    return HY_OK;
}

static hy_status size_eval(hy_sizer *z, const hy_plan_choice *c, hy_dtype dtype, uint64_t room,
                           hy_sized_pass *out) {
    int32_t factor = z->eval_batch ? 1 : largest_eval_factor(z, c->batch);
    for (;; factor /= 2) {
        *out = (hy_sized_pass){.batch = z->eval_batch ? z->eval_batch : factor * c->batch,
                               .chunks = c->loss_chunks,
                               .is_eval = true,
                               .dtype = dtype};
        HY_TRY(size_pass(z, out));
        if (factor == 1 || out->bytes.activations + out->bytes.workspace <= room) return HY_OK;
    }
}

/* Tokens, targets, losses and document masks; the table of rotations; small results; sums. */
static uint64_t data_bytes(const hy_sizer *z, int32_t batch) {
    const hy_shape *shape = &z->model->shape;
    uint64_t rows = (uint64_t)batch * (uint64_t)z->seq;
    uint64_t rope = shape->has_rope ? (uint64_t)z->seq * (uint64_t)shape->head_size * 4 : 0;
    hy_op_call sum = {.kind = HY_OP_SUM,
                      .t = {[HY_REDUCE_X] = hy_tensor_1d(NULL, HY_F32, (int64_t)rows)}};
    uint64_t sums = larger(z->sums, z->backend->workspace(z->backend, &sum));
    uint64_t arrays = z->has_doc_starts ? 4 : 3;
    return arrays * hy_align(rows * 4) + hy_align(rope) + 4 * hy_align(24) + hy_align(sums);
}

hy_status hy_sizer_work(void *sizer, const hy_plan_choice *choice, hy_plan_work *out) {
    hy_sizer *z = sizer;
    hy_batch_bytes most = {0};
    uint64_t eval = 0;
    int32_t largest_batch = choice->batch;
    *out = (hy_plan_work){0};
    for (int i = z->type_count - 1; i >= 0; i--) {
        hy_sized_pass sized;
        HY_TRY(size_type(z, choice, z->types[i], &sized));
        most.activations = larger(most.activations, sized.bytes.activations);
        most.workspace = larger(most.workspace, sized.bytes.workspace);
        out->pinned = larger(out->pinned, sized.bytes.host);
        out->forward = sized.forward; /* the first type's stays */
        out->backward = sized.backward + sized.head;
    }
    uint64_t room;
    HY_TRY(least_room(z, choice, &room));
    for (int i = 0; i < z->eval_type_count; i++) {
        hy_sized_pass sized;
        HY_TRY(size_eval(z, choice, z->eval_types[i], room, &sized));
        eval = larger(eval, hy_align(sized.bytes.activations) + hy_align(sized.bytes.workspace));
        if (sized.batch > largest_batch) largest_batch = sized.batch;
    }
    out->device = hy_align(larger(hy_align(most.activations) + most.workspace, eval + z->rings)) +
                  data_bytes(z, largest_batch);
    return HY_OK;
}

int32_t hy_sizer_chunks(void *sizer, int32_t batch, uint64_t logits) {
    const hy_sizer *z = sizer;
    uint64_t row = (uint64_t)hy_shape_vocab_rows(&z->model->shape) * hy_dtype_size(z->types[0]);
    int64_t rows = (int64_t)batch * z->seq;
    int64_t wanted = (int64_t)(((uint64_t)rows * row + logits - 1) / logits);
    if (wanted > rows) wanted = rows;
    while (rows % wanted != 0) wanted++;
    return (int32_t)wanted;
}

/* ---- state ------------------------------------------------------------------------------------------ */

static int32_t most_resident(const hy_sized_class *c) { return c->layout.unit_count; }

/* The stores' own plan of a ring, kept: the same ones are asked for again and again. */
static hy_ring_plan ring_of(const hy_sized_class *c, const hy_plan_choice *choice) {
    int32_t depth = choice->ring_depth, resident = choice->resident_units;
    if (resident > most_resident(c)) resident = most_resident(c);
    assert(depth >= 0 && depth <= HY_RING_MAX && resident >= 0);
    hy_ring_plan *known = &c->rings[depth * (most_resident(c) + 1) + resident];
    if (known->bytes == 0) *known = hy_store_plan_ring(&c->layout, depth, resident);
    return *known;
}

void hy_sizer_state(void *sizer, const hy_plan_choice *choice, hy_plan_state *out) {
    const hy_sizer *z = sizer;
    bool keeps_on_disk = choice->predictor == HY_DISK;
    *out = (hy_plan_state){.pinned = keeps_on_disk ? z->kept_staging : z->kept,
                           .disk = keeps_on_disk ? z->kept_on_disk : 0,
                           .kept = z->kept};
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        const hy_sized_class *c = &z->state[i];
        if (!c->is_there) continue;
        uint64_t copies = (uint64_t)c->copies;
        out->bytes[i] = copies * c->layout.bytes;
        if (choice->state[i] == HY_DEVICE) {
            out->device += out->bytes[i];
            continue;
        }
        hy_ring_plan ring = ring_of(c, choice);
        out->device += copies * ring.bytes;
        out->streamed[i] = out->bytes[i] - copies * ring.resident_bytes;
        if (choice->state[i] == HY_DISK) {
            out->disk += copies * c->on_disk;
            out->pinned += copies * c->staging;
        } else {
            out->pinned += out->bytes[i];
        }
    }
    if (choice->state[HY_PLAN_OPTIM] == HY_DEVICE) out->pinned += z->moved_optim;
}

/* ---- life ------------------------------------------------------------------------------------------- */

hy_status hy_sizer_begin(hy_sizer *z) {
    z->passes = calloc(HY_SIZED_PASSES, sizeof *z->passes);
    return z->passes ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for planning");
}

hy_status hy_sizer_add_class(hy_sizer *z, int cls, hy_dtype dtype, int copies) {
    hy_sized_class *c = &z->state[cls];
    *c = (hy_sized_class){.copies = copies};
    HY_TRY(hy_params_layout(&z->model->params, dtype, &c->layout));
    c->is_there = true;
    c->rings = calloc((HY_RING_MAX + 1) * ((size_t)most_resident(c) + 1), sizeof *c->rings);
    if (!c->rings) return hy_fail(HY_ERR_MEMORY, "no memory for planning");
    c->on_disk = hy_store_disk_bytes(&c->layout);
    c->staging = hy_store_staging_bytes(&c->layout, HY_DISK_BUFFERS);
    return HY_OK;
}

void hy_sizer_end(hy_sizer *z) {
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (z->state[i].is_there) hy_layout_fini(&z->state[i].layout);
        free(z->state[i].rings);
    }
    free(z->passes);
    *z = (hy_sizer){0};
}
