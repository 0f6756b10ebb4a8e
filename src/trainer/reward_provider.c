/* reward_provider.c: the provider of task grpo. See provider.h.
 *
 * A step uses the answers of a rollout. The first step after a rollout has made it before
 * (prepare); with iterations above 1 later steps use the same answers, whose losses before the
 * first update are kept. A checkpoint between these steps has the answers. */
#include "trainer/reward_provider.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "formats/checkpoint.h"
#include "trainer/policy_batches.h"
#include "trainer/recovery.h"
#include "trainer/resumed_rewards.h"
#include "trainer/rollouts.h"

typedef struct reward_provider {
    hy_provider base;
    hy_rollouts *rollouts;
    hy_policy_batches *batches;
    hy_scored_answer *answers; /* (prompts, samples) */
    hy_batch *list;            /* (list_room) micro-batches of a step */
    size_t list_room;
    int64_t rollout; /* its number; -1: none yet */
    int64_t divisor; /* of the losses */
    int64_t updates; /* by these answers so far; 0: all were made, or none */
    bool keeps_losses, has_losses, has_penalty;
    hy_reward_figures figures;
    char *loaded; /* the file of a checkpoint between two steps with the same answers, or NULL */
    size_t loaded_size;
} reward_provider;

/* Before the batches in that file. */
typedef struct saved_rollout {
    int64_t rollout, divisor;
    hy_reward_figures figures;
} saved_rollout;

#define FILE_NAME "rollout.bin"

static reward_provider *of(hy_provider *p) { return (reward_provider *)p; }

/* ---- opening and closing --------------------------------------------------------------------- */

static hy_status open_data(hy_provider *p, hy_trainer *t) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_rollouts_check(t));
    HY_TRY(hy_path_join(path, sizeof path, t->resumed, FILE_NAME));
    HY_TRY(hy_trainer_check_resumed_rewards(t, hy_path_exists(path)));
    return hy_model_provider.ops->open(p, t);
}

static hy_status initialise(hy_provider *p, hy_trainer *t) {
    return hy_model_provider.ops->initialise(p, t);
}

static void close_all(hy_provider *provider) {
    reward_provider *p = of(provider);
    hy_rollouts_close(p->rollouts);
    hy_policy_batches_destroy(p->batches);
    free(p->answers);
    free(p->list);
    free(p->loaded);
    p->loaded = NULL;
    p->rollouts = NULL;
    p->batches = NULL;
    p->answers = NULL;
    p->list = NULL;
    p->list_room = 0;
    p->rollout = -1;
}

static void release(hy_provider *p) {
    close_all(p);
    free(p);
}

static hy_status open_rest(reward_provider *p, hy_trainer *t) {
    const hy_settings *s = t->settings;
    int64_t answers = s->grpo.prompts * s->grpo.samples;
    if (p->rollouts) return HY_OK;
    if (!p->batches)
        HY_TRY(hy_policy_batches_create(t->engine->device.backend, (int32_t)s->train.seq_len,
                                        answers, &p->batches));
    if (!p->answers) p->answers = malloc((size_t)answers * sizeof *p->answers);
    HY_FAIL_IF(!p->answers, HY_ERR_MEMORY, "not enough memory for answers");
    p->keeps_losses = s->grpo.iterations > 1;
    p->has_penalty = s->grpo.kl > 0;
    return hy_rollouts_open(t, &p->rollouts);
}

/* ---- a rollout ------------------------------------------------------------------------------- */

static bool is_skipped(const hy_settings *s, const hy_scored_answer *a) {
    return s->grpo.skip_cut && !a->tokens.has_ended;
}

/* What losses are divided by, over all answers, also those without an advantage. */
static int64_t count_divisor(const reward_provider *p, const hy_settings *s, int64_t answers) {
    int64_t tokens = 0;
    if (s->grpo.grpo_loss != HY_GRPO_DAPO) return answers;
    for (int64_t i = 0; i < answers; i++)
        tokens += is_skipped(s, &p->answers[i]) ? 0 : p->answers[i].tokens.count;
    return tokens > 0 ? tokens : 1;
}

