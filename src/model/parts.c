/* parts.c: the parts that families build their layers from. See builder.h. */
#include <math.h>

#include "model/builder.h"

#define NONE HY_NO_SLOT

static void add_norm(hy_builder *b, hy_param_kind kind, hy_slot_id in, hy_slot_id out,
                     hy_slot_id residual) {
    const hy_shape *s = b->shape;
    hy_node *node = hy_add_node(b, HY_NODE_NORM, in, out);
    node->residual = residual;
    node->attr.norm.offset = (float)s->more.norm_offset;
    node->attr.norm.eps = (float)s->norm_eps;
    node->attr.norm.is_rms = s->is_rms;
    node->norm.weight = hy_add_weight(b, kind, s->width, 0);
    /* Those of a norm that writes the unit's output are always kept: the output is not there to be
     * written again. */
    hy_keep_group group = residual == NONE ? HY_KEEP_RESIDUAL : (hy_keep_group)0;
    node->norm.rstd = hy_add_statistics(b, 0, group);
    if (s->is_rms) return;
    node->norm.bias = hy_add_weight(b, (hy_param_kind)(kind + 1), s->width, 0);
    node->norm.mean = hy_add_statistics(b, 0, group);
}

hy_slot_id hy_part_norm(hy_builder *b, hy_param_kind kind, hy_slot_id in) {
    hy_slot_id out = hy_add_activation(b, b->shape->width, HY_KEEP_CHEAP);
    add_norm(b, kind, in, out, NONE);
    return out;
}

static hy_slot_id part_result(hy_builder *b, hy_slot_id out, hy_keep_group group) {
    return out != NONE ? out : hy_add_activation(b, b->shape->width, group);
}

hy_slot_id hy_part_norm_onto(hy_builder *b, hy_param_kind kind, hy_slot_id in, hy_slot_id out,
                             hy_slot_id residual) {
    out = part_result(b, out, HY_KEEP_RESIDUAL);
    add_norm(b, kind, in, out, residual);
    return out;
}

void hy_part_linear(hy_builder *b, hy_param_kind kind, bool has_bias, hy_slot_id in, hy_slot_id out,
                    hy_slot_id residual) {
    hy_node *node = hy_add_node(b, HY_NODE_LINEAR, in, out);
    node->residual = residual;
    node->linear.alpha = 1;
    int32_t rows = b->unit->slots[out].cols;
    node->linear.weight = hy_add_weight(b, kind, rows, b->unit->slots[in].cols);
    if (has_bias) node->linear.bias = hy_add_weight(b, (hy_param_kind)(kind + 1), rows, 0);
}

hy_slot_id hy_part_output(hy_builder *b, hy_param_kind kind, bool has_bias, hy_slot_id in,
                          hy_slot_id out, hy_slot_id residual, hy_keep_group group) {
    out = part_result(b, out, residual != NONE ? HY_KEEP_RESIDUAL : group);
    hy_part_linear(b, kind, has_bias, in, out, residual);
    double scale = b->shape->more.residual_scale;
    if (scale != 0) b->nodes[b->count - 1].linear.alpha = (float)scale;
    return out;
}

static hy_op_attr heads_attr(const hy_builder *b) {
    const hy_shape *s = b->shape;
    double divisor = s->more.attention_divisor > 0 ? s->more.attention_divisor : s->head_size;
    return (hy_op_attr){
        .heads = {.heads = s->heads,
                  .kv_heads = s->kv_heads,
                  .head_dim = s->head_size,
                  .window = b->unit->traits.window,
                  .sparse_local = b->unit->traits.is_sparse ? s->sparse_local : 0,
                  .sparse_global = b->unit->traits.is_sparse ? s->sparse_global : 0,
                  .rotary = hy_shape_rotary(s) < s->head_size ? hy_shape_rotary(s) : 0,
                  .scale = (float)(s->more.attention_scale > 0 ? s->more.attention_scale
                                                               : 1 / sqrt(divisor)),
                  .softcap = (float)s->more.attention_softcap,
                  .is_whole = s->more.has_whole_qk_norm,
                  .norm_offset = (float)s->more.norm_offset,
                  .has_gates = s->more.has_gates,
                  .eps = (float)s->norm_eps}};
}

