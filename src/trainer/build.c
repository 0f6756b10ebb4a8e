/* build.c: from settings to a run that can take its first step. See trainer.h.
 *
 * Everything that can be wrong is checked before anything is written: shape, data, device,
 * memory, the run's folder, the checkpoint to resume. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "data/fingerprint.h"
#include "plan/plan_value.h"
#include "record/state_files.h"
#include "setup/setup.h"
#include "trainer/adapt.h"
#include "trainer/advance.h"
#include "trainer/evaluate.h"
#include "trainer/make.h"
#include "trainer/monitor.h"
#include "trainer/predict.h"
#include "trainer/ranks.h"
#include "trainer/saving.h"

#define FIRST_LOSS_SCALE 0x1p16

const hy_dataset_facts *hy_trainer_data(const hy_trainer *t) {
    return t->data.set ? hy_dataset_describe(t->data.set) : &t->provider->facts.data;
}

static int64_t sequences_per_step(const hy_settings *s) {
    if (s->train.step_tokens == 0) return s->train.batch_size * s->train.grad_accum_steps;
    int64_t sequences = s->train.step_tokens / s->train.seq_len;
    return sequences < 1 ? 1 : sequences;
}

/* How long the run is: steps, or tokens, or epochs, in this order. */
static hy_status choose_length(hy_trainer *t) {
    const hy_settings *s = t->settings;
    double steps = (double)s->train.steps;
    double sequences = (double)hy_trainer_data(t)->sequences[HY_TRAIN];
    double per_step = (double)sequences_per_step(s);
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
    }
    if (steps < 1 || steps > 1e12) {
        return hy_fail(HY_ERR_INPUT, "the run would have %g steps; check steps, tokens and epochs",
                       steps);
    }
    t->loop->steps_total = (int64_t)steps;
    return HY_OK;
}

static hy_status set_course(hy_trainer *t) {
    const hy_settings *s = t->settings;
    hy_loop_state *c = t->loop;
    c->schedule = hy_schedule_from_settings(s, c->steps_total);
    if (s->train.scale_lr) c->schedule.lr *= (double)s->train.grad_accum_steps;
    c->rules = hy_rules_from_settings(s, c->schedule.warmup);
    c->limits = hy_limits_from_settings(s);
    bool is_tuning = s->phases.regime == HY_REGIME_TUNING ||
                     (s->phases.regime == HY_REGIME_AUTO && hy_settings_bring_weights(s));
    c->regime = is_tuning ? HY_FINE_TUNING : HY_FROM_SCRATCH;
    return HY_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

hy_confidence hy_trainer_prior(const hy_trainer *t) {
    return hy_confidence_prior(t->loop->regime, hy_settings_optimizer(t->settings)->prior);
}

/* A run with phases reports at once if it will not predict, or not yet. */
static void tell_disabled(const hy_trainer *t) {
    const hy_plan *plan = t->engine->plan;
    if (t->settings->phases.was_ema) {
        hy_say(t, HY_WARNING,
               "the predictor ema was removed; using predictor = outer, and ignoring ema_beta and "
               "ema_gamma");
    }
    bool is_asked_for = t->settings->phases.predictor != HY_PREDICTOR_NONE;
    if (t->facts->no_prediction[0]) {
        hy_say(t, HY_NOTE, "%s; Warmup and Full only", t->facts->no_prediction);
    } else if (is_asked_for && plan->choice.prediction_is_disabled) {
        bool is_possible = hy_fork_is_possible(t);
        hy_say(t, HY_NOTE, "prediction is disabled and uses no memory: %s%s",
               t->loop->regime == HY_FINE_TUNING
                   ? "in fine-tuning it needs a paired test that shows a benefit"
               : hy_settings_optimizer(t->settings) != hy_optimizer_kind_of(HY_ADAMW)
                   ? "with this optimizer it needs a paired test that shows a benefit"
                   : "confidence_threshold requires a paired test that shows a benefit",
               is_possible ? "" : ", and this run is too short for one (fork_budget)");
    }
}

/* How much of a model Muon updates; large matrices of a custom model are divided, and a part is
 * not a matrix. */
static void tell_matrices(const hy_trainer *t, const hy_optimizer *o) {
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
           "muon updates %lld matrices with %.1f million parameters; adamw updates the rest",
           (long long)matrices, (double)elements * 1e-6);
    if (cut > 0) {
        hy_say(t, HY_WARNING,
               "%lld matrices are too large for muon in a custom model; adamw updates them",
               (long long)cut);
    }
}

