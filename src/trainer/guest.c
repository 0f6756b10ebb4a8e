/* guest.c: asking a guest for losses and gradients. See guest.h.
 *
 * Of several ranks each asks its own caller, for its share of the numbers that one would have asked for. What it is told
 * goes to all before anything follows from it, and with it whether that caller failed or stopped: one that does ends
 * the run on all, at the same place. */
#include "trainer/guest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "formats/checkpoint.h"
#include "trainer/adapt.h"
#include "trainer/advance.h"
#include "trainer/evaluate.h"
#include "trainer/ranks.h"
#include "trainer/trainer.h"

hy_status hy_guest_settings(hy_guest *guest, int32_t ranks, hy_settings *s) {
    /* Several ranks' are summed, so the sums are ours. */
    guest->side.types.sums_grads = guest->side.types.asks_each || ranks > 0;
    HY_FAIL_IF(ranks > 0 && s->train.grad_accum_steps % ranks != 0, HY_ERR_INPUT,
               "train.grad_accum_steps is %lld: a step's micro-batches are shared by %d ranks, so "
               "accepted are multiples of %d",
               (long long)s->train.grad_accum_steps, ranks, ranks);
    HY_FAIL_IF(ranks > 0 && s->ranks.zero_stage == HY_ZERO_WEIGHTS, HY_ERR_INPUT,
               "ranks.zero_stage is 3: the weights of a model or loop of your own lie whole in "
               "your memory on every rank, so accepted are 0 to 2 and auto");
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

uint64_t hy_guest_agreed(const hy_guest *g) {
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (int32_t i = 0; g && i < g->side.count; i++) {
        const hy_param_spec *p = &g->side.params[i];
        const double numbers[] = {p->ndim, p->lr_scale, p->decay};
        hy_hash_add(&hash, p->name, strlen(p->name) + 1);
        hy_hash_add(&hash, numbers, sizeof numbers);
        hy_hash_add(&hash, p->shape, (size_t)p->ndim * sizeof *p->shape);
    }
    if (!g) return hy_hash_value(&hash);
    const int32_t traits[] = {(int32_t)g->side.types.weights,
                              (int32_t)g->side.types.grads,
                              g->side.types.asks_each,
                              g->side.uses_in_turn,
                              g->can_evaluate,
                              g->can_rewind};
    hy_hash_add(&hash, traits, sizeof traits);
    return hy_hash_value(&hash);
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
    bool is_gpu = t->engine.device.backend->facts.is_gpu;
    bool is_16bit = choice == HY_DTYPE_16BIT || (choice == HY_DTYPE_AUTO && is_gpu);
    return hy_dtype_chosen(choice, is_16bit ? HY_BF16 : t->guest->side.types.weights);
}

static hy_status unused_left(hy_trainer *t) {
    const hy_engine *e = &t->engine;
    return hy_fail(HY_ERR_STATE,
                   "gradients were given before every parameter was asked for: %s comes next "
                   "(hy_loop_use; -1 for all)",
                   e->model->params.list[e->update.at.param].name);
}

/* Of several ranks: others may be waiting for what this one updates, however its caller has answered. */
static hy_status use_the_rest(hy_trainer *t, hy_status answer) {
    hy_engine *e = &t->engine;
    if (!t->team || !e->update.is_pending) return HY_OK;
    hy_status unused = answer == HY_OK ? unused_left(t) : HY_OK;
    hy_error kept;
    hy_error_save(&kept, unused);
    HY_TRY(hy_update_finish(e));
    if (unused == HY_OK) return HY_OK;
    t->fate.life = HY_LIFE_FAILED; /* its gradients may be overwritten by now */
    return hy_error_restore(&kept);
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
    hy_status status = g->answer(g->user, what, told);
    HY_TRY(use_the_rest(t, status));
    if (status == HY_STOPPED && g->is_abandoned && t->team) {
        return hy_fail(HY_ERR_STATE, "the loop was destroyed before its run was over");
    }
    HY_TRY(status);
    HY_TRY(hy_guest_take_back(&t->engine));
    HY_FAIL_IF(!(told->counted >= 0) || !isfinite(told->counted), HY_ERR_INPUT,
               "%g targets were counted in micro-batch %lld; expected 0 or more", told->counted,
               (long long)what->batch);
    return HY_OK;
}

/* ---- of several ranks -------------------------------------------------------------------------------- */

static int32_t rank_of(const hy_trainer *t) { return t->engine.request.ranks.rank; }
static int32_t ranks_of(const hy_trainer *t) { return hy_engine_ranks(&t->engine); }

/* Numbers of each rank to all, of which the first is what its status was. The first that is none of HY_OK is what all
 * come back with. */
static hy_status gather(hy_trainer *t, hy_status mine, double *own, int32_t count, double *all) {
    own[0] = (double)mine;
    /* A failure in between is this thread's last; what the caller's was is needed below. */
    hy_error own_error;
    hy_error_save(&own_error, mine);
    HY_TRY(hy_control_gather(t->team->control, own, count, all));
    bool is_well = true;
    for (int32_t r = 0; r < ranks_of(t); r++) is_well &= all[(int64_t)r * count] == HY_OK;
    if (is_well) return HY_OK;
    (void)hy_error_restore(&own_error);
    return hy_ranks_agree(t, mine);
}

/* What all were told, added up in the order of ranks. */
static hy_status share(hy_trainer *t, hy_status mine, hy_told *told) {
    enum { STATUS, LOSS, COUNTED, TOKENS, NUMBERS };
    double own[NUMBERS] = {
        [LOSS] = told->loss_sum, [COUNTED] = told->counted, [TOKENS] = (double)told->tokens};
    double all[NUMBERS * HY_RANKS_MOST];
    if (!t->team) return mine;
    HY_TRY(gather(t, mine, own, NUMBERS, all));
    *told = (hy_told){0};
    for (int32_t r = 0; r < ranks_of(t); r++) {
        const double *theirs = all + (int64_t)r * NUMBERS;
        told->loss_sum += theirs[LOSS];
        told->counted += theirs[COUNTED];
        told->tokens += (int64_t)theirs[TOKENS];
    }
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
        HY_TRY(e->device.backend->enqueue(e->device.compute, &fill));
    }
    return HY_OK;
}

