/* build.c: from settings to a run that can take its first step. See build.h.
 *
 * Everything that can be wrong is checked before anything is written: shape, data, device,
 * memory, the run's folder, the checkpoint to resume. */
#include "trainer/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host_memory.h"
#include "plan/plan_value.h"
#include "record/row_scores.h"
#include "record/state_files.h"
#include "setup/setup.h"
#include "trainer/eval_schedule.h"
#include "trainer/fork.h"
#include "trainer/fork_rules.h"
#include "trainer/monitor.h"
#include "trainer/progress_json.h"
#include "trainer/provider_weights.h"
#include "trainer/ranks.h"
#include "trainer/recording.h"
#include "trainer/recovery.h"
#include "trainer/reference.h"
#include "trainer/resumed_adapters.h"
#include "trainer/saving.h"
#include "trainer/summary.h"

#define FIRST_LOSS_SCALE 0x1p16

/* Packing puts a small file of rows into few sequences, and a default step would take all of them
 * at once. Unless the user sets the size or the number of steps, an epoch has at least this many
 * steps, as long as there are enough sequences. */
#define EPOCH_STEPS 8

static hy_status fit_step_to_rows(hy_trainer *t) {
    hy_settings *s = t->settings;
    const hy_dataset_facts *data = hy_trainer_data(t);
    int64_t sequences = (int64_t)data->sequences[HY_TRAIN], ranks = hy_engine_ranks(t->engine);
    int64_t usual = s->train.batch_size * s->train.grad_accum_steps;
    int64_t fitting = sequences / EPOCH_STEPS / ranks * ranks, fitted = 0;
    bool is_open = s->train.micro_batch == HY_MICRO_OPEN && s->train.step_tokens == 0;
    bool is_new = s->train.steps == 0 && s->train.tokens == 0 && !t->resumed[0];
    if (s->task == HY_LOSS_POLICY) return HY_OK; /* a step has as many rows as the user says */
    if (fitting < ranks) fitting = ranks;
    if (is_new && data->rows > 0 && data->stream_window == 0 && fitting < usual)
        fitted = fitting * s->train.seq_len;
    if (t->resumed[0]) HY_TRY(hy_progress_read_fitted_step(t, &fitted)); /* 0 in older runs */
    t->schedule->fitted_step = fitted;
    if (!is_open || fitted == 0) return HY_OK;
    s->train.step_tokens = fitted;
    if (hy_trainer_leads(t) && is_new)
        hy_say(t, HY_NOTE,
               "steps of %lld tokens instead of %lld, because the training rows fill only %lld "
               "sequences (--step-tokens N sets another size%s)",
               (long long)s->train.step_tokens, (long long)(usual * s->train.seq_len),
               (long long)sequences,
               sequences >= EPOCH_STEPS * ranks ? ""
               : s->input.packing == HY_OFF     ? "; --epochs N gives more steps"
                                                : "; --packing off or --epochs N gives more steps");
    return HY_OK;
}

