/* run.c: the settings of a run, its key, and its training. See runs.h.
 *
 * Origins order the settings: size, --set, flags, and then what identifies the run. Arms without
 * prediction ignore the settings of prediction, so that their runs serve every variant. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/text.h"
#include "runs.h"

#define CURVE_POINTS 10 /* validations during a run */

/* ---- settings -------------------------------------------------------------------------------- */

/* Whether only predicting arms have this setting: group phases, except averaging and precision. */
static bool is_of_prediction(const char *key) {
    const hy_config_key_info *info = hy_config_find(key);
    if (!info || strncmp(info->key, "phases.", 7) != 0) return false;
    return strcmp(info->key, "phases.tail_share") != 0 &&
           strncmp(info->key, "phases.precision_", 17) != 0;
}

static hy_status set(hy_config *config, const pv_arm *arm, const char *key, const char *value,
                     hy_origin origin) {
    bool predicts = strcmp(arm->predictor, "none") != 0;
    if (!predicts && is_of_prediction(key)) return HY_OK;
    return hy_config_set(config, key, value, origin);
}

static hy_status set_number(hy_config *config, const char *key, double value) {
    char text[HY_NUMBER_MAX];
    return hy_config_set(config, key, hy_number_format(value, text), HY_FROM_CALLER);
}

static hy_status set_all(hy_config *config, const pv_options *o, const pv_run *run) {
    const pv_arm *arm = &o->arms[run->arm];
    const char *const *pairs = o->size->pairs;
    HY_TRY(hy_config_set(config, "model", o->model[0] ? o->model : "nano", HY_FROM_FLAG));
    for (int i = 0; pairs[i]; i += 2)
        HY_TRY(set(config, arm, pairs[i], pairs[i + 1], HY_FROM_FILE));
    for (int i = 0; i < o->set_count; i++) {
        HY_TRY(set(config, arm, o->sets[i].key, o->sets[i].value, HY_FROM_SET));
    }
    HY_TRY(hy_config_set(config, "data", o->data, HY_FROM_FLAG));
    if (o->threads[0]) HY_TRY(hy_config_set(config, "threads", o->threads, HY_FROM_FLAG));
    HY_TRY(hy_config_set(config, "predictor", arm->predictor, HY_FROM_CALLER));
    for (int i = 0; i < arm->pair_count; i++) {
        HY_TRY(hy_config_set(config, arm->pairs[i].key, arm->pairs[i].value, HY_FROM_CALLER));
    }
    HY_TRY(set_number(config, "lr", run->lr));
    HY_TRY(set_number(config, "seed", (double)run->seed));
    HY_TRY(set_number(config, "steps", (double)run->steps));
    double every = floor((double)run->steps / CURVE_POINTS);
    HY_TRY(set_number(config, "eval_every", fmax(1, every)));
    return hy_config_set(config, "out", "none", HY_FROM_CALLER);
}

static hy_status make_config(const pv_options *o, const pv_run *run, hy_config **out) {
    HY_TRY(hy_config_create(out));
    hy_status status = set_all(*out, o, run);
    if (status != HY_OK) {
        hy_config_destroy(*out);
        *out = NULL;
    }
    return status;
}

static hy_status key_of(const hy_config *config, uint64_t data_hash, uint64_t *out) {
    hy_text text = {0};
    hy_text_addf(&text, "%s %016llx\n", HYBRID_VERSION, (unsigned long long)data_hash);
    for (size_t i = 0; hy_config_key(i); i++) {
        const char *value;
        hy_status status = hy_config_get(config, hy_config_key(i)->key, &value, NULL);
        if (status == HY_OK) hy_text_addf(&text, "%s=%s\n", hy_config_key(i)->key, value);
    }
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) *out = hy_hash_bytes(text.data, text.size, 0);
    hy_text_free(&text);
    return status;
}

/* ---- the list -------------------------------------------------------------------------------- */

