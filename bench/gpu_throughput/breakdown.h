/* breakdown.h: the time of a step by op. */
#ifndef BENCH_GPU_THROUGHPUT_BREAKDOWN_H
#define BENCH_GPU_THROUGHPUT_BREAKDOWN_H

#include "gpu_throughput/work.h"

/* Makes one more optimizer step that waits for every op, and prints shares by kind of op, and
 * matmuls by shape. `step` is the time of a step without waiting. */
hy_status gt_breakdown(gt_work *work, double step);

#endif