/* A rate that is meant for training from scratch. */
static void tell_tuning_rate(const hy_trainer *t, const hy_optimizer *o) {
    const char *own = o->kind->lr;
    bool is_own = own && t->settings->optimizer.lr == strtod(own, NULL);
    if (!is_own || t->loop->regime != HY_FINE_TUNING || t->resumed[0]) return;
    hy_say(t, HY_WARNING,
           "the learning rate is %s, the default of %s for training from scratch; fine-tuning "
           "needs a much lower one (2e-5 for adamw): set --lr",
           own, o->kind->name);
}

/* Warns if the optimizer does not fit the run, for example if Muon costs more than it saves. */
static void tell_optimizer(const hy_trainer *t) {
    const hy_optimizer *o = &t->engine->plan->optimizer;
    const hy_plan_choice *c = &t->engine->plan->choice;
    bool is_muon = o->kind == hy_optimizer_kind_of(HY_MUON);
    /* 0: what passes cost is not known */
    int64_t tokens = hy_trainer_batch_size(t) * c->accum * t->settings->train.seq_len;
    double share = hy_optimizer_share(o, &t->engine->model->params, tokens);
    double most = hy_muon_share_most(&t->engine->model->params);
    tell_tuning_rate(t, o);
    if (is_muon) tell_matrices(t, o);
    if (is_muon && t->loop->regime == HY_FINE_TUNING && !t->resumed[0]) {
        hy_say(t, HY_WARNING,
               "muon trains all parameters of a pretrained model, which was most likely trained "
               "with adamw; muon then tends to lose what the model knows: --optimizer adamw is the "
               "safe choice");
    }
    if (share > most) {
        hy_say(t, HY_WARNING,
               "muon's matmuls take %.0f %% of the compute of forward and backward with %lld "
               "tokens per step, which is more than muon gains; they take %.0f %% with %lld tokens "
               "(--step-tokens), and --optimizer adamw avoids them",
               100 * share, (long long)tokens, 50 * most,
               (long long)ceil(2 * share * (double)tokens / most));
    }
}

static void tell_plan(const hy_trainer *t) {
    const hy_plan *plan = t->engine->plan;
    const hy_plan_choice *c = &plan->choice;
    tell_disabled(t);
    tell_optimizer(t);
    if (t->settings->train.step_tokens == 0 && c->batch != t->settings->train.batch_size) {
        hy_say(t, HY_NOTE, "micro-batches of %d sequence%s, %d in a step: the same tokens per step",
               c->batch, c->batch == 1 ? "" : "s", c->accum);
    }
    bool is_offloaded = plan->work.train.host > 0;
    if (!is_offloaded && !hy_choice_streams(c)) return; /* --plan has the reasons */
    hy_text text = {0};
    hy_plan_describe(&t->engine->request, plan, &text);
    hy_say(t, HY_NOTE, "plan: %s (--plan says why)", hy_text_string(&text));
    hy_text_free(&text);
}

/* Data buffers are freed before the run allocates its memory: rows are encoded before. */
static void tell_data(hy_trainer *t) {
    uint64_t disk = t->data.set ? hy_dataset_describe(t->data.set)->disk_bytes : 0;
    t->facts->data_buffer_bytes = disk ? (uint64_t)t->settings->input.buffer_size : 0;
    t->facts->data_disk_bytes = disk;
}

/* Adds changes that would fit; each was planned. */
static hy_status refuse(const hy_trainer *t, hy_status status) {
    hy_text text = {0};
    if (t->facts->change_count == 0) return status;
    for (int32_t i = 0; i < t->facts->change_count; i++) {
        hy_text_addf(&text, "%s%s", i ? ", or " : "would fit: ", t->facts->changes[i]);
    }
    (void)hy_fail_hint(status, "%s", hy_text_string(&text));
    hy_text_free(&text);
    return status;
}

