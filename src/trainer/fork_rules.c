/* fork_rules.c: when a paired test is possible, and what it costs. See fork_rules.h.
 *
 * fork.c runs the tests. All costs are in full steps: a forward pass costs a third of a step
 * over the same tokens. */
#include "trainer/fork_rules.h"

#include <math.h>

int64_t hy_fork_window(const hy_trainer *t) {
    return t->loop->rules.full_steps + t->loop->rules.correct_steps;
}

static double sequences_per_step(const hy_trainer *t) {
    return (double)hy_step_sequences(t->engine);
}

/* Enough sequences to measure a difference, but few compared with those of the steps. */
int hy_fork_sequences(const hy_trainer *t) {
    double wanted = 4 * sequences_per_step(t);
    return wanted < 16 ? 16 : wanted > HY_FORK_SEQUENCES ? HY_FORK_SEQUENCES : (int)wanted;
}

double hy_fork_pass_cost(const hy_trainer *t) {
    return hy_fork_sequences(t) / sequences_per_step(t) / 3;
}

/* Optimizer steps of each arm: as configured, or half a window. */
int64_t hy_fork_arm_steps(const hy_trainer *t) {
    int64_t asked = t->settings->phases.fork_steps;
    return asked ? asked : (hy_fork_window(t) + 1) / 2;
}

/* The discarded arm, and two passes over the compared sequences. */
static double cost(const hy_trainer *t) {
    return (double)hy_fork_arm_steps(t) + 2 * hy_fork_pass_cost(t);
}

bool hy_fork_is_sure(const hy_trainer *t) {
    return hy_confidence_value(&t->progress->confidence) >= t->loop->rules.confidence_threshold;
}

/* The test must end before predict_until and fit in fork_budget. */
bool hy_fork_is_allowed(const hy_trainer *t, int64_t ahead) {
    const hy_progress *p = t->progress;
    double total = (double)t->loop->steps_total;
    double ends_at = (p->spent + (double)ahead + cost(t) + (double)hy_fork_arm_steps(t)) / total;
    return !t->loop->fork.is_open && p->step + ahead >= p->forks.next &&
           p->forks.spent + cost(t) <= t->settings->phases.fork_budget * total &&
           ends_at <= t->loop->rules.predict_until;
}

hy_confidence hy_trainer_prior(const hy_trainer *t) {
    return hy_confidence_prior(t->loop->regime, hy_settings_optimizer(t->settings)->prior);
}

bool hy_fork_must_ask(const hy_trainer *t) {
    hy_confidence prior = hy_trainer_prior(t);
    return hy_confidence_value(&prior) < t->loop->rules.confidence_threshold;
}

bool hy_fork_is_possible(const hy_trainer *t) {
    const hy_phase_rules *rules = &t->loop->rules;
    double total = (double)t->loop->steps_total, budget = t->settings->phases.fork_budget * total;
    double first = fmax(rules->predict_from * total, (double)rules->warmup_steps);
    double ends_at = (first + (double)(hy_fork_window(t) + hy_fork_arm_steps(t)) + cost(t)) / total;
    return rules->has_predictor && cost(t) <= budget && ends_at <= rules->predict_until;
}

uint64_t hy_fork_plan_bytes(const hy_trainer *t) {
    uint64_t bytes = hy_rows_forked_bytes(t->engine->state->rows);
    if (!hy_fork_must_ask(t) || !hy_fork_is_possible(t)) return 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &t->engine->state->rows->row[i];
        if (row->is_optional) bytes += row->layout.bytes;
    }
    return bytes;
}

void hy_fork_release(hy_trainer *t) { hy_arena_fini(&t->loop->fork_state); }

void hy_fork_end(hy_trainer *t) {
    hy_fork_release(t);
    t->progress->forks.next = t->loop->steps_total + 1;
}
