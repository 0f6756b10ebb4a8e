/* access.h: which tensors of an op are read and which are written.
 *
 * The model derives liveness, recomputation and memory from its op lists with this one table; it says
 * in data what the comments of kernels.h say in words. */
#ifndef HY_KERNELS_ACCESS_H
#define HY_KERNELS_ACCESS_H

#include "kernels/kernels.h"

enum { HY_ACCESS_NONE = 0, HY_ACCESS_READ = 1, HY_ACCESS_WRITE = 2, HY_ACCESS_BOTH = 3 };

/* How op `kind` uses the tensor at `position`. */
int hy_op_access(hy_op_kind kind, int position);

#endif
