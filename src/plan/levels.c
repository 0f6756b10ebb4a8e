/* levels.c: makes the plan of a request (hy_plan_make), and chooses its precision level: how small
 * the state is. See request.h.
 *
 * First the finest level is planned. If it fits without streaming and recomputing, it is taken.
 * Otherwise each level that the settings allow is planned in full, from the finest to the smallest:
 * types of the state (fp32; 8-bit optimizer state; bf16 gradients; only bf16 weights, rounded
 * stochastically), and what is kept for prediction (all; no snapshot; 8 bits; nothing). The fastest
 * wins, with two exceptions: finer types that are nearly as fast are preferred, and prediction
 * keeps its memory unless keeping it costs more than 10 % of the speed. Each level also has the
 * changes of the levels before it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/advice.h"

/* Finer types are taken if they reach this share of the highest speed. */
#define NEARLY_AS_FAST 0.97
#define PREDICTION_PAYS 0.10 /* of a run's compute: the most that jumps saved in measurements */

/* The number of levels: of the state's types, and of what prediction keeps. */
enum { TYPES = 4, MEMORIES = 4 };

/* One level with its plan. */
typedef struct trial {
    bool is_there; /* the level is allowed and differs from earlier ones */
    bool has_snapshot;
    hy_plan *plan;
} trial;

typedef struct trials {
    trial at[MEMORIES][TYPES];
    int memory, types; /* what was chosen */
} trials;

/* ---- the levels ------------------------------------------------------------------------------ */

/* The number of type levels that the settings allow. */
static int allowed_types(const hy_settings *s, const hy_plan *finest) {
    hy_small_types small = s->memory.small_types;
    bool may_round = finest->types.of[HY_FULL] == HY_BF16;
    /* Compress quantises fp32 state to 8 bits itself. */
    if (finest->offload == HY_OFFLOAD_COMPRESS) return 1;
    return small == HY_SMALL_NONE ? 1 : small == HY_SMALL_OPTIMIZER || !may_round ? 2 : TYPES;
}

static hy_precision_level level_at(int memory, int types) {
    hy_precision_level level = hy_precision_finest();
    if (types >= 1) level.optim = HY_U8;
    if (types >= 2) level.grads = HY_BF16;
    if (types >= 3) level.master = HY_BF16;
    level.has_snapshot = memory < 1;
    level.is_predictor_8bit = memory == 2;
    level.predicts = memory < 3;
    return level;
}

static bool is_same(const trial *a, const trial *b) {
    const hy_types *x = &a->plan->types, *y = &b->plan->types;
    return x->master == y->master && x->grads == y->grads && x->optim == y->optim &&
           x->slow == y->slow && a->plan->predictor.kind == b->plan->predictor.kind &&
           a->has_snapshot == b->has_snapshot;
}

/* Begins the plan of a level; is_there stays false if settings or device do not allow it, or if
 * it equals an earlier one. */
static void place_level(trials *l, const hy_plan_request *r, int memory, int types) {
    trial *t = &l->at[memory][types];
    hy_precision_level level = level_at(memory, types);
    bool is_small = r->settings->memory.small_types == HY_SMALL_ALL;
    if (level.is_predictor_8bit && !is_small) return;
    if (hy_plan_begin(r, &level, t->plan) != HY_OK) return;
    t->has_snapshot = hy_plan_rows(r, t->plan).has_snapshot;
    for (int i = 0; i < memory * TYPES + types; i++) {
        const trial *earlier = &l->at[i / TYPES][i % TYPES];
        if (earlier->is_there && is_same(earlier, t)) return;
    }
    t->is_there = true;
}

/* Fixed settings may conflict with the finest types: predictor_dtype 8bit with an fp32 master. */
hy_status hy_plan_begin_finest(const hy_plan_request *r, hy_plan *out) {
    hy_error why;
    hy_precision_level level = r->fixed.has_level ? r->fixed.level : level_at(0, 0);
    hy_status status = hy_plan_begin(r, &level, out);
    bool may_be_smaller = r->settings->memory.small_types == HY_SMALL_ALL && !r->fixed.has_level;
    if (status != HY_ERR_INPUT || !may_be_smaller) return status;
    hy_error_save(&why, status);
    for (int types = 1; types < TYPES; types++) {
        level = level_at(0, types);
        if (hy_plan_begin(r, &level, out) == HY_OK) return HY_OK;
    }
    return hy_error_restore(&why);
}

