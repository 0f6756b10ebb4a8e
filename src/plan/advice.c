/* advice.c: suggests changes that need less memory or make a run fit, by planning them. See
 * request.h.
 *
 * A change is one setting with another value, both in the settings and in the current choice. To
 * find what would fit, sets of changes are tried, the smallest first, and the planner decides
 * everything that is open. To find what would save memory, each change is compared with the
 * current plan. Only changes that were planned are suggested. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "config/derived.h"
#include "plan/advice.h"

/* What a change reads and edits. */
typedef struct edit {
    const hy_plan_request *request;
    const hy_plan *plan; /* at hand */
    hy_settings *settings;
    hy_plan_choice *choice;
    hy_advice *made; /* the change fills in key and values */
    hy_text *flags;  /* text to add to a command; NULL: not needed */
} edit;

/* Makes the change; false: there is nothing to change. */
typedef bool (*change_maker)(edit *e);

/* ---- the changes ----------------------------------------------------------------------------- */

static bool tell(edit *e, const char *key, const char *from, const char *to) {
    if (strcmp(from, to) == 0) return false;
    snprintf(e->made->key, sizeof e->made->key, "%s", key);
    snprintf(e->made->from, sizeof e->made->from, "%.31s", from);
    snprintf(e->made->to, sizeof e->made->to, "%s", to);
    return true;
}

static bool tell_number(edit *e, const char *key, int64_t from, int64_t to) {
    snprintf(e->made->key, sizeof e->made->key, "%s", key);
    snprintf(e->made->from, sizeof e->made->from, "%lld", (long long)from);
    snprintf(e->made->to, sizeof e->made->to, "%lld", (long long)to);
    return from != to;
}

/* Changes a setting, and reports the change as above. */
static bool change(edit *e, const char *key, const char *to) {
    char from[HY_VALUE_MAX];
    const hy_setting *setting = hy_setting_find(key, NULL);
    hy_setting_format(setting, e->settings, from);
    hy_setting_store(setting, to, e->settings);
    if (e->flags && strcmp(from, to) != 0) {
        hy_text_addf(e->flags, "%s%s %s", e->flags->size ? " " : "", setting->info.flag, to);
    }
    return tell(e, key, from, to);
}

/* The next smaller micro-batch that divides a step: the tokens of a step stay the same. */
static bool shrink_to(edit *e, int64_t most) {
    hy_plan_choice *c = e->choice;
    int64_t step = (int64_t)c->batch * c->accum, batch = most;
    int64_t least = e->settings->train.min_batch_size;
    while (batch > least && step % batch != 0) batch--;
    if (batch < least || batch >= c->batch || step % batch != 0) return false;
    tell_number(e, "batch_size", c->batch, batch);
    c->batch = (int32_t)batch;
    c->accum = (int32_t)(step / batch);
    return true;
}

static bool shrink_batch(edit *e) { return shrink_to(e, e->choice->batch - 1); }
static bool halve_batch(edit *e) { return shrink_to(e, e->choice->batch / 2); }

static bool shrink_evaluation(edit *e) {
    int64_t *batch = &e->settings->eval.eval_batch_size;
    if (*batch <= e->choice->batch) return false;
    tell_number(e, "eval_batch_size", *batch, e->choice->batch);
    *batch = e->choice->batch;
    return true;
}

static bool recompute_norms(edit *e) {
    bool was_none = e->choice->recompute == HY_RECOMPUTE_NONE;
    e->choice->recompute = HY_RECOMPUTE_NORM;
    return was_none && tell(e, "recompute", "none", "norm");
}

static bool recompute_all(edit *e) {
    hy_plan_choice *c = e->choice;
    const char *before = hy_choice_name("recompute", c->recompute);
    int32_t layers = c->recompute_layers;
    e->settings->train.recompute = HY_RECOMPUTE_ALL;
    e->settings->train.recompute_layers = 0;
    c->recompute_layers = 0;
    if (c->recompute == HY_RECOMPUTE_ALL) {
        return layers != 0 && tell_number(e, "recompute_layers", layers, 0);
    }
    c->recompute = HY_RECOMPUTE_ALL;
    return tell(e, "recompute", before, "all");
}

