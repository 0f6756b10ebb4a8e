/* guest.c: asking a guest for losses and gradients. See guest.h. */
#include "trainer/guest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "trainer/trainer.h"

hy_status hy_guest_settings(hy_guest *guest, hy_settings *s) {
    HY_FAIL_IF(s->train.steps < 1, HY_ERR_INPUT,
               "train.steps is %lld; a model or loop of your own gets its length in steps, at "
               "least 1",
               (long long)s->train.steps);
    HY_FAIL_IF(strcmp(s->train.train, "all") != 0, HY_ERR_INPUT,
               "train.train is \"%s\": of a model of your own, the parameters that you give are "
               "trained",
               s->train.train);
    s->train.tokens = 0;
    s->train.epochs = 0;
    s->train.step_tokens = 0;
    s->train.batch_size = 1; /* a sequence is a micro-batch of the caller's */
    s->train.seq_len = 1;
    s->train.min_batch_size = 1;
    s->train.max_batch_size = 0;
    s->train.dynamic_batch = HY_OFF;
    s->train.micro_batch = HY_MICRO_GIVEN;
    s->train.recompute = HY_RECOMPUTE_NONE;
    s->train.recompute_layers = 0;
    s->train.loss_chunks = 1;
    s->train.scale_lr = false;
    s->eval.eval_batch_size = 0;
    s->eval.eval_batches = 0;
    if (!guest->can_evaluate) s->eval.eval_every = s->eval.early_stop = 0;
    s->memory.weights_place = HY_DEVICE;
    s->memory.activations_place = HY_DEVICE;
    if (!guest->side.types.sums_grads) s->memory.grads_place = HY_DEVICE;
    /* The caller computes with all weights next, unless it says when it comes to each. */
    if (!guest->side.uses_in_turn) s->memory.update = HY_UPDATE_NOW;
    s->save.save_model = false;
    guest->side.is_half =
        hy_settings_precision(s, HY_FULL) == HY_DTYPE_F16 || guest->side.types.weights == HY_F16;
    snprintf(s->model, sizeof s->model, "own");
    if (!guest->can_rewind) s->phases.fork_budget = 0;
    bool is_named = s->out[0] || s->save.resume[0];
    if (guest->writes_if_asked && !is_named) snprintf(s->out, sizeof s->out, "none");
    return HY_OK;
}

hy_status hy_guest_begin(hy_trainer *t) {
    const hy_guest *g = t->guest;
    bool is_outside = !g->side.types.sums_grads;
    for (int32_t i = 0; i < g->side.count; i++) {
        HY_TRY(hy_guest_place_weights(&t->engine, i, g->weights[i]));
        if (is_outside && g->grads[i]) HY_TRY(hy_guest_place_grads(&t->engine, i, g->grads[i]));
    }
    return HY_OK;
}

/* ---- the caller's part of a checkpoint ----------------------------------------------------------- */

hy_status hy_guest_save(hy_trainer *t, hy_checkpoint *checkpoint) {
    const hy_guest *g = t->guest;
    void *bytes = NULL;
    size_t size = 0;
    if (!g || !g->save) return HY_OK;
    hy_status status = g->save(g->blob_user, &bytes, &size);
    if (status != HY_OK) {
        free(bytes);
        return hy_fail(status, "the save callback gave \"%s\"", hy_status_name(status));
    }
    status = hy_checkpoint_put(checkpoint, HY_GUEST_FILE, bytes ? bytes : "", size);
    free(bytes);
    return status;
}

hy_status hy_guest_load(hy_trainer *t, const char *checkpoint) {
    const hy_guest *g = t->guest;
    char path[HY_PATH_MAX], *bytes;
    size_t size;
    if (!g || !g->load) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, HY_GUEST_FILE));
    if (!hy_path_exists(path)) return HY_OK; /* it was saved by a program without one */
    HY_TRY(hy_file_read(path, &bytes, &size));
    hy_status status = g->load(g->blob_user, bytes, size);
    free(bytes);
    HY_FAIL_IF(status != HY_OK, status, "the load callback gave \"%s\" for %s",
               hy_status_name(status), path);
    return HY_OK;
}

/* ---- asking ---------------------------------------------------------------------------------------- */

static hy_dtype wanted_precision(const hy_trainer *t, hy_phase phase) {
    hy_dtype_choice choice = hy_settings_precision(&t->settings, phase);
    bool is_gpu = t->engine.backend->facts.is_gpu;
    bool is_16bit = choice == HY_DTYPE_16BIT || (choice == HY_DTYPE_AUTO && is_gpu);
    return hy_dtype_chosen(choice, is_16bit ? HY_BF16 : t->guest->side.types.weights);
}

