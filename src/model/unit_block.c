/* unit_block.c: the list of a transformer block: attention, then mlp, each after a norm, and
 * added to the residual by its last matmul. See unit.h. */
#include "model/unit.h"

#include <math.h>

#define NONE HY_NO_SLOT

typedef struct block_slots {
    int8_t x, mid, out, dx;             /* residual (N,C) */
    int8_t n1, n2;                      /* normed residual (N,C) */
    int8_t raw_qkv, qkv, attended, lse; /* qkv is raw_qkv itself without qk-norm */
    int8_t q_norm, k_norm, q_norm_grad, k_norm_grad, head_rstd;
    int8_t wide, active; /* (N, F or 2F), (N,F) */
    int8_t doc_starts, rope;
    hy_norm_slots norm1, norm2;
    hy_linear qkv_proj, out_proj, up, down;
} block_slots;

static int8_t activation(hy_unit *unit, int32_t cols, hy_keep_group group) {
    int8_t slot = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, cols);
    unit->slots[slot].group = group;
    return slot;
}

static int8_t gradient(hy_unit *unit, int32_t cols) {
    return hy_unit_add_slot(unit, HY_SLOT_GRADIENT, cols);
}

static void add_attention_slots(hy_unit *unit, const hy_shape *s, block_slots *b) {
    b->n1 = activation(unit, s->width, HY_KEEP_CHEAP);
    b->raw_qkv = activation(unit, hy_shape_qkv(s), HY_KEEP_ATTENTION);
    b->qkv = b->raw_qkv;
    if (s->has_qk_norm) {
        b->qkv = activation(unit, hy_shape_qkv(s), HY_KEEP_ATTENTION);
        b->head_rstd = activation(unit, s->heads + s->kv_heads, HY_KEEP_ATTENTION);
        unit->slots[b->head_rstd].is_fp32 = true;
        b->q_norm = hy_unit_param(unit, HY_P_Q_NORM, &b->q_norm_grad);
        b->k_norm = hy_unit_param(unit, HY_P_K_NORM, &b->k_norm_grad);
    }
    b->attended = activation(unit, s->heads * s->head_size, HY_KEEP_ATTENTION);
    b->lse = activation(unit, s->heads, HY_KEEP_ATTENTION);
    unit->slots[b->lse].is_fp32 = true;
    unit->slots[b->lse].rows = HY_ROWS_LSE;
    b->doc_starts = hy_unit_given(unit, HY_GIVEN_DOC_STARTS);
    b->rope = s->has_rope ? hy_unit_given(unit, HY_GIVEN_ROPE) : NONE;
}

/* The backward of a gated function recomputes the input of the last matmul, so the transposed codes
 * of that input are computed in backward. */
static void add_fp8_slots(hy_unit *unit, const hy_shape *s, block_slots *b) {
    int32_t wide = s->mlp_width * (s->is_gated ? 2 : 1), heads = s->heads * s->head_size;
    hy_unit_linear_fp8(unit, &b->qkv_proj, HY_P_QKV, s->width, hy_shape_qkv(s));
    hy_unit_linear_fp8(unit, &b->out_proj, HY_P_OUT, heads, s->width);
    hy_unit_linear_fp8(unit, &b->up, HY_P_UP, s->width, wide);
    hy_unit_linear_fp8(unit, &b->down, HY_P_DOWN, s->mlp_width, s->width);
    b->norm1.largest = b->qkv_proj.largest;
    b->norm2.largest = b->up.largest;
    if (s->is_gated && b->down.in_transposed) {
        unit->slots[b->down.in_transposed].role = HY_SLOT_GRADIENT;
    }
}

static void add_adapters(hy_unit *unit, const hy_shape *s, block_slots *b) {
    hy_unit_add_adapter(unit, s, &b->qkv_proj, HY_P_QKV, s->width);
    hy_unit_add_adapter(unit, s, &b->out_proj, HY_P_OUT, s->heads * s->head_size);
    hy_unit_add_adapter(unit, s, &b->up, HY_P_UP, s->width);
    hy_unit_add_adapter(unit, s, &b->down, HY_P_DOWN, s->mlp_width);
}

