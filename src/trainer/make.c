/* make.c: creates a trainer from a configuration and retries with less memory. See make.h.
 *
 * The system may provide less memory than it reported as free. A run that does not get its
 * planned memory is destroyed and built again with a smaller plan, a few times. */
#include "trainer/make.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/build.h"
#include "trainer/join.h"
#include "trainer/ranks.h"
#include "trainer/reward_provider.h"

/* What failed attempts have shown. */
typedef struct retry_state {
    uint64_t device_cap, host_cap;
    /* The level and the fp8 matmuls of the first plan: changes that keep all bits are tried
     * first. */
    hy_plan_fixed fixed;
    bool is_level_too_large;
    bool is_out_ours; /* one of the attempts made the run's folder */
} retry_state;

static hy_status try_to_build(hy_trainer *t, const hy_config *config, const hy_observer *observer,
                              const hy_making *m, const retry_state *known) {
    *t->settings = *hy_config_settings(config);
    *t->schedule = (hy_run_schedule){0};
    *t->progress = (hy_progress){0};
    *t->facts = (hy_plan_facts){0};
    *t->record = (hy_record){.is_out_ours = known->is_out_ours};
    t->engine->request.device_cap = known->device_cap;
    t->engine->request.host_cap = known->host_cap;
    t->engine->request.fixed = known->fixed;
    *t = (hy_trainer){.settings = t->settings,
                      .engine = t->engine,
                      .schedule = t->schedule,
                      .progress = t->progress,
                      .facts = t->facts,
                      .record = t->record,
                      .provider = m->provider,
                      .team = m->team,
                      .ranks = {.is_lent = m->is_team_lent, .planned = m->planned},
                      .status.life = m->is_plan ? HY_LIFE_PLAN : HY_LIFE_READY,
                      .held_out = {.ngram_loss = NAN, .raw_val_loss = NAN}};
    if (observer) t->observer = *observer;
    t->record->observer = t->observer;
    HY_TRY(hy_config_print_absolute(config, &t->record->config_text));
    t->record->command = strdup(hy_config_command(config));
    HY_FAIL_IF(!t->record->command, HY_ERR_MEMORY, "not enough memory for the command's text");
    int32_t ranks = t->team ? t->team->who.count : m->planned.count;
    bool may_predict = t->settings->phases.predictor != HY_PREDICTOR_NONE;
    HY_TRY(hy_provider_settle(m->provider, ranks, t->settings));
    if (may_predict && t->settings->phases.predictor == HY_PREDICTOR_NONE)
        snprintf(t->facts->no_prediction, sizeof t->facts->no_prediction,
                 "task grpo makes no jumps, because a test of one would need new answers");
    if (t->team) hy_rank_settle(t->settings, t->team);
    if (m->planned.count > 0) hy_rank_plan(t->settings, m->planned.count);
    return hy_trainer_build(t);
}

/* If memory was refused, the plan was too large, whatever the system reported: the next plan
 * gets less of that memory. If nothing of the plan was refused, the same plan is tried again. */
static void learn_caps(const hy_trainer *t, retry_state *known) {
    const hy_plan_fixed *fixed = &t->engine->request.fixed;
    uint64_t device = t->facts->vram_bytes, host = t->facts->host_pinned_bytes;
    bool is_gpu = t->engine->device.backend && t->engine->device.backend->facts.is_gpu;
    known->is_out_ours |= t->record->is_out_ours;
    known->fixed = (hy_plan_fixed){.fp8 = fixed->fp8, .has_fp8 = fixed->has_fp8};
    bool is_planned = t->engine->plan->choice.batch > 0;
    known->fixed.has_level = (is_planned || fixed->has_level) && !known->is_level_too_large;
    known->fixed.level = is_planned ? t->engine->plan->level : fixed->level;
    if (t->engine->state->ledger.refused == HY_NOWHERE) return;
    if (!is_gpu) {
        known->host_cap = (device + host) / 8 * 7;
    } else if (t->engine->state->ledger.refused == HY_DEVICE) {
        known->device_cap = device / 8 * 7;
    } else {
        known->host_cap = host / 8 * 7;
    }
}

/* Decides what the next attempt does differently. All ranks have the same plan, so the smallest
 * cap counts for all. */
static hy_status learn(hy_trainer *t, const char *message, bool does_not_fit, retry_state *known) {
    if (does_not_fit) {
        /* The same plan again: memory may be free by now. If not, smaller types are tried next. */
        known->device_cap = known->host_cap = 0;
        known->is_level_too_large = true;
        return HY_OK;
    }
    if (hy_trainer_leads(t)) {
        bool is_smaller = t->engine->state->ledger.refused != HY_NOWHERE;
        hy_say(t, HY_WARNING, "%s; trying again with %s", message,
               is_smaller ? "a plan with less memory" : "the same plan");
    }
    learn_caps(t, known);
    double caps[2] = {known->device_cap ? (double)known->device_cap : INFINITY,
                      known->host_cap ? (double)known->host_cap : INFINITY};
    HY_TRY(hy_ranks_least(t, caps, 2));
    known->device_cap = isinf(caps[0]) ? 0 : (uint64_t)caps[0];
    known->host_cap = isinf(caps[1]) ? 0 : (uint64_t)caps[1];
    return HY_OK;
}

