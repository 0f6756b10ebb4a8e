/* parts.c: the parts that families build their layers from. See builder.h. */
#include <math.h>

#include "model/builder.h"

#define NONE HY_NO_SLOT

static hy_slot_id statistics(hy_builder *b, int32_t cols, hy_keep_group group) {
    hy_slot_id slot = hy_add_activation(b, cols, group);
    b->unit->slots[slot].is_fp32 = true;
    return slot;
}

hy_slot_id hy_part_norm(hy_builder *b, hy_param_kind kind, hy_slot_id in) {
    const hy_shape *s = b->shape;
    hy_slot_id out = hy_add_activation(b, s->width, HY_KEEP_CHEAP);
    hy_node *node = hy_add_node(b, HY_NODE_NORM, in, out);
    node->attr.norm.eps = (float)s->norm_eps;
    node->attr.norm.is_rms = s->is_rms;
    node->norm.weight = hy_add_weight(b, kind, s->width, 0);
    node->norm.rstd = statistics(b, 0, HY_KEEP_RESIDUAL);
    if (s->is_rms) return out;
    node->norm.bias = hy_add_weight(b, (hy_param_kind)(kind + 1), s->width, 0);
    node->norm.mean = statistics(b, 0, HY_KEEP_RESIDUAL);
    return out;
}

void hy_part_linear(hy_builder *b, hy_param_kind kind, bool has_bias, hy_slot_id in, hy_slot_id out,
                    hy_slot_id residual) {
    hy_node *node = hy_add_node(b, HY_NODE_LINEAR, in, out);
    node->residual = residual;
    int32_t rows = b->unit->slots[out].cols;
    node->linear.weight = hy_add_weight(b, kind, rows, b->unit->slots[in].cols);
    if (has_bias) node->linear.bias = hy_add_weight(b, (hy_param_kind)(kind + 1), rows, 0);
}

static hy_slot_id part_result(hy_builder *b, hy_slot_id out) {
    return out != NONE ? out : hy_add_activation(b, b->shape->width, HY_KEEP_RESIDUAL);
}

static hy_op_attr heads_attr(const hy_builder *b) {
    const hy_shape *s = b->shape;
    return (hy_op_attr){.heads = {.heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_size,
                                  .window = b->unit->traits.window,
                                  .scale = (float)(1 / sqrt(s->head_size)),
                                  .eps = (float)s->norm_eps}};
}

static hy_slot_id add_head_norm(hy_builder *b, hy_slot_id in) {
    const hy_shape *s = b->shape;
    hy_slot_id out = hy_add_activation(b, hy_shape_qkv(s), HY_KEEP_ATTENTION);
    hy_node *node = hy_add_node(b, HY_NODE_HEAD_NORM, in, out);
    node->attr = heads_attr(b);
    node->head_norm.rstd = statistics(b, s->heads + s->kv_heads, HY_KEEP_ATTENTION);
    node->head_norm.q = hy_add_weight(b, HY_P_Q_NORM, s->head_size, 0);
    node->head_norm.k = hy_add_weight(b, HY_P_K_NORM, s->head_size, 0);
    return out;
}

hy_slot_id hy_part_attention(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual) {
    const hy_shape *s = b->shape;
    hy_slot_id qkv = hy_add_activation(b, hy_shape_qkv(s), HY_KEEP_ATTENTION);
    hy_part_linear(b, HY_P_QKV, s->has_qkv_bias, in, qkv, NONE);
    if (s->has_qk_norm) qkv = add_head_norm(b, qkv);
    if (s->has_rope) {
        hy_node *rope = hy_add_node(b, HY_NODE_ROPE, qkv, qkv);
        rope->attr = heads_attr(b);
        rope->rope.table = hy_add_given(b, HY_GIVEN_ROPE);
    }
    hy_slot_id attended = hy_add_activation(b, s->heads * s->head_size, HY_KEEP_ATTENTION);
    hy_node *node = hy_add_node(b, HY_NODE_ATTENTION, qkv, attended);
    node->attr = heads_attr(b);
    node->attention.lse = statistics(b, s->heads, HY_KEEP_ATTENTION);
    b->unit->slots[node->attention.lse].rows = HY_ROWS_LSE;
    node->attention.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
    out = part_result(b, out);
    hy_part_linear(b, HY_P_OUT, hy_shape_out_bias(s), attended, out, residual);
    return out;
}

hy_slot_id hy_part_mlp(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual) {
    const hy_shape *s = b->shape;
    bool has_bias = hy_shape_mlp_bias(s);
    hy_slot_id wide = hy_add_activation(b, s->mlp_width * (s->is_gated ? 2 : 1), HY_KEEP_MLP);
    hy_slot_id active = hy_add_activation(b, s->mlp_width, HY_KEEP_CHEAP);
    hy_part_linear(b, HY_P_UP, has_bias, in, wide, NONE);
    hy_add_node(b, HY_NODE_ACTIVATION, wide, active)->activation.is_gated = s->is_gated;
    out = part_result(b, out);
    hy_part_linear(b, HY_P_DOWN, has_bias, active, out, residual);
    return out;
}

void hy_part_embedding(hy_builder *b, hy_slot_id out) {
    hy_node *node = hy_add_node(b, HY_NODE_EMBED, hy_add_given(b, HY_GIVEN_TOKENS), out);
    const hy_shape *s = b->shape;
    node->embed.tokens = hy_add_weight(b, HY_P_TOKENS, s->vocab, s->width);
    if (s->has_rope) return;
    node->embed.positions = hy_add_weight(b, HY_P_POSITIONS, s->context, s->width);
    node->embed.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
}

/* The logits exist only while a chunk of rows is processed: matmul, loss, and in training both
 * gradients, before the next chunk replaces them. */
void hy_part_head(hy_builder *b, hy_slot_id in) {
    const hy_shape *s = b->shape;
    hy_node *node = hy_add_node(b, HY_NODE_LOSS, in, NONE);
    node->attr.loss.vocab = s->vocab;
    node->attr.loss.scale = 1;
    node->loss.logits = hy_add_slot(b, HY_SLOT_GRADIENT, hy_shape_vocab_rows(s));
    b->unit->slots[node->loss.logits].rows = HY_ROWS_CHUNK;
    node->loss.targets = hy_add_given(b, HY_GIVEN_TARGETS);
    node->loss.losses = hy_add_given(b, HY_GIVEN_LOSSES);
    node->loss.weight = hy_add_weight(b, HY_P_HEAD, s->vocab, s->width);
}

void hy_pre_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    hy_slot_id mid = hy_part_attention(b, hy_part_norm(b, HY_P_NORM1, in), NONE, in);
    hy_part_mlp(b, hy_part_norm(b, HY_P_NORM2, mid), out, mid);
}
