/* settings.h: the configuration as a plain struct, and the table that describes every field.
 *
 * A row of the table in settings.c holds type, accepted values, default and help of a key. Loading,
 * flags, --print-config, help and completion all use it. The trainer reads the struct. */
#pragma once

#include "base/file.h"
#include "comm/team.h"
#include "config/choices.h"
#include "data/chat_template.h"
#include "data/input.h"
#include "hub/hf_folder.h"
#include "hybrid.h"
#include "kernels/kernels.h"
#include "model/unit.h"
#include "optim/schedule.h"
#include "phases/predictor.h"

#define HY_TEXT_MAX 512   /* size of a text or path */
#define HY_VALUE_MAX 2048 /* size of any value as text */

/* What a run stores about the model that it started from (record/origin.c). */
typedef struct hy_kept_origin {
    char folder[HY_PATH_MAX];    /* all model files except weights; "": nothing is stored */
    char tokenizer[HY_TEXT_MAX]; /* copy of the tokenizer that was named; "": none was */
    hy_model_files kind;         /* type of `model`; HY_FILES_NONE: a preset or a .cfg file */
    char prefix[16];             /* prefix of the tensor names in a model folder */
    char weights[17];            /* hash of the weights in hexadecimal; "": no weights */
} hy_kept_origin;

/* Which values the user has set; the others come from the folders of lora.adapter. */
typedef struct hy_adapter_said {
    bool alpha, rslora;
} hy_adapter_said;