/* The length of the run in steps: from steps, tokens or epochs, in this order. */
static hy_status choose_length(hy_trainer *t) {
    const hy_settings *s = t->settings;
    HY_TRY(fit_step_to_rows(t));
    double steps = (double)s->train.steps;
    const hy_dataset_facts *data = hy_trainer_data(t);
    double sequences =
        data->stream_window ? data->epoch_sequences : (double)data->sequences[HY_TRAIN];
    double per_step = s->train.step_tokens
                          ? fmax((double)(s->train.step_tokens / s->train.seq_len), 1)
                          : (double)(s->train.batch_size * s->train.grad_accum_steps);
    if (s->task == HY_LOSS_POLICY) per_step = (double)s->grpo.prompts / (double)s->grpo.iterations;
    HY_FAIL_IF(
        (s->train.steps > 0) + (s->train.tokens > 0) + (s->train.epochs > 0) > 1, HY_ERR_INPUT,
        "the length of the run is given more than once (steps = %lld, tokens = %lld, epochs = "
        "%g); give one of them",
        (long long)s->train.steps, (long long)s->train.tokens, s->train.epochs);
    if (steps == 0 && s->train.tokens > 0) {
        steps = ceil((double)s->train.tokens / (per_step * (double)s->train.seq_len));
    }
    if (steps == 0) {
        double epochs = s->train.epochs > 0 ? s->train.epochs : 1;
        steps = ceil(epochs * sequences / per_step);
        bool is_long = per_step >= 2 * epochs * sequences && sequences > 0 && hy_trainer_leads(t);
        if (is_long && s->task == HY_LOSS_POLICY)
            hy_say(
                t, HY_WARNING,
                "a step answers %.0f rows, but %g epoch%s of this data %s only %.0f: the run is "
                "one step that repeats the data; --steps N makes more steps, --prompts N smaller "
                "ones",
                (double)s->grpo.prompts, epochs, epochs == 1 ? "" : "s",
                epochs == 1 ? "has" : "have", epochs * sequences);
        else if (is_long)
            hy_say(t, HY_WARNING,
                   "a step takes %.0f sequences, but %g epoch%s of this data %s only %.0f: the run "
                   "is one step that repeats the data; --step-tokens %lld makes the smallest steps",
                   per_step, epochs, epochs == 1 ? "" : "s", epochs == 1 ? "has" : "have",
                   epochs * sequences, (long long)s->train.seq_len * hy_engine_ranks(t->engine));
    }
    HY_FAIL_IF(steps < 1 || steps > 1e12, HY_ERR_INPUT,
               "the run would have %g steps; check steps, tokens and epochs", steps);
    t->schedule->steps_total = (int64_t)steps;
    return HY_OK;
}

static void set_schedule(hy_trainer *t) {
    const hy_settings *s = t->settings;
    hy_run_schedule *c = t->schedule;
    c->lr_schedule = hy_schedule_from_settings(s, c->steps_total);
    if (s->train.scale_lr) c->lr_schedule.lr *= (double)s->train.grad_accum_steps;
    c->rules = hy_rules_from_settings(s, c->lr_schedule.warmup);
    c->limits = hy_limits_from_settings(s);
    bool is_tuning = s->phases.regime == HY_REGIME_TUNING ||
                     (s->phases.regime == HY_REGIME_AUTO && hy_settings_bring_weights(s));
    c->regime = is_tuning ? HY_FINE_TUNING : HY_FROM_SCRATCH;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* A run with phases reports at once if it will not predict, or not yet. */
static void report_disabled(const hy_trainer *t) {
    const hy_plan *plan = t->engine->plan;
    if (t->settings->phases.was_ema) {
        hy_say(t, HY_WARNING,
               "the predictor ema was removed; using predictor = outer, and ignoring ema_beta and "
               "ema_gamma");
    }
    bool is_asked_for = t->settings->phases.predictor != HY_PREDICTOR_NONE;
    if (t->facts->no_prediction[0]) {
        hy_say(t, HY_NOTE, "%s; the run has only the phases Warmup and Full",
               t->facts->no_prediction);
    } else if (is_asked_for && plan->choice.prediction_awaits_test) {
        hy_say(t, HY_NOTE, "prediction is disabled and uses no memory: %s%s",
               t->schedule->regime == HY_FINE_TUNING
                   ? "in fine-tuning it needs a paired test that shows a benefit"
               : hy_settings_optimizer(t->settings) != hy_optimizer_kind_of(HY_ADAMW)
                   ? "with this optimizer it needs a paired test that shows a benefit"
                   : "confidence_threshold requires a paired test that shows a benefit",
               hy_fork_is_possible(t) ? ""
               : t->settings->phases.fork_budget == 0
                   ? ", and fork_budget is 0"
                   : ", and this run is too short for one (fork_budget)");
    }
}

/* Reports how much of the model Muon updates. Large matrices of a custom model are divided into
 * parts, and Muon cannot update a part. */
static void report_matrices(const hy_trainer *t, const hy_optimizer *o) {
    const hy_params *params = &t->engine->model->params;
    const hy_optimizer_kind *muon = hy_optimizer_kind_of(HY_MUON);
    int64_t matrices = 0, elements = 0, cut = 0;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        if (!p->is_trainable) continue;
        bool is_its_own = hy_optimizer_kind_for(o, p) == muon;
        matrices += is_its_own ? hy_param_pieces(p) : 0;
        elements += is_its_own ? p->count : 0;
        cut += p->is_hidden && p->part > 0 && p->part_at == 0;
    }
    hy_say(t, HY_NOTE,
           "muon updates %lld matrices with %.1f million parameters; adamw%s updates the rest",
           (long long)matrices, (double)elements * 1e-6,
           t->settings->optimizer.groups[0] ? " or the optimizer of a group" : "");
    if (cut > 0) {
        hy_say(t, HY_WARNING,
               "%lld matrices are too large for muon in a custom model; adamw updates them",
               (long long)cut);
    }
}

