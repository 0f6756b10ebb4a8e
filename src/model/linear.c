/* linear.c: a matrix with its bias, its adapter and its matmuls in fp8: slots, and the ops of both
 * directions. See builder.h. */
#include "model/builder.h"

#define NONE HY_NO_SLOT

static hy_slot_id fp8_slot(hy_builder *b, hy_slot_role role, hy_slot_rows rows, int32_t cols,
                           hy_dtype dtype) {
    hy_slot_id slot = hy_add_slot(b, role, cols);
    b->unit->slots[slot].rows = rows;
    b->unit->slots[slot].fp8 = dtype;
    b->unit->slots[slot].group = HY_KEEP_CHEAP;
    return slot;
}

/* The op that computes the input also finds its largest magnitude, for the first linear in fp8 that
 * reads it. A norm that adds a residual cannot. */
static void ask_for_largest(hy_builder *b, hy_linear *l, hy_slot_id in) {
    hy_node *made = hy_node_that_makes(b, in);
    bool is_able = made && made->residual == NONE &&
                   (made->kind == HY_NODE_NORM || made->kind == HY_NODE_ACTIVATION);
    if (!is_able || made->largest != NONE) return;
    made->largest = l->largest;
    l->has_largest = true;
}

static bool reads_gated(hy_builder *b, const hy_node *node) {
    const hy_node *made = hy_node_that_makes(b, node->in);
    return made && made->kind == HY_NODE_ACTIVATION && made->activation.is_gated;
}

void hy_linear_add_fp8(hy_builder *b, hy_node *node) {
    hy_linear *l = &node->linear;
    hy_slot *slots = b->unit->slots;
    hy_param_kind kind = slots[l->weight.value].param;
    int32_t in = slots[node->in].cols, out = slots[node->out].cols;
    const hy_unit_traits *traits = &b->unit->traits;
    bool is_trained = traits->trained >> kind & 1;
    uint32_t bit = hy_linear_bit(kind) & ~traits->in_16_bits;
    bool is_stored = traits->stored[hy_linear_index(kind)] == HY_E4M3;
    bool is_readable = is_trained || (traits->fp8.is_frozen && is_stored);
    l->is_fp8 = is_readable && traits->fp8.weights & bit;
    l->is_grad_fp8 = is_trained && traits->fp8.grads & bit;
    if (!l->is_fp8 && !l->is_grad_fp8) return;
    hy_dtype gradient = traits->fp8.gradient;
    l->seen = hy_add_given(b, HY_GIVEN_SEEN);
    l->dout_seen = hy_add_given(b, HY_GIVEN_SEEN);
    slots[l->dout_seen].at = HY_SEEN_GRADIENTS;
    /* The input's magnitude is kept from forward to backward: recomputed values have the same
     * scale. */
    l->largest = hy_add_given(b, HY_GIVEN_LARGEST);
    slots[l->largest].at = hy_linear_index(kind);
    l->dout_largest = hy_add_slot(b, HY_SLOT_GRADIENT, 0);
    slots[l->dout_largest].rows = HY_ROWS_ONE;
    slots[l->dout_largest].is_fp32 = true;
    ask_for_largest(b, l, node->in);
    if (l->is_fp8) {
        l->in_codes = fp8_slot(b, HY_SLOT_ACTIVATION, HY_ROWS_TOKENS, in, HY_E4M3);
        l->dout_codes = fp8_slot(b, HY_SLOT_GRADIENT, HY_ROWS_TOKENS, out, gradient);
        l->weight_transposed = fp8_slot(b, HY_SLOT_GRADIENT, HY_ROWS_FIXED, out, HY_E4M3);
        slots[l->weight_transposed].fixed_rows = in;
    }
    if (l->is_grad_fp8) {
        /* Backward computes a gated input again, and only then its transposed codes. */
        hy_slot_role role = reads_gated(b, node) ? HY_SLOT_GRADIENT : HY_SLOT_ACTIVATION;
        l->in_transposed = fp8_slot(b, role, HY_ROWS_TRANSPOSED, in, HY_E4M3);
        l->dout_transposed = fp8_slot(b, HY_SLOT_GRADIENT, HY_ROWS_TRANSPOSED, out, gradient);
    }
}

/* ---- conversions to fp8 ---------------------------------------------------------------------- */

