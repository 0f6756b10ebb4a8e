/* unit_adapter.c: the ops of low-rank adapters beside a block's matrices. See unit.h.
 *
 *   low = x A'              (N, P r), for all pieces of the matrix at once
 *   out = scale low B' + c  B spread so that each piece sees its own columns of low
 * and back, with dout the gradient of out:
 *   dlow = scale dout B     dB = scale dout' low     dA = dlow' x     dx += dlow A
 * With dropout, x is the output of dropout, and the gradient of x passes through the same mask. */
#include "model/unit.h"

#define NONE HY_NO_SLOT

static int8_t spread_slot(hy_unit *unit, int64_t rows, int32_t cols) {
    int8_t slot = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, cols);
    unit->slots[slot].rows = HY_ROWS_FIXED;
    unit->slots[slot].fixed_rows = (int32_t)rows;
    return slot;
}

void hy_unit_add_adapter(hy_unit *unit, const hy_shape *shape, hy_linear *linear,
                         hy_param_kind matrix, int32_t in) {
    hy_low_rank *low = &linear->low_rank;
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(shape, matrix);
    int32_t cols = pieces.adapted * shape->adapter.rank;
    int64_t rows = 0;
    if (pieces.adapted == 0) return;
    for (int32_t i = 0; i < pieces.count; i++) rows += pieces.rows[i];
    hy_param_kind a = hy_adapter_kind(matrix);
    low->scale = (float)shape->adapter.scale;
    low->a = hy_unit_param(unit, a, &low->a_grad);
    low->b = hy_unit_param(unit, (hy_param_kind)(a + 1), &low->b_grad);
    low->low = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, cols); /* small, so it is always kept */
    low->dlow = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, cols);
    if (pieces.count > 1) {
        low->pieces = (hy_spread_attr){.count = pieces.count};
        for (int32_t i = 0; i < pieces.count; i++) {
            low->pieces.rows[i] = pieces.rows[i];
            low->pieces.is_there[i] = pieces.is_there[i];
        }
        low->spread = spread_slot(unit, rows, cols);
        unit->slots[low->spread].role = HY_SLOT_ACTIVATION;
        low->spread_again = spread_slot(unit, rows, cols); /* cheaper to compute than to keep */
        low->spread_grad = spread_slot(unit, rows, cols);
        unit->slots[low->spread_grad].is_fp32 = true;
    }
    if (shape->adapter.dropout == 0) return;
    low->dropout = (float)shape->adapter.dropout;
    low->number = hy_linear_index(matrix);
    low->seed = hy_unit_given(unit, HY_GIVEN_DROPOUT);
    low->dropped = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, in);
    low->dropped_again = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, in);
}

static void add_spread(hy_unit *unit, const hy_low_rank *low, int8_t to, bool is_backward) {
    if (low->spread == NONE) return;
    HY_ADD_OP(unit, is_backward, HY_OP_SPREAD, .attr.spread = low->pieces,
              .slot[HY_SPREAD_B] = low->b, .slot[HY_SPREAD_FULL] = to);
}

/* y = c + dropout(x) */
static void add_dropout(hy_unit *unit, const hy_low_rank *low, int8_t x, int8_t y, int8_t c,
                        bool is_backward) {
    HY_ADD_OP(unit, is_backward, HY_OP_DROPOUT,
              .attr.dropout = {.rate = low->dropout, .first = (uint64_t)low->number},
              .slot[HY_DROPOUT_X] = x, .slot[HY_DROPOUT_SEED] = low->seed, .slot[HY_DROPOUT_Y] = y,
              .slot[HY_DROPOUT_C] = c);
}

void hy_unit_adapter_forward(hy_unit *unit, const hy_linear *linear, int8_t in, int8_t out,
                             int8_t c) {
    const hy_low_rank *low = &linear->low_rank;
    int8_t x = low->dropped != NONE ? low->dropped : in;
    if (low->dropped != NONE) add_dropout(unit, low, in, x, NONE, false);
    hy_unit_add_op(unit, false, hy_unit_matmul(x, low->a, low->low, false, true));
    add_spread(unit, low, low->spread, false);
    int8_t b = low->spread != NONE ? low->spread : low->b;
    hy_unit_op op = hy_unit_matmul(low->low, b, out, false, true);
    op.attr.matmul.alpha = low->scale;
    op.slot[HY_MATMUL_C] = c;
    hy_unit_add_op(unit, false, op);
}

void hy_unit_adapter_backward_low(hy_unit *unit, const hy_linear *linear, int8_t dout) {
    const hy_low_rank *low = &linear->low_rank;
    if (low->a == NONE) return;
    add_spread(unit, low, low->spread_again, true);
    int8_t b = low->spread != NONE ? low->spread_again : low->b;
    hy_unit_op op = hy_unit_matmul(dout, b, low->dlow, false, false);
    op.attr.matmul.alpha = low->scale;
    hy_unit_add_op(unit, true, op);
}

void hy_unit_adapter_backward_params(hy_unit *unit, const hy_linear *linear, int8_t dout,
                                     int8_t in) {
    const hy_low_rank *low = &linear->low_rank;
    if (low->a == NONE) return;
    bool is_spread = low->spread != NONE;
    hy_unit_op db =
        hy_unit_matmul(dout, low->low, is_spread ? low->spread_grad : low->b_grad, true, false);
    db.attr.matmul.alpha = low->scale;
    hy_unit_add_op(unit, true, db);
    if (is_spread) {
        HY_ADD_OP(unit, true, HY_OP_COLLECT, .attr.spread = low->pieces,
                  .slot[HY_COLLECT_FULL] = low->spread_grad, .slot[HY_COLLECT_B] = low->b_grad);
    }
    int8_t x = in;
    if (low->dropped != NONE) {
        x = low->dropped_again;
        add_dropout(unit, low, in, x, NONE, true);
    }
    hy_unit_add_op(unit, true, hy_unit_matmul(low->dlow, x, low->a_grad, true, false));
}

void hy_unit_adapter_backward_input(hy_unit *unit, const hy_linear *linear, int8_t din) {
    const hy_low_rank *low = &linear->low_rank;
    if (low->a == NONE) return;
    int8_t to = low->dropped != NONE ? low->dropped_again : din;
    hy_unit_op op = hy_unit_matmul(low->dlow, low->a, to, false, false);
    op.slot[HY_MATMUL_C] = low->dropped != NONE ? NONE : din;
    hy_unit_add_op(unit, true, op);
    if (low->dropped != NONE) add_dropout(unit, low, to, din, din, true);
}