typedef struct hy_settings {
    hy_kept_origin kept;          /* of a run that is resumed or opened; not in the table */
    hy_adapter_said adapter_said; /* not in the table */
    bool is_cpu_mem_own;          /* the user set cpu_mem, not the file of a card; likewise */
    /* top level */
    hy_profile profile;
    hy_loss_kind task;
    char model[HY_TEXT_MAX];     /* preset, .cfg file with a shape, or a model's files */
    char init_from[HY_TEXT_MAX]; /* "": new weights; else a checkpoint */
    char data[HY_TEXT_MAX];      /* builtin, file or folder */
    char val_data[HY_TEXT_MAX];
    char name[HY_TEXT_MAX], notes[HY_TEXT_MAX]; /* for reports */
    char out[HY_TEXT_MAX];   /* "": runs/<model>-<date-time>; "none": write nothing */
    hy_device_choice device; /* HY_USE_CARD + N: card N */
    hy_tune tune;
    char tune_cache[HY_TEXT_MAX]; /* auto, none, or a file */
    hy_on_off tf32;
    hy_attention_choice attention;
    int64_t seed;
    int64_t threads; /* 0: all cores */
    char card[64];   /* "": the card of this machine; else plan for this card */

    /* shape: the model; 0 means "derived from other fields" where noted */
    struct {
        int64_t layers, width, heads;
        int64_t kv_heads;  /* 0: same as heads */
        int64_t head_size; /* 0: width / heads */
        int64_t mlp_width; /* 0: 4 * width */
        int64_t vocab;
        int64_t context; /* longest sequence; rows of the position table */
        hy_norm_choice norm;
        hy_positions positions;
        hy_activation activation;
        hy_bias_in proj_bias_in; /* where proj_bias applies */
        hy_rope_scaling rope_scaling;
        bool qkv_bias, proj_bias; /* proj_bias: attention output and MLP */
        bool qk_norm, tied_head;
        double norm_eps, rope_theta;
        double rope_factor, rope_low_freq, rope_high_freq;
        int64_t rope_original_context;
        int64_t sliding_window;                     /* 0: none */
        char sliding_layers[HY_SLIDING_LAYERS_MAX]; /* all, or a pattern of s and f */
        hy_attention_type attention_type;
        int64_t sparse_local, sparse_global; /* blocks of 64 tokens */
        hy_arch architecture;                /* HY_ARCH_NONE: auto */
        char arch_options[HY_VALUE_MAX];     /* of the architecture, as JSON; "": none */
        double init_std;
    } shape;

    /* train */
    struct {
        int64_t steps; /* 0: from tokens or epochs */
        int64_t tokens;
        double epochs;
        int64_t batch_size, seq_len, grad_accum_steps;
        /* never auto here: it is replaced while the settings are computed */
        hy_micro_batch micro_batch;
        /* average over all tokens of the step; false: sum of micro-batch averages */
        bool normalize;
        bool scale_lr;       /* learning rate times grad_accum_steps */
        double grad_clip;    /* 0: off */
        int64_t loss_chunks; /* logits are computed in this many chunks; 0: chosen */
        int64_t mlp_chunks;  /* mlps are computed in this many chunks; 0: chosen */
        hy_dtype_choice precision;
        hy_fp8_choice fp8;
        hy_dtype_choice fp8_grad;
        bool fp8_fast;
        double fp8_until;           /* share of the run */
        hy_dtype_choice grad_dtype; /* fp32 or bf16 */
        hy_recompute recompute;
        hy_on_off dynamic_batch;
        char train[HY_TEXT_MAX];      /* which parameters: all, last:N, or patterns of names */
        hy_dtype_choice frozen_dtype; /* of frozen weights: auto (as passes), fp8, int8, nf4 */
        int64_t recompute_layers;     /* layers that recompute, spread evenly; 0: all */
        int64_t step_tokens;          /* 0: from batch_size and grad_accum_steps */
        int64_t min_batch_size, max_batch_size; /* max_batch_size 0: the size at the start */
        int64_t batch_check_every;              /* steps */
    } train;

    /* lora */
    struct {
        bool lora, qlora, rslora;
        int64_t lora_rank;
        double lora_alpha; /* 0: twice the rank */
        double lora_dropout;
        char adapter[HY_TEXT_MAX]; /* initial adapter; "": none */
        char base[HY_TEXT_MAX];    /* new location of the base model; "": unchanged */
        char lora_targets[HY_TEXT_MAX];
        char lora_modules[HY_TEXT_MAX]; /* none, or parameters trained in full */
    } lora;

    /* optimizer */
    struct {
        hy_optimizer_choice optimizer;
        hy_schedule_kind schedule;
        hy_dtype_choice optim_dtype, master_dtype;
        double lr, beta1, beta2, adam_eps, weight_decay;
        double momentum; /* sgd; 0: no optimizer state */
        bool nesterov, muon_nesterov, cautious_decay, adafactor_relative;
        hy_cooldown_shape cooldown_shape;
        double muon_momentum;
        int64_t muon_momentum_warmup; /* steps */
        int64_t muon_steps;           /* Newton-Schulz iterations */
        double adamw_lr;              /* of the parameters that muon leaves to adamw; 0: lr */
        int64_t lr_warmup_steps;      /* -1: from the ratio */
        double lr_warmup_ratio;
        double min_lr_ratio;      /* final learning rate over lr */
        double cooldown;          /* wsd: fraction of the run that decays */
        char groups[HY_TEXT_MAX]; /* of parameters: optim/groups.h */
    } optimizer;

    /* input: how data is read */
    struct {
        hy_data_format data_format;
        double val_fraction;
        int64_t builtin_bytes;
        bool shuffle;
        int64_t prefetch;            /* micro-batches read ahead beyond one step */
        char tokenizer[HY_TEXT_MAX]; /* auto, none, a file or its folder */
        hy_chat_kind chat_template;
        hy_loss_on loss_on;
        hy_on_off packing;
        hy_bad_rows bad_rows;
        char columns[HY_TEXT_MAX]; /* names of keys in the data */
        int64_t num_workers;       /* threads that encode data when it is opened; 0: all cores */
        int64_t buffer_size;       /* bytes of data that they process at a time */
        hy_stream_choice stream_rows;
        int64_t stream_window; /* bytes of rows that are shuffled together if they are streamed */
    } input;

    /* preference: pairs of answers */
    struct {
        double beta, simpo_margin;
        double likelihood;
        hy_reference_choice reference;
    } preference;

    /* grpo: learning from rewards of generated answers */
    struct {
        char reward[HY_TEXT_MAX];         /* reward/reward.h: checks with ; between them */
        char reward_program[HY_TEXT_MAX]; /* a command; "": none */
        double reward_seconds;            /* that it may take for the answers of a step */
        int64_t prompts, samples;         /* rows of a step; answers to each */
        int64_t answer_tokens;            /* of an answer, at most */
        double rollout_temperature;
        int64_t iterations; /* updates for each rollout */
        hy_grpo_loss grpo_loss;
        hy_reward_scale reward_scale;
        double clip, clip_high; /* clip_high -1: as clip */
        double kl;
        double importance_cap;
        bool skip_cut;           /* answers that reached answer_tokens are not trained */
        int64_t rollout_streams; /* answers at once; 0: as many as there is room for */
        int64_t eval_prompts;    /* 0: all held-out rows; -1: chosen in trainer/eval_schedule.c */
    } grpo;

    /* eval */
    struct {
        int64_t eval_every;   /* steps; 0: only at the end; -1: chosen in trainer/eval_schedule.c */
        int64_t eval_batches; /* 0: all held-out data; -1: chosen there */
        int64_t eval_batch_size; /* 0: as batch_size */
        char eval_rows[HY_TEXT_MAX];
        int64_t early_stop; /* validations without a lower loss; 0: never */
        double early_stop_delta;
        int64_t sample_tokens; /* of the sample at the end; 0: none */
        double temperature;
        int64_t top_k;
        char prompt[HY_TEXT_MAX];
    } eval;

    /* save */
    struct {
        int64_t save_every;       /* steps; 0: not by steps */
        double save_minutes;      /* minutes; 0: not by time */
        int64_t keep;             /* newest checkpoints kept; 0: all */
        char resume[HY_TEXT_MAX]; /* "": no; "auto": newest in out; else a checkpoint or run */
        bool overwrite;
        bool save_model; /* write OUT/model at the end of a run */
        hy_dtype_choice model_dtype;
        int64_t max_shard_size;   /* largest size of a weight file, in bytes */
        bool tensorboard, report; /* event files; OUT/report.html */
    } save;

    /* phases */
    struct {
        hy_predictor_kind predictor;
        hy_regime_choice regime;           /* sets the initial confidence */
        int64_t full_steps, correct_steps; /* a window is their sum, in optimizer steps */
        int64_t max_predict_steps, correction_interval;
        double confidence_threshold;
        double predict_from, predict_until; /* shares of the run's compute */
        double outer_mu, outer_eta;
        double guard_share; /* tokens of a guard pass as a share of a step's */
        double fork_budget; /* share of the compute budget for paired tests */
        int64_t fork_steps; /* optimizer steps of each arm; 0: half a window */
        bool snapshot;      /* keep the weights before a jump if memory allows, to undo it later */
        bool was_ema;       /* the user asked for the removed predictor ema; outer is used */
        double tail_share;  /* last share of the run to average; 0: none */
        double loss_sigma, grad_explosion, grad_vanishing;
        double divergence_factor; /* 0: a high loss never stops a run */
        int64_t cooldown_steps;
        hy_dtype_choice precision_warmup, precision_full, precision_predict, precision_correct;
        hy_dtype_choice predictor_dtype;
    } phases;

    /* memory */
    struct {
        int64_t max_gpu_mem; /* bytes on the device; 0: all */
        int64_t cpu_mem;     /* bytes of host memory; 0: all that is free */
        char offload_folder[HY_TEXT_MAX];
        int64_t offload_size; /* bytes in that folder; 0: all that is free */
        hy_place weights_place, master_place, grads_place, optim_place; /* or HY_PLACE_AUTO */
        hy_place activations_place, predictor_place;
        hy_small_types small_types; /* which auto types the planner may make smaller */
        hy_update_when update;
        hy_offload offload_strategy;
        int64_t ring_depth;     /* 0: chosen */
        int64_t resident_units; /* -1: chosen */
        bool async_restore;
        /* start the restore this many forward passes before the end of Predict */
        int64_t lookahead;
        /* shares of the budget */
        double target_usage, warning_usage, critical_usage, emergency_usage;
        hy_monitor_choice monitor;
        int64_t monitor_every;  /* steps between lines; 0: only changes */
        int64_t recovery_tries; /* retries in a row before the run saves and stops */
        int64_t host_reserve;   /* bytes left for other programs; 0: chosen */
    } memory;

    /* ranks: several processes that train one model */
    struct {
        hy_zero_choice zero_stage;
        hy_link_choice transport;
        hy_wire_choice link; /* assumed by a plan */
        double rank_timeout; /* seconds without a message after which a rank is lost */
        char rank_secret_file[HY_TEXT_MAX];
    } ranks;
} hy_settings;