/* The caller sums over the micro-batches of the step, of which a rank has some: gradients of means weigh as many
 * targets as they are of. */
static hy_status ask_for_all(hy_trainer *t, hy_ask *what) {
    hy_guest *g = t->guest;
    HY_TRY(zero_grads(t));
    hy_status status = ask(t, what, &g->told);
    double weight = g->told.is_mean ? g->told.counted : 1;
    HY_TRY(share(t, status, &g->told));
    return t->team ? hy_guest_add_grads(&t->engine, g->grads, weight, true, true) : place_grads(t);
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
        hy_status status = ask(t, what, &one);
        double mean = one.is_mean ? 1 : one.counted > 0 ? 1 / one.counted : 0;
        double scale = is_weighed ? mean * one.counted : mean;
        HY_TRY(share(t, status, &one));
        HY_TRY(hy_guest_add_grads(&t->engine, g->grads, scale, i == 0, i == count - 1));
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
        int64_t others = (int64_t)rank_of(t) * e->plan.choice.accum, unused_count = 0;
        hy_ask what = {.kind = HY_ASK_GRADIENTS,
                       .batch = t->progress.sequences + others,
                       .count = e->plan.choice.accum,
                       .loss_scale = scale,
                       .lr = lr};
        HY_TRY(hy_ranks_begin_step(t, &unused_count)); /* it is told with the answers */
        HY_TRY(hy_update_gather(e));
        HY_TRY(g->side.types.asks_each ? ask_for_each(t, &what) : ask_for_all(t, &what));
        e->progress.backward_passes += e->plan.choice.accum;
        g->answered_in = t->progress.step;
    }
    if (e->update.is_pending) { /* its gradients may be overwritten by now */
        t->fate.life = HY_LIFE_FAILED;
        return unused_left(t);
    }
    HY_FAIL_IF(g->told.counted == 0, HY_ERR_INPUT, "no target counts from micro-batch %lld on",
               (long long)t->progress.sequences);
    bool is_mean = g->side.types.asks_each && !t->settings.train.normalize;
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