static hy_slot_id add_head_norm(hy_builder *b, hy_slot_id in) {
    const hy_shape *s = b->shape;
    hy_slot_id out = hy_add_activation(b, hy_shape_qkv(s), HY_KEEP_ATTENTION);
    hy_node *node = hy_add_node(b, HY_NODE_HEAD_NORM, in, out);
    node->attr = heads_attr(b);
    bool is_whole = s->more.has_whole_qk_norm;
    int32_t norms = is_whole ? 2 : s->heads + s->kv_heads;
    node->head_norm.rstd = hy_add_statistics(b, norms, HY_KEEP_ATTENTION);
    node->head_norm.q = hy_add_weight(b, HY_P_Q_NORM, s->head_size * (is_whole ? s->heads : 1), 0);
    node->head_norm.k =
        hy_add_weight(b, HY_P_K_NORM, s->head_size * (is_whole ? s->kv_heads : 1), 0);
    return out;
}

static void add_rope(hy_builder *b, hy_slot_id qkv) {
    hy_node *node = hy_add_node(b, HY_NODE_ROPE, qkv, qkv);
    node->attr = heads_attr(b);
    node->rope.table = hy_add_given(b, HY_GIVEN_ROPE);
    b->unit->slots[node->rope.table].at = b->unit->traits.rope == HY_ROPE_LOCAL;
    if (b->shape->more.rope.query_beta > 0) node->rope.query = hy_add_given(b, HY_GIVEN_QUERY);
}

hy_slot_id hy_part_attention(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual) {
    const hy_shape *s = b->shape;
    if (b->unit->traits.is_linear) return hy_part_linear_attention(b, in, out, residual);
    hy_slot_id qkv = hy_add_activation(b, hy_shape_qkv_rows(s), HY_KEEP_ATTENTION), made = qkv;
    hy_part_linear(b, HY_P_QKV, s->has_qkv_bias, in, qkv, NONE);
    if (s->has_qk_norm) qkv = add_head_norm(b, qkv);
    if (b->unit->traits.rope != HY_ROPE_ABSENT) add_rope(b, qkv);
    hy_slot_id attended = hy_add_activation(b, s->heads * s->head_size, HY_KEEP_ATTENTION);
    hy_node *node = hy_add_node(b, HY_NODE_ATTENTION, qkv, attended);
    node->attr = heads_attr(b);
    node->attention.lse = hy_add_statistics(b, s->heads, HY_KEEP_ATTENTION);
    b->unit->slots[node->attention.lse].rows = HY_ROWS_LSE;
    node->attention.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
    if (s->more.has_sinks) node->attention.sinks = hy_add_weight(b, HY_P_SINKS, s->heads, 0);
    if (s->more.has_gates)
        attended = hy_part_gates(b, attended, made, s->head_size, 2 * s->head_size);
    return hy_part_output(b, HY_P_OUT, hy_shape_out_bias(s), attended, out, residual,
                          HY_KEEP_ATTENTION);
}

hy_slot_id hy_part_mlp(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual) {
    static const hy_act functions[] = {HY_ACT_DEFAULT, HY_ACT_GELU_TANH, HY_ACT_GELU, HY_ACT_RELU2};
    const hy_shape *s = b->shape;
    bool has_bias = hy_shape_mlp_bias(s);
    hy_slot_id wide = hy_add_activation(b, s->mlp_width * (s->is_gated ? 2 : 1), HY_KEEP_MLP);
    hy_slot_id active = hy_add_activation(b, s->mlp_width, HY_KEEP_CHEAP);
    b->range = HY_RANGE_MLP;
    hy_part_linear(b, HY_P_UP, has_bias, in, wide, NONE);
    hy_node *node = hy_add_node(b, HY_NODE_ACTIVATION, wide, active);
    node->activation.is_gated = s->is_gated;
    node->attr.act.kind = functions[s->more.function];
    out = hy_part_output(b, HY_P_DOWN, has_bias, active, out, residual, HY_KEEP_MLP);
    b->range = HY_RANGE_NONE;
    return out;
}

void hy_part_embedding(hy_builder *b, hy_slot_id out) {
    hy_node *node = hy_add_node(b, HY_NODE_EMBED, hy_add_given(b, HY_GIVEN_TOKENS), out);
    const hy_shape *s = b->shape;
    node->attr.embed.scale = (float)s->more.embed_scale;
    node->embed.tokens = hy_add_weight(b, HY_P_TOKENS, s->vocab, s->width);
    if (s->has_rope) return;
    node->embed.positions = hy_add_weight(b, HY_P_POSITIONS, s->context, s->width);
    node->embed.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
}

