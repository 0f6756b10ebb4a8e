/* export_trials.c: writes a file for llama.cpp in several ways, measures the held-out loss of each,
 * and keeps the best. See hybrid.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "hub/gguf_export.h"
#include "infer/calibrate.h"
#include "record/export.h"

#define MOST 3                       /* before, to nearest, calibrated */
#define CALIBRATION_TOKENS (1 << 17) /* more changes little */

typedef struct trials {
    const char *checkpoint;
    const hy_export_options *options;
    const hy_merge_options *losses;
    const hy_observer *caller; /* gets all progress, and the warnings of the first export */
    hy_observer observer;
    bool is_heard; /* that export is running; the others would give the same warnings */
    hy_evaluation list[MOST];
    char folder[MOST][HY_PATH_MAX], path[MOST][HY_PATH_MAX]; /* of the files; "": none */
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

/* Writes a file with the name that was asked for, in a hidden folder beside it. */
static hy_status write_trial(trials *t, const char *name, const hy_moments_source *moments) {
    hy_export_options options = *t->options;
    hy_export_request request = {&options, &t->observer, moments};
    const char *slash = strrchr(options.gguf, '/'), *base = slash ? slash + 1 : options.gguf;
    char *folder = t->folder[t->count], *path = t->path[t->count];
    snprintf(t->list[t->count].rounding, sizeof t->list[0].rounding, "%s", name);
    int length = snprintf(folder, HY_PATH_MAX, "%.*s.%s.%s", (int)(base - options.gguf),
                          options.gguf, base, name);
    HY_FAIL_IF(length >= HY_PATH_MAX, HY_ERR_INPUT, "path %s is too long", options.gguf);
    HY_TRY(hy_path_join(path, HY_PATH_MAX, folder, base));
    if (hy_path_exists(folder)) HY_TRY(hy_dir_remove(folder)); /* of an export that was killed */
    HY_FAIL_IF(mkdir(folder, 0777) != 0, HY_ERR_IO, "cannot create %s: %s", folder,
               strerror(errno));
    t->is_heard = t->count == 1;
    t->count++;
    options.gguf = path;
    options.calibrate = NULL;
    hy_status status = hy_export_checkpoint(t->checkpoint, &request);
    t->is_heard = false;
    return status;
}

static hy_status write_calibrated(trials *t) {
    hy_config *config = NULL;
    hy_calibration *calibration = NULL;
    hy_status status = configure(t, NULL, t->options->calibrate, &config);
    if (status == HY_OK)
        status = hy_calibration_open(config, &t->observer, CALIBRATION_TOKENS, &calibration);
    if (status == HY_OK) {
        hy_moments_source source = hy_calibration_source(calibration);
        status = write_trial(t, "calibrated", &source);
    }
    hy_calibration_close(calibration);
    hy_config_destroy(config);
    return status;
}

static hy_status measure_trial(trials *t) {
    hy_evaluation *one = &t->list[t->count - 1];
    hy_evaluation named = *one;
    struct stat file;
    const char *path = t->path[t->count - 1];
    HY_FAIL_IF(stat(path, &file) != 0, HY_ERR_IO, "%s is gone", path);
    HY_TRY(measure(t, path, one));
    one->bytes = (uint64_t)file.st_size;
    memcpy(one->rounding, named.rounding, sizeof one->rounding);
    return HY_OK;
}

/* The file with the lowest loss gets the name that was asked for. */
static hy_status keep_best(trials *t) {
    int32_t best = 1;
    for (int32_t i = 2; i < t->count; i++) {
        if (t->list[i].loss < t->list[best].loss) best = i;
    }
    HY_FAIL_IF(rename(t->path[best], t->options->gguf) != 0, HY_ERR_IO, "cannot rename %s to %s",
               t->path[best], t->options->gguf);
    t->list[best].is_written = true;
    return HY_OK;
}

static hy_status check(const trials *t) {
    const hy_export_options *o = t->options;
    hy_config *config = NULL;
    HY_TRY(hy_export_check_out(o));
    HY_FAIL_IF(o->calibrate && (!o->type || hy_gguf_is_plain(o->type)), HY_ERR_INPUT,
               "calibration is for types in blocks, such as q4_k_m; %s is not rounded to a grid",
               o->type ? o->type : "the model's own type");
    HY_FAIL_IF(hy_export_is_model(t->checkpoint) && !t->losses->data, HY_ERR_INPUT,
               "%s has no held-out data; name some (--data FILE)", t->checkpoint);
    hy_status status = configure(t, NULL, t->losses->data, &config);
    bool is_adapter = status == HY_OK && hy_config_settings(config)->lora.lora;
    hy_config_destroy(config);
    HY_TRY(status);
    HY_FAIL_IF(is_adapter && !o->merge && !o->onto, HY_ERR_INPUT,
               "%s has adapters, which are not measured alone; use --merge", t->checkpoint);
    return HY_OK;
}

static hy_status run(trials *t) {
    HY_TRY(check(t));
    HY_TRY(measure(t, NULL, &t->list[t->count++]));
    if (t->options->calibrate) {
        HY_TRY(write_calibrated(t));
        HY_TRY(measure_trial(t));
    }
    HY_TRY(write_trial(t, "nearest", NULL));
    HY_TRY(measure_trial(t));
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
        if (t->folder[i][0] && hy_dir_remove(t->folder[i]) != HY_OK && status == HY_OK)
            status = HY_ERR_IO;
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
