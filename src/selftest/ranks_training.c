/* ranks_training.c: short runs of a small model on these ranks, in every ZeRO stage. See ranks.h.
 *
 * Rank 0 trains alone first. Then all ranks train the same steps in each stage. Losses and norms
 * must have the same bits on all ranks, in all stages and with each transport, and must equal those
 * of rank 0 alone up to the order of sums. The bytes that a rank sends must equal the plan, and its
 * memory must not exceed it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"
#include "selftest/ranks.h"
#include "trainer/make.h"
#include "trainer/trainer.h"

enum { STEPS = 6, STAGES = 4 };
#define MEMORY_SLACK ((uint64_t)128 << 20)

/* Allowed relative difference of losses and norms from those of one rank. */
typedef struct precision {
    const char *name;
    double loss, norm;
} precision;

typedef struct results {
    double loss[STEPS], norm[STEPS];
} results;

typedef struct case_run {
    const precision *with;
    int stage; /* -1: one rank */
    bool is_nccl;
    results found;
    double seconds;           /* of one step */
    uint64_t sent, expected;  /* bytes of one step */
    uint64_t memory, planned; /* on the device: peak and plan */
    uint64_t in_use;          /* memory in use on a card, from its driver; 0: not known */
} case_run;

/* ---- the run --------------------------------------------------------------------------------- */

static hy_status set_words(hy_config *config, const char *words) {
    char text[512], *rest = text, *key;
    snprintf(text, sizeof text, "%s", words);
    while ((key = strtok_r(rest, " ", &rest)) != NULL)
        HY_TRY(hy_config_set(config, key, strtok_r(rest, " ", &rest), HY_FROM_SET));
    return HY_OK;
}

/* Each rank has two micro-batches of two sequences per step. */
static hy_status configure(const hy_ranks_run *run, const case_run *c, hy_config *config) {
    const hy_settings *s = &run->settings;
    const char *way = c->is_nccl ? "nccl" : "sockets"; /* also used for MPI here */
    char text[384], device[16] = "cpu";
    int card = hy_device_card(s->device);
    if (card >= 0) snprintf(device, sizeof device, "cuda:%d", card);
    HY_TRY(set_words(config, "model nano seq_len 64 batch_size 2 lr 2e-3 lr_warmup_steps 2 "
                             "builtin_bytes 60000 eval_every 0 sample_tokens 0 predictor none "
                             "out none tune off tune_cache none attention own"));
    snprintf(text, sizeof text,
             "steps %d grad_accum_steps %d precision %s device %s threads %d num_workers 1 "
             "rank_timeout %.17g transport %s zero_stage %d",
             STEPS, 2 * run->team->who.count, c->with->name, device, (int)s->threads,
             s->ranks.rank_timeout, c->stage < 0 ? "auto" : way, c->stage < 0 ? 0 : c->stage);
    return set_words(config, text);
}

/* The first step also sends copies of weights, so the bytes of the last step count. */
static hy_status make_steps(hy_trainer *t, case_run *c) {
    hy_engine *e = t->engine;
    hy_backend *b = e->device.backend;
    hy_plan_traffic traffic;
    HY_TRY(hy_plan_traffic_of(e->state->rows, e->model, &e->plan->types, e->plan->zero_stage,
                              &traffic));
    c->expected = hy_plan_sent(&traffic, e->plan->choice.accum);
    for (uint64_t i = 0, before = 0, after = 0; i < STEPS; i++, before = after) {
        hy_step_info info;
        HY_TRY(hy_trainer_step(t, &info));
        c->found.loss[i] = info.loss;
        c->found.norm[i] = info.grad_norm;
        c->seconds = info.seconds;
        /* What is still in flight on the ranks' stream belongs to the step. */
        if (t->team) HY_TRY(b->stream_sync(e->collectives->net.stream));
        if (t->team) after = hy_exchange_sent(&e->collectives->net);
        c->sent = after - before;
    }
    size_t free, total;
    c->memory = e->state->ledger.peak_in[HY_DEVICE];
    c->planned = t->facts->vram_bytes;
    if (!b->facts.is_gpu || !b->memory_now) return HY_OK;
    HY_TRY(b->memory_now(b, &free, &total));
    c->in_use = total - free;
    return HY_OK;
}

