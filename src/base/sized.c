/* sized.c: copies public structs of different sizes. See sized.h. */
#include "base/sized.h"

#include <string.h>

void hy_copy_sized(void *to, size_t to_size, const void *from, size_t from_size) {
    size_t shared = to_size < from_size ? to_size : from_size;
    if (!to || shared < sizeof shared) return;
    memcpy(to, from, shared);
    memset((char *)to + shared, 0, to_size - shared);
    memcpy(to, &shared, sizeof shared);
}