/* For a run on several ranks, planned or started: meets the other ranks, then refuses standard
 * input, which only one process can read. */
static hy_status join(const hy_config *config, const hy_observer *observer, hy_making *m) {
    const hy_settings *s = hy_config_settings(config);
    if (!m->is_plan && !m->is_team_lent) HY_TRY(hy_team_for(s, m->provider, observer, &m->team));
    bool is_joined = m->team && !m->is_team_lent;
    if (!m->provider->ops->open || (!is_joined && m->planned.count == 0)) return HY_OK;
    hy_status status = hy_rank_check(s);
    if (!is_joined || status == HY_OK) return status;
    status = hy_team_fail(m->team, status);
    hy_team_close(m->team);
    return status;
}

hy_status hy_trainer_alloc(hy_trainer **out) {
    struct { /* the parts in one block */
        hy_trainer trainer;
        hy_settings settings;
        hy_run_schedule schedule;
        hy_progress progress;
        hy_plan_facts facts;
        hy_record record;
    } *block = calloc(1, sizeof *block);
    *out = NULL;
    HY_FAIL_IF(!block, HY_ERR_MEMORY, "not enough memory for a trainer");
    hy_trainer *t = &block->trainer;
    t->settings = &block->settings;
    t->schedule = &block->schedule;
    t->progress = &block->progress;
    t->facts = &block->facts;
    t->record = &block->record;
    hy_status status = hy_engine_create(&t->engine);
    if (status != HY_OK) {
        free(block);
        return status;
    }
    *out = t;
    return HY_OK;
}

static void free_block(hy_trainer *t) {
    hy_engine_destroy(t->engine);
    free(t);
}

void hy_trainer_destroy(hy_trainer *t) {
    if (!t) return;
    hy_provider *provider = t->provider;
    hy_team *team = t->ranks.is_lent ? NULL : t->team;
    hy_trainer_tear_down(t);
    hy_team_close(team);
    free_block(t);
    hy_provider_release(provider);
}

static hy_status make(const hy_config *config, const hy_observer *observer, hy_making *m,
                      hy_trainer **out) {
    hy_trainer *t;
    retry_state known = {0};
    hy_error refused = {0}; /* the latest refusal of memory */
    int64_t tries = m->is_plan ? 0 : hy_config_settings(config)->memory.recovery_tries;
    hy_status status = hy_trainer_alloc(&t);
    if (status == HY_OK) {
        status = join(config, observer, m);
        if (status != HY_OK) free_block(t);
    }
    if (status != HY_OK) {
        hy_provider_release(m->provider);
        return status;
    }
    /* Only a refusal of memory is tried again. If the smaller plan of the next attempt fits no
     * budget, that attempt counts as the same refusal once more. */
    while ((status = try_to_build(t, config, observer, m, &known)) != HY_OK) {
        status = hy_ranks_fail(t, status);
        if (t->team && !hy_ranks_have_agreed(t, status)) tries = 0; /* others do not try again */
        /* After a refusal of memory, HY_ERR_INPUT means that no plan fits the lower caps. */
        bool does_not_fit = refused.status != HY_OK && status == HY_ERR_INPUT;
        if (does_not_fit) status = hy_error_restore(&refused);
        bool is_over = status != HY_ERR_MEMORY || tries-- == 0;
        hy_error_save(&refused, status);
        if (!is_over) status = learn(t, refused.text, does_not_fit, &known);
        if (is_over || status != HY_OK) {
            hy_trainer_destroy(t);
            return status;
        }
        hy_trainer_tear_down(t);
    }
    *out = t;
    return HY_OK;
}

hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer,
                          const hy_making *making, hy_trainer **out) {
    hy_making m = *making;
    hy_config *own = NULL;
    hy_status status = HY_OK;
    *out = NULL;
    bool is_rewarded = hy_config_settings(config)->task == HY_LOSS_POLICY;
    if (!m.provider && is_rewarded) HY_TRY(hy_reward_provider_create(&m.provider));
    if (!m.provider) m.provider = &hy_model_provider;
    if (m.planned.count == 1) m.planned = (hy_planned_ranks){0};
    if (m.team) { /* NCCL is chosen anew for each run of a team */
        m.team->uses_nccl = false;
        m.team->link_name = hy_link_name(m.team->link);
    }
    if (!m.provider->facts.has_model_files) status = hy_config_copy_own(config, &own);
    if (status == HY_OK) {
        status = make(own ? own : config, observer, &m, out);
    } else {
        hy_provider_release(m.provider);
    }
    hy_config_destroy(own);
    return status;
}

hy_status hy_trainer_create_with(const hy_config *config, hy_provider *provider,
                                 const hy_observer *observer, hy_trainer **out) {
    return hy_trainer_make(config, observer, &(hy_making){.provider = provider}, out);
}
