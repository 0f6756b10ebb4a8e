/* unit_plan.c: liveness, recomputation and memory of a unit, from its op lists. See unit_plan.h. */
#include "model/unit_plan.h"

#include <assert.h>

#include "kernels/access.h"
#include "memory/layout.h"

hy_tensor hy_unit_slot_tensor(const hy_unit_plan *plan, int slot) {
    const hy_slot *s = &plan->unit->slots[slot];
    hy_dtype dtype = s->is_fp32 ? HY_F32 : plan->size.dtype;
    int64_t B = plan->size.batch, T = plan->size.seq;
    switch (s->rows) {
    case HY_ROWS_CHUNK: return hy_tensor_2d(NULL, dtype, plan->size.chunk_rows, s->cols);
    case HY_ROWS_LSE: return (hy_tensor){.shape = {B, s->cols, T}, .ndim = 3, .dtype = dtype};
    case HY_ROWS_TOKENS: break;
    }
    if (s->cols == 0) return hy_tensor_1d(NULL, dtype, B * T);
    return hy_tensor_2d(NULL, dtype, B * T, s->cols);
}

static bool uses(const hy_unit_op *op, int slot, int access) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (op->slot[i] == slot && (hy_op_access(op->kind, i) & access)) return true;
    }
    return false;
}

/* Memory of a slot is planned here when it is made inside the unit; the logits have a place of their
 * own. */
static bool is_local(const hy_slot *slot) {
    return (slot->role == HY_SLOT_ACTIVATION || slot->role == HY_SLOT_GRADIENT) &&
           slot->rows != HY_ROWS_CHUNK;
}

/* Activations that forward made and backward reads before it writes them itself. */
static bool is_wanted(const hy_unit *unit, int slot) {
    if (unit->slots[slot].role != HY_SLOT_ACTIVATION) return false;
    for (int i = 0; i < unit->backward_count; i++) {
        if (uses(&unit->backward[i], slot, HY_ACCESS_READ)) return true;
        if (uses(&unit->backward[i], slot, HY_ACCESS_WRITE)) return false;
    }
    return false;
}

static void choose_kept(hy_unit_plan *plan) {
    const hy_unit *unit = plan->unit;
    for (int s = 1; s < unit->slot_count; s++) {
        bool is_dropped = (unit->slots[s].group & plan->size.recompute) != 0;
        plan->is_kept[s] = is_wanted(unit, s) && !is_dropped;
        if (!plan->is_kept[s]) continue;
        hy_tensor t = hy_unit_slot_tensor(plan, s);
        plan->kept_offset[s] = plan->kept_bytes;
        plan->kept_bytes += hy_align(hy_tensor_bytes(&t));
    }
}

static void add_op(hy_pass_plan *pass, const hy_unit_op *op) {
    assert(pass->op_count < 2 * HY_UNIT_OPS);
    pass->ops[pass->op_count++] = op;
}

/* The forward ops that make the wanted slots that were not kept: walks forward from its end and takes
 * every op that writes something missing, whose own inputs then are wanted too. */
static void add_recomputation(hy_unit_plan *plan) {
    const hy_unit *unit = plan->unit;
    bool is_missing[HY_UNIT_SLOTS] = {false}, is_taken[HY_UNIT_OPS] = {false};
    for (int s = 1; s < unit->slot_count; s++) {
        is_missing[s] = is_wanted(unit, s) && !plan->is_kept[s];
    }
    for (int i = unit->forward_count - 1; i >= 0; i--) {
        const hy_unit_op *op = &unit->forward[i];
        for (int s = 1; s < unit->slot_count; s++) {
            if (is_missing[s] && uses(op, s, HY_ACCESS_WRITE)) is_taken[i] = true;
        }
        for (int s = 1; is_taken[i] && s < unit->slot_count; s++) {
            bool is_made_here = unit->slots[s].role == HY_SLOT_ACTIVATION;
            if (is_made_here && !plan->is_kept[s] && uses(op, s, HY_ACCESS_READ)) {
                is_missing[s] = true;
            }
        }
    }
    for (int i = 0; i < unit->forward_count; i++) {
        if (is_taken[i]) add_op(&plan->pass[HY_PASS_BACKWARD], &unit->forward[i]);
    }
}

/* What a product and the op behind it make together; false when they are not such a pair. */
static bool fuse_pair(hy_pass pass, const hy_unit_op *product, const hy_unit_op *next,
                      hy_unit_op *out) {
    bool is_pair = product->kind == HY_OP_MATMUL && next->slot[0] == product->slot[2];
    *out = *product;
    if (is_pair && next->kind == HY_OP_GELU && pass == HY_PASS_EVAL) {
        out->attr.matmul.is_gelu = true;
        out->slot[2] = next->slot[1];
        return true;
    }
    if (is_pair && next->kind == HY_OP_GELU_BWD && next->slot[2] == product->slot[2]) {
        out->slot[6] = next->slot[1];
        return true;
    }
    return false;
}