static void add_slots(hy_unit *unit, const hy_shape *s, block_slots *b) {
    b->x = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_IN, s->width);
    b->out = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_OUT, s->width);
    b->dx = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_GRAD, s->width);
    b->norm1 = hy_unit_norm(unit, s, HY_P_NORM1);
    b->qkv_proj = hy_unit_linear(unit, HY_P_QKV, s->has_qkv_bias);
    b->out_proj = hy_unit_linear(unit, HY_P_OUT, hy_shape_out_bias(s));
    b->norm2 = hy_unit_norm(unit, s, HY_P_NORM2);
    b->up = hy_unit_linear(unit, HY_P_UP, hy_shape_mlp_bias(s));
    b->down = hy_unit_linear(unit, HY_P_DOWN, hy_shape_mlp_bias(s));
    add_attention_slots(unit, s, b);
    b->mid = activation(unit, s->width, HY_KEEP_RESIDUAL);
    b->n2 = activation(unit, s->width, HY_KEEP_CHEAP);
    b->wide = activation(unit, s->mlp_width * (s->is_gated ? 2 : 1), HY_KEEP_MLP);
    b->active = activation(unit, s->mlp_width, HY_KEEP_CHEAP);
    add_fp8_slots(unit, s, b);
    add_adapters(unit, s, b);
}

static hy_op_attr head_attr(const hy_unit *unit, const hy_shape *s, bool inverse) {
    return (hy_op_attr){.heads = {.heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_size,
                                  .window = unit->traits.window,
                                  .scale = (float)(1 / sqrt(s->head_size)),
                                  .eps = (float)s->norm_eps,
                                  .inverse = inverse}};
}

static void add_forward(hy_unit *unit, const hy_shape *s, const block_slots *b) {
    hy_unit_norm_forward(unit, s, &b->norm1, b->x, b->n1, false);
    hy_unit_linear_forward(unit, &b->qkv_proj, b->n1, b->raw_qkv, NONE);
    if (s->has_qk_norm) {
        HY_ADD_OP(unit, false, HY_OP_HEAD_NORM, .attr = head_attr(unit, s, false),
                  .slot[HY_HEAD_NORM_QKV] = b->raw_qkv, .slot[HY_HEAD_NORM_WQ] = b->q_norm,
                  .slot[HY_HEAD_NORM_WK] = b->k_norm, .slot[HY_HEAD_NORM_OUT] = b->qkv,
                  .slot[HY_HEAD_NORM_RSTD] = b->head_rstd);
    }
    if (s->has_rope) {
        HY_ADD_OP(unit, false, HY_OP_ROPE, .attr = head_attr(unit, s, false),
                  .slot[HY_ROPE_QKV] = b->qkv, .slot[HY_ROPE_TABLE] = b->rope);
    }
    HY_ADD_OP(unit, false, HY_OP_ATTENTION, .attr = head_attr(unit, s, false),
              .slot[HY_ATTENTION_QKV] = b->qkv, .slot[HY_ATTENTION_DOC_STARTS] = b->doc_starts,
              .slot[HY_ATTENTION_OUT] = b->attended, .slot[HY_ATTENTION_LSE] = b->lse);
    hy_unit_largest(unit, b->attended, b->out_proj.largest, false);
    hy_unit_linear_forward(unit, &b->out_proj, b->attended, b->mid, b->x);
    hy_unit_norm_forward(unit, s, &b->norm2, b->mid, b->n2, false);
    hy_unit_linear_forward(unit, &b->up, b->n2, b->wide, NONE);
    hy_linear down = b->down;
    if (s->is_gated) down.in_transposed = NONE;
    if (s->is_gated) {
        HY_ADD_OP(unit, false, HY_OP_SWIGLU, .slot[HY_SWIGLU_GATE_UP] = b->wide,
                  .slot[HY_SWIGLU_Y] = b->active, .slot[HY_SWIGLU_LARGEST] = b->down.largest);
    } else {
        HY_ADD_OP(unit, false, HY_OP_GELU, .slot[HY_GELU_X] = b->wide, .slot[HY_GELU_Y] = b->active,
                  .slot[HY_GELU_LARGEST] = b->down.largest);
    }
    hy_unit_linear_forward(unit, &down, b->active, b->out, b->mid);
}

/* Backward of the mlp's last matmul and of its activation function; returns the gradient of the
 * wide tensor, in memory that is no longer needed. The backward of a gated function reads both
 * halves anyway and recomputes its result over dactive: so it is neither kept nor recomputed
 * separately. */
