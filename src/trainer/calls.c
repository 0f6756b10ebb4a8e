/* calls.c: the handle behind hybrid.h: made, looked at, destroyed. */
#include "base/sized.h"
#include "trainer/adapt.h"
#include "trainer/advance.h"
#include "trainer/evaluate.h"
#include "trainer/make.h"
#include "trainer/predict.h"
#include "trainer/ranks.h"
#include "trainer/saving.h"
#include "trainer/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/say.h"
#include "optim/groups.h"
#include "trainer/monitor.h"

void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    hy_say_list(&t->observer, level, format, args);
    va_end(args);
}

hy_status hy_trainer_create(const hy_config *config, const hy_observer *observer,
                            hy_trainer **out) {
    return hy_trainer_make(config, observer, &(hy_making){0}, out);
}

void hy_trainer_plan_facts_sized(const hy_trainer *t, hy_plan_facts *out, size_t size) {
    hy_plan_facts facts = *t->facts;
    facts.problem = t->problem.text;
    double saved = (double)hy_rows_saved_bytes(t->engine->state->rows,
                                               t->engine->plan->choice.prediction_is_disabled);
    facts.save_seconds = saved / hy_plan_nominal_rates(t->engine->device.backend).disk_write;
    memcpy(facts.aside, facts.no_prediction, sizeof facts.aside); /* the old name */
    hy_copy_sized(out, size, &facts, sizeof facts);
}

static bool describe_group(const hy_trainer *t, int32_t i, hy_group_info *out) {
    const char *at = t->settings->optimizer.groups;
    hy_group group = {0};
    hy_text changes = {0};
    if (i < 0 || !t->engine->model) return false;
    for (bool is_there = true; group.number <= i;) { /* they were read before: no failure */
        if (hy_groups_next(&at, &group, &is_there) != HY_OK || !is_there) return false;
    }
    hy_group_describe(&group, &changes);
    snprintf(out->names, sizeof out->names, "%s", group.names);
    snprintf(out->changes, sizeof out->changes, "%s", hy_text_string(&changes));
    hy_text_free(&changes);
    return hy_group_count(&group, &t->engine->model->params, &out->parameters, &out->elements) ==
           HY_OK;
}

bool hy_trainer_group_sized(const hy_trainer *t, int32_t i, hy_group_info *out, size_t size) {
    hy_group_info group = {0};
    bool is_there = describe_group(t, i, &group);
    hy_copy_sized(out, size, &group, sizeof group);
    return is_there;
}

/* Memory to work in may be gone. */
static hy_status must_have_state(const hy_trainer *t) {
    switch (t->status.life) {
    case HY_LIFE_READY: return HY_OK;
    case HY_LIFE_PLAN:
        return hy_fail(
            HY_ERR_STATE,
            "this trainer is only a plan and has no memory to run; use hy_trainer_create");
    default:
        return hy_fail(HY_ERR_STATE,
                       "step %lld failed before it was complete, so the state is not usable; "
                       "continue from the last checkpoint (%s)",
                       (long long)t->progress->step + 1, t->status.failure.text);
    }
}

hy_status hy_trainer_must_run(const hy_trainer *t) {
    HY_TRY(must_have_state(t));
    if (!t->engine->work->is_gone) return HY_OK;
    return hy_fail(HY_ERR_STATE, "memory ran out, and no memory is left for forward and backward; "
                                 "save the run, and resume it when more memory is free");
}

void hy_trainer_destroy(hy_trainer *t) {
    if (!t) return;
    hy_provider *provider = t->provider;
    hy_team *team = t->ranks.is_lent ? NULL : t->team;
    hy_trainer_tear_down(t);
    hy_team_close(team);
    hy_trainer_free(t);
    hy_provider_release(provider);
}

hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info) {
    HY_TRY(hy_trainer_steer(t));
    bool is_jump = t->progress->machine.phase == HY_PREDICT;
    hy_status status = is_jump ? hy_trainer_run_predict(t, info) : hy_trainer_run_step(t, info);
    bool is_outside =
        status == HY_ERR_MEMORY || t->provider->facts.may_stop || hy_trainer_lacks_data(t, status);
    bool can_be_saved = is_outside && t->status.life == HY_LIFE_READY;
    if (status != HY_OK && !can_be_saved) {
        hy_error_save(&t->status.failure, status);
        t->status.life = HY_LIFE_FAILED;
    }
    if (status == HY_OK) hy_monitor_step(t, info);
    return status;
}