/* Warns if the optimizer does not fit the run, for example if Muon costs more than it saves. */
static void report_optimizer(const hy_trainer *t) {
    const hy_optimizer *o = &t->engine->plan->optimizer;
    const hy_plan_choice *c = &t->engine->plan->choice;
    bool is_muon = o->kind == hy_optimizer_kind_of(HY_MUON);
    /* 0: the cost of a pass is not known */
    int64_t tokens = hy_trainer_batch_size(t) * c->accum * t->settings->train.seq_len;
    double share = hy_optimizer_share(o, &t->engine->model->params, tokens);
    double most = hy_muon_share_most(&t->engine->model->params);
    bool is_new_tuning = t->schedule->regime == HY_FINE_TUNING && !t->resumed[0];
    const char *scratch_lr = o->kind->lr;
    if (is_new_tuning && scratch_lr && t->settings->optimizer.lr == strtod(scratch_lr, NULL)) {
        hy_say(t, HY_WARNING,
               "the learning rate is %s, the default of %s for training from scratch; fine-tuning "
               "needs a much lower one (2e-5 for adamw): set --lr",
               scratch_lr, o->kind->name);
    }
    if (is_muon) report_matrices(t, o);
    if (is_muon && is_new_tuning) {
        hy_say(t, HY_WARNING,
               "muon fine-tunes a model that was most likely trained with adamw, and then tends "
               "to lose what the model knows: --optimizer adamw is the safe choice");
    }
    if (share > most) {
        double times = ceil(2 * share / most); /* half of the largest share or less */
        long long all = (long long)tokens * hy_engine_ranks(t->engine);
        hy_say(t, HY_WARNING,
               "muon's matmuls take %.0f %% of the compute of forward and backward with %lld "
               "tokens per step, which is more than muon gains; they take %.0f %% with %lld tokens "
               "(--step-tokens), and --optimizer adamw avoids them",
               100 * share, all, 100 * share / times, (long long)times * all);
    }
}

/* A limit above what there is limits nothing. */
static void report_limit(const hy_trainer *t, const char *key, int64_t limit, uint64_t total,
                         const char *of) {
    if (total == 0 || limit <= 0 || (uint64_t)limit <= total) return;
    hy_say(t, HY_NOTE, "%s is %s, but %s has %s: it has no effect", key,
           hy_bytes_as_text((uint64_t)limit).text, of, hy_bytes_as_text(total).text);
}

static void report_limits(const hy_trainer *t) {
    const hy_device_facts *device = &t->engine->device.backend->facts;
    hy_host_memory host;
    hy_host_memory_read("/proc", "/sys", &host);
    if (t->settings->is_cpu_mem_own)
        report_limit(t, "cpu_mem", t->settings->memory.cpu_mem, host.total, "this machine");
    if (device->is_gpu)
        report_limit(t, "max_gpu_mem", t->settings->memory.max_gpu_mem, device->memory_total,
                     "this card");
}