/* Tests only the smallest level, which needs the least memory. */
hy_status hy_plan_can_fit(const hy_plan_request *r, const hy_rates *rates, hy_plan *out) {
    hy_plan finest, smallest;
    hy_plan_problem problem;
    HY_TRY(hy_plan_begin_finest(r, &finest));
    smallest = finest;
    int types = r->fixed.has_level ? 0 : allowed_types(r->settings, &finest);
    while (types-- > 0) {
        hy_precision_level level = level_at(MEMORIES - 1, types);
        if (hy_plan_begin(r, &level, &smallest) == HY_OK) break;
    }
    HY_TRY(hy_plan_problem_begin(&problem, r, &smallest, rates, NULL));
    hy_status status = hy_plan_leanest(&problem, false, out);
    hy_plan_problem_end(&problem);
    return status;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static double speed_of(const trial *t) {
    return t->is_there && t->plan->fits ? t->plan->cost.tokens_per_second : 0;
}

/* If nothing fits: the level that lacks the least device memory, then the least host memory. */
static void choose_least_short(trials *l) {
    const hy_plan *best = NULL;
    for (int i = 0; i < MEMORIES * TYPES; i++) {
        const trial *t = &l->at[i / TYPES][i % TYPES];
        const hy_plan *p = t->plan;
        bool is_less = !best || p->device_short < best->device_short ||
                       (p->device_short == best->device_short &&
                        p->host_short + p->disk_short < best->host_short + best->disk_short);
        if (!t->is_there || !is_less) continue;
        best = p;
        l->memory = i / TYPES;
        l->types = i % TYPES;
    }
}

static void choose(trials *l) {
    /* The highest speed with each prediction level, and of all. */
    double with[MEMORIES] = {0}, fastest = 0;
    for (int m = 0; m < MEMORIES; m++) {
        for (int k = 0; k < TYPES; k++) with[m] = fmax(with[m], speed_of(&l->at[m][k]));
        fastest = fmax(fastest, with[m]);
    }
    if (fastest == 0) {
        choose_least_short(l);
        return;
    }
    while (with[l->memory] < fastest * (1 - PREDICTION_PAYS)) l->memory++;
    double wanted = with[l->memory] * NEARLY_AS_FAST;
    while (speed_of(&l->at[l->memory][l->types]) < wanted) l->types++;
}

/* ---- why ------------------------------------------------------------------------------------- */

/* Says how much slower the finer level is, or how much memory it lacks. */
static void say_why_not(const trial *finer, const trial *taken, const char *than, const char *so,
                        hy_text *out) {
    const hy_plan *p = finer->plan;
    double seconds = taken->plan->cost.seconds;
    if (p->fits) {
        hy_text_addf(out, "the run is %.2f times as fast%s",
                     seconds > 0 ? p->cost.seconds / seconds : 1, so);
        return;
    }
    hy_plan_lack lack = hy_plan_lacks(p);
    hy_text_addf(out, "%s would need %s more %s", than, hy_bytes_as_text(lack.bytes).text, lack.of);
}

static void explain_types(const trials *l, const hy_settings *s, const trial *finest,
                          hy_plan_facts *facts) {
    const trial *taken = &l->at[l->memory][l->types];
    if (l->at[l->memory][0].is_there) finest = &l->at[l->memory][0]; /* only types differ */
    const hy_precision_level *now = &taken->plan->level, *fine = &finest->plan->level;
    bool is_8bit_asked = s->optimizer.optimizer & HY_OPTIMIZER_8BIT;
    bool is_exact = taken->plan->optimizer.kind->is_exact;
    bool is_open[] = {s->optimizer.optim_dtype == HY_DTYPE_AUTO && !is_8bit_asked && !is_exact,
                      s->train.grad_dtype == HY_DTYPE_AUTO,
                      s->optimizer.master_dtype == HY_DTYPE_AUTO};
    bool is_small[] = {now->optim != HY_F32, now->grads != HY_F32, now->master != HY_F32};
    static const char *const words[] = {"optimizer state in 8 bits", "gradients in bf16",
                                        "weights in bf16, rounded stochastically"};
    hy_text text = {0};
    for (int i = 0; i < 3; i++) {
        if (is_open[i] && is_small[i]) hy_text_addf(&text, "%s%s", text.size ? ", " : "", words[i]);
    }
    if (text.size > 0) {
        bool is_asked = now->optim == fine->optim && now->master == fine->master;
        hy_text_add(&text, is_asked ? ": other settings require these types" : ": ");
        if (!is_asked) say_why_not(finest, taken, "fp32", " as with fp32", &text);
        hy_plan_reason(facts, "%s", hy_text_string(&text));
    }
    hy_text_free(&text);
}

static void explain_prediction(const trials *l, const trial *finest, hy_plan_facts *facts) {
    static const char *const words[MEMORIES] = {
        "", "no snapshot, so a jump cannot be undone after a divergence: ",
        "the predictor's state in 8 bits: ", "prediction is disabled: "};
    static const char *const than[MEMORIES] = {"", "with one the run", "in 16 bits it",
                                               "with it the run"};
    static const char *const as[MEMORIES] = {"", " as with one", " as in 16 bits", " without it"};
    const trial *taken = &l->at[l->memory][l->types], *finer = finest;
    bool had = hy_plan_predicts(finest->plan);
    for (int m = 0; m < l->memory; m++) {
        if (l->at[m][l->types].is_there) finer = &l->at[m][l->types];
    }
    if (l->memory == 0 || !had) return;
    hy_text text = {0};
    hy_text_add(&text, words[l->memory]);
    say_why_not(finer, taken, than[l->memory], as[l->memory], &text);
    hy_plan_reason(facts, "%s", hy_text_string(&text));
    if (l->memory == 3)
        snprintf(facts->no_prediction, sizeof facts->no_prediction, "%s", hy_text_string(&text));
    hy_text_free(&text);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* The user has fixed a place. */
static bool has_fixed_place(const hy_plan_request *r) {
    const hy_settings *s = r->settings;
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (hy_params_away(&r->model->params, i)) return true;
    }
    return s->memory.weights_place != HY_PLACE_AUTO || s->memory.master_place != HY_PLACE_AUTO ||
           s->memory.grads_place != HY_PLACE_AUTO || s->memory.optim_place != HY_PLACE_AUTO ||
           s->memory.activations_place != HY_PLACE_AUTO;
}

/* Measuring takes some tenths of a second. A step shorter than this is not worth it. */
#define WORTH_MEASURING 0.01

static bool times_ops(const hy_plan_request *r, const hy_plan *plan) {
    return r->times_ops && r->backend->op_seconds && hy_model_has_passes(r->model) &&
           plan->cost.seconds > WORTH_MEASURING;
}

/* Measures the ops of a plan that fits, for a better estimate of its speed. */
static hy_status time_ops(const hy_plan_request *r, const hy_rates *rates, hy_plan *plan,
                          hy_plan_facts *facts) {
    hy_plan_problem problem;
    if (!plan->fits || !times_ops(r, plan)) return HY_OK;
    HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, NULL));
    problem.is_estimate = true;
    hy_status status = hy_sizer_clock(problem.sizer, &plan->choice, &plan->work);
    if (status == HY_OK) {
        hy_plan_cost_of(&problem, &plan->choice, &plan->work, &plan->state, &plan->cost);
        hy_plan_fill_facts(r, plan, facts);
    }
    hy_plan_problem_end(&problem);
    return status;
}

