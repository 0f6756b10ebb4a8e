/* hub_listing.h: a model's files on the hub, with sizes and checksums.
 *
 * The server's answer is not trusted: names with a folder or a leading dot are ignored, so that
 * none leads out of the target folder; a checksum must have the right number of digits. */
#pragma once

#include <stdbool.h>

#include "base/sha.h"
#include "hybrid_types.h"

typedef struct hy_hub_file {
    char name[128];
    uint64_t size;
    hy_sha_kind
        kind; /* SHA-256 of the file; or SHA-1 of "blob SIZE", a zero and the file, as in git */
    char hash[HY_SHA_HEX];
    bool is_wanted; /* the loader reads it, or it is copied with the model */
    bool is_here;   /* set by the caller: it need not be downloaded */
} hy_hub_file;

typedef struct hy_hub_listing {
    char commit[HY_SHA_HEX];
    hy_hub_file *files; /* the useful files; config.json is the last */
    size_t count;
} hy_hub_listing;

/* The answer of /api/models/NAME/revision/REV?blobs=true. Messages call it `source`. Marks
 * everything except weights as needed; HY_ERR_INPUT if the model has no config.json or no
 * safetensors weights. */
hy_status hy_hub_listing_read(const char *text, size_t size, const char *source,
                              hy_hub_listing *out);
void hy_hub_listing_free(hy_hub_listing *listing);

hy_hub_file *hy_hub_listing_find(const hy_hub_listing *listing, const char *name); /* or NULL */

/* Marks the weights as needed: model.safetensors, or the files in the index; `index` is its
 * text, NULL: there is none. */
hy_status hy_hub_listing_want_weights(hy_hub_listing *listing, const char *index, size_t size);