static int8_t add_mlp_end_backward(hy_unit *unit, const hy_shape *s, const block_slots *b,
                                   int8_t dactive) {
    hy_unit_largest(unit, b->dx, b->down.dout_largest, true);
    if (!s->is_gated) {
        hy_unit_linear_backward(unit, &b->down, b->dx, b->active, dactive);
        HY_ADD_OP(unit, true, HY_OP_GELU_BWD, .slot[HY_GELU_BWD_DY] = dactive,
                  .slot[HY_GELU_BWD_X] = b->wide, .slot[HY_GELU_BWD_DX] = dactive,
                  .slot[HY_GELU_BWD_LARGEST] = b->up.dout_largest);
        return dactive;
    }
    hy_unit_linear_encode_back(unit, &b->down, b->dx);
    hy_unit_adapter_backward_low(unit, &b->down, b->dx);
    hy_unit_linear_backward_input(unit, &b->down, b->dx, dactive);
    HY_ADD_OP(unit, true, HY_OP_SWIGLU_BWD, .slot[HY_SWIGLU_BWD_DY] = dactive,
              .slot[HY_SWIGLU_BWD_GATE_UP] = b->wide, .slot[HY_SWIGLU_BWD_DGATE_UP] = b->wide,
              .slot[HY_SWIGLU_BWD_ACTIVE] = dactive,
              .slot[HY_SWIGLU_BWD_LARGEST] = b->up.dout_largest);
    hy_unit_linear_encode(unit, &b->down, dactive, true);
    hy_unit_linear_backward_params(unit, &b->down, b->dx, dactive);
    return b->wide;
}

static void add_attention_backward(hy_unit *unit, const hy_shape *s, const block_slots *b,
                                   int8_t dattended, int8_t dqkv) {
    HY_ADD_OP(unit, true, HY_OP_ATTENTION_BWD, .attr = head_attr(unit, s, false),
              .slot[HY_ATTENTION_BWD_DOUT] = dattended, .slot[HY_ATTENTION_BWD_QKV] = b->qkv,
              .slot[HY_ATTENTION_BWD_DOC_STARTS] = b->doc_starts,
              .slot[HY_ATTENTION_BWD_OUT] = b->attended, .slot[HY_ATTENTION_BWD_LSE] = b->lse,
              .slot[HY_ATTENTION_BWD_DQKV] = dqkv);
    if (s->has_rope) {
        HY_ADD_OP(unit, true, HY_OP_ROPE, .attr = head_attr(unit, s, true),
                  .slot[HY_ROPE_QKV] = dqkv, .slot[HY_ROPE_TABLE] = b->rope);
    }
    if (s->has_qk_norm) {
        HY_ADD_OP(unit, true, HY_OP_HEAD_NORM_BWD, .attr = head_attr(unit, s, false),
                  .slot[HY_HEAD_NORM_BWD_DOUT] = dqkv, .slot[HY_HEAD_NORM_BWD_QKV] = b->raw_qkv,
                  .slot[HY_HEAD_NORM_BWD_WQ] = b->q_norm, .slot[HY_HEAD_NORM_BWD_WK] = b->k_norm,
                  .slot[HY_HEAD_NORM_BWD_RSTD] = b->head_rstd, .slot[HY_HEAD_NORM_BWD_DQKV] = dqkv,
                  .slot[HY_HEAD_NORM_BWD_DWQ] = b->q_norm_grad,
                  .slot[HY_HEAD_NORM_BWD_DWK] = b->k_norm_grad);
    }
}

static void add_backward(hy_unit *unit, const hy_shape *s, const block_slots *b) {
    int8_t dactive = gradient(unit, s->mlp_width);
    int8_t dn2 = gradient(unit, s->width);
    int8_t dattended = gradient(unit, s->heads * s->head_size);
    int8_t dqkv = gradient(unit, hy_shape_qkv(s));
    int8_t dn1 = gradient(unit, s->width);
    int8_t dwide = add_mlp_end_backward(unit, s, b, dactive);
    hy_unit_linear_backward(unit, &b->up, dwide, b->n2, dn2);
    hy_unit_norm_backward(unit, s, &b->norm2, dn2, b->mid, b->dx, false);
    hy_unit_largest(unit, b->dx, b->out_proj.dout_largest, true);
    hy_unit_linear_backward(unit, &b->out_proj, b->dx, b->attended, dattended);
    add_attention_backward(unit, s, b, dattended, dqkv);
    hy_unit_largest(unit, dqkv, b->qkv_proj.dout_largest, true);
    hy_unit_linear_backward(unit, &b->qkv_proj, dqkv, b->n1, dn1);
    hy_unit_norm_backward(unit, s, &b->norm1, dn1, b->x, b->dx, false);
}

void hy_unit_block(hy_unit *unit, const hy_shape *shape) {
    block_slots slots = {0};
    unit->name = "block";
    add_slots(unit, shape, &slots);
    add_forward(unit, shape, &slots);
    add_backward(unit, shape, &slots);
}
