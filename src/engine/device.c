/* device.c: an engine is created, its device waits and closes. setup/device.c opens it. See
 * engine.h. */
#include <stdlib.h>

#include "engine/engine.h"

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