void hy_trainer_complete_facts(hy_trainer *t) {
    t->facts->host_fork_bytes = hy_fork_plan_bytes(t);
    tell_data(t);
}

static void set_ranks(hy_trainer *t) {
    hy_plan_request *r = &t->engine->request;
    r->ranks.rank = t->team ? t->team->who.rank : 0;
    r->ranks.count = t->team                      ? t->team->who.count
                     : t->ranks.planned.count > 1 ? t->ranks.planned.count
                                                  : 0;
    t->engine->team = t->team;
}

/* From here on the request is only read. Rank 0 has timed the fp8 matmuls for all ranks. */
static hy_status complete_request(hy_trainer *t) {
    hy_engine *e = t->engine;
    e->request.model = e->model;
    e->request.backend = e->device.backend;
    e->request.custom = e->custom ? &e->custom->types : NULL;
    e->request.has_doc_starts = t->data.set && hy_dataset_describe(t->data.set)->has_doc_starts;
    HY_TRY(hy_ranks_count_sharers(t));
    if (t->ranks.planned.count > 1) hy_ranks_plan_sharers(t);
    if (!t->resumed[0]) {
        e->request.fixed.prediction_is_disabled =
            t->loop->rules.has_predictor && hy_fork_must_ask(t);
    }
    if (hy_trainer_leads(t)) HY_TRY(hy_plan_request_complete(&e->request));
    HY_TRY(hy_ranks_share_fp8(t));
    return hy_trainer_leads(t) ? HY_OK : hy_plan_request_complete(&e->request);
}

static hy_status make_plan(hy_trainer *t) {
    hy_engine *e = t->engine;
    hy_plan plan;
    HY_TRY(complete_request(t));
    HY_TRY(hy_ranks_agree(t, hy_plan_make(&e->request, &plan, t->facts)));
    HY_TRY(hy_ranks_choose_plan(t, &plan));
    *e->plan = plan;
    const char *no_fp8 = hy_fp8_why_none(&e->request, &e->plan->types);
    if (no_fp8) hy_say_to(&t->observer, HY_WARNING, "%s", no_fp8);
    t->loop->rules.has_predictor = hy_plan_predicts(e->plan);
    HY_TRY(hy_engine_lay_out(e));
    hy_trainer_complete_facts(t);
    hy_plan_columns(e->state->rows, e->plan, &e->state->ledger);
    hy_status status = hy_budget_check(&e->request, e->plan);
    t->facts->fits = status == HY_OK;
    if (t->status.life != HY_LIFE_PLAN) {
        return hy_ranks_agree(t, status == HY_OK ? hy_trainer_check_disk(t) : refuse(t, status));
    }
    if (status == HY_OK) {
        status = hy_trainer_check_disk(t);
        t->facts->fits = status == HY_OK;
    }
    if (status != HY_OK) hy_error_save(&t->problem, status);
    return HY_OK;
}

/* ---- the beginning --------------------------------------------------------------------------- */

static bool uses_half(const hy_trainer *t) {
    const hy_types *types = &t->engine->plan->types;
    return hy_engine_scales(t->engine, types->has_low ? types->low : HY_F32);
}

static void begin_progress(hy_trainer *t) {
    *t->progress = (hy_progress){.machine = hy_phase_begin(&t->loop->rules),
                                 .confidence = hy_trainer_prior(t),
                                 .jumps.residual_cosine = NAN,
                                 .jumps.residual_length = NAN,
                                 .val_loss = NAN,
                                 .best = HY_NO_BEST};
    t->engine->progress =
        (hy_engine_progress){.loss_scale.scale = uses_half(t) ? FIRST_LOSS_SCALE : 1};
}

/* The checkpoint that a name means: rank 0 decides, because ranks may see different newest ones. */
static hy_status find_checkpoint(hy_trainer *t, const char *name, char path[HY_PATH_MAX]) {
    path[0] = 0;
    if (hy_trainer_leads(t)) HY_TRY(hy_checkpoint_find(&t->observer, name, path));
    return hy_ranks_share(t, path, HY_PATH_MAX);
}

