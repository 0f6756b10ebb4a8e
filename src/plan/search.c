/* search.c: compares all open choices and takes the fastest that fits. See plan.h.
 *
 * The search is a nest of loops. From outside in, which is from the end of this file upwards: disk
 * or not, micro-batches, recomputation, place of activations, loss chunks, places of the state,
 * rings and when the update runs. As many layers as fit stay on the device. consider() counts bytes
 * and seconds of the choice and compares it with the best so far. A choice whose passes alone, or
 * copies alone, take longer than the best plan is skipped. Disk is tried only if nothing fits
 * without it, and so are splitting a given micro-batch and mlps in chunks. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "plan/sizer.h"

#define MOST_BATCHES 64
#define LAYER_STEPS 4 /* recompute in 1/4, 2/4, 3/4 or all of the layers */

#define RING_DEPTHS 3
static const int32_t ring_depths[RING_DEPTHS] = {3, 2, 4};
static const uint64_t logit_sizes[] = {1u << 30, 1u << 29, 1u << 28, 1u << 27, 1u << 26};
#define LOGIT_SIZES (sizeof logit_sizes / sizeof logit_sizes[0])
#define LEAST_RING 2
#define DEEPEST_RING 4
#define PLACES 3
#define PLACINGS (2 * 81) /* places of four classes, and the predictor's state on disk or not */
#define ROUNDING (1 + 1e-9)

typedef struct search {
    const hy_plan_problem *problem;
    bool may_use_disk;
    bool tiles_mlps;
    bool is_lean;         /* try only the smallest choices: does anything fit? */
    bool is_about_device; /* minimise device memory; else host memory */
    bool has_plan;        /* best is set, whether it fits or not */
    hy_plan *best;
    double most;            /* seconds of a step that a plan reaches; INFINITY: not known */
    double least[PLACINGS]; /* seconds of a step with these places, at least; 0: not known */
} search;
_Static_assert(HY_PLAN_STATES == 4, "PLACINGS counts the places of four classes");

/* ---- one choice ------------------------------------------------------------------------------ */

static uint64_t excess(uint64_t needed, uint64_t limit) {
    return needed > limit ? needed - limit : 0;
}

static void count_bytes(const hy_plan_problem *p, hy_plan *plan) {
    plan->device = hy_plan_work_bytes(&plan->work) + plan->state.device + plan->state.rings;
    plan->host = hy_plan_host_bytes(plan) + (p->limits.is_unified ? plan->device : 0);
    plan->disk = plan->state.disk;
    plan->device_short = excess(plan->device, p->limits.device);
    plan->host_short = excess(plan->host, p->limits.host);
    plan->disk_short = excess(plan->disk, p->limits.disk);
    plan->fits = !plan->device_short && !plan->host_short && !plan->disk_short;
}

static void estimate(const hy_plan_problem *p, hy_plan *plan) {
    hy_plan_cost_of(p, &plan->choice, &plan->work, &plan->state, &plan->cost);
}

static void complete(const hy_plan_problem *p, hy_plan *plan) {
    count_bytes(p, plan);
    estimate(p, plan);
}

static hy_plan begin(const hy_plan_problem *p, const hy_plan_choice *choice) {
    hy_plan plan = p->basis ? *p->basis : (hy_plan){0};
    plan.choice = *choice;
    return plan;
}

hy_status hy_plan_evaluate(const hy_plan_problem *problem, const hy_plan_choice *choice,
                           hy_plan *out) {
    hy_plan plan = begin(problem, choice);
    HY_TRY(hy_sizer_work(problem->sizer, choice, &plan.work));
    hy_sizer_state(problem->sizer, choice, &plan.state);
    HY_TRY(hy_sizer_lend(problem->sizer, choice, &plan.work));
    *out = plan;
    complete(problem, out);
    return HY_OK;
}

/* A plan that fits is better; then the faster one; then the one with less host memory. If none
 * fits, the one that lacks the least memory: device memory first, because only host memory can
 * be added to a machine. */
static bool is_better(const search *s, const hy_plan *a, const hy_plan *b) {
    if (a->fits != b->fits) return a->fits;
    if (!a->fits) {
        if (a->device_short != b->device_short) return a->device_short < b->device_short;
        return a->host_short + a->disk_short < b->host_short + b->disk_short;
    }
    if (s->is_lean) return s->is_about_device ? a->device < b->device : a->host < b->host;
    if (a->cost.seconds != b->cost.seconds) return a->cost.seconds < b->cost.seconds;
    return a->host < b->host;
}

