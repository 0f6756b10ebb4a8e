/* parts_linear.c: linear attention, and gates of attention's output. See builder.h.
 *
 *   mixed = conv(in Wqkv')     out = delta rule(mixed, in Wba')
 *   result = norm(out) silu(in Wz') Wout' */
#include "model/builder.h"

#define NONE HY_NO_SLOT

static hy_slot_id project(hy_builder *b, hy_param_kind kind, hy_slot_id in, int32_t cols) {
    hy_slot_id out = hy_add_activation(b, cols, HY_KEEP_ATTENTION);
    hy_part_linear(b, kind, false, in, out, NONE);
    return out;
}

/* A pass over the row, as cheap to compute again as an activation function. */
static hy_slot_id add_conv(hy_builder *b, hy_slot_id in) {
    int32_t cols = b->unit->slots[in].cols;
    hy_slot_id out = hy_add_activation(b, cols, HY_KEEP_CHEAP);
    hy_node *node = hy_add_node(b, HY_NODE_CONV, in, out);
    node->conv.weight = hy_add_weight(b, HY_P_CONV, cols, b->shape->more.linear.taps);
    node->conv.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
    return out;
}

static hy_slot_id add_delta(hy_builder *b, hy_slot_id qkv, hy_slot_id gates) {
    const hy_linear_options *l = &b->shape->more.linear;
    hy_slot_id out = hy_add_activation(b, hy_shape_linear_out(b->shape), HY_KEEP_ATTENTION);
    hy_node *node = hy_add_node(b, HY_NODE_DELTA, qkv, out);
    node->attr.delta = (hy_delta_attr){.key_heads = l->key_heads,
                                       .heads = l->heads,
                                       .key_dim = l->key_dim,
                                       .value_dim = l->value_dim};
    node->delta.gates = gates;
    node->delta.a_log = hy_add_weight(b, HY_P_A_LOG, l->heads, 0);
    node->delta.dt_bias = hy_add_weight(b, HY_P_DT_BIAS, l->heads, 0);
    node->delta.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
    return out;
}

static hy_node *add_gate(hy_builder *b, hy_slot_id x, hy_slot_id gate) {
    hy_slot_id out = hy_add_activation(b, b->unit->slots[x].cols, HY_KEEP_CHEAP);
    hy_node *node = hy_add_node(b, HY_NODE_GATE, x, out);
    node->gate.gate = gate;
    return node;
}

hy_slot_id hy_part_gates(hy_builder *b, hy_slot_id x, hy_slot_id gate, int32_t column,
                         int32_t stride) {
    const hy_shape *s = b->shape;
    hy_node *node = add_gate(b, x, gate);
    node->attr.gate.heads = s->heads;
    node->attr.gate.head_dim = s->head_size;
    node->attr.gate.column = column;
    node->attr.gate.stride = stride;
    return node->out;
}

static hy_slot_id add_gated_norm(hy_builder *b, hy_slot_id x, hy_slot_id gate) {
    const hy_linear_options *l = &b->shape->more.linear;
    hy_node *node = add_gate(b, x, gate);
    node->attr.gate.heads = l->heads;
    node->attr.gate.head_dim = node->attr.gate.stride = l->value_dim;
    node->attr.gate.eps = (float)b->shape->norm_eps;
    node->gate.weight = hy_add_weight(b, HY_P_LINEAR_NORM, l->value_dim, 0);
    node->gate.rstd = hy_add_statistics(b, l->heads, HY_KEEP_ATTENTION);
    return node->out;
}

hy_slot_id hy_part_linear_attention(hy_builder *b, hy_slot_id in, hy_slot_id out,
                                    hy_slot_id residual) {
    const hy_shape *s = b->shape;
    hy_slot_id mixed = project(b, HY_P_LINEAR_QKV, in, hy_shape_linear_qkv(s));
    hy_slot_id z = project(b, HY_P_LINEAR_Z, in, hy_shape_linear_out(s));
    hy_slot_id gates = project(b, HY_P_LINEAR_BA, in, 2 * s->more.linear.heads);
    hy_slot_id attended = add_delta(b, add_conv(b, mixed), gates);
    return hy_part_output(b, HY_P_LINEAR_OUT, false, add_gated_norm(b, attended, z), out, residual,
                          HY_KEEP_ATTENTION);
}
