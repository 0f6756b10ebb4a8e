/* rates.h: how fast this machine moves bytes, measured, for the planner's cost model and --doctor.
 *
 * Everything goes through the backend's own interface, so the same code measures a GPU and the CPU
 * standing in for one. A measurement takes about a third of a second and gives back all it took:
 * 256 MiB on the device, 128 MiB pinned, 256 MiB of host memory at most. Nothing is kept. */
#pragma once

#include "kernels/kernels.h"

/* Per second; 0: not known. */
typedef struct hy_rates {
    double gemm_flops;            /* of a large matmul: facts.matmul_flops */
    double device_bandwidth;      /* bytes read plus bytes written; on a CPU: host_bandwidth */
    double copy_up;               /* bytes from pinned memory to the device, alone */
    double copy_down;             /* and back, alone */
    double copy_both;             /* each way, when both run together */
    double host_bandwidth;        /* bytes read plus bytes written, all cores copying */
    double disk_read, disk_write; /* of one folder: hy_rates_disk */
} hy_rates;

/* Measures all but the disk, which becomes 0. Nothing else may run on the device meanwhile. */
hy_status hy_rates_measure(hy_backend *b, hy_rates *out);

/* Host memory alone, without a device. */
hy_status hy_rates_host(double *bandwidth);

/* Fills disk_read and disk_write for a folder, in less than half a second; nothing stays there. */
hy_status hy_rates_disk(const char *folder, hy_rates *rates);
