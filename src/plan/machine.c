/* machine.c: what this machine has, for --doctor. See hybrid.h; the GPU is in machine_card.c. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/file.h"
#include "hybrid.h"
#include "kernels/kernels.h"
#include "memory/pinned.h"
#include "memory/rates.h"
#include "plan/machine_card.h"

static uint64_t meminfo(const char *key) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    size_t length = strlen(key);
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && sscanf(line + length, ": %llu kB", &kib) == 1) break;
    }
    if (file) fclose(file);
    return (uint64_t)kib << 10;
}

static bool file_holds(const char *path, const char *word) {
    FILE *file = fopen(path, "r");
    char line[1024];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) found = strstr(line, word) != NULL;
    if (file) fclose(file);
    return found;
}

static void probe_pinning(hy_machine *out) {
    hy_pin_limits limits;
    hy_pin_probe("/proc", "/sys", &limits);
    out->pin_limit = limits.likely_limit;
    hy_pin_reason(&limits, out->pin_reason, sizeof out->pin_reason);
}

static void probe_disk(const char *folder, hy_machine *out) {
    struct statvfs disk;
    hy_rates rates = {0};
    if (statvfs(folder, &disk) == 0) out->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (hy_rates_disk(folder, &rates) != HY_OK) {
        snprintf(out->disk_problem, sizeof out->disk_problem, "%s", hy_error_message());
        return;
    }
    out->disk_read_bytes_per_second = rates.disk_read;
    out->disk_write_bytes_per_second = rates.disk_write;
}

hy_status hy_machine_probe(const char *folder, hy_machine *out) {
    hy_backend *cpu;
    *out = (hy_machine){0};
    HY_TRY(hy_cpu_backend_create(&(hy_cpu_options){0}, &cpu));
    snprintf(out->cpu, sizeof out->cpu, "%s", cpu->facts.name);
    snprintf(out->blas, sizeof out->blas, "%s", cpu->facts.detail);
    snprintf(out->blas_warning, sizeof out->blas_warning, "%s", cpu->facts.warning);
    out->cores = cpu->facts.threads;
    out->sgemm_gflops = cpu->facts.matmul_flops * 1e-9;
    out->ram_total = cpu->facts.memory_total;
    out->ram_available = cpu->facts.memory_free;
    cpu->destroy(cpu);
    if (!out->ram_total) out->ram_total = meminfo("MemTotal");
    if (!out->ram_available) out->ram_available = meminfo("MemAvailable");
    probe_pinning(out);
    probe_disk(folder, out);
    out->is_wsl = file_holds("/proc/version", "icrosoft");
    out->is_container = hy_path_exists("/.dockerenv") || hy_path_exists("/run/.containerenv") ||
                        file_holds("/proc/1/cgroup", "docker");
    HY_TRY(hy_rates_host(&out->host_copy_bytes_per_second));
    hy_machine_probe_card(out);
    return HY_OK;
}
