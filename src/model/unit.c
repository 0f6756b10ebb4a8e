/* unit.c: helpers for writing the lists of units. See unit.h. */
#include "model/unit.h"

#include <assert.h>
#include <string.h>

#include "kernels/ops.h"

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
    return a->part == b->part && a->window == b->window && a->trained == b->trained &&
           memcmp(a->stored, b->stored, sizeof a->stored) == 0 && a->in_16_bits == b->in_16_bits &&
           a->passes_back == b->passes_back && a->fp8.weights == b->fp8.weights &&
           a->fp8.grads == b->fp8.grads && a->fp8.gradient == b->fp8.gradient &&
           a->fp8.is_fast == b->fp8.is_fast && a->fp8.is_frozen == b->fp8.is_frozen;
}

bool hy_unit_op_uses(const hy_unit_op *op, int slot, int access) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (op->slot[i] == slot && (hy_op_access(op->kind, i) & access)) return true;
    }
    return false;
}

/* Walks the backward list from its end and tracks which slots are needed after each op: an op
 * that writes none of them is removed, and the inputs of a kept op are needed before it. */
static void leave_out_unwanted(hy_unit *unit) {
    bool is_wanted[HY_UNIT_SLOTS] = {0};
    int first = HY_UNIT_OPS; /* kept ops gather at the end */
    for (int s = 1; s < unit->slot_count; s++) {
        const hy_slot *slot = &unit->slots[s];
        is_wanted[s] = slot->role == HY_SLOT_PARAM_GRAD ? unit->traits.trained >> slot->param & 1
                       : slot->role == HY_SLOT_RESIDUAL_GRAD
                           ? unit->traits.passes_back
                           : slot->role == HY_SLOT_GIVEN && slot->given == HY_GIVEN_LOSSES;
    }
    for (int i = unit->backward_count - 1; i >= 0; i--) {
        hy_unit_op op = unit->backward[i];
        bool is_kept = false;
        for (int s = 1; s < unit->slot_count; s++) {
            is_kept |= is_wanted[s] && hy_unit_op_uses(&op, s, HY_ACCESS_WRITE);
        }
        if (!is_kept) continue;
        for (int s = 1; s < unit->slot_count; s++) {
            if (hy_unit_op_uses(&op, s, HY_ACCESS_WRITE)) is_wanted[s] = false;
            if (hy_unit_op_uses(&op, s, HY_ACCESS_READ)) is_wanted[s] = true;
        }
        unit->backward[--first] = op;
    }
    unit->backward_count = HY_UNIT_OPS - first;
    memmove(unit->backward, unit->backward + first,
            (size_t)unit->backward_count * sizeof *unit->backward);
}

void hy_unit_init(hy_unit *unit, const hy_shape *shape, const hy_unit_traits *traits) {
    *unit = (hy_unit){.traits = *traits};
    switch (traits->part) {
    case HY_PART_EMBEDDING: hy_unit_embedding(unit, shape); break;
    case HY_PART_BLOCK: hy_unit_block(unit, shape); break;
    case HY_PART_HEAD: hy_unit_head(unit, shape); break;
    }
    leave_out_unwanted(unit);
}

int8_t hy_unit_add_slot(hy_unit *unit, hy_slot_role role, int32_t cols) {
    if (unit->slot_count == HY_NO_SLOT) unit->slot_count++;
    assert(unit->slot_count < HY_UNIT_SLOTS);
    unit->slots[unit->slot_count] = (hy_slot){.role = role, .cols = cols};
    return (int8_t)unit->slot_count++;
}

int8_t hy_unit_given(hy_unit *unit, hy_given given) {
    int8_t slot = hy_unit_add_slot(unit, HY_SLOT_GIVEN, 0);
    unit->slots[slot].given = given;
    return slot;
}

int8_t hy_unit_param(hy_unit *unit, hy_param_kind kind, int8_t *grad) {
    int8_t weight = hy_unit_add_slot(unit, HY_SLOT_PARAM, 0);
    *grad = hy_unit_add_slot(unit, HY_SLOT_PARAM_GRAD, 0);
    unit->slots[weight].param = unit->slots[*grad].param = kind;
    return weight;
}

void hy_unit_add_op(hy_unit *unit, bool is_backward, hy_unit_op op) {
    int32_t *count = is_backward ? &unit->backward_count : &unit->forward_count;
    assert(*count < HY_UNIT_OPS);
    (is_backward ? unit->backward : unit->forward)[(*count)++] = op;
}

hy_linear hy_unit_linear(hy_unit *unit, hy_param_kind kind, bool has_bias) {
    hy_linear linear = {.bias = HY_NO_SLOT, .bias_grad = HY_NO_SLOT};
    hy_param_kind bias = (hy_param_kind)(kind + 1);
    linear.weight = hy_unit_param(unit, kind, &linear.weight_grad);
    if (has_bias) linear.bias = hy_unit_param(unit, bias, &linear.bias_grad);
    return linear;
}

