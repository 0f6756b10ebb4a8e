/* resumed_rewards.c: checks a resumed run of task grpo. See resumed_rewards.h.
 *
 * The number of a rollout, by which its rewards are found again, is that of the step divided by
 * iterations. Answers in a checkpoint are those of the rows and samples that it was saved with.
 * Other settings may change: they count from the next rollout on. */
#include "trainer/resumed_rewards.h"

#include <stdio.h>

#include "record/state_files.h"

static hy_status compare(const hy_trainer *t, const char *key, int64_t then, int64_t now,
                         const char *why) {
    HY_FAIL_IF(then != now, HY_ERR_INPUT,
               "%s: %s was %lld when this was saved and is %lld now, but %s: restore the old value",
               t->resumed, key, (long long)then, (long long)now, why);
    return HY_OK;
}

static hy_status compare_all(const hy_trainer *t, const hy_settings *then, bool has_answers) {
    const hy_settings *now = t->settings;
    HY_FAIL_IF(then->task != now->task, HY_ERR_INPUT,
               "%s: task was %s when this was saved and is %s now, whose rows are read otherwise: "
               "begin a new run with these weights (--init-from %s)",
               t->resumed, hy_choice_name("task", (int)then->task),
               hy_choice_name("task", (int)now->task), t->resumed);
    HY_TRY(compare(t, "grpo.iterations", then->grpo.iterations, now->grpo.iterations,
                   "rollouts are counted by it"));
    if (!has_answers) return HY_OK;
    const char *why = "the checkpoint has answers that the next step uses";
    HY_TRY(compare(t, "grpo.prompts", then->grpo.prompts, now->grpo.prompts, why));
    HY_TRY(compare(t, "grpo.samples", then->grpo.samples, now->grpo.samples, why));
    HY_FAIL_IF(then->grpo.rollout_temperature != now->grpo.rollout_temperature, HY_ERR_INPUT,
               "%s: grpo.rollout_temperature was %g when this was saved and is %g now, but %s: "
               "restore the old value",
               t->resumed, then->grpo.rollout_temperature, now->grpo.rollout_temperature, why);
    return HY_OK;
}

hy_status hy_trainer_check_resumed_rewards(const hy_trainer *t, bool has_answers) {
    hy_saved_config saved;
    if (!t->resumed[0]) return HY_OK;
    HY_TRY(hy_checkpoint_read_config(t->resumed, &saved));
    hy_status status = compare_all(t, hy_config_settings(saved.config), has_answers);
    hy_saved_config_free(&saved);
    return status;
}
