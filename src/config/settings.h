/* settings.h: the configuration as a plain struct, and the table that describes every field.
 *
 * One row of the table in settings.c gives a key its type, range, default and help; loading, flags,
 * --print-config, help and completion are all made from it. The trainer reads the struct. */
#ifndef HY_TRAINER_SETTINGS_H
#define HY_TRAINER_SETTINGS_H

#include <stdbool.h>

#include "hybrid.h"

#define HY_TEXT_MAX 512

typedef struct hy_settings {
    /* top level */
    char profile[HY_TEXT_MAX]; /* conservative, balanced (default), aggressive */
    char model[HY_TEXT_MAX]; /* preset, .cfg file with a shape, or a model's files; default nano */
    char init_from
        [HY_TEXT_MAX];      /* "": new weights; else the checkpoint whose weights it starts from */
    char data[HY_TEXT_MAX]; /* builtin (default), file or folder */
    char val_data[HY_TEXT_MAX];
    char out[HY_TEXT_MAX];    /* "" (default): runs/<model>-<date-time>; "none": write nothing */
    char device[HY_TEXT_MAX]; /* auto, cpu, cuda, cuda:1 */
    char tune[HY_TEXT_MAX];   /* off, fast, max */
    char tune_cache[HY_TEXT_MAX]; /* auto, none, or a file */
    char tf32[HY_TEXT_MAX];       /* auto, on, off */
    char attention[HY_TEXT_MAX];  /* own, cudnn */
    int64_t seed;                 /* 1 */
    int64_t threads;              /* 0: all cores */
    char card[HY_TEXT_MAX];       /* "": the one that is here; else plan for this card */

    /* shape: what the model is; 0 means "follow from the rest" where noted */
    struct {
        int64_t layers, width, heads;
        int64_t kv_heads;  /* 0: as heads */
        int64_t head_size; /* 0: width / heads */
        int64_t mlp_width; /* 0: 4 * width */
        int64_t vocab;
        int64_t context;                /* longest sequence; rows of the position table */
        char norm[HY_TEXT_MAX];         /* layernorm, rmsnorm */
        char positions[HY_TEXT_MAX];    /* learned, rope */
        char activation[HY_TEXT_MAX];   /* gelu, swiglu */
        bool qkv_bias, proj_bias;       /* proj_bias: attention output and mlp */
        char proj_bias_in[HY_TEXT_MAX]; /* all, attention, mlp: what proj_bias reaches */
        bool qk_norm, tied_head;
        double norm_eps, rope_theta;
        char rope_scaling[HY_TEXT_MAX]; /* none, llama3 */
        double rope_factor, rope_low_freq, rope_high_freq;
        int64_t rope_original_context;
        int64_t sliding_window; /* 0: none */
        double init_std;
    } shape;

    /* train */
    struct {
        int64_t steps;  /* 0: from tokens or epochs; default job: set by the preset */
        int64_t tokens; /* 0 */
        double epochs;  /* 0 */
        int64_t batch_size, seq_len, grad_accum_steps;
        bool normalize;      /* mean over all tokens of the step; false: sum of micro-batch means */
        bool scale_lr;       /* learning rate times grad_accum_steps */
        double grad_clip;    /* 0: off */
        int64_t loss_chunks; /* logits are made in this many pieces; 0: chosen */
        char precision[HY_TEXT_MAX];            /* auto, fp32, bf16, fp16 */
        char grad_dtype[HY_TEXT_MAX];           /* fp32, bf16 */
        char recompute[HY_TEXT_MAX];            /* auto, none, norm, attention, mlp, all */
        int64_t recompute_layers;               /* layers that recompute, spread evenly; 0: all */
        int64_t step_tokens;                    /* 0: batch_size and grad_accum_steps say it */
        char dynamic_batch[HY_TEXT_MAX];        /* off, on, auto */
        int64_t min_batch_size, max_batch_size; /* the latter 0: as given */
        int64_t batch_check_every;              /* steps */
    } train;

    /* optimizer */
    struct {
        char optimizer[HY_TEXT_MAX];    /* adamw, adamw8bit, paged_... */
        char optim_dtype[HY_TEXT_MAX];  /* auto, fp32, bf16, 8bit */
        char master_dtype[HY_TEXT_MAX]; /* auto, fp32, bf16 */
        double lr, beta1, beta2, adam_eps, weight_decay;
        char schedule[HY_TEXT_MAX]; /* constant, linear, cosine, wsd */
        int64_t lr_warmup_steps;
        double min_lr_ratio; /* final learning rate over lr */
        double cooldown;     /* wsd: fraction of the run that decays */
    } optimizer;

    /* input: how data is read */
    struct {
        double val_fraction;
        int64_t builtin_bytes;
        bool shuffle;
        int64_t prefetch;                /* micro-batches read ahead beyond one step */
        char tokenizer[HY_TEXT_MAX];     /* auto, none, or a tokenizer.json or its folder */
        char chat_template[HY_TEXT_MAX]; /* auto, chatml, llama2, llama3, mistral, alpaca */
        char loss_on[HY_TEXT_MAX];       /* answers, all */
        char packing[HY_TEXT_MAX];       /* auto, on, off */
        char bad_rows[HY_TEXT_MAX];      /* skip, stop */
        int64_t num_workers; /* threads that encode data when it is opened; 0: all cores */
        int64_t buffer_size; /* bytes of data they have in work at a time */
    } input;

    /* eval */
    struct {
        int64_t eval_every;      /* steps; 0: only at the end */
        int64_t eval_batches;    /* 0: all held-out data */
        int64_t eval_batch_size; /* 0: as batch_size */
        int64_t sample_tokens;   /* of the closing sample; 0: none */
        double temperature;
        int64_t top_k;
        char prompt[HY_TEXT_MAX];
    } eval;

    /* save */
    struct {
        int64_t save_every;       /* steps; 0: only at the end and when stopped */
        int64_t keep;             /* newest checkpoints kept; 0: all */
        char resume[HY_TEXT_MAX]; /* "": no; "auto": newest of out; else a checkpoint or run */
        bool overwrite;
        bool save_model;               /* write OUT/model at the end of a run */
        char model_dtype[HY_TEXT_MAX]; /* auto, fp32, bf16, fp16 */
        int64_t max_shard_size;        /* bytes of a file of weights there */
        bool tensorboard, report;      /* event files; OUT/report.html */
    } save;

    /* phases */
    struct {
        char predictor[HY_TEXT_MAX];       /* outer, line, lsq, none; and the control arms */
        int64_t full_steps, correct_steps; /* a window of true steps is their sum */
        int64_t max_predict_steps, correction_interval;
        double confidence_threshold;
        char regime[HY_TEXT_MAX];           /* auto, scratch, fine-tuning: sets the prior */
        double predict_from, predict_until; /* shares of the run's compute */
        double outer_mu, outer_eta;
        double guard_share; /* of a step's tokens, for each guard pass */
        double fork_budget; /* share of the run's compute that paired forks may cost */
        int64_t fork_steps; /* true steps of each arm; 0: half a window */
        bool snapshot;      /* keep the weights before a move, for late rejection */
        double tail_share;  /* last share of the run that is averaged; 0: none */
        double loss_sigma, grad_explosion, grad_vanishing;
        int64_t cooldown_steps;
        char precision_warmup[HY_TEXT_MAX],
            precision_full[HY_TEXT_MAX]; /* same, fp32, 16bit, bf16, fp16 */
        char precision_predict[HY_TEXT_MAX], precision_correct[HY_TEXT_MAX];
        char predictor_dtype[HY_TEXT_MAX]; /* auto, fp32, bf16 */
    } phases;

    /* memory */
    struct {
        int64_t max_gpu_mem; /* bytes on the device; 0: what it has */
        int64_t cpu_mem;     /* bytes of host memory; 0: what is free */
        char offload_folder[HY_TEXT_MAX];
        int64_t offload_size; /* bytes there; 0: what is free */
        char weights_place[HY_TEXT_MAX], master_place[HY_TEXT_MAX]; /* auto, device, pinned, disk */
        char grads_place[HY_TEXT_MAX], optim_place[HY_TEXT_MAX];
        char activations_place[HY_TEXT_MAX], predictor_place[HY_TEXT_MAX];
        char update[HY_TEXT_MAX];           /* auto, now, gather */
        int64_t ring_depth;                 /* 0: chosen */
        int64_t resident_units;             /* -1: chosen */
        char offload_strategy[HY_TEXT_MAX]; /* none, cpu, pinned, compress, drop */
        bool async_restore;
        int64_t lookahead; /* forward-only batches before the end of Predict at which it begins */
        double target_usage, warning_usage, critical_usage, emergency_usage; /* of the budget */
        char monitor[HY_TEXT_MAX];                                           /* on, silent, off */
        int64_t monitor_every;  /* steps between lines; 0: only changes */
        int64_t recovery_tries; /* in a row, before the run saves and stops */
        int64_t host_reserve;   /* bytes the rest of the machine keeps; 0: chosen */
    } memory;
} hy_settings;

