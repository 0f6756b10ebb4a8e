/* export_trials.c: writes a file for llama.cpp in several ways, measures the held-out loss of each, and
 * keeps the best. See hybrid.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "infer/calibrate.h"
#include "record/export.h"

#define MOST 3                       /* before, to nearest, calibrated */
#define CALIBRATION_TOKENS (1 << 17) /* more changes little */

typedef struct trials {
    const char *checkpoint;
    const hy_export_options *options;
    const hy_merge_options *losses;
    const hy_observer *caller; /* gets all progress, and what is_heard of messages */
    hy_observer observer;
    bool is_heard; /* the first file is exported: what is said of the others is the same */
    hy_evaluation list[MOST];
    char path[MOST][HY_PATH_MAX]; /* of the files; "": none */
    int32_t count;
} trials;

/* The settings of the model, or of a file that was made of it: with the same data and length. */
static hy_status configure(const trials *t, const char *file, const char *data, hy_config **out) {
    char batches[32];
    const hy_merge_options *o = t->losses;
    snprintf(batches, sizeof batches, "%lld", (long long)o->eval_batches);
    const char *const pairs[][2] = {{"eval.eval_batches", o->eval_batches > 0 ? batches : NULL},
                                    {"data", data},
                                    {"device", o->device},
                                    {"lora.base", file ? NULL : t->options->base},
                                    {"lora.lora", file ? "false" : NULL},
                                    {"train.train", file ? "all" : NULL},
                                    {"train.frozen_dtype", file ? "auto" : NULL},
                                    {"init_from", file ? "" : NULL},
                                    {"model", file}};
    HY_TRY(hy_config_create(out));
    HY_TRY(hy_config_use_model(*out, t->checkpoint));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i][1]) HY_TRY(hy_config_set(*out, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    return HY_OK;
}

static hy_status measure(trials *t, const char *file, hy_evaluation *out) {
    hy_config *config = NULL;
    hy_used_model *m = NULL;
    hy_status status = configure(t, file, t->losses->data, &config);
    if (status == HY_OK) status = hy_model_open(config, &t->observer, &m);
    if (status == HY_OK) {
        m->uses_held_out = !t->losses->data;
        status = hy_model_evaluate(m, out, 1);
    }
    hy_model_close(m);
    hy_config_destroy(config);
    return status;
}

static void pass_message(void *user, hy_message_level level, const char *text) {
    const trials *t = user;
    if (t->is_heard && level == HY_WARNING && t->caller->on_message)
        t->caller->on_message(t->caller->user, level, text);
}

static void pass_progress(void *user, const char *what, double fraction) {
    const trials *t = user;
    if (t->caller->on_progress) t->caller->on_progress(t->caller->user, what, fraction);
}

/* Writes a file beside the one that is asked for, and measures it. */
static hy_status try_rounding(trials *t, const char *name, const hy_moments_source *moments) {
    hy_export_options options = *t->options;
    hy_export_request request = {&options, &t->observer, moments};
    hy_evaluation *one = &t->list[t->count];
    char *path = t->path[t->count++];
    struct stat file;
    int length = snprintf(path, HY_PATH_MAX, "%s.%s.gguf", t->options->gguf, name);
    HY_FAIL_IF(length >= HY_PATH_MAX, HY_ERR_INPUT, "path %s is too long", t->options->gguf);
    options.gguf = path;
    options.overwrite = true;
    t->is_heard = t->count == 2;
    hy_status status = hy_export_checkpoint(t->checkpoint, &request);
    t->is_heard = false;
    HY_TRY(status);
    HY_FAIL_IF(stat(path, &file) != 0, HY_ERR_IO, "%s is gone", path);
    HY_TRY(measure(t, path, one));
    one->bytes = (uint64_t)file.st_size;
    snprintf(one->rounding, sizeof one->rounding, "%s", name);
    return HY_OK;
}

static hy_status try_calibrated(trials *t) {
    hy_config *config = NULL;
    hy_calibration *calibration = NULL;
    hy_status status = configure(t, NULL, t->options->calibrate, &config);
    if (status == HY_OK)
        status = hy_calibration_open(config, &t->observer, CALIBRATION_TOKENS, &calibration);
    if (status == HY_OK) {
        hy_moments_source source = hy_calibration_source(calibration);
        status = try_rounding(t, "calibrated", &source);
    }
    hy_calibration_close(calibration);
    hy_config_destroy(config);
    return status;
}

/* The file with the lowest loss gets the name that was asked for. */
static hy_status keep_best(trials *t) {
    int32_t best = 1;
    for (int32_t i = 2; i < t->count; i++) {
        if (t->list[i].loss < t->list[best].loss) best = i;
    }
    HY_FAIL_IF(rename(t->path[best], t->options->gguf) != 0, HY_ERR_IO, "cannot rename %s to %s",
               t->path[best], t->options->gguf);
    t->path[best][0] = 0;
    t->list[best].is_written = true;
    return HY_OK;
}

static hy_status run(trials *t) {
    HY_TRY(hy_export_check_out(t->options));
    HY_TRY(measure(t, NULL, &t->list[t->count++]));
    HY_TRY(try_rounding(t, "nearest", NULL));
    if (t->options->calibrate) HY_TRY(try_calibrated(t));
    return keep_best(t);
}

hy_status hy_export_evaluate_sized(const char *checkpoint, const hy_export_options *options,
                                   const hy_merge_options *losses, const hy_observer *observer,
                                   hy_evaluation **out, size_t *count, size_t size) {
    static const hy_observer nobody = {0};
    static const hy_merge_options plain = {0};
    *out = NULL;
    *count = 0;
    HY_FAIL_IF(!options->gguf, HY_ERR_INPUT, "only files for llama.cpp (--gguf) are measured");
    trials *t = calloc(1, sizeof *t);
    char *copies = calloc(MOST, size);
    if (t)
        *t = (trials){
            .checkpoint = checkpoint,
            .options = options,
            .losses = losses ? losses : &plain,
            .caller = observer ? observer : &nobody,
            .observer = {.user = t, .on_message = pass_message, .on_progress = pass_progress}};
    hy_status status =
        t && copies ? run(t) : hy_fail(HY_ERR_MEMORY, "not enough memory for evaluations");
    for (int32_t i = 0; t && i < t->count; i++) {
        if (t->path[i][0]) unlink(t->path[i]);
        if (copies) hy_copy_sized(copies + (size_t)i * size, size, &t->list[i], sizeof t->list[i]);
    }
    if (status == HY_OK) {
        *count = (size_t)t->count;
        *out = (hy_evaluation *)(void *)copies;
        copies = NULL;
    }
    free(copies);
    free(t);
    return status;
}
