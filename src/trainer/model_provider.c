/* model_provider.c: the model and data of the settings as a provider. See provider.h.
 *
 * The engine's passes compute gradients and losses; a loader reads the batches ahead. */
#include <stdio.h>
#include <string.h>

#include "data/fingerprint.h"
#include "data/input.h"
#include "hub/hf_load.h"
#include "hub/peft.h"
#include "setup/setup.h"
#include "trainer/ranks.h"

/* ---- the beginning --------------------------------------------------------------------------- */

/* Opens and closes the files with weights and adapters, because data takes long: a folder without
 * them is refused first. */
static hy_status check_weights(const hy_trainer *t) {
    const hy_settings *s = t->settings;
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    hy_weight_files files;
    hy_peft_file adapter;
    if (s->save.resume[0]) return HY_OK;
    if (s->lora.adapter[0]) {
        HY_TRY(hy_peft_open(s->lora.adapter, t->engine->model, &adapter));
        hy_peft_close(&adapter);
    }
    if (s->init_from[0]) return HY_OK;
    HY_TRY(hy_settings_model_files(s, &kind, path));
    if (kind == HY_FILES_NONE) return HY_OK;
    HY_TRY(hy_weight_files_open(path, t->engine->model, &files));
    hy_weight_files_close(&files);
    return HY_OK;
}

/* Opens the rows of eval.eval_rows, which validations answer. */
static hy_status open_rows(hy_trainer *t, const hy_dataset_facts *facts) {
    const char *path = t->settings->eval.eval_rows;
    if (!path[0]) return HY_OK;
    HY_FAIL_IF(
        facts->sequences[HY_VAL] == 0, HY_ERR_INPUT,
        "eval.eval_rows = %s needs held-out data, because it is measured in validations, but "
        "input.val_fraction is 0 and val_data is empty",
        path);
    HY_TRY(hy_engine_open_rows(t->engine, facts, &t->data.rows));
    if (hy_trainer_leads(t))
        hy_say(t, HY_NOTE, "rows for evaluation: %s; %s",
               hy_dataset_describe(t->data.rows)->description,
               hy_dataset_describe(t->data.rows)->row_format);
    return HY_OK;
}

/* "dpo, beta 0.1; the reference is the model with its adapters off, in every step" */
static void describe_task(const hy_settings *s, char *out, size_t size) {
    hy_loss p = hy_loss_from_settings(s);
    char margin[48] = "", likelihood[64] = "";
    const char *reference =
        !hy_preference_has_reference(p.kind) ? ""
        : hy_settings_reference_is_inline(s)
            ? "; the reference is the model with its adapters off, in every step"
            : "; the reference is the model before training, computed once";
    if (p.kind == HY_LOSS_NEXT_TOKEN) return;
    if (p.kind == HY_LOSS_POLICY) {
        const char *program = s->grpo.reward_program;
        snprintf(out, size,
                 "grpo, %lld rows with %lld answers of up to %lld tokens; rewards: %s%s%s",
                 (long long)s->grpo.prompts, (long long)s->grpo.samples,
                 (long long)s->grpo.answer_tokens, s->grpo.reward,
                 !program[0]         ? ""
                 : s->grpo.reward[0] ? "; program: "
                                     : "program: ",
                 program);
        return;
    }
    if (p.margin > 0) snprintf(margin, sizeof margin, ", margin %g", (double)p.margin);
    if (p.likelihood > 0)
        snprintf(likelihood, sizeof likelihood, ", likelihood %g", (double)p.likelihood);
    snprintf(out, size, "%s, beta %g%s%s%s", hy_choice_name("task", (int)p.kind), (double)p.beta,
             margin, likelihood, reference);
}

/* Settings that this task does not read. */
static void warn_unused(const hy_trainer *t) {
    const hy_settings *s = t->settings;
    bool has_pairs = hy_loss_is_of_pairs(s->task), has_rewards = s->task == HY_LOSS_POLICY;
    const struct {
        const char *name, *tasks;
        bool is_set, is_used;
    } all[] = {
        {"preference.beta", "dpo, ipo, orpo or simpo", s->preference.beta != 0, has_pairs},
        {"preference.likelihood", "dpo, ipo, orpo or simpo", s->preference.likelihood != -1,
         has_pairs},
        {"preference.simpo_margin", "simpo", s->preference.simpo_margin != -1,
         s->task == HY_LOSS_SIMPO},
        {"preference.reference", "dpo or ipo", s->preference.reference != HY_REFERENCE_AUTO,
         hy_preference_has_reference(s->task)},
        {"grpo.reward", "grpo", s->grpo.reward[0], has_rewards},
        {"grpo.reward_program", "grpo", s->grpo.reward_program[0], has_rewards},
        {"grpo.kl", "grpo", s->grpo.kl > 0, has_rewards},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].is_set && !all[i].is_used && hy_trainer_leads(t))
            hy_say(t, HY_WARNING, "%s has no effect: the task is %s; it is for %s", all[i].name,
                   hy_choice_name("task", (int)s->task), all[i].tasks);
    }
}

