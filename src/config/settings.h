/* settings.h: the configuration as a plain struct, and the table that describes every field.
 *
 * One row of the table in settings.c gives a key its type, range or names of values, default and
 * help; loading, flags, --print-config, help and completion are all made from it. The trainer reads
 * the struct. */
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

#define HY_TEXT_MAX 512 /* of a path, or what a user writes */

/* What a run keeps of the model that it began as (record/origin.c). */
typedef struct hy_kept_origin {
    char folder[HY_PATH_MAX];    /* its files but the weights; "": nothing is kept */
    char tokenizer[HY_TEXT_MAX]; /* the copy of one that was named; "": none was */
    hy_model_files kind;         /* what `model` was; HY_FILES_NONE: a preset or a .cfg file */
    char prefix[16];             /* of the tensors' names in a folder */
    char weights[17]; /* hash of the weights, as hexadecimal digits; "": there were none */
} hy_kept_origin;

/* Of adapters that are named (lora.adapter): what somebody says in place of what their folders
 * say. */
typedef struct hy_adapter_said {
    bool alpha, rslora;
} hy_adapter_said;

typedef struct hy_settings {
    hy_kept_origin kept;          /* of a run that is resumed or used: not in the table */
    hy_adapter_said adapter_said; /* nor is this */
    /* top level */
    hy_profile profile;
    char model[HY_TEXT_MAX];     /* preset, .cfg file with a shape, or a model's files */
    char init_from[HY_TEXT_MAX]; /* "": new weights; else a checkpoint's */
    char data[HY_TEXT_MAX];      /* builtin, file or folder */
    char val_data[HY_TEXT_MAX];
    char name[HY_TEXT_MAX], notes[HY_TEXT_MAX]; /* of the run, for reports */
    char out[HY_TEXT_MAX];   /* "": runs/<model>-<date-time>; "none": write nothing */
    hy_device_choice device; /* from HY_USE_CARD on: a card by its number */
    hy_tune tune;
    char tune_cache[HY_TEXT_MAX]; /* auto, none, or a file */
    hy_on_off tf32;
    hy_attention_choice attention;
    int64_t seed;
    int64_t threads; /* 0: all cores */
    char card[64];   /* "": the one that is here; else plan for this card */

    /* shape: what the model is; 0 means "follow from the rest" where noted */
    struct {
        int64_t layers, width, heads;
        int64_t kv_heads;  /* 0: as heads */
        int64_t head_size; /* 0: width / heads */
        int64_t mlp_width; /* 0: 4 * width */
        int64_t vocab;
        int64_t context; /* longest sequence; rows of the position table */
        hy_norm_choice norm;
        hy_positions positions;
        hy_activation activation;
        hy_bias_in proj_bias_in; /* what proj_bias reaches */
        hy_rope_scaling rope_scaling;
        bool qkv_bias, proj_bias; /* proj_bias: attention output and mlp */
        bool qk_norm, tied_head;
        double norm_eps, rope_theta;
        double rope_factor, rope_low_freq, rope_high_freq;
        int64_t rope_original_context;
        int64_t sliding_window;                     /* 0: none */
        char sliding_layers[HY_SLIDING_LAYERS_MAX]; /* all, or a pattern of s and f */
        hy_arch architecture;                       /* HY_ARCH_NONE: auto */
        double init_std;
    } shape;

    /* train */
    struct {
        int64_t steps;  /* 0: from tokens or epochs; default job: set by the preset */
        int64_t tokens; /* 0 */
        double epochs;  /* 0 */
        int64_t batch_size, seq_len, grad_accum_steps;
        hy_micro_batch micro_batch; /* auto is settled when settings are made */
        bool normalize;      /* mean over all tokens of the step; false: sum of micro-batch means */
        bool scale_lr;       /* learning rate times grad_accum_steps */
        double grad_clip;    /* 0: off */
        int64_t loss_chunks; /* logits are made in this many pieces; 0: chosen */
        hy_dtype_choice precision;
        hy_fp8_choice fp8;
        hy_dtype_choice fp8_grad;
        bool fp8_fast;
        double fp8_until;           /* share of the run */
        hy_dtype_choice grad_dtype; /* fp32 or bf16 */
        hy_recompute recompute;
        hy_on_off dynamic_batch;
        char train[HY_TEXT_MAX];      /* which parameters: all, last:N, or patterns of names */
        hy_dtype_choice frozen_dtype; /* of the others: auto (what passes read), fp8, int8, nf4 */
        int64_t recompute_layers;     /* layers that recompute, spread evenly; 0: all */
        int64_t step_tokens;          /* 0: batch_size and grad_accum_steps say it */
        int64_t min_batch_size, max_batch_size; /* the latter 0: as given */
        int64_t batch_check_every;              /* steps */
    } train;

    /* lora */
    struct {
        bool lora, qlora, rslora;
        int64_t lora_rank;
        double lora_alpha; /* 0: twice the rank */
        double lora_dropout;
        char adapter[HY_TEXT_MAX]; /* to begin with; "": none */
        char base[HY_TEXT_MAX];    /* where the model beside a run's adapters is now; "": there */
        char lora_targets[HY_TEXT_MAX];
        char lora_modules[HY_TEXT_MAX]; /* none, or parameters trained whole */
    } lora;

    /* optimizer */
    struct {
        hy_optimizer_choice optimizer;
        hy_schedule_kind schedule;
        hy_dtype_choice optim_dtype, master_dtype;
        double lr, beta1, beta2, adam_eps, weight_decay;
        double momentum; /* sgd; 0: keeps no state */
        bool nesterov, muon_nesterov, cautious_decay, adafactor_relative;
        hy_cooldown_shape cooldown_shape;
        double muon_momentum;
        int64_t muon_momentum_warmup; /* steps */
        int64_t muon_steps;           /* of Newton and Schulz */
        double adamw_lr;              /* of what muon leaves to adamw; 0: lr */
        int64_t lr_warmup_steps;      /* -1: as many as the ratio gives */
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
        char tokenizer[HY_TEXT_MAX]; /* auto, none, or a tokenizer.json or its folder */
        hy_chat_kind chat_template;
        hy_loss_on loss_on;
        hy_on_off packing;
        hy_bad_rows bad_rows;
        int64_t num_workers; /* threads that encode data when it is opened; 0: all cores */
        int64_t buffer_size; /* bytes of data they have in work at a time */
    } input;

    /* eval */
    struct {
        int64_t eval_every;      /* steps; 0: only at the end; -1: as trainer/evaluate.c says */
        int64_t eval_batches;    /* 0: all held-out data; -1: as there */
        int64_t eval_batch_size; /* 0: as batch_size */
        int64_t early_stop;      /* validations without a lower loss; 0: never */
        double early_stop_delta;
        int64_t sample_tokens; /* of the closing sample; 0: none */
        double temperature;
        int64_t top_k;
        char prompt[HY_TEXT_MAX];
    } eval;

    /* save */
    struct {
        int64_t save_every;       /* steps; 0: not by steps */
        double save_minutes;      /* since the last one; 0: not by time */
        int64_t keep;             /* newest checkpoints kept; 0: all */
        char resume[HY_TEXT_MAX]; /* "": no; "auto": newest of out; else a checkpoint or run */
        bool overwrite;
        bool save_model; /* write OUT/model at the end of a run */
        hy_dtype_choice model_dtype;
        int64_t max_shard_size;   /* bytes of a file of weights there */
        bool tensorboard, report; /* event files; OUT/report.html */
    } save;

    /* phases */
    struct {
        hy_predictor_kind predictor;
        hy_regime_choice regime;           /* sets the prior */
        int64_t full_steps, correct_steps; /* a window of optimizer steps is their sum */
        int64_t max_predict_steps, correction_interval;
        double confidence_threshold;
        double predict_from, predict_until; /* shares of the run's compute */
        double outer_mu, outer_eta;
        double ema_beta, ema_gamma;
        double guard_share; /* of a step's tokens, for each guard pass */
        double fork_budget; /* share of the run's compute that paired forks may cost */
        int64_t fork_steps; /* optimizer steps of each arm; 0: half a window */
        bool snapshot; /* keep the weights before a jump where there is room, for late rejection */
        double tail_share; /* last share of the run that is averaged; 0: none */
        double loss_sigma, grad_explosion, grad_vanishing;
        double divergence_factor; /* 0: a high loss ends no run */
        int64_t cooldown_steps;
        hy_dtype_choice precision_warmup, precision_full, precision_predict, precision_correct;
        hy_dtype_choice predictor_dtype;
    } phases;

    /* memory */
    struct {
        int64_t max_gpu_mem; /* bytes on the device; 0: what it has */
        int64_t cpu_mem;     /* bytes of host memory; 0: what is free */
        char offload_folder[HY_TEXT_MAX];
        int64_t offload_size; /* bytes there; 0: what is free */
        hy_place weights_place, master_place, grads_place, optim_place; /* or HY_PLACE_AUTO */
        hy_place activations_place, predictor_place;
        hy_small_types small_types; /* what the planner may do about types that are auto */
        hy_update_when update;
        hy_offload offload_strategy;
        int64_t ring_depth;     /* 0: chosen */
        int64_t resident_units; /* -1: chosen */
        bool async_restore;
        int64_t lookahead; /* forward-only batches before the end of Predict at which it begins */
        double target_usage, warning_usage, critical_usage, emergency_usage; /* of the budget */
        hy_monitor_choice monitor;
        int64_t monitor_every;  /* steps between lines; 0: only changes */
        int64_t recovery_tries; /* in a row, before the run saves and stops */
        int64_t host_reserve;   /* bytes the rest of the machine keeps; 0: chosen */
    } memory;

    /* ranks: several processes that train one model */
    struct {
        hy_zero_choice zero_stage;
        hy_link_choice transport;
        hy_wire_choice link; /* of a plan */
        double rank_timeout; /* seconds of silence after which a rank is lost */
    } ranks;
} hy_settings;