static hy_status ask(hy_trainer *t, hy_ask *what, hy_told *told) {
    hy_guest *g = t->guest;
    what->phase = t->progress.machine.phase;
    what->step = t->progress.step;
    what->precision = wanted_precision(t, what->phase);
    what->reason = hy_phase_reason_text(t->progress.machine.reason);
    what->obstacle = hy_phase_obstacle_text(hy_trainer_obstacle(t));
    what->confidence = hy_confidence_value(&t->progress.confidence);
    *told = (hy_told){0};
    HY_TRY(hy_guest_lend(&t->engine));
    HY_TRY(g->answer(g->user, what, told));
    HY_TRY(hy_guest_take_back(&t->engine));
    HY_FAIL_IF(!(told->counted >= 0) || !isfinite(told->counted), HY_ERR_INPUT,
               "%g targets were counted in micro-batch %lld; expected 0 or more", told->counted,
               (long long)what->batch);
    return HY_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------- */

static hy_status place_grads(hy_trainer *t) {
    const hy_guest *g = t->guest;
    for (int32_t i = 0; i < g->side.count; i++) {
        HY_TRY(hy_guest_place_grads(&t->engine, i, g->grads[i]));
    }
    return HY_OK;
}

static hy_status zero_grads(hy_trainer *t) {
    const hy_guest *g = t->guest;
    hy_engine *e = &t->engine;
    for (int32_t i = 0; g->zeroes_grads && i < g->side.count; i++) {
        hy_op_call fill = {.kind = HY_OP_FILL};
        const hy_param *first = &e->model->params.list[g->side.first_part[i]];
        fill.t[HY_FILL_DST] =
            hy_tensor_1d(g->grads[i], g->side.types.grads, hy_param_whole_count(first));
        HY_TRY(e->backend->enqueue(e->compute, &fill));
    }
    return HY_OK;
}

/* The caller sums over the micro-batches of the step. */
static hy_status ask_for_all(hy_trainer *t, hy_ask *what) {
    HY_TRY(zero_grads(t));
    HY_TRY(ask(t, what, &t->guest->told));
    return place_grads(t);
}

/* Each is asked for by itself and added up here: by targets, or as a sum of means. */
static hy_status ask_for_each(hy_trainer *t, hy_ask *what) {
    hy_guest *g = t->guest;
    hy_told sum = {0}, one;
    int64_t count = what->count, first = what->batch;
    bool is_weighed = t->settings.train.normalize;
    what->count = 1;
    for (int64_t i = 0; i < count; i++) {
        what->batch = first + i;
        HY_TRY(zero_grads(t));
        HY_TRY(ask(t, what, &one));
        double mean = one.is_mean ? 1 : one.counted > 0 ? 1 / one.counted : 0;
        double scale = is_weighed ? mean * one.counted : mean;
        HY_TRY(hy_guest_add_grads(&t->engine, g->grads, scale, i == 0));
        sum.loss_sum += one.loss_sum;
        sum.counted += one.counted;
        sum.tokens += one.tokens;
    }
    g->told = sum;
    return HY_OK;
}

hy_status hy_guest_gradients(hy_trainer *t, hy_dtype dtype, double lr) {
    hy_engine *e = &t->engine;
    hy_guest *g = t->guest;
    hy_store *unused;
    double scale = e->progress.loss_scale.scale;
    HY_TRY(hy_update_begin(e, dtype));
    if (!g->side.uses_in_turn) HY_TRY(hy_update_finish(e));
    if (!e->update.is_pending) {
        HY_TRY(hy_guest_show(e, HY_SHOWN_WEIGHTS));
        HY_TRY(hy_engine_weights_raw(e, dtype, &unused));
    }
    if (g->answered_in != t->progress.step) {
        hy_ask what = {.kind = HY_ASK_GRADIENTS,
                       .batch = t->progress.sequences,
                       .count = e->plan.choice.accum,
                       .loss_scale = scale,
                       .lr = lr};
        HY_TRY(hy_update_gather(e));
        HY_TRY(g->side.types.sums_grads ? ask_for_each(t, &what) : ask_for_all(t, &what));
        e->progress.backward_passes += e->plan.choice.accum;
        g->answered_in = t->progress.step;
    }
    if (e->update.is_pending) { /* its gradients may be overwritten by now */
        t->fate.life = HY_LIFE_FAILED;
        return hy_fail(HY_ERR_STATE,
                       "gradients were given before every parameter was asked for: %s comes next "
                       "(hy_loop_use; -1 for all)",
                       e->model->params.list[e->update.at.param].name);
    }
    HY_FAIL_IF(g->told.counted == 0, HY_ERR_INPUT, "no target counts from micro-batch %lld on",
               (long long)t->progress.sequences);
    bool is_mean = g->side.types.sums_grads && !t->settings.train.normalize;
    double divisor = scale * (is_mean || g->told.is_mean ? 1 : g->told.counted);
    /* A loss that is not finite must change nothing, whatever its gradients are. */
    return hy_update_sum_gradients(e, isfinite(g->told.loss_sum) ? 1 / divisor : NAN);
}

/* What is pending is applied first. */
static hy_status show_weights(hy_trainer *t) {
    HY_TRY(hy_guest_show(&t->engine, HY_SHOWN_WEIGHTS));
    return hy_guest_lend(&t->engine);
}

hy_status hy_guest_end(hy_trainer *t) {
    HY_TRY(show_weights(t));
    return hy_engine_sync(&t->engine);
}

/* ---- losses --------------------------------------------------------------------------------------------- */

static hy_status look(hy_trainer *t, hy_probe *probe) {
    hy_told told;
    double sum = 0, counted = 0;
    for (uint64_t i = 0; i < probe->count; i++) {
        hy_ask what = {
            .kind = HY_ASK_LOSS, .batch = (int64_t)(probe->first + i), .count = 1, .loss_scale = 1};
        HY_TRY(hy_mover_count_down(&t->engine));
        HY_TRY(ask(t, &what, &told));
        if (probe->each) probe->each[i] = told.counted > 0 ? told.loss_sum / told.counted : NAN;
        sum += told.loss_sum;
        counted += told.counted;
        probe->counted += told.tokens;
    }
    HY_FAIL_IF(counted == 0, HY_ERR_INPUT, "no target counts from micro-batch %lld on",
               (long long)probe->first);
    probe->mean = sum / counted;
    return HY_OK;
}

/* What is tried is put back whatever happens: a run that ends here is whole. */
static hy_status look_at(hy_trainer *t, hy_shown shown, hy_probe *probe,
                         hy_status (*work)(hy_trainer *, hy_probe *)) {
    hy_engine *e = &t->engine;
    char message[HY_ERROR_MESSAGE_MAX];
    hy_status status = hy_guest_show(e, shown);
    probe->counted = 0;
    if (status == HY_OK) status = work(t, probe);
    if (e->guest->shown == HY_SHOWN_WEIGHTS) return status;
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_status back = hy_guest_show(e, HY_SHOWN_WEIGHTS);
    while (back == HY_ERR_MEMORY && hy_engine_retry(e, back) == HY_OK) {
        back = hy_guest_show(e, HY_SHOWN_WEIGHTS);
    }
    if (back != HY_OK) {
        t->fate.life = HY_LIFE_FAILED;
        return back;
    }
    return status == HY_OK ? HY_OK : hy_fail(status, "%s", message);
}

hy_status hy_guest_look(hy_trainer *t, hy_probe *probe) {
    return look_at(t, probe->of_candidate ? HY_SHOWN_CANDIDATE : HY_SHOWN_WEIGHTS, probe, look);
}

static hy_status evaluate(hy_trainer *t, hy_probe *probe) {
    hy_told told;
    hy_ask what = {.kind = HY_ASK_EVALUATE, .loss_scale = 1};
    HY_TRY(ask(t, &what, &told));
    HY_FAIL_IF(told.counted == 0, HY_ERR_INPUT,
               "the held-out loss counts no target; at least 1 is expected");
    probe->mean = told.loss_sum / told.counted;
    probe->counted = told.tokens;
    return HY_OK;
}

/* Whoever evaluates between a jump and the end of its Correct leaves the jump as it is: it may still be undone. */
hy_status hy_guest_evaluate(hy_trainer *t, bool of_average, hy_probe *probe) {
    void *kept = NULL;
    char message[HY_ERROR_MESSAGE_MAX];
    if (!of_average) return look_at(t, HY_SHOWN_WEIGHTS, probe, evaluate);
    if (!hy_trainer_is_over(t)) HY_TRY(hy_guest_keep_snapshot(&t->engine, &kept));
    hy_status status = look_at(t, HY_SHOWN_AVERAGE, probe, evaluate);
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_status back = hy_guest_return_snapshot(&t->engine, kept);
    return status == HY_OK ? back : hy_fail(status, "%s", message);
}

/* ---- between calls ----------------------------------------------------------------------------------------- */

hy_status hy_guest_hand_back(hy_trainer *t, hy_status status) {
    char message[HY_ERROR_MESSAGE_MAX];
    if (!t->guest || t->fate.life != HY_LIFE_READY) return status;
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_status shown = hy_trainer_retry(t, show_weights);
    return status == HY_OK ? shown : hy_fail(status, "%s", message);
}

hy_status hy_guest_has_none(const hy_trainer *t, const char *what) {
    HY_FAIL_IF(t->guest, HY_ERR_STATE, "a model of your own has no %s here", what);
    return HY_OK;
}
