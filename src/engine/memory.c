/* memory.c: the memory of state, exchanges and work area together: taken, changed, given back. See
 * engine.h and state/state.h.
 *
 * Memory is taken before the first step. Another plan in mid-run gives the work area back, moves
 * rows and takes the area anew. */
#include "base/error.h"
#include "engine/engine.h"

hy_status hy_engine_lay_out(hy_engine *e) {
    hy_rows_spec spec = hy_plan_rows(&e->request, e->plan);
    spec.has_named_base = e->base_is_named;
    return hy_rows_init(e->state->rows, &e->model->params, &spec);
}

/* ---- taking and changing --------------------------------------------------------------------- */

hy_status hy_engine_take(hy_engine *e) {
    HY_TRY(hy_state_take(e->state, &e->plan->choice, e->plan->state.disk));
    HY_TRY(hy_collectives_take(e));
    HY_TRY(hy_work_take(e));
    HY_TRY(hy_state_take_in_work(e->state, &e->plan->choice, &e->work->ring_arena));
    return hy_offload_take(e->state, e->plan->offload);
}

hy_status hy_engine_change(hy_engine *e, const hy_plan *plan) {
    HY_TRY(hy_work_give_back(e));
    e->work->is_gone = true;
    HY_TRY(hy_state_move(e->state, &plan->choice));
    *e->plan = *plan;
    hy_status status = hy_work_take(e);
    hy_arena *rings = &e->work->ring_arena;
    if (status == HY_OK) status = hy_state_move_in_work(e->state, &plan->choice, rings);
    if (status == HY_OK) status = hy_offload_take(e->state, plan->offload);
    if (status != HY_OK) hy_work_release(e);
    e->work->is_gone = status != HY_OK;
    return status;
}

void hy_engine_release(hy_engine *e) {
    hy_collectives_release(e);
    hy_state_release(e->state); /* before the work area, which holds some of its rings */
    hy_work_release(e);
}

/* ---- weights that are only used -------------------------------------------------------------- */

hy_status hy_engine_take_weights(hy_engine *e, hy_place asked, uint64_t beside) {
    hy_row *row = &e->state->rows->row[HY_ROW_MASTER];
    hy_plan_choice *choice = &e->plan->choice;
    uint64_t limit = hy_budget_device(&e->request);
    *row = (hy_row){
        .kind = &hy_state_kinds[HY_KIND_WEIGHTS], .dtype = e->plan->types.master, .name = ""};
    HY_TRY(hy_params_layout(&e->model->params, HY_SET_ALL, row->dtype, &row->layout));
    bool fits = limit == 0 || row->layout.bytes + beside <= limit;
    choice->state[HY_PLAN_WEIGHTS] = fits && asked != HY_PINNED ? HY_DEVICE : HY_PINNED;
    choice->ring_depth = HY_TILE_RING_DEPTH;
    return hy_state_take(e->state, choice, 0);
}

/* ---- all of it together ---------------------------------------------------------------------- */

hy_status hy_engine_settle(hy_engine *e) {
    const hy_device *d = &e->device;
    hy_stream *streams[] = {d->compute, d->copies, d->returns, d->moves,
                            e->collectives->net.stream};
    for (int i = 0; i < 5; i++) {
        if (streams[i])
            (void)d->backend->stream_sync(streams[i]); /* its error was reported already */
    }
    hy_collectives_abandon(e);
    hy_store_abandon(&e->work->activations);
    HY_TRY(hy_state_settle(e->state));
    return hy_store_settle(&e->work->activations);
}

hy_status hy_engine_copy_forked(hy_engine *e, char *host, bool to_host) {
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    return hy_state_copy_forked(e->state, host, to_host);
}

hy_status hy_engine_begin_offload(hy_engine *e) {
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_offload_begin(e->state, e->plan->offload));
    bool is_dropped = e->state->offload.where == HY_OPTIM_DROPPED;
    if (is_dropped) e->progress.updates = 0; /* the optimizer's step count starts at 0 again */
    return HY_OK;
}

uint64_t hy_engine_moved(const hy_engine *e) {
    return hy_state_moved(e->state) + e->work->activations.bytes_moved;
}

uint64_t hy_engine_reserved(const hy_engine *e, hy_place place) {
    return hy_state_reserved(e->state, place) + hy_arena_reserved(&e->work->arena, place) +
           hy_arena_reserved(&e->work->host_arena, place) +
           hy_arena_reserved(&e->collectives->arena, place) +
           hy_arena_reserved(&e->collectives->staging, place);
}