/* The resolved values; valid until the config changes. */
const hy_settings *hy_config_settings(const hy_config *config);
const char *hy_config_command(const hy_config *config); /* "" when nobody told */

/* Loads the configuration of a run that keeps this; files that `model` and `tokenizer` name are
 * then not needed, as long as the run's own values of these keys win. */
hy_status hy_config_load_kept(hy_config *config, const char *path, const hy_kept_origin *kept);
/* A copy after hy_config_use_custom: what a run of the caller's own is made with. The caller
 * destroys it. */
hy_status hy_config_copy_own(const hy_config *config, hy_config **out);
/* As hy_config_print, with absolute paths: for a run's folder, which is read from anywhere. */
hy_status hy_config_print_absolute(const hy_config *config, char **out);

/* A hash of all values that ranks of one run must have alike: all but those of a machine or process
 * (is_local). What the values are counts, not where they came from. */
uint64_t hy_settings_agreed(const hy_settings *settings);

/* ---- the table: settings.c ---- */

typedef enum hy_value_type {
    HY_VALUE_INTEGER, /* int64_t */
    HY_VALUE_NUMBER,  /* double */
    HY_VALUE_SWITCH,  /* bool */
    HY_VALUE_CHOICE,  /* an enum, one of the row's choices */
    HY_VALUE_TEXT,    /* char[], as long as its field */
    HY_VALUE_BYTES    /* int64_t */
} hy_value_type;