static void explain_caller(const hy_plan_request *r, hy_plan_facts *facts) {
    uint64_t bytes = hy_caller_planned(r);
    if (bytes) {
        hy_plan_reason(facts,
                       "activations: %s of the device are for the caller's passes, as measured%s",
                       hy_bytes_as_text(bytes).text,
                       r->custom->is_caller_stored ? " before the checkpoint" : "");
    } else if (r->custom && r->custom->caller_bytes < 0) {
        hy_plan_reason(facts, "as little device memory as possible, because the memory of the "
                              "caller's passes is not known yet");
    }
}

/* Reasons, the figures that hybrid.h reports, advice, and the offload strategy. */
static hy_status finish(const hy_plan_request *r, const hy_rates *rates, hy_plan *plan,
                        hy_plan_facts *facts) {
    hy_plan_problem problem;
    hy_plan settled = *plan; /* advice is about the requested strategy */
    const char *no_fp8 = hy_fp8_why_none(r, &plan->types);
    hy_plan_fill_facts(r, plan, facts);
    explain_caller(r, facts);
    if (no_fp8) hy_plan_reason(facts, "%s", no_fp8);
    if (hy_types_have_fp8(&plan->types)) {
        char words[HY_PLAN_TEXT];
        hy_fp8_describe(&r->model->params, &plan->types.fp8, words, sizeof words);
        hy_plan_reason(facts, "%s", words);
    }
    HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, NULL));
    hy_status status = hy_plan_explain(&problem, plan, facts);
    if (status == HY_OK) status = hy_offload_decide(problem.sizer->rows, &settled);
    hy_plan_problem_end(&problem);
    HY_TRY(status);
    HY_TRY(plan->fits ? hy_advise_tokens(r, plan, rates, facts)
                      : hy_advise_fit(r, plan, rates, facts));
    plan->offload = settled.offload;
    return time_ops(r, rates, plan, facts);
}

