/* hub_listing.h: which files of a model the hub has, with sizes and checksums.
 *
 * Read from what the hub's server says, which is foreign: names with a folder in them or a dot in
 * front are left out, so that none leads out of the folder it is put into; a checksum is digits of
 * the right number. */
#pragma once

#include <stdbool.h>

#include "base/sha.h"
#include "hybrid_types.h"

typedef struct hy_hub_file {
    char name[128];
    uint64_t size;
    hy_sha_kind
        kind; /* SHA-256 of the file; or SHA-1 of "blob SIZE", a zero and the file, as git has it */
    char hash[HY_SHA_HEX];
    bool is_wanted; /* the loader reads it, or it goes along with the model */
    bool is_here;   /* for who fetches: it need not come */
} hy_hub_file;

typedef struct hy_hub_listing {
    char commit[HY_SHA_HEX];
    hy_hub_file *files; /* what may be wanted; config.json is the last */
    size_t count;
} hy_hub_listing;

/* The answer of /api/models/NAME/revision/REV?blobs=true. `source` is what messages call it.
 * Everything is wanted but weights; HY_ERR_INPUT where the model has no config.json or no weights
 * as safetensors. */
hy_status hy_hub_listing_read(const char *text, size_t size, const char *source,
                              hy_hub_listing *out);
void hy_hub_listing_free(hy_hub_listing *listing);

hy_hub_file *hy_hub_listing_find(const hy_hub_listing *listing, const char *name); /* or NULL */

/* Marks the weights as wanted: model.safetensors, or the files that the index names; `index` is its
 * text, NULL when the listing has none. */
hy_status hy_hub_listing_want_weights(hy_hub_listing *listing, const char *index, size_t size);
