/* ladder.c: how small the state is kept: the planner's choice of types. See subject.h and types.h.
 *
 * What the settings leave open is tried from the finest to the smallest that they allow: types of the
 * state (fp32; optimizer state in 8 bits; gradients in bf16; weights in bf16 alone, rounded
 * stochastically), and what is kept for prediction (all; no snapshot; 8 bits; nothing). Each rung is planned
 * in full. The fastest wins, but speed is not worth every loss: finer types that are nearly as fast are
 * taken instead, and prediction, which saves a few percent of a run's compute, is given up only where it
 * costs more than it brings. Where the finest fits with nothing streamed and nothing recomputed there is
 * nothing to gain. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/subject.h"

#define NEARLY_AS_FAST 0.97  /* of the fastest: finer types are worth the rest */
#define PREDICTION_PAYS 0.10 /* of a run's compute: the most that jumps were measured to save */

enum { TYPES = 4, MEMORIES = 4 }; /* kinds of rungs: of the state, and of what prediction keeps */

/* One rung, planned. */
typedef struct trial {
    bool is_there; /* it is allowed, and another than those before it */
    hy_subject subject;
    hy_plan plan;
} trial;

typedef struct ladder {
    trial at[MEMORIES][TYPES];
    int memory, types; /* what was chosen */
} ladder;

/* ---- the rungs ------------------------------------------------------------------------------------- */

/* How many kinds of types the settings allow. */
static int allowed_types(const hy_subject *x) {
    hy_small_types small = x->settings->memory.small_types;
    bool may_round = x->rows.types.of[HY_FULL] == HY_BF16;
    if (x->offload == HY_OFFLOAD_COMPRESS) return 1; /* it makes 8 bits of fp32 itself */
    return small == HY_SMALL_NONE ? 1 : small == HY_SMALL_OPTIMIZER || !may_round ? 2 : TYPES;
}

static hy_rung rung_at(int memory, int types) {
    hy_rung rung = hy_rung_finest();
    if (types >= 1) rung.optim = HY_U8;
    if (types >= 2) rung.grads = HY_BF16;
    if (types >= 3) rung.master = HY_BF16;
    rung.has_snapshot = memory < 1;
    rung.is_slow_8bit = memory == 2;
    rung.predicts = memory < 3;
    return rung;
}

static bool is_same(const hy_subject *a, const hy_subject *b) {
    const hy_types *x = &a->rows.types, *y = &b->rows.types;
    return x->master == y->master && x->grads == y->grads && x->optim == y->optim &&
           x->slow == y->slow && a->predictor.kind == b->predictor.kind &&
           a->rows.has_snapshot == b->rows.has_snapshot;
}

/* Sets the subject of a rung; is_there stays false where settings or device do not go with it, or where
 * it is a rung that there was. */
static void place_rung(ladder *l, const hy_subject *base, int memory, int types) {
    trial *t = &l->at[memory][types];
    hy_rung rung = rung_at(memory, types);
    bool is_small = base->settings->memory.small_types == HY_SMALL_ALL;
    if (rung.is_slow_8bit && !is_small) return;
    if (hy_subject_with(base, base->settings, &rung, &t->subject) != HY_OK) return;
    for (int m = 0; m <= memory; m++) {
        for (int k = 0; k < TYPES; k++) {
            bool is_before = m < memory || k < types;
            const trial *other = &l->at[m][k];
            if (is_before && other->is_there && is_same(&other->subject, &t->subject)) return;
        }
    }
    t->is_there = true;
}

static hy_status plan_rung(trial *t, const hy_rates *rates) {
    hy_plan_setup setup;
    HY_TRY(hy_plan_setup_begin(&setup, &t->subject, rates));
    hy_status status = hy_plan_choose(&setup.problem, &t->plan);
    hy_plan_setup_end(&setup);
    return status;
}

/* What is fixed may not go with the finest types: predictor_dtype 8bit with an fp32 master. */
hy_status hy_subject_finest(const hy_subject *base, const hy_settings *settings, hy_subject *out) {
    char why[HY_ERROR_MESSAGE_MAX];
    hy_rung rung = rung_at(0, 0);
    hy_status status = hy_subject_with(base, settings, &rung, out);
    if (status != HY_ERR_INPUT || settings->memory.small_types != HY_SMALL_ALL) return status;
    snprintf(why, sizeof why, "%s", hy_error_message());
    for (int types = 1; types < TYPES; types++) {
        rung = rung_at(0, types);
        if (hy_subject_with(base, settings, &rung, out) == HY_OK) return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "%s", why);
}

