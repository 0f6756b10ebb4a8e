/* array.c: arrays that grow. See array.h. */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LEAST 16 /* items */

hy_status hy_array_reserve(void *array, size_t *room, size_t count, size_t size, const char *what) {
    void *data;
    if (count <= *room) return HY_OK;
    size_t wanted = *room > LEAST / 2 ? *room : LEAST / 2;
    while (wanted < count && wanted <= SIZE_MAX / 2) wanted *= 2;
    memcpy(&data, array, sizeof data); /* a pointer of another type with the same representation */
    void *grown = wanted < count || wanted > SIZE_MAX / size ? NULL : realloc(data, wanted * size);
    if (!grown) return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu items: %s", count, what);
    memcpy(array, &grown, sizeof grown);
    *room = wanted;
    return HY_OK;
}