static hy_status check_default(const char *key, double value) {
    HY_FAIL_IF(value < 0 && value != -1, HY_ERR_INPUT,
               "%s = %g; accepted: -1 (its default), or 0 and more", key, value);
    return HY_OK;
}

/* A reference with the adapters off is the model before training only if adapters are new and
 * nothing else is trained. */
static hy_status check_task(const hy_trainer *t) {
    const hy_params *params = &t->engine->model->params;
    const hy_settings *s = t->settings;
    hy_loss loss = hy_loss_from_settings(s);
    warn_unused(t);
    HY_FAIL_IF(hy_loss_is_of_pairs(loss.kind) && !(loss.beta > 0), HY_ERR_INPUT,
               "preference.beta = %g is too small", s->preference.beta);
    HY_TRY(check_default("preference.likelihood", s->preference.likelihood));
    HY_TRY(check_default("preference.simpo_margin", s->preference.simpo_margin));
    HY_TRY(check_default("grpo.clip_high", s->grpo.clip_high));
    bool is_rewarded = loss.kind == HY_LOSS_POLICY;
    const char *key = is_rewarded ? "grpo.kl above 0" : "preference.reference = inline",
               *other = is_rewarded ? "--kl 0" : "--reference once";
    if (is_rewarded ? loss.policy.kl == 0 : !hy_settings_reference_is_inline(s)) return HY_OK;
    HY_FAIL_IF(s->lora.adapter[0] || s->init_from[0], HY_ERR_INPUT,
               "%s computes with the adapters off, which is not the model before this training: it "
               "begins with %s; use %s",
               key, s->lora.adapter[0] ? s->lora.adapter : s->init_from, other);
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        HY_FAIL_IF(p->is_trainable && !hy_is_adapter(p->kind), HY_ERR_INPUT,
                   "%s computes with the adapters off, but this run trains %s: train only adapters "
                   "(--lora), or use %s",
                   key, p->name, other);
    }
    return HY_OK;
}

static hy_status open_data(hy_provider *p, hy_trainer *t) {
    const hy_settings *s = t->settings;
    bool is_resumed = s->save.resume[0] != 0, is_kept = is_resumed || strcmp(s->out, "none") != 0;
    (void)p;
    HY_TRY(check_task(t));
    describe_task(s, t->data.task, sizeof t->data.task);
    HY_TRY(hy_trainer_refuse(t, check_weights(t)));
    hy_status status = hy_engine_open_data(t->engine, false, &t->data.set);
    bool is_moved = strcmp(s->data, "builtin") != 0 && !strchr(s->data, ',') &&
                    !hy_path_exists(s->data) && is_resumed;
    if (status == HY_ERR_INPUT && is_moved) {
        return hy_fail_hint(status, "name the current path of the run's data (--data PATH)");
    }
    HY_TRY(status);
    const hy_dataset_facts *facts = hy_dataset_describe(t->data.set);
    HY_TRY(open_rows(t, facts));
    if (facts->stream_window > 0 && hy_trainer_leads(t)) {
        hy_say(t, HY_NOTE,
               "rows are streamed: training begins before all of them are read, and they are "
               "shuffled in windows of %s%s",
               hy_bytes_as_text(facts->stream_window).text,
               s->val_data[0] || s->input.val_fraction == 0
                   ? ""
                   : "; held-out rows come from the first window");
    }
    if (!is_kept || t->status.life == HY_LIFE_PLAN) return HY_OK;
    char path[HY_TEXT_MAX];
    HY_TRY(hy_data_path(s, path));
    /* The windows of a stream have hashes of their own: standard input may still be arriving. */
    bool is_arriving = facts->stream_window > 0 && hy_reads_input(path);
    if (!is_arriving) HY_TRY(hy_fingerprint_data(path, s->input.data_format, &t->data.hash));
    return hy_fingerprint_data(s->val_data, s->input.data_format, &t->data.val_hash);
}

static hy_status initialise(hy_provider *p, hy_trainer *t) {
    hy_model_files kind;
    char model[HY_HF_PATH_MAX];
    (void)p;
    HY_TRY(hy_settings_model_files(t->settings, &kind, model));
    if (kind != HY_FILES_NONE) return hy_engine_load_model(t->engine, kind, model);
    if (t->settings->lora.lora) {
        hy_say(t, HY_WARNING,
               "the base weights of the adapters are random, because %s is a shape without "
               "weights; load weights with --model FOLDER or --init-from RUN",
               t->settings->model);
    }
    t->engine->has_drawn_weights = true;
    return hy_engine_initialise_weights(t->engine);
}