/* Plans at the level of `plan`. Rates are measured only if the speed is needed, if not everything
 * fits, or if something is streamed. is_best: the plan fits without streaming and recomputing. */
static hy_status plan_as_is(const hy_plan_request *r, const hy_rates *known, hy_rates *rates,
                            hy_pass_memo *passes, hy_plan *plan, bool *is_best) {
    hy_plan_problem problem;
    *rates = known ? *known : hy_plan_nominal_rates(r->backend);
    HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, passes));
    hy_status status = hy_plan_evaluate(&problem, &problem.base, plan);
    bool is_kept = problem.keeps_batch || problem.prefers_batch;
    bool is_streamed = times_ops(r, plan) && hy_choice_streams(&plan->choice);
    bool needs_rates = !known && (r->is_plan || !plan->fits || !is_kept || is_streamed);
    if (status == HY_OK && needs_rates) {
        *rates = hy_plan_measured_rates(r);
        hy_plan_problem_end(&problem);
        passes->count = 0; /* the cached seconds used other rates */
        HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, passes));
    }
    if (status == HY_OK) status = hy_plan_choose(&problem, plan);
    bool recomputes = problem.open.recompute && plan->choice.recompute != HY_RECOMPUTE_NONE;
    *is_best = plan->fits && !recomputes && hy_choice_is_plain(&plan->choice);
    hy_plan_problem_end(&problem);
    return status;
}

static hy_status try_levels(trials *l, const hy_plan_request *r, const hy_rates *rates,
                            hy_pass_memo *passes, const trial *finest) {
    int types = allowed_types(r->settings, finest->plan);
    l->at[0][0] = *finest;
    for (int m = 0; m < MEMORIES; m++) {
        for (int k = m == 0; k < types; k++) {
            place_level(l, r, m, k);
            if (!l->at[m][k].is_there) continue;
            HY_TRY(hy_plan_search(r, rates, passes, l->at[m][k].plan));
        }
    }
    choose(l);
    return HY_OK;
}

