/* machine_card.c: the GPU's part of --doctor: found or what is missing, and how fast it is reached.
 *
 * The first card is opened as a run would open it, so that what is told here is what a run will find. */
#include "trainer/machine_card.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/card_peaks.h"
#include "kernels/kernels.h"
#include "kernels/nvml.h"

#define COPY_BYTES ((size_t)256 << 20)
#define COPIES 3

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..." */
static void driver_from_proc(char *out, size_t size) {
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[512] = "";
    if (!file) return;
    if (fgets(line, sizeof line, file)) {
        char *module = strstr(line, "Module");
        line[strcspn(line, "\n")] = 0;
        if (module) sscanf(module, "Module %127[^ ]", line);
        snprintf(out, size, "%.100s", line);
    }
    fclose(file);
}

static hy_status time_copy(hy_backend *b, hy_stream *s, void *to, const void *from, double *best) {
    for (int i = 0; i < COPIES + 1; i++) { /* the first one warms up */
        double begin = hy_clock();
        HY_TRY(b->copy(s, to, from, COPY_BYTES));
        HY_TRY(b->stream_sync(s));
        double rate = (double)COPY_BYTES / (hy_clock() - begin);
        if (i > 0 && rate > *best) *best = rate;
    }
    return HY_OK;
}

static hy_status time_both_ways(hy_backend *b, hy_machine *m) {
    void *device = NULL, *host = NULL;
    hy_stream *stream = NULL;
    hy_status status = b->stream_create(b, "copies", &stream);
    if (status == HY_OK) status = b->alloc(b, HY_DEVICE, COPY_BYTES, &device);
    if (status == HY_OK) status = b->alloc(b, HY_PINNED, COPY_BYTES, &host);
    if (status == HY_OK) {
        memset(host, 1, COPY_BYTES);
        status = time_copy(b, stream, device, host, &m->upload_bytes_per_second);
    }
    if (status == HY_OK) {
        status = time_copy(b, stream, host, device, &m->download_bytes_per_second);
    }
    if (host) b->release(b, HY_PINNED, host, COPY_BYTES);
    if (device) b->release(b, HY_DEVICE, device, COPY_BYTES);
    if (stream) b->stream_destroy(stream);
    return status;
}

static void describe(const hy_device_facts *facts, hy_machine *m) {
    m->has_cuda = true;
    snprintf(m->gpu, sizeof m->gpu, "%s", facts->name);
    snprintf(m->gpu_detail, sizeof m->gpu_detail, "%s", facts->detail);
    snprintf(m->cuda, sizeof m->cuda, "the backend is here and the card can be used");
    m->gpu_capability = facts->capability;
    m->vram_total = facts->memory_total;
    m->vram_free = facts->memory_free;
    m->gpu_matmul_flops = facts->matmul_flops;
    m->gpu_peak_flops = hy_card_peak(facts->name);
}

void hy_machine_probe_card(hy_machine *m) {
    hy_cuda_options options = {.tune = HY_TUNE_OFF, .is_measuring = true};
    hy_backend *backend;
    if (!hy_nvml_driver_version(m->driver, sizeof m->driver)) {
        driver_from_proc(m->driver, sizeof m->driver);
    }
    if (hy_cuda_backend_create(&options, &backend) != HY_OK) {
        snprintf(m->cuda, sizeof m->cuda, "%s", hy_error_message());
        return;
    }
    describe(&backend->facts, m);
    if (time_both_ways(backend, m) != HY_OK) { /* a card that is full to the brim, for example */
        snprintf(m->cuda, sizeof m->cuda, "copies could not be timed: %s", hy_error_message());
    }
    backend->destroy(backend);
}
