/* tiles.h: what predictors keep, in tiles of equal size.
 *
 * Formulas go element by element, so what they read and write besides the weights need not move with
 * blocks: slow weights, snapshot and average are stores whose items are tiles of parameters, and whose units are
 * as many items of one block as make about one tile. A ring of them is small whatever the model. The
 * tiles of a parameter lie back to back in the backing store, each with its scales where it has some.
 * Frozen parameters have none. */
#pragma once

#include "memory/store.h"
#include "model/params.h"

#define HY_TILE_ELEMENTS (1 << 24) /* the copy of a tile takes a millisecond or two */
#define HY_TILE_PIECE (1 << 22)    /* what of a tile's codes is decoded at a time, at most */

typedef struct hy_tiles {
    int32_t *first; /* (parameters + 1): item of a parameter's first tile */
    int32_t count;
} hy_tiles;

hy_status hy_tiles_init(hy_tiles *tiles, const hy_params *params);
void hy_tiles_fini(hy_tiles *tiles);

/* The layout of a class in tiles of this type; block: of codes, the elements that share a scale. */
hy_status hy_tiles_layout(const hy_tiles *tiles, const hy_params *params, hy_dtype dtype,
                          int32_t block, hy_layout *out);

static inline int64_t hy_tile_begin(const hy_tiles *tiles, int32_t param, int32_t tile) {
    return (int64_t)(tile - tiles->first[param]) * HY_TILE_ELEMENTS;
}