/* The resolved values; valid until the config changes. */
const hy_settings *hy_config_settings(const hy_config *config);
const char *hy_config_command(const hy_config *config); /* "" when nobody told */

/* ---- the table: settings.c ---- */

typedef enum hy_value_type {
    HY_VALUE_INTEGER, /* int64_t */
    HY_VALUE_NUMBER,  /* double */
    HY_VALUE_SWITCH,  /* bool */
    HY_VALUE_CHOICE,  /* char[HY_TEXT_MAX], one of info.accepted */
    HY_VALUE_TEXT,    /* char[HY_TEXT_MAX] */
    HY_VALUE_BYTES    /* int64_t */
} hy_value_type;

typedef struct hy_setting {
    hy_config_key_info info;
    hy_value_type type;
    size_t offset;     /* of the field in hy_settings */
    double min, max;   /* integers, numbers and bytes; all bounds are exact in a double */
    bool excludes_max; /* max itself is not accepted */
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

/* The setting somebody who wrote `name` probably meant, or NULL. */
const hy_setting *hy_setting_nearest(const char *name);

/* The groups, in the table's order; NULL past the last. The likely one for a wrong name, or NULL.
 * */
const char *hy_setting_group_at(size_t i);
bool hy_setting_is_group(const char *name);
const char *hy_setting_nearest_group(const char *name);

/* ---- one value: setting_value.c ---- */

/* Checks `text` against the setting and writes its one canonical spelling ("10k" becomes "10000").
 * On failure: HY_ERR_INPUT naming `origin`, key, value and what is accepted. */
hy_status hy_setting_check(const hy_setting *setting, const char *text, const char *origin,
                           char canonical[HY_TEXT_MAX]);

/* Writes a canonical text into its field. */
void hy_setting_store(const hy_setting *setting, const char *canonical, hy_settings *settings);

/* true, on, yes, 1 or false, off, no, 0. */
bool hy_parse_switch(const char *text, bool *out);

#endif
