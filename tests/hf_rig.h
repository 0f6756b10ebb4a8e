/* hf_rig.h: a model read from files, with all it needs to compute logits; for tests of hf_*. */
#ifndef HY_TESTS_HF_RIG_H
#define HY_TESTS_HF_RIG_H

#include <math.h>

#include "batch_logits.h"
#include "formats/safetensors.h"
#include "hf_folders.h"
#include "hub/hf_export.h"
#include "hub/hf_load.h"
#include "model_rig.h"

static const char *const hf_cases[] = {
    "gpt2",        "gpt2-untied", "llama",       "llama-tied-bias", "llama-attention-bias",
    "llama3-rope", "mistral",     "qwen2",       "qwen2-window",    "qwen3",
    "qwen3-bias",  "ministral",   "qwen2-mixed", "qwen3-mixed"};
#define HF_CASES ((int)(sizeof hf_cases / sizeof hf_cases[0]))
#define HF_TOKENS 10

static inline const char *golden_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/hf/%s", HY_SOURCE_DIR, name);
    return path;
}

typedef struct hf_rig {
    model_rig m;
    hy_shape shape;
    int64_t piece; /* of loading; set before opening */
} hf_rig;

/* A model of `seq` tokens whose memory is full of NaN until its files fill it. */
static inline void open_hf_seq(hf_rig *rig, const char *name, hy_dtype dtype, int32_t seq) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    must(hy_hf_find(name, &kind, path));
    must(hy_model_files_shape(kind, path, &rig->shape));
    hy_batch_options options = {
        .batch = 1, .seq = seq, .chunks = 1, .dtype = dtype, .grad_dtype = dtype};
    rig_open(&rig->m, &rig->shape, &options, 1);
    hy_store *w = &rig->m.weights;
    memset(w->data, 0xff, w->layout.bytes);
    hy_load_options load = {.piece = rig->piece};
    must(hy_hf_load_weights(name, rig->m.model, w, rig->m.stream, &load));
}

static inline void open_hf(hf_rig *rig, const char *name, hy_dtype dtype) {
    open_hf_seq(rig, name, dtype, HF_TOKENS);
}

static inline void close_hf(hf_rig *rig) { rig_close(&rig->m); }

static inline hy_status read_rig(void *context, int32_t param, int64_t first, int64_t count,
                                 float *out) {
    const hf_rig *rig = context;
    const float *weights = hy_store_backing(&rig->m.weights, param);
    memcpy(out, weights + first, (size_t)count * sizeof *out);
    return HY_OK;
}

/* Writing the rig's fp32 weights to a folder, in one file. */
static inline hy_hf_writing writing_of(hf_rig *rig, const char *folder, hy_dtype dtype) {
    static const hy_observer nobody = {0};
    return (hy_hf_writing){.folder = folder,
                           .shape = &rig->m.model->shape,
                           .params = &rig->m.model->params,
                           .dtype = dtype,
                           .shard_size = 1u << 30,
                           .read = read_rig,
                           .context = rig,
                           .observer = &nobody};
}

static inline void put_file(const char *folder, const char *name, const void *data, size_t size) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, data, size));
}

/* A copy of a golden folder that a test may spoil. */
static inline void copy_golden(const char *name, const char *folder) {
    char **names, path[700], *data;
    size_t count, size;
    must(hy_dir_make(folder));
    must(hy_dir_list(golden_folder(name), &names, &count));
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", golden_folder(name), names[i]);
        must(hy_file_read(path, &data, &size));
        put_file(folder, names[i], data, size);
        free(data);
    }
    hy_dir_list_free(names, count);
}

/* Norm of the difference to the logits in expected.safetensors over their norm. */
static inline double logits_distance(hf_rig *rig, const char *folder) {
    char path[600];
    static float expected[HF_TOKENS * 96];
    hy_safetensors *file;
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    must(hy_safetensors_open(path, &file));
    const hy_safetensors_entry *tokens = hy_safetensors_find(file, "tokens");
    const hy_safetensors_entry *logits = hy_safetensors_find(file, "logits");
    ck_assert_uint_eq(logits->bytes, sizeof expected);
    must(hy_safetensors_read(file, tokens, 0, rig->m.tokens, tokens->bytes));
    must(hy_safetensors_read(file, logits, 0, expected, sizeof expected));
    hy_safetensors_close(file);
    memset(rig->m.targets, 0, HF_TOKENS * sizeof(int32_t));
    hy_batch_input input = rig_input(&rig->m, 1, false);
    must(batch_logits(rig->m.plan, &input, 0, HF_TOKENS));
    rig_sync(&rig->m);
    const float *got = (const float *)(void *)rig->m.plan->logits;
    double difference = 0, norm = 0;
    for (int i = 0; i < HF_TOKENS * 96; i++) {
        difference += pow((double)got[i] - expected[i], 2);
        norm += pow(expected[i], 2);
    }
    return isnan(difference) ? INFINITY : sqrt(difference / norm);
}

#endif
