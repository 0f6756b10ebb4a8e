/* hf_tensors.c: opens the weights of a model's folder. See hf_tensors.h.
 *
 * Loading (hf_parts.c), quantised folders (bnb.c) and export use it. A name in the index never
 * leads out of the folder, and each tensor is in exactly one file. */
#include "hub/hf_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

enum { PATH_SIZE = 1024 };

typedef struct shard {
    char *name;
    hy_safetensors *file;
} shard;

struct hy_hf_tensors {
    char *folder;
    shard *shards;
    size_t shard_count, shard_room;
    hy_hf_found *found; /* sorted by name */
    size_t count;
};

/* ---- shards ---------------------------------------------------------------------------------- */

static const shard *find_shard(const hy_hf_tensors *t, const char *name) {
    for (size_t i = 0; i < t->shard_count; i++) {
        if (strcmp(t->shards[i].name, name) == 0) return &t->shards[i];
    }
    return NULL;
}

static hy_status add_shard(hy_hf_tensors *t, const char *name) {
    char path[PATH_SIZE];
    if (find_shard(t, name)) return HY_OK;
    /* Shards are in the folder of the index: a name that leads elsewhere is rejected. */
    HY_FAIL_IF(!*name || *name == '.' || strchr(name, '/'), HY_ERR_INPUT,
               "%s/%s: \"%.200s\" is not a file name in the same folder", t->folder, HY_HF_INDEX,
               name);
    HY_TRY(hy_array_reserve(&t->shards, &t->shard_room, t->shard_count + 1, sizeof *t->shards,
                            "shards"));
    shard *s = &t->shards[t->shard_count];
    *s = (shard){.name = strdup(name)};
    if (!s->name) return hy_fail(HY_ERR_MEMORY, "not enough memory for the name of a shard");
    t->shard_count++;
    HY_TRY(hy_path_join(path, sizeof path, t->folder, name));
    return hy_safetensors_open(path, &s->file);
}

/* Opens the shards of the index, and checks that both agree. */
static hy_status open_listed(hy_hf_tensors *t, const hy_json_node *map) {
    const char *name;
    HY_FAIL_IF(hy_json_type_of(map) != HY_JSON_OBJECT || hy_json_size(map) == 0, HY_ERR_INPUT,
               "%s/%s: \"weight_map\" is missing, empty or not an object", t->folder, HY_HF_INDEX);
    for (const hy_json_node *m = hy_json_first(map); m; m = hy_json_next(m)) {
        HY_FAIL_IF(!hy_json_as_string(m, &name, NULL), HY_ERR_INPUT,
                   "%s/%s: the file name of \"%.200s\" is not a string", t->folder, HY_HF_INDEX,
                   hy_json_key(m));
        HY_TRY(add_shard(t, name));
        HY_FAIL_IF(!hy_safetensors_find(find_shard(t, name)->file, hy_json_key(m)), HY_ERR_INPUT,
                   "%s/%s: tensor \"%.200s\" is not in %s, the file listed for it", t->folder,
                   HY_HF_INDEX, hy_json_key(m), name);
    }
    for (size_t i = 0; i < t->shard_count; i++) {
        const hy_safetensors *file = t->shards[i].file;
        for (size_t j = 0; j < hy_safetensors_count(file); j++) {
            const char *listed = NULL;
            name = hy_safetensors_at(file, j)->name;
            if (hy_json_as_string(hy_json_get(map, name), &listed, NULL) &&
                strcmp(listed, t->shards[i].name) == 0) {
                continue;
            }
            return hy_fail(HY_ERR_INPUT, "%s/%s: tensor \"%.200s\" is in %s, but the index %s%s",
                           t->folder, HY_HF_INDEX, name, t->shards[i].name,
                           listed ? "says it is in " : "does not list it", listed ? listed : "");
        }
    }
    return HY_OK;
}

