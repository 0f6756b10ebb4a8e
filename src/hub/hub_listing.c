/* hub_listing.c: reads the hub's list of a model's files. See hub_listing.h.
 *
 * Only download.c calls it. Every listed file has a plain name, a size and a checksum. */
#include "hub/hub_listing.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "hub/hf_folder.h"
#include "hub/hf_tensors.h"

#define CONFIG "config.json"

enum { MOST_FILES = 1024 }; /* no model has more; a linear search stays fast */

/* Whether the text is `size` lower-case hexadecimal digits. */
static bool is_hash(const char *text, size_t size) {
    return strlen(text) == size && strspn(text, "0123456789abcdef") == size;
}

static bool is_plain_name(const char *name, size_t size) {
    bool is_plain = size > 0 && size < sizeof((hy_hub_file *)0)->name && name[0] != '.';
    for (size_t i = 0; i < size; i++)
        is_plain =
            is_plain && (isalnum((unsigned char)name[i]) || strchr("-_.+", name[i])) && name[i];
    return is_plain;
}

static bool is_weights(const char *name) { return hy_has_ending(name, ".safetensors"); }

/* Reads one file; false: it is not useful. */
static hy_status read_file(const hy_json_node *node, const char *source, hy_hub_file *out,
                           bool *is_of_use) {
    const hy_json_node *lfs = hy_json_get(node, "lfs");
    const char *name = NULL, *hash = NULL;
    size_t size = 0;
    int64_t bytes = -1;
    *is_of_use = hy_json_as_string(hy_json_get(node, "rfilename"), &name, &size) &&
                 is_plain_name(name, size) &&
                 (is_weights(name) || hy_hf_is_side_file(name) || strcmp(name, CONFIG) == 0 ||
                  strcmp(name, HY_HF_INDEX) == 0);
    if (!*is_of_use) return HY_OK;
    bool is_large = hy_json_type_of(lfs) == HY_JSON_OBJECT;
    if (!hy_json_as_string(hy_json_get(lfs, "sha256"), &hash, NULL))
        hy_json_as_string(hy_json_get(is_large ? lfs : node, is_large ? "oid" : "blobId"), &hash,
                          NULL);
    *out = (hy_hub_file){.kind = is_large ? HY_SHA256 : HY_SHA1, .is_wanted = !is_weights(name)};
    HY_FAIL_IF(!hy_json_as_int(hy_json_get(is_large ? lfs : node, "size"), &bytes) || bytes < 0 ||
                   !hash || !is_hash(hash, is_large ? 64 : 40),
               HY_ERR_INPUT, "%s lists no size or no checksum for %s", source, name);
    out->size = (uint64_t)bytes;
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->hash, sizeof out->hash, "%s", hash);
    return HY_OK;
}

static hy_status read_files(const hy_json_node *root, const char *source, hy_hub_listing *out) {
    const hy_json_node *siblings = hy_json_get(root, "siblings");
    const char *commit = "";
    hy_json_as_string(hy_json_get(root, "sha"), &commit, NULL);
    HY_FAIL_IF(hy_json_type_of(siblings) != HY_JSON_ARRAY || !is_hash(commit, 40), HY_ERR_INPUT,
               "%s is not a list of a model's files: \"sha\" or \"siblings\" is missing", source);
    snprintf(out->commit, sizeof out->commit, "%s", commit);
    size_t most = hy_json_size(siblings) < MOST_FILES ? hy_json_size(siblings) : MOST_FILES;
    out->files = calloc(most + 1, sizeof *out->files);
    if (!out->files) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of files");
    for (const hy_json_node *n = hy_json_first(siblings); n; n = hy_json_next(n)) {
        bool is_of_use;
        hy_hub_file file = {0};
        HY_TRY(read_file(n, source, &file, &is_of_use));
        if (!is_of_use || hy_hub_listing_find(out, file.name)) continue;
        HY_FAIL_IF(out->count == MOST_FILES, HY_ERR_INPUT, "%s lists more than %d files", source,
                   MOST_FILES);
        out->files[out->count++] = file;
    }
    return HY_OK;
}

/* A folder counts as a model when config.json exists, so that comes last. */
static hy_status check_files(const char *source, hy_hub_listing *listing) {
    hy_hub_file *config = hy_hub_listing_find(listing, CONFIG);
    HY_FAIL_IF(!config, HY_ERR_INPUT, "%s has no " CONFIG ": hybrid-train cannot train this model",
               source);
    HY_FAIL_IF(!hy_hub_listing_find(listing, HY_HF_SINGLE) &&
                   !hy_hub_listing_find(listing, HY_HF_INDEX),
               HY_ERR_INPUT,
               "%s has no " HY_HF_SINGLE " and no " HY_HF_INDEX
               "; other weight formats (pytorch_model.bin, GGUF) are not supported",
               source);
    hy_hub_file last = *config, *end = listing->files + listing->count - 1;
    memmove(config, config + 1, (size_t)(end - config) * sizeof *config);
    *end = last;
    return HY_OK;
}

hy_status hy_hub_listing_read(const char *text, size_t size, const char *source,
                              hy_hub_listing *out) {
    hy_json *json;
    *out = (hy_hub_listing){0};
    HY_TRY(hy_json_parse(text, size, source, &json));
    hy_status status = read_files(hy_json_root(json), source, out);
    hy_json_free(json);
    if (status == HY_OK) status = check_files(source, out);
    if (status != HY_OK) hy_hub_listing_free(out);
    return status;
}

void hy_hub_listing_free(hy_hub_listing *listing) {
    free(listing->files);
    *listing = (hy_hub_listing){0};
}

hy_hub_file *hy_hub_listing_find(const hy_hub_listing *listing, const char *name) {
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->files[i].name, name) == 0) return &listing->files[i];
    return NULL;
}

/* The loader reads model.safetensors if it exists, otherwise the files of the index. */
hy_status hy_hub_listing_want_weights(hy_hub_listing *listing, const char *index, size_t size) {
    hy_hub_file *single = hy_hub_listing_find(listing, HY_HF_SINGLE);
    hy_json *json;
    if (single) single->is_wanted = true;
    if (single) return HY_OK;
    HY_TRY(hy_json_parse(index, size, HY_HF_INDEX, &json));
    const hy_json_node *map = hy_json_get(hy_json_root(json), "weight_map");
    hy_status status = hy_json_type_of(map) == HY_JSON_OBJECT && hy_json_size(map)
                           ? HY_OK
                           : hy_fail(HY_ERR_INPUT, HY_HF_INDEX " has no \"weight_map\"");
    hy_hub_file *file = NULL;
    for (const hy_json_node *n = hy_json_first(map); n && status == HY_OK; n = hy_json_next(n)) {
        const char *name = "";
        bool is_same = hy_json_as_string(n, &name, NULL) && file && !strcmp(file->name, name);
        if (!is_same) file = hy_hub_listing_find(listing, name);
        if (file)
            file->is_wanted = true;
        else
            status = hy_fail(HY_ERR_INPUT,
                             HY_HF_INDEX " names %.100s, which the model does not have", name);
    }
    hy_json_free(json);
    return status;
}