static bool split_loss(edit *e) {
    hy_plan_choice *c = e->choice;
    int32_t chunks = hy_plan_loss_chunks(e->request, e->plan, c);
    int64_t rows = (int64_t)c->batch * e->request->settings->train.seq_len;
    if (2 * (int64_t)chunks > rows) return false;
    c->loss_chunks = 2 * chunks;
    return tell_number(e, "loss_chunks", chunks, c->loss_chunks);
}

/* Moves a class from the device to pinned memory. */
static bool offload(edit *e, const char *key, hy_place *place) {
    if (!hy_request_streams(e->request) || *place != HY_DEVICE) return false;
    *place = HY_PINNED;
    return tell(e, key, "device", "pinned");
}

static bool offload_activations(edit *e) {
    return offload(e, "activations_place", &e->choice->activations);
}

static bool offload_optimizer(edit *e) {
    bool must_stay = e->plan->offload == HY_OFFLOAD_DROP; /* hy_offload_decide requires it */
    return !must_stay && offload(e, "optim_place", &e->choice->state[HY_PLAN_OPTIM]);
}

static bool keep_optimizer(edit *e) {
    bool is_here = e->choice->state[HY_PLAN_OPTIM] == HY_DEVICE;
    return hy_offload_moves(e->plan->offload) && is_here && change(e, "offload_strategy", "none");
}

static bool use_8bit(edit *e) {
    bool is_exact = e->plan->optimizer.kind->is_exact;
    return e->plan->types.optim != HY_U8 && !is_exact && change(e, "optim_dtype", "8bit");
}

static bool without_predictor(edit *e) { return change(e, "predictor", "none"); }

/* ---- changes that make a run fit: settings alone --------------------------------------------- */

static bool change_all(edit *e, const char *const *keys, const char *to) {
    bool is_changed = false;
    for (; *keys; keys++) is_changed |= change(e, *keys, to);
    return is_changed;
}

static bool open_places(edit *e) {
    static const char *const keys[] = {"weights_place", "master_place",      "grads_place",
                                       "optim_place",   "activations_place", NULL};
    return hy_request_streams(e->request) && change_all(e, keys, "auto");
}

static bool open_types(edit *e) {
    static const char *const keys[] = {"optim_dtype", "grad_dtype", "master_dtype",
                                       "predictor_dtype", NULL};
    return change_all(e, keys, "auto");
}

static bool use_16_bits(edit *e) {
    return e->request->backend->facts.is_gpu && e->plan->types.of[HY_FULL] == HY_F32 &&
           change(e, "precision", "auto");
}

/* The bf16 weights are the only copy, so every phase must compute with them. */
static bool use_small_types(edit *e) {
    bool predicts = e->settings->phases.predictor != HY_PREDICTOR_NONE;
    const char *const keys[] = {"precision_warmup", "precision_full",
                                predicts ? "precision_predict" : NULL, "precision_correct", NULL};
    if (!change(e, "small_types", "all")) return false;
    (void)change_all(e, keys, "same");
    return true;
}

static bool recompute_more(edit *e) {
    bool is_more = change(e, "recompute", "all");
    return change(e, "recompute_layers", "0") || is_more;
}

/* Copies of the state cost the same time however many tokens a step has. 64 sequences of 1,024
 * tokens are a usual step of fine-tuning. */
#define LONG_STEP 65536

static bool lengthen_step(edit *e) {
    const hy_plan_request *r = e->request;
    const hy_plan_choice *c = &e->plan->choice;
    int64_t asked = e->settings->train.step_tokens, seq = e->settings->train.seq_len;
    int64_t tokens = asked ? asked : (int64_t)c->batch * c->accum * seq;
    char to[32];
    snprintf(to, sizeof to, "%d", LONG_STEP);
    bool is_open = e->settings->task != HY_LOSS_POLICY && r->is_plan && r->backend->facts.is_gpu &&
                   hy_model_has_passes(r->model);
    return is_open && tokens <= LONG_STEP / 2 && LONG_STEP % seq == 0 &&
           change(e, "step_tokens", to);
}

