/* initial.c: the weights that a run starts with: random, or from a model's files. See setup.h.
 *
 * Random weights are computed on the host with several threads and sent to the device. Each number
 * is a pure function of the seed and its position, so threads and chunks do not change any bit.
 * hub/ reads files; here the run reports what was loaded. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "engine/engine.h"
#include "hub/hf_load.h"
#include "hub/peft.h"
#include "kernels/coded.h"
#include "kernels/cpu/machine.h"
#include "kernels/half.h"
#include "model/coding.h"
#include "setup/setup.h"

#define CHUNK (16 << 20) /* elements that are computed, and copied to the device, at a time */
#define BATCH 4096       /* elements that a thread computes before it rounds them */
#define MOST_THREADS 64
#define SLOW_ELEMENTS 50e6 /* from this size on, progress is reported */

/* ---- random weights -------------------------------------------------------------------------- */

/* Elements of a parameter that one thread computes. */
typedef struct share {
    const hy_param *param;
    uint64_t seed;
    int64_t first, count;
    hy_dtype dtype;
    char *out;
} share;

static void round_batch(const float *from, int64_t count, hy_dtype dtype, char *out) {
    if (dtype == HY_F32) {
        memcpy(out, from, (size_t)count * sizeof *from);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = dtype == HY_BF16 ? hy_f32_to_bf16(from[i]) : hy_f32_to_f16(from[i]);
        memcpy(out + 2 * i, &bits, sizeof bits);
    }
}

static void *make_share(void *argument) {
    const share *s = argument;
    float batch[BATCH];
    for (int64_t at = 0; at < s->count; at += BATCH) {
        int64_t count = s->count - at < BATCH ? s->count - at : BATCH;
        hy_param_initial(s->param, s->seed, s->first + at, count, batch);
        round_batch(batch, count, s->dtype, s->out + hy_dtype_bytes(s->dtype, at));
    }
    return NULL;
}

/* Computes elements [first, first + count) of a parameter into `out`. If a thread cannot be
 * started, the caller computes its share. */
static void make_chunk(const share *whole, int threads) {
    pthread_t thread[MOST_THREADS];
    share part[MOST_THREADS];
    bool runs[MOST_THREADS] = {false};
    for (int i = 0; i < threads; i++) {
        int64_t begin = whole->count * i / threads, end = whole->count * (i + 1) / threads;
        part[i] = *whole;
        part[i].first += begin;
        part[i].count = end - begin;
        part[i].out += hy_dtype_bytes(whole->dtype, begin);
        if (i > 0) runs[i] = pthread_create(&thread[i], NULL, make_share, &part[i]) == 0;
    }
    for (int i = 0; i < threads; i++) {
        if (!runs[i]) make_share(&part[i]);
    }
    for (int i = 0; i < threads; i++) {
        if (runs[i]) pthread_join(thread[i], NULL);
    }
}

static int threads_for(const hy_engine *e, int64_t count) {
    int64_t asked = e->request.settings->threads;
    if (asked == 0) asked = hy_machine_threads();
    return count < CHUNK / 64 ? 1 : asked > MOST_THREADS ? MOST_THREADS : (int)asked;
}

static void tell(const hy_engine *e, int64_t done) {
    double elements = (double)e->model->params.elements;
    if (!e->observer->on_progress || elements < SLOW_ELEMENTS) return;
    e->observer->on_progress(e->observer->user, "initialising weights", (double)done / elements);
}

static hy_status make_numbers(void *context, int64_t first, int64_t count, float *out) {
    const share *s = context;
    hy_param_initial(s->param, s->seed, first, count, out);
    return HY_OK;
}

/* A quantised matrix: its numbers are computed and then encoded. */
static hy_status initialise_coded(hy_engine *e, hy_store *store, int32_t item, share *whole) {
    hy_coding_source from = {whole, make_numbers, threads_for(e, whole->param->count)};
    hy_coding_target to = {.store = store, .stream = e->device.compute, .item = item};
    HY_TRY(hy_coding_run(whole->param, &store->layout.items[item], &from, &to));
    tell(e, whole->param->first + whole->param->count);
    return HY_OK;
}

/* If the host can access the parameter, numbers are computed in place; else in `staging`, and
 * sent. */
static hy_status initialise(hy_engine *e, hy_store *store, int32_t index, char *staging) {
    const hy_param *param = &e->model->params.list[index];
    int32_t item = hy_store_item_of(store, index);
    /* It belongs to another row or rank. */
    if (item < 0 || !hy_store_has_item(store, item)) return HY_OK;
    const hy_layout_item *entry = &store->layout.items[item];
    hy_dtype dtype = entry->dtype;
    share whole = {.param = param, .seed = (uint64_t)e->request.settings->seed, .dtype = dtype};
    if (hy_is_coded(dtype)) return initialise_coded(e, store, item, &whole);
    char *in_place = hy_store_host(store, item);
    int64_t end = entry->begin + entry->count; /* with several ranks, entry may be a slice */
    for (int64_t first = entry->begin; first < end; first += CHUNK) {
        int64_t count = end - first < CHUNK ? end - first : CHUNK;
        uint64_t at = hy_dtype_bytes(dtype, first - entry->begin);
        whole.first = first;
        whole.count = count;
        whole.out = in_place ? in_place + at : staging;
        make_chunk(&whole, threads_for(e, count));
        at += hy_store_offset(store, item);
        uint64_t bytes = hy_dtype_bytes(dtype, count);
        if (!in_place) HY_TRY(hy_store_write(store, e->device.compute, at, staging, bytes));
        tell(e, param->first + first + count);
    }
    return HY_OK;
}

