/* machine.c: describes this machine, for --doctor. See hybrid.h.
 *
 * The first card is opened in the same way as by a run, so the report shows what a run will
 * find. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "hybrid.h"
#include "hybrid_tools.h"
#include "kernels/card_list.h"
#include "kernels/cuda_files.h"
#include "kernels/kernels.h"
#include "kernels/nvml.h"
#include "memory/pinned.h"
#include "memory/rates.h"

static bool file_holds(const char *path, const char *word) {
    FILE *file = fopen(path, "r");
    char line[1024];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) found = strstr(line, word) != NULL;
    if (file) fclose(file);
    return found;
}

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

/* Missing values stay zero; `cuda` holds the reason. */
static void probe_card(hy_machine *m) {
    hy_cuda_options options = {
        .tune = HY_TUNE_OFF, .attention = HY_ATTENTION_AUTO, .is_measuring = true};
    hy_backend *backend;
    hy_rates rates = {0};
    if (!hy_nvml_driver_version(m->driver, sizeof m->driver)) {
        driver_from_proc(m->driver, sizeof m->driver);
    }
    hy_cuda_files files;
    hy_cuda_find_files(&files);
    snprintf(m->cuda_backend, sizeof m->cuda_backend, "%s", files.backend);
    snprintf(m->cublas, sizeof m->cublas, "%s", files.cublas);
    if (hy_cuda_backend_create(&options, &backend) != HY_OK) {
        snprintf(m->cuda, sizeof m->cuda, "%s", hy_error_message());
        return;
    }
    const hy_device_facts *facts = &backend->facts;
    m->has_cuda = true;
    snprintf(m->gpu, sizeof m->gpu, "%s", facts->name);
    snprintf(m->gpu_detail, sizeof m->gpu_detail, "%s", facts->detail);
    snprintf(m->cuda, sizeof m->cuda, "the backend was found and the card can be used");
    m->gpu_capability = facts->capability;
    m->vram_total = facts->memory_total;
    m->vram_free = facts->memory_free;
    m->gpu_matmul_flops = facts->matmul_flops;
    m->gpu_peak_flops = hy_card_peak(facts->name);
    if (hy_rates_measure(backend, &rates) == HY_OK) {
        m->upload_bytes_per_second = rates.copy_up;
        m->download_bytes_per_second = rates.copy_down;
        m->both_ways_bytes_per_second = rates.copy_both;
        m->gpu_memory_bytes_per_second = rates.device_bandwidth;
    } else { /* for example, a card without free memory */
        snprintf(m->cuda, sizeof m->cuda, "cannot measure the speed of copies: %s",
                 hy_error_message());
    }
    backend->destroy(backend);
}

static hy_status probe(const char *folder, hy_machine *out) {
    hy_backend *cpu;
    hy_pin_limits limits;
    hy_rates rates = {0};
    struct statvfs disk;
    HY_TRY(hy_cpu_backend_create(&(hy_cpu_options){0}, &cpu));
    snprintf(out->cpu, sizeof out->cpu, "%s", cpu->facts.name);
    snprintf(out->blas, sizeof out->blas, "%s", cpu->facts.detail);
    snprintf(out->blas_warning, sizeof out->blas_warning, "%s", cpu->facts.warning);
    out->cores = cpu->facts.threads;
    out->sgemm_gflops = cpu->facts.matmul_flops * 1e-9;
    out->ram_total = cpu->facts.memory_total;
    out->ram_available = cpu->facts.memory_free;
    cpu->destroy(cpu);
    hy_pin_probe("/proc", "/sys", &limits);
    out->pin_limit = limits.likely_limit;
    hy_pin_reason(&limits, out->pin_reason, sizeof out->pin_reason);
    if (statvfs(folder, &disk) == 0) out->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (hy_rates_disk(folder, &rates) != HY_OK) {
        snprintf(out->disk_problem, sizeof out->disk_problem, "%s", hy_error_message());
    }
    out->disk_read_bytes_per_second = rates.disk_read;
    out->disk_write_bytes_per_second = rates.disk_write;
    out->is_wsl = file_holds("/proc/version", "icrosoft");
    out->is_container = hy_path_exists("/.dockerenv") || hy_path_exists("/run/.containerenv") ||
                        file_holds("/proc/1/cgroup", "docker");
    HY_TRY(hy_rates_host(&out->host_copy_bytes_per_second));
    probe_card(out);
    return HY_OK;
}

hy_status hy_machine_probe_sized(const char *folder, hy_machine *out, size_t size) {
    hy_machine machine = {0};
    hy_status status = probe(folder, &machine);
    hy_copy_sized(out, size, &machine, sizeof machine);
    return status;
}
