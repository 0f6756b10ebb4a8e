/* steering.c: adapts the micro-batch to the free memory, between steps. See steering.h.
 *
 * When other programs take memory, the micro-batch shrinks to what fits, with more of them per
 * step; at the smallest size, layers recompute everything, and in an emergency the run is
 * planned again. When memory is free again, the micro-batch grows back one size at a time. With
 * step_tokens, the first steps of a run on a card time a few sizes and keep the fastest. All of
 * these steps count: the results differ only by rounding. Several ranks vote, and all follow the
 * rank with the least memory. */
#include "trainer/steering.h"

#include <math.h>
#include <stdio.h>

#include "trainer/fork_rules.h"
#include "trainer/monitor_look.h"
#include "trainer/ranks.h"
#include "trainer/resize.h"

#define STEPS_OUT_OF_MEMORY 3 /* in a row; then the run saves itself and stops */
#define TRIAL_STEPS 3         /* steps of each size; the first one is not timed */
#define SHORTEST_SEARCH 50    /* in fewer steps a search gains nothing */

/* ---- how much there is ----------------------------------------------------------------------- */

/* The memory that holds micro-batches: the card's, or the machine's. */
typedef struct memory {
    hy_memory_status status;
    uint64_t held, budget; /* what the run holds, and what it may hold; 0: no limit is known */
} memory;

static memory look_around(const hy_trainer *t) {
    hy_memory_look look = hy_monitor_look(t, false);
    if (t->engine->device.backend->facts.is_gpu) {
        return (memory){look.device.status, look.device.reserved, look.device.budget};
    }
    uint64_t held = look.resident > look.host.reserved ? look.resident : look.host.reserved;
    return (memory){look.host.status, held, look.host.budget};
}

static bool fits(const hy_trainer *t, const memory *r, int64_t batch, double share) {
    hy_plan plan;
    if (r->budget == 0) return true;
    if (hy_trainer_work_at(t, batch, &plan) != HY_OK) return false;
    uint64_t now = hy_plan_work_bytes(&t->engine->plan->work),
             then = hy_plan_work_bytes(&plan.work);
    uint64_t rest = r->held > now ? r->held - now : 0;
    return (double)(rest + then) <= share * (double)r->budget;
}

/* ---- what to do about it --------------------------------------------------------------------- */

/* The largest smaller size with which the run is within its target, or the smallest size. */
static int64_t size_that_fits(const hy_trainer *t, const memory *r) {
    int64_t least = 0;
    for (int64_t b = hy_smaller_batch(t); b > 0; b = hy_next_batch(t, b, -1, b)) {
        least = b;
        if (fits(t, r, b, t->settings->memory.target_usage)) break;
    }
    return least;
}

/* The vote of a rank; the smallest values count for all. */
typedef struct vote {
    int64_t batch;    /* the micro-batch; 0: no size helps, so the plan must change */
    bool keeps_forks; /* false: host memory is short, so the copy for paired tests is freed */
    bool goes_on;     /* false: the system is about to kill the process */
    double cap;       /* device bytes that another plan may use; below 0: no device memory */
} vote;

/* On a card, the copy for paired tests is the only host memory that a run can free; on a CPU it
 * is freed last. */
static vote own_vote(hy_trainer *t, bool is_due) {
    memory r = look_around(t);
    bool is_gpu = t->engine->device.backend->facts.is_gpu, is_less = r.status >= HY_MEMORY_CRITICAL;
    vote v = {.batch = t->engine->plan->choice.batch,
              .keeps_forks = true,
              .goes_on = true,
              .cap = !is_gpu         ? -1
                     : r.budget == 0 ? INFINITY
                                     : t->settings->memory.target_usage * (double)r.budget};
    if (is_less) {
        int64_t batch = size_that_fits(t, &r);
        if (batch > 0 || r.status == HY_MEMORY_EMERGENCY) v.batch = batch;
    } else if (r.status == HY_MEMORY_NORMAL && is_due && t->progress->step >= t->steering.grow_at) {
        int64_t asked = t->settings->train.max_batch_size;
        int64_t larger = hy_next_batch(t, v.batch, 1, asked ? asked : t->first_batch);
        double share = fmax(t->settings->memory.target_usage, t->steering.first_share);
        if (larger > 0 && fits(t, &r, larger, share)) v.batch = larger;
    }
    bool is_last = v.batch == 0 && hy_recomputes_all(&t->engine->plan->choice);
    if (is_gpu ? is_less || !hy_trainer_is_short(t) : !is_last) return v;
    v.keeps_forks = t->monitor->host.status < HY_MEMORY_CRITICAL;
    bool has_forks = t->schedule->fork_state.data && !t->schedule->fork.is_open;
    if (!v.keeps_forks && has_forks) return v;
    /* Before the system kills processes, the run saves itself and stops: when the machine's reserve
     * has been in use for several steps in a row. */
    bool is_near = t->monitor->host.status == HY_MEMORY_EMERGENCY &&
                   hy_monitor_look(t, false).host.utilization >= 1;
    t->steering.steps_out_of_memory = is_near ? t->steering.steps_out_of_memory + 1 : 0;
    v.goes_on = t->steering.steps_out_of_memory < STEPS_OUT_OF_MEMORY;
    if (!v.goes_on) t->steering.steps_out_of_memory = 0;
    return v;
}

/* ---- less ------------------------------------------------------------------------------------ */

/* A smaller micro-batch, or more recomputation, or another plan. If no plan fits, the run continues
 * unchanged. */
