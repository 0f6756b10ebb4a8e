/* unit.c: the kinds of units. See unit.h; their lists are written in builder.h. */
#include "model/unit.h"

#include <string.h>

#include "kernels/ops.h"
#include "model/arch/arch.h"
#include "model/builder.h"

int hy_recompute_groups(hy_recompute recompute) {
    static const int groups[HY_RECOMPUTE_COUNT] = {
        [HY_RECOMPUTE_NORM] = HY_KEEP_CHEAP,
        [HY_RECOMPUTE_ATTENTION] = HY_KEEP_CHEAP | HY_KEEP_ATTENTION,
        [HY_RECOMPUTE_MLP] = HY_KEEP_CHEAP | HY_KEEP_MLP,
        [HY_RECOMPUTE_ALL] = HY_KEEP_ALL,
    };
    return recompute == HY_RECOMPUTE_AUTO ? 0 : groups[recompute];
}

bool hy_unit_traits_equal(const hy_unit_traits *a, const hy_unit_traits *b) {
    return a->part == b->part && a->is_linear == b->is_linear && a->window == b->window &&
           a->is_sparse == b->is_sparse && a->rope == b->rope && a->trained == b->trained &&
           memcmp(a->stored, b->stored, sizeof a->stored) == 0 && a->in_16_bits == b->in_16_bits &&
           a->passes_back == b->passes_back && a->fp8.weights == b->fp8.weights &&
           a->fp8.grads == b->fp8.grads && a->fp8.gradient == b->fp8.gradient &&
           a->fp8.is_fast == b->fp8.is_fast && a->fp8.is_frozen == b->fp8.is_frozen &&
           a->loss.kind == b->loss.kind && a->loss.beta == b->loss.beta &&
           a->loss.margin == b->loss.margin && a->loss.likelihood == b->loss.likelihood &&
           memcmp(&a->loss.policy, &b->loss.policy, sizeof a->loss.policy) == 0;
}

bool hy_unit_op_uses(const hy_unit_op *op, int slot, int access) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (op->slot[i] == slot && (hy_op_access(op->kind, i) & access)) return true;
    }
    return false;
}

hy_unit_traits hy_unit_traits_of(const hy_shape *s, int32_t unit) {
    hy_unit_traits traits = {.part = HY_PART_BLOCK, .trained = ~(uint64_t)0, .passes_back = true};
    if (unit == 0) traits.part = HY_PART_EMBEDDING;
    if (unit == s->layers + 1) traits.part = HY_PART_HEAD;
    if (traits.part != HY_PART_BLOCK) return traits;
    traits.is_linear = hy_shape_is_linear(s, unit - 1);
    if (traits.is_linear) return traits;
    traits.window = hy_shape_window(s, unit - 1);
    traits.is_sparse = hy_shape_is_sparse(s, unit - 1);
    traits.rope = hy_shape_rope(s, unit - 1);
    return traits;
}

static void build_embedding(hy_builder *b) {
    hy_slot_id out = hy_add_slot(b, HY_SLOT_RESIDUAL_OUT, b->shape->width);
    hy_part_embedding(b, out);
}

static void build_block(hy_builder *b) {
    hy_slot_id in = hy_add_slot(b, HY_SLOT_RESIDUAL_IN, b->shape->width);
    hy_slot_id out = hy_add_slot(b, HY_SLOT_RESIDUAL_OUT, b->shape->width);
    hy_shape_family(b->shape)->block(b, in, out);
}

static void build_head(hy_builder *b) {
    hy_slot_id in = hy_add_slot(b, HY_SLOT_RESIDUAL_IN, b->shape->width);
    hy_part_head(b, hy_part_norm(b, HY_P_FINAL_NORM, in));
}

void hy_unit_init(hy_unit *unit, const hy_shape *shape, const hy_unit_traits *traits) {
    static const struct {
        const char *name;
        void (*build)(hy_builder *b);
    } parts[] = {
        [HY_PART_EMBEDDING] = {"embedding", build_embedding},
        [HY_PART_BLOCK] = {"block", build_block},
        [HY_PART_HEAD] = {"head", build_head},
    };
    hy_builder b = {.unit = unit, .shape = shape};
    *unit = (hy_unit){.name = parts[traits->part].name, .traits = *traits};
    hy_add_slot(&b, HY_SLOT_RESIDUAL_GRAD, shape->width);
    parts[traits->part].build(&b);
    hy_builder_finish(&b);
}
