/* choices.h: enums for the settings that accept a fixed set of values.
 *
 * If the module that uses a choice comes before config, the enum is declared there (hy_place,
 * hy_dtype, hy_tune, hy_link_choice, hy_chat_kind, hy_data_format, hy_recompute, hy_schedule_kind,
 * hy_cooldown_shape, hy_predictor_kind). All others are declared below. The names of the values are
 * only in the table of settings.c; hy_choice_name returns them. */
#pragma once

#include "hybrid_types.h"
#include "phases/confidence.h"

/* The planner chooses the place. */
#define HY_PLACE_AUTO HY_NOWHERE

/* A number type of hy_dtype, or a rule that leads to one. */
typedef enum hy_dtype_choice {
    HY_DTYPE_AUTO = -3,
    HY_DTYPE_SAME = -2,  /* for a phase: the type of train.precision */
    HY_DTYPE_16BIT = -1, /* bf16 if the device supports it, else fp16 */
    HY_DTYPE_F32 = HY_F32,
    HY_DTYPE_BF16 = HY_BF16,
    HY_DTYPE_F16 = HY_F16,
    HY_DTYPE_8BIT = HY_U8,
    HY_DTYPE_INT8 = HY_I8,
    HY_DTYPE_NF4 = HY_NF4,
    /* for passes: matmuls of the blocks in fp8, everything else in bf16 */
    HY_DTYPE_FP8 = HY_E4M3,
    HY_DTYPE_NF4_SINGLE = 64 + HY_NF4 /* for frozen weights: nf4 with fp32 scales */
} hy_dtype_choice;

typedef enum hy_device_choice {
    HY_USE_ANY, /* auto */
    HY_USE_CPU,
    HY_USE_CUDA, /* the first card */
    HY_USE_CARD  /* this value and those above: card number 0, 1, ... */
} hy_device_choice;

typedef enum hy_on_off { HY_AUTO, HY_ON, HY_OFF } hy_on_off;

typedef enum hy_profile { HY_CONSERVATIVE, HY_BALANCED, HY_AGGRESSIVE } hy_profile;

/* Which matmuls run in fp8: those that are faster in fp8, or all of the blocks. */
typedef enum hy_fp8_choice { HY_FP8_AUTO, HY_FP8_ALL } hy_fp8_choice;

/* The shape. */
typedef enum hy_norm_choice { HY_LAYERNORM, HY_RMSNORM } hy_norm_choice;
typedef enum hy_positions { HY_POSITIONS_LEARNED, HY_POSITIONS_ROPE } hy_positions;
typedef enum hy_activation { HY_ACTIVATION_GELU, HY_ACTIVATION_SWIGLU } hy_activation;
typedef enum hy_attention_type { HY_FULL_ATTENTION, HY_SPARSE_ATTENTION } hy_attention_type;
typedef enum hy_bias_in { HY_BIAS_IN_ALL, HY_BIAS_IN_ATTENTION, HY_BIAS_IN_MLP } hy_bias_in;

/* A hy_optimizer_id with two flags in higher bits. */
typedef enum hy_optimizer_choice {
    HY_OPTIMIZER_ID = 0xff, /* mask of the id */
    HY_OPTIMIZER_8BIT = 0x100,
    HY_OPTIMIZER_PAGED = 0x200, /* optimizer state in host memory unless optim_place is set */
    HY_OPTIMIZER_AUTO = 0x400   /* until hy_recipe_of replaces it */
} hy_optimizer_choice;

#define HY_SCHEDULE_AUTO (-1)  /* until hy_recipe_of replaces it */
#define HY_PREDICTOR_AUTO (-1) /* until hy_recipe_of replaces it */

typedef enum hy_loss_on { HY_LOSS_ON_ANSWERS, HY_LOSS_ON_ALL } hy_loss_on;
typedef enum hy_bad_rows { HY_BAD_ROWS_SKIP, HY_BAD_ROWS_STOP, HY_BAD_ROWS_SKIP_ANY } hy_bad_rows;

typedef enum hy_regime_choice {
    HY_REGIME_AUTO = -1, /* fine-tuning when weights are given */
    HY_REGIME_SCRATCH = HY_FROM_SCRATCH,
    HY_REGIME_TUNING = HY_FINE_TUNING
} hy_regime_choice;

/* When the reference of pairs is computed. */
typedef enum hy_reference_choice {
    HY_REFERENCE_AUTO,
    HY_REFERENCE_INLINE, /* with each micro-batch */
    HY_REFERENCE_ONCE    /* before the first step */
} hy_reference_choice;

/* grpo: what the loss of a token is divided by: the tokens of all answers; those of its answer, and
 * answers; the longest answer, and answers. */
typedef enum hy_grpo_loss { HY_GRPO_DAPO, HY_GRPO_PLAIN, HY_GRPO_DR } hy_grpo_loss;

/* grpo: what an answer's reward less the mean of its group is divided by. */
typedef enum hy_reward_scale { HY_SCALE_GROUP, HY_SCALE_BATCH, HY_SCALE_NONE } hy_reward_scale;

typedef enum hy_update_when { HY_UPDATE_AUTO, HY_UPDATE_NOW, HY_UPDATE_ON_GATHER } hy_update_when;

typedef enum hy_micro_batch { HY_MICRO_AUTO, HY_MICRO_GIVEN, HY_MICRO_OPEN } hy_micro_batch;

/* The link between ranks that a plan assumes. */
typedef enum hy_wire_choice {
    HY_WIRE_AUTO,
    HY_WIRE_NVLINK,
    HY_WIRE_PCIE4,
    HY_WIRE_PCIE5,
    HY_WIRE_IB200
} hy_wire_choice;

/* The types set to auto that the planner may make smaller; each value includes those before it. */
typedef enum hy_small_types {
    HY_SMALL_NONE,
    HY_SMALL_OPTIMIZER, /* optimizer state in 8 bits */
    HY_SMALL_ALL        /* gradients and weights in bf16, a predictor in 8 bits */
} hy_small_types;

/* What is sharded over the ranks; each stage includes the stages below it. */
typedef enum hy_zero_choice {
    HY_ZERO_AUTO = -1, /* the planner's choice */
    HY_ZERO_NONE = 0,
    HY_ZERO_OPTIMIZER = 1, /* optimizer state and master weights */
    HY_ZERO_GRADS = 2,
    HY_ZERO_WEIGHTS = 3
} hy_zero_choice;

/* What happens to optimizer state during Predict. */
typedef enum hy_offload {
    HY_OFFLOAD_NONE,
    HY_OFFLOAD_CPU,
    HY_OFFLOAD_PINNED,
    HY_OFFLOAD_COMPRESS,
    HY_OFFLOAD_DROP
} hy_offload;

typedef enum hy_monitor_choice {
    HY_MONITOR_ON,
    HY_MONITOR_SILENT,
    HY_MONITOR_OFF
} hy_monitor_choice;
