/* memory_plan.c: what the run keeps, where, and taking it. See trainer.h.
 *
 * The plan is made before anything is taken: batch plans say what passes need, layouts what the state
 * needs. It is written into the ledger, held against the budget, and then taken in two arenas: state
 * (weights, gradients, optimizer) and work (activations, workspace, logits, data). */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "trainer/trainer.h"

typedef struct work_bytes {
    uint64_t activations, workspace, logits, data;
} work_bytes;

static int recompute_groups(const char *name) {
    if (strcmp(name, "norm") == 0) return HY_KEEP_CHEAP;
    if (strcmp(name, "attention") == 0) return HY_KEEP_CHEAP | HY_KEEP_ATTENTION;
    if (strcmp(name, "mlp") == 0) return HY_KEEP_CHEAP | HY_KEEP_MLP;
    if (strcmp(name, "all") == 0) return HY_KEEP_ALL;
    return 0;
}

static hy_dtype choose_precision(const hy_settings *s) {
    /* auto on a CPU: its arithmetic is fp32 anyway, so 16 bits would only add conversions */
    return strcmp(s->train.precision, "bf16") == 0 ? HY_BF16 : HY_F32;
}

static int32_t sample_seq(const hy_settings *s) {
    int64_t wanted = s->eval.sample_tokens + (int64_t)strlen(s->eval.prompt) + 1;
    return (int32_t)(wanted < s->train.seq_len ? wanted : s->train.seq_len);
}

static hy_status make_plans(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    int64_t eval_batch = s->eval.eval_batch_size ? s->eval.eval_batch_size : s->train.batch_size;
    hy_batch_options options = {.batch = (int32_t)s->train.batch_size,
                                .seq = (int32_t)s->train.seq_len,
                                .chunks = (int32_t)s->train.loss_chunks,
                                .dtype = t->precision,
                                .grad_dtype = HY_F32,
                                .recompute = recompute_groups(s->train.recompute),
                                .is_training = true};
    HY_TRY(hy_batch_plan_create(t->model, t->backend, &options, &t->train_plan));
    options.is_training = false;
    options.batch = (int32_t)eval_batch;
    HY_TRY(hy_batch_plan_create(t->model, t->backend, &options, &t->eval_plan));
    options.batch = 1;
    options.chunks = options.seq = sample_seq(s); /* one row of logits at a time */
    return hy_batch_plan_create(t->model, t->backend, &options, &t->sample_plan);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Sums over losses and gradients use the same workspace as passes do, in turn with them. */
static uint64_t reduce_workspace(const hy_trainer *t, uint64_t rows) {
    hy_op_call sum = {.kind = HY_OP_SUM};
    sum.t[0] = hy_tensor_1d(NULL, HY_F32, (int64_t)rows);
    sum.t[1] = hy_tensor_1d(NULL, HY_F64, 1);
    return larger(t->backend->workspace(t->backend, &sum),
                  hy_adamw_workspace(&t->model->params, t->backend, HY_F32));
}

static work_bytes work_needed(const hy_trainer *t) {
    const hy_batch_plan *plans[] = {t->train_plan, t->eval_plan, t->sample_plan};
    work_bytes need = {0};
    uint64_t rows = 0;
    for (int i = 0; i < 3; i++) {
        need.activations = larger(need.activations, plans[i]->bytes.activations);
        need.workspace = larger(need.workspace, plans[i]->bytes.workspace);
        need.logits = larger(need.logits, plans[i]->bytes.logits);
        rows = larger(rows, (uint64_t)plans[i]->size.batch * (uint64_t)plans[i]->size.seq);
    }
    need.workspace = larger(need.workspace, reduce_workspace(t, rows));
    uint64_t rope = t->model->shape.has_rope ? (uint64_t)t->train_plan->size.seq *
                                                   (uint64_t)t->model->shape.head_size * 4
                                             : 0;
    need.data = 3 * hy_align(rows * 4) + hy_align(rope) + 3 * hy_align(16);
    return need;
}

static void plan_class(hy_trainer *t, hy_class cls, hy_dtype dtype, uint64_t bytes) {
    for (int phase = HY_WARMUP; phase <= HY_FULL; phase++) {
        hy_ledger_plan(&t->ledger, cls, (hy_phase)phase, bytes ? HY_DEVICE : HY_NOWHERE, dtype,
                       bytes);
    }
}

static hy_status hold_against_budget(const hy_trainer *t, uint64_t bytes) {
    const hy_settings *s = &t->settings;
    uint64_t budget = (uint64_t)s->memory.max_gpu_mem;
    const char *name = "max_gpu_mem";
    if (!budget) {
        budget = (uint64_t)s->memory.cpu_mem;
        name = "cpu_mem";
    }
    if (!budget) {
        budget = t->backend->facts.memory_free;
        name = "free memory";
    }
    if (bytes <= budget) return HY_OK;
    char need[32], have[32], shorter[32];
    return hy_fail(HY_ERR_INPUT,
                   "this run needs %s and %s is %s: %s short. Smaller batch_size with more "
                   "grad_accum_steps, recompute = all or a smaller model would need less",
                   hy_format_bytes((double)bytes, need, sizeof need), name,
                   hy_format_bytes((double)budget, have, sizeof have),
                   hy_format_bytes((double)(bytes - budget), shorter, sizeof shorter));
}

static hy_status take_state(hy_trainer *t, const hy_layout *low, const hy_layout *full) {
    HY_TRY(hy_store_init(&t->weights, &t->state_arena, HY_WEIGHTS, low));
    if (t->has_master) HY_TRY(hy_store_init(&t->master, &t->state_arena, HY_MASTER, full));
    HY_TRY(hy_store_init(&t->grads, &t->state_arena, HY_GRADS, full));
    HY_TRY(hy_store_init(&t->m, &t->state_arena, HY_OPTIM, full));
    return hy_store_init(&t->v, &t->state_arena, HY_OPTIM, full);
}

static hy_status take_buffers(hy_trainer *t) {
    hy_pass_buffers *b = &t->buffers;
    hy_arena *arena = &t->work_arena;
    int64_t train_rows = (int64_t)t->train_plan->size.batch * t->train_plan->size.seq;
    int64_t eval_rows = (int64_t)t->eval_plan->size.batch * t->eval_plan->size.seq;
    size_t rows = (size_t)larger((uint64_t)train_rows, (uint64_t)eval_rows);
    size_t rope = (size_t)t->train_plan->size.seq * (size_t)t->model->shape.head_size * sizeof(float);
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->tokens));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->targets));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->losses));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->loss_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->square_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, 2 * sizeof(float), (void **)&b->clip));
    if (t->model->shape.has_rope) {
        HY_TRY(hy_arena_push(arena, HY_DATA, rope, (void **)&b->rope));
    }
    t->host_tokens = malloc(rows * sizeof *t->host_tokens);
    t->host_targets = malloc(rows * sizeof *t->host_targets);
    if (!t->host_tokens || !t->host_targets) {
        return hy_fail(HY_ERR_MEMORY, "no memory to stage %zu tokens", rows);
    }
    return t->backend->alloc(t->backend, HY_PINNED, sizeof *t->result, (void **)&t->result);
}

