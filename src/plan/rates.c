/* rates.c: the speed of the machine that a plan is for. See request.h. */
#include "kernels/card_list.h"
#include "plan/request.h"

#define CPU_BANDWIDTH 20e9
#define DESKTOP_BANDWIDTH 70e9 /* two channels of DDR5, reads and writes together */
#define SERVER_BANDWIDTH 200e9
#define WIRE_GEN4 26e9
#define BOTH_WAYS 0.91 /* of one direction alone, if both are active */

/* On a CPU one memory is both device and host. The rate is fixed, so that the choice does not
 * depend on other load. */
static hy_rates cpu_rates(const hy_backend *b) {
    return (hy_rates){.gemm_flops = b->facts.matmul_flops > 0 ? b->facts.matmul_flops : 50e9,
                      .device_bandwidth = CPU_BANDWIDTH,
                      .copy_up = CPU_BANDWIDTH / 2,
                      .copy_down = CPU_BANDWIDTH / 2,
                      .copy_both = CPU_BANDWIDTH / 4,
                      .host_bandwidth = CPU_BANDWIDTH};
}

/* A card that is not in the list is treated as PCIe 4. */
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

/* Rates that cannot be measured keep the data sheet's value. */
hy_rates hy_plan_measured_rates(const hy_plan_request *r) {
    const char *folder = r->settings->memory.offload_folder;
    hy_rates rates = hy_plan_nominal_rates(r->backend), measured = {0};
    if (r->settings->card[0]) return rates;
    if (r->backend->facts.is_gpu) (void)hy_rates_measure(r->backend, &measured);
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
