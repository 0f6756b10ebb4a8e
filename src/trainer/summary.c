/* summary.c: the figures of a run and of its plan. See summary.h.
 *
 * hybrid.h hands them out, and the record writes them to plan.json and summary.json. Nothing
 * here changes the run. */
#include "trainer/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optim/groups.h"
#include "trainer/fork_rules.h"
#include "trainer/monitor_look.h"
#include "trainer/throughput.h"

/* data_buffer_bytes are in use only while rows are encoded: before the run allocates its memory, or
 * for streamed rows now and then. */
void hy_trainer_complete_facts(hy_trainer *t) {
    const hy_dataset_facts *data = hy_trainer_data(t);
    uint64_t disk = t->data.set ? data->disk_bytes : 0;
    t->facts->host_fork_bytes = hy_fork_plan_bytes(t);
    t->facts->data_buffer_bytes = disk ? (uint64_t)t->settings->input.buffer_size : 0;
    t->facts->data_buffer_bytes += data->stream_window; /* the text of the window that is read */
    t->facts->data_disk_bytes = disk;
}

hy_plan_facts hy_trainer_facts(const hy_trainer *t) {
    hy_plan_facts facts = *t->facts;
    facts.problem = t->problem.text;
    double saved = (double)hy_trainer_saved_bytes(t);
    facts.save_seconds = saved / hy_plan_nominal_rates(t->engine->device.backend).disk_write;
    memcpy(facts.aside, facts.no_prediction, sizeof facts.aside); /* the old name of this field */
    return facts;
}

bool hy_trainer_describe_group(const hy_trainer *t, int32_t i, hy_group_info *out) {
    const char *at = t->settings->optimizer.groups;
    hy_group group = {0};
    hy_text changes = {0};
    if (i < 0 || !t->engine->model) return false;
    for (bool is_there = true;
         group.number <= i;) { /* groups were read before, so this cannot fail */
        if (hy_groups_next(&at, &group, &is_there) != HY_OK || !is_there) return false;
    }
    hy_group_describe(&group, &changes);
    snprintf(out->names, sizeof out->names, "%s", group.names);
    snprintf(out->changes, sizeof out->changes, "%s", hy_text_string(&changes));
    hy_text_free(&changes);
    return hy_group_count(&group, &t->engine->model->params, &out->parameters, &out->elements) ==
           HY_OK;
}

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

/* Why prediction is disabled; after predict_until, why it was disabled before. */
static const char *why_not(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    const hy_phase_rules *rules = &t->schedule->rules;
    double spent = hy_trainer_share_done(t);
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

/* The matmuls of the blocks in a micro-batch, and how many of them are in fp8. Frozen matrices have
 * no gradient, and are in fp8 only if they are stored in it. */
static void count_matmuls(const hy_trainer *t, int64_t *all, int64_t *in_fp8) {
    const hy_params *params = &t->engine->model->params;
    const hy_types *types = &t->engine->plan->types;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        uint32_t bit = hy_linear_bit(p->kind);
        if (bit) *all += 2 + p->is_trainable;
        if (!hy_types_have_fp8(types) || (!p->is_trainable && !types->fp8.is_frozen)) continue;
        *in_fp8 +=
            2 * ((types->fp8.weights & bit) != 0) + (p->is_trainable && (types->fp8.grads & bit));
    }
}

static void summarise_data(const hy_dataset_facts *data, hy_summary *out) {
    out->data = data->description;
    out->knows_entropy = data->knows_entropy;
    out->source_entropy = data->entropy;
    out->val_optimum = data->val_optimum;
    out->row_format = data->row_format;
    out->row_losses = data->row_losses;
    out->rows = (int64_t)data->rows;
    out->rows_dropped = (int64_t)data->dropped_rows;
    out->rows_cut = (int64_t)data->cut_rows;
    out->tokens_encoded = data->unknown.is_partial ? 0 : (int64_t)data->unknown.tokens;
    out->tokens_unknown = (int64_t)data->unknown.count;
    out->has_byte_tokens = data->is_bytes;
}

static int64_t count_trained(const hy_params *params) {
    int64_t trained = 0;
    for (int32_t i = 0; i < params->count; i++)
        if (params->list[i].is_trainable) trained += params->list[i].stored;
    return trained;
}

hy_summary hy_trainer_summarise(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    const hy_settings *s = t->settings;
    /* Tokens of all sequences so far, counted or not; without the engine's passes, as counted by
     * the provider. */
    bool is_rewarded = s->task == HY_LOSS_POLICY;
    double tokens = is_rewarded ? (double)p->tokens
                    : t->provider->facts.has_passes
                        ? (double)p->sequences * (double)s->train.seq_len
                        : (double)p->tokens;
    hy_summary out = {
        .model = s->model,
        .device = t->engine->device.backend->facts.name,
        .matmul = t->engine->device.backend->facts.detail,
        .out = t->record->out,
        .parameters = t->engine->model->params.elements,
        .trained = count_trained(&t->engine->model->params),
        .steps_total = t->schedule->steps_total,
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
        .tokens = p->tokens,
        .tokens_per_step = hy_trainer_step_tokens(t),
        .seconds = p->seconds,
        .tokens_per_second = p->seconds > 0 ? tokens / p->seconds : 0,
        .flops_per_token = hy_model_flops_per_token(t->engine->model, (int32_t)s->train.seq_len),
        .is_gpu = t->engine->device.backend->facts.is_gpu,
        .capability = t->engine->device.backend->facts.capability,
        .peak_flops = t->engine->device.backend->facts.peak_flops,
        .matmul_flops = t->engine->device.backend->facts.matmul_flops,
        .final_loss = hy_trainer_recent_loss(t),
        .val_loss = p->val_loss,
        .row_scores = p->row_scores,
        .raw_val_loss = t->held_out.raw_val_loss,
        .val_tokens = t->held_out.val_tokens,
        .best_val_loss = p->best.loss,
        .best_val_step = p->best.step,
        .is_stopped_early = hy_trainer_is_stopped_early(t),
        .ngram_loss = t->held_out.ngram_loss,
        .checkpoint_bytes = hy_trainer_saved_bytes(t),
        .vocab = t->provider->facts.has_passes ? t->engine->model->shape.vocab : 0,
        .is_drawn = t->engine->has_drawn_weights,
        .checkpoint_frozen_bytes = hy_rows_saved_frozen(t->engine->state->rows),
    };
    summarise_data(hy_trainer_data(t), &out);
    out.task = t->data.task;
    out.measures_reference =
        hy_preference_has_reference(s->task) && !hy_settings_reference_is_inline(s);
    out.generates_answers = s->task == HY_LOSS_POLICY;
    count_matmuls(t, &out.block_matmuls, &out.fp8_matmuls);
    hy_trainer_utilisation(t, out.tokens_per_second, &out.mfu, &out.sol);
    for (int i = 0; i < HY_PHASE_COUNT; i++) summarise_phase(t, (hy_phase)i, &out.phases[i]);
    return out;
}
