/* array.h: arrays that grow by doubling. */
#pragma once

#include "hybrid_types.h"

/* Makes room for `count` items of `size` bytes in *array (the address of a pointer, NULL at first);
 * *room is the current capacity. HY_ERR_MEMORY names `what`; then nothing has changed. */
hy_status hy_array_reserve(void *array, size_t *room, size_t count, size_t size, const char *what);