static void report_plan(const hy_trainer *t) {
    const hy_plan *plan = t->engine->plan;
    const hy_plan_choice *c = &plan->choice;
    report_disabled(t);
    report_optimizer(t);
    report_limits(t);
    if (t->settings->train.step_tokens == 0 && c->batch != t->settings->train.batch_size) {
        hy_say(t, HY_NOTE,
               "micro-batches of %d sequence%s, %d of them in a step: the same tokens per step",
               c->batch, c->batch == 1 ? "" : "s", c->accum);
    }
    bool is_offloaded = plan->work.train.host > 0;
    if (!is_offloaded && !hy_choice_streams(c)) return; /* --plan has the reasons */
    hy_text text = {0};
    hy_plan_describe(&t->engine->request, plan, &text);
    hy_say(t, HY_NOTE, "plan: %s (--plan says why)", hy_text_string(&text));
    hy_text_free(&text);
}

/* Adds to the error the settings with which the run would fit; each of them was planned. */
static void add_changes(const hy_trainer *t, hy_status status) {
    hy_text text = {0};
    for (int32_t i = 0; i < t->facts->change_count; i++) {
        hy_text_addf(&text, "%s%s", i ? ", or " : "would fit: ", t->facts->changes[i]);
    }
    if (text.size) (void)hy_fail_hint(status, "%s", hy_text_string(&text));
    hy_text_free(&text);
}

/* Fills in the rest of the plan request; later only resize.c changes it. Rank 0 times the
 * fp8 matmuls for all ranks. */
static hy_status complete_request(hy_trainer *t) {
    hy_engine *e = t->engine;
    e->request.model = e->model;
    e->request.backend = e->device.backend;
    e->request.custom = e->custom ? &e->custom->types : NULL;
    bool has_pairs = e->model->loss.kind != HY_LOSS_NEXT_TOKEN;
    e->request.has_doc_starts =
        has_pairs || (t->data.set && hy_dataset_describe(t->data.set)->has_doc_starts);
    HY_TRY(hy_ranks_count_sharers(t));
    if (t->ranks.planned.count > 0) hy_ranks_plan_sharers(t);
    if (!t->resumed[0]) {
        e->request.fixed.prediction_awaits_test =
            t->schedule->rules.has_predictor && hy_fork_must_ask(t);
    }
    if (hy_trainer_leads(t)) HY_TRY(hy_plan_request_complete(&e->request));
    HY_TRY(hy_ranks_share_fp8(t));
    return hy_trainer_leads(t) ? HY_OK : hy_plan_request_complete(&e->request);
}

/* Until a caller's passes are measured, the plan uses as little of the device as possible. A
 * measurement from a checkpoint may be that of a larger device. */
static hy_status plan_first(hy_trainer *t, const hy_plan_request *r, hy_plan *plan) {
    hy_custom_types *custom = t->engine->custom ? &t->engine->custom->types : NULL;
    HY_TRY(hy_plan_make(r, plan, t->facts));
    if (custom && custom->is_caller_stored && !plan->fits) {
        custom->is_caller_stored = false;
        custom->caller_bytes = -1;
        HY_TRY(hy_plan_make(r, plan, t->facts));
    }
    return custom && custom->caller_bytes < 0 ? hy_plan_make_lean(r, plan, t->facts) : HY_OK;
}