/* The resolved values; valid until the config changes. */
const hy_settings *hy_config_settings(const hy_config *config);
const char *hy_config_command(const hy_config *config); /* "" if not known */

/* Loads the configuration of a run that stores its model's files as `kept`. The files that `model`
 * and `tokenizer` name are then not needed, unless the user sets these keys to other values. */
hy_status hy_config_load_kept(hy_config *config, const char *path, const hy_kept_origin *kept);
/* A copy after hy_config_use_custom, for a custom run. The caller destroys it. */
hy_status hy_config_copy_own(const hy_config *config, hy_config **out);
/* As hy_config_print, with absolute paths: a run's file can be read from any folder. */
hy_status hy_config_print_absolute(const hy_config *config, char **out);

/* A hash of all values that must be equal on all ranks of a run: all except those of a machine or
 * process (is_local). Origins do not count. */
uint64_t hy_settings_agreed(const hy_settings *settings);

/* ---- the table: settings.c ------------------------------------------------------------------- */

typedef enum hy_value_type {
    HY_VALUE_INTEGER, /* int64_t */
    HY_VALUE_NUMBER,  /* double */
    HY_VALUE_SWITCH,  /* bool */
    HY_VALUE_CHOICE,  /* an enum, one of the row's choices */
    HY_VALUE_TEXT,    /* char[], up to the size of its field */
    HY_VALUE_BYTES    /* int64_t */
} hy_value_type;