hy_status pv_runs_add(pv_runs *runs, const pv_options *o, int arm, double lr, int64_t seed,
                      int64_t steps, uint64_t data_hash, int *index) {
    pv_run run = {.arm = arm, .lr = lr, .seed = seed, .steps = steps};
    hy_config *config;
    HY_TRY(make_config(o, &run, &config));
    hy_status status = key_of(config, data_hash, &run.key);
    hy_config_destroy(config);
    HY_TRY(status);
    if (runs->count == runs->capacity) {
        int capacity = runs->capacity ? 2 * runs->capacity : 64;
        pv_run *list = realloc(runs->list, (size_t)capacity * sizeof *list);
        if (!list) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d runs", capacity);
        runs->list = list;
        runs->capacity = capacity;
    }
    *index = runs->count;
    runs->list[runs->count++] = run;
    return HY_OK;
}

void pv_runs_free(pv_runs *runs) {
    free(runs->list);
    *runs = (pv_runs){0};
}

const pv_run *pv_runs_find(const pv_runs *runs, int arm, double lr, int64_t seed, int64_t steps) {
    for (int i = 0; i < runs->count; i++) {
        const pv_run *r = &runs->list[i];
        if (r->arm == arm && r->lr == lr && r->seed == seed && r->steps == steps) return r;
    }
    return NULL;
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct watch {
    pv_run *run;
    const char *title;
    double spent;      /* after the last step */
    double inside;     /* seconds of validations since the last step */
    double last_shown; /* clock */
    bool is_terminal;
} watch;

static void on_eval(void *user, const hy_eval_info *info) {
    watch *w = user;
    w->inside += info->seconds;
    if (info->is_final || w->run->points == PV_POINTS_MAX - 1) return;
    w->run->curve[w->run->points++] = (pv_point){w->spent, info->loss};
}

/* A validation that waited for a jump runs inside the Predict step; its time is not that of the
 * jump. */
static void on_step(void *user, const hy_step_info *info) {
    watch *w = user;
    w->run->seconds += info->seconds - (info->phase == HY_PREDICT ? w->inside : 0);
    w->inside = 0;
    w->spent = info->spent;
    if (!w->is_terminal || hy_clock() - w->last_shown < 0.5) return;
    w->last_shown = hy_clock();
    fprintf(stderr, "\r%s: %.0f of %lld units, loss %.3f  ", w->title, info->spent,
            (long long)w->run->steps, info->loss);
}

static void take_summary(pv_run *run, const hy_trainer *trainer) {
    hy_summary s;
    hy_trainer_summary(trainer, &s);
    bool has_average = !isnan(s.raw_val_loss);
    run->loss = run->has_diverged ? NAN : has_average ? s.raw_val_loss : s.val_loss;
    run->average = run->has_diverged || !has_average ? NAN : s.val_loss;
    run->spent = s.spent;
    run->true_steps = s.steps;
    run->moves = s.moves;
    run->rejected_moves = s.rejected_moves;
    run->predicted_steps = s.predicted_steps;
    snprintf(run->device, sizeof run->device, "%s, %s", s.device, s.matmul);
    run->curve[run->points++] = (pv_point){s.spent, run->loss};
}

/* A learning rate that makes the run diverge is a result, not a failure of the measurement. */
static hy_status train(pv_run *run, hy_trainer *trainer) {
    pv_stop_guard(trainer);
    hy_status status = hy_trainer_run(trainer);
    pv_stop_guard(NULL);
    run->has_diverged = status == HY_ERR_NUMERIC;
    if (status != HY_OK && !run->has_diverged) return status;
    take_summary(run, trainer);
    run->is_done = true;
    return HY_OK;
}

hy_status pv_run_make(pv_run *run, const pv_options *o, const char *title) {
    watch w = {.run = run, .title = title, .is_terminal = isatty(STDERR_FILENO)};
    hy_observer observer = {.user = &w, .on_step = on_step, .on_eval = on_eval};
    hy_config *config;
    hy_trainer *trainer;
    run->points = 0;
    run->seconds = 0;
    HY_TRY(make_config(o, run, &config));
    hy_status status = hy_trainer_create(config, &observer, &trainer);
    hy_config_destroy(config);
    HY_TRY(status);
    status = train(run, trainer);
    hy_trainer_destroy(trainer);
    if (w.is_terminal) fputs("\r\033[K", stderr);
    return status;
}