/* A disk is slow: the state must be small, be read seldom, and have nothing to predict with. */
static bool use_folder(edit *e) {
    hy_settings *s = e->settings;
    if (!hy_request_streams(e->request) || s->memory.offload_folder[0]) return false;
    if (!s->lora.lora && !e->request->fixed.has_level) {
        (void)change(e, "predictor", "none");
        if (e->plan->types.of[HY_FULL] == HY_BF16) (void)use_small_types(e);
        (void)lengthen_step(e);
    }
    s->memory.offload_size = INT64_MAX;
    snprintf(s->memory.offload_folder, sizeof s->memory.offload_folder, ".");
    hy_text_addf(e->flags, "%s--offload-folder FOLDER", e->flags->size ? " " : "");
    return true;
}

static bool halve_sequence(edit *e) {
    const hy_settings *s = e->settings;
    char length[32], accum[32];
    int64_t seq = s->train.seq_len;
    snprintf(length, sizeof length, "%lld", (long long)seq / 2);
    snprintf(accum, sizeof accum, "%lld", 2 * (long long)s->train.grad_accum_steps);
    if (seq < 256 || seq % 2 != 0) return false;
    if (s->train.step_tokens == 0) (void)change(e, "grad_accum_steps", accum);
    return change(e, "seq_len", length);
}

static bool split_mlps(edit *e) { return change(e, "mlp_chunks", "0"); }

static bool free_evaluation(edit *e) { return change(e, "eval_batch_size", "0"); }

/* Adapters are for a model that was trained before: files of weights, or a plan for a named model.
 * A run in progress keeps its parameters. */
static bool may_use_adapters(const hy_plan_request *r) {
    const hy_settings *s = r->settings;
    bool is_new = !r->fixed.has_level && !s->save.resume[0];
    return r->make_model && is_new && !s->lora.lora && s->model[0] &&
           (r->is_plan || hy_settings_bring_weights(s));
}

/* Sets what the flags --lora and --qlora set (config_adapter.c). */
static bool use_adapters(edit *e, const char *flag) {
    hy_settings *s = e->settings;
    if (!may_use_adapters(e->request)) return false;
    s->lora.lora = true;
    if (s->phases.predictor != HY_PREDICTOR_NONE) s->phases.predictor = HY_PREDICTOR_LINE;
    hy_text_addf(e->flags, "%s%s", e->flags->size ? " " : "", flag);
    return true;
}

static bool use_lora(edit *e) { return use_adapters(e, "--lora"); }

static bool use_qlora(edit *e) {
    hy_settings *s = e->settings;
    s->lora.qlora = true;
    if (s->train.frozen_dtype == HY_DTYPE_AUTO) s->train.frozen_dtype = HY_DTYPE_NF4;
    return use_adapters(e, "--qlora");
}

/* ---- what would save ------------------------------------------------------------------------- */

hy_status hy_advise_bytes(const hy_plan_request *r, const hy_plan *plan,
                          const hy_settings *settings, const hy_plan_choice *choice,
                          hy_plan_bytes *out) {
    hy_plan_request other = hy_plan_request_keeping(r, plan);
    hy_plan found;
    other.settings = settings;
    HY_TRY(hy_plan_begin(&other, &plan->level, &found));
    hy_plan_choice c = *choice;
    c.state[HY_PLAN_MASTER] = !found.types.has_low                    ? HY_NOWHERE
                              : c.state[HY_PLAN_MASTER] == HY_NOWHERE ? c.state[HY_PLAN_WEIGHTS]
                                                                      : c.state[HY_PLAN_MASTER];
    HY_TRY(hy_plan_with(&other, &found, &c, &found));
    *out = (hy_plan_bytes){.device = (int64_t)found.device,
                           .host = (int64_t)hy_plan_host_bytes(&found),
                           .seconds = found.cost.seconds};
    return HY_OK;
}

static const change_maker savers[] = {
    shrink_batch,   halve_batch, shrink_evaluation,   recompute_norms,
    recompute_all,  split_loss,  offload_activations, offload_optimizer,
    keep_optimizer, use_8bit,    without_predictor,
};

