/* linear_adapter.c: the ops of low-rank adapters beside a block's matrices. See builder.h.
 *
 *   low = x A'              (N, P r), for all pieces of the matrix at once
 *   out = scale low B' + c  B spread so that each piece sees its own columns of low
 * and back, with dout the gradient of out:
 *   dlow = scale dout B     dB = scale dout' low     dA = dlow' x     dx += dlow A
 * With dropout, x is the output of dropout, and the gradient of x passes through the same mask. */
#include "model/builder.h"

#define NONE HY_NO_SLOT

static hy_slot_id spread_slot(hy_builder *b, int64_t rows, int32_t cols) {
    hy_slot_id slot = hy_add_slot(b, HY_SLOT_GRADIENT, cols);
    b->unit->slots[slot].rows = HY_ROWS_FIXED;
    b->unit->slots[slot].fixed_rows = (int32_t)rows;
    return slot;
}

void hy_linear_add_adapter(hy_builder *b, hy_node *node) {
    const hy_shape *shape = b->shape;
    hy_low_rank *low = &node->linear.low_rank;
    hy_param_kind matrix = b->unit->slots[node->linear.weight.value].param;
    int32_t in = b->unit->slots[node->in].cols;
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(shape, matrix);
    int32_t cols = pieces.adapted * shape->adapter.rank;
    int64_t rows = 0;
    if (pieces.adapted == 0) return;
    for (int32_t i = 0; i < pieces.count; i++) rows += pieces.rows[i];
    hy_param_kind a = hy_adapter_kind(matrix);
    low->scale = (float)shape->adapter.scale * node->linear.alpha;
    hy_adapter_rows all = hy_adapter_rows_before(&pieces, pieces.count, shape->adapter.rank);
    low->a = hy_add_weight(b, a, all.a, in);
    low->b = hy_add_weight(b, (hy_param_kind)(a + 1), all.b, shape->adapter.rank);
    low->low = hy_add_slot(b, HY_SLOT_ACTIVATION, cols); /* small, so it is always kept */
    low->dlow = hy_add_slot(b, HY_SLOT_GRADIENT, cols);
    if (pieces.count > 1) {
        low->pieces = (hy_spread_attr){.count = pieces.count};
        for (int32_t i = 0; i < pieces.count; i++) {
            low->pieces.rows[i] = pieces.rows[i];
            low->pieces.is_there[i] = pieces.is_there[i];
        }
        low->spread = spread_slot(b, rows, cols);
        b->unit->slots[low->spread].role = HY_SLOT_ACTIVATION;
        low->spread_again = spread_slot(b, rows, cols); /* cheaper to compute than to keep */
        low->spread_grad = spread_slot(b, rows, cols);
        b->unit->slots[low->spread_grad].is_fp32 = true;
    }
    if (shape->adapter.dropout == 0) return;
    low->dropout = (float)shape->adapter.dropout;
    low->number = hy_linear_index(matrix);
    low->seed = hy_add_given(b, HY_GIVEN_DROPOUT);
    low->dropped = hy_add_slot(b, HY_SLOT_ACTIVATION, in);
    low->dropped_again = hy_add_slot(b, HY_SLOT_GRADIENT, in);
}

static void add_spread(hy_builder *b, const hy_low_rank *low, hy_slot_id to) {
    if (low->spread == NONE) return;
    HY_ADD_OP(b, HY_OP_SPREAD, .attr.spread = low->pieces, .slot[HY_SPREAD_B] = low->b.value,
              .slot[HY_SPREAD_FULL] = to);
}

/* y = c + dropout(x) */
static void add_dropout(hy_builder *b, const hy_low_rank *low, hy_slot_id x, hy_slot_id y,
                        hy_slot_id c) {
    HY_ADD_OP(b, HY_OP_DROPOUT,
              .attr.dropout = {.rate = low->dropout, .first = (uint64_t)low->number},
              .slot[HY_DROPOUT_X] = x, .slot[HY_DROPOUT_SEED] = low->seed, .slot[HY_DROPOUT_Y] = y,
              .slot[HY_DROPOUT_C] = c);
}

void hy_adapter_forward(hy_builder *b, const hy_low_rank *low, hy_slot_id in, hy_slot_id out,
                        hy_slot_id c) {
    hy_slot_id x = low->dropped != NONE ? low->dropped : in;
    if (low->dropped != NONE) add_dropout(b, low, in, x, NONE);
    hy_add_op(b, hy_matmul_op(x, low->a.value, low->low, false, true));
    add_spread(b, low, low->spread);
    hy_slot_id factor = low->spread != NONE ? low->spread : low->b.value;
    hy_unit_op op = hy_matmul_op(low->low, factor, out, false, true);
    op.attr.matmul.alpha = low->scale;
    op.attr.matmul.has_computed_b = low->spread != NONE;
    op.is_adapter = true;
    op.slot[HY_MATMUL_C] = c;
    hy_add_op(b, op);
}

void hy_adapter_backward_low(hy_builder *b, const hy_low_rank *low, hy_slot_id dout) {
    if (low->a.value == NONE) return;
    add_spread(b, low, low->spread_again);
    hy_slot_id factor = low->spread != NONE ? low->spread_again : low->b.value;
    hy_unit_op op = hy_matmul_op(dout, factor, low->dlow, false, false);
    op.attr.matmul.alpha = low->scale;
    hy_add_op(b, op);
}

void hy_adapter_backward_params(hy_builder *b, const hy_low_rank *low, hy_slot_id dout,
                                hy_slot_id in) {
    if (low->a.value == NONE) return;
    bool is_spread = low->spread != NONE;
    hy_slot_id grad = is_spread ? low->spread_grad : low->b.grad;
    hy_unit_op db = hy_matmul_op(dout, low->low, grad, true, false);
    db.attr.matmul.alpha = low->scale;
    hy_add_op(b, db);
    if (is_spread) {
        HY_ADD_OP(b, HY_OP_COLLECT, .attr.spread = low->pieces,
                  .slot[HY_COLLECT_FULL] = low->spread_grad, .slot[HY_COLLECT_B] = low->b.grad);
    }
    hy_slot_id x = in;
    if (low->dropped != NONE) {
        x = low->dropped_again;
        add_dropout(b, low, in, x, NONE);
    }
    hy_add_op(b, hy_matmul_op(low->dlow, x, low->a.grad, true, false));
}

void hy_adapter_backward_input(hy_builder *b, const hy_low_rank *low, hy_slot_id din) {
    if (low->a.value == NONE) return;
    hy_slot_id to = low->dropped != NONE ? low->dropped_again : din;
    hy_unit_op op = hy_matmul_op(low->dlow, low->a.value, to, false, false);
    op.slot[HY_MATMUL_C] = low->dropped != NONE ? NONE : din;
    hy_add_op(b, op);
    if (low->dropped != NONE) add_dropout(b, low, to, din, din);
}