hy_status hy_trainer_step_sized(hy_trainer *t, hy_step_info *info, size_t size) {
    hy_step_info step;
    HY_TRY(hy_trainer_must_run(t));
    hy_status status = hy_trainer_advance(t, &step);
    if (status == HY_OK) hy_copy_sized(info, size, &step, sizeof step);
    return hy_ranks_fail(t, hy_trainer_hand_back(t, status));
}

hy_status hy_trainer_save(hy_trainer *t) {
    HY_TRY(must_have_state(t));
    return hy_trainer_retry(t, hy_trainer_write_checkpoint);
}

void hy_trainer_request_stop(hy_trainer *t) { atomic_store(&t->status.stop_requested, true); }

static void summarise_phase(const hy_trainer *t, hy_phase phase, hy_phase_summary *out) {
    const hy_progress *p = t->progress;
    *out = (hy_phase_summary){
        .steps = p->phases.steps[phase],
        .seconds = p->phases.seconds[phase],
        .wait_seconds = p->phases.wait[phase],
        .bytes_moved = (uint64_t)p->phases.bytes_moved[phase],
        .vram_planned_bytes = hy_monitor_planned(t, phase),
        .vram_peak_bytes = t->engine->state->ledger.phase_peak[phase],
    };
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_cell *cell = &t->engine->state->ledger.cell[cls][phase];
        out->memory[cls] = (hy_memory_cell){.place = cell->place,
                                            .dtype = cell->dtype,
                                            .planned_bytes = cell->planned,
                                            .measured_bytes = cell->measured};
    }
}

int64_t hy_trainer_step_tokens(const hy_trainer *t) {
    bool is_known = t->provider->facts.has_passes;
    return is_known ? hy_step_sequences(t->engine) * t->settings->train.seq_len : 0;
}

int64_t hy_trainer_batch_size(const hy_trainer *t) {
    return t->provider->facts.has_passes ? t->engine->plan->choice.batch : 0;
}

/* Tokens of all sequences so far, counted or not; without the engine's passes, as counted by the
 * provider. */
static double gone_over(const hy_trainer *t) {
    if (!t->provider->facts.has_passes) return (double)t->progress->tokens;
    return (double)t->progress->sequences * (double)t->settings->train.seq_len;
}

/* Why prediction is disabled; after predict_until, the reason that held before. */
static const char *why_not(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    const hy_phase_rules *rules = &t->loop->rules;
    double spent = p->spent / (double)t->loop->steps_total;
    bool is_past = spent >= rules->predict_until;
    if (rules->has_predictor && rules->predict_until <= rules->predict_from) {
        return "predict_until is not after predict_from";
    }
    hy_observation seen = {.spent = is_past ? nextafter(rules->predict_until, 0) : spent,
                           .confidence = hy_confidence_value(&p->confidence)};
    hy_phase_obstacle obstacle = hy_phase_obstacle_now(rules, &p->machine, &seen);
    if (obstacle != HY_PREDICT_OPEN && obstacle != HY_PREDICT_WINDOW_SHORT) {
        return hy_phase_obstacle_text(obstacle);
    }
    return is_past ? "the run is too short: no window of optimizer steps fits between predict_from "
                     "and predict_until"
                   : "";
}

/* The matmuls of the blocks in a micro-batch: frozen matrices have no gradient. */
static int64_t block_matmuls(const hy_trainer *t) {
    const hy_params *params = &t->engine->model->params;
    int64_t count = 0;
    for (int32_t i = 0; i < params->count; i++) {
        if (hy_linear_bit(params->list[i].kind)) count += 2 + params->list[i].is_trainable;
    }
    return count;
}

