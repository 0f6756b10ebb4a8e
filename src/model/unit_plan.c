/* unit_plan.c: liveness, recomputation and memory of a unit, from its op lists. See unit_plan.h. */
#include "model/unit_plan.h"

#include <assert.h>

#include "kernels/ops.h"
#include "memory/layout.h"

hy_tensor hy_unit_slot_tensor(const hy_unit_plan *plan, int slot) {
    const hy_slot *s = &plan->unit->slots[slot];
    hy_dtype dtype = s->is_fp32 ? HY_F32 : s->fp8 ? s->fp8 : plan->size.dtype;
    int64_t B = plan->size.batch, T = plan->size.seq;
    int64_t N = plan->tile_of[slot] ? plan->size.tile_rows[plan->tile_of[slot]] : B * T;
    switch (s->rows) {
    case HY_ROWS_LSE: return (hy_tensor){.shape = {B, s->cols, T}, .ndim = 3, .dtype = dtype};
    case HY_ROWS_TRANSPOSED: return hy_tensor_2d(NULL, dtype, s->cols, B * T);
    case HY_ROWS_FIXED: return hy_tensor_2d(NULL, dtype, s->fixed_rows, s->cols);
    case HY_ROWS_ONE: return hy_tensor_1d(NULL, dtype, 1);
    case HY_ROWS_TOKENS: break;
    }
    if (s->cols == 0) return hy_tensor_1d(NULL, dtype, N);
    return hy_tensor_2d(NULL, dtype, N, s->cols);
}

uint64_t hy_unit_slot_bytes(const hy_unit_plan *plan, int slot) {
    hy_tensor t = hy_unit_slot_tensor(plan, slot);
    return hy_align(hy_tensor_bytes(&t)) + (plan->unit->slots[slot].fp8 ? HY_ALIGNMENT : 0);
}

