/* machine.c: what this machine has, for --doctor. See hybrid.h; the GPU is in machine_card.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "hybrid.h"
#include "kernels/kernels.h"
#include "trainer/machine_card.h"

#define COPY_BYTES (64u << 20)

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

/* Best of three copies of a block that does not fit a cache; bytes read plus bytes written. */
static double measure_copy(void) {
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double best = 0;
    if (from && to) {
        memset(from, 1, COPY_BYTES);
        memset(to, 2, COPY_BYTES);
        for (int i = 0; i < 3; i++) {
            double begin = hy_clock();
            memcpy(to, from, COPY_BYTES);
            double rate = 2.0 * COPY_BYTES / (hy_clock() - begin);
            from[i] = to[COPY_BYTES - 1 - i]; /* the copy has a reader, so it is made */
            if (rate > best) best = rate;
        }
    }
    free(from);
    free(to);
    return best;
}

static uint64_t pin_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : (uint64_t)limit.rlim_cur;
}

hy_status hy_machine_probe(const char *folder, hy_machine *out) {
    hy_backend *cpu;
    struct statvfs disk;
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
    out->host_copy_bytes_per_second = measure_copy();
    out->pin_limit = pin_limit();
    if (statvfs(folder, &disk) == 0) out->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    out->is_wsl = file_holds("/proc/version", "icrosoft");
    out->is_container = hy_path_exists("/.dockerenv") || hy_path_exists("/run/.containerenv") ||
                        file_holds("/proc/1/cgroup", "docker");
    hy_machine_probe_card(out);
    return HY_OK;
}