/* "cuda:N" stands for values from this one on. */
typedef struct hy_named_value {
    const char *name;
    int value;
} hy_named_value;

typedef struct hy_setting {
    hy_config_key_info info;
    hy_value_type type;
    size_t offset, size;           /* of the field in hy_settings */
    const hy_named_value *choices; /* ends with a name of NULL */
    double min, max;   /* integers, numbers and bytes; all bounds are exact in a double */
    bool excludes_max; /* max itself is not accepted */
    bool is_local;     /* of a process: may be another one on each rank of a run */
} hy_setting;

/* Another name for a key. With when_true, a switch that stands for two of the key's values. */
typedef struct hy_setting_alias {
    const char *name, *key;
    const char *when_true, *when_false;
    hy_config_key_info info; /* of a switch; empty otherwise */
} hy_setting_alias;

/* Rows of one group lie together; keys of no group come first. NULL past the last. */
const hy_setting *hy_setting_at(size_t i);
const hy_setting_alias *hy_setting_alias_at(size_t i);
size_t hy_setting_count(void);
size_t hy_setting_index(const hy_setting *setting);
const char *hy_setting_leaf(const hy_setting *setting);

/* What a name means: a full key, a leaf alone, an alias, or any of them as a flag; '-' equals '_'.
 * NULL when it means nothing. *alias (may be NULL) is set when it is a switch alias, NULL
 * otherwise. */
const hy_setting *hy_setting_find(const char *name, const hy_setting_alias **alias);

/* The setting somebody who wrote `name` probably meant, or NULL; and the error that says so, which
 * `where` opens. */
const hy_setting *hy_setting_nearest(const char *name);
hy_status hy_setting_unknown(const char *where, const char *name);

/* The groups, in the table's order; NULL past the last. */
const char *hy_setting_group_at(size_t i);

/* ---- one value: setting_value.c ---- */

/* Checks `text` against the setting and writes its one canonical spelling ("10k" becomes "10000").
 * On failure: HY_ERR_INPUT naming `origin`, key, value and what is accepted. */
hy_status hy_setting_check(const hy_setting *setting, const char *text, const char *origin,
                           char canonical[HY_TEXT_MAX]);

/* Writes a text that passes the check into its field; and a field's value as its canonical text,
 * which is returned. */
void hy_setting_store(const hy_setting *setting, const char *text, hy_settings *settings);
const char *hy_setting_format(const hy_setting *setting, const hy_settings *settings,
                              char text[HY_TEXT_MAX]);

/* The word for a value of a key with choices, and the value for a word (false: there is none). */
const char *hy_choice_name(const char *key, int value);
bool hy_choice_value(const char *key, const char *name, int *out);

/* true, on, yes, 1 or false, off, no, 0. */
bool hy_parse_switch(const char *text, bool *out);
