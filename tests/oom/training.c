/* training.c: training runs in which allocations are refused. See trial.h; uses.c has the other
 * uses.
 *
 * A run that stops is started again when there is memory: from its checkpoint if it had made a
 * step, else from the start. The losses of both parts are recorded as one run, so they can be
 * compared with an undisturbed run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../inside.h"
#include "base/file.h"
#include "uses.h"

#define COMMON                                                                                     \
    "model nano layers 1 width 16 heads 2 mlp_width 24 seq_len 16 batch_size 2 "                   \
    "grad_accum_steps 1 lr 3e-3 builtin_bytes 12000 lr_warmup_steps 2 eval_batches 2 threads 1 "   \
    "device cpu eval_every 4 save_every 3 keep 2 full_steps 2 correct_steps 1 predict_from 0 "     \
    "predict_until 1 cooldown_steps 1 "
#define PLAIN COMMON "steps 6 predictor none "
#define MOVES COMMON "steps 9 predictor outer confidence_threshold 0.5 tail_share 0.4 "
#define FORKS                                                                                      \
    COMMON "steps 24 predictor outer regime fine-tuning fork_budget 0.5 fork_steps 2 "             \
           "confidence_threshold 0.75 schedule constant "
#define MUON PLAIN "layers 3 mlp_width 32 optimizer muon precision fp8 fp8 all "
#define RINGS                                                                                      \
    MOVES "layers 3 grad_accum_steps 2 precision bf16 weights_place pinned master_place pinned "   \
          "grads_place pinned optim_place pinned activations_place pinned ring_depth 2 "           \
          "resident_units 1 "
#define IN_8BIT                                                                                    \
    MOVES "precision bf16 precision_correct same master_dtype bf16 predictor_dtype 8bit "
#define ON_DISK                                                                                    \
    MOVES "layers 3 grad_accum_steps 2 weights_place disk master_place disk grads_place disk "     \
          "optim_place disk ring_depth 2 resident_units 1 "

/* ---- configurations -------------------------------------------------------------------------- */

static hy_status set_words(hy_config *config, const char *words) {
    char text[2048];
    hy_status status = HY_OK;
    snprintf(text, sizeof text, "%s", words);
    for (char *rest = text, *key; status == HY_OK && (key = strtok_r(rest, " ", &rest));) {
        status = hy_config_set(config, key, strtok_r(rest, " ", &rest), HY_FROM_SET);
    }
    return status;
}