static hy_status make_plan(hy_trainer *t) {
    hy_engine *e = t->engine;
    hy_plan plan;
    HY_TRY(complete_request(t));
    hy_plan_request request = e->request;
    request.times_ops = request.ranks.count <= 1;
    HY_TRY(hy_ranks_agree(t, plan_first(t, &request, &plan)));
    HY_TRY(hy_ranks_choose_plan(t, &plan));
    *e->plan = plan;
    const char *no_fp8 = hy_fp8_why_none(&e->request, &e->plan->types);
    if (no_fp8) hy_say(t, HY_WARNING, "%s", no_fp8);
    t->schedule->rules.has_predictor = hy_plan_predicts(e->plan);
    HY_TRY(hy_engine_lay_out(e));
    hy_trainer_complete_facts(t);
    hy_plan_columns(e->state->rows, e->plan, &e->state->ledger);
    bool is_plan = t->status.life == HY_LIFE_PLAN;
    hy_status status = hy_budget_check(&e->request, e->plan);
    if (status != HY_OK && !is_plan) add_changes(t, status);
    if (status == HY_OK) status = hy_trainer_check_disk(t);
    t->facts->fits = status == HY_OK;
    if (!is_plan) return hy_ranks_agree(t, status);
    if (status != HY_OK) hy_error_save(&t->problem, status);
    return HY_OK;
}

/* ---- the beginning --------------------------------------------------------------------------- */

static bool uses_half(const hy_trainer *t) {
    const hy_types *types = &t->engine->plan->types;
    return hy_engine_scales(t->engine, types->has_low ? types->low : HY_F32);
}

static void begin_progress(hy_trainer *t) {
    *t->progress = (hy_progress){.machine = hy_phase_begin(&t->schedule->rules),
                                 .confidence = hy_trainer_prior(t),
                                 .jumps.residual_cosine = NAN,
                                 .jumps.residual_length = NAN,
                                 .val_loss = NAN,
                                 .row_scores = hy_row_scores_none(),
                                 .best = HY_NO_BEST};
    t->engine->progress =
        (hy_engine_progress){.loss_scale.scale = uses_half(t) ? FIRST_LOSS_SCALE : 1};
}

/* Finds the checkpoint that `name` refers to. Rank 0 decides, because the newest one may differ
 * between ranks. */
static hy_status find_checkpoint(hy_trainer *t, const char *name, char path[HY_PATH_MAX]) {
    path[0] = 0;
    if (hy_trainer_leads(t)) HY_TRY(hy_checkpoint_find(&t->observer, name, path));
    return hy_ranks_share(t, path, HY_PATH_MAX);
}

/* The checkpoint of init_from. */
static hy_status find_initial(hy_trainer *t, char path[HY_PATH_MAX]) {
    bool lacks_base = false;
    HY_TRY(find_checkpoint(t, t->settings->init_from, path));
    memcpy(t->initial, path, sizeof t->initial);
    if (t->provider->facts.has_model_files) HY_TRY(hy_checkpoint_lacks_base(path, &lacks_base));
    if (!lacks_base) return HY_OK;
    return hy_trainer_advise_new_run(
        t, path,
        hy_fail(HY_ERR_INPUT, "%s contains only adapters, without their base model", path));
}

static hy_status new_model(hy_trainer *t) {
    char checkpoint[HY_PATH_MAX];
    hy_provider *p = t->provider;
    bool is_new = !t->settings->init_from[0];
    if (is_new && !p->ops->initialise) return hy_custom_take_weights(t->engine);
    if (is_new) return p->ops->initialise(p, t);
    HY_TRY(find_initial(t, checkpoint));
    HY_TRY(hy_engine_initialise_adapters(t->engine));
    HY_TRY(hy_checkpoint_read_weights(t->engine, checkpoint));
    hy_say(t, HY_NOTE, "the run starts with the weights of %s", checkpoint);
    return HY_OK;
}

static hy_status find_resumed(hy_trainer *t) {
    const char *from = t->settings->save.resume;
    if (!from[0]) return HY_OK;
    bool is_auto = strcmp(from, "auto") == 0;
    return find_checkpoint(t, is_auto ? t->record->out : from, t->resumed);
}

/* Reads the resumed checkpoint before any plan is made: it determines the split of steps and the
 * algorithms. */
static hy_status read_resumed_choices(hy_trainer *t) {
    if (!t->resumed[0]) return HY_OK;
    HY_TRY(hy_progress_read_choices(t));
    return hy_checkpoint_read_algorithms(t->engine, t->resumed);
}

