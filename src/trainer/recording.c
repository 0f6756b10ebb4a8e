/* recording.c: collects the values of a run's record. See recording.h.
 *
 * src/record writes the files: metrics.jsonl, plan.json, summary.json. Only rank 0 has a record;
 * without a folder nothing is written. */
#include "trainer/recording.h"
#include "record/row_scores.h"

#include <stdlib.h>

#include "formats/checkpoint.h"
#include "plan/plan_value.h"
#include "trainer/monitor_savings.h"
#include "trainer/ranks.h"
#include "trainer/summary.h"

static hy_moment now(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    return (hy_moment){.step = p->step, .spent = p->spent, .elapsed = p->seconds};
}

/* Resuming an older checkpoint abandons the later checkpoints. */
static hy_status choose_branch(const hy_trainer *t) {
    hy_text left = {0};
    if (!t->resumed[0]) return HY_OK;
    hy_status status = hy_checkpoint_go_on(t->record->out, t->resumed, t->progress->step, &left);
    if (status == HY_OK && left.size) {
        hy_say(t, HY_NOTE,
               "the run goes back to step %lld and abandons %s of %s; these stay there until you "
               "remove them",
               (long long)t->progress->step, hy_text_string(&left), t->record->out);
    }
    hy_text_free(&left);
    return status;
}

hy_status hy_trainer_open_record(hy_trainer *t, bool is_remade) {
    const hy_settings *s = t->settings;
    const hy_provider_facts *f = &t->provider->facts;
    hy_moment moment = now(t);
    hy_ranks_info ranks = hy_ranks_describe(t);
    hy_start_line start = {
        .command = t->record->command,
        .model = s->model,
        .device = t->engine->device.backend->facts.name,
        .data = hy_trainer_data(t)->description,
        .predictor = hy_choice_name("predictor", (int)t->engine->plan->predictor.kind),
        .resumed = t->resumed,
        .parameters = t->engine->model->params.elements,
        .steps_total = t->schedule->steps_total,
        .tokens_per_step = s->task == HY_LOSS_POLICY ? 0 : hy_trainer_step_tokens(t),
        .seq_len = f->has_passes ? s->train.seq_len : 0,
        .batch_size = hy_trainer_batch_size(t),
        .grad_accum = t->engine->plan->choice.accum,
        .vram_budget_bytes = hy_budget_device(&t->engine->request),
        .host_budget_bytes = hy_budget_host(&t->engine->request),
        .ranks = ranks.count,
        .zero_stage = ranks.count > 0 ? ranks.zero_stage : -1,
        .transport = ranks.transport,
    };
    if (!t->record->out[0]) return HY_OK;
    t->record->conditions = s->memory.monitor != HY_MONITOR_OFF ? HY_IF_MONITORED : 0;
    HY_TRY(hy_record_make_folder(t->record, s));
    hy_status kept =
        f->has_model_files ? hy_origin_keep(t->record, t->settings, t->engine->model) : HY_OK;
    if (kept != HY_OK && !is_remade) return kept;
    if (kept != HY_OK) {
        hy_say(t, HY_WARNING,
               "the copies of the starting model's configuration and tokenizer were deleted with "
               "the folder (%s); hybrid-export now needs --base with the path of that model",
               hy_error_message());
    }
    kept = t->data.set ? hy_dataset_keep_input(t->data.set, t->record->out) : HY_OK;
    if (kept != HY_OK)
        hy_say(t, HY_WARNING, "%s; --resume needs the same data on standard input again",
               hy_error_message());
    HY_TRY(choose_branch(t));
    hy_trainer_write_plan(t);
    HY_TRY(hy_record_open(t->record, s, &start, &moment));
    if (s->save.tensorboard) hy_tensorboard_open(t->record, t->progress->step);
    return HY_OK;
}

#define MOST_LAYERS 128 /* most layers in a line of the record */

