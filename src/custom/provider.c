/* provider.c: requests for losses and gradients, sent to a program. See custom.h.
 *
 * With several ranks, each rank sends requests to its own program, for its share of the
 * micro-batches. Before a rank acts on an answer, all ranks have all answers and know whether a
 * program failed or stopped, so the run ends on all of them at the same place. */
#include <math.h>
#include <stdlib.h>

#include "custom/custom.h"
#include "formats/checkpoint.h"
#include "trainer/ranks.h"
#include "trainer/window.h"

static hy_custom_provider *of(hy_provider *p) { return (hy_custom_provider *)p; }

/* ---- the program's file in a checkpoint ------------------------------------------------------ */

#define FILE_NAME "caller.bin"

static hy_status save(hy_provider *p, hy_checkpoint *checkpoint) {
    const hy_custom_provider *g = of(p);
    void *bytes = NULL;
    size_t size = 0;
    if (!g->save) return HY_OK;
    hy_status status = g->save(g->file_user, &bytes, &size);
    if (status != HY_OK) {
        free(bytes);
        return hy_fail(status, "the save callback returned \"%s\"", hy_status_name(status));
    }
    status = hy_checkpoint_put(checkpoint, FILE_NAME, bytes ? bytes : "", size);
    free(bytes);
    return status;
}

static hy_status load(hy_provider *p, const char *checkpoint) {
    const hy_custom_provider *g = of(p);
    char path[HY_PATH_MAX], *bytes;
    size_t size;
    if (!g->load) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, FILE_NAME));
    if (!hy_path_exists(path)) return HY_OK; /* the checkpoint was saved without one */
    HY_TRY(hy_file_read(path, &bytes, &size));
    hy_status status = g->load(g->file_user, bytes, size);
    free(bytes);
    HY_FAIL_IF(status != HY_OK, status, "the load callback returned \"%s\" for %s",
               hy_status_name(status), path);
    return HY_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

static hy_status unused_left(hy_trainer *t) {
    const hy_engine *e = t->engine;
    return hy_fail(HY_ERR_STATE,
                   "gradients were given before every parameter was requested: %s is next "
                   "(hy_loop_use; -1 for all)",
                   e->model->params.list[e->update.at.param].name);
}

/* Finishes the pending update: other ranks may be waiting for it, even if this rank's program
 * failed. */
static hy_status use_the_rest(hy_trainer *t, hy_status answered) {
    hy_engine *e = t->engine;
    if (!t->team || !e->update.is_pending) return HY_OK;
    hy_status unused = answered == HY_OK ? unused_left(t) : HY_OK;
    hy_error kept;
    hy_error_save(&kept, unused);
    HY_TRY(hy_update_finish(e));
    if (unused == HY_OK) return HY_OK;
    t->status.life = HY_LIFE_FAILED; /* the pending update's gradients may be overwritten */
    return hy_error_restore(&kept);
}

static hy_status send_request(hy_trainer *t, hy_loop_step *request, hy_program_answer *answer) {
    hy_custom_provider *g = of(t->provider);
    hy_dtype_choice choice = hy_settings_precision(t->settings, t->progress->machine.phase);
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    bool is_16bit = choice == HY_DTYPE_16BIT || (choice == HY_DTYPE_AUTO && is_gpu);
    request->phase = t->progress->machine.phase;
    request->step = t->progress->step;
    request->precision = hy_dtype_chosen(choice, is_16bit ? HY_BF16 : g->side.types.weights);
    request->reason = hy_phase_reason_text(t->progress->machine.reason);
    request->obstacle = hy_phase_obstacle_text(hy_trainer_obstacle(t));
    request->confidence = hy_confidence_value(&t->progress->confidence);
    *answer = (hy_program_answer){0};
    HY_TRY(hy_custom_lend(t->engine));
    hy_status status = g->answer(g->user, request, answer);
    HY_TRY(use_the_rest(t, status));
    if (status == HY_STOPPED && g->provider.is_abandoned && t->team) {
        return hy_fail(HY_ERR_STATE, "the loop was destroyed before the end of its run");
    }
    HY_TRY(status);
    HY_TRY(hy_custom_take_back(t->engine));
    HY_FAIL_IF(!(answer->counted >= 0) || !isfinite(answer->counted), HY_ERR_INPUT,
               "%g targets were counted in micro-batch %lld; expected 0 or more", answer->counted,
               (long long)request->batch);
    return HY_OK;
}