static hy_status read_checkpoint(hy_trainer *t) {
    HY_TRY(hy_progress_read(t)); /* first: it says which tensors exist (has_snapshot) */
    if (t->engine->base_is_named) {
        hy_model_files kind;
        char base[HY_HF_PATH_MAX];
        HY_TRY(hy_origin_find_weights(t->settings, &kind, base));
        HY_TRY(hy_engine_load_model(t->engine, kind, base));
    }
    HY_TRY(hy_checkpoint_read_rows(t->engine, t->resumed));
    hy_provider *p = t->provider;
    return p->ops->load ? p->ops->load(p, t->resumed) : HY_OK;
}

static void say_resumed(const hy_trainer *t) {
    long long done = (long long)t->progress->step, budget = (long long)t->schedule->steps_total;
    double spent = t->progress->spent;
    const char *rest = spent < (double)budget ? "" : "; nothing is left to train";
    if (spent > (double)budget && done > budget)
        hy_say(t, HY_NOTE, "resumed %s: %lld steps done, more than the %lld of this run%s",
               t->resumed, done, budget, rest);
    else
        hy_say(t, HY_NOTE, "resumed %s: %lld of %lld steps done%s", t->resumed, done,
               (long long)hy_steps_at_end(done, spent, budget), rest);
}

static hy_status begin_or_resume(hy_trainer *t) {
    hy_engine *e = t->engine;
    begin_progress(t);
    t->status.saved_step = -1;
    t->status.best_step = t->resumed[0] ? -2 : -1;
    if (!t->resumed[0]) {
        const char *adapter = t->settings->lora.adapter;
        HY_TRY(new_model(t));
        if (adapter[0]) HY_TRY(hy_origin_check_adapter(&t->observer, t->settings, adapter));
        if (adapter[0]) HY_TRY(hy_engine_load_adapter(e, adapter));
        for (int i = 0; i < e->state->rows->optim_count; i++)
            HY_TRY(hy_row_zero(e->state, HY_ROW_OPTIM + i));
        return e->device.backend->stream_sync(e->device.compute);
    }
    HY_TRY(read_checkpoint(t));
    /* The checkpoint may come from a device with another 16-bit type: only fp16 scales the loss. */
    hy_loss_scale *scale = &e->progress.loss_scale;
    bool was_without = scale->scale == 1 && scale->good_steps == 0 && e->progress.skipped == 0;
    if (!uses_half(t)) *scale = (hy_loss_scale){.scale = 1};
    if (uses_half(t) && was_without) scale->scale = FIRST_LOSS_SCALE;
    say_resumed(t);
    return HY_OK;
}

static hy_status check_early_stop(const hy_trainer *t) {
    long long patience = (long long)t->settings->eval.early_stop;
    if (patience == 0 || hy_trainer_eval_every(t) > 0) return HY_OK;
    HY_FAIL_IF(
        t->settings->eval.eval_every == 0, HY_ERR_INPUT,
        "early_stop is %lld, but eval_every is 0, so the run has no validation before its end: "
        "set eval_every",
        patience);
    hy_say(t, HY_WARNING,
           "early_stop has no effect: without eval_every, this run has no validation before its "
           "end; add --eval-every N");
    return HY_OK;
}

/* Rank 0 chooses the run's folder for all ranks. */
static hy_status choose_folder(hy_trainer *t) {
    if (hy_trainer_leads(t)) HY_TRY(hy_record_choose_folder(t->record, t->settings));
    HY_TRY(hy_ranks_agree(t, HY_OK));
    snprintf(t->folder, sizeof t->folder, "%s", t->record->out);
    return hy_ranks_share(t, t->folder, sizeof t->folder);
}

