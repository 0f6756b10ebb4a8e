/* tiles.h: the predictor's buffers, in tiles of equal size.
 *
 * Formulas go element by element, so the rows that they read and write besides the weights need not
 * move in blocks: slow weights, snapshot and average. In the stores of these rows an item is a tile
 * of a parameter, and a unit is as many items of one block as make about one tile. So a ring of
 * them is small for every model. The tiles of a parameter lie back to back in the backing store,
 * each followed by its scales if it has some. Frozen parameters have no tiles. Of several ranks,
 * each has the tiles of its slices. */
#pragma once

#include "memory/store.h"
#include "model/shard.h"

#define HY_TILE_ELEMENTS (1 << 24) /* the copy of a tile takes a millisecond or two */
#define HY_TILE_PIECE (1 << 22)    /* what of a tile's codes is decoded at a time, at most */

typedef struct hy_tiles {
    int32_t *first; /* (parameters + 1): item of a parameter's first tile */
    int32_t count;
    const hy_shard *shard; /* the owner's; NULL: tiles are of whole parameters */
} hy_tiles;

hy_status hy_tiles_init(hy_tiles *tiles, const hy_params *params, const hy_shard *shard);
void hy_tiles_fini(hy_tiles *tiles);

/* The layout of a class in tiles of this type; block: of codes, the elements that share a scale. */
hy_status hy_tiles_layout(const hy_tiles *tiles, const hy_params *params, hy_dtype dtype,
                          int32_t block, hy_layout *out);

/* What tiles have of a parameter. */
static inline hy_slice hy_tiles_slice(const hy_tiles *tiles, const hy_params *params,
                                      int32_t param) {
    if (!params->list[param].is_trainable) return (hy_slice){0};
    return hy_shard_own(tiles->shard, params, param);
}

/* Where a tile begins, from the start of that. */
static inline int64_t hy_tile_begin(const hy_tiles *tiles, int32_t param, int32_t tile) {
    return (int64_t)(tile - tiles->first[param]) * HY_TILE_ELEMENTS;
}