/* ---- of several ranks ------------------------------------------------------------------------ */

static int32_t rank_of(const hy_trainer *t) { return t->engine->request.ranks.rank; }
static int32_t ranks_of(const hy_trainer *t) { return hy_engine_ranks(t->engine); }

static void add(hy_program_answer *sum, const hy_program_answer *one) {
    sum->loss_sum += one->loss_sum;
    sum->counted += one->counted;
    sum->tokens += one->tokens;
}

/* Adds up the answers of all ranks, in the order of ranks. If a program failed, all ranks return
 * the first failure. */
static hy_status share(hy_trainer *t, hy_status mine, hy_program_answer *answer) {
    struct {
        int64_t status;
        hy_program_answer answer;
    } own = {.status = mine, .answer = *answer}, all[HY_RANKS_MOST];
    if (!t->team) return mine;
    /* A failure of the exchange would replace the program's message, which is needed below. */
    hy_error own_error;
    hy_error_save(&own_error, mine);
    HY_TRY(hy_control_gather_bytes(t->team->control, &own, sizeof own, all));
    *answer = (hy_program_answer){0};
    bool is_well = true;
    for (int32_t r = 0; r < ranks_of(t); r++) {
        is_well &= all[r].status == HY_OK;
        add(answer, &all[r].answer);
    }
    if (is_well) return HY_OK;
    (void)hy_error_restore(&own_error);
    return hy_ranks_agree(t, mine);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static hy_status zero_grads(hy_trainer *t) {
    const hy_custom_provider *g = of(t->provider);
    hy_engine *e = t->engine;
    for (int32_t i = 0; g->zeroes_grads && i < g->side.count; i++) {
        hy_op_call fill = {.kind = HY_OP_FILL};
        const hy_param *first = &e->model->params.list[g->side.first_part[i]];
        fill.t[HY_FILL_DST] =
            hy_tensor_1d(g->grads[i], g->side.types.grads, hy_param_whole_count(first));
        HY_TRY(e->device.backend->enqueue(e->device.compute, &fill));
    }
    return HY_OK;
}

/* The program sums over this rank's micro-batches of the step. Gradients of a mean are weighted
 * by the number of its targets. */
static hy_status request_all(hy_trainer *t, hy_loop_step *request) {
    hy_custom_provider *g = of(t->provider);
    HY_TRY(zero_grads(t));
    hy_status status = send_request(t, request, &g->last);
    double weight = g->last.is_mean ? g->last.counted : 1;
    HY_TRY(share(t, status, &g->last));
    return t->team ? hy_custom_add_grads(t->engine, g->grads, weight, true, true)
                   : hy_custom_place_grads(t->engine);
}

/* One request for each micro-batch. Gradients are added up here: by targets, or as a sum of
 * means. */
static hy_status request_each(hy_trainer *t, hy_loop_step *request) {
    hy_custom_provider *g = of(t->provider);
    hy_program_answer sum = {0}, one;
    int64_t count = request->count, first = request->batch;
    bool is_weighed = t->settings->train.normalize;
    request->count = 1;
    for (int64_t i = 0; i < count; i++) {
        request->batch = first + i;
        HY_TRY(zero_grads(t));
        hy_status status = send_request(t, request, &one);
        double mean = one.is_mean ? 1 : one.counted > 0 ? 1 / one.counted : 0;
        double scale = is_weighed ? mean * one.counted : mean;
        HY_TRY(share(t, status, &one));
        HY_TRY(hy_custom_add_grads(t->engine, g->grads, scale, i == 0, i == count - 1));
        add(&sum, &one);
    }
    g->last = sum;
    return HY_OK;
}

/* Weights in units: gradients were added while the program answered. */
static hy_status request_units(hy_trainer *t, hy_loop_step *request) {
    hy_custom_provider *g = of(t->provider);
    hy_program_answer sum = {0}, one;
    int64_t count = request->count;
    request->count = 1;
    for (int64_t i = 0; i < count; i++, request->batch++) {
        hy_custom_begin_units(t->engine, i == 0, i == count - 1);
        HY_TRY(send_request(t, request, &one));
        add(&sum, &one);
    }
    g->last = sum;
    if (g->has_written) HY_TRY(hy_trainer_begin_window(t)); /* it began with the old weights */
    g->has_written = false;
    return hy_custom_end_units(t->engine);
}

static hy_status request_gradients(hy_trainer *t, hy_loop_step *request) {
    const hy_custom_types *types = &of(t->provider)->side.types;
    if (types->keeps_weights) return request_units(t, request);
    return types->asks_each ? request_each(t, request) : request_all(t, request);
}

static hy_status gradients(hy_provider *p, hy_trainer *t, const hy_step_request *step,
                           hy_step_report *report) {
    hy_engine *e = t->engine;
    hy_custom_provider *g = of(p);
    double scale = e->progress.loss_scale.scale;
    /* An arm of a paired test may have answered the same step. */
    if (step->attempt == 1) g->answered_in = -1;
    HY_TRY(hy_custom_begin_step(e, step->dtype));
    if (g->answered_in != t->progress->step) {
        int64_t others = (int64_t)rank_of(t) * e->plan->choice.accum;
        hy_step_report unused = {0}; /* targets are counted with the answers */
        hy_loop_step request = {.todo = HY_DO_GRADIENTS,
                                .batch = t->progress->sequences + others,
                                .count = e->plan->choice.accum,
                                .loss_scale = scale,
                                .lr = step->lr};
        HY_TRY(hy_ranks_begin_step(t, &unused));
        HY_TRY(hy_update_prefetch(e));
        HY_TRY(request_gradients(t, &request));
        e->progress.backward_passes += e->plan->choice.accum;
        g->answered_in = t->progress->step;
    }
    if (e->update.is_pending) { /* the pending update's gradients may be overwritten */
        t->status.life = HY_LIFE_FAILED;
        return unused_left(t);
    }
    HY_FAIL_IF(g->last.counted == 0, HY_ERR_INPUT,
               "micro-batches from number %lld on contain no target tokens",
               (long long)t->progress->sequences);
    report->loss = g->last.loss_sum / g->last.counted;
    report->tokens = report->computed = g->last.tokens;
    bool is_mean = g->side.types.asks_each && !t->settings->train.normalize;
    double divisor = scale * (is_mean || g->last.is_mean ? 1 : g->last.counted);
    /* A loss that is not finite must not change the weights, even if its gradients are finite. */
    return hy_update_clip(e, isfinite(g->last.loss_sum) ? 1 / divisor : NAN);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Adds the answer for one micro-batch of a probe. */
static void add_answer(hy_probe *probe, uint64_t i, const hy_program_answer *answer,
                       hy_program_answer *sum) {
    if (probe->each)
        probe->each[i] = answer->counted > 0 ? answer->loss_sum / answer->counted : NAN;
    add(sum, answer);
}

/* Requests the losses of this rank's micro-batches; ranks take them in turn. A single rank adds
 * them up at once, several keep them to share them. */
static hy_status own_losses(hy_trainer *t, hy_probe *probe, hy_program_answer *kept,
                            hy_program_answer *sum) {
    for (uint64_t i = 0; i < probe->count; i++) {
        hy_loop_step request = {
            .todo = HY_DO_LOSS, .batch = (int64_t)(probe->first + i), .count = 1, .loss_scale = 1};
        hy_program_answer answer;
        HY_TRY(hy_offload_count_down(t->engine->state));
        if ((int32_t)(i % (uint64_t)ranks_of(t)) != rank_of(t)) continue;
        HY_TRY(send_request(t, &request, &answer));
        if (kept) {
            kept[i] = answer;
        } else {
            add_answer(probe, i, &answer, sum);
        }
    }
    return HY_OK;
}

/* most answers in a message between ranks (comm/control.h) */
#define SENT_AT_ONCE 192

/* Collects the answers of all ranks, in the order of micro-batches. */
static hy_status losses_of_all(hy_trainer *t, hy_probe *probe, hy_program_answer *sum) {
    size_t ranks = (size_t)ranks_of(t);
    hy_program_answer *own = calloc(probe->count + SENT_AT_ONCE * ranks, sizeof *own), none = {0};
    HY_FAIL_IF(!own, HY_ERR_MEMORY, "not enough memory for the losses of %d ranks", (int)ranks);
    hy_status status = share(t, own_losses(t, probe, own, NULL), &none);
    for (uint64_t first = 0; first < probe->count && status == HY_OK; first += SENT_AT_ONCE) {
        uint64_t left = probe->count - first, count = left < SENT_AT_ONCE ? left : SENT_AT_ONCE;
        hy_program_answer *all = own + probe->count;
        status = hy_control_gather_bytes(t->team->control, own + first, count * sizeof *own, all);
        for (uint64_t i = 0; i < count && status == HY_OK; i++) {
            add_answer(probe, first + i, &all[(first + i) % ranks * count + i], sum);
        }
    }
    free(own);
    return status;
}

static hy_status losses(hy_provider *p, hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    (void)p;
    (void)plan;
    hy_program_answer sum = {0};
    HY_TRY(t->team ? losses_of_all(t, probe, &sum) : own_losses(t, probe, NULL, &sum));
    HY_FAIL_IF(sum.counted == 0, HY_ERR_INPUT,
               "micro-batches from number %lld on contain no target tokens",
               (long long)probe->first);
    probe->mean = sum.loss_sum / sum.counted;
    probe->counted += sum.tokens;
    return HY_OK;
}

static hy_status evaluate(hy_provider *p, hy_trainer *t, hy_probe *probe) {
    (void)p;
    hy_program_answer answer;
    hy_loop_step request = {.todo = HY_DO_EVALUATE, .loss_scale = 1};
    hy_status status = send_request(t, &request, &answer);
    HY_TRY(share(t, status, &answer));
    HY_FAIL_IF(answer.counted == 0, HY_ERR_INPUT,
               "the held-out data contains no target tokens; expected at least 1");
    probe->mean = answer.loss_sum / answer.counted;
    probe->counted = answer.tokens;
    return HY_OK;
}

/* The program has the held-out data, so no batch of it counts down. */
static int64_t batches(hy_provider *p, hy_trainer *t, hy_split split, uint64_t sequences) {
    (void)p;
    (void)t;
    return split == HY_TRAIN ? (int64_t)sequences : 0;
}

/* ---- the provider ---------------------------------------------------------------------------- */

const hy_provider_ops hy_custom_ops = {.gradients = gradients,
                                       .losses = losses,
                                       .evaluate = evaluate,
                                       .batches = batches,
                                       .save = save,
                                       .load = load};

void hy_custom_provider_begin(hy_custom_provider *p, const hy_provider_ops *ops) {
    *p = (hy_custom_provider){.answered_in = -1};
    p->provider = (hy_provider){
        .ops = ops,
        .facts = {.may_stop = true,
                  .data = {.description = "the caller's own", .sequences[HY_VAL] = 1}},
        .memory = &p->side};
}