hy_status hy_advise_less(const hy_plan_request *r, const hy_plan *plan,
                         hy_advice out[HY_ADVICE_MAX], int32_t *count) {
    hy_plan_bytes now, with;
    hy_settings *settings = malloc(sizeof *settings);
    *count = 0;
    if (!settings) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    hy_status status = hy_advise_bytes(r, plan, r->settings, &plan->choice, &now);
    for (size_t i = 0; i < sizeof savers / sizeof savers[0] && status == HY_OK; i++) {
        hy_plan_choice choice = plan->choice;
        hy_advice made = {0};
        edit e = {r, plan, settings, &choice, &made, NULL};
        *settings = *r->settings;
        bool is_new = savers[i](&e);
        for (int32_t k = 0; k < *count; k++) {
            is_new &= strcmp(out[k].key, made.key) != 0 || strcmp(out[k].to, made.to) != 0;
        }
        if (!is_new) continue;
        status = hy_advise_bytes(r, plan, settings, &choice, &with);
        made.device_bytes = now.device - with.device;
        made.host_bytes = now.host - with.host;
        if (status == HY_OK) out[(*count)++] = made;
        if (status == HY_ERR_INPUT) status = HY_OK; /* the settings conflict: no advice */
    }
    free(settings);
    return status;
}

/* ---- what would fit -------------------------------------------------------------------------- */

/* use_folder depends on the changes before it. */
static const change_maker fitters[] = {use_lora,        use_qlora,       open_places,    open_types,
                                       use_small_types, use_16_bits,     recompute_more, use_folder,
                                       halve_sequence,  free_evaluation, split_mlps};
#define FITTERS ((int)(sizeof fitters / sizeof fitters[0]))
#define MOST_TOGETHER 3

static void add_change(hy_plan_facts *facts, const char *text, const hy_plan_request *r,
                       const hy_plan *plan) {
    int32_t i = facts->change_count++;
    snprintf(facts->changes[i], HY_PLAN_TEXT, "%s", text);
    if (!plan->fits) return;
    facts->change_costs[i] =
        (hy_plan_change){.tokens_per_second = hy_request_tokens_per_second(r, plan),
                         .vram_bytes = plan->device,
                         .host_pinned_bytes = hy_plan_host_bytes(plan),
                         .disk_bytes = plan->disk};
}

/* Plans the request with these settings as a run would, which fails first if the finest types
 * conflict. Adapters need a model of their own. With a new folder only the smallest types are
 * planned, which are the fastest there, and with a longer step the types of `found`. */
static hy_status plan_changed(const hy_plan_request *r, const hy_rates *rates,
                              const hy_settings *settings, hy_plan *found) {
    hy_plan_request other = *r;
    hy_model *model = NULL;
    hy_plan smallest = *found;
    hy_status status = HY_OK;
    bool has_folder = settings->memory.offload_folder[0] && !r->settings->memory.offload_folder[0];
    other.settings = settings;
    other.ignores_unfit = true;
    if (settings->lora.lora != r->settings->lora.lora) {
        status = r->make_model(settings, &model);
        other.model = model;
    }
    if (status == HY_OK && !found->fits) status = hy_plan_can_fit(&other, rates, &smallest);
    if (!r->fixed.has_level && (has_folder || found->fits)) {
        other.fixed.has_level = true;
        other.fixed.level = smallest.level;
    }
    found->fits = false;
    if (status == HY_OK && smallest.fits) status = hy_plan_fastest(&other, rates, found);
    hy_model_destroy(model);
    return status == HY_ERR_INPUT ? HY_OK : status; /* the settings conflict: no suggestion */
}

#define MUCH_WAITING 0.25 /* share of a step */
#define LITTLE_WAITING 0.1

static double waiting(const hy_plan *plan) { return plan->cost.wait / plan->cost.seconds; }

/* Adds a set of changes with which the run fits; the first one also with a longer step if copies
 * dominate a step. */
static hy_status add_changes(edit *e, const hy_rates *rates, hy_plan *found, hy_plan_facts *facts) {
    add_change(facts, hy_text_string(e->flags), e->request, found);
    facts->change_costs[facts->change_count - 1].is_adapter = e->settings->lora.lora;
    bool is_slow = facts->change_count == 1 && waiting(found) > MUCH_WAITING;
    if (!is_slow || !lengthen_step(e)) return HY_OK;
    double before = found->cost.tokens_per_second;
    HY_TRY(plan_changed(e->request, rates, e->settings, found));
    if (!found->fits || found->cost.tokens_per_second <= before) return HY_OK;
    add_change(facts, hy_text_string(e->flags), e->request, found);
    facts->change_costs[facts->change_count - 1].is_adapter = e->settings->lora.lora;
    return HY_OK;
}