static int8_t fp8_slot(hy_unit *unit, hy_slot_role role, hy_slot_rows rows, int32_t cols,
                       hy_dtype dtype) {
    int8_t slot = hy_unit_add_slot(unit, role, cols);
    unit->slots[slot].rows = rows;
    unit->slots[slot].fp8 = dtype;
    unit->slots[slot].group = HY_KEEP_CHEAP;
    return slot;
}

void hy_unit_linear_fp8(hy_unit *unit, hy_linear *l, hy_param_kind kind, int32_t in, int32_t out) {
    const hy_unit_traits *traits = &unit->traits;
    bool is_trained = traits->trained >> kind & 1;
    uint32_t bit = hy_linear_bit(kind) & ~traits->in_16_bits;
    bool is_stored = traits->stored[hy_linear_index(kind)] == HY_E4M3;
    bool is_readable = is_trained || (traits->fp8.is_frozen && is_stored);
    l->is_fp8 = is_readable && traits->fp8.weights & bit;
    l->is_grad_fp8 = is_trained && traits->fp8.grads & bit;
    if (!l->is_fp8 && !l->is_grad_fp8) return;
    hy_dtype gradient = traits->fp8.gradient;
    l->seen = hy_unit_given(unit, HY_GIVEN_SEEN);
    l->dout_seen = hy_unit_given(unit, HY_GIVEN_SEEN);
    unit->slots[l->dout_seen].at = HY_SEEN_GRADIENTS;
    /* The input's magnitude is kept from forward to backward: recomputed values have the same
     * scale. */
    l->largest = hy_unit_given(unit, HY_GIVEN_LARGEST);
    unit->slots[l->largest].at = hy_linear_index(kind);
    l->dout_largest = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, 0);
    unit->slots[l->dout_largest].rows = HY_ROWS_ONE;
    unit->slots[l->dout_largest].is_fp32 = true;
    if (l->is_fp8) {
        l->in_codes = fp8_slot(unit, HY_SLOT_ACTIVATION, HY_ROWS_TOKENS, in, HY_E4M3);
        l->dout_codes = fp8_slot(unit, HY_SLOT_GRADIENT, HY_ROWS_TOKENS, out, gradient);
        l->weight_transposed = fp8_slot(unit, HY_SLOT_GRADIENT, HY_ROWS_FIXED, out, HY_E4M3);
        unit->slots[l->weight_transposed].fixed_rows = in;
    }
    if (l->is_grad_fp8) {
        l->in_transposed = fp8_slot(unit, HY_SLOT_ACTIVATION, HY_ROWS_TRANSPOSED, in, HY_E4M3);
        l->dout_transposed = fp8_slot(unit, HY_SLOT_GRADIENT, HY_ROWS_TRANSPOSED, out, gradient);
    }
}

static void add_codes(hy_unit *unit, int8_t seen, int8_t of, int8_t largest, int8_t codes,
                      int8_t transposed, bool is_in_backward) {
    if (codes == HY_NO_SLOT && transposed == HY_NO_SLOT) return;
    HY_ADD_OP(unit, is_in_backward, HY_OP_TO_FP8, .slot[HY_TO_FP8_X] = of,
              .slot[HY_TO_FP8_LARGEST] = largest, .slot[HY_TO_FP8_CODES] = codes,
              .slot[HY_TO_FP8_TRANSPOSED] = transposed, .slot[HY_TO_FP8_SEEN] = seen);
}

void hy_unit_linear_encode(hy_unit *unit, const hy_linear *l, int8_t in, bool is_in_backward) {
    /* Only forward records statistics and writes the codes that are not transposed. */
    add_codes(unit, is_in_backward ? HY_NO_SLOT : l->seen, in, l->largest,
              is_in_backward ? HY_NO_SLOT : l->in_codes, l->in_transposed, is_in_backward);
}

void hy_unit_linear_encode_back(hy_unit *unit, const hy_linear *l, int8_t dout) {
    add_codes(unit, l->dout_seen, dout, l->dout_largest, l->dout_codes, l->dout_transposed, true);
}

void hy_unit_largest(hy_unit *unit, int8_t of, int8_t largest, bool is_in_backward) {
    if (largest == HY_NO_SLOT) return;
    HY_ADD_OP(unit, is_in_backward, HY_OP_LARGEST, .slot[HY_LARGEST_X] = of,
              .slot[HY_LARGEST_OUT] = largest);
}

hy_unit_op hy_unit_matmul(int8_t a, int8_t b, int8_t d, bool trans_a, bool trans_b) {
    return (hy_unit_op){.kind = HY_OP_MATMUL,
                        .attr.matmul = {.trans_a = trans_a, .trans_b = trans_b, .alpha = 1},
                        .slot = {[HY_MATMUL_A] = a, [HY_MATMUL_B] = b, [HY_MATMUL_D] = d}};
}

void hy_unit_linear_forward(hy_unit *unit, const hy_linear *l, int8_t in, int8_t out,
                            int8_t residual) {
    if (l->low_rank.a != HY_NO_SLOT) {
        hy_unit_adapter_forward(unit, l, in, out, residual);
        residual = out;
    }
    hy_unit_linear_encode(unit, l, in, false);
    int8_t from = l->is_fp8 ? l->in_codes : in;
    hy_unit_op op = hy_unit_matmul(from, l->weight, out, false, true);
    op.attr.matmul.is_fast = l->is_fp8 && unit->traits.fp8.is_fast;
    op.slot[HY_MATMUL_BIAS] = l->bias;
    op.slot[HY_MATMUL_C] = residual;
    hy_unit_add_op(unit, false, op);
}