static hy_status new_model(hy_trainer *t) {
    char checkpoint[HY_PATH_MAX];
    hy_provider *p = t->provider;
    bool is_new = !t->settings->init_from[0];
    if (is_new && !p->ops->initialise) return hy_custom_take_weights(t->engine);
    if (is_new) return p->ops->initialise(p, t);
    HY_TRY(find_checkpoint(t, t->settings->init_from, checkpoint));
    HY_TRY(hy_engine_initialise_adapters(t->engine));
    bool lacks_base = false;
    if (p->facts.has_model_files) HY_TRY(hy_checkpoint_lacks_base(checkpoint, &lacks_base));
    HY_FAIL_IF(
        lacks_base, HY_ERR_INPUT,
        "%s contains only adapters; start from their base model (--model) and add them (--adapter)",
        checkpoint);
    HY_TRY(hy_checkpoint_read_weights(t->engine, checkpoint));
    hy_say(t, HY_NOTE, "the run starts with the weights of %s", checkpoint);
    return HY_OK;
}

static hy_status new_weights(hy_trainer *t) {
    HY_TRY(new_model(t));
    const char *adapter = t->settings->lora.adapter;
    if (!adapter[0]) return HY_OK;
    HY_TRY(hy_origin_check_adapter(t->settings, adapter));
    return hy_engine_load_adapter(t->engine, adapter);
}

/* Opens the resumed checkpoint before any plan is made: it determines the split of steps and the
 * algorithms. */
static hy_status find_resumed(hy_trainer *t) {
    const char *from = t->settings->save.resume;
    if (!from[0]) return HY_OK;
    char file[HY_PATH_MAX];
    bool is_auto = strcmp(from, "auto") == 0;
    HY_TRY(find_checkpoint(t, is_auto ? t->record->out : from, t->resumed));
    HY_TRY(hy_path_join(file, sizeof file, t->resumed, "trainer.json"));
    HY_TRY(hy_progress_read_choices(t, file));
    HY_TRY(hy_trainer_check_adapters(t));
    return hy_checkpoint_read_algorithms(t->engine, t->resumed);
}

/* A checkpoint may come from a device with another 16-bit type: only fp16 scales the loss. */
static void fit_loss_scale(hy_trainer *t) {
    hy_loss_scale *s = &t->engine->progress.loss_scale;
    bool was_without = s->scale == 1 && s->good_steps == 0 && t->engine->progress.skipped == 0;
    if (!uses_half(t)) {
        *s = (hy_loss_scale){.scale = 1};
    } else if (was_without) {
        s->scale = FIRST_LOSS_SCALE;
    }
}