/* Applies a set of changes one after the other and plans them. A set with a change that changes
 * nothing is skipped. */
static hy_status try_changes(const hy_plan_request *r, const hy_plan *plan, const hy_rates *rates,
                             unsigned set, hy_plan_facts *facts) {
    hy_plan_choice unused = {0};
    hy_advice made;
    hy_text flags = {0};
    hy_plan found = {0};
    bool is_made = true;
    hy_settings *settings = malloc(sizeof *settings);
    if (!settings) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    *settings = *r->settings;
    edit e = {r, plan, settings, &unused, &made, &flags};
    for (int i = 0; i < FITTERS && is_made; i++) is_made = !(set >> i & 1) || fitters[i](&e);
    hy_status status = is_made ? plan_changed(r, rates, settings, &found) : HY_OK;
    if (status == HY_OK && found.fits) status = add_changes(&e, rates, &found, facts);
    hy_text_free(&flags);
    free(settings);
    return status;
}

/* Reports how much host memory, or device and host memory, would be enough with these settings. */
static hy_status ask_for_memory(const hy_plan_request *r, const hy_plan *plan,
                                const hy_rates *rates, hy_plan_facts *facts) {
    hy_plan_problem problem;
    hy_plan with_host = {0}, with_both = {0};
    char text[HY_PLAN_TEXT];
    HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, NULL));
    problem.limits.host = UINT64_MAX;
    hy_status status = hy_plan_leanest(&problem, false, &with_host);
    problem.limits.device = UINT64_MAX;
    if (status == HY_OK) status = hy_plan_leanest(&problem, true, &with_both);
    hy_plan_problem_end(&problem);
    HY_TRY(status);
    if (facts->change_count == HY_PLAN_CHANGES) return HY_OK;
    if (with_host.fits) {
        snprintf(text, sizeof text, "%s of host memory", hy_bytes_as_text(with_host.host).text);
    } else {
        snprintf(text, sizeof text, "%s of device memory and %s of host memory in total",
                 hy_bytes_as_text(with_both.device).text, hy_bytes_as_text(with_both.host).text);
    }
    add_change(facts, text, r, with_host.fits ? &with_host : &with_both);
    return HY_OK;
}

/* Tries sets of the changes `among`, the smallest first, that include all `wanted` ones. Stops
 * after `most` sets that fit. */
static hy_status find_smallest(const hy_plan_request *r, const hy_plan *plan, const hy_rates *rates,
                               unsigned among, unsigned wanted, int most, hy_plan_facts *facts) {
    int32_t before = facts->change_count;
    for (int together = 1; together <= MOST_TOGETHER && facts->change_count == before; together++) {
        for (unsigned set = 1; set <= among && facts->change_count < before + most; set++) {
            bool is_in = (set & ~among) == 0 && (set & wanted) == wanted;
            if (!is_in || __builtin_popcount(set) != together) continue;
            HY_TRY(try_changes(r, plan, rates, set, facts));
        }
    }
    return HY_OK;
}

static unsigned bit_of(change_maker maker) {
    unsigned bit = 0;
    for (int i = 0; i < FITTERS; i++) bit |= (unsigned)(fitters[i] == maker) << i;
    return bit;
}

/* Of changes of the same kind, full-parameter training or adapters, one that is this many times
 * slower than another is not worth a line. */
#define TOO_SLOW 3

static bool is_too_slow(const hy_plan_facts *facts, int32_t i) {
    const hy_plan_change *costs = facts->change_costs;
    bool is_slow = false;
    for (int32_t k = 0; k < facts->change_count; k++) {
        is_slow |= costs[k].is_adapter == costs[i].is_adapter &&
                   costs[k].tokens_per_second > TOO_SLOW * costs[i].tokens_per_second;
    }
    return is_slow;
}