/* ---- a step ---------------------------------------------------------------------------------- */

hy_status hy_trainer_start_loader(hy_trainer *t) {
    const hy_plan_choice *c = &t->engine->plan->choice;
    int64_t depth = hy_data_depth(&t->engine->request, c->accum);
    hy_loader *anew;
    if (!t->data.set || !t->provider->facts.reads_ahead) return HY_OK;
    hy_loader_share share = {.rank = t->engine->request.ranks.rank,
                             .count = hy_engine_ranks(t->engine),
                             .run = c->accum};
    HY_TRY(hy_loader_create(t->data.set, c->batch, (int32_t)depth, (uint64_t)t->progress->sequences,
                            &share, t->engine->device.backend, &anew));
    /* The waiting time of the new loader starts at 0. */
    if (t->data.loader) t->data.waited -= hy_loader_waited(t->data.loader);
    hy_loader_destroy(t->data.loader);
    t->data.loader = anew;
    return HY_OK;
}

static hy_status gradients(hy_provider *p, hy_trainer *t, const hy_step_request *request,
                           hy_step_report *report) {
    (void)p;
    /* After a paired test the loader is ahead of the run: it is reset to the run's position. */
    bool is_elsewhere = hy_loader_cursor(t->data.loader) != (uint64_t)t->progress->sequences;
    if (is_elsewhere) HY_TRY(hy_trainer_start_loader(t));
    report->tokens = report->counted = 0;
    for (int32_t i = 0; i < t->engine->plan->choice.accum; i++) {
        hy_batch batch;
        /* A pipe may be silent for long: a run that should stop does not wait for it. */
        while (!hy_loader_is_ready(t->data.loader, i, 0.2)) {
            bool stops = atomic_load(&t->status.stop_requested);
            if (stops && hy_dataset_awaits_input(t->data.set)) hy_dataset_stop(t->data.set);
        }
        HY_TRY(hy_loader_peek(t->data.loader, i, &batch));
        report->tokens += batch.targets_counted;
        report->counted += batch.counted;
    }
    HY_TRY(hy_ranks_begin_step(t, report)); /* of all ranks */
    HY_FAIL_IF(report->counted == 0, HY_ERR_INPUT,
               "the sequences of this step, from number %lld on, contain no target tokens",
               (long long)t->progress->sequences);
    report->computed = hy_step_sequences(t->engine) * t->settings->train.seq_len;
    int64_t divisor = t->settings->train.normalize ? report->counted : 0;
    return hy_engine_gradients(t->engine, t->data.loader, request->dtype, divisor,
                               (uint64_t)t->settings->seed);
}

static void warn(void *user, const char *text) { hy_say(user, HY_WARNING, "%s", text); }

static void end_step(hy_provider *p, hy_trainer *t, double loss_sum, hy_step_report *report) {
    (void)p;
    for (int32_t i = 0; i < t->engine->plan->choice.accum; i++) hy_loader_pop(t->data.loader);
    hy_dataset_refresh(t->data.set, warn, t);
    report->loss = loss_sum / (double)report->counted;
}

/* ---- losses ---------------------------------------------------------------------------------- */

static hy_status losses(hy_provider *p, hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    (void)p;
    return hy_engine_probe(t->engine, plan, probe);
}

static hy_status evaluate(hy_provider *p, hy_trainer *t, hy_probe *probe) {
    (void)p;
    return hy_engine_probe(t->engine, t->engine->work->eval[hy_plan_index(probe->dtype)], probe);
}

static int64_t batches(hy_provider *p, hy_trainer *t, hy_split split, uint64_t sequences) {
    const hy_work *w = t->engine->work;
    const hy_batch_plan *eval = w->eval[hy_plan_index(t->engine->plan->types.of[HY_FULL])];
    (void)p;
    return hy_probe_batches(t->engine, split == HY_TRAIN ? w->guard : eval, sequences);
}

static const hy_provider_ops ops = {.open = open_data,
                                    .initialise = initialise,
                                    .gradients = gradients,
                                    .end_step = end_step,
                                    .losses = losses,
                                    .evaluate = evaluate,
                                    .batches = batches};

hy_provider hy_model_provider = {.ops = &ops,
                                 .facts = {.has_passes = true,
                                           .has_model_files = true,
                                           .reads_ahead = true,
                                           .can_evaluate = true,
                                           .can_rewind = true}};
