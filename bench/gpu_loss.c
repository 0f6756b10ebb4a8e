/* gpu_loss.c: trains with given settings and prints the held-out loss at the end.
 *
 * bench/gpu_loss.sh and bench/gpu_profiles.sh use it. It writes no files, except with --dump, which
 * writes what another program needs to train the same run (gpu_loss/dump.h). The result is one JSON
 * object on standard output; progress goes to standard error.
 *   build/bench/gpu_loss [--dump FOLDER] [--points N] [--evals N] [--inject STEP] KEY=VALUE ...
 *   build/bench/gpu_loss --only-dump FOLDER KEY=VALUE ...
 *
 * --evals also computes the held-out loss after every Nth part of the run: "held_out" lists step,
 * compute spent in full steps, seconds of training so far, and loss; "train_s" is the training time
 * at the end. Validation and everything before the first step do not count. --only-dump writes the
 * folder and does not train.
 *
 * --inject creates an outlier in one channel: after that step, one element of the second norm in
 * the middle layer is multiplied by 10,000, and training continues with it. The state must be on
 * the device.
 *
 * KEY=VALUE is any setting of hybrid-train: model=gpt2-124m data=train.bin val_data=val.bin
 * steps=300
 *
 * Exit code: 0 done, 1 failed, 2 wrong settings, 3 the run diverged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu_heading.h"
#include "gpu_loss/dump.h"
#include "trainer/eval_schedule.h"

#define POINTS_MAX 1000
#define INJECTED_CHANNEL 100
#define INJECTED_FACTOR 10000.0f

typedef struct point {
    int64_t step;
    double loss;
} point;

typedef struct held_out_point {
    int64_t step;
    double spent, seconds, loss;
} held_out_point;

/* Means of the training loss over equal parts of the run, and its held-out losses. */
typedef struct curve {
    int64_t every;
    int count, in_sum;
    double sum;
    point points[POINTS_MAX];
    hy_trainer *trainer;
    int64_t inject_at;
    double fp8_largest, fp8_zeros; /* maximum over all steps */
    double begin;                  /* time of the first step; 0: not started */
    double validating;             /* seconds */
    double spent;
    int held_out_count;
    held_out_point held_out[POINTS_MAX];
} curve;

/* Multiplies the weight of one channel of a norm. */
static hy_status inject(hy_trainer *t) {
    hy_engine *e = t->engine;
    int32_t unit = e->model->params.units / 2;
    int32_t param = hy_params_find(&e->model->params, unit, HY_P_NORM2);
    hy_store *master = hy_store_of(e, HY_ROW_MASTER);
    int32_t item = hy_store_item_of(master, param);
    hy_tensor weight = hy_store_tensor(master, item, hy_store_device(master, item));
    float value = 0;
    HY_FAIL_IF(master->place != HY_DEVICE || weight.dtype != HY_F32, HY_ERR_INPUT,
               "--inject needs fp32 weights on the device");
    HY_TRY(hy_update_finish(e));
    char *at = (char *)weight.data + INJECTED_CHANNEL * sizeof value;
    HY_TRY(e->device.backend->copy(e->device.compute, &value, at, sizeof value));
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    value *= INJECTED_FACTOR;
    HY_TRY(e->device.backend->copy(e->device.compute, at, &value, sizeof value));
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    hy_row_changed(e->state, HY_ROW_MASTER);
    fprintf(stderr, "  unit %d, channel %d of its second norm: now %g\n", unit, INJECTED_CHANNEL,
            (double)value);
    return HY_OK;
}

/* A pending update belongs to the steps, not to the validation that follows. */
static hy_status finish_update(const curve *c, int64_t step) {
    hy_engine *e = c->trainer->engine;
    int64_t every = hy_trainer_eval_every(c->trainer);
    if (every <= 0 || step % every != 0) return HY_OK;
    HY_TRY(hy_update_finish(e));
    return e->device.backend->stream_sync(e->device.compute);
}

static void on_eval(void *user, const hy_eval_info *info) {
    curve *c = user;
    c->validating += info->seconds;
    double seconds = hy_clock() - c->begin - c->validating;
    /* the last point is always included */
    if (c->held_out_count == POINTS_MAX) c->held_out_count--;
    c->held_out[c->held_out_count++] = (held_out_point){info->step, c->spent, seconds, info->loss};
}

static void on_step(void *user, const hy_step_info *info) {
    curve *c = user;
    if (c->begin == 0) c->begin = hy_clock() - info->seconds;
    c->spent = info->spent;
    hy_status status = info->step == c->inject_at ? inject(c->trainer) : HY_OK;
    if (status == HY_OK) status = finish_update(c, info->step);
    if (status != HY_OK) {
        fprintf(stderr, "gpu_loss: %s\n", hy_error_message());
        exit(1);
    }
    if (info->fp8_largest_layer >= 0 && !(info->fp8_largest <= c->fp8_largest)) {
        c->fp8_largest = info->fp8_largest;
    }
    if (info->fp8_zeros_layer >= 0 && info->fp8_zeros > c->fp8_zeros)
        c->fp8_zeros = info->fp8_zeros;
    if (info->phase == HY_PREDICT) return;
    c->sum += info->loss;
    c->in_sum++;
    if (info->step % c->every != 0 || c->count == POINTS_MAX) return;
    c->points[c->count++] = (point){info->step, c->sum / c->in_sum};
    c->sum = 0;
    c->in_sum = 0;
    fprintf(stderr, "  step %lld of %lld: loss %.4f, %.0f tokens/s\n", (long long)info->step,
            (long long)info->steps_total, c->points[c->count - 1].loss, info->tokens_per_second);
}