static void add_answers(hy_builder *b, hy_node *node) {
    const hy_loss *loss = &b->unit->traits.loss;
    bool is_of_pairs = hy_loss_is_of_pairs(loss->kind);
    node->attr.loss.reads_prompts = loss->kind == HY_LOSS_ORPO;
    node->loss.token_losses = hy_add_given(b, HY_GIVEN_TOKEN_LOSSES);
    if (is_of_pairs) node->loss.doc_starts = hy_add_given(b, HY_GIVEN_DOC_STARTS);
    if (!is_of_pairs) node->loss.policy = hy_add_given(b, HY_GIVEN_POLICY);
    if (hy_loss_has_reference(loss)) node->loss.reference = hy_add_given(b, HY_GIVEN_REFERENCE);
    node->loss.stats = hy_add_given(b, HY_GIVEN_LOSS_STATS);
    node->loss.weights = hy_add_slot(b, HY_SLOT_GRADIENT, 0);
    node->loss.again = hy_add_slot(b, HY_SLOT_GRADIENT, 0);
    b->unit->slots[node->loss.weights].is_fp32 = b->unit->slots[node->loss.again].is_fp32 = true;
}

hy_head_logits hy_head_logits_of(const hy_shape *shape, const hy_loss *loss) {
    double divisor = shape->more.logit_divisor, temperature = hy_loss_temperature(loss);
    hy_head_logits out = {.softcap = (float)(shape->more.logit_softcap / temperature)};
    if (divisor > 0) out.factor = (float)(1 / (divisor * temperature));
    if (divisor <= 0 && temperature != 1) out.factor = (float)(1 / temperature);
    return out;
}

/* The logits exist only while a tile of rows is processed: matmul, loss, and in training both
 * gradients, before the next tile replaces them. The loss of answers takes two passes over the
 * tiles: losses of tokens, then, with the weights that follow from them, gradients. */
void hy_part_head(hy_builder *b, hy_slot_id in) {
    const hy_shape *s = b->shape;
    b->range = HY_RANGE_LOSS;
    hy_node *node = hy_add_node(b, HY_NODE_LOSS, in, NONE);
    node->attr.loss.vocab = s->vocab;
    node->attr.loss.scale = 1;
    hy_head_logits logits = hy_head_logits_of(s, &b->unit->traits.loss);
    node->attr.loss.factor = logits.factor;
    node->attr.loss.softcap = logits.softcap;
    node->loss.logits = hy_add_slot(b, HY_SLOT_GRADIENT, hy_shape_vocab_rows(s));
    node->loss.targets = hy_add_given(b, HY_GIVEN_TARGETS);
    node->loss.losses = hy_add_given(b, HY_GIVEN_LOSSES);
    node->loss.weight = hy_add_weight(b, HY_P_HEAD, s->vocab, s->width);
    if (b->unit->traits.loss.kind != HY_LOSS_NEXT_TOKEN) add_answers(b, node);
}

void hy_pre_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    hy_slot_id mid = hy_part_attention(b, hy_part_norm(b, HY_P_NORM1, in), NONE, in);
    hy_part_mlp(b, hy_part_norm(b, HY_P_NORM2, mid), out, mid);
}

void hy_sandwich_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    hy_slot_id attended = hy_part_attention(b, hy_part_norm(b, HY_P_NORM1, in), NONE, NONE);
    hy_slot_id mid = hy_part_norm_onto(b, HY_P_NORM1_AFTER, attended, NONE, in);
    hy_slot_id mapped = hy_part_mlp(b, hy_part_norm(b, HY_P_NORM2, mid), NONE, NONE);
    hy_part_norm_onto(b, HY_P_NORM2_AFTER, mapped, out, mid);
}

void hy_post_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    hy_slot_id mid =
        hy_part_norm_onto(b, HY_P_NORM1_AFTER, hy_part_attention(b, in, NONE, NONE), NONE, in);
    hy_part_norm_onto(b, HY_P_NORM2_AFTER, hy_part_mlp(b, mid, NONE, NONE), out, mid);
}

void hy_parallel_block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    hy_slot_id for_mlp = hy_part_norm(b, HY_P_NORM2, in);
    hy_slot_id mid = hy_part_attention(b, hy_part_norm(b, HY_P_NORM1, in), NONE, in);
    hy_part_mlp(b, for_mlp, out, mid);
}