/* The smallest rung needs least. */
hy_status hy_ladder_fits(const hy_subject *x, const hy_settings *settings, const hy_rates *rates,
                         bool *fits) {
    hy_subject finest, smallest;
    hy_plan_setup setup;
    hy_plan plan;
    hy_rung rung;
    HY_TRY(x->keeps_rung ? hy_subject_with(x, settings, &x->rung, &finest)
                         : hy_subject_finest(x, settings, &finest));
    smallest = finest;
    for (int types = allowed_types(&finest) - 1; types >= 0 && !x->keeps_rung; types--) {
        rung = rung_at(MEMORIES - 1, types);
        if (hy_subject_with(x, settings, &rung, &smallest) == HY_OK) break;
    }
    HY_TRY(hy_plan_setup_begin(&setup, &smallest, rates));
    hy_status status = hy_plan_leanest(&setup.problem, false, &plan);
    hy_plan_setup_end(&setup);
    *fits = status == HY_OK && plan.fits;
    return status;
}

/* ---- choosing -------------------------------------------------------------------------------------- */

static double speed_of(const trial *t) {
    return t->is_there && t->plan.fits ? t->plan.cost.tokens_per_second : 0;
}

static double fastest_with(const ladder *l, int memory) {
    double best = 0;
    for (int k = 0; k < TYPES; k++) {
        double speed = speed_of(&l->at[memory][k]);
        if (speed > best) best = speed;
    }
    return best;
}

/* Where nothing fits, the rung that is least short of device memory, then of host memory. */
static void choose_least_short(ladder *l) {
    const hy_plan *best = NULL;
    for (int m = 0; m < MEMORIES; m++) {
        for (int k = 0; k < TYPES; k++) {
            const hy_plan *p = &l->at[m][k].plan;
            if (!l->at[m][k].is_there) continue;
            bool is_less = !best || p->device_short < best->device_short ||
                           (p->device_short == best->device_short &&
                            p->host_short + p->disk_short < best->host_short + best->disk_short);
            if (!is_less) continue;
            best = p;
            l->memory = m;
            l->types = k;
        }
    }
}

static void choose(ladder *l) {
    double fastest = 0, wanted;
    for (int m = 0; m < MEMORIES; m++) {
        if (fastest_with(l, m) > fastest) fastest = fastest_with(l, m);
    }
    if (fastest == 0) {
        choose_least_short(l);
        return;
    }
    wanted = fastest * (1 - PREDICTION_PAYS);
    while (fastest_with(l, l->memory) < wanted) l->memory++;
    wanted = fastest_with(l, l->memory) * NEARLY_AS_FAST;
    while (speed_of(&l->at[l->memory][l->types]) < wanted) l->types++;
}

/* ---- why ------------------------------------------------------------------------------------------- */

static void add_reason(hy_plan_facts *facts, const char *text) {
    if (facts->reason_count == HY_PLAN_REASONS) return;
    snprintf(facts->reasons[facts->reason_count++], HY_PLAN_TEXT, "%s", text);
}

/* What the finer rung would have cost. */
static void say_why_not(const trial *finer, const trial *taken, const char *than, const char *so,
                        hy_text *out) {
    const hy_plan *p = &finer->plan;
    if (p->fits) {
        double seconds = taken->plan.cost.seconds;
        hy_text_addf(out, "the run is %.2f times as fast%s",
                     seconds > 0 ? p->cost.seconds / seconds : 1, so);
    } else if (p->device_short) {
        hy_text_addf(out, "%s would be %s short of device memory", than,
                     hy_bytes_as_text(p->device_short).text);
    } else {
        hy_text_addf(out, "%s would be %s short of %s", than,
                     hy_bytes_as_text(p->host_short ? p->host_short : p->disk_short).text,
                     p->host_short ? "host memory" : "disk");
    }
}

static void explain_types(const ladder *l, const trial *finest, hy_plan_facts *facts) {
    const trial *taken = &l->at[l->memory][l->types];
    if (l->at[l->memory][0].is_there) finest = &l->at[l->memory][0]; /* types alone differ */
    const hy_rung *now = &taken->subject.rung, *fine = &finest->subject.rung;
    const hy_settings *s = taken->subject.settings;
    bool is_8bit_asked = s->optimizer.optimizer & HY_OPTIMIZER_8BIT;
    bool is_exact = taken->subject.rows.optimizer.kind->is_exact;
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
        hy_text_add(&text, ": ");
        if (is_asked) {
            hy_text_add(&text, "what is fixed asks for it");
        } else {
            say_why_not(finest, taken, "fp32", "", &text);
        }
        add_reason(facts, hy_text_string(&text));
    }
    hy_text_free(&text);
}

static void explain_prediction(const ladder *l, const trial *finest, hy_plan_facts *facts) {
    static const char *const words[MEMORIES] = {
        "", "no snapshot for a late rejection of jumps: ", "what the predictor keeps in 8 bits: ",
        "prediction stands aside: "};
    static const char *const than[MEMORIES] = {"", "with one it", "in 16 bits it",
                                               "with it the run"};
    const trial *taken = &l->at[l->memory][l->types], *finer = finest;
    bool had = finest->subject.predictor.kind != HY_PREDICTOR_NONE;
    for (int m = 0; m < l->memory; m++) {
        if (l->at[m][l->types].is_there) finer = &l->at[m][l->types];
    }
    if (l->memory == 0 || !had) return;
    hy_text text = {0};
    hy_text_add(&text, words[l->memory]);
    say_why_not(finer, taken, than[l->memory], l->memory == 3 ? " without it" : "", &text);
    add_reason(facts, hy_text_string(&text));
    if (l->memory == 3)
        snprintf(facts->no_prediction, sizeof facts->no_prediction, "%s", hy_text_string(&text));
    hy_text_free(&text);
}