/* Of these, in fp8: a frozen matrix only if it is stored in fp8. */
static int64_t fp8_matmuls(const hy_trainer *t) {
    const hy_model *model = t->engine->model;
    const hy_fp8_use *use = &t->engine->plan->types.fp8;
    int64_t count = 0;
    if (!hy_types_have_fp8(&t->engine->plan->types)) return 0;
    for (int32_t i = 0; i < model->params.count; i++) {
        const hy_param *param = &model->params.list[i];
        uint32_t bit = hy_linear_bit(param->kind);
        if (!param->is_trainable && !use->is_frozen) continue;
        count += 2 * ((use->weights & bit) != 0) + (param->is_trainable && (use->grads & bit));
    }
    return count;
}

static void summarise(const hy_trainer *t, hy_summary *out) {
    const hy_progress *p = t->progress;
    const hy_settings *s = t->settings;
    const hy_dataset_facts *data = hy_trainer_data(t);
    *out = (hy_summary){
        .model = s->model,
        .device = t->engine->device.backend->facts.name,
        .matmul = t->engine->device.backend->facts.detail,
        .data = data->description,
        .out = t->record->out,
        .parameters = t->engine->model->params.elements,
        .steps_total = t->loop->steps_total,
        .steps = p->step,
        .full_steps = p->phases.steps[HY_WARMUP] + p->phases.steps[HY_FULL],
        .correct_steps = p->phases.steps[HY_CORRECT],
        .predicted_steps = (int64_t)(p->jumps.steps + 0.5),
        .moves = p->machine.moves,
        .rejected_moves = p->machine.rejections,
        .divergences = p->machine.divergences,
        .forks = p->confidence.forks,
        .spent = p->spent,
        .confidence = hy_confidence_value(&p->confidence),
        .fork_gain = p->confidence.gain_sum,
        .fork_gain_steps = p->forks.gain_steps,
        .predictor = hy_choice_name("predictor", t->engine->plan->predictor.kind),
        .why_not = why_not(t),
        .backward_passes = t->engine->progress.backward_passes,
        .skipped_steps = t->engine->progress.skipped,
        .fp8_matmuls = fp8_matmuls(t),
        .block_matmuls = block_matmuls(t),
        .tokens = p->tokens,
        .tokens_per_step = hy_trainer_step_tokens(t),
        .seconds = p->seconds,
        .tokens_per_second = p->seconds > 0 ? gone_over(t) / p->seconds : 0,
        .flops_per_token = hy_model_flops_per_token(t->engine->model, (int32_t)s->train.seq_len),
        .is_gpu = t->engine->device.backend->facts.is_gpu,
        .capability = t->engine->device.backend->facts.capability,
        .peak_flops = t->engine->device.backend->facts.peak_flops,
        .matmul_flops = t->engine->device.backend->facts.matmul_flops,
        .final_loss = hy_trainer_recent_loss(t),
        .val_loss = p->val_loss,
        .raw_val_loss = t->held_out.raw_val_loss,
        .val_tokens = t->held_out.val_tokens,
        .best_val_loss = p->best.loss,
        .best_val_step = p->best.step,
        .is_stopped_early = hy_trainer_is_stopped_early(t),
        .knows_entropy = data->knows_entropy,
        .source_entropy = data->entropy,
        .val_optimum = data->val_optimum,
        .ngram_loss = t->held_out.ngram_loss,
        .checkpoint_bytes = hy_rows_saved_bytes(t->engine->state->rows,
                                                t->engine->plan->choice.prediction_is_disabled),
    };
    out->mfu = hy_trainer_mfu(t, out->tokens_per_second);
    out->sol = hy_trainer_sol(t, out->tokens_per_second);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        summarise_phase(t, (hy_phase)i, &out->phases[i]);
    }
}

void hy_trainer_summary_sized(const hy_trainer *t, hy_summary *out, size_t size) {
    hy_summary summary;
    summarise(t, &summary);
    hy_copy_sized(out, size, &summary, sizeof summary);
}

hy_status hy_model_parameters(const char *preset, int64_t *parameters) {
    hy_config *config;
    hy_shape shape;
    hy_params params = {0};
    HY_TRY(hy_config_create(&config));
    hy_status status = hy_config_set(config, "model", preset, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_shape_from_settings(hy_config_settings(config), &shape);
    if (status == HY_OK) status = hy_params_init(&params, &shape);
    if (status == HY_OK) *parameters = params.elements;
    hy_params_fini(&params);
    hy_config_destroy(config);
    return status;
}
