/* weights.c: derived rows are made again when what they are made of has changed. See engine.h.
 *
 * The weights that are updated are the truth: fp32, or bf16 rounded stochastically. A phase in another
 * type computes with a rounded copy, made when it is first asked for after the truth changed elsewhere;
 * an update that writes both keeps it current. */
#include "base/error.h"
#include "engine/engine.h"

void hy_row_changed(hy_engine *e, int row) { e->rows.row[row].version++; }

static bool is_stale(const hy_engine *e, const hy_row *row) {
    return row->made_of != e->rows.row[row->source].version;
}

void hy_row_is_made(hy_engine *e, int row) {
    hy_row *derived = &e->rows.row[row];
    derived->made_of = e->rows.row[derived->source].version;
}

static hy_status round_weights(hy_engine *e) {
    const hy_params *params = &e->model->params;
    hy_store *master = hy_store_of(e, HY_ROW_MASTER), *working = hy_store_of(e, HY_ROW_WORKING);
    int32_t item = 0;
    for (int32_t unit = 0; unit < params->units; unit++) {
        HY_TRY(hy_store_get(master, e->compute, unit));
        HY_TRY(hy_store_get(working, e->compute, unit));
        for (; item < params->count && params->list[item].unit == unit; item++) {
            hy_op_call cast = {.kind = HY_OP_CAST};
            cast.t[HY_CAST_SRC] = hy_store_tensor(master, item, hy_store_device(master, item));
            cast.t[HY_CAST_DST] = hy_store_tensor(working, item, hy_store_device(working, item));
            HY_TRY(e->backend->enqueue(e->compute, &cast));
        }
        HY_TRY(hy_store_release(master, e->compute, unit));
        HY_TRY(hy_store_release_changed(working, e->compute, unit));
    }
    hy_row_is_made(e, HY_ROW_WORKING);
    return HY_OK;
}

hy_status hy_engine_weights_raw(hy_engine *e, hy_dtype dtype, hy_store **out) {
    bool has_copy = dtype != e->types.master;
    *out = hy_store_of(e, has_copy ? HY_ROW_WORKING : HY_ROW_MASTER);
    bool is_due = has_copy && is_stale(e, &e->rows.row[HY_ROW_WORKING]);
    return is_due ? round_weights(e) : HY_OK;
}

hy_status hy_engine_weights(hy_engine *e, hy_dtype dtype, hy_store **out) {
    HY_TRY(hy_update_finish(e));
    return hy_engine_weights_raw(e, dtype, out);
}