static void add_codes(hy_builder *b, hy_slot_id seen, hy_slot_id of, hy_slot_id largest,
                      hy_slot_id codes, hy_slot_id transposed) {
    if (codes == NONE && transposed == NONE) return;
    HY_ADD_OP(b, HY_OP_TO_FP8, .slot[HY_TO_FP8_X] = of, .slot[HY_TO_FP8_LARGEST] = largest,
              .slot[HY_TO_FP8_CODES] = codes, .slot[HY_TO_FP8_TRANSPOSED] = transposed,
              .slot[HY_TO_FP8_SEEN] = seen);
}

static void add_largest(hy_builder *b, hy_slot_id of, hy_slot_id largest) {
    if (largest == NONE) return;
    HY_ADD_OP(b, HY_OP_LARGEST, .slot[HY_LARGEST_X] = of, .slot[HY_LARGEST_OUT] = largest);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* out = in W^T + bias + residual */
void hy_linear_forward(hy_builder *b, const hy_node *node) {
    const hy_linear *l = &node->linear;
    hy_slot_id residual = node->residual;
    if (!l->has_largest) add_largest(b, node->in, l->largest);
    if (l->low_rank.a.value != NONE) {
        hy_adapter_forward(b, &l->low_rank, node->in, node->out, residual);
        residual = node->out;
    }
    hy_slot_id transposed = reads_gated(b, node) ? NONE : l->in_transposed;
    add_codes(b, l->seen, node->in, l->largest, l->in_codes, transposed);
    hy_unit_op op =
        hy_matmul_op(l->is_fp8 ? l->in_codes : node->in, l->weight.value, node->out, false, true);
    op.attr.matmul.is_fast = l->is_fp8 && b->unit->traits.fp8.is_fast;
    op.attr.matmul.alpha = l->alpha;
    op.slot[HY_MATMUL_BIAS] = l->bias.value;
    op.slot[HY_MATMUL_C] = residual;
    hy_add_op(b, op);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* dW = dout^T in; db */
static void backward_params(hy_builder *b, const hy_linear *l, hy_slot_id dout, hy_slot_id in) {
    hy_unit_op plain = hy_matmul_op(dout, in, l->weight.grad, true, false);
    hy_unit_op fp8 =
        hy_matmul_op(l->dout_transposed, l->in_transposed, l->weight.grad, false, true);
    plain.attr.matmul.alpha = fp8.attr.matmul.alpha = l->alpha;
    hy_add_op(b, l->is_grad_fp8 ? fp8 : plain);
    hy_adapter_backward_params(b, &l->low_rank, dout, in);
    if (l->bias.grad == NONE) return;
    HY_ADD_OP(b, HY_OP_BIAS_GRAD, .slot[HY_BIAS_GRAD_DY] = dout,
              .slot[HY_BIAS_GRAD_DBIAS] = l->bias.grad);
}

/* din = dout W, or din += dout W */
static void backward_input(hy_builder *b, const hy_linear *l, hy_slot_id dout, hy_slot_id din,
                           bool is_begun) {
    hy_unit_op op = hy_matmul_op(dout, l->weight.value, din, false, false);
    if (l->is_fp8) {
        HY_ADD_OP(b, HY_OP_TO_FP8, .slot[HY_TO_FP8_X] = l->weight.value,
                  .slot[HY_TO_FP8_TRANSPOSED] = l->weight_transposed);
        op = hy_matmul_op(l->dout_codes, l->weight_transposed, din, false, true);
    }
    op.attr.matmul.alpha = l->alpha;
    op.slot[HY_MATMUL_C] = is_begun ? din : NONE;
    hy_add_op(b, op);
    hy_adapter_backward_input(b, &l->low_rank, din);
}

void hy_linear_backward(hy_builder *b, hy_node *node) {
    const hy_linear *l = &node->linear;
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, node->out, &is_begun);
    if (!l->has_dout_largest) add_largest(b, dout, l->dout_largest);
    hy_slot_id din = hy_gradient_of(b, node->in, &is_begun), in = node->in;
    add_codes(b, l->dout_seen, dout, l->dout_largest, l->dout_codes, l->dout_transposed);
    hy_adapter_backward_low(b, &l->low_rank, dout);
    if (!reads_gated(b, node)) {
        backward_params(b, l, dout, in);
        backward_input(b, l, dout, din, is_begun);
        return;
    }
    /* The backward of a gated function reads both halves anyway and computes its result again,
     * over its own gradient: so the result is neither kept nor computed separately. */
    backward_input(b, l, dout, din, is_begun);
    hy_activation_backward(b, hy_node_that_makes(b, node->in), din);
    add_codes(b, NONE, din, l->largest, NONE, l->in_transposed);
    backward_params(b, l, dout, din);
}