/* Activations that forward computes and backward reads before it writes them itself. */
static bool is_wanted(const hy_unit *unit, int slot) {
    if (unit->slots[slot].role != HY_SLOT_ACTIVATION) return false;
    for (int i = 0; i < unit->backward_count; i++) {
        if (hy_unit_op_uses(&unit->backward[i], slot, HY_ACCESS_READ)) return true;
        if (hy_unit_op_uses(&unit->backward[i], slot, HY_ACCESS_WRITE)) return false;
    }
    return false;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static bool is_in_tiles(const hy_unit_plan *plan, const hy_unit_op *op) {
    return plan->size.tile_rows[op->range] > 0;
}

int32_t hy_unit_tiles(const hy_unit_plan *plan, hy_range range) {
    int32_t each = plan->size.tile_rows[range];
    return each > 0 ? hy_tile_count(plan->size.batch * plan->size.seq, each) : 1;
}

int32_t hy_unit_op_tiles(const hy_unit_plan *plan, const hy_unit_op *op) {
    return op->kind == HY_OP_SPREAD ? 1 : hy_unit_tiles(plan, op->range);
}

int32_t hy_unit_loop_end(const hy_unit_plan *plan, hy_pass pass, int32_t first) {
    const hy_pass_plan *list = &plan->pass[pass];
    hy_range range = list->ops[first]->range;
    int32_t end = first + 1;
    if (!is_in_tiles(plan, list->ops[first])) return end;
    while (end < list->op_count && list->ops[end]->range == range) end++;
    return end;
}

/* Slots with a row per token that only ops of one range use. What is always kept stays whole. */
static void find_tiles(hy_unit_plan *plan) {
    const hy_unit *unit = plan->unit;
    bool is_whole[HY_UNIT_SLOTS] = {[HY_NO_SLOT] = true};
    for (int i = 0; i < unit->forward_count + unit->backward_count; i++) {
        int back = i - unit->forward_count;
        const hy_unit_op *op = back < 0 ? &unit->forward[i] : &unit->backward[back];
        for (int t = 0; t < HY_OP_TENSORS; t++) {
            if (is_in_tiles(plan, op)) plan->tile_of[op->slot[t]] = op->range;
            is_whole[op->slot[t]] |= !is_in_tiles(plan, op);
        }
    }
    for (int s = 0; s < unit->slot_count; s++) {
        const hy_slot *slot = &unit->slots[s];
        bool is_inner = slot->role == HY_SLOT_GRADIENT || slot->role == HY_SLOT_ACTIVATION;
        if (!is_inner || slot->rows != HY_ROWS_TOKENS || (!slot->group && is_wanted(unit, s)))
            is_whole[s] = true;
        if (is_whole[s]) plan->tile_of[s] = HY_RANGE_NONE;
    }
}

static void choose_kept(hy_unit_plan *plan) {
    const hy_unit *unit = plan->unit;
    for (int s = 1; s < unit->slot_count; s++) {
        bool is_dropped = plan->tile_of[s] || (unit->slots[s].group & plan->size.recompute) != 0;
        plan->is_kept[s] = is_wanted(unit, s) && !is_dropped;
        if (!plan->is_kept[s]) continue;
        plan->kept_offset[s] = plan->kept_bytes;
        plan->kept_bytes += hy_unit_slot_bytes(plan, s);
    }
}

static void add_op(hy_pass_plan *pass, const hy_unit_op *op) {
    assert(pass->op_count < HY_PASS_OPS);
    pass->ops[pass->op_count++] = op;
}

/* ---- what backward runs ---------------------------------------------------------------------- */

/* The activations in memory at a point of the backward pass, while its list is written. */
typedef struct presence {
    bool is_here[HY_UNIT_SLOTS];
    bool is_spoilt[HY_UNIT_SLOTS]; /* backward has written a gradient over it */
    hy_range loop;                 /* the last op's range, if that runs in tiles */
} presence;

/* A recomputed norm output is computed again for each reader, which is cheaper than keeping it. In
 * a loop it stays. */
static bool is_made_for_one(const hy_unit_plan *plan, int slot) {
    if (plan->is_kept[slot] || !is_wanted(plan->unit, slot)) return false;
    for (int i = 0; i < plan->unit->forward_count; i++) {
        const hy_unit_op *op = &plan->unit->forward[i];
        if (op->kind == HY_OP_NORM && op->slot[HY_NORM_Y] == slot) return true;
    }
    return false;
}

/* Where a loop begins or ends, its slots are not there: after it, they have only the last tile. */
static void enter_loop(const hy_unit_plan *plan, presence *now, const hy_unit_op *op) {
    hy_range loop = is_in_tiles(plan, op) ? op->range : HY_RANGE_NONE;
    if (loop == now->loop) return;
    now->loop = loop;
    for (int s = 1; s < plan->unit->slot_count; s++) now->is_here[s] &= !plan->tile_of[s];
}

static void note_op(const hy_unit_plan *plan, presence *now, const hy_unit_op *op) {
    enter_loop(plan, now, op);
    for (int s = 1; s < plan->unit->slot_count; s++) {
        if (plan->unit->slots[s].role != HY_SLOT_ACTIVATION) continue;
        if (hy_unit_op_uses(op, s, HY_ACCESS_READ) && is_made_for_one(plan, s) && !now->loop)
            now->is_here[s] = false;
        if (hy_unit_op_uses(op, s, HY_ACCESS_WRITE)) now->is_here[s] = true;
    }
}

static void run_again(hy_unit_plan *plan, presence *now, const hy_unit_op *op);

/* Before `op`: adds the forward ops that compute its missing inputs, and no others. Before a loop,
 * only those outside of it: the ops of the loop follow inside. */
static void make_inputs(hy_unit_plan *plan, presence *now, const hy_unit_op *op,
                        bool is_before_loop) {
    const hy_unit *unit = plan->unit;
    for (int s = 1; s < unit->slot_count; s++) {
        bool is_missing = unit->slots[s].role == HY_SLOT_ACTIVATION && !now->is_here[s];
        if (!is_missing || !hy_unit_op_uses(op, s, HY_ACCESS_READ)) continue;
        for (int i = 0; i < unit->forward_count && &unit->forward[i] != op; i++) {
            const hy_unit_op *made = &unit->forward[i];
            if (!hy_unit_op_uses(made, s, HY_ACCESS_WRITE)) continue;
            if (is_before_loop && plan->tile_of[s])
                make_inputs(plan, now, made, true);
            else
                run_again(plan, now, made);
        }
    }
}

static void run_again(hy_unit_plan *plan, presence *now, const hy_unit_op *op) {
    if (is_in_tiles(plan, op) && !now->loop) make_inputs(plan, now, op, true);
    make_inputs(plan, now, op, false);
    for (int s = 1; s < plan->unit->slot_count; s++) {
        assert(!now->is_spoilt[s] || !hy_unit_op_uses(op, s, HY_ACCESS_BOTH));
    }
    add_op(&plan->pass[HY_PASS_BACKWARD], op);
    note_op(plan, now, op);
}

/* The fused form of a matmul and the op after it; false: they cannot be fused. */
static bool fuse_pair(const hy_unit *unit, hy_pass pass, const hy_unit_op *matmul,
                      const hy_unit_op *next, hy_unit_op *out) {
    bool is_fp8 = unit->slots[(int)matmul->slot[HY_MATMUL_A]].fp8;
    bool is_sum = matmul->slot[HY_MATMUL_C] != HY_NO_SLOT;
    if (matmul->kind != HY_OP_MATMUL || is_fp8 || is_sum) return false;
    if (next->attr.act.kind > HY_ACT_GELU_TANH) return false; /* only this one can be fused */
    hy_slot_id result = matmul->slot[HY_MATMUL_D];
    *out = *matmul;
    if (next->kind == HY_OP_GELU && next->slot[HY_GELU_X] == result && pass == HY_PASS_EVAL) {
        out->attr.matmul.is_gelu = true;
        out->slot[HY_MATMUL_D] = next->slot[HY_GELU_Y];
        return true;
    }
    if (next->kind == HY_OP_GELU_BWD && next->slot[HY_GELU_BWD_DY] == result &&
        next->slot[HY_GELU_BWD_DX] == result && next->slot[HY_GELU_BWD_LARGEST] == HY_NO_SLOT) {
        out->slot[HY_MATMUL_PRE] = next->slot[HY_GELU_BWD_X];
        return true;
    }
    return false;
}

static void add_backward(hy_unit_plan *plan) {
    const hy_unit *unit = plan->unit;
    presence now = {0};
    for (int s = 1; s < unit->slot_count; s++) now.is_here[s] = plan->is_kept[s];
    for (int i = 0; i < unit->backward_count; i++) {
        const hy_unit_op *op = &unit->backward[i];
        hy_unit_op fused;
        bool begins = is_in_tiles(plan, op) && (i == 0 || op[-1].range != op->range);
        for (int k = i; begins && k < unit->backward_count && unit->backward[k].range == op->range;)
            make_inputs(plan, &now, &unit->backward[k++], true);
        make_inputs(plan, &now, op, false);
        /* If this op and the next will be fused, the inputs of both must exist before the first. */
        bool may_fuse = plan->size.fuses_gelu && i + 1 < unit->backward_count;
        if (may_fuse && fuse_pair(unit, HY_PASS_BACKWARD, op, op + 1, &fused))
            make_inputs(plan, &now, op + 1, false);
        add_op(&plan->pass[HY_PASS_BACKWARD], op);
        note_op(plan, &now, op);
        for (int s = 1; s < unit->slot_count; s++) {
            bool is_activation = unit->slots[s].role == HY_SLOT_ACTIVATION;
            if (is_activation && hy_unit_op_uses(op, s, HY_ACCESS_WRITE)) now.is_spoilt[s] = true;
        }
    }
}

/* Stores an op that only this plan has. */
static const hy_unit_op *add_own(hy_unit_plan *plan, const hy_unit_op *op) {
    assert(plan->own_count < HY_OWN_OPS);
    plan->own[plan->own_count] = *op;
    return &plan->own[plan->own_count++];
}

static void fuse_ops(hy_unit_plan *plan, hy_pass pass_index) {
    hy_pass_plan *pass = &plan->pass[pass_index];
    int kept = 0;
    for (int i = 0; i < pass->op_count; i++) {
        hy_unit_op fused;
        bool is_fused = plan->own_count < HY_OWN_OPS && i + 1 < pass->op_count &&
                        fuse_pair(plan->unit, pass_index, pass->ops[i], pass->ops[i + 1], &fused);
        pass->ops[kept++] = is_fused ? add_own(plan, &fused) : pass->ops[i];
        i += is_fused;
    }
    pass->op_count = kept;
}

/* Is the slot that op i writes read later in the pass, or kept for another pass? */
static bool is_used(const hy_unit_plan *plan, hy_pass pass_index, int i, int slot) {
    const hy_pass_plan *pass = &plan->pass[pass_index];
    if (plan->is_kept[slot] && pass_index == HY_PASS_FORWARD) return true;
    for (int next = i + 1; next < pass->op_count; next++) {
        if (hy_unit_op_uses(pass->ops[next], slot, HY_ACCESS_READ)) return true;
        if (hy_unit_op_uses(pass->ops[next], slot, HY_ACCESS_WRITE)) return false;
    }
    return false;
}

/* Quantised values that no op of this pass reads are not computed: transposed ones in a forward
 * pass that keeps none, others in backward. */
static void trim_codes(hy_unit_plan *plan, hy_pass pass_index) {
    static const int results[] = {HY_TO_FP8_CODES, HY_TO_FP8_TRANSPOSED};
    hy_pass_plan *pass = &plan->pass[pass_index];
    int kept = 0;
    for (int i = 0; i < pass->op_count; i++) {
        hy_unit_op op = *pass->ops[i];
        const hy_unit_op *forward = plan->unit->forward;
        bool is_forward =
            pass->ops[i] >= forward && pass->ops[i] < forward + plan->unit->forward_count;
        bool is_again = pass_index == HY_PASS_BACKWARD && is_forward;
        int made = 0, left_out = 0;
        for (int r = 0; r < 2 && op.kind == HY_OP_TO_FP8; r++) {
            hy_slot_id *slot = &op.slot[results[r]];
            if (*slot == HY_NO_SLOT) continue;
            bool is_read = is_used(plan, pass_index, i, *slot);
            if (!is_read) *slot = HY_NO_SLOT;
            made += is_read;
            left_out += !is_read;
        }
        if (op.kind == HY_OP_TO_FP8 && is_again) { /* forward has counted it in its statistics */
            op.slot[HY_TO_FP8_SEEN] = HY_NO_SLOT;
            left_out++;
        }
        if (left_out > 0 && made == 0) continue;
        pass->ops[kept++] = left_out > 0 ? add_own(plan, &op) : pass->ops[i];
    }
    pass->op_count = kept;
}

static bool uses_params(const hy_unit *unit, const hy_pass_plan *pass) {
    for (int s = 1; s < unit->slot_count; s++) {
        if (unit->slots[s].role != HY_SLOT_PARAM) continue;
        for (int i = 0; i < pass->op_count; i++) {
            if (hy_unit_op_uses(pass->ops[i], s, HY_ACCESS_READ)) return true;
        }
    }
    return false;
}

/* ---- scratch memory -------------------------------------------------------------------------- */

/* A set of a pass's ops. */
enum { OP_WORDS = HY_PASS_OPS / 64 };
typedef struct op_set {
    uint64_t word[OP_WORDS];
} op_set;

/* A slot and the ops during which it needs its memory. */
typedef struct interval {
    int slot;
    op_set ops;
    uint64_t offset, bytes;
} interval;

static void add_ops(op_set *set, int first, int last) {
    for (int i = first; i <= last; i++) set->word[i / 64] |= (uint64_t)1 << i % 64;
}

static bool has_common(const op_set *a, const op_set *b) {
    uint64_t common = 0;
    for (int i = 0; i < OP_WORDS; i++) common |= a->word[i] & b->word[i];
    return common != 0;
}

/* From each op that writes the slot to the last that uses it before it is written again. */
static op_set live_ops(const hy_unit_plan *plan, hy_pass pass_index, int slot) {
    const hy_pass_plan *pass = &plan->pass[pass_index];
    op_set live = {0};
    int from = -1, begin = 0, end = 0; /* of a loop, or of one op */
    for (int i = 0; i < pass->op_count; i++) {
        if (i == end) begin = i, end = hy_unit_loop_end(plan, pass_index, i);
        if (!hy_unit_op_uses(pass->ops[i], slot, HY_ACCESS_BOTH)) continue;
        if (from < 0 || !hy_unit_op_uses(pass->ops[i], slot, HY_ACCESS_READ)) from = i;
        add_ops(&live, from, i);
        /* A slot with the rows of all tiles lives through the whole loop. */
        if (!plan->tile_of[slot]) add_ops(&live, begin, end - 1);
    }
    return live;
}

/* The lowest offset at which `live` overlaps none of the placed slots that live at the same
 * time. */
static uint64_t lowest_fit(const interval *placed, int count, const interval *live) {
    uint64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            bool in_time = has_common(&placed[i].ops, &live->ops);
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

/* Packs the slots that a pass computes in the unit and does not keep into scratch memory,
 * largest first. */
static void pack_scratch(hy_unit_plan *plan, hy_pass pass_index) {
    hy_pass_plan *pass = &plan->pass[pass_index];
    interval list[HY_UNIT_SLOTS];
    int count = 0;
    for (int s = 1; s < plan->unit->slot_count; s++) {
        hy_slot_role role = plan->unit->slots[s].role;
        bool is_kept = plan->is_kept[s] && pass_index != HY_PASS_EVAL;
        if (is_kept || (role != HY_SLOT_ACTIVATION && role != HY_SLOT_GRADIENT)) continue;
        interval live = {
            .slot = s, .ops = live_ops(plan, pass_index, s), .bytes = hy_unit_slot_bytes(plan, s)};
        if (!has_common(&live.ops, &live.ops)) continue;
        int at = count++;
        for (; at > 0 && list[at - 1].bytes < live.bytes; at--) list[at] = list[at - 1];
        list[at] = live;
    }
    for (int i = 0; i < count; i++) {
        list[i].offset = lowest_fit(list, i, &list[i]);
        uint64_t end = list[i].offset + list[i].bytes;
        pass->offset[list[i].slot] = list[i].offset;
        if (end > pass->scratch_bytes) pass->scratch_bytes = end;
    }
}

void hy_unit_plan_init(hy_unit_plan *plan, const hy_unit *unit, const hy_batch_size *size) {
    *plan = (hy_unit_plan){.unit = unit, .size = *size};
    find_tiles(plan);
    choose_kept(plan);
    for (int i = 0; i < unit->forward_count; i++) {
        add_op(&plan->pass[HY_PASS_FORWARD], &unit->forward[i]);
        add_op(&plan->pass[HY_PASS_EVAL], &unit->forward[i]);
    }
    add_backward(plan);
    for (int pass = 0; pass < HY_PASS_COUNT; pass++) {
        if (size->fuses_gelu) fuse_ops(plan, (hy_pass)pass);
        trim_codes(plan, (hy_pass)pass);
        pack_scratch(plan, (hy_pass)pass);
        plan->pass[pass].uses_params = uses_params(unit, &plan->pass[pass]);
    }
}
