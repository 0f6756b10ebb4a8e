/* derived.h: values that depend on several settings.
 *
 * Set-up, trainer, export and plan ask here for the shape, the optimizer, the schedule, the rules
 * of phases and the model's files, instead of combining settings themselves. */
#pragma once

#include "config/settings.h"
#include "hub/hf_folder.h"
#include "model/shape.h"
#include "optim/optimizer.h"
#include "phases/divergence.h"
#include "phases/machine.h"

/* hy_shape_from_settings returns the completed shape; HY_ERR_INPUT if the values of the shape group
 * cannot be combined. hy_shape_to_settings writes the values that give a shape. */
hy_status hy_shape_from_settings(const hy_settings *settings, hy_shape *out);
hy_status hy_shape_to_settings(const hy_shape *shape, hy_settings *out);

/* The names of the trained parameters, for hy_params_select. */
void hy_settings_trained(const hy_settings *settings, char *out, size_t size);

/* The files that `model` names; HY_FILES_NONE for a preset. */
hy_status hy_settings_model_files(const hy_settings *settings, hy_model_files *kind,
                                  char path[HY_HF_PATH_MAX]);
/* The files of the frozen weights: those of lora.base, or of `model`. */
hy_status hy_settings_base_files(const hy_settings *settings, hy_model_files *kind,
                                 char path[HY_HF_PATH_MAX]);
/* Whether the initial weights come from a model's files, even if these no longer exist. */
bool hy_settings_bring_files(const hy_settings *settings);
/* Whether they come from such files or from init_from. */
bool hy_settings_bring_weights(const hy_settings *settings);

/* The card of cuda and cuda:N; -1 for auto and cpu. */
int hy_device_card(hy_device_choice device);

/* The name of the quantised type of frozen matrices, such as "nf4_single"; "": not quantised. */
const char *hy_settings_frozen_name(const hy_settings *settings);

/* The type that a setting names, or `otherwise` if it is a rule: auto, same, 16bit. */
hy_dtype hy_dtype_chosen(hy_dtype_choice choice, hy_dtype otherwise);
const hy_optimizer_kind *hy_settings_optimizer(const hy_settings *settings);

/* Optimizer and learning rate; the schedule covers a run of `total` steps. */
hy_optimizer hy_optimizer_from_settings(const hy_settings *settings);
hy_schedule hy_schedule_from_settings(const hy_settings *settings, int64_t total);

/* The rules of prediction and phases; `lr_scale`: the largest lr_scale of any group of parameters;
 * `warmup`: the length of Warmup in steps. */
hy_predictor hy_predictor_from_settings(const hy_settings *settings, double lr_scale);
hy_phase_rules hy_rules_from_settings(const hy_settings *settings, int64_t warmup);
hy_divergence_limits hy_limits_from_settings(const hy_settings *settings);

/* The loss of the task, with its defaults. */
hy_loss hy_loss_from_settings(const hy_settings *settings);
/* The answers that a rollout of task grpo generates at once if there is room. */
int32_t hy_rollout_streams(const hy_settings *settings, bool is_gpu);
/* The tokens of a prompt and its answer, at most; `most`: the model's context. */
int32_t hy_rollout_context(const hy_settings *settings, int32_t most);
/* Is its reference computed with each micro-batch? False also if there is none. */
bool hy_settings_reference_is_inline(const hy_settings *settings);

/* The precision configured for a phase; never HY_DTYPE_SAME. */
hy_dtype_choice hy_settings_precision(const hy_settings *settings, hy_phase phase);

/* What replaces `auto` in optimizer, schedule and predictor. All follow from measurements
 * (docs/performance.md, "Which optimizer, which schedule"; docs/prediction.md, "By default"). From
 * scratch, Muon reaches a loss in half of AdamW's steps, which pays if its matmuls are a small part
 * of a step; a constant rate with a linear decay to zero at the end beats a cosine with either.
 * Weights that AdamW has trained continue with AdamW and a cosine. Prediction pays in long runs
 * with large steps, from scratch with AdamW. */
typedef struct hy_recipe {
    const char *optimizer, *schedule, *predictor; /* names of values */
} hy_recipe;

/* A custom model or loop (is_own) gets AdamW, a cosine and no prediction, because nothing was
 * measured there. The optimizer is computed only with wants_optimizer. Fails only if memory is
 * short. */
hy_status hy_recipe_of(const hy_settings *settings, bool is_own, bool wants_optimizer,
                       hy_recipe *out);
