/* planner_rates.c: how fast and how large the machine is that a plan is for. See planner_run.h. */
#include <sys/statvfs.h>

#include "kernels/card_list.h"
#include "memory/pinned.h"
#include "trainer/planner_run.h"

#define CPU_BANDWIDTH 20e9
#define DESKTOP_BANDWIDTH 70e9 /* two channels of DDR5, read and written together */
#define SERVER_BANDWIDTH 200e9
#define WIRE_GEN4 26e9
#define BOTH_WAYS 0.91 /* of one way alone, when both are at work */

/* ---- rates ------------------------------------------------------------------------------------------ */

/* A CPU's memory plays both device and host. Fixed, so that what is chosen does not depend on what else
 * the machine does meanwhile. */
static hy_rates cpu_rates(const hy_backend *b) {
    return (hy_rates){.gemm_flops = b->facts.matmul_flops > 0 ? b->facts.matmul_flops : 50e9,
                      .device_bandwidth = CPU_BANDWIDTH,
                      .copy_up = CPU_BANDWIDTH / 2,
                      .copy_down = CPU_BANDWIDTH / 2,
                      .copy_both = CPU_BANDWIDTH / 4,
                      .host_bandwidth = CPU_BANDWIDTH};
}

/* A card that is not in the list is taken for one of PCIe 4. */
static hy_rates card_rates(const hy_backend *b) {
    const hy_card *card = hy_card_find(b->facts.name);
    double wire = card ? card->wire : WIRE_GEN4;
    return (hy_rates){.gemm_flops = b->facts.matmul_flops > 0 ? b->facts.matmul_flops : 50e12,
                      .device_bandwidth = card ? card->bandwidth : 600e9,
                      .copy_up = wire,
                      .copy_down = wire,
                      .copy_both = BOTH_WAYS * wire,
                      .host_bandwidth =
                          !card || card->is_desktop ? DESKTOP_BANDWIDTH : SERVER_BANDWIDTH};
}

hy_rates hy_plan_nominal_rates(const hy_backend *b) {
    hy_rates rates = b->facts.is_gpu ? card_rates(b) : cpu_rates(b);
    rates.disk_read = 3e9;
    rates.disk_write = 1.5e9;
    return rates;
}

/* What could not be measured stays as the data sheet has it. */
hy_rates hy_plan_measured_rates(const hy_trainer *t) {
    const char *folder = t->settings.memory.offload_folder;
    hy_rates rates = hy_plan_nominal_rates(t->engine.backend), measured = {0};
    if (t->settings.card[0]) return rates;
    if (t->engine.backend->facts.is_gpu) (void)hy_rates_measure(t->engine.backend, &measured);
    if (folder[0]) (void)hy_rates_disk(folder, &measured);
    double *to[] = {&rates.gemm_flops, &rates.device_bandwidth, &rates.copy_up,
                    &rates.copy_down,  &rates.copy_both,        &rates.host_bandwidth,
                    &rates.disk_read,  &rates.disk_write};
    const double from[] = {measured.gemm_flops, measured.device_bandwidth, measured.copy_up,
                           measured.copy_down,  measured.copy_both,        measured.host_bandwidth,
                           measured.disk_read,  measured.disk_write};
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        if (from[i] > 0) *to[i] = from[i];
    }
    return rates;
}

/* ---- budgets ---------------------------------------------------------------------------------------- */

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What the run's check allows, and on a card no more than can be pinned. */
static uint64_t host_budget(const hy_trainer *t) {
    uint64_t limit = hy_trainer_host_limit(t), data = hy_trainer_data_bytes(t);
    hy_pin_limits pins;
    if (!limit) {
        limit = UINT64_MAX;
    } else {
        limit = limit > data ? limit - data : 1; /* what is read ahead lies there too */
    }
    if (!t->engine.backend->facts.is_gpu || t->settings.card[0]) return limit;
    hy_pin_probe("/proc", "/sys", &pins);
    return smaller(limit, pins.likely_limit);
}

static uint64_t disk_budget(const hy_settings *s) {
    struct statvfs disk;
    const char *folder = s->memory.offload_folder;
    if (!folder[0]) return 0;
    if (s->memory.offload_size) return (uint64_t)s->memory.offload_size;
    if (s->card[0] || statvfs(folder, &disk) != 0) return UINT64_MAX;
    return (uint64_t)disk.f_bavail * disk.f_frsize;
}

hy_plan_budgets hy_plan_budgets_of(const hy_trainer *t, const hy_settings *s) {
    uint64_t device = hy_trainer_device_limit(t);
    return (hy_plan_budgets){
        .device = device ? device : UINT64_MAX, .host = host_budget(t), .disk = disk_budget(s)};
}
