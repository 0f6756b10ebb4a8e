/* work.c: creates a run and times it. See work.h.
 *
 * Tokens are random, and so are weights unless the host initialises them: see drawn_run.h. */
#include "gpu_throughput/work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "drawn_run.h"

#define SHARD_SEQUENCES 2050 /* tokens in the file; a run that needs more reads it again */

/* ---- tokens ---------------------------------------------------------------------------------- */

static hy_status make_data(gt_work *w, int64_t vocab, char path[96]) {
    const char *base = getenv("TMPDIR");
    snprintf(w->folder, sizeof w->folder, "%.40s/gpu_throughput-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(w->folder))
        return hy_fail(HY_ERR_IO, "cannot create a temporary folder %s", w->folder);
    snprintf(path, 96, "%s/tokens.bin", w->folder);
    return drawn_tokens(path, (uint64_t)(SHARD_SEQUENCES * w->options.seq + 1), vocab);
}

/* ---- the run --------------------------------------------------------------------------------- */

static hy_status set_number(hy_config *config, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return hy_config_set(config, key, text, HY_FROM_CALLER);
}

/* "key=value key=value" */
static hy_status set_pairs(hy_config *config, const char *text) {
    char pair[128], *equals;
    while (text && *text) {
        size_t length = strcspn(text, " ");
        if (length == 0 || length >= sizeof pair) {
            text += length + (length == 0);
            continue;
        }
        memcpy(pair, text, length);
        pair[length] = 0;
        text += length;
        equals = strchr(pair, '=');
        if (!equals) return hy_fail(HY_ERR_INPUT, "\"%s\" is no key=value", pair);
        *equals = 0;
        HY_TRY(hy_config_set(config, pair, equals + 1, HY_FROM_CALLER));
    }
    return HY_OK;
}

static hy_status configure(const gt_options *o, hy_config *config) {
    const char *settings[][2] = {{"model", o->model},
                                 {"device", o->device},
                                 {"precision", o->precision},
                                 {"loss_chunks", o->loss_chunks},
                                 {"tune", o->tune},
                                 {"tune_cache", o->tune_cache},
                                 {"attention", o->attention},
                                 {"out", "none"},
                                 {"predictor", "none"},
                                 {"precision_correct", "same"},
                                 {"offload_strategy", "none"},
                                 {"steps", "100000"},
                                 {"dynamic_batch", "on"}}; /* measures the planned size */
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        HY_TRY(hy_config_set(config, settings[i][0], settings[i][1], HY_FROM_CALLER));
    }
    if (o->recompute) HY_TRY(hy_config_set(config, "recompute", o->recompute, HY_FROM_CALLER));
    if (!o->has_host_init) HY_TRY(hy_config_set(config, "init_std", "0", HY_FROM_CALLER));
    HY_TRY(set_number(config, "seq_len", o->seq));
    if (o->batch > 0) {
        HY_TRY(set_number(config, "batch_size", o->batch));
        HY_TRY(set_number(config, "grad_accum_steps", o->tokens / (o->batch * o->seq)));
    } else {
        HY_TRY(set_number(config, "step_tokens", o->tokens));
    }
    for (int i = 0; i < 2; i++) HY_TRY(set_pairs(config, o->settings[i]));
    return HY_OK;
}

static hy_status check_split(const gt_options *o) {
    int64_t batch = o->batch > 0 ? o->batch : 1; /* 0: chosen */
    if (o->seq > 0 && o->tokens > 0 && o->tokens % (batch * o->seq) == 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%lld tokens per step are not a multiple of %lld x %lld",
                   (long long)o->tokens, (long long)batch, (long long)o->seq);
}

static hy_status create(gt_work *w, hy_config *config) {
    char path[96];
    const char *vocab;
    double begin = hy_clock();
    HY_TRY(configure(&w->options, config));
    HY_TRY(hy_config_get(config, "vocab", &vocab, NULL));
    HY_TRY(make_data(w, strtoll(vocab, NULL, 10), path));
    HY_TRY(hy_config_set(config, "data", path, HY_FROM_CALLER));
    HY_TRY(hy_trainer_create(config, NULL, &w->trainer));
    if (!w->options.has_host_init) HY_TRY(drawn_weights(w->trainer));
    w->seconds_to_open = hy_clock() - begin;
    hy_trainer_summary(w->trainer, &w->summary);
    return HY_OK;
}

hy_status gt_work_open(gt_work *w, const gt_options *options) {
    hy_config *config;
    *w = (gt_work){.options = *options};
    HY_TRY(check_split(options));
    HY_TRY(hy_config_create(&config));
    hy_status status = create(w, config);
    hy_config_destroy(config);
    return status;
}

void gt_work_close(gt_work *w) {
    hy_trainer_destroy(w->trainer);
    if (w->folder[0]) (void)hy_dir_remove(w->folder);
    *w = (gt_work){0};
}

/* ---- timing ---------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

gt_seconds gt_describe(double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, by_size);
    return (gt_seconds){seconds[count / 2], seconds[0], seconds[count - 1]};
}

static hy_status one_step(gt_work *w) {
    hy_step_info info;
    HY_TRY(hy_trainer_step(w->trainer, &info));
    w->seconds = info.seconds;
    w->waited = info.wait_seconds;
    w->bytes_moved = info.bytes_moved;
    return HY_OK;
}

static hy_status one_forward(gt_work *w) {
    hy_trainer *t = w->trainer;
    hy_dtype dtype = t->engine->plan->types.of[HY_FULL];
    hy_probe probe = {.data = t->data.set,
                      .split = HY_TRAIN,
                      .count = (uint64_t)(w->options.tokens / w->options.seq),
                      .dtype = dtype};
    return hy_engine_probe(t->engine, t->engine->work->eval[hy_plan_index(dtype)], &probe);
}

/* On a CPU, the processor's time per thread: other programs on the same cores do not count. */
static double clock_of(const gt_work *w) {
    const hy_device_facts *facts = &w->trainer->engine->device.backend->facts;
    struct timespec t;
    if (facts->is_gpu) return hy_clock();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec) / facts->threads;
}

static hy_status time_work(gt_work *w, hy_status (*work)(gt_work *), gt_seconds *out) {
    double seconds[GT_STEPS_MAX];
    for (int i = -w->options.warmup; i < w->options.steps; i++) {
        double begin = clock_of(w);
        HY_TRY(work(w)); /* waits for the device at the end */
        if (i >= 0) seconds[i] = clock_of(w) - begin;
    }
    *out = gt_describe(seconds, w->options.steps);
    return HY_OK;
}

hy_status gt_time_steps(gt_work *w, gt_seconds *out) { return time_work(w, one_step, out); }

hy_status gt_time_forward(gt_work *w, gt_seconds *out) { return time_work(w, one_forward, out); }

/* ---- the card -------------------------------------------------------------------------------- */

uint64_t gt_card_bytes(void) {
    size_t free_bytes = 0, total = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 0;
    int (*mem_info)(size_t *, size_t *) =
        (int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
    bool is_told = mem_info && mem_info(&free_bytes, &total) == 0; /* of this thread's context */
    dlclose(driver);
    return is_told ? total - free_bytes : 0;
}