hy_status hy_trainer_build(hy_trainer *t) {
    hy_engine *e = t->engine;
    bool is_plan = t->status.life == HY_LIFE_PLAN;
    e->observer = &t->observer;
    e->retries.user = t;
    e->retries.on_retry = hy_trainer_report_retry;
    e->request.settings = t->settings;
    e->request.is_plan = is_plan;
    e->custom = t->provider->memory;
    e->request.ranks.rank = t->team ? t->team->who.rank : 0;
    e->request.ranks.count = t->team ? t->team->who.count : t->ranks.planned.count;
    e->team = t->team;
    if (!is_plan && hy_trainer_leads(t) && t->settings->ranks.link != HY_WIRE_AUTO) {
        hy_say(t, HY_NOTE,
               "link = %s is only for plans (--plan): a run uses the link of this machine",
               hy_choice_name("link", t->settings->ranks.link));
    }
    HY_TRY(hy_engine_make_model(e));
    if (!is_plan) HY_TRY(choose_folder(t));
    if (!is_plan) HY_TRY(find_resumed(t));                   /* a resumed run keeps its steps */
    if (t->resumed[0]) HY_TRY(hy_trainer_check_adapters(t)); /* before data, which takes long */
    if (t->provider->ops->open) HY_TRY(t->provider->ops->open(t->provider, t));
    HY_TRY(choose_length(t));
    set_schedule(t);
    HY_TRY(hy_engine_open_device(e));
    if (!is_plan) HY_TRY(read_resumed_choices(t));
    HY_TRY(make_plan(t));
    if (is_plan) {
        char unused[HY_PATH_MAX];
        begin_progress(t);
        HY_TRY(hy_trainer_refuse(t, check_early_stop(t)));
        bool has_initial = t->settings->init_from[0] != 0;
        return has_initial ? hy_trainer_refuse(t, find_initial(t, unused)) : HY_OK;
    }
    HY_TRY(hy_ranks_agree(t, hy_engine_prepare_first(e)));
    HY_TRY(hy_engine_share_algorithms(e));
    HY_TRY(hy_ranks_agree(t, hy_engine_take(e)));
    HY_TRY(hy_exchange_connect(&e->collectives->net));
    /* Before ops were prepared, their workspace was an upper bound. */
    hy_plan_columns(e->state->rows, e->plan, &e->state->ledger);
    hy_plan_fill_facts(&e->request, e->plan, t->facts);
    if (t->first_batch == 0) t->first_batch = e->plan->choice.batch;
    HY_TRY(hy_monitor_open(t));
    report_plan(t);
    hy_engine_tell_warning(e); /* about what was prepared */
    HY_TRY(check_early_stop(t));
    hy_trainer_say_row_cost(t);
    HY_TRY(hy_custom_place(e));
    HY_TRY(begin_or_resume(t));
    HY_TRY(hy_trainer_hand_back(t, HY_OK));
    HY_TRY(hy_reference_open(t));
    HY_TRY(hy_trainer_start_loader(t));
    HY_TRY(hy_trainer_take_reserve(t));
    if (t->team && hy_trainer_leads(t))
        HY_TRY(hy_rank_figures_init(&t->ranks.figures, t->team->who.count, 0));
    HY_TRY(hy_trainer_open_record(t, false));
    return hy_fork_begin(t);
}

void hy_trainer_tear_down(hy_trainer *t) {
    hy_record_release(t->record);
    hy_rank_figures_fini(&t->ranks.figures);
    hy_monitor_close(t);
    hy_trainer_give_reserve(t);
    if (t->engine->device.backend) (void)hy_engine_sync(t->engine); /* a failure was reported */
    if (t->provider && t->provider->ops->close) t->provider->ops->close(t->provider);
    hy_dataset_stop(t->data.set);
    hy_loader_destroy(t->data.loader); /* only now: the device may have been reading its batches */
    hy_fork_release(t);
    hy_engine_close(t->engine);
    hy_dataset_close(t->data.set);
    hy_dataset_close(t->data.rows);
    hy_reference_release(t);
}