static void fuse_ops(hy_unit_plan *plan, hy_pass pass_index) {
    hy_pass_plan *pass = &plan->pass[pass_index];
    int kept = 0;
    for (int i = 0; i < pass->op_count; i++) {
        hy_unit_op fused;
        bool is_fused = plan->fused_count < HY_FUSED_OPS && i + 1 < pass->op_count &&
                        fuse_pair(pass_index, pass->ops[i], pass->ops[i + 1], &fused);
        pass->ops[kept] = pass->ops[i];
        if (is_fused) {
            plan->fused[plan->fused_count] = fused;
            pass->ops[kept] = &plan->fused[plan->fused_count++];
            i++;
        }
        kept++;
    }
    pass->op_count = kept;
}

typedef struct interval {
    int slot, first, last; /* ops during which it is live; slot 0: none */
    uint64_t offset, bytes;
} interval;

static interval live_interval(const hy_unit_plan *plan, const hy_pass_plan *pass, int slot) {
    interval live = {.first = -1};
    for (int i = 0; i < pass->op_count; i++) {
        if (!uses(pass->ops[i], slot, HY_ACCESS_BOTH)) continue;
        if (live.first < 0) live.first = i;
        live.last = i;
    }
    /* Chunked ops run in turns, so what one of them touches lives through all of them. */
    for (int i = 0; live.first >= 0 && i < pass->op_count; i++) {
        if (!pass->ops[i]->is_chunked) continue;
        bool touches = (pass->ops[live.first]->is_chunked || pass->ops[live.last]->is_chunked);
        if (touches && i < live.first && pass->ops[live.first]->is_chunked) live.first = i;
        if (touches && i > live.last && pass->ops[live.last]->is_chunked) live.last = i;
    }
    hy_tensor t = hy_unit_slot_tensor(plan, slot);
    live.slot = live.first >= 0 ? slot : 0;
    live.bytes = hy_align(hy_tensor_bytes(&t));
    return live;
}

/* The lowest offset at which `live` meets none of the placed intervals it shares time with. */
static uint64_t lowest_fit(const interval *placed, int count, const interval *live) {
    uint64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            bool in_time = placed[i].first <= live->last && live->first <= placed[i].last;
            bool in_space = placed[i].offset < offset + live->bytes &&
                            offset < placed[i].offset + placed[i].bytes;
            if (in_time && in_space) {
                offset = placed[i].offset + placed[i].bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* Packs the slots of a pass that are not kept into scratch memory, largest first. */
static void pack_scratch(hy_unit_plan *plan, hy_pass pass_index) {
    hy_pass_plan *pass = &plan->pass[pass_index];
    interval waiting[HY_UNIT_SLOTS], placed[HY_UNIT_SLOTS];
    int waiting_count = 0, placed_count = 0;
    for (int s = 1; s < plan->unit->slot_count; s++) {
        bool is_kept = plan->is_kept[s] && pass_index != HY_PASS_EVAL;
        if (is_kept || !is_local(&plan->unit->slots[s])) continue;
        interval live = live_interval(plan, pass, s);
        if (live.slot) waiting[waiting_count++] = live;
    }
    while (placed_count < waiting_count) {
        int largest = -1;
        for (int i = 0; i < waiting_count; i++) {
            if (!waiting[i].slot) continue;
            if (largest < 0 || waiting[i].bytes > waiting[largest].bytes) largest = i;
        }
        interval live = waiting[largest];
        waiting[largest].slot = 0;
        live.offset = lowest_fit(placed, placed_count, &live);
        placed[placed_count++] = live;
        pass->offset[live.slot] = live.offset;
        if (live.offset + live.bytes > pass->scratch_bytes) {
            pass->scratch_bytes = live.offset + live.bytes;
        }
    }
}

void hy_unit_plan_init(hy_unit_plan *plan, const hy_unit *unit, const hy_batch_size *size) {
    *plan = (hy_unit_plan){.unit = unit, .size = *size};
    choose_kept(plan);
    for (int i = 0; i < unit->forward_count; i++) {
        add_op(&plan->pass[HY_PASS_FORWARD], &unit->forward[i]);
        add_op(&plan->pass[HY_PASS_EVAL], &unit->forward[i]);
    }
    add_recomputation(plan);
    for (int i = 0; i < unit->backward_count; i++) {
        add_op(&plan->pass[HY_PASS_BACKWARD], &unit->backward[i]);
    }
    for (int pass = 0; pass < HY_PASS_COUNT; pass++) {
        if (size->fuses_gelu) fuse_ops(plan, (hy_pass)pass);
        pack_scratch(plan, (hy_pass)pass);
    }
}