hy_status use_config(const char *words, const char *folder, hy_config **out) {
    char run[600];
    snprintf(run, sizeof run, "%s/run", folder);
    hy_status status = hy_config_create(out);
    if (status != HY_OK) return status;
    status = set_words(*out, words);
    if (status == HY_OK) status = hy_config_set(*out, "out", run, HY_FROM_SET);
    if (status == HY_OK) status = hy_config_set(*out, "offload_folder", folder, HY_FROM_SET);
    if (status == HY_OK) status = hy_config_set_command(*out, "hybrid-train --under-test");
    if (status != HY_OK) {
        hy_config_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* ---- what is noted --------------------------------------------------------------------------- */

/* The number of a step says where its loss stands: a second sitting may repeat some. */
typedef struct notes {
    outcome *out;
    int64_t step[TRIAL_LOSSES];
    bool is_move[TRIAL_LOSSES];
    bool is_resumed; /* the next one may lie behind others */
    int replans_at;  /* steps of the first sitting before it is planned anew; 0: never */
} notes;

static void note_step(void *user, const hy_step_info *info) {
    notes *n = user;
    outcome *out = n->out;
    bool is_move = info->phase == HY_PREDICT;
    for (int i = 0; n->is_resumed && i < out->steps; i++) {
        if (n->step[i] == info->step && n->is_move[i] == is_move) out->steps = i;
    }
    n->is_resumed = false;
    if (out->steps == TRIAL_LOSSES) return;
    n->step[out->steps] = info->step;
    n->is_move[out->steps] = is_move;
    out->loss[out->steps] = info->loss;
    out->batch_size[out->steps++] = info->batch_size;
}

static void note_message(void *user, hy_message_level level, const char *text) {
    outcome *out = ((notes *)user)->out;
    if (level == HY_WARNING) snprintf(out->warning, sizeof out->warning, "%s", text);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What a program asks of a trainer after a run; a refusal here must not spoil anything either. */
static hy_status look(hy_trainer *t, outcome *out) {
    hy_summary summary;
    char *text = NULL;
    hy_sample_options options = {.prompt = "a", .tokens = 3, .seed = 1};
    hy_trainer_summary(t, &summary);
    out->val_loss = summary.val_loss;
    hy_status status = hy_trainer_sample(t, &options, &text, NULL);
    if (status == HY_OK) out->sampled = text[0];
    hy_free(text);
    if (status == HY_OK) {
        text = NULL;
        status = hy_trainer_summary_json(t, &text);
        hy_free(text);
    }
    if (status == HY_OK) {
        text = NULL;
        status = hy_trainer_plan_json(t, &text);
        hy_free(text);
    }
    return status;
}

/* To its end, or a few steps, the optimizer's state in another place, and then to its end. Where
 * that cannot be had the run continues as it is, or is saved and may stop. */
static hy_status run(hy_trainer *trainer, notes *n) {
    bool is_replanned = n->replans_at > 0 && n->out->sittings == 1;
    hy_status status = HY_OK;
    for (int i = 0; is_replanned && i < n->replans_at && status == HY_OK; i++) {
        hy_step_info info;
        status = hy_trainer_step(trainer, &info);
        if (status == HY_OK) note_step(n, &info);
    }
    if (is_replanned && status == HY_OK) {
        inside_set(trainer, "optim_place", "pinned");
        status = inside_replan(trainer, 0);
        if (status == HY_ERR_INPUT) status = HY_OK;
        status = inside_give_up(trainer, status);
        if (status != HY_OK) return status;
    }
    if (status == HY_OK) status = hy_trainer_run(trainer);
    n->out->was_broken_off = status != HY_OK && n->out->steps > 0;
    return status;
}

static hy_status sit(const char *words, const char *folder, notes *n) {
    hy_observer observer = {.user = n, .on_step = note_step, .on_message = note_message};
    hy_config *config = NULL;
    hy_trainer *trainer = NULL;
    n->out->sittings++;
    hy_status status = use_config(words, folder, &config);
    if (n->out->sittings == 1) trial_arm();
    if (status == HY_OK) status = hy_trainer_create(config, &observer, &trainer);
    if (status == HY_OK) status = run(trainer, n);
    if (status == HY_OK) status = look(trainer, n->out);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status;
}

static bool has_checkpoint(const char *folder) {
    char path[700], **names;
    size_t count;
    bool has_one = false;
    snprintf(path, sizeof path, "%s/run", folder);
    if (hy_dir_list(path, &names, &count) != HY_OK) return false;
    for (size_t i = 0; i < count; i++) has_one |= strncmp(names[i], "checkpoint-", 11) == 0;
    hy_dir_list_free(names, count);
    return has_one;
}

static hy_status train(const char *words, const char *folder, int replans_at, outcome *out) {
    char again[2048];
    notes n = {.out = out, .replans_at = replans_at};
    out->val_loss = NAN;
    hy_status status = sit(words, folder, &n);
    if (status == HY_OK) return HY_OK;
    snprintf(out->message, sizeof out->message, "%s", hy_error_message());
    fault_spare();
    bool was_broken_off = out->was_broken_off;
    out->is_spoiled = out->steps > 0 && !has_checkpoint(folder);
    if (out->is_spoiled) return status;
    n.is_resumed = true;
    snprintf(again, sizeof again, "%s %s", words, out->steps ? "resume auto" : "overwrite true");
    if (sit(again, folder, &n) != HY_OK) {
        char first[TRIAL_MESSAGE / 2];
        snprintf(first, sizeof first, "%.*s", (int)sizeof first - 1, out->message);
        snprintf(out->message, sizeof out->message, "%s; and then: %.400s", first,
                 hy_error_message());
        out->is_spoiled = true;
    }
    out->was_broken_off = was_broken_off;
    return status;
}

hy_status use_training(const char *words, const char *folder, outcome *out) {
    return train(words, folder, 0, out);
}

hy_status use_replan(const char *folder, outcome *out) { return train(PLAIN, folder, 2, out); }
hy_status use_moves(const char *folder, outcome *out) { return use_training(MOVES, folder, out); }
hy_status use_8bit(const char *folder, outcome *out) { return use_training(IN_8BIT, folder, out); }
hy_status use_forks(const char *folder, outcome *out) { return use_training(FORKS, folder, out); }
hy_status use_rings(const char *folder, outcome *out) { return use_training(RINGS, folder, out); }
hy_status use_muon(const char *folder, outcome *out) { return use_training(MUON, folder, out); }
hy_status use_disk(const char *folder, outcome *out) { return use_training(ON_DISK, folder, out); }
