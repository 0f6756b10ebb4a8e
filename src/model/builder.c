/* builder.c: slots, ops and nodes of a unit that is being built. See builder.h. */
#include "model/builder.h"

#include <assert.h>

hy_slot_id hy_add_slot(hy_builder *b, hy_slot_role role, int32_t cols) {
    hy_unit *unit = b->unit;
    if (unit->slot_count == HY_NO_SLOT) unit->slot_count++;
    assert(unit->slot_count < HY_UNIT_SLOTS);
    unit->slots[unit->slot_count] = (hy_slot){.role = role, .cols = cols};
    return (hy_slot_id)unit->slot_count++;
}

hy_slot_id hy_add_activation(hy_builder *b, int32_t cols, hy_keep_group group) {
    hy_slot_id slot = hy_add_slot(b, HY_SLOT_ACTIVATION, cols);
    b->unit->slots[slot].group = group;
    return slot;
}

hy_slot_id hy_add_statistics(hy_builder *b, int32_t cols, hy_keep_group group) {
    hy_slot_id slot = hy_add_activation(b, cols, group);
    b->unit->slots[slot].is_fp32 = true;
    return slot;
}

hy_slot_id hy_add_given(hy_builder *b, hy_given given) {
    hy_slot_id slot = hy_add_slot(b, HY_SLOT_GIVEN, 0);
    b->unit->slots[slot].given = given;
    if (given > HY_GIVEN_LOSSES) b->unit->slots[slot].rows = HY_ROWS_FIXED;
    return slot;
}

hy_weight hy_add_weight(hy_builder *b, hy_param_kind kind, int64_t rows, int32_t cols) {
    hy_slot slot = {.role = HY_SLOT_PARAM,
                    .rows = HY_ROWS_FIXED,
                    .fixed_rows = (int32_t)rows,
                    .cols = cols,
                    .param = kind};
    hy_weight weight = {hy_add_slot(b, HY_SLOT_PARAM, 0), hy_add_slot(b, HY_SLOT_PARAM_GRAD, 0)};
    b->unit->slots[weight.value] = b->unit->slots[weight.grad] = slot;
    b->unit->slots[weight.grad].role = HY_SLOT_PARAM_GRAD;
    return weight;
}

hy_node *hy_add_node(hy_builder *b, hy_node_kind kind, hy_slot_id in, hy_slot_id out) {
    assert(b->count < HY_UNIT_NODES);
    hy_node *node = &b->nodes[b->count++];
    *node = (hy_node){.kind = kind, .range = b->range, .in = in, .out = out};
    return node;
}

hy_node *hy_node_that_makes(hy_builder *b, hy_slot_id slot) {
    for (int32_t i = b->count - 1; i >= 0; i--) {
        if (b->nodes[i].out == slot) return &b->nodes[i];
    }
    return NULL;
}

void hy_add_op(hy_builder *b, hy_unit_op op) {
    hy_unit *unit = b->unit;
    int32_t *count = b->is_backward ? &unit->backward_count : &unit->forward_count;
    assert(*count < HY_UNIT_OPS);
    op.range = b->range;
    (b->is_backward ? unit->backward : unit->forward)[(*count)++] = op;
}

hy_unit_op hy_matmul_op(hy_slot_id a, hy_slot_id b, hy_slot_id d, bool trans_a, bool trans_b) {
    return (hy_unit_op){.kind = HY_OP_MATMUL,
                        .attr.matmul = {.trans_a = trans_a, .trans_b = trans_b, .alpha = 1},
                        .slot = {[HY_MATMUL_A] = a, [HY_MATMUL_B] = b, [HY_MATMUL_D] = d}};
}

/* The gradient of what enters or leaves the unit is the residual's, in place. */
hy_slot_id hy_gradient_of(hy_builder *b, hy_slot_id of, bool *is_begun) {
    const hy_slot *slot = &b->unit->slots[of];
    hy_slot_id *gradient = &b->gradient[of];
    *is_begun = *gradient != HY_NO_SLOT;
    if (*is_begun) return *gradient;
    bool is_residual = slot->role == HY_SLOT_RESIDUAL_IN || slot->role == HY_SLOT_RESIDUAL_OUT;
    if (!is_residual) return *gradient = hy_add_slot(b, HY_SLOT_GRADIENT, slot->cols);
    *is_begun = slot->role == HY_SLOT_RESIDUAL_OUT;
    for (hy_slot_id s = 1; s < b->unit->slot_count; s++) {
        if (b->unit->slots[s].role == HY_SLOT_RESIDUAL_GRAD) *gradient = s;
    }
    return *gradient;
}