/* "cuda:N" covers all values from `value` upwards. */
typedef struct hy_named_value {
    const char *name;
    int value;
} hy_named_value;

typedef struct hy_setting {
    hy_config_key_info info;
    hy_value_type type;
    size_t offset, size;           /* of the field in hy_settings */
    const hy_named_value *choices; /* ends with a name of NULL */
    double min, max;   /* for integers, numbers and bytes; all bounds are exact in a double */
    double least;      /* smallest value besides 0: a size without a unit is a mistake */
    bool excludes_max; /* max itself is not accepted */
    bool is_local;     /* of one machine or process: may differ between the ranks of a run */
} hy_setting;

/* Another name for a key. With when_true: a switch for two values of the key; when_false may be
 * NULL: false changes nothing, as in "bf16: true, fp16: false". With is_removed: a former key,
 * which is accepted and ignored; `key` is one of its group. */
typedef struct hy_setting_alias {
    const char *name, *key;
    const char *when_true, *when_false;
    bool is_removed;
    hy_config_key_info info; /* for a switch or a removed key; empty otherwise */
} hy_setting_alias;

/* Rows of one group are adjacent; keys outside groups come first. NULL past the last. */
const hy_setting *hy_setting_at(size_t i);
const hy_setting_alias *hy_setting_alias_at(size_t i);
size_t hy_setting_count(void);
size_t hy_setting_index(const hy_setting *setting);
const char *hy_setting_leaf(const hy_setting *setting);

#define HY_ALIASES_MOST 256
bool hy_setting_is_same_name(const char *a, const char *b); /* '-' equals '_' */

/* Finds a full key, a leaf, an alias, or any of them as a flag; '-' equals '_'. NULL if there is
 * none. *alias (may be NULL) is the alias if it is a switch or a removed key, else NULL. */
const hy_setting *hy_setting_find(const char *name, const hy_setting_alias **alias);

/* The setting most similar to `name`, or NULL. hy_setting_unknown returns the error for an unknown
 * key, which begins with `where` and suggests that setting. */
const hy_setting *hy_setting_nearest(const char *name);
hy_status hy_setting_unknown(const char *where, const char *name);

/* The groups, in the table's order; NULL past the last. */
const char *hy_setting_group_at(size_t i);

/* The accepted word for a value as other trainers write it ("bfloat16"), or `text` itself. `alias`:
 * the value is of this switch; NULL: of the setting. */
const char *hy_setting_word(const hy_setting *setting, const hy_setting_alias *alias,
                            const char *text);

/* ---- one value: setting_value.c -------------------------------------------------------------- */

/* Checks `text` against the setting and writes its canonical spelling ("10k" becomes "10000"). On
 * failure: HY_ERR_INPUT with `origin`, key, value and the accepted values. */
hy_status hy_setting_check(const hy_setting *setting, const char *text, const char *origin,
                           char canonical[HY_VALUE_MAX]);

/* hy_setting_store writes a text that passes the check to its field; hy_setting_format returns a
 * field's value as canonical text. */
void hy_setting_store(const hy_setting *setting, const char *text, hy_settings *settings);
const char *hy_setting_format(const hy_setting *setting, const hy_settings *settings,
                              char text[HY_VALUE_MAX]);

/* The name of a choice's value, and the value of a name (false: unknown). */
const char *hy_choice_name(const char *key, int value);
bool hy_choice_value(const char *key, const char *name, int *out);

/* true, on, yes, 1 or false, off, no, 0. */
bool hy_parse_switch(const char *text, bool *out);
