/* breakdown.h: where the time of a step goes, op by op. */
#ifndef BENCH_GPU_THROUGHPUT_BREAKDOWN_H
#define BENCH_GPU_THROUGHPUT_BREAKDOWN_H

#include "gpu_throughput/work.h"

/* Makes one more optimizer step in which every op is waited for, and prints shares by kind of op,
 * and products by shape. `step` is what a step takes when nothing waits in between. */
hy_status gt_breakdown(gt_work *work, double step);

#endif