static hy_status ask_for_loss(hy_trainer *t, uint64_t batch, hy_told *told) {
    hy_ask what = {.kind = HY_ASK_LOSS, .batch = (int64_t)batch, .count = 1, .loss_scale = 1};
    return ask(t, &what, told);
}

/* Adds what was told of one micro-batch of a probe. */
static void add_told(hy_probe *probe, uint64_t i, const hy_told *told, hy_told *sum) {
    if (probe->each) probe->each[i] = told->counted > 0 ? told->loss_sum / told->counted : NAN;
    sum->loss_sum += told->loss_sum;
    sum->counted += told->counted;
    probe->counted += told->tokens;
}

static hy_status look_alone(hy_trainer *t, hy_probe *probe, hy_told *sum) {
    hy_told told;
    for (uint64_t i = 0; i < probe->count; i++) {
        HY_TRY(hy_offload_count_down(&t->engine.state));
        HY_TRY(ask_for_loss(t, probe->first + i, &told));
        add_told(probe, i, &told, sum);
    }
    return HY_OK;
}

/* Ranks take micro-batches in turn. */
enum { LOOKED_LOSS, LOOKED_COUNTED, LOOKED_TOKENS, LOOKED };

static hy_status look_in_turn(hy_trainer *t, const hy_probe *probe, double *numbers) {
    hy_told told;
    for (uint64_t i = 0; i < probe->count; i++) {
        HY_TRY(hy_offload_count_down(&t->engine.state));
        if ((int32_t)(i % (uint64_t)ranks_of(t)) != rank_of(t)) continue;
        HY_TRY(ask_for_loss(t, probe->first + i, &told));
        numbers[LOOKED * i + LOOKED_LOSS] = told.loss_sum;
        numbers[LOOKED * i + LOOKED_COUNTED] = told.counted;
        numbers[LOOKED * i + LOOKED_TOKENS] = (double)told.tokens;
    }
    return HY_OK;
}

/* A message to the other ranks has bounds (comm/control.h). */
#define TOLD_AT_ONCE 256

/* Those [first, first + count) of all ranks, in their order. */
static hy_status tell_some(hy_trainer *t, hy_probe *probe, uint64_t first, const double *own,
                           double *all, hy_told *sum) {
    uint64_t left = probe->count - first, ranks = (uint64_t)ranks_of(t);
    uint64_t count = left < TOLD_AT_ONCE ? left : TOLD_AT_ONCE;
    HY_TRY(
        hy_control_gather(t->team->control, own + LOOKED * first, (int32_t)(LOOKED * count), all));
    for (uint64_t i = 0; i < count; i++) {
        const double *n = all + LOOKED * ((first + i) % ranks * count + i);
        hy_told told = {.loss_sum = n[LOOKED_LOSS],
                        .counted = n[LOOKED_COUNTED],
                        .tokens = (int64_t)n[LOOKED_TOKENS]};
        add_told(probe, first + i, &told, sum);
    }
    return HY_OK;
}

static hy_status look_together(hy_trainer *t, hy_probe *probe, hy_told *sum) {
    size_t ranks = (size_t)ranks_of(t), count = LOOKED * (size_t)probe->count;
    double status_of[HY_RANKS_MOST], mine;
    double *own = calloc(count + LOOKED * TOLD_AT_ONCE * ranks, sizeof *own), *all = own + count;
    HY_FAIL_IF(!own, HY_ERR_MEMORY, "no memory for the losses of %d ranks", (int)ranks);
    hy_status status = gather(t, look_in_turn(t, probe, own), &mine, 1, status_of);
    for (uint64_t first = 0; first < probe->count && status == HY_OK; first += TOLD_AT_ONCE) {
        status = tell_some(t, probe, first, own, all, sum);
    }
    free(own);
    return status;
}

