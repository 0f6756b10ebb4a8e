/* machine_card.c: the GPU's part of --doctor: found or what is missing, and how fast it is reached.
 *
 * The first card is opened as a run would open it, so that what is reported here is what a run will find. */
#include "plan/machine_card.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/card_list.h"
#include "kernels/kernels.h"
#include "kernels/nvml.h"
#include "memory/rates.h"

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

static hy_status measure(hy_backend *backend, hy_machine *m) {
    hy_rates rates;
    HY_TRY(hy_rates_measure(backend, &rates));
    m->upload_bytes_per_second = rates.copy_up;
    m->download_bytes_per_second = rates.copy_down;
    m->both_ways_bytes_per_second = rates.copy_both;
    m->gpu_memory_bytes_per_second = rates.device_bandwidth;
    return HY_OK;
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
    if (measure(backend, m) != HY_OK) { /* a card that is full to the brim, for example */
        snprintf(m->cuda, sizeof m->cuda, "copies could not be timed: %s", hy_error_message());
    }
    backend->destroy(backend);
}