/* The time of a plan that does not fit is estimated at the end of the search. */
static void consider(search *s, hy_plan *plan) {
    count_bytes(s->problem, plan);
    if (!plan->fits && s->best->fits) return;
    if (plan->fits) estimate(s->problem, plan);
    if (s->has_plan && !is_better(s, plan, s->best)) return;
    *s->best = *plan;
    s->has_plan = true;
    if (plan->fits && !s->is_lean) s->most = plan->cost.seconds;
}

/* ---- state: rings, layers that stay, update -------------------------------------------------- */

static bool fits_device(const search *s, hy_plan *plan, int32_t resident) {
    plan->choice.resident_units = resident;
    hy_sizer_state(s->problem->sizer, &plan->choice, &plan->state);
    return hy_plan_work_bytes(&plan->work) + plan->state.device + plan->state.rings <=
           s->problem->limits.device;
}

/* As many resident layers as fit: they are not copied and need no host memory. The state is then
 * that of the plan. */
static void fill_with_layers(const search *s, hy_plan *plan) {
    const hy_plan_problem *p = s->problem;
    int32_t least = 0, most = p->layers;
    bool needs_device_least = s->is_lean && s->is_about_device;
    bool is_open = p->open.resident_units && !needs_device_least;
    /* If groups place units, all others may stay, embedding and head too. */
    if (is_open && p->has_places && fits_device(s, plan, p->layers + 2)) return;
    if (!is_open || !hy_choice_streams(&plan->choice)) least = most = p->base.resident_units;
    while (least < most) {
        int32_t middle = (least + most + 1) / 2;
        if (fits_device(s, plan, middle)) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    fits_device(s, plan, least);
}

/* If activations are offloaded, try_activations has chosen the depth, because they use it too. */
static void try_rings(search *s, hy_plan *plan) {
    const hy_plan_problem *p = s->problem;
    hy_plan_choice *c = &plan->choice;
    int32_t before = c->ring_depth;
    bool streams = hy_choice_streams(c);
    bool is_open = p->open.ring_depth && c->activations == HY_DEVICE && streams;
    for (int i = 0; i < (is_open && !s->is_lean ? RING_DEPTHS : 1); i++) {
        if (is_open) c->ring_depth = s->is_lean ? LEAST_RING : ring_depths[i];
        fill_with_layers(s, plan);
        c->keeps_update_pending = p->open.update ? streams : p->base.keeps_update_pending;
        consider(s, plan);
        if (!p->open.update || s->is_lean || !c->keeps_update_pending) continue;
        c->keeps_update_pending = false;
        consider(s, plan);
    }
    c->ring_depth = before;
}

/* The seconds of a step with these places if passes took no memory and no time: most layers stay on
 * the device, and no time but that of copies and the update remains. INFINITY: it never fits. */
static double least_seconds(const search *s, const hy_plan *plan) {
    hy_plan free = *plan;
    double least = INFINITY;
    bool is_open = s->problem->open.ring_depth;
    free.work = (hy_plan_work){0};
    free.choice.activations = HY_DEVICE;
    if (is_open) free.choice.ring_depth = LEAST_RING;
    fill_with_layers(s, &free);
    if (is_open) free.choice.ring_depth = DEEPEST_RING;
    for (int is_pending = 0; is_pending < 2; is_pending++) {
        free.choice.keeps_update_pending = is_pending;
        complete(s->problem, &free);
        if (free.fits) least = fmin(least, free.cost.seconds);
    }
    return least;
}

/* Tries every place of every open class, one class after the other. `placing` numbers the places
 * of the classes before. */
static void try_places(search *s, hy_plan *plan, int cls, int placing) {
    static const hy_place places[PLACES] = {HY_DEVICE, HY_PINNED, HY_DISK};
    const hy_plan_problem *p = s->problem;
    if (cls == HY_PLAN_STATES) {
        double *least = &s->least[placing];
        if (s->most < INFINITY && *least == 0) *least = least_seconds(s, plan);
        if (*least <= s->most * ROUNDING) try_rings(s, plan);
        return;
    }
    bool is_open = p->open.state[cls] && (cls != HY_PLAN_MASTER || p->has_master);
    for (int i = 0; i < (!is_open ? 1 : s->may_use_disk ? PLACES : PLACES - 1); i++) {
        plan->choice.state[cls] = is_open ? places[i] : p->base.state[cls];
        try_places(s, plan, cls + 1, PLACES * placing + i);
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_status try_work(search *s, const hy_plan_choice *choice) {
    hy_plan plan = begin(s->problem, choice);
    HY_TRY(hy_sizer_work(s->problem->sizer, choice, &plan.work));
    double least = choice->accum * (plan.work.forward + plan.work.backward);
    if (least > s->most * ROUNDING) return HY_OK;
    try_places(s, &plan, 0, 0);
    if (!s->may_use_disk || !s->problem->open.predictor) return HY_OK;
    plan.choice.predictor = HY_DISK;
    try_places(s, &plan, 0, 1);
    return HY_OK;
}

/* More loss chunks mean fewer logits at a time, and more passes over the head's gradient. */
static hy_status try_chunks(search *s, hy_plan_choice *choice) {
    const hy_plan_problem *p = s->problem;
    int32_t before = 0;
    if (!p->open.loss_chunks) {
        choice->loss_chunks = p->base.loss_chunks;
        return try_work(s, choice);
    }
    for (size_t i = s->is_lean ? LOGIT_SIZES - 1 : 0; i < LOGIT_SIZES; i++) {
        choice->loss_chunks = hy_sizer_chunks(p->sizer, choice->batch, logit_sizes[i]);
        if (choice->loss_chunks != before) HY_TRY(try_work(s, choice));
        before = choice->loss_chunks;
    }
    return HY_OK;
}

/* Activations are offloaded in all layers or in none. */
static hy_status try_activations(search *s, hy_plan_choice *choice) {
    const hy_plan_problem *p = s->problem;
    bool is_for_all = choice->recompute_layers == 0 || !p->open.recompute_layers;
    choice->activations = p->base.activations;
    choice->ring_depth = p->base.ring_depth;
    HY_TRY(try_chunks(s, choice));
    if (!p->open.activations || !is_for_all) return HY_OK;
    choice->activations = HY_PINNED;
    for (int i = 0; i < (p->open.ring_depth ? RING_DEPTHS : 1); i++) {
        if (p->open.ring_depth) choice->ring_depth = ring_depths[i];
        HY_TRY(try_chunks(s, choice));
    }
    return HY_OK;
}

/* ---- micro-batches --------------------------------------------------------------------------- */

static hy_status try_batch(search *s, int32_t batch) {
    assert(batch > 0);
    hy_plan_choice choice = s->problem->base;
    choice.batch = batch;
    choice.accum = (int32_t)(s->problem->step_sequences / batch);
    const hy_plan_problem *p = s->problem;
    int64_t rows = (int64_t)batch * p->seq;
    int32_t tiles = hy_batch_divide(rows, rows / HY_MLP_ROWS);
    if (s->tiles_mlps && tiles > choice.mlp_chunks) choice.mlp_chunks = tiles;
    memset(s->least, 0, sizeof s->least);
    for (int kind = 0; kind < HY_RECOMPUTE_COUNT; kind++) {
        if (!p->open.recompute && (hy_recompute)kind != p->base.recompute) continue;
        bool is_open = p->open.recompute_layers && kind != HY_RECOMPUTE_NONE;
        choice.recompute = (hy_recompute)kind;
        for (int step = 1; step <= (is_open ? LAYER_STEPS : 1); step++) {
            int32_t layers = is_open ? p->layers * step / LAYER_STEPS : p->base.recompute_layers;
            if (is_open && layers < 1) continue;
            choice.recompute_layers = is_open && layers == p->layers ? 0 : layers; /* 0: all */
            HY_TRY(try_activations(s, &choice));
        }
    }
    return HY_OK;
}

/* The range of an open micro-batch. One that keeps any device busy is large enough, unless the user
 * asks for more. A given micro-batch only becomes smaller. */
static void limits_of_batch(const hy_plan_problem *p, int64_t *least, int64_t *most) {
    int64_t busy = p->seq < HY_BUSY_ROWS ? HY_BUSY_ROWS / p->seq : 1;
    *least = p->least_batch > 0 ? p->least_batch : 1;
    *most = p->keeps_batch ? p->base.batch - 1 : busy > *least ? busy : *least;
    if (p->most_batch > 0 && *most > p->most_batch) *most = p->most_batch;
    if (*most > p->step_sequences) *most = p->step_sequences;
}

/* Micro-batches that divide a step, the largest first; of a lean search, only the smallest one. */
static hy_status try_batches(search *s) {
    const hy_plan_problem *p = s->problem;
    int64_t least, most, smallest = 0;
    limits_of_batch(p, &least, &most);
    for (int64_t batch = most, tried = 0; batch >= least && tried < MOST_BATCHES; batch--) {
        if (p->step_sequences % batch != 0) continue;
        if (!s->is_lean) HY_TRY(try_batch(s, (int32_t)batch));
        smallest = batch;
        tried++;
    }
    HY_FAIL_IF(!smallest && !p->keeps_batch, HY_ERR_INPUT,
               "a step has %lld sequences on each rank, a number without a divisor from %lld to "
               "%lld, so it cannot be split into equal micro-batches: change the size of a step, "
               "min_batch_size or max_batch_size",
               (long long)p->step_sequences, (long long)least, (long long)most);
    return s->is_lean && smallest ? try_batch(s, (int32_t)smallest) : HY_OK;
}

/* Tries choices without disk before choices with disk, the given micro-batch before smaller ones,
 * and all of these with whole mlps first. */
static hy_status search_all(search *s) {
    const hy_plan_problem *p = s->problem;
    int ways = p->limits.has_folder ? 2 : 1;
    for (int way = 0; way < (p->open.mlp_chunks ? 2 : 1) * ways && !s->best->fits; way++) {
        bool searches = p->open.batch && !p->keeps_batch;
        s->may_use_disk = way % ways;
        s->tiles_mlps = way >= ways;
        HY_TRY(searches ? try_batches(s) : try_batch(s, p->base.batch));
        bool may_split = p->open.batch && p->keeps_batch && (s->is_lean || !s->best->fits);
        if (may_split) HY_TRY(try_batches(s));
    }
    return HY_OK;
}

/* Is the base the fastest plan if it fits? Yes, if it does not recompute or stream where this is
 * open, and the micro-batch is not searched. */
static bool is_at_best(const hy_plan_problem *p) {
    const hy_plan_choice *c = &p->base;
    bool is_best = (c->recompute == HY_RECOMPUTE_NONE || !p->open.recompute) &&
                   (c->activations == HY_DEVICE || !p->open.activations) &&
                   (p->keeps_batch || p->prefers_batch || !p->open.batch);
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        is_best &= c->state[i] == HY_DEVICE || !p->open.state[i];
    }
    return is_best;
}

static search begin_search(const hy_plan_problem *problem, hy_plan *best) {
    *best = begin(problem, &(hy_plan_choice){0});
    best->fits = false; /* nothing was compared yet */
    return (search){.problem = problem, .best = best, .most = INFINITY};
}

/* Adds Evaluate's loan to the best plan. The loan changes the data buffers, so bytes are counted
 * again. */
static hy_status end_search(const hy_plan_problem *problem, hy_plan *best) {
    HY_TRY(hy_sizer_lend(problem->sizer, &best->choice, &best->work));
    complete(problem, best);
    return HY_OK;
}

hy_status hy_plan_leanest(const hy_plan_problem *problem, bool is_about_device, hy_plan *out) {
    search s = begin_search(problem, out);
    s.is_lean = true;
    s.is_about_device = is_about_device;
    HY_TRY(search_all(&s));
    return end_search(problem, out);
}

/* If the request fits as it is, only rings and related values are searched. */
hy_status hy_plan_choose(const hy_plan_problem *problem, hy_plan *out) {
    hy_plan best;
    search s = begin_search(problem, &best);
    HY_TRY(hy_plan_evaluate(problem, &problem->base, out));
    if (out->fits && is_at_best(problem)) {
        try_rings(&s, out);
    } else {
        hy_plan lean;
        HY_TRY(hy_plan_leanest(problem, false, &lean));
        bool may_split = problem->keeps_batch && lean.choice.batch != problem->base.batch;
        if (lean.fits && !may_split) s.most = lean.cost.seconds;
        if (!lean.fits && problem->ignores_unfit) {
            *out = lean;
            return HY_OK;
        }
        HY_TRY(search_all(&s));
    }
    *out = best;
    return end_search(problem, out);
}