static hy_status look(hy_trainer *t, hy_probe *probe) {
    hy_told sum = {0};
    HY_TRY(t->team ? look_together(t, probe, &sum) : look_alone(t, probe, &sum));
    HY_FAIL_IF(sum.counted == 0, HY_ERR_INPUT, "no target counts from micro-batch %lld on",
               (long long)probe->first);
    probe->mean = sum.loss_sum / sum.counted;
    return HY_OK;
}

/* Of a failure that ranks have not agreed on the others know nothing yet: they may be anywhere, and nothing goes between
 * ranks any more. */
static bool has_ended(const hy_trainer *t, hy_status status) {
    bool is_known = status == HY_OK || status == HY_STOPPED || hy_ranks_have_agreed(t, status);
    return t->team && !is_known;
}

/* What is tried is put back whatever happens: a run that ends here is whole. */
static hy_status look_at(hy_trainer *t, hy_shown shown, hy_probe *probe,
                         hy_status (*work)(hy_trainer *, hy_probe *)) {
    hy_engine *e = &t->engine;
    hy_error kept;
    hy_status status = hy_guest_show(e, shown);
    probe->counted = 0;
    if (status == HY_OK) status = work(t, probe);
    if (e->guest->shown == HY_SHOWN_WEIGHTS) return status;
    if (has_ended(t, status)) {
        t->fate.life = HY_LIFE_FAILED;
        return status;
    }
    hy_error_save(&kept, status);
    hy_status back = hy_guest_show(e, HY_SHOWN_WEIGHTS);
    while (back == HY_ERR_MEMORY && hy_engine_retry(e, back) == HY_OK) {
        back = hy_guest_show(e, HY_SHOWN_WEIGHTS);
    }
    if (back != HY_OK) {
        t->fate.life = HY_LIFE_FAILED;
        return back;
    }
    return hy_error_restore(&kept);
}

hy_status hy_guest_look(hy_trainer *t, hy_probe *probe) {
    return look_at(t, probe->of_candidate ? HY_SHOWN_CANDIDATE : HY_SHOWN_WEIGHTS, probe, look);
}

static hy_status evaluate(hy_trainer *t, hy_probe *probe) {
    hy_told told;
    hy_ask what = {.kind = HY_ASK_EVALUATE, .loss_scale = 1};
    hy_status status = ask(t, &what, &told);
    HY_TRY(share(t, status, &told));
    HY_FAIL_IF(told.counted == 0, HY_ERR_INPUT,
               "the held-out loss counts no target; at least 1 is expected");
    probe->mean = told.loss_sum / told.counted;
    probe->counted = told.tokens;
    return HY_OK;
}

/* Whoever evaluates between a jump and the end of its Correct leaves the jump as it is: it may still be undone. */
hy_status hy_guest_evaluate(hy_trainer *t, bool of_average, hy_probe *probe) {
    hy_arena kept = {0};
    hy_error error;
    if (!of_average) return look_at(t, HY_SHOWN_WEIGHTS, probe, evaluate);
    if (!hy_trainer_is_over(t)) HY_TRY(hy_guest_keep_snapshot(&t->engine, &kept));
    hy_status status = look_at(t, HY_SHOWN_AVERAGE, probe, evaluate);
    hy_error_save(&error, status);
    hy_status back = hy_guest_return_snapshot(&t->engine, &kept);
    return status == HY_OK ? back : hy_error_restore(&error);
}

/* ---- between calls ----------------------------------------------------------------------------------------- */

hy_status hy_guest_hand_back(hy_trainer *t, hy_status status) {
    hy_error error;
    if (!t->guest || t->fate.life != HY_LIFE_READY || has_ended(t, status)) return status;
    hy_error_save(&error, status);
    hy_status shown = hy_trainer_retry(t, show_weights);
    return status == HY_OK ? shown : hy_error_restore(&error);
}

hy_status hy_guest_has_none(const hy_trainer *t, const char *what) {
    HY_FAIL_IF(t->guest, HY_ERR_STATE, "a model of your own has no %s here", what);
    return HY_OK;
}
