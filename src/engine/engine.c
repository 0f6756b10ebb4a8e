/* engine.c: creates an engine, allocates its memory, changes it to another plan, and frees it. See
 * engine.h. setup/device.c opens the device.
 *
 * All memory is allocated before the first step: state (state/state.h), exchanges between ranks
 * (collectives.h) and work area (work.h). Another plan in mid-run frees the work area, moves rows,
 * and allocates the area again. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- creating and closing -------------------------------------------------------------------- */

hy_status hy_engine_create(hy_engine **out) {
    hy_engine *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e) return hy_fail(HY_ERR_MEMORY, "not enough memory for an engine");
    e->plan = calloc(1, sizeof *e->plan);
    e->state = calloc(1, sizeof *e->state);
    e->work = calloc(1, sizeof *e->work);
    e->collectives = calloc(1, sizeof *e->collectives);
    if (e->state) e->state->rows = calloc(1, sizeof *e->state->rows);
    if (!e->plan || !e->state || !e->state->rows || !e->work || !e->collectives) {
        hy_engine_destroy(e);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for an engine");
    }
    *out = e;
    return HY_OK;
}

void hy_engine_destroy(hy_engine *e) {
    if (!e) return;
    if (e->device.backend || e->model) hy_engine_close(e);
    free(e->plan);
    if (e->state) free(e->state->rows);
    free(e->state);
    free(e->work);
    free(e->collectives);
    free(e);
}

hy_status hy_engine_sync(hy_engine *e) {
    hy_stream *between_ranks = e->collectives->net.stream;
    HY_TRY(hy_device_sync(&e->device));
    return between_ranks ? e->device.backend->stream_sync(between_ranks) : HY_OK;
}

void hy_engine_close(hy_engine *e) {
    hy_stream *streams[] = {e->device.compute, e->device.copies, e->device.returns,
                            e->device.moves};
    if (e->device.backend) {
        for (int i = 0; i < 4; i++) {
            if (streams[i]) (void)e->device.backend->stream_sync(streams[i]);
        }
        hy_engine_release(e);
    }
    hy_custom_close(e);
    if (e->device.backend) {
        hy_event *is_back = e->state->offload.is_back;
        if (is_back) e->device.backend->event_destroy(is_back);
        for (int i = 0; i < 4; i++) {
            if (streams[i]) e->device.backend->stream_destroy(streams[i]);
        }
        hy_nvml_watch_destroy(e->nvml);
        e->device.backend->destroy(e->device.backend);
    }
    hy_model_destroy(e->model);
    *e->plan = (hy_plan){0};
    *e->state = (hy_state){.rows = e->state->rows};
    *e->work = (hy_work){0};
    *e->collectives = (hy_collectives){0};
    *e = (hy_engine){
        .plan = e->plan, .state = e->state, .work = e->work, .collectives = e->collectives};
}

/* ---- allocating and changing ----------------------------------------------------------------- */

hy_status hy_engine_lay_out(hy_engine *e) {
    hy_rows_spec spec = hy_plan_rows(&e->request, e->plan);
    spec.has_named_base |= e->base_is_named;
    return hy_rows_init(e->state->rows, &e->model->params, &spec);
}

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

/* ---- weights for inference ------------------------------------------------------------------- */

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

/* ---- all parts together ---------------------------------------------------------------------- */

hy_status hy_engine_settle(hy_engine *e) {
    const hy_device *d = &e->device;
    hy_stream *streams[] = {d->compute, d->copies, d->returns, d->moves,
                            e->collectives->net.stream};
    for (int i = 0; i < 5; i++) {
        /* An error of the stream was reported already. */
        if (streams[i]) (void)d->backend->stream_sync(streams[i]);
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
    /* The optimizer's step count starts at 0 again. */
    if (is_dropped) e->progress.updates = 0;
    for (int32_t i = 0; is_dropped && i < e->model->params.count; i++) {
        e->model->params.list[i].missed = 0;
    }
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