/* ---- the set --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    return strcmp(((const hy_hf_found *)a)->entry->name, ((const hy_hf_found *)b)->entry->name);
}

static hy_status sort_tensors(hy_hf_tensors *t) {
    size_t all = 0;
    for (size_t i = 0; i < t->shard_count; i++) all += hy_safetensors_count(t->shards[i].file);
    t->found = calloc(all + 1, sizeof *t->found);
    if (!t->found)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of %zu tensors", all);
    for (size_t i = 0; i < t->shard_count; i++) {
        const hy_safetensors *file = t->shards[i].file;
        for (size_t j = 0; j < hy_safetensors_count(file); j++) {
            t->found[t->count++] = (hy_hf_found){file, hy_safetensors_at(file, j)};
        }
    }
    qsort(t->found, t->count, sizeof *t->found, compare_names);
    return HY_OK;
}

/* Fails for a folder without safetensors; weights of PyTorch get the line that converts them. */
static hy_status fail_without_files(const char *folder) {
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    char path[PATH_SIZE];
    for (int i = 0; i < 2; i++) {
        HY_TRY(hy_path_join(path, sizeof path, folder, names[i]));
        HY_FAIL_IF(hy_path_exists(path), HY_ERR_INPUT,
                   "%s has its weights in %s, which is not supported, and no %s; write one with: "
                   "python3 -c \"from transformers import AutoModelForCausalLM as M; "
                   "M.from_pretrained('%s', torch_dtype='auto').save_pretrained('%s')\"",
                   folder, names[i], HY_HF_SINGLE, folder, folder);
    }
    return hy_fail(HY_ERR_INPUT, "%s has no %s and no %s", folder, HY_HF_SINGLE, HY_HF_INDEX);
}

static hy_status open_files(hy_hf_tensors *t) {
    char single[PATH_SIZE], index[PATH_SIZE];
    HY_TRY(hy_path_join(single, sizeof single, t->folder, HY_HF_SINGLE));
    HY_TRY(hy_path_join(index, sizeof index, t->folder, HY_HF_INDEX));
    if (hy_path_exists(single)) return add_shard(t, HY_HF_SINGLE);
    if (!hy_path_exists(index)) return fail_without_files(t->folder);
    hy_json *json;
    HY_TRY(hy_json_read_file(index, &json));
    hy_status status = open_listed(t, hy_json_get(hy_json_root(json), "weight_map"));
    hy_json_free(json);
    return status;
}

hy_status hy_hf_tensors_open(const char *folder, hy_hf_tensors **out) {
    *out = NULL;
    hy_hf_tensors *t = calloc(1, sizeof *t);
    if (!t || !(t->folder = strdup(folder))) {
        free(t);
        return hy_fail(HY_ERR_MEMORY, "out of memory opening %s", folder);
    }
    hy_status status = open_files(t);
    if (status == HY_OK) status = sort_tensors(t);
    if (status == HY_OK) *out = t;
    if (status != HY_OK) hy_hf_tensors_close(t);
    return status;
}

void hy_hf_tensors_close(hy_hf_tensors *t) {
    if (!t) return;
    for (size_t i = 0; i < t->shard_count; i++) {
        hy_safetensors_close(t->shards[i].file);
        free(t->shards[i].name);
    }
    free(t->shards);
    free(t->found);
    free(t->folder);
    free(t);
}

size_t hy_hf_tensors_count(const hy_hf_tensors *t) { return t->count; }

hy_hf_found hy_hf_tensors_at(const hy_hf_tensors *t, size_t i) {
    return i < t->count ? t->found[i] : (hy_hf_found){0};
}

hy_hf_found hy_hf_tensors_find(const hy_hf_tensors *t, const char *name) {
    hy_safetensors_entry entry = {.name = name};
    hy_hf_found key = {.entry = &entry};
    const hy_hf_found *found = bsearch(&key, t->found, t->count, sizeof *t->found, compare_names);
    return found ? *found : (hy_hf_found){0};
}
