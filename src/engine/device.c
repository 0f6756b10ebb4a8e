/* device.c: the device waits and closes. setup/device.c opens it. See engine.h. */
#include "engine/engine.h"

hy_status hy_engine_sync(hy_engine *e) {
    hy_stream *between_ranks = e->collectives.net.stream;
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
        hy_event *is_back = e->state.offload.is_back;
        if (is_back) e->device.backend->event_destroy(is_back);
        for (int i = 0; i < 4; i++) {
            if (streams[i]) e->device.backend->stream_destroy(streams[i]);
        }
        hy_nvml_watch_destroy(e->nvml);
        e->device.backend->destroy(e->device.backend);
    }
    hy_model_destroy(e->model);
    *e = (hy_engine){0};
}