static hy_status initialise_some(hy_engine *e, bool only_adapters) {
    hy_row_changed(e->state, HY_ROW_MASTER);
    char *staging = malloc(CHUNK * sizeof(float));
    if (!staging) return hy_fail(HY_ERR_MEMORY, "not enough memory for initial weights");
    hy_status status = HY_OK;
    for (int32_t i = 0; i < e->model->params.count && status == HY_OK; i++) {
        if (only_adapters && !hy_is_adapter(e->model->params.list[i].kind)) continue;
        status = initialise(e, hy_store_of(e, HY_ROW_MASTER), i, staging);
        bool has_frozen = status == HY_OK && hy_has_row(e, HY_ROW_FROZEN);
        if (has_frozen) status = initialise(e, hy_store_of(e, HY_ROW_FROZEN), i, staging);
    }
    free(staging);
    return status;
}

hy_status hy_engine_initialise_weights(hy_engine *e) { return initialise_some(e, false); }

hy_status hy_engine_initialise_adapters(hy_engine *e) {
    return e->model->shape.adapter.rank > 0 ? initialise_some(e, true) : HY_OK;
}

/* ---- from files ------------------------------------------------------------------------------ */

static void tell_progress(void *user, double done) {
    const hy_engine *e = user;
    e->observer->on_progress(e->observer->user, "reading weights", done);
}

static hy_status tell_notes(const hy_engine *e, const char *folder) {
    hy_hf_config config;
    HY_TRY(hy_hf_config_read(folder, &config));
    char *at = config.notes.data;
    while (at && *at) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        hy_say_to(e->observer, HY_WARNING, "%s", at);
        at = end ? end + 1 : NULL;
    }
    hy_hf_config_free(&config);
    return HY_OK;
}

/* Reports how a quantised folder was loaded, so that users know which numbers a run computes
 * with. */
static void tell_counts(const hy_engine *e, const char *path, const hy_load_counts *counts) {
    const hy_params *params = &e->model->params;
    bool has_fp32 = params->has_plain_scales || params->frozen_codes != HY_NF4;
    if (counts->kept > 0) {
        hy_say_to(e->observer, HY_NOTE,
                  "%d matrices of %s keep their codes from bitsandbytes, with scales in %s",
                  counts->kept, path, has_fp32 ? "fp32" : "8 bits");
    }
    if (counts->decoded > 0) {
        hy_say_to(e->observer, HY_NOTE, "%d quantised matrices of %s were decoded", counts->decoded,
                  path);
    }
    if (counts->real > 0) {
        hy_say_to(e->observer, HY_NOTE,
                  "%s has %d matrices in its blocks that are not quantised; they stay that way",
                  path, counts->real);
    }
}

hy_status hy_engine_load_model(hy_engine *e, hy_model_files kind, const char *path) {
    hy_load_counts counts = {0};
    hy_load_options options = {
        .threads = (int)e->request.settings->threads, .user = e, .counts = &counts};
    bool is_slow = (double)e->model->params.elements >= SLOW_ELEMENTS;
    if (is_slow && e->observer->on_progress) options.on_progress = tell_progress;
    if (kind != HY_FILES_LLAMA2C) HY_TRY(tell_notes(e, path));
    HY_TRY(hy_engine_initialise_adapters(e));
    hy_row_changed(e->state, HY_ROW_MASTER);
    HY_TRY(hy_hf_load_weights(path, e->model, hy_store_of(e, HY_ROW_MASTER), e->device.compute,
                              &options));
    if (hy_has_row(e, HY_ROW_FROZEN)) {
        hy_store *frozen = hy_store_of(e, HY_ROW_FROZEN);
        HY_TRY(hy_hf_load_weights(path, e->model, frozen, e->device.compute, &options));
    }
    tell_counts(e, path, &counts);
    hy_say_to(e->observer, HY_NOTE, "loaded the weights of %s", path);
    return HY_OK;
}

hy_status hy_engine_load_adapter(hy_engine *e, const char *folder) {
    hy_row_changed(e->state, HY_ROW_MASTER);
    HY_TRY(hy_peft_load(folder, e->model, hy_store_of(e, HY_ROW_MASTER), e->device.compute));
    hy_say_to(e->observer, HY_NOTE, "the run starts with the adapters of %s", folder);
    return HY_OK;
}