static hy_status use_less(hy_trainer *t, const vote *v) {
    const char *reason = t->team                                   ? "a rank is low on memory"
                         : t->engine->device.backend->facts.is_gpu ? "device memory is low"
                                                                   : "memory is low";
    hy_trainer_back_off(t);
    hy_trainer_give_up_room(t);
    if (v->batch > 0) return hy_trainer_resize(t, v->batch, reason);
    if (!hy_recomputes_all(&t->engine->plan->choice)) return hy_trainer_recompute_all(t, reason);
    if (v->cap < 0 || t->steering.has_replanned) return HY_OK;
    t->steering.has_replanned = true; /* only once: a second search would not find a plan either */
    hy_status status = hy_trainer_replan(t, isinf(v->cap) ? 0 : (uint64_t)v->cap,
                                         t->engine->request.host_cap, "device memory is low");
    if (status != HY_ERR_INPUT) return status;
    hy_say(t, HY_WARNING, "%s; the run continues unchanged", hy_error_message());
    return HY_OK;
}

/* ---- the fastest ----------------------------------------------------------------------------- */

static void add_trial(hy_trainer *t, int64_t batch) {
    hy_steering *s = &t->steering;
    if (batch > 0) s->trial[s->trials++] = (hy_batch_trial){.batch = batch, .seconds = INFINITY};
}

/* Before the first step of a session. True: the planned size and its neighbours will be timed. */
static bool begin(hy_trainer *t) {
    memory now = look_around(t);
    t->steering.is_begun = true;
    t->steering.first_share = now.budget ? (double)now.held / (double)now.budget : 0;
    bool is_timed = !t->team && t->settings->train.dynamic_batch == HY_AUTO &&
                    t->settings->train.step_tokens > 0 && t->settings->train.normalize &&
                    t->engine->device.backend->facts.is_gpu && t->progress->step == 0 &&
                    t->schedule->steps_total >= SHORTEST_SEARCH;
    if (!is_timed) return false;
    int64_t batch = t->engine->plan->choice.batch, asked = t->settings->train.max_batch_size;
    int64_t larger = hy_next_batch(t, batch, 1, asked ? asked : INT64_MAX);
    add_trial(t, batch);
    if (larger > 0 && fits(t, &now, larger, 1)) add_trial(t, larger);
    add_trial(t, hy_smaller_batch(t));
    return true;
}

static hy_status end_search(hy_trainer *t) {
    hy_steering *s = &t->steering;
    const hy_batch_trial *best = &s->trial[0];
    char reason[128];
    for (int i = 1; i < s->trials; i++) {
        if (s->trial[i].seconds < best->seconds) best = &s->trial[i];
    }
    int64_t batch = best->batch;
    snprintf(reason, sizeof reason, "the fastest of %d candidates (%.3f s per step)", s->trials,
             best->seconds);
    s->trials = 0;
    t->first_batch = batch;
    return batch == t->engine->plan->choice.batch ? HY_OK : hy_trainer_resize(t, batch, reason);
}

/* The last step belongs to the current trial. */
static hy_status go_on_searching(hy_trainer *t) {
    hy_steering *s = &t->steering;
    hy_batch_trial *now = &s->trial[s->at];
    /* If memory ran out in this trial, its size has changed. */
    bool is_as_tried = now->batch == t->engine->plan->choice.batch;
    if (is_as_tried && s->steps > 0) now->seconds = fmin(now->seconds, t->throughput.step_seconds);
    if (++s->steps < TRIAL_STEPS && is_as_tried) return HY_OK;
    s->steps = 0;
    if (++s->at == s->trials) return end_search(t);
    return hy_trainer_resize(t, s->trial[s->at].batch, "testing which size is fastest");
}

/* ---- between steps --------------------------------------------------------------------------- */

hy_status hy_trainer_steer(hy_trainer *t) {
    t->steering.all_ranks_end = false;
    if (!t->monitor || t->settings->train.dynamic_batch == HY_OFF) return HY_OK;
    if (!t->steering.is_begun && begin(t)) return HY_OK;
    bool is_due = t->progress->step % t->settings->train.batch_check_every == 0;
    bool is_short = t->team ? t->ranks.agreed.is_short : hy_trainer_is_short(t);
    if (!is_short) t->steering.steps_out_of_memory = 0;
    if (t->steering.trials > 0 && !is_short) return go_on_searching(t);
    if (!is_due && !is_short) return HY_OK;
    vote v = own_vote(t, is_due);
    double values[] = {(double)v.batch, v.keeps_forks, v.goes_on, v.cap};
    HY_TRY(hy_ranks_least(t, values, 4)); /* all do what the rank with the least memory needs */
    v = (vote){(int64_t)values[0], values[1] != 0, values[2] != 0, values[3]};
    int64_t now = t->engine->plan->choice.batch;
    if (!v.goes_on) {
        t->steering.all_ranks_end = true;
        return hy_fail(
            HY_ERR_MEMORY,
            "the machine is running out of memory: what host_reserve should keep free is in use");
    }
    if (!v.keeps_forks && t->schedule->fork_state.data && !t->schedule->fork.is_open) {
        hy_fork_end(t);
        hy_say(t, HY_WARNING,
               "host memory is low: the copy for paired tests was freed, and there will be no more "
               "paired tests");
    }
    if (v.batch < now) return use_less(t, &v);
    if (v.batch == now) return HY_OK;
    t->steering.grow_at = t->progress->step + t->settings->train.batch_check_every;
    return hy_trainer_resize(t, v.batch, "memory is free again");
}