static void copy_change(hy_plan_facts *to, int32_t k, const hy_plan_facts *from, int32_t i) {
    memcpy(to->changes[k], from->changes[i], sizeof to->changes[k]);
    to->change_costs[k] = from->change_costs[i];
}

/* The fastest first. Changes of equal speed stay in the order in which they were found. */
static void sort_by_speed(hy_plan_facts *facts) {
    hy_plan_facts found = *facts;
    facts->change_count = 0;
    for (int32_t i = 0; i < found.change_count; i++) {
        double speed = found.change_costs[i].tokens_per_second;
        int32_t k = facts->change_count;
        if (is_too_slow(&found, i)) continue;
        for (; k > 0 && speed > facts->change_costs[k - 1].tokens_per_second; k--) {
            copy_change(facts, k, facts, k - 1);
        }
        copy_change(facts, k, &found, i);
        facts->change_count++;
    }
}

/* Mlps in chunks are tried only if nothing else fits, and only then a folder and shorter
 * sequences. */
hy_status hy_advise_fit(const hy_plan_request *r, const hy_plan *plan, const hy_rates *rates,
                        hy_plan_facts *facts) {
    unsigned lora = bit_of(use_lora), qlora = bit_of(use_qlora), folder = bit_of(use_folder);
    unsigned shorter = bit_of(halve_sequence), mlps = bit_of(split_mlps);
    unsigned all = ((1u << FITTERS) - 1) & ~lora & ~qlora & ~mlps;
    bool has_adapters = may_use_adapters(r);
    facts->change_count = 0;
    HY_TRY(find_smallest(r, plan, rates, all & ~folder & ~shorter, 0, has_adapters ? 2 : 3, facts));
    if (facts->change_count == 0)
        HY_TRY(find_smallest(r, plan, rates, (all | mlps) & ~folder & ~shorter, mlps, 1, facts));
    if (facts->change_count == 0) {
        HY_TRY(find_smallest(r, plan, rates, all & ~folder, shorter, 1, facts));
        HY_TRY(find_smallest(r, plan, rates, all, folder, 1, facts));
    }
    if (has_adapters) {
        HY_TRY(find_smallest(r, plan, rates, lora, lora, 1, facts));
        HY_TRY(find_smallest(r, plan, rates, all | qlora, qlora, 1, facts));
    }
    sort_by_speed(facts);
    return ask_for_memory(r, plan, rates, facts);
}

/* ---- what would be faster -------------------------------------------------------------------- */

/* The same run with this many tokens in a step; types stay the same. */
static hy_status plan_tokens(const hy_plan_request *r, const hy_plan *plan, const hy_rates *rates,
                             int64_t tokens, hy_plan *out) {
    hy_plan_request other = *r;
    hy_settings *settings = malloc(sizeof *settings);
    if (!settings) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    *settings = *r->settings;
    settings->train.step_tokens = tokens;
    other.settings = settings;
    hy_status status = hy_plan_begin(&other, &plan->level, out);
    if (status == HY_OK) status = hy_plan_search(&other, rates, NULL, out);
    free(settings);
    return status;
}

hy_status hy_advise_tokens(const hy_plan_request *r, const hy_plan *plan, const hy_rates *rates,
                           hy_plan_facts *facts) {
    int64_t tokens = (int64_t)plan->choice.batch * plan->choice.accum * r->settings->train.seq_len;
    hy_plan longer = *plan;
    bool is_asked = r->settings->task != HY_LOSS_POLICY && r->is_plan && r->backend->facts.is_gpu &&
                    hy_model_has_passes(r->model);
    if (!is_asked || !(waiting(plan) > MUCH_WAITING)) return HY_OK;
    for (int tries = 0; tries < 2 && longer.fits && waiting(&longer) > LITTLE_WAITING; tries++) {
        tokens *= 4;
        HY_TRY(plan_tokens(r, plan, rates, tokens, &longer));
    }
    if (!longer.fits || longer.cost.tokens_per_second <= plan->cost.tokens_per_second) return HY_OK;
    hy_plan_reason(facts,
                   "a step computes little compared with its copies: with --step-tokens %lld, the "
                   "run would train %.0f tokens/s and wait for %.1f %% of a step",
                   (long long)tokens, longer.cost.tokens_per_second, 100 * waiting(&longer));
    return HY_OK;
}