static hy_status train(hy_ranks_run *run, case_run *c) {
    hy_trainer *t = NULL;
    hy_config *config;
    HY_TRY(hy_config_create(&config));
    hy_status status = configure(run, c, config);
    hy_making making = {.is_team_lent = true, .team = c->stage < 0 ? NULL : run->team};
    if (status == HY_OK) status = hy_trainer_make(config, NULL, &making, &t);
    if (status == HY_OK) status = make_steps(t, c);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    return status;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void compare_bits(const results *a, const results *b, const char *whose,
                         hy_finding *finding) {
    for (int i = 0; i < STEPS; i++) {
        if (a->loss[i] == b->loss[i] && a->norm[i] == b->norm[i]) continue;
        hy_finding_add(finding, "step %d has loss %.17g, norm %.17g; %s %.17g, %.17g", i + 1,
                       a->loss[i], a->norm[i], whose, b->loss[i], b->norm[i]);
    }
}

static double apart(double a, double b) {
    double far = fabs(a - b) / fabs(b);
    return isnan(far) ? INFINITY : far;
}

/* The difference of losses from those of one rank. */
static double compare_to_one(const case_run *c, const results *alone, hy_finding *finding) {
    double most = 0;
    for (int i = 0; i < STEPS; i++) {
        double loss = apart(c->found.loss[i], alone->loss[i]);
        double norm = apart(c->found.norm[i], alone->norm[i]);
        if (loss > c->with->loss || norm > c->with->norm)
            hy_finding_add(finding, "step %d has loss %.9g, norm %.9g; on one rank %.9g, %.9g",
                           i + 1, c->found.loss[i], c->found.norm[i], alone->loss[i],
                           alone->norm[i]);
        if (loss > most) most = loss;
    }
    return most;
}

static void compare_with_plan(const case_run *c, hy_finding *finding) {
    uint64_t slack = c->planned / 100 * 3;
    if (slack < MEMORY_SLACK) slack = MEMORY_SLACK;
    if (c->sent != c->expected)
        hy_finding_add(finding, "sent %llu bytes in a step; planned: %llu",
                       (unsigned long long)c->sent, (unsigned long long)c->expected);
    if (c->memory > c->planned || c->planned - c->memory > slack)
        hy_finding_add(finding, "used %llu bytes of the device; planned: %llu",
                       (unsigned long long)c->memory, (unsigned long long)c->planned);
}

static void describe(const case_run *c, double far, char *out, size_t size) {
    char in_use[48] = "";
    if (c->in_use > 0)
        snprintf(in_use, sizeof in_use, ", %.0f in use on the card", (double)c->in_use / 0x1p20);
    snprintf(out, size,
             "loss %.4f to %.4f, %.0e from one rank; %.1f ms per step, %.2f MiB sent; memory %.1f "
             "of %.1f MiB%s",
             c->found.loss[0], c->found.loss[STEPS - 1], far, 1e3 * c->seconds,
             (double)c->sent / 0x1p20, (double)c->memory / 0x1p20, (double)c->planned / 0x1p20,
             in_use);
}

/* `first` is the result of stage 0. */
static hy_status judge(hy_ranks_run *run, const case_run *c, const results *alone,
                       const results *first) {
    results leader = c->found;
    hy_finding finding = {0};
    char name[64], text[240];
    HY_TRY(hy_control_share(run->team->control, &leader, sizeof leader, 0));
    compare_bits(&c->found, &leader, "on rank 0", &finding);
    compare_bits(&c->found, first, "in stage 0", &finding);
    double far = compare_to_one(c, alone, &finding);
    compare_with_plan(c, &finding);
    snprintf(name, sizeof name, "%s, stage %d, %s", c->with->name, c->stage,
             hy_ranks_way(run, c->is_nccl));
    describe(c, far, text, sizeof text);
    return hy_ranks_judge(run, &finding, name, text);
}

/* ---- the part -------------------------------------------------------------------------------- */

/* Rank 0 trains; the others wait for it. */
static hy_status train_alone(hy_ranks_run *run, const precision *with, results *out) {
    case_run c = {.with = with, .stage = -1};
    char name[32];
    snprintf(name, sizeof name, "%s, one rank", with->name);
    hy_ranks_progress(run, name);
    if (hy_ranks_leads(run)) HY_TRY(train(run, &c));
    HY_TRY(hy_control_share(run->team->control, &c.found, sizeof c.found, 0));
    *out = c.found;
    hy_ranks_report(run, name, "loss %.4f to %.4f; %.1f ms per step", out->loss[0],
                    out->loss[STEPS - 1], 1e3 * c.seconds);
    return HY_OK;
}

static hy_status train_case(hy_ranks_run *run, const results *alone, results *first, case_run *c) {
    char name[32];
    snprintf(name, sizeof name, "%s, stage %d", c->with->name, c->stage);
    hy_ranks_progress(run, name);
    HY_TRY(train(run, c));
    if (c->stage == 0) *first = c->found;
    run->done += 0.5 / 12;
    return judge(run, c, alone, first);
}

/* Every stage with the transport of training; with another transport, if there is one, only one
 * stage. */
static hy_status test_precision(hy_ranks_run *run, const precision *with) {
    results alone, first;
    HY_TRY(train_alone(run, with, &alone));
    for (int stage = 0; stage < STAGES; stage++) {
        case_run c = {.with = with, .stage = stage, .is_nccl = run->has_nccl};
        HY_TRY(train_case(run, &alone, &first, &c));
    }
    case_run other = {.with = with, .stage = 2};
    return run->has_nccl ? train_case(run, &alone, &first, &other) : HY_OK;
}

hy_status hy_ranks_test_training(hy_ranks_run *run) {
    static const precision fp32 = {"fp32", 2e-6, 2e-5}, bf16 = {"bf16", 2e-3, 2e-2};
    snprintf(run->part, sizeof run->part, "training");
    HY_TRY(test_precision(run, &fp32));
    return run->has_bf16 ? test_precision(run, &bf16) : HY_OK;
}