/* An answer without an advantage has no gradient, unless the divergence has one. */
static void add_answers(reward_provider *p, const hy_settings *s, int64_t answers) {
    hy_policy_batches_clear(p->batches);
    for (int64_t i = 0; i < answers; i++) {
        const hy_scored_answer *a = &p->answers[i];
        bool has_gradient = a->advantage != 0 || s->grpo.kl > 0;
        bool is_last = i == answers - 1 && hy_policy_batches_count(p->batches, 1) == 0;
        if ((!has_gradient || is_skipped(s, a)) && !is_last) continue;
        double share = s->grpo.grpo_loss == HY_GRPO_DAPO    ? 1
                       : s->grpo.grpo_loss == HY_GRPO_PLAIN ? 1 / (double)a->tokens.count
                                                            : 1 / (double)s->grpo.answer_tokens;
        hy_policy_batches_add(
            p->batches, &(hy_policy_answer){.prompt = a->prompt,
                                            .prompt_count = a->prompt_count,
                                            .answer = a->tokens.tokens,
                                            .answer_count = a->tokens.count,
                                            .sampled = a->tokens.losses,
                                            .advantage = is_skipped(s, a) ? 0 : (float)a->advantage,
                                            .share = is_skipped(s, a) ? 0 : (float)share});
    }
}

/* The answers of a checkpoint between two steps that use them. */
static hy_status take_loaded(reward_provider *p) {
    saved_rollout saved;
    if (!p->loaded) return HY_OK;
    HY_FAIL_IF(p->loaded_size < sizeof saved, HY_ERR_INPUT, "%s of the checkpoint is too short",
               FILE_NAME);
    memcpy(&saved, p->loaded, sizeof saved);
    HY_TRY(hy_policy_batches_read(p->batches, p->loaded + sizeof saved,
                                  p->loaded_size - sizeof saved));
    p->rollout = saved.rollout;
    p->divisor = saved.divisor;
    p->figures = saved.figures;
    p->has_losses = true;
    p->updates = 1; /* or more */
    free(p->loaded);
    p->loaded = NULL;
    return HY_OK;
}