static hy_status read_checkpoint(hy_trainer *t) {
    char progress[HY_PATH_MAX];
    HY_TRY(hy_path_join(progress, sizeof progress, t->resumed, "trainer.json"));
    HY_TRY(hy_progress_read(t, progress)); /* first: it says which tensors there are */
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

static hy_status begin_or_resume(hy_trainer *t) {
    hy_engine *e = t->engine;
    begin_progress(t);
    t->status.saved_step = -1;
    t->status.best_step = t->resumed[0] ? -2 : -1;
    if (!t->resumed[0]) {
        HY_TRY(new_weights(t));
        for (int i = 0; i < e->state->rows->optim_count; i++)
            HY_TRY(hy_row_zero(e->state, HY_ROW_OPTIM + i));
        return e->device.backend->stream_sync(e->device.compute);
    }
    HY_TRY(read_checkpoint(t));
    fit_loss_scale(t);
    hy_say(t, HY_NOTE, "resumed %s: %lld of %lld steps done", t->resumed,
           (long long)t->progress->step, (long long)t->loop->steps_total);
    return HY_OK;
}

static hy_status check_early_stop(const hy_trainer *t) {
    long long patience = (long long)t->settings->eval.early_stop;
    if (patience == 0 || hy_trainer_eval_every(t) > 0) return HY_OK;
    HY_FAIL_IF(
        t->settings->eval.eval_every == 0, HY_ERR_INPUT,
        "early_stop is %lld, but eval_every is 0, so the run has no validations: set eval_every",
        patience);
    hy_say(t, HY_WARNING,
           "early_stop has no effect: this short run has no validation before its end; add "
           "--eval-every N");
    return HY_OK;
}

hy_status hy_trainer_build(hy_trainer *t) {
    hy_engine *e = t->engine;
    bool is_plan = t->status.life == HY_LIFE_PLAN;
    e->settings = t->settings;
    e->observer = &t->observer;
    e->retries.user = t;
    e->retries.on_retry = hy_trainer_tell_retry;
    e->request.settings = t->settings;
    e->request.is_plan = is_plan;
    e->custom = t->provider->memory;
    set_ranks(t);
    if (!is_plan && hy_trainer_leads(t) && t->settings->ranks.link != HY_WIRE_AUTO) {
        hy_say(t, HY_NOTE,
               "link = %s is only for plans (--plan): a run uses the link of this machine",
               hy_choice_name("link", t->settings->ranks.link));
    }
    HY_TRY(hy_engine_make_model(e));
    if (t->provider->ops->open) HY_TRY(t->provider->ops->open(t->provider, t));
    HY_TRY(choose_length(t));
    HY_TRY(set_course(t));
    if (!is_plan && hy_trainer_leads(t)) {
        HY_TRY(hy_record_choose_folder(t->record, t->settings));
    }
    if (!is_plan) HY_TRY(hy_ranks_share_folder(t));
    HY_TRY(hy_engine_open_device(e));
    if (!is_plan) HY_TRY(find_resumed(t));
    HY_TRY(make_plan(t));
    if (is_plan) {
        begin_progress(t);
        return HY_OK;
    }
    HY_TRY(hy_ranks_agree(t, hy_engine_prepare_first(e)));
    HY_TRY(hy_engine_share_algorithms(e));
    HY_TRY(hy_ranks_agree(t, hy_engine_take(e)));
    HY_TRY(hy_exchange_connect(&e->collectives->net));
    /* The workspace that ops requested before they were prepared was the maximum. */
    hy_plan_columns(e->state->rows, e->plan, &e->state->ledger);
    hy_plan_tell(&e->request, e->plan, t->facts);
    if (t->first_batch == 0) t->first_batch = e->plan->choice.batch;
    HY_TRY(hy_monitor_open(t));
    tell_plan(t);
    hy_engine_tell_warning(e); /* of what was prepared */
    HY_TRY(check_early_stop(t));
    HY_TRY(hy_custom_place(e));
    HY_TRY(begin_or_resume(t));
    HY_TRY(hy_trainer_hand_back(t, HY_OK));
    HY_TRY(hy_trainer_start_loader(t));
    HY_TRY(hy_trainer_take_reserve(t));
    HY_TRY(hy_ranks_begin_figures(t));
    HY_TRY(hy_trainer_open_record(t));
    return hy_fork_begin(t);
}

hy_status hy_trainer_start_loader(hy_trainer *t) {
    const hy_plan_choice *c = &t->engine->plan->choice;
    int64_t depth = hy_data_depth(&t->engine->request, c->accum);
    hy_loader *anew;
    if (!t->data.set) return HY_OK; /* the provider reads its own */
    hy_loader_share share = {.rank = t->engine->request.ranks.rank,
                             .count = hy_engine_ranks(t->engine),
                             .run = c->accum};
    HY_TRY(hy_loader_create(t->data.set, c->batch, (int32_t)depth, (uint64_t)t->progress->sequences,
                            &share, t->engine->device.backend, &anew));
    if (t->data.loader) t->data.waited -= hy_loader_waited(t->data.loader); /* of this step */
    hy_loader_destroy(t->data.loader);
    t->data.loader = anew;
    return HY_OK;
}

void hy_trainer_tear_down(hy_trainer *t) {
    hy_record_release(t->record);
    hy_rank_figures_fini(&t->ranks.figures);
    hy_monitor_close(t);
    hy_trainer_give_reserve(t);
    if (t->engine->device.backend) (void)hy_engine_sync(t->engine); /* a failure was reported */
    hy_loader_destroy(t->data.loader); /* its batches may have been on their way until here */
    hy_fork_release(t);
    hy_engine_close(t->engine);
    hy_dataset_close(t->data.set);
}