/* ---- the plan -------------------------------------------------------------------------------------- */

/* The finest rung with nothing streamed and nothing made again. */
static bool is_settled(const hy_plan *plan, const hy_plan_problem *problem) {
    const hy_plan_choice *c = &plan->choice;
    bool recomputes = problem->open.recompute && c->recompute != HY_RECOMPUTE_NONE;
    return plan->fits && !recomputes && !hy_choice_streams(c) && c->activations == HY_DEVICE;
}

static bool has_fixed_places(const hy_settings *s) {
    const hy_place places[] = {s->memory.weights_place, s->memory.master_place,
                               s->memory.grads_place, s->memory.optim_place,
                               s->memory.activations_place};
    bool is_fixed = false;
    for (int i = 0; i < 5; i++) is_fixed |= places[i] != HY_PLACE_AUTO;
    return is_fixed;
}

static hy_status finish(const hy_subject *x, const hy_rates *rates, hy_plan *plan,
                        hy_plan_facts *facts) {
    hy_plan_setup setup;
    hy_plan_reasons reasons = {0};
    HY_TRY(hy_plan_setup_begin(&setup, x, rates));
    hy_status status = hy_plan_explain(&setup.problem, plan, &reasons);
    hy_plan_setup_end(&setup);
    HY_TRY(status);
    hy_plan_tell(x, plan, facts);
    const char *no_fp8 = hy_fp8_why_none(x);
    if (no_fp8) add_reason(facts, no_fp8);
    if (hy_types_have_fp8(&x->rows.types)) {
        char words[HY_PLAN_TEXT];
        hy_fp8_describe(x, words, sizeof words);
        add_reason(facts, words);
    }
    for (int i = 0; i < reasons.count; i++) add_reason(facts, reasons.text[i]);
    if (plan->fits) return x->guest ? HY_OK : hy_advise_tokens(x, rates, plan, facts);
    return hy_advise_fit(x, rates, facts);
}

/* Planned as it is; measured only where somebody asks how fast it would be, or something has to give. */
static hy_status plan_as_is(const hy_subject *x, hy_rates *rates, hy_plan *plan, bool *is_best) {
    hy_plan_setup setup;
    *rates = hy_plan_nominal_rates(x->backend);
    HY_TRY(hy_plan_setup_begin(&setup, x, rates));
    hy_status status = hy_plan_evaluate(&setup.problem, &setup.problem.base, plan);
    bool is_kept = setup.problem.keeps_batch || setup.problem.prefers_batch;
    bool needs_rates = x->is_plan || !plan->fits || !is_kept;
    if (status == HY_OK && needs_rates) {
        *rates = hy_plan_measured_rates(x);
        hy_plan_setup_end(&setup); /* what it knows of seconds was by other rates */
        HY_TRY(hy_plan_setup_begin(&setup, x, rates));
    }
    if (status == HY_OK) status = hy_plan_choose(&setup.problem, plan);
    *is_best = is_settled(plan, &setup.problem);
    hy_plan_setup_end(&setup);
    return status;
}

static hy_status climb(ladder *l, const hy_subject *base, const hy_rates *rates, trial *finest) {
    int types = allowed_types(base);
    l->at[0][0] = *finest;
    for (int m = 0; m < MEMORIES; m++) {
        for (int k = 0; k < types; k++) {
            if (m + k > 0) place_rung(l, base, m, k);
            if (m + k > 0 && l->at[m][k].is_there) HY_TRY(plan_rung(&l->at[m][k], rates));
        }
    }
    choose(l);
    return HY_OK;
}

hy_status hy_plan_make(hy_subject *x, hy_plan *plan, hy_plan_facts *facts) {
    hy_rates rates;
    trial finest = {.is_there = true, .subject = *x};
    bool is_best;
    *facts = (hy_plan_facts){0};
    HY_TRY(plan_as_is(x, &rates, &finest.plan, &is_best));
    *plan = finest.plan;
    /* Who says where state lives gets the same bits there: only what does not fit has to give. */
    bool may_choose = !x->keeps_rung && (!finest.plan.fits || !has_fixed_places(x->settings));
    if (!is_best && may_choose) {
        ladder *l = calloc(1, sizeof *l);
        if (!l) return hy_fail(HY_ERR_MEMORY, "no memory for planning");
        hy_status status = climb(l, x, &rates, &finest);
        if (status == HY_OK) {
            *x = l->at[l->memory][l->types].subject;
            *plan = l->at[l->memory][l->types].plan;
            explain_types(l, &finest, facts);
            explain_prediction(l, &finest, facts);
        }
        free(l);
        HY_TRY(status);
    }
    return finish(x, &rates, plan, facts);
}