static hy_status prepare(hy_provider *provider, hy_trainer *t) {
    reward_provider *p = of(provider);
    const hy_settings *s = t->settings;
    int64_t number = t->progress->step / s->grpo.iterations;
    int64_t answers = s->grpo.prompts * s->grpo.samples;
    hy_status status;
    while ((status = open_rest(p, t)) != HY_OK) HY_TRY(hy_trainer_prepare_retry(t, status));
    HY_TRY(take_loaded(p));
    if (p->rollout == number) return HY_OK;
    p->rollout = -1;
    HY_TRY(hy_rollouts_make(p->rollouts, t, number, p->answers));
    hy_rollouts_describe(p->rollouts, &p->figures);
    add_answers(p, s, answers);
    p->divisor = count_divisor(p, s, answers);
    p->rollout = number;
    p->has_losses = false;
    return HY_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static hy_status gradients(hy_provider *provider, hy_trainer *t, const hy_step_request *request,
                           hy_step_report *report) {
    reward_provider *p = of(provider);
    int32_t size = t->engine->plan->choice.batch;
    int32_t count = hy_policy_batches_count(p->batches, size);
    HY_TRY(hy_array_reserve(&p->list, &p->list_room, (size_t)count, sizeof *p->list, "batches"));
    report->tokens = 0;
    for (int32_t i = 0; i < count; i++) {
        p->list[i] = hy_policy_batches_at(p->batches, i, size);
        report->tokens += p->list[i].targets_counted;
    }
    report->counted = p->divisor;
    report->computed = (int64_t)count * size * t->settings->train.seq_len;
    bool is_first = t->progress->step % t->settings->grpo.iterations == 0;
    report->sequences = is_first ? t->settings->grpo.prompts : 0;
    hy_given_batches given = {.batches = p->list, .count = count};
    if (p->keeps_losses && !p->has_losses) given.losses = hy_policy_batches_losses(p->batches);
    return hy_engine_gradients_of(t->engine, &given, request->dtype, p->divisor,
                                  (uint64_t)t->settings->seed);
}

static void end_step(hy_provider *provider, hy_trainer *t, double loss_sum,
                     hy_step_report *report) {
    reward_provider *p = of(provider);
    report->loss = loss_sum / (double)p->divisor;
    if (p->keeps_losses && !p->has_losses) hy_policy_batches_keep_losses(p->batches);
    p->has_losses = true;
    p->updates = (t->progress->step + 1) % t->settings->grpo.iterations;
}

static void describe(hy_provider *provider, const hy_step_outcome *outcome, hy_step_info *info) {
    const double *stats = outcome->policy_stats;
    reward_provider *p = of(provider);
    hy_reward_figures *f = &info->rewards;
    double tokens = stats[HY_POLICY_TOKENS]; /* 0: no answer counted, and the means are NaN */
    *f = p->figures;
    f->clipped = stats[HY_POLICY_CLIPPED] / tokens;
    f->kl = p->has_penalty ? stats[HY_POLICY_KL] / tokens : NAN;
    f->apart = stats[HY_POLICY_APART] / tokens;
    f->apart_most = stats[HY_POLICY_APART_MOST];
    f->importance = stats[HY_POLICY_WEIGHT] / tokens;
    f->capped = stats[HY_POLICY_CAPPED] / tokens;
    f->entropy = stats[HY_POLICY_ENTROPY] / tokens;
    /* Further steps with these answers took none of this time. */
    p->figures.rollout_seconds = p->figures.rollout_copy_seconds = p->figures.reward_seconds = 0;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Between two rollouts nothing is saved: the next one follows from the weights. */
static hy_status save(hy_provider *provider, hy_checkpoint *checkpoint) {
    reward_provider *p = of(provider);
    saved_rollout saved = {p->rollout, p->divisor, p->figures};
    hy_text file = {0};
    char *bytes;
    size_t size;
    if (p->loaded) /* not used yet */
        return hy_checkpoint_put(checkpoint, FILE_NAME, p->loaded, p->loaded_size);
    if (p->updates == 0) return HY_OK;
    HY_TRY(hy_policy_batches_write(p->batches, &bytes, &size));
    hy_text_add_bytes(&file, (const char *)&saved, sizeof saved);
    hy_text_add_bytes(&file, bytes, size);
    free(bytes);
    hy_status status = hy_text_status(&file);
    if (status == HY_OK) status = hy_checkpoint_put(checkpoint, FILE_NAME, file.data, file.size);
    hy_text_free(&file);
    return status;
}

static hy_status load(hy_provider *provider, const char *checkpoint) {
    reward_provider *p = of(provider);
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, FILE_NAME));
    return hy_path_exists(path) ? hy_file_read(path, &p->loaded, &p->loaded_size) : HY_OK;
}

/* ---- held-out rows --------------------------------------------------------------------------- */

static hy_status evaluate(hy_provider *provider, hy_trainer *t, hy_probe *probe) {
    reward_provider *p = of(provider);
    HY_TRY(open_rest(p, t));
    HY_TRY(hy_rollouts_measure(p->rollouts, t, probe, &probe->reward, &probe->reward_error));
    probe->is_rewarded = true;
    probe->mean = -probe->reward;
    probe->counted = (int64_t)probe->count;
    return HY_OK;
}

/* ---- the provider ---------------------------------------------------------------------------- */

static const hy_provider_ops ops = {.open = open_data,
                                    .initialise = initialise,
                                    .prepare = prepare,
                                    .gradients = gradients,
                                    .end_step = end_step,
                                    .describe = describe,
                                    .evaluate = evaluate,
                                    .save = save,
                                    .load = load,
                                    .close = close_all,
                                    .release = release};

hy_status hy_reward_provider_create(hy_provider **out) {
    reward_provider *p = calloc(1, sizeof *p);
    *out = NULL;
    HY_FAIL_IF(!p, HY_ERR_MEMORY, "not enough memory for a run");
    p->base = (hy_provider){.ops = &ops,
                            .facts = {.has_passes = true,
                                      .has_model_files = true,
                                      .can_evaluate = true,
                                      .counts_sequences = true,
                                      .may_stop = true,
                                      .saves_if_stopped = true}};
    p->rollout = -1;
    *out = &p->base;
    return HY_OK;
}