void hy_unit_linear_backward_params(hy_unit *unit, const hy_linear *l, int8_t dout, int8_t in) {
    hy_unit_op plain = hy_unit_matmul(dout, in, l->weight_grad, true, false);
    hy_unit_op fp8 =
        hy_unit_matmul(l->dout_transposed, l->in_transposed, l->weight_grad, false, true);
    hy_unit_add_op(unit, true, l->is_grad_fp8 ? fp8 : plain);
    hy_unit_adapter_backward_params(unit, l, dout, in);
    if (l->bias_grad == HY_NO_SLOT) return;
    HY_ADD_OP(unit, true, HY_OP_BIAS_GRAD, .slot[HY_BIAS_GRAD_DY] = dout,
              .slot[HY_BIAS_GRAD_DBIAS] = l->bias_grad);
}

void hy_unit_linear_backward_input(hy_unit *unit, const hy_linear *l, int8_t dout, int8_t din) {
    hy_unit_op plain = hy_unit_matmul(dout, l->weight, din, false, false);
    hy_unit_op fp8 = hy_unit_matmul(l->dout_codes, l->weight_transposed, din, false, true);
    if (l->is_fp8) {
        HY_ADD_OP(unit, true, HY_OP_TO_FP8, .slot[HY_TO_FP8_X] = l->weight,
                  .slot[HY_TO_FP8_TRANSPOSED] = l->weight_transposed);
    }
    hy_unit_add_op(unit, true, l->is_fp8 ? fp8 : plain);
    hy_unit_adapter_backward_input(unit, l, din);
}

void hy_unit_linear_backward(hy_unit *unit, const hy_linear *l, int8_t dout, int8_t in,
                             int8_t din) {
    hy_unit_linear_encode_back(unit, l, dout);
    hy_unit_adapter_backward_low(unit, l, dout);
    hy_unit_linear_backward_params(unit, l, dout, in);
    hy_unit_linear_backward_input(unit, l, dout, din);
}

hy_norm_slots hy_unit_norm(hy_unit *unit, const hy_shape *shape, hy_param_kind kind) {
    hy_norm_slots norm = {.bias = HY_NO_SLOT, .bias_grad = HY_NO_SLOT, .mean = HY_NO_SLOT};
    hy_param_kind bias = (hy_param_kind)(kind + 1);
    norm.weight = hy_unit_param(unit, kind, &norm.weight_grad);
    norm.rstd = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, 0);
    if (!shape->is_rms) {
        norm.bias = hy_unit_param(unit, bias, &norm.bias_grad);
        norm.mean = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, 0);
        unit->slots[norm.mean].is_fp32 = true;
        unit->slots[norm.mean].group = HY_KEEP_RESIDUAL;
    }
    unit->slots[norm.rstd].is_fp32 = true;
    unit->slots[norm.rstd].group = HY_KEEP_RESIDUAL;
    return norm;
}

static hy_op_attr norm_attr(const hy_shape *shape) {
    return (hy_op_attr){.norm = {.eps = (float)shape->norm_eps, .is_rms = shape->is_rms}};
}

void hy_unit_norm_forward(hy_unit *unit, const hy_shape *shape, const hy_norm_slots *norm,
                          int8_t in, int8_t out, bool is_in_backward) {
    HY_ADD_OP(unit, is_in_backward, HY_OP_NORM, .attr = norm_attr(shape), .slot[HY_NORM_X] = in,
              .slot[HY_NORM_WEIGHT] = norm->weight, .slot[HY_NORM_BIAS] = norm->bias,
              .slot[HY_NORM_Y] = out, .slot[HY_NORM_MEAN] = norm->mean,
              .slot[HY_NORM_RSTD] = norm->rstd, .slot[HY_NORM_LARGEST] = norm->largest);
}

void hy_unit_norm_backward(hy_unit *unit, const hy_shape *shape, const hy_norm_slots *norm,
                           int8_t dout, int8_t in, int8_t residual_grad, bool is_first) {
    HY_ADD_OP(unit, true, HY_OP_NORM_BWD, .attr = norm_attr(shape), .slot[HY_NORM_BWD_DY] = dout,
              .slot[HY_NORM_BWD_X] = in, .slot[HY_NORM_BWD_WEIGHT] = norm->weight,
              .slot[HY_NORM_BWD_MEAN] = norm->mean, .slot[HY_NORM_BWD_RSTD] = norm->rstd,
              .slot[HY_NORM_BWD_RESIDUAL] = is_first ? HY_NO_SLOT : residual_grad,
              .slot[HY_NORM_BWD_DX] = residual_grad, .slot[HY_NORM_BWD_DWEIGHT] = norm->weight_grad,
              .slot[HY_NORM_BWD_DBIAS] = norm->bias_grad);
}
