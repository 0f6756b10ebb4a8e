/* sized.h: copies of public structs that carry their size.
 *
 * A program and the library may have been built with definitions of different length: a struct that
 * begins with `size` grows at its end. Functions with _sized at the end of their names fill the
 * library's own struct and copy it to the caller with this. */
#ifndef HY_BASE_SIZED_H
#define HY_BASE_SIZED_H

#include <stddef.h>

/* Copies `from`, of from_size bytes, to `to`, of to_size bytes: the bytes that both have. The rest
 * of `to` becomes zero, and its first member the number of bytes copied. `to` may be NULL. */
void hy_copy_sized(void *to, size_t to_size, const void *from, size_t from_size);

#endif
