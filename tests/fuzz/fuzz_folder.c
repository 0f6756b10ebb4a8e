/* fuzz_folder.c: the small files of a model's folder and of a checkpoint, of any bytes.
 *
 * The same bytes are the index of shards, the settings of generation, the revision that a hub's
 * cache names, and the manifest of a checkpoint. Each gives a named error or an answer that agrees
 * with the files that are really there: two shards with a tensor each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "hub/end_tokens.h"
#include "hub/hf_folder.h"
#include "hub/hf_tensors.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char model[128], checkpoint[160], hub[160];

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_folder: %s: %s\n", what, hy_error_message());
    abort();
}

static void put(const char *folder, const char *name, const void *data, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put_scratch(path, data, size);
}

static void put_shard(const char *name, const char *tensor) {
    char path[512];
    hy_safetensors_entry entry = {.name = tensor, .dtype = HY_F32, .ndim = 1, .shape = {1}};
    hy_safetensors_writer *out;
    snprintf(path, sizeof path, "%s/%s", model, name);
    require(hy_safetensors_create(path, &entry, 1, NULL, &out) == HY_OK &&
                hy_safetensors_put(out, "\0\0\0\0", 4) == HY_OK &&
                hy_safetensors_finish(out, NULL, NULL) == HY_OK,
            "no shard");
}

static void remove_folders(void) { (void)hy_dir_remove(model); }

/* Once: what the small files speak of. */
static void make_folders(void) {
    char path[400];
    make_scratch(model, sizeof model);
    atexit(remove_folders);
    put_shard("a.safetensors", "x");
    put_shard("b.safetensors", "y");
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-1", model);
    snprintf(hub, sizeof hub, "%s/hub", model);
    snprintf(path, sizeof path, "%s/models--a--b", hub);
    require(hy_dir_make(checkpoint) == HY_OK && hy_dir_make(hub) == HY_OK &&
                hy_dir_make(path) == HY_OK,
            "no folder");
    put(checkpoint, "state.bin", "abc", 3);
    snprintf(path, sizeof path, "%s/models--a--b/refs", hub);
    require(hy_dir_make(path) == HY_OK, "no folder");
    snprintf(path, sizeof path, "%s/models--a--b/snapshots", hub);
    require(hy_dir_make(path) == HY_OK, "no folder");
    setenv("HF_HUB_CACHE", hub, 1);
}

static void told(hy_status status) {
    if (status != HY_OK) require(hy_error_message()[0] != 0, "a refusal without a word");
}

static void read_index(void) {
    hy_hf_tensors *tensors;
    hy_status status = hy_hf_tensors_open(model, &tensors);
    told(status);
    if (status != HY_OK) return;
    size_t count = hy_hf_tensors_count(tensors);
    require(count == 1 || count == 2, "tensors that are not there");
    require(hy_hf_tensors_find(tensors, count == 2 ? "y" : hy_hf_tensors_at(tensors, 0).entry->name)
                    .entry != NULL,
            "a tensor is not found");
    hy_hf_tensors_close(tensors);
}

static void read_checkpoint(void) {
    char path[512];
    int64_t step;
    hy_text notes = {0};
    told(hy_checkpoint_verify(checkpoint, true));
    told(hy_checkpoint_latest(model, path, sizeof path, &step, &notes));
    hy_text_free(&notes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_end_tokens ends;
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    if (!model[0]) make_folders();
    put(model, "model.safetensors.index.json", data, size);
    read_index();
    put(model, "generation_config.json", data, size);
    told(hy_end_tokens_read(model, &ends));
    put(checkpoint, "manifest.json", data, size);
    read_checkpoint();
    put(hub, "models--a--b/refs/main", data, size);
    told(hy_hf_find("a/b", &kind, path));
    return 0;
}
