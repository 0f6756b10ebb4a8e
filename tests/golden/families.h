/* families.h: folders of every model family (tests/golden/families), opened as a run opens them on
 * any backend, and compared with what transformers makes of them. */
#ifndef HY_TESTS_GOLDEN_FAMILIES_H
#define HY_TESTS_GOLDEN_FAMILIES_H

#include "config/derived.h"
#include "golden/compare.h"
#include "hf_folders.h"
#include "hub/hf_export.h"
#include "hub/hf_load.h"
#include "model/batch_decode.h"

enum { GREEDY = 40 };

static char **cases;
static size_t case_count;

static inline const char *folder_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/families/%s", HY_SOURCE_DIR, name);
    return path;
}

/* The shape through the settings, as a run finds it. A run may set a longer context. */
static inline hy_status find_shape(const char *folder, int32_t seq, hy_shape *shape) {
    hy_config *config;
    must(hy_config_create(&config));
    hy_status status = hy_config_set(config, "model", folder, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_shape_from_settings(hy_config_settings(config), shape);
    if (status == HY_OK && shape->context < seq) shape->context = seq;
    hy_config_destroy(config);
    return status;
}

static inline void open_expected(golden *g, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/expected.safetensors", folder_of(name));
    must(hy_safetensors_open(path, &g->file));
    g->batch = (int32_t)entry_of(g, "tokens")->shape[0];
    g->seq = (int32_t)entry_of(g, "tokens")->shape[1];
}

static inline void open_family_on(golden *g, const char *name, const char *folder,
                                  hy_backend *backend, hy_dtype dtype) {
    hy_shape shape;
    *g = (golden){.name = name, .backend = backend, .dtype = dtype};
    open_expected(g, name);
    must(g->backend->stream_create(g->backend, "families", &g->stream));
    must(find_shape(folder, g->seq, &shape));
    must(hy_model_create(&shape, &g->model));
    take_memory(g);
    load_batch(g);
    spoil(g, g->weights.data, g->weights.layout.bytes);
    must(hy_hf_load_weights(folder, g->model, &g->weights, g->stream, &(hy_load_options){0}));
}

static inline void open_family(golden *g, const char *name, const char *folder) {
    hy_backend *backend;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &backend));
    open_family_on(g, name, folder, backend, HY_F32);
    g->owns_backend = true;
}

static inline double logits_far(golden *g) {
    trial t;
    open_trial(&t, g, 0, 1, false);
    double far = logits_distance(&t);
    close_trial(&t);
    return far;
}

typedef struct store_of {
    const golden *g;
    hy_store *store; /* in fp32 */
} store_of;

static inline hy_status read_store(void *context, int32_t param, int64_t first, int64_t count,
                                   float *out) {
    const store_of *of = context;
    const float *values = (const float *)hy_store_backing(of->store, param) + first;
    float *read = from_device(of->g, values, (size_t)count * sizeof *out);
    memcpy(out, read, (size_t)count * sizeof *out);
    free(read);
    return HY_OK;
}

/* Writes a store as a model folder: so tensors have the names and the layout of the family.
 * `weights`: the folder with the parts for images, if it is not `source`. */
static inline hy_status write_store_from(const golden *g, hy_store *store, const char *source,
                                         const char *weights, hy_dtype dtype, const char *folder) {
    static const hy_observer nobody = {0};
    store_of of = {g, store};
    return hy_hf_write(&(hy_hf_writing){.folder = folder,
                                        .source = source,
                                        .weights = weights,
                                        .shape = &g->model->shape,
                                        .params = &g->model->params,
                                        .dtype = dtype,
                                        .shard_size = 1u << 30,
                                        .read = read_store,
                                        .context = &of,
                                        .observer = &nobody});
}

static inline hy_status write_store(const golden *g, hy_store *store, const char *source,
                                    hy_dtype dtype, const char *folder) {
    return write_store_from(g, store, source, NULL, dtype, folder);
}

static inline void *read_found(hy_hf_found found) {
    void *data = malloc(found.entry->bytes);
    ck_assert_ptr_nonnull(data);
    must(hy_safetensors_read(found.file, found.entry, 0, data, found.entry->bytes));
    return data;
}

