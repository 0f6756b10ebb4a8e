/* tiles.h: the predictor's buffers, in tiles of equal size.
 *
 * Formulas work element by element, so the rows that they use besides the weights (slow weights,
 * snapshot, average) need not move in blocks. In the stores of these rows an item is a tile of a
 * parameter, and a unit is a group of items of one block with about the size of one tile. So
 * their ring is small for every model. The tiles of a parameter are contiguous in the backing
 * store, each followed by its scales, if any. Frozen parameters have no tiles. With several
 * ranks, each has the tiles of its slices. */
#pragma once

#include "memory/store.h"
#include "model/shard.h"

#define HY_TILE_ELEMENTS (1 << 24) /* copying a tile takes a millisecond or two */
#define HY_TILE_PIECE (1 << 22)    /* elements of a tile that are decoded at a time, at most */

typedef struct hy_tiles {
    int32_t *first; /* (parameters + 1): item of a parameter's first tile */
    int32_t count;
    const hy_shard *shard; /* the owner's; NULL: tiles cover whole parameters */
} hy_tiles;

hy_status hy_tiles_init(hy_tiles *tiles, const hy_params *params, const hy_shard *shard);
void hy_tiles_fini(hy_tiles *tiles);

/* The layout of a class in tiles of this type; block: elements of codes that share a scale. */
hy_status hy_tiles_layout(const hy_tiles *tiles, const hy_params *params, hy_dtype dtype,
                          int32_t block, hy_layout *out);

/* The slice of a parameter that the tiles cover. */
static inline hy_slice hy_tiles_slice(const hy_tiles *tiles, const hy_params *params,
                                      int32_t param) {
    if (!params->list[param].is_trainable) return (hy_slice){0};
    return hy_shard_own(tiles->shard, params, param);
}

/* Where a tile begins in that slice. */
static inline int64_t hy_tile_begin(const hy_tiles *tiles, int32_t param, int32_t tile) {
    return (int64_t)(tile - tiles->first[param]) * HY_TILE_ELEMENTS;
}