static hy_status choose_level(const hy_plan_request *r, const hy_rates *rates, hy_pass_memo *passes,
                              const trial *finest, hy_plan *plan, hy_plan_facts *facts) {
    trials l = {0};
    hy_plan *plans = calloc(MEMORIES * TYPES, sizeof *plans);
    if (!plans) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    for (int i = 0; i < MEMORIES * TYPES; i++) l.at[i / TYPES][i % TYPES].plan = &plans[i];
    hy_status status = try_levels(&l, r, rates, passes, finest);
    if (status == HY_OK) {
        *plan = *l.at[l.memory][l.types].plan;
        explain_types(&l, r->settings, finest, facts);
        explain_prediction(&l, finest, facts);
    }
    free(plans);
    return status;
}

/* known: the rates; NULL: they are measured if they are needed, and written to `rates`. */
static hy_status find_fastest(const hy_plan_request *r, const hy_rates *known, hy_rates *rates,
                              hy_plan *plan, hy_plan_facts *facts) {
    hy_plan as_is;
    bool is_best = false;
    *facts = (hy_plan_facts){0};
    HY_TRY(hy_plan_begin_finest(r, &as_is));
    trial finest = {true, hy_plan_rows(r, &as_is).has_snapshot, &as_is};
    hy_pass_memo *passes = calloc(1, sizeof *passes);
    if (!passes) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    hy_status status = plan_as_is(r, known, rates, passes, &as_is, &is_best);
    *plan = as_is;
    /* If the user fixes places, bits stay the same: types change only if nothing fits. */
    bool may_choose = !r->fixed.has_level && (!as_is.fits || !has_fixed_place(r));
    if (status == HY_OK && !is_best && may_choose)
        status = choose_level(r, rates, passes, &finest, plan, facts);
    free(passes);
    return status;
}

hy_status hy_plan_fastest(const hy_plan_request *r, const hy_rates *known, hy_plan *plan) {
    hy_plan_facts unused;
    hy_rates rates;
    return find_fastest(r, known, &rates, plan, &unused);
}

static hy_status make_at_stage(const hy_plan_request *r, hy_plan *plan, hy_plan_facts *facts) {
    hy_rates rates;
    HY_TRY(find_fastest(r, NULL, &rates, plan, facts));
    HY_TRY(hy_plan_answers(r, &rates, plan, facts));
    return finish(r, &rates, plan, facts);
}

/* Ranks shard weights only if nothing else fits; a custom model's weights are always whole. */
hy_status hy_plan_make(const hy_plan_request *r, hy_plan *plan, hy_plan_facts *facts) {
    bool is_open = r->settings->ranks.zero_stage == HY_ZERO_AUTO && !r->fixed.has_stage;
    HY_TRY(make_at_stage(r, plan, facts));
    bool may_shard = is_open && r->ranks.count > 1 && hy_model_has_passes(r->model);
    if (plan->fits || !may_shard) return HY_OK;
    hy_plan_request sharded = *r;
    sharded.fixed.has_stage = true;
    sharded.fixed.zero_stage = HY_ZERO_WEIGHTS;
    return make_at_stage(&sharded, plan, facts);
}

#define LEAN_STEPS 64 /* the least memory is found up to 1/64 of that of the fastest plan */

/* Plans that fit into less and less device memory: unlike hy_plan_leanest, they may keep layers on
 * the device that the host has no room for. */
hy_status hy_plan_make_lean(const hy_plan_request *r, hy_plan *plan, hy_plan_facts *facts) {
    hy_plan_request lean = hy_plan_request_keeping(r, plan);
    hy_rates rates = hy_plan_nominal_rates(r->backend);
    uint64_t least = 0, most = plan->device, enough = most / LEAN_STEPS;
    if (!plan->fits || !hy_request_streams(r)) return HY_OK;
    lean.ignores_unfit = true;
    while (most - least > enough) {
        hy_plan found;
        lean.device_cap = least + (most - least) / 2;
        HY_TRY(hy_plan_fastest(&lean, &rates, &found));
        if (found.fits) {
            most = found.device;
        } else {
            least = lean.device_cap;
        }
    }
    lean.device_cap = most;
    lean.ignores_unfit = r->ignores_unfit;
    return hy_plan_make(&lean, plan, facts);
}
