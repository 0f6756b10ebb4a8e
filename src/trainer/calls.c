/* calls.c: the calls of hybrid.h that fill a struct of the caller, and other short ones.
 *
 * This is the top layer: no other file of the trainer calls these functions. */
#include "base/json.h"
#include "base/sized.h"
#include "infer/sample.h"
#include "trainer/evaluate.h"
#include "trainer/make.h"
#include "trainer/monitor_look.h"
#include "trainer/monitor_savings.h"
#include "trainer/provider_weights.h"
#include "trainer/ranks.h"
#include "trainer/recovery.h"
#include "trainer/run.h"
#include "trainer/saving.h"
#include "trainer/scale.h"
#include "trainer/summary.h"

hy_status hy_trainer_create(const hy_config *config, const hy_observer *observer,
                            hy_trainer **out) {
    return hy_trainer_make(config, observer, &(hy_making){0}, out);
}

hy_status hy_trainer_step_sized(hy_trainer *t, hy_step_info *info, size_t size) {
    hy_step_info step;
    HY_TRY(hy_trainer_must_train(t));
    hy_status status = hy_trainer_advance(t, &step);
    if (status == HY_OK) hy_copy_sized(info, size, &step, sizeof step);
    return hy_ranks_fail(t, hy_trainer_hand_back(t, status));
}

hy_status hy_trainer_evaluate_sized(hy_trainer *t, hy_eval_info *info, size_t size) {
    hy_eval_info now;
    hy_status status = hy_trainer_measure_held_out(t, &now, NULL);
    if (status == HY_OK) hy_copy_sized(info, size, &now, sizeof now);
    return hy_ranks_fail(t, status);
}

hy_status hy_trainer_save(hy_trainer *t) {
    HY_TRY(t->is_scaled ? hy_trainer_must_train(t) : hy_trainer_must_have_state(t));
    return hy_trainer_retry(t, hy_trainer_write_checkpoint);
}

hy_status hy_trainer_scale(hy_trainer *t, double scale) {
    return hy_trainer_hand_back(t, hy_trainer_set_scale(t, scale));
}

void hy_trainer_request_stop(hy_trainer *t) { atomic_store(&t->status.stop_requested, true); }

/* ---- figures --------------------------------------------------------------------------------- */

void hy_trainer_plan_facts_sized(const hy_trainer *t, hy_plan_facts *out, size_t size) {
    hy_plan_facts facts = hy_trainer_facts(t);
    hy_copy_sized(out, size, &facts, sizeof facts);
}

bool hy_trainer_group_sized(const hy_trainer *t, int32_t i, hy_group_info *out, size_t size) {
    hy_group_info group = {0};
    bool is_there = hy_trainer_describe_group(t, i, &group);
    hy_copy_sized(out, size, &group, sizeof group);
    return is_there;
}

void hy_trainer_summary_sized(const hy_trainer *t, hy_summary *out, size_t size) {
    hy_summary summary = hy_trainer_summarise(t);
    hy_copy_sized(out, size, &summary, sizeof summary);
}

bool hy_trainer_ranks_sized(const hy_trainer *t, hy_ranks_info *out, size_t size) {
    hy_ranks_info info = hy_ranks_describe(t);
    hy_copy_sized(out, size, &info, sizeof info);
    return info.count > 0;
}

bool hy_trainer_rank_sized(const hy_trainer *t, int32_t rank, hy_rank_cost *out, size_t size) {
    hy_rank_cost cost;
    bool is_known = hy_rank_figures_of(&t->ranks.figures, rank, &cost);
    if (is_known) hy_copy_sized(out, size, &cost, sizeof cost);
    return is_known;
}

hy_status hy_trainer_memory_sized(const hy_trainer *t, hy_memory_state *out, size_t size) {
    hy_memory_state state;
    hy_status status = hy_monitor_describe(t, &state);
    hy_copy_sized(out, size, &state, sizeof state);
    return status;
}

hy_status hy_trainer_savings_sized(const hy_trainer *t, hy_savings *out, size_t size) {
    hy_savings found;
    hy_status status = hy_trainer_find_savings(t, &found);
    hy_copy_sized(out, size, &found, sizeof found);
    return status;
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

/* ---- samples --------------------------------------------------------------------------------- */

/* Keeps the newest sample for the report. reference: the answer in the data; NULL: there is
 * none. */
static void keep_sample(const hy_trainer *t, const char *prompt, const char *sample,
                        const char *reference) {
    hy_text json = {0};
    hy_json_writer w;
    if (!t->record->lock) return; /* this run writes no files */
    hy_json_begin(&w, &json, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "step", t->progress->step);
    hy_json_put_string(&w, "prompt", prompt ? prompt : "");
    hy_json_put_string(&w, "text", sample);
    if (reference) hy_json_put_string(&w, "reference", reference);
    hy_json_close_object(&w);
    hy_text_add(&json, "\n");
    hy_status status = hy_text_status(&json);
    if (status == HY_OK) status = hy_record_write(t->record, "sample.json", json.data);
    if (status != HY_OK) hy_say(t, HY_WARNING, "%s", hy_error_message());
    hy_text_free(&json);
}

hy_status hy_trainer_sample(hy_trainer *t, const hy_sample_options *options, char **text,
                            size_t *size) {
    hy_text out = {0};
    *text = NULL;
    HY_TRY(hy_trainer_must_run(t));
    HY_TRY(hy_trainer_must_have_passes(t, "samples of text"));
    HY_TRY(hy_team_fail(
        t->team, hy_engine_sample(t->engine, hy_dataset_tokenizer(t->data.set), options, &out)));
    keep_sample(t, options->prompt, hy_text_string(&out), NULL);
    if (size) *size = out.size;
    *text = out.data;
    return HY_OK;
}

hy_status hy_trainer_answer_sized(hy_trainer *t, const hy_sample_options *options,
                                  hy_row_answer *out, size_t size) {
    hy_row_answer found = {0};
    hy_copy_sized(out, size, &found, sizeof found);
    HY_TRY(hy_trainer_must_run(t));
    HY_TRY(hy_trainer_must_have_passes(t, "samples of text"));
    hy_status status =
        hy_team_fail(t->team, hy_engine_answer(t->engine, t->data.set, options, &found));
    if (status == HY_OK) {
        if (found.answer) keep_sample(t, found.question, found.answer, found.reference);
        hy_copy_sized(out, size, &found, sizeof found);
    } else {
        hy_free(found.question);
        hy_free(found.reference);
        hy_free(found.answer);
    }
    return status;
}