/* The worst gradient: each tensor of the folder that PyTorch has a gradient of. */
static inline double gradients_far(const golden *g, const char *folder,
                                   char worst[HY_HF_NAME_MAX]) {
    hy_hf_tensors *ours;
    double far = 0;
    size_t compared = 0, expected = 0;
    must(hy_hf_tensors_open(folder, &ours));
    for (size_t i = 0; i < hy_safetensors_count(g->file); i++) {
        expected += strncmp(hy_safetensors_at(g->file, i)->name, "grad.", 5) == 0;
    }
    for (size_t i = 0; i < hy_hf_tensors_count(ours); i++) {
        hy_hf_found found = hy_hf_tensors_at(ours, i);
        char name[HY_HF_NAME_MAX + 8];
        snprintf(name, sizeof name, "grad.%s", found.entry->name);
        const hy_safetensors_entry *entry = hy_safetensors_find(g->file, name);
        if (!entry) continue; /* zero but for rounding */
        ck_assert_uint_eq(entry->bytes, found.entry->bytes);
        float *a = read_found(found), *b = bytes_of(g, entry);
        double here = distance(a, b, (int64_t)(entry->bytes / sizeof *a));
        if (here >= far) snprintf(worst, HY_HF_NAME_MAX, "%s", found.entry->name);
        far = fmax(far, here);
        compared++;
        free(a);
        free(b);
    }
    ck_assert_msg(compared == expected, "%s: %zu of %zu gradients have a tensor", g->name, compared,
                  expected);
    hy_hf_tensors_close(ours);
    return far;
}

enum { BATCH = 3 };

/* Blocks of slots 0 and 2; slot 1 stays idle. */
static inline void seat_batch(hy_batch_decoder *decoder, int32_t slot) {
    const hy_cache_kind *kinds;
    int32_t *ids[HY_CACHE_KINDS] = {0}, counts[HY_CACHE_KINDS] = {0};
    int32_t count = hy_batch_decoder_kinds(decoder, &kinds);
    for (int32_t k = 0; k < count; k++) {
        counts[k] = kinds[k].most;
        ids[k] = malloc((size_t)counts[k] * sizeof **ids);
        for (int32_t i = 0; i < counts[k]; i++) ids[k][i] = i + (slot ? counts[k] : 0);
    }
    must(hy_batch_decoder_seat(decoder, slot, (const int32_t *const *)ids, counts));
    for (int32_t k = 0; k < count; k++) free(ids[k]);
}

/* The second sequence begins when the first has ten tokens. */
static inline void take_greedy(golden *g, hy_batch_decoder *decoder) {
    int32_t prompt = int_of(g, "prompt"), at[BATCH] = {0, -1, -10}, first[BATCH];
    int32_t *tokens = bytes_of(g, entry_of(g, "tokens"));
    int32_t *expected = bytes_of(g, entry_of(g, "greedy"));
    hy_sampling likeliest[BATCH] = {{.forced = -1}, {.forced = -1}, {.forced = -1}};
    hy_step_tokens found;
    while (at[2] < GREEDY) {
        for (int32_t slot = 0; slot < BATCH; slot += 2) {
            if (at[slot] != 0) continue;
            seat_batch(decoder, slot);
            must(hy_batch_decoder_chunk(decoder, slot, tokens, 0, prompt, &likeliest[slot]));
            must(hy_batch_decoder_read(decoder, &found));
            ck_assert_int_eq(found.tokens[slot], expected[0]);
        }
        for (int32_t slot = 0; slot < BATCH; slot++) {
            bool is_idle = slot == 1 || at[slot] < 0 || at[slot] >= GREEDY;
            first[slot] = is_idle ? -1 : prompt + at[slot];
            if (slot != 1) at[slot]++;
        }
        must(hy_batch_decoder_step(decoder, BATCH, first, likeliest));
        must(hy_batch_decoder_read(decoder, &found));
        for (int32_t slot = 0; slot < BATCH; slot++) {
            if (first[slot] < 0 || at[slot] == GREEDY) continue;
            ck_assert_msg(found.tokens[slot] == expected[at[slot]],
                          "%s, slot %d: token %d is %d, transformers has %d", g->name, slot,
                          at[slot], found.tokens[slot], expected[at[slot]]);
        }
    }
    free(tokens);
    free(expected);
}

static inline void check_greedy(golden *g) {
    hy_batch_decoder *decoder;
    void *memory;
    hy_batch_decoder_options options = {
        .context = int_of(g, "prompt") + GREEDY, .streams = BATCH, .dtype = HY_F32};
    must(hy_batch_decoder_create(g->model, g->backend, &options, &decoder));
    uint64_t bytes = hy_batch_decoder_bytes(decoder);
    must(g->backend->alloc(g->backend, HY_DEVICE, bytes, &memory));
    spoil(g, memory, bytes);
    must(hy_batch_decoder_place(decoder, g->stream, memory, &g->weights, NULL));
    take_greedy(g, decoder);
    must(g->backend->stream_sync(g->stream));
    hy_batch_decoder_destroy(decoder);
    g->backend->release(g->backend, HY_DEVICE, memory, 0);
}

#endif
