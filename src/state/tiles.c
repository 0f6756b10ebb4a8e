/* tiles.c: divides parameters into tiles. See tiles.h. */
#include "state/tiles.h"

#include <stdlib.h>

#include "base/error.h"

hy_status hy_tiles_init(hy_tiles *tiles, const hy_params *params, const hy_shard *shard) {
    *tiles = (hy_tiles){.shard = shard};
    tiles->first = malloc(((size_t)params->count + 1) * sizeof *tiles->first);
    if (!tiles->first) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of tiles");
    for (int32_t i = 0; i < params->count; i++) {
        tiles->first[i] = tiles->count;
        int64_t count = hy_tiles_slice(tiles, params, i).count;
        tiles->count += (int32_t)((count + HY_TILE_ELEMENTS - 1) / HY_TILE_ELEMENTS);
    }
    tiles->first[params->count] = tiles->count;
    return HY_OK;
}

void hy_tiles_fini(hy_tiles *tiles) {
    free(tiles->first);
    *tiles = (hy_tiles){0};
}

hy_status hy_tiles_layout(const hy_tiles *tiles, const hy_params *params, hy_dtype dtype,
                          int32_t block, hy_layout *out) {
    hy_layout_item *items = calloc((size_t)tiles->count + 1, sizeof *items);
    if (!items) return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout of tiles");
    int32_t unit = 0, last = -1; /* unit of the store; model unit of the last tile */
    int64_t in_unit = 0;
    for (int32_t i = 0; i < params->count; i++) {
        for (int32_t tile = tiles->first[i]; tile < tiles->first[i + 1]; tile++) {
            int64_t left = hy_tiles_slice(tiles, params, i).count - hy_tile_begin(tiles, i, tile);
            int64_t count = left < HY_TILE_ELEMENTS ? left : HY_TILE_ELEMENTS;
            bool is_new = last >= 0 && params->list[i].unit != last;
            bool is_full = is_new || (in_unit > 0 && in_unit + count > HY_TILE_ELEMENTS);
            last = params->list[i].unit;
            unit += is_full;
            in_unit = (is_full ? 0 : in_unit) + count;
            items[tile] =
                (hy_layout_item){.unit = unit, .dtype = dtype, .count = count, .block = block};
        }
    }
    hy_status status = hy_layout_init(out, items, tiles->count, unit + 1);
    out->is_even = true;
    free(items);
    return status;
}