void hy_trainer_record_step(hy_trainer *t, const hy_step_info *info, double val_loss) {
    hy_step_line line = {.step = *info,
                         .val_loss = val_loss,
                         .rows = isnan(val_loss) ? hy_row_scores_none() : t->progress->row_scores};
    /* The largest value and the share of zeros: of inputs, then of gradients. */
    double fp8[4][MOST_LAYERS], stats[2];
    hy_layer_values *fp8_values[] = {&line.fp8_largest, &line.fp8_zeros, &line.fp8_grad_largest,
                                     &line.fp8_grad_zeros};
    hy_layer_values *rank_values[] = {&line.rank_seconds, &line.rank_waited, &line.rank_exchanged,
                                      &line.rank_bytes, &line.rank_memory};
    int32_t layers = t->engine->model->shape.layers;
    bool is_fp8 = info->fp8_largest_layer >= 0 && layers <= MOST_LAYERS;
    for (int k = 0; k < 4 && is_fp8; k++) {
        for (int32_t i = 0; i < layers; i++) {
            fp8[k][i] = hy_engine_fp8_stats(t->engine, i, k >= 2, stats) ? stats[k % 2] : 0;
        }
        *fp8_values[k] = (hy_layer_values){layers, 1, fp8[k]};
    }
    hy_ranks_share_figures(t, info);
    for (int k = 0; k < HY_RANK_FIGURES && t->team; k++) {
        *rank_values[k] =
            (hy_layer_values){hy_engine_ranks(t->engine), 1, t->ranks.agreed.figures[k]};
    }
    hy_record_step(t->record, &line, &t->engine->state->ledger);
}

void hy_trainer_record_event(hy_trainer *t, const hy_event_line *event) {
    hy_moment moment = now(t);
    hy_record_event(t->record, event, &moment);
}

hy_status hy_trainer_plan_json(const hy_trainer *t, char **out) {
    hy_summary summary = hy_trainer_summarise(t);
    hy_plan_facts facts = hy_trainer_facts(t);
    hy_ranks_info ranks = hy_ranks_describe(t);
    hy_group_info *groups, one;
    int32_t count = 0;
    while (hy_trainer_describe_group(t, count, &one)) count++;
    groups = calloc((size_t)count + 1, sizeof *groups);
    if (!groups)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %d groups of parameters", count);
    for (int32_t i = 0; i < count; i++) (void)hy_trainer_describe_group(t, i, &groups[i]);
    hy_plan_choice choice = hy_choice_as_run(&t->engine->plan->choice, t->settings->train.seq_len);
    hy_status status = hy_plan_to_json(&summary, &facts, &choice, groups, count, &ranks, out);
    free(groups);
    return status;
}

void hy_trainer_write_plan(hy_trainer *t) {
    char *text;
    if (!t->record->out[0]) return;
    hy_status status = hy_trainer_plan_json(t, &text);
    if (status == HY_OK) {
        status = hy_record_write(t->record, "plan.json", text);
        free(text);
    }
    if (status == HY_OK) return;
    hy_say(t, HY_WARNING, "%s; the run continues without plan.json", hy_error_message());
}

hy_status hy_trainer_summary_json(const hy_trainer *t, char **out) {
    hy_summary summary = hy_trainer_summarise(t);
    hy_savings savings;
    hy_ranks_info ranks = hy_ranks_describe(t);
    bool has_savings = hy_trainer_find_savings(t, &savings) == HY_OK;
    hy_summary_extras extras = {.command = t->record->command,
                                .recoveries = t->engine->retries.count,
                                .batch_changes = t->status.batch_changes,
                                .batch_size = hy_trainer_batch_size(t),
                                .grad_accum = t->engine->plan->choice.accum,
                                .ranks = &ranks,
                                .savings = has_savings ? &savings : NULL};
    return hy_summary_to_json(&summary, &extras, out);
}

hy_status hy_trainer_write_summary(hy_trainer *t) {
    char *text;
    if (!t->record->out[0]) return HY_OK;
    HY_TRY(hy_trainer_summary_json(t, &text));
    hy_status status = hy_record_write(t->record, "summary.json", text);
    free(text);
    return status;
}
