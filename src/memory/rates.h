/* rates.h: measures how fast this machine moves bytes, for the planner's cost model and --doctor.
 *
 * Everything uses the backend's interface, so the same code measures a GPU and the CPU that
 * replaces one. A measurement takes about a third of a second and frees everything: at most 256 MiB
 * on the device, 128 MiB pinned, 256 MiB of host memory. */
#pragma once

#include "kernels/kernels.h"

/* Per second; 0: unknown. */
typedef struct hy_rates {
    double gemm_flops;            /* of a large matmul: facts.matmul_flops */
    double device_bandwidth;      /* bytes read plus bytes written; on a CPU: host_bandwidth */
    double copy_up;               /* bytes from pinned memory to the device, one way only */
    double copy_down;             /* bytes from the device to pinned memory, one way only */
    double copy_both;             /* each way, when both run together */
    double host_bandwidth;        /* bytes read plus bytes written, all cores copying */
    double disk_read, disk_write; /* of one folder: hy_rates_disk */
} hy_rates;

/* Measures all rates except those of the disk, which become 0. Nothing else may run on the device
 * meanwhile. */
hy_status hy_rates_measure(hy_backend *b, hy_rates *out);

/* Measures host memory only, without a device. */
hy_status hy_rates_host(double *bandwidth);

/* Measures disk_read and disk_write of a folder in less than half a second; leaves no files
 * there. */
hy_status hy_rates_disk(const char *folder, hy_rates *rates);
