/* device.h: a device: a backend and its streams.
 *
 * The engine owns it: setup/device.c opens it, engine/engine.c closes it. Modules that compute or
 * move memory get a pointer. Streams run in parallel; events put them in order. */
#pragma once

#include "kernels/kernels.h"

typedef struct hy_device {
    hy_backend *backend;
    hy_stream *compute;
    hy_stream *copies, *returns; /* copies of units to the device, and back */
    hy_stream *moves;            /* only for optimizer state that leaves the device and returns */
} hy_device;

/* Waits until all streams are idle. */
static inline hy_status hy_device_sync(const hy_device *d) {
    hy_stream *streams[] = {d->compute, d->copies, d->returns, d->moves};
    for (int i = 0; i < 4; i++) {
        hy_status status = streams[i] ? d->backend->stream_sync(streams[i]) : HY_OK;
        if (status != HY_OK) return status;
    }
    return HY_OK;
}