static void on_message(void *user, hy_message_level level, const char *text) {
    (void)user;
    fprintf(stderr, "  %s%s\n", level == HY_WARNING ? "warning: " : "", text);
}

/* ---- settings -------------------------------------------------------------------------------- */

static hy_status set(hy_config *config, const char *pair) {
    char key[128];
    const char *equals = strchr(pair, '=');
    if (!equals || (size_t)(equals - pair) >= sizeof key) {
        return hy_fail(HY_ERR_INPUT, "\"%s\" is no setting; expected KEY=VALUE", pair);
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - pair), pair);
    return hy_config_set(config, key, equals + 1, HY_FROM_FLAG);
}

static hy_status configure(hy_config *config, int argc, char **argv) {
    HY_TRY(hy_config_set(config, "out", "none", HY_FROM_CALLER));
    HY_TRY(hy_config_set(config, "sample_tokens", "0", HY_FROM_CALLER));
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            i++; /* every option has a value */
        } else {
            HY_TRY(set(config, argv[i]));
        }
    }
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void print(const hy_trainer *t, const curve *c, double created, double seconds) {
    hy_summary s;
    hy_trainer_summary(t, &s);
    printf("{\"device\": \"%s\", \"model\": \"%s\", \"precision\": \"%s\", \"tf32\": \"%s\",\n",
           t->engine->device.backend->facts.name, s.model,
           hy_dtype_name(hy_types_step(&t->engine->plan->types, HY_FULL)),
           hy_choice_name("tf32", t->settings->tf32));
    printf(" \"val_loss\": %.6f, \"train_loss\": %.6f, \"steps\": %lld, \"spent\": %.2f,\n",
           s.val_loss, s.final_loss, (long long)s.steps, s.spent);
    printf(
        " \"moves\": %lld, \"rejected_moves\": %lld, \"predictor\": \"%s\", \"why_not\": \"%s\",\n",
        (long long)s.moves, (long long)s.rejected_moves, s.predictor, s.why_not);
    printf(
        " \"fp8_matmuls\": %lld, \"fp8_largest\": %.6g, \"fp8_zeros\": %.6g, \"skipped\": %lld,\n",
        (long long)s.fp8_matmuls, c->fp8_largest, c->fp8_zeros, (long long)s.skipped_steps);
    printf(" \"tokens_per_step\": %lld, \"tokens_per_second\": %.0f, \"created_s\": %.1f, "
           "\"run_s\": %.1f,\n \"curve\": [",
           (long long)s.tokens_per_step, s.tokens_per_second, created, seconds);
    for (int i = 0; i < c->count; i++) {
        printf("%s[%lld, %.6f]", i ? ", " : "", (long long)c->points[i].step, c->points[i].loss);
    }
    printf("],\n \"train_s\": %.6f, \"held_out\": [",
           c->held_out_count ? c->held_out[c->held_out_count - 1].seconds : 0);
    for (int i = 0; i < c->held_out_count; i++) {
        const held_out_point *p = &c->held_out[i];
        printf("%s[%lld, %.4f, %.6f, %.6f]", i ? ", " : "", (long long)p->step, p->spent,
               p->seconds, p->loss);
    }
    printf("]}\n");
}

static hy_status only_dump(const hy_config *config, const char *folder) {
    hy_trainer *t;
    HY_TRY(hy_trainer_create(config, NULL, &t));
    hy_status status = gl_dump(t, folder);
    hy_trainer_destroy(t);
    return status;
}

static hy_status train(const hy_config *config, const char *dump, int points, int evals,
                       int64_t inject_at) {
    static curve course;
    hy_trainer *t;
    hy_observer observer = {
        .user = &course, .on_step = on_step, .on_eval = on_eval, .on_message = on_message};
    double begin = hy_clock();
    HY_TRY(hy_trainer_create(config, &observer, &t));
    double created = hy_clock() - begin;
    course.trainer = t;
    course.inject_at = inject_at;
    course.every = t->loop->steps_total / points > 0 ? t->loop->steps_total / points : 1;
    if (evals > 0) {
        int64_t every = t->loop->steps_total / evals;
        t->settings->eval.eval_every = every > 0 ? every : 1;
    }
    hy_status status = dump ? gl_dump(t, dump) : HY_OK;
    begin = hy_clock();
    if (status == HY_OK) status = hy_trainer_run(t);
    if (status == HY_OK) print(t, &course, created, hy_clock() - begin);
    hy_trainer_destroy(t);
    return status;
}

int main(int argc, char **argv) {
    hy_config *config;
    const char *folder = gpu_option(argc, argv, "--only-dump", NULL);
    int points = atoi(gpu_option(argc, argv, "--points", "10"));
    int evals = atoi(gpu_option(argc, argv, "--evals", "0"));
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(config, argc, argv);
    if (status == HY_OK && argc == 1) {
        puts("gpu_loss: settings are missing; bench/gpu_loss.sh runs this program");
        hy_config_destroy(config);
        return 0;
    }
    if (status == HY_OK && folder) {
        status = only_dump(config, folder);
    } else if (status == HY_OK) {
        status = train(config, gpu_option(argc, argv, "--dump", NULL), points > 0 ? points : 10,
                       evals, atoll(gpu_option(argc, argv, "--inject", "0")));
    }
    hy_config_destroy(config);
    if (status != HY_OK) fprintf(stderr, "gpu_loss: %s\n", hy_error_message());
    if (status == HY_ERR_NUMERIC) return 3;
    return status == HY_OK ? 0 : status == HY_ERR_INPUT ? 2 : 1;
}