static hy_status fill_rope_table(hy_trainer *t) {
    if (!t->buffers.rope) return HY_OK;
    int32_t seq = t->train_plan->size.seq;
    size_t bytes = (size_t)seq * (size_t)t->model->shape.head_size * sizeof(float);
    float *table = malloc(bytes);
    if (!table) return hy_fail(HY_ERR_MEMORY, "no memory for the rope table");
    hy_shape_rope_table(&t->model->shape, seq, table);
    hy_status status = t->backend->copy(t->compute, t->buffers.rope, table, bytes);
    if (status == HY_OK) status = t->backend->stream_sync(t->compute);
    free(table);
    return status;
}

static hy_status take_work(hy_trainer *t, const work_bytes *need) {
    void *activations, *workspace, *logits;
    hy_arena *arena = &t->work_arena;
    HY_TRY(hy_arena_push(arena, HY_ACTIVATIONS, need->activations, &activations));
    HY_TRY(hy_arena_push(arena, HY_WORKSPACE, need->workspace, &workspace));
    HY_TRY(hy_arena_push(arena, HY_LOGITS, need->logits, &logits));
    hy_batch_plan_place(t->train_plan, activations, workspace, logits);
    hy_batch_plan_place(t->eval_plan, activations, workspace, logits);
    hy_batch_plan_place(t->sample_plan, activations, workspace, logits);
    t->buffers.reduce_workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)need->workspace);
    HY_TRY(take_buffers(t));
    return fill_rope_table(t);
}

static void write_plan(hy_trainer *t, const hy_layout *low, const hy_layout *full,
                       const work_bytes *need) {
    plan_class(t, HY_WEIGHTS, t->precision, low->bytes);
    plan_class(t, HY_MASTER, HY_F32, t->has_master ? full->bytes : 0);
    plan_class(t, HY_GRADS, HY_F32, full->bytes);
    plan_class(t, HY_OPTIM, HY_F32, 2 * full->bytes);
    plan_class(t, HY_ACTIVATIONS, t->precision, hy_align(need->activations));
    plan_class(t, HY_WORKSPACE, t->precision, hy_align(need->workspace));
    plan_class(t, HY_LOGITS, t->precision, hy_align(need->logits));
    plan_class(t, HY_DATA, HY_I32, need->data);
}

static hy_status take_planned(hy_trainer *t, const hy_layout *low, const hy_layout *full) {
    work_bytes need = work_needed(t);
    write_plan(t, low, full, &need);
    uint64_t state = low->bytes + (t->has_master ? 4 : 3) * full->bytes;
    uint64_t work = hy_align(need.activations) + hy_align(need.workspace) +
                    hy_align(need.logits) + need.data;
    HY_TRY(hold_against_budget(t, state + work));
    HY_TRY(hy_arena_init(&t->state_arena, t->backend, &t->ledger, HY_DEVICE, state,
                         "weights, gradients and optimizer state"));
    HY_TRY(hy_arena_init(&t->work_arena, t->backend, &t->ledger, HY_DEVICE, work,
                         "activations and workspace"));
    HY_TRY(take_state(t, low, full));
    return take_work(t, &need);
}

hy_status hy_trainer_take_memory(hy_trainer *t) {
    t->precision = choose_precision(&t->settings);
    t->has_master = t->precision != HY_F32;
    HY_TRY(make_plans(t));
    hy_layout low = {0}, full = {0};
    hy_status status = hy_params_layout(&t->model->params, t->precision, &low);
    if (status == HY_OK) status = hy_params_layout(&t->model->params, HY_F32, &full);
    if (status == HY_OK) status = take_planned(t, &low, &full);
    hy_layout_fini(&low);
    hy_layout_fini(&full);
    return status;
}
