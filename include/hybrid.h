/* hybrid.h: train transformer language models from C.
 *
 * This header is the manual of training. Read it from top to bottom:
 *
 *   1. Errors          calls return hy_status; hy_error_message() says what was wrong.
 *   2. Configuration   named values with defaults, profiles, files and overrides.
 *   3. Trainer         created from a configuration; runs to the end, or step by step.
 *   4. Using a model   export it, generate text, chat, and measure its loss.
 *   5. Summary and memory   results of a run, and what it keeps in memory.
 *   6. Custom models and loops   your model in our loop, or your loop with our optimizer.
 *   7. Ranks           several processes that train one model.
 *
 * Other headers: hybrid_report.h reads runs back, hybrid_tools.h has estimates and self-tests.
 *
 * A complete program:
 *
 *     hy_config *config;
 *     hy_trainer *trainer;
 *     if (hy_config_create(&config) != HY_OK) return 1;
 *     hy_config_set(config, "model", "nano", HY_FROM_CALLER);
 *     hy_config_set(config, "steps", "200", HY_FROM_CALLER);
 *     if (hy_trainer_create(config, NULL, &trainer) != HY_OK || hy_trainer_run(trainer) != HY_OK)
 *         fprintf(stderr, "%s\n", hy_error_message());
 *     hy_trainer_destroy(trainer);
 *     hy_config_destroy(config);
 *
 * Ownership: every _create has a _destroy and every _open a _close, which accept NULL. The library
 * copies strings that you pass. Pointers inside structs that the library fills belong to the
 * library; they are valid as long as the handle that they came from, unless a comment says less.
 *
 * Structs: a struct that begins with `size` can get new members without breaking compiled programs.
 * You need not set `size`: the functions that are `static inline` here pass the size of your struct
 * to the library. See "How structs grow" in hybrid_types.h.
 *
 * Threads: use a handle in one thread at a time. Several trainers may exist at once. Only
 * hy_trainer_request_stop() and hy_inference_request_stop() may be called from any thread, and from
 * a signal handler.
 *
 * The library never prints and never exits. */
#ifndef HYBRID_H
#define HYBRID_H

#include <stdbool.h>

#include "hybrid_tokenizer.h"
#include "hybrid_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HYBRID_VERSION "0.2.0"
/* Number of the binary interface. It rises when programs compiled with an earlier header no longer
 * work. New functions, and new members at the end of structs with `size`, do not raise it. */
#define HYBRID_ABI 2

/* Version and interface number of the library that was loaded. */
const char *hy_version(void);
int hy_abi(void);

/* ---- 1. Errors ------------------------------------------------------------------------------- */

/* The message of this thread's last failed call: one sentence that names the thing, its value and
 * what is accepted. Valid until the next failed call of this thread. */
const char *hy_error_message(void);

/* ---- 2. Configuration ------------------------------------------------------------------------ */

/* Every value has a key, such as "train.batch_size". The part after the dot is unique and may be
 * used alone ("batch_size"); the program's flag is that part with dashes (--batch-size).
 * hy_config_key() lists all keys. If a value is set several times, the strongest origin counts,
 * regardless of the order of the calls; within one origin the last call counts. */
typedef struct hy_config hy_config;

/* From weakest to strongest. */
typedef enum hy_origin {
    HY_FROM_DEFAULT = 0, /* built in */
    HY_FROM_PRESET = 1,  /* the model preset */
    HY_FROM_PROFILE = 2, /* conservative, balanced, aggressive */
    HY_FROM_FILE = 3,    /* a configuration file */
    HY_FROM_SET = 4,     /* --set key=value */
    HY_FROM_FLAG = 5,    /* the key's own flag */
    HY_FROM_CALLER = 6   /* a program that uses the library: as strong as a flag */
} hy_origin;

/* Description of a key, for help texts and completion. */
typedef struct hy_config_key_info {
    const char *key;      /* "train.batch_size" */
    const char *flag;     /* "--batch-size" */
    const char *type;     /* "integer", "number", "switch", "choice", "text", "bytes" */
    const char *accepted; /* "1 to 65536", "adamw", "auto, cpu, cuda", ... */
    const char *fallback; /* the default, as written */
    const char *help;     /* one sentence */
} hy_config_key_info;

hy_status hy_config_create(hy_config **out);
void hy_config_destroy(hy_config *config);

/* Reads a libconfig file. For a wrong key or value the call fails and leaves the configuration
 * unchanged; the message has file, line, accepted values and the most similar key. If several files
 * set a key, the last one counts. `path` may also name a built-in card file ("rtx5080"). */
hy_status hy_config_load(hy_config *config, const char *path);

/* Loads the configuration of a run, with the origin of a file. `folder` is the run's folder or one
 * of its checkpoints; "auto" is the newest run in runs/. Resuming needs no other values. */
hy_status hy_config_load_run(hy_config *config, const char *folder);

/* Sets one value from text. "profile" and "model" also set the values that they imply, with weaker
 * origins. */
hy_status hy_config_set(hy_config *config, const char *key, const char *value, hy_origin origin);

/* The value of a key as text, and where it came from ("default", "profile balanced", "my.cfg:12",
 * "flag --batch-size"). origin may be NULL. The strings are valid until the configuration
 * changes. */
hy_status hy_config_get(const hy_config *config, const char *key, const char **value,
                        const char **origin);

/* The strongest origin that sets a key; HY_FROM_FLAG for a caller, too. HY_FROM_DEFAULT: none does,
 * or there is no such key. A value that is not set may still follow from other values. */
hy_origin hy_config_origin(const hy_config *config, const char *key);

/* Prepares a configuration for a custom model or loop (section 6): the values of the model preset
 * and the profile's grad_accum_steps are removed, and lr_warmup_steps is 0 unless it or
 * lr_warmup_ratio is set. Values from files and calls stay. The functions of section 6 do this on a
 * copy; call this function only to see the values beforehand. */
hy_status hy_config_use_custom(hy_config *config);

/* Key number i, or NULL when i is past the last. */
const hy_config_key_info *hy_config_key(size_t i);

/* Finds a key by its name, its last part, its flag ("--batch-size") or the name that other tools
 * use ("learning_rate", "--checkpoint-every-layer"). NULL: there is none. */
const hy_config_key_info *hy_config_find(const char *name);
/* What to use here for a key or flag of another trainer that has no equal ("device_map"); NULL: the
 * name is not known. Names with an equal are accepted as keys. */
const char *hy_config_hint(const char *name);

/* The whole configuration as a libconfig file that can be loaded again, with the origin of each
 * value as a comment. Allocated; free with hy_free. */
hy_status hy_config_print(const hy_config *config, char **out);

/* Name number i of the built-in presets ("model"), profiles ("profile") or card files ("gpu"); NULL
 * past the last. hy_builtin_text returns the content of one. */
const char *hy_builtin_name(const char *kind, size_t i);
const char *hy_builtin_text(const char *kind, const char *name);

/* Number of parameters of a built-in model, by its preset's name. */
hy_status hy_model_parameters(const char *preset, int64_t *parameters);

/* The command line that started the run, for its records; "" by default. */
hy_status hy_config_set_command(hy_config *config, const char *command);

/* Frees memory that a function of this library returned as "Allocated". NULL is allowed. */
void hy_free(void *allocated_by_the_library);

/* ---- 3. Trainer ------------------------------------------------------------------------------ */

typedef struct hy_trainer hy_trainer;

/* State of a GPU as reported by its driver, at most a second old. NaN: the card does not report
 * this value. */
typedef struct hy_gpu_state {
    bool is_known; /* false on a CPU, and without the driver's library */
    double power_watts, temperature_c, sm_clock_mhz;
    double utilization; /* share of the time in which the GPU was busy, 0 to 1 */
} hy_gpu_state;

/* One optimizer step, or one jump in Predict. */
typedef struct hy_step_info {
    size_t size;
    int64_t step;        /* from 1 */
    int64_t steps_total; /* at the end of the run: hy_steps_at_end */
    hy_phase phase;
    const char *reason; /* why this phase; "" when it has not changed */
    double loss;        /* mean over the counted tokens of this step, nats */
    double lr;
    double grad_norm;         /* before clipping */
    int64_t tokens;           /* trained on so far */
    double tokens_per_second; /* recent; counts all tokens, also those without a loss */
    double seconds;           /* of this step */
    double elapsed;           /* since the start of the run, earlier sessions included */
    double remaining;         /* estimate, seconds */
    double confidence;        /* estimate that prediction saves compute, 0 to 1 */
    hy_dtype precision;       /* HY_E4M3: bf16, with the matmuls of the blocks in fp8 */
    /* fp8, else NaN: largest magnitude that entered a matmul; share of nonzero numbers that became
     * zero, in the layer where it is largest. */
    double fp8_largest, fp8_zeros;
    int64_t fp8_largest_layer, fp8_zeros_layer; /* these layers, from 0; -1: not in fp8 */
    int64_t batch_size, grad_accum;       /* batch_size 0: a custom model, which chooses its own */
    uint64_t vram_bytes, vram_peak_bytes; /* live on the device now; peak so far */
    uint64_t host_pinned_bytes;
    /* From the memory monitor, at most a second old; 0: not known, or memory.monitor is off. */
    uint64_t vram_planned_bytes;  /* for this phase */
    uint64_t vram_reserved_bytes; /* allocated from the driver */
    uint64_t vram_free_bytes;     /* as the driver reports */
    uint64_t host_resident_bytes; /* of this process, as the system reports */
    hy_memory_status memory_status;
    uint64_t bytes_moved;   /* between places, in this step */
    double wait_seconds;    /* compute waited for copies or data */
    bool was_skipped;       /* the gradient was not finite: nothing was updated */
    double spent;           /* compute so far, in full steps, with guard passes and paired tests */
    double predicted_steps; /* Predict: number of optimizer steps that the jump replaces; else 0 */
    bool was_rejected;      /* Predict: the guard refused the jump */
    bool was_rolled_back;   /* the step diverged and the last jump was undone */
    double
        residual_cosine; /* step after Correct: cosine between the real and the predicted move; */
    double residual_length; /* ratio of their lengths; both are NaN in other steps */
    const char *obstacle;   /* why no jump can come next; "": one can */
    /* GPU, else 0: the model's operations per second (without recomputation), divided by: */
    double mfu; /* the card's dense bf16 rate from its data sheet; 0: not known */
    double sol; /* the rate of a large bf16 matmul, timed at the start */
    hy_gpu_state gpu;
    double epoch; /* passes over the training data so far; NaN: not known */
    /* Pairs of answers, else NaN: share of the step's pairs whose chosen answer has the larger
     * reward, and mean rewards (docs/preferences.md). */
    double train_pair_accuracy, train_reward_chosen, train_reward_rejected;
    hy_reward_figures rewards; /* task grpo */
} hy_step_info;

/* How well a model answers rows with a known answer (--eval-only and eval.eval_rows), with the
 * arithmetic of lm-evaluation-harness. Shares are from 0 to 1. NaN: there are no such rows. Standard
 * errors are sqrt(p (1 - p) / (rows - 1)). */
typedef struct hy_row_scores {
    int64_t choice_rows;   /* rows with choices */
    double accuracy;       /* of these: the right choice has the highest log-probability (acc) */
    double accuracy_error; /* its standard error */
    double accuracy_norm;  /* log-probabilities divided by the choice's characters (acc_norm) */
    double accuracy_norm_error;   /* its standard error */
    int64_t answer_rows;          /* rows without choices */
    double greedy_accuracy;       /* of these: each token of the answer is the most likely one */
    double greedy_accuracy_error; /* its standard error */
    double answer_loss;           /* mean nats per token of the right answers of all rows */
    int64_t answer_tokens;        /* their number */
    int64_t cut_rows;             /* too long: they lost the beginning of their prompt */
    int64_t dropped_rows;         /* malformed, or their answer is longer than a sequence */
    int64_t pairs;                /* held-out pairs of answers */
    double pair_accuracy;         /* of these: the chosen answer has the larger reward */
    double pair_accuracy_error;   /* its standard error */
    double reward_margin;         /* mean reward of chosen answers minus that of rejected ones */
    int64_t rewarded_rows;        /* held-out rows that were answered (task grpo) */
    double val_reward;            /* mean reward of these answers */
    double val_reward_error;      /* its standard error */
} hy_row_scores;

typedef struct hy_eval_info {
    size_t size;
    int64_t step;
    double loss;    /* mean nats per token on held-out data; of pairs of answers, mean loss; of
                       rewards, minus their mean */
    int64_t tokens; /* tokens, pairs or answers that it is a mean over */
    double seconds;
    bool is_final;
    hy_row_scores row_scores; /* on the rows of eval.eval_rows */
} hy_eval_info;

typedef enum hy_message_level { HY_NOTE = 0, HY_WARNING = 1 } hy_message_level;

struct hy_memory_state; /* section 5 */

/* Callbacks of a run. Each may be NULL. Structs and strings are valid during the call. */
typedef struct hy_observer {
    void *user;
    void (*on_message)(void *user, hy_message_level level, const char *text);
    void (*on_step)(void *user, const hy_step_info *info);
    void (*on_eval)(void *user, const hy_eval_info *info);
    void (*on_progress)(void *user, const char *what, double fraction); /* of other long work */
    void (*on_save)(void *user, const char *path, double seconds, uint64_t bytes);
    /* Between steps, when the memory status has changed. */
    void (*on_memory)(void *user, const struct hy_memory_state *state);
} hy_observer;

/* Prepares a run: checks the configuration, opens the data, plans and allocates all memory, and
 * initialises the weights or loads the checkpoint to resume. Writes nothing before all checks have
 * passed. observer may be NULL; it is copied. */
hy_status hy_trainer_create(const hy_config *config, const hy_observer *observer, hy_trainer **out);
void hy_trainer_destroy(hy_trainer *trainer);

/* Checks and plans a run without allocating its memory or writing anything. The handle answers
 * hy_trainer_summary (the placement table, with planned bytes), hy_trainer_plan_facts and
 * hy_trainer_plan_json; running it is HY_ERR_STATE. A plan that does not fit is no failure: the
 * facts say so. The plan of a resumed custom run uses the shapes in its checkpoint; for a loop with
 * frozen parameters, which a checkpoint does not contain, call hy_loop_plan. */
hy_status hy_trainer_plan(const hy_config *config, const hy_observer *observer, hy_trainer **out);

/* As above, for one of `count` ranks; starts none. has_cards: each rank has its own card; otherwise
 * they share one, or compute on the CPU. The key ranks.link names the link between ranks: nvlink,
 * pcie4 and pcie5 are within a machine, ib200 has one rank per machine. */
hy_status hy_trainer_plan_ranks(const hy_config *config, int32_t count, bool has_cards,
                                const hy_observer *observer, hy_trainer **out);

#define HY_PLAN_REASONS 16
#define HY_PLAN_CHANGES 6
#define HY_PLAN_TEXT 200

/* What a plan needs with a change. */
typedef struct hy_plan_change {
    double tokens_per_second; /* 0: not known */
    uint64_t vram_bytes, host_pinned_bytes, disk_bytes;
    bool is_adapter; /* trains adapters instead of all parameters */
} hy_plan_change;

typedef struct hy_plan_facts {
    size_t size;
    bool fits;
    const char *problem; /* which memory is short, by how much, and what helps; "": it fits */
    uint64_t vram_bytes; /* allocated on the device before the first step */
    uint64_t host_pinned_bytes;           /* allocated on the host, page-locked */
    uint64_t disk_bytes;                  /* in offload_folder */
    uint64_t host_fork_bytes;             /* host memory that paired tests use if there is room */
    uint64_t data_host_bytes;             /* additional pinned memory: micro-batches read ahead */
    uint64_t data_buffer_bytes;           /* host memory while data is tokenized */
    uint64_t data_disk_bytes;             /* temporary file of tokenized data */
    int64_t batch_size, grad_accum_steps; /* as given or chosen */
    double tokens_per_second;             /* predicted, of an optimizer step */
    double step_seconds, wait_seconds;    /* of an optimizer step; the part spent on waiting */
    uint64_t bytes_up, bytes_down;        /* between host and device in a step */
    uint64_t disk_written;                /* in a step */
    double save_seconds;                  /* of a checkpoint, for a disk that writes 1.5 GB/s */
    uint64_t save_free;       /* bytes free in the folder of checkpoints; UINT64_MAX: not known */
    uint64_t model_bytes;     /* approximate size of OUT/model; 0: it is not written */
    char aside[HY_PLAN_TEXT]; /* old name of no_prediction, until version 0.3 */
    int32_t reason_count, change_count;          /* entries of the next two arrays */
    char reasons[HY_PLAN_REASONS][HY_PLAN_TEXT]; /* why the plan was chosen, one sentence each */
    char changes[HY_PLAN_CHANGES][HY_PLAN_TEXT]; /* flags with which it fits; last: more memory */
    /* Several ranks. tokens_per_second is for all ranks, all other members are for one rank. */
    int32_t ranks;      /* number of ranks; 1: only one */
    int32_t zero_stage; /* as given or chosen */
    const char *link;   /* between ranks, as in ranks.link, or "sockets"; "": one rank */
    uint64_t link_grads, link_weights;   /* bytes that a rank sends in a step */
    uint64_t link_bytes;                 /* both together, and a few sums */
    double link_seconds;                 /* seconds of a step in which the link is busy */
    double compute_seconds, bus_seconds; /* of a step: computing; copies of host, device and disk */
    const char *bound;                   /* the longest of the three: "compute", "bus" or "link" */
    char no_prediction[HY_PLAN_TEXT]; /* why there is no prediction although it is set; else "" */
    int32_t eval_batch_size;          /* sequences of a forward-only batch in Evaluate */
    bool eval_borrows;                /* Evaluate borrows memory that only steps need */
    hy_plan_change change_costs[HY_PLAN_CHANGES]; /* of each of `changes`, the fastest first */
    uint64_t host_limit; /* host memory that the run may use: cpu_mem, or what is free */
    /* of vram_bytes: left to the caller's own passes, as its class activations (caller_bytes) */
    uint64_t caller_bytes;
    double rollout_seconds; /* task grpo: per step, of generating its answers; else 0 */
} hy_plan_facts;
static inline void hy_trainer_plan_facts(const hy_trainer *trainer, hy_plan_facts *out);

/* A group of parameters, from the key "groups". */
typedef struct hy_group_info {
    size_t size;
    char names[512];              /* of its parameters, with * and ? */
    char changes[128];            /* "lr_scale 0.1, decay 0" */
    int64_t parameters, elements; /* number of matching parameters; of their elements */
} hy_group_info;
/* Group number i, from 0; false: there are no more. */
static inline bool hy_trainer_group(const hy_trainer *trainer, int32_t i, hy_group_info *out);

/* The plan as a JSON object. Allocated; free with hy_free. */
hy_status hy_trainer_plan_json(const hy_trainer *trainer, char **out);

/* Runs to the end: steps, validation, checkpoints, metrics, summary. HY_STOPPED after
 * hy_trainer_request_stop: the step in progress was finished, or a validation was broken off, and a
 * checkpoint was saved. A resumed run repeats the validation. */
hy_status hy_trainer_run(hy_trainer *trainer);

/* Makes one optimizer step, or one jump if Predict is next. It does not validate, save or run a
 * paired test. When memory gets short, the micro-batch may change (unless dynamic_batch is off),
 * and in an emergency the state moves to other places; moving changes no bit. A step that runs out
 * of memory is repeated. After too many failures in a row the call returns HY_ERR_MEMORY; the state
 * is then that of the step before, and can be saved. info may be NULL. */
static inline hy_status hy_trainer_step(hy_trainer *trainer, hy_step_info *info);

/* Measures the held-out loss. It does not change how training continues. For a custom model with
 * averaged weights it needs host memory for a copy of the weights. info may be NULL. */
static inline hy_status hy_trainer_evaluate(hy_trainer *trainer, hy_eval_info *info);

/* Sets the weights of a resumed run to start + scale x (checkpoint - start), where start is what the
 * run began with: 1 gives the checkpoint's weights (their average, if the run averaged its last
 * part), 0 the beginning. For measuring with hy_trainer_evaluate how far the direction of a run
 * holds; hy_export writes such weights. The trainer can then not train or save. HY_ERR_INPUT: the
 * run began with random weights, or with adapters; HY_ERR_STATE: several ranks, a custom model, or
 * nothing was resumed. */
hy_status hy_trainer_scale(hy_trainer *trainer, double scale);

typedef struct hy_sample_options {
    const char *prompt; /* NULL or "": none */
    int32_t tokens;     /* how many to add */
    double temperature; /* 0: always the most likely token */
    int32_t top_k;      /* 0: all */
    uint64_t seed;
} hy_sample_options;

/* Continues the prompt with the model as it is now; the prompt is not repeated. Allocated; free
 * with hy_free. The text may contain zero bytes; *size counts them (size may be NULL). With several
 * ranks, all ranks call it with the same options. The text is that of rank 0, and if one rank
 * fails, the call fails on all ranks. */
hy_status hy_trainer_sample(hy_trainer *trainer, const hy_sample_options *options, char **text,
                            size_t *size);

/* An answer to the question of a held-out row, or to a prompt. Strings are allocated; free each
 * with hy_free. */
typedef struct hy_row_answer {
    size_t size;
    char *question;  /* as the model reads it, with the chat template; NULL: no row has an answer */
    char *reference; /* the answer in the data; NULL: a prompt was asked */
    char *answer;    /* the model's */
} hy_row_answer;

/* As hy_trainer_sample, but asks the prompt in the format of the rows (chat template, line end), or
 * without a prompt the question of the first held-out row, until the model ends its answer. All
 * strings are NULL if the data is no rows with answers, or if there is neither a prompt nor a row
 * with a part that does not count in the loss. */
static inline hy_status hy_trainer_answer(hy_trainer *trainer, const hy_sample_options *options,
                                          hy_row_answer *out);

/* Saves a checkpoint into the run's folder now. */
hy_status hy_trainer_save(hy_trainer *trainer);

/* Asks hy_trainer_run to stop after the step in progress. Safe in a signal handler. */
void hy_trainer_request_stop(hy_trainer *trainer);

/* ---- 4. Using a model ------------------------------------------------------------------------ */

typedef struct hy_export_options {
    const char *out; /* folder to create */
    /* "fp32", "bf16", "fp16"; NULL or "auto": as in the folder that the model came from, or else as
     * in the checkpoint, but with `type` bf16 instead of fp32. */
    const char *dtype;
    uint64_t max_shard_size; /* most bytes of weights in a file; 0: 5,000,000,000 */
    bool overwrite;          /* replace an existing folder */
    /* Folder of the model that the run began with; NULL: its original path, or the files that the
     * run stored. */
    const char *base;
    /* A run with adapters. true: write a whole model with the adapters merged; false: write only
     * the adapters, in PEFT's format. */
    bool merge;
    /* Which weights to merge the adapters with. "trained" (or NULL): the base's weights as training
     * used them, quantised if they were; "folder": the weights in the base's files. A value other
     * than NULL implies merge. */
    const char *onto;
    /* Instead of `out`: one file for llama.cpp, such as "mine.gguf", with the tokenizer and the chat
     * template. `dtype` and `max_shard_size` are not used then. */
    const char *gguf;
    /* The numbers in that file: "f32", "f16", "bf16", "q8_0", "q4_0", "q5_0", "q4_k_m", "q5_k_m",
     * "q6_k"; for adapters one of the first four. NULL: f32, f16 or bf16, as `dtype` "auto". In a
     * folder, the matrices of the blocks as bitsandbytes quantises them: "nf4", "nf4_single" (with
     * fp32 scales), "int8"; NULL: as `dtype`. */
    const char *type;
    /* Text, or other data, that a file for llama.cpp or an nf4 folder is calibrated with
     * (hy_export_evaluate); NULL: none. */
    const char *calibrate;
    /* start + scale x (trained - start), where start is what the run began with; adapters that began
     * at zero are multiplied. 0 or 1: the weights as trained. See hy_trainer_scale. */
    double scale;
} hy_export_options;

/* Writes the weights of a checkpoint, or of the newest one in a run's folder, as a folder that
 * transformers loads: config.json, safetensors in one file or in shards with an index, and the
 * other files of the original model, such as its tokenizer. If the run averaged its last part, the
 * average is written. An incomplete folder never gets the name `out`. The model may also be a
 * folder that transformers loads. HY_ERR_INPUT: transformers or llama.cpp has no
 * architecture for this model, or files of the original model are missing. */
hy_status hy_export(const char *checkpoint, const hy_export_options *options,
                    const hy_observer *observer);

/* Merges an adapter that PEFT saved into the model folder options->base (NULL: the model that the
 * adapter names) and writes a whole model. options->onto is ignored. With options->gguf and without
 * options->merge, it writes the adapter itself, as a file for llama.cpp. */
hy_status hy_merge_adapter(const char *adapter, const hy_export_options *options,
                           const hy_observer *observer);

/* Sets the model by name: the folder of a run or one of its checkpoints, with its configuration and
 * weights, or anything that the key "model" accepts. */
hy_status hy_config_use_model(hy_config *config, const char *name);

/* A model that generates text: weights, tokenizer, and a cache with the keys and values of the text
 * so far, so that only new text is computed.
 *
 *     hy_config_use_model(config, "runs/mine");
 *     if (hy_inference_open(config, NULL, NULL, &model) != HY_OK) ...
 *     hy_generate_options options = {.temperature = 0.8};
 *     hy_inference_say(model, "Hello!", &options, print, NULL, NULL); */
typedef struct hy_inference hy_inference;

typedef struct hy_inference_options {
    int32_t context; /* tokens of context; 0: as many as the model allows, or as fit */
    /* tokenizer.json, a .model file, or their folder; "none": tokens are bytes; NULL: the one in
     * the model's folder, else bytes. */
    const char *tokenizer;
    /* chatml, llama2, llama3, mistral, alpaca; "lines": a line end after each question; "plain":
     * texts follow each other. NULL or "auto": as in the rows that the run was trained on, else the
     * one in the model's folder, else plain. */
    const char *chat_template;
    bool without_thinking; /* passes enable_thinking = false to the model's template (Qwen3) */
} hy_inference_options;

/* Opens device and model as configured (model, device, threads, precision, max_gpu_mem). Weights
 * that do not fit the device stream through it block by block for each token. Options and observer
 * may be NULL; the observer gets messages and the progress of loading. HY_ERR_INPUT for a preset
 * alone: it has no weights. */
hy_status hy_inference_open(const hy_config *config, const hy_inference_options *options,
                            const hy_observer *observer, hy_inference **out);
void hy_inference_close(hy_inference *model);

typedef struct hy_inference_facts {
    size_t size;
    const char *model;         /* as it was named */
    const char *weights;       /* the folder they came from */
    const char *device;        /* its name */
    const char *tokenizer;     /* its path; "bytes" */
    const char *chat_template; /* its name; "its own": the one in the model's folder; "plain" */
    int64_t parameters;
    int32_t vocab, context; /* tokens */
    hy_dtype dtype;         /* of compute */
    hy_place weights_place;
    uint64_t weights_bytes, cache_bytes; /* cache: keys, values and states of a full context */
    const char *message_format;          /* how messages are written, for people */
    bool is_trained_format;              /* as in the rows that the run was trained on */
} hy_inference_facts;
static inline void hy_inference_describe(const hy_inference *model, hy_inference_facts *out);

/* Name of adapter number i in the key "adapter" ("a,b,c"); NULL past the last. The name is the last
 * part of the adapter's path that differs from the other paths; for RUN/adapter it is the run's
 * name. All adapters are loaded when the model is opened, and the first is active. */
const char *hy_inference_adapter(const hy_inference *model, size_t i);
const char *hy_inference_adapter_used(const hy_inference *model); /* "": none, only the base */
/* Switches to another adapter; NULL or "none": only the base. The conversation stays; its keys and
 * values depend on the adapter and are computed again with the next answer. For an unknown name the
 * call returns HY_ERR_INPUT, and the message lists the names. */
hy_status hy_inference_use_adapter(hy_inference *model, const char *name);

/* Converts text to token ids and back. Allocated; free with hy_free. Special tokens in the text
 * become special tokens. Decoded text may end within a character. size may be NULL in
 * hy_inference_decode. */
hy_status hy_inference_encode(const hy_inference *model, const char *text, size_t size,
                              int32_t **ids, size_t *count);
hy_status hy_inference_decode(const hy_inference *model, const int32_t *ids, size_t count,
                              char **text, size_t *size);

typedef struct hy_generate_options {
    int32_t max_tokens; /* 0: until the model ends the answer or the context is full */
    double temperature; /* 0: always the most likely token */
    int32_t top_k;      /* sample from the k most likely; 0: from all */
    double top_p;       /* sample from the most likely that sum to this share; 0 or 1: from all */
    uint64_t seed;      /* the same seed, model and text so far give the same answer */
} hy_generate_options;

/* Why an answer ended. */
typedef enum hy_end {
    HY_END_MODEL = 0,      /* the model ended it */
    HY_END_MAX_TOKENS = 1, /* max_tokens was reached */
    HY_END_CONTEXT = 2,    /* the context is full */
    HY_END_STOPPED = 3,    /* it was stopped or cancelled */
    HY_END_STOP_TEXT = 4,  /* one of the stop texts appeared */
    HY_END_NOT_FINITE = 5  /* logits were NaN or infinite */
} hy_end;

typedef struct hy_generated {
    size_t size;
    hy_end end;
    int32_t prompt_tokens; /* all tokens before the answer */
    int32_t reused_tokens; /* of these, tokens that were in the cache from earlier calls */
    int32_t tokens;        /* of the answer */
    double prompt_seconds, seconds;
} hy_generated;

/* Called with each piece of text as it is generated: whole characters, never half of one. */
typedef void (*hy_text_callback)(void *user, const char *text, size_t size);

/* Continues a text; `prompt` is not repeated, and may be NULL or "". The part that the prompt
 * shares with the text so far is not computed again. options, on_text and info may be NULL. */
static inline hy_status hy_inference_complete(hy_inference *model, const char *prompt,
                                              const hy_generate_options *options,
                                              hy_text_callback on_text, void *user,
                                              hy_generated *info);

/* The next turn of a conversation: a message, formatted by the chat template, and the answer. The
 * conversation is kept; when the context gets too small, the oldest turns are dropped. A run that
 * was trained on single questions in a format without turns (plain, lines, alpaca) answers each
 * message alone. A model without a template continues all the text so far. message NULL: answer the
 * conversation as it is (hy_inference_set_messages). options, on_text and info may be NULL. */
static inline hy_status hy_inference_say(hy_inference *model, const char *message,
                                         const hy_generate_options *options,
                                         hy_text_callback on_text, void *user, hy_generated *info);
/* Begins a new conversation with a system prompt, which may be NULL. */
hy_status hy_inference_reset(hy_inference *model, const char *system);
/* Begins a new conversation from JSON: a list of messages, each with "role" (system, user,
 * assistant, tool) and "content" (a text, or a list of parts {"type": "text", "text": ...}), or an
 * object with "messages" and "tools". The model's template sees messages as they are ("tool_calls",
 * "reasoning_content"). After a failure the conversation is empty. */
hy_status hy_inference_set_messages(hy_inference *model, const char *json, size_t size);

/* Ends the answer in progress after its current token. If there is none, the next answer ends at
 * once. Safe in a signal handler. */
void hy_inference_request_stop(hy_inference *model);

/* The loss of a model on data. */
typedef struct hy_evaluation {
    size_t size;
    double loss;          /* mean nats per counted token */
    double perplexity;    /* exp(loss) */
    double bits_per_byte; /* NaN for shards: their size in bytes is not known */
    int64_t tokens;       /* counted */
    int64_t sequences;
    double seconds, tokens_per_second;
    char data[256];  /* in words */
    char model[512]; /* where its weights came from */
    char device[128];
    char adapter[256];     /* name of the adapter; "": none */
    char frozen_dtype[16]; /* stored type of quantised frozen weights; "": not quantised */
    int64_t seq_len;       /* tokens of a sequence; evaluations with another one differ */
    char row_format[256];  /* kind of rows, template, what counts in the loss; "": no rows */
    char rounding[16];     /* hy_export_evaluate: how a file was rounded; "": the model before;
                              "original base": its adapters on the weights of the base's files */
    uint64_t bytes;        /* of that file; 0: none */
    bool is_written;       /* that file was kept */
    /* Of rows for evaluation; loss, perplexity and tokens are then those of the right answers. */
    hy_row_scores row_scores;
} hy_evaluation;

/* Loss of the configured model on all of the configured data, in sequences of seq_len tokens and
 * micro-batches of eval_batch_size (0: batch_size). Writes nothing. observer may be NULL. */
static inline hy_status hy_evaluate(const hy_config *config, const hy_observer *observer,
                                    hy_evaluation *out);
/* As a JSON object. Allocated; free with hy_free. */
static inline hy_status hy_evaluation_json(const hy_evaluation *evaluation, char **out);

/* Evaluates every adapter in the key "adapter" ("a,b,c") and loads the base only once. With several
 * adapters the first result is that of the base alone; then the adapters follow in their order.
 * Otherwise there is one result, as from hy_evaluate. Allocated; free with hy_free. */
static inline hy_status hy_evaluate_each(const hy_config *config, const hy_observer *observer,
                                         hy_evaluation **out, size_t *count);
/* Results of one call as a JSON object with a list. Allocated; free with hy_free. */
static inline hy_status hy_evaluations_json(const hy_evaluation *list, size_t count, char **out);

typedef struct hy_merge_options {
    const char *base;     /* as in hy_export_options */
    const char *data;     /* data to evaluate on; NULL: the run's held-out data */
    const char *device;   /* NULL: the run's */
    int64_t eval_batches; /* number of micro-batches; 0: all */
} hy_merge_options;
typedef struct hy_merge_losses {
    hy_evaluation trained; /* adapters on the base as training used it */
    hy_evaluation folder;  /* adapters on the weights in the base's files, if has_folder */
    bool has_folder;       /* training quantised the base, and its files are unchanged */
} hy_merge_losses;
/* Held-out loss of a checkpoint (or of the newest one of a run) with its adapters, first on the
 * base as training used it, then on the weights in the base's files. HY_ERR_MEMORY is also returned
 * if the weights in the files need more memory than is free. */
static inline hy_status hy_merge_evaluate(const char *checkpoint, const hy_merge_options *options,
                                          const hy_observer *observer, hy_merge_losses *out);

/* Writes options->gguf, or options->out with options->type, like hy_export, but measures the
 * held-out loss of the model before ("", and "original base" for a merge into a base that training
 * quantised) and of each file or folder: "nearest", and with options->calibrate also "calibrated",
 * with errors of rounding corrected for the inputs that the calibration text gives, and for a file
 * "larger", where the matrices that lose most have a larger type (at
 * most 5 % more bytes). The file with the lowest loss is kept; the larger one only if the increase of
 * the loss falls by a greater share than the size grows. The figures of a run's exports are kept in
 * RUN/exports.json, and RUN/report.html is renewed if it exists. losses->base is not used. The list
 * is allocated; free with hy_free. */
static inline hy_status hy_export_evaluate(const char *checkpoint, const hy_export_options *options,
                                           const hy_merge_options *losses,
                                           const hy_observer *observer, hy_evaluation **out,
                                           size_t *count);

/* A model's folder from the Hugging Face hub. */
typedef struct hy_downloaded {
    size_t size;
    char folder[1024]; /* a value for "model" */
    char commit[65];   /* its revision */
    int64_t files;
    uint64_t bytes;   /* of the model */
    uint64_t fetched; /* of these, downloaded by this call */
} hy_downloaded;

/* Downloads the model `name` ("Qwen/Qwen2.5-0.5B", or "NAME@REVISION") from the Hugging Face hub
 * over HTTPS, which needs libcurl: configuration, tokenizer and safetensors. Sizes and checksums
 * are verified. The files go into `folder`, or (NULL or "") into the hub's cache, where "model"
 * finds them by name. An interrupted download is continued. HF_ENDPOINT names another hub; HF_TOKEN
 * (else HUGGING_FACE_HUB_TOKEN, else the file of huggingface-cli) is sent only to the hub. The
 * observer may be NULL; on_message and on_progress are called. */
static inline hy_status hy_download(const char *name, const char *folder,
                                    const hy_observer *observer, hy_downloaded *out);
/* As a JSON object. Allocated; free with hy_free. */
static inline hy_status hy_downloaded_json(const hy_downloaded *downloaded, char **out);

/* ---- 5. Summary and memory ------------------------------------------------------------------- */

/* A cell of the placement table. */
typedef struct hy_memory_cell {
    hy_place place;
    hy_dtype dtype;
    uint64_t planned_bytes;
    uint64_t measured_bytes; /* peak in this phase */
} hy_memory_cell;

typedef struct hy_phase_summary {
    int64_t steps; /* in Predict jumps, in Evaluate validations */
    double seconds;
    double wait_seconds;
    uint64_t bytes_moved;
    uint64_t vram_planned_bytes, vram_peak_bytes;
    hy_memory_cell memory[HY_CLASS_SLOTS];
} hy_phase_summary;

typedef struct hy_summary {
    size_t size;
    const char *model;
    const char *device;
    const char *matmul; /* what computes matmuls: library, core type */
    const char *data;
    const char *out; /* the run's folder; "" when nothing is written */
    int64_t parameters;
    int64_t steps_total; /* the budget: hy_steps_at_end */
    int64_t steps, full_steps, predicted_steps, correct_steps, backward_passes, skipped_steps;
    int64_t fp8_matmuls, block_matmuls; /* per micro-batch: matmuls in fp8; all in the blocks */
    int64_t moves, rejected_moves;      /* jumps in Predict; jumps that the guard rejected */
    int64_t divergences, forks;         /* forks: paired tests */
    double spent;                       /* compute, in full steps */
    double confidence;
    double fork_gain;        /* nats, summed over paired tests; positive: jumps were better */
    double fork_gain_steps;  /* the same in optimizer steps of the run without jumps */
    const char *predictor;   /* its name */
    const char *why_not;     /* why no jumps are made now; "" if they are */
    int64_t tokens;          /* trained on; custom: as your program counts them */
    int64_t tokens_per_step; /* 0: custom, not known */
    double seconds, tokens_per_second;
    double flops_per_token; /* of the model, forward and backward */
    bool is_gpu;
    int capability;      /* GPU: 90 for sm_90 */
    double peak_flops;   /* GPU: dense bf16 rate by the data sheet; 0: not known */
    double matmul_flops; /* timed at the start: fp32, on a GPU bf16 */
    double mfu, sol;     /* GPU: as in hy_step_info, over the whole run */
    double final_loss;   /* mean of the last steps */
    double val_loss;     /* of the averaged weights if there are any; NaN before a validation */
    double raw_val_loss; /* of the weights themselves if val_loss is of the average; else NaN */
    bool knows_entropy;
    double source_entropy;     /* nats per token, exact */
    double val_optimum;        /* loss of the true source on the held-out text */
    double ngram_loss;         /* of a 5-gram counted on the training bytes; NaN: not computed */
    uint64_t checkpoint_bytes; /* size of one checkpoint */
    hy_phase_summary phases[HY_PHASE_SLOTS];
    int64_t val_tokens;   /* that val_loss counts; of pairs of answers, their number */
    double best_val_loss; /* lowest, on the sequences that all validations use; NaN: none */
    int64_t best_val_step;
    bool is_stopped_early;  /* by early_stop */
    const char *row_format; /* kind of rows, template, what counts in the loss; "": no rows */
    const char *row_losses; /* rows dropped and cut, with reasons, unknown tokens; "": none */
    int64_t rows, rows_dropped, rows_cut;
    int64_t vocab;        /* entries of the vocabulary; 0: custom */
    bool is_drawn;        /* this session began with weights drawn at random */
    bool has_byte_tokens; /* the data is read as bytes, without a tokenizer */
    int64_t trained;      /* parameters that are not frozen */
    /* part of checkpoint_bytes: frozen weights, which a run with adapters on a model folder leaves
     * to the folder */
    uint64_t checkpoint_frozen_bytes;
    /* tokens of the data that were encoded so far, and those of them that are the tokenizer's
     * unknown token (<unk>); 0 for bytes and shards */
    int64_t tokens_encoded, tokens_unknown;
    hy_row_scores row_scores; /* of the last validation, on the rows of eval.eval_rows */
    const char *task;         /* of pairs of answers: the loss and its reference; "": next token */
    bool measures_reference;  /* before the first step */
    bool generates_answers;   /* task grpo: the phase Rollout */
} hy_summary;

/* Results of the run so far. */
static inline void hy_trainer_summary(const hy_trainer *trainer, hy_summary *out);
/* As a JSON object, as in OUT/summary.json. Allocated; free with hy_free. */
hy_status hy_trainer_summary_json(const hy_trainer *trainer, char **out);

/* The ranks of a run or of a plan. */
typedef struct hy_ranks_info {
    size_t size;
    int32_t count, rank;   /* rank: of this process, from 0 */
    int32_t zero_stage;    /* as chosen */
    const char *transport; /* between ranks: "sockets", "MPI", "NCCL" */
} hy_ranks_info;

/* False: there is only one rank, and *out is zero. */
static inline bool hy_trainer_ranks(const hy_trainer *trainer, hy_ranks_info *out);
/* Cost of the steps of this session on one rank. Only rank 0 has these numbers. False: there is no
 * such rank, or no step was made yet. */
static inline bool hy_trainer_rank(const hy_trainer *trainer, int32_t rank, hy_rank_cost *out);

/* Memory of the device or the host.
 *
 * Utilization is a share of the budget. The budget is the user's limit or the memory that was free
 * at the start, and becomes smaller when other programs take memory. The status rises as soon as a
 * threshold is reached, and falls when the utilization stays clearly below it for some steps.
 * Predict, which needs less memory, does not lower it. Planned use raises the status to warning at
 * most: critical and emergency mean that the budget has become smaller, or that more memory is in
 * use than planned. On a CPU, device and host are one memory with the host's budget. */
typedef struct hy_memory_pool {
    uint64_t used;        /* live bytes of the run's classes */
    uint64_t reserved;    /* allocated from the driver or the system for them */
    uint64_t peak;        /* most bytes that were live so far */
    uint64_t planned;     /* for this phase */
    uint64_t free, total; /* as the driver or the system reports now; 0: not known */
    uint64_t budget;      /* that the run may use now; 0: no limit is known */
    double utilization;   /* share of the budget; 0 where there is none */
    hy_memory_status status;
} hy_memory_pool;

typedef struct hy_memory_class {
    hy_place place; /* in this phase, by the plan */
    hy_dtype dtype;
    uint64_t planned;              /* bytes there in this phase */
    uint64_t live[HY_PLACE_SLOTS]; /* bytes now, by place */
} hy_memory_class;

/* A changed setting that would need less memory, found by planning this run again with `key` set to
 * `value`. With another batch_size, grad_accum_steps changes too, so that a step keeps its
 * tokens. */
#define HY_MEMORY_ADVICE 6
typedef struct hy_memory_advice {
    char key[32], value[32];
    int64_t device_bytes, host_bytes; /* freed; negative: it needs more there */
    char text[HY_PLAN_TEXT];          /* "micro-batch 8 to 6 frees 1.9 GiB" */
} hy_memory_advice;

/* What a run keeps in memory now, and what was planned. */
typedef struct hy_memory_state {
    size_t size;
    int64_t step;
    hy_phase phase;
    bool is_unified; /* device and host are one memory */
    hy_memory_pool device, host;
    hy_memory_status status;                     /* the worse of the two */
    double target, warning, critical, emergency; /* thresholds, shares of a budget */
    uint64_t host_pinned;                        /* page-locked, live; part of host.used */
    uint64_t host_resident;                      /* of this process, as the system reports */
    uint64_t process_device; /* of this process on the card, by the driver; 0: not known */
    double stalled;          /* share of the last ten seconds lost waiting for memory */
    double fragmentation;    /* share of reserved device memory that no phase used */
    hy_memory_class classes[HY_CLASS_SLOTS];
    int32_t advice_count; /* the cheapest first */
    hy_memory_advice advice[HY_MEMORY_ADVICE];
} hy_memory_state;

/* Reads the current figures of driver and system. Advice needs new plans, which takes some
 * milliseconds. */
static inline hy_status hy_trainer_memory(const hy_trainer *trainer, hy_memory_state *out);

/* ---- 6. Custom models and loops -------------------------------------------------------------- */

/* Trains your own parameters, in your memory. Your code computes losses and gradients. The library
 * runs phases, prediction and optimizer; keeps master weights and optimizer state on the card, in
 * pinned memory or on disk, as planned; validates, saves and writes metrics. There are two ways:
 * callbacks that a trainer calls (a), or your own loop (b). Both are ordinary runs with the same
 * keys, phases, folder and resuming.
 *
 * Keys for the built-in models and data (model, data, batch_size, seq_len, recompute, ...) have no
 * effect. A step has grad_accum_steps micro-batches (1 by default), which are numbered 0, 1, 2, ...
 * The key `steps` must be set. By default the learning rate has no warm-up, and no value comes from
 * a model preset (hy_config_use_custom).
 *
 * Memory: the memory that a parameter points to is yours. Its address must not change as long as
 * the handle exists. With device = cpu (or auto, without a usable card) it is host memory; on a
 * card it is memory that the card can access, aligned to 16 bytes.
 *
 * Streams: on a card, enqueue your work on weights and gradients on the stream that you name. The
 * library orders its streams and yours with events; the host waits once in a step, for the gradient
 * norm.
 *
 * Ranks (7): each process creates its handle with the same parameters and the same keys, except
 * keys that describe its machine. A step still has grad_accum_steps micro-batches, divided equally
 * among the ranks: the number of ranks must divide it. Losses and gradients of all ranks are
 * combined; every target has the same weight. Initial weights are those of rank 0. Held-out losses
 * are summed: each rank may evaluate its share, or everything. All ranks call step, evaluate and
 * save at the same point. A failure or stop on one rank ends the run on all; after a failure the
 * weights in your memory are undefined. zero_stage is 0, 1 or 2: your memory holds all weights. */
#define HY_PARAMETER_DIMS 8

typedef struct hy_parameter {
    const char *name; /* copied; unique, UTF-8, used in checkpoints */
    void *weights;    /* read and written by the library; not shared with other parameters */
    void *grads;      /* read; with callbacks also zeroed; NULL: set later (hy_loop_set_gradient) */
    int32_t ndim;     /* 0: a single number */
    int64_t shape[HY_PARAMETER_DIMS];
    int32_t group; /* index into the groups; 0 without groups */
    /* Only with unit_of: it is not trained, so it has no gradient and no state, and checkpoints do not
     * contain it. `dtype` is the type in which you use it; frozen_dtype of the configuration is the
     * type in which the library stores it. */
    bool is_frozen;
    hy_dtype dtype; /* of a frozen parameter: HY_F32, HY_BF16 or HY_F16 */
} hy_parameter;

/* The key "groups" of the configuration, which selects parameters by name, overrides this. */
typedef struct hy_parameter_group {
    double lr_scale;     /* factor on the run's learning rate */
    double weight_decay; /* below 0: the run's, but only for parameters of two or more dimensions */
} hy_parameter_group;

typedef struct hy_custom_parameters {
    const hy_parameter *list; /* copied */
    int32_t count;
    const hy_parameter_group *groups; /* copied; NULL: one group, {1, -1} */
    int32_t group_count;
    /* HY_F32, HY_BF16 or HY_F16, of all weights and of all gradients. The library keeps an fp32
     * master copy of 16-bit weights, unless master_dtype says otherwise. */
    hy_dtype dtype, grad_dtype;
    /* True: the library asks for the gradients of one micro-batch at a time and sums them (with
     * grad_dtype and grads_place of the configuration). False: you sum over all micro-batches of a
     * step. */
    bool sums_gradients;
    void *stream; /* card: the cudaStream_t that you compute on; NULL: the default stream */
    /* Your part of every checkpoint: `save` returns bytes from malloc, which the library frees;
     * `load` gets them when the run is resumed. Either may be NULL. With several ranks rank 0
     * saves, and all load. */
    void *user;
    hy_status (*save)(void *user, void **bytes, size_t *size);
    hy_status (*load)(void *user, const void *bytes, size_t size);
} hy_custom_parameters;

/* (a) A custom model: callbacks over your parameters. `batch` is the number of a micro-batch.
 * Training uses the numbers 0, 1, 2, ... in order. The guard and paired tests also ask for numbers
 * that training has not reached, and paired tests return to earlier numbers. Callbacks are called
 * one at a time, in the thread that calls hy_trainer_run or _step; they may not call the trainer.
 * If a callback returns a status other than HY_OK, the run ends with that status; after HY_STOPPED
 * it is saved first. */
typedef struct hy_custom_model {
    hy_custom_parameters parameters;
    void *user;
    /* Sum of losses over the micro-batch, and the number of targets. May not change the weights. */
    hy_status (*forward)(void *user, int64_t batch, double *loss_sum, int64_t *counted);
    /* As forward; also adds the gradient of loss_scale * loss_sum to grads, which begin as zero. */
    hy_status (*backward)(void *user, int64_t batch, double loss_scale, double *loss_sum,
                          int64_t *counted);
    /* Held-out loss now; may be NULL. */
    hy_status (*evaluate)(void *user, double *loss_sum, int64_t *counted);
} hy_custom_model;

/* Creates a trainer for a custom model. hy_trainer_run, _step, _evaluate, _save, _summary, _memory
 * and _destroy work as for the built-in models. */
hy_status hy_trainer_create_custom(const hy_config *config, const hy_custom_model *model,
                                   const hy_observer *observer, hy_trainer **out);
/* As hy_trainer_plan, for these parameters: weights and grads may be NULL. */
hy_status hy_trainer_plan_custom(const hy_config *config, const hy_custom_parameters *parameters,
                                 const hy_observer *observer, hy_trainer **out);
/* As above, for one of `count` ranks, as hy_trainer_plan_ranks. */
hy_status hy_trainer_plan_custom_ranks(const hy_config *config,
                                       const hy_custom_parameters *parameters, int32_t count,
                                       bool has_cards, const hy_observer *observer,
                                       hy_trainer **out);

/* (b) Your own loop: the library asks, you compute and answer.
 *
 *     while ((status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
 *         double loss;
 *         if (step.todo == HY_DO_GRADIENTS) {
 *             loss = your forward and backward over step.count micro-batches from step.batch on;
 *         } else {
 *             loss = your forward pass over micro-batch step.batch, or over held-out data;
 *         }
 *         status = hy_loop_answer(loop, loss, tokens);
 *         if (status != HY_OK) break;
 *     }
 *
 * Between hy_loop_next and hy_loop_answer your memory holds the weights to use: in Predict the
 * proposed ones, at the end of a run with tail_share their average. When hy_loop_answer returns,
 * your memory holds the weights for the next question. A rejected jump is undone bit for bit. Files
 * are written only if `out` names a folder. */
typedef struct hy_loop hy_loop;

typedef enum hy_todo {
    HY_DO_GRADIENTS = 0, /* loss and gradients of the step's micro-batches */
    HY_DO_LOSS = 1,      /* loss of one micro-batch */
    HY_DO_EVALUATE = 2,  /* held-out loss */
    HY_DO_NOTHING = 3    /* the run is over */
} hy_todo;

typedef struct hy_loop_options {
    hy_custom_parameters parameters;
    /* You call hy_loop_use when your forward pass reaches a parameter. State in pinned memory or on
     * disk is then updated during the next pass, so that its copies overlap your compute. The
     * results have the same bits. */
    bool uses_in_turn;
    bool can_evaluate; /* HY_DO_EVALUATE is allowed: eval_every, early_stop and the run's end */
    bool can_rewind;   /* earlier micro-batches may be requested again, for paired tests */
    /* NULL: weights and gradients are in your memory. Otherwise the library keeps both, on the
     * device, in pinned memory or on disk (weights_place, grads_place), and you use them in units:
     * unit_of[i] is the unit of parameter i. Units count from 0 in the order of your forward pass;
     * list parameters in the order of their units. `weights` and `grads` in the list are NULL. Then
     * sums_gradients and uses_in_turn are true, hy_loop_use is not needed, and there is one rank.
     * Parameters may be frozen; at least one is trained. */
    const int32_t *unit_of;
    /* Device bytes of your own passes: activations, gradients of a unit and the like. max_gpu_mem
     * and the card's free memory are for them and for the library together. 0: none are counted.
     * -1, with unit_of: not known yet; the library then uses as little of the device as it can
     * until hy_loop_plan_again. A checkpoint keeps the number. */
    int64_t caller_bytes;
    uint64_t caller_held; /* those that your allocator has now: up to caller_bytes count as free */
} hy_loop_options;

typedef struct hy_loop_step {
    size_t size;
    hy_todo todo;
    bool is_over;         /* todo is HY_DO_NOTHING */
    int64_t step;         /* optimizer steps done so far */
    int64_t batch, count; /* micro-batches [batch, batch + count), of this rank */
    hy_phase phase;
    const char *reason;   /* why this phase; "" when it has not changed */
    const char *obstacle; /* why no jump can come next; "": one can */
    double lr;            /* of this step's update */
    double loss_scale;    /* compute gradients of this times the loss; 1 except in fp16 */
    hy_dtype precision;   /* of the passes in this phase, by the configuration */
    double confidence;
} hy_loop_step;

/* The observer may be NULL; it is copied, and called from another thread while one of your calls
 * waits. A resumed loop writes the weights of the checkpoint into your memory before this
 * returns. */
hy_status hy_loop_create(const hy_config *config, const hy_loop_options *options,
                         const hy_observer *observer, hy_loop **out);
/* As hy_trainer_plan, for the loop that hy_loop_create would make: weights and grads of the list may
 * be NULL. */
hy_status hy_loop_plan(const hy_config *config, const hy_loop_options *options,
                       const hy_observer *observer, hy_trainer **out);
/* Discards everything since the last checkpoint. To save first, call hy_loop_stop. */
void hy_loop_destroy(hy_loop *loop);

/* Says what to compute now. It returns the same question until hy_loop_answer is called. */
static inline hy_status hy_loop_next(hy_loop *loop, hy_loop_step *out);
/* Answers the question. `loss` is the mean over `tokens` targets; your gradients are those of
 * loss_scale times this mean. `tokens` is the weight of the micro-batches, and the unit of
 * throughput (1 if all have the same weight). HY_ERR_NUMERIC: the run diverged, or twenty updates
 * in a row were not finite. After a failure hy_loop_next says whether the run is over; after a
 * refused answer (tokens below 1, a missing gradient) you may answer again. */
hy_status hy_loop_answer(hy_loop *loop, double loss, int64_t tokens);
/* Sets where the gradients of a parameter are from now on; call it before the answer. */
hy_status hy_loop_set_gradient(hy_loop *loop, int32_t parameter, void *grads);
/* As above, for all parameters in their order. */
hy_status hy_loop_set_gradients(hy_loop *loop, void *const *grads);
/* hy_loop_set_gradients (NULL: unchanged), hy_loop_answer and hy_loop_next in one call, for
 * languages in which calls are slow. *next is filled on success; *last (may be NULL) as by
 * hy_loop_last. */
static inline hy_status hy_loop_exchange(hy_loop *loop, void *const *grads, double loss,
                                         int64_t tokens, hy_loop_step *next, hy_step_info *last);
/* With uses_in_turn, in a HY_DO_GRADIENTS question: call it before you first read this parameter
 * (-1: all parameters) on your stream. It does not wait if you call it in the order of the list. Do
 * not change the gradients of the previous step until you have called it for all parameters. */
hy_status hy_loop_use(hy_loop *loop, int32_t parameter);

/* With unit_of: the weights of a unit, between hy_loop_hold and hy_loop_release. `weights` gets the
 * device address of each parameter of the unit, in the order of the list; your stream may read
 * there. The addresses change from one hold to the next, because units share buffers, so nothing
 * that reads these weights may outlive the release: enqueue all such work before it. Each hold has
 * its release. HY_ERR_STATE: too many units of this size are held; two are always possible, unless
 * both are clearly larger than the others; or a frozen parameter was not written yet. hy_loop_fetch
 * begins to copy a unit that you will hold soon. After another failure the loop cannot go on: stop
 * it, and resume from its checkpoint. Units can also be held when the run is over. */
hy_status hy_loop_hold(hy_loop *loop, int32_t unit, void **weights);
hy_status hy_loop_release(hy_loop *loop, int32_t unit);
hy_status hy_loop_fetch(hy_loop *loop, int32_t unit);
/* Are the unit's weights always on the device, so that each hold gives the same addresses? A graph
 * that reads them may then outlive the release, up to the answer or to hy_loop_plan_again. The plan
 * may change between steps: ask again in each. */
bool hy_loop_stays(hy_loop *loop, int32_t unit);
/* Adds gradients of the micro-batch to those of the step: one address for each parameter of the
 * unit; NULL: zero; those of frozen parameters are not read. They are those of loss_scale times the
 * mean loss over `tokens` targets, the same number as in the answer. After the call your stream may
 * overwrite them. A unit may get gradients several times, and those of units without any are
 * zero. */
hy_status hy_loop_add_gradients(hy_loop *loop, int32_t unit, int64_t tokens, void *const *grads);
/* Copies elements [first, first + count) of a parameter to or from host memory, in the type of the
 * weights; between two questions or before the first answer, while no unit is held. The first
 * question comes with weights that are zero, unless the run was resumed: write them then. Frozen
 * parameters have their own type, and a resumed run needs them, too. Write their elements in order;
 * a matrix that the library quantises (frozen_dtype) in one call: you read the decoded values. */
hy_status hy_loop_write_weights(hy_loop *loop, int32_t parameter, int64_t first, int64_t count,
                                const void *from);
hy_status hy_loop_read_weights(hy_loop *loop, int32_t parameter, int64_t first, int64_t count,
                               void *to);
/* Has a checkpoint been loaded, so that the weights are known? */
bool hy_loop_is_resumed(hy_loop *loop);
/* With unit_of, before the first gradients of a step: your passes need so many bytes of the device,
 * and your allocator has caller_held of them now, as in hy_loop_options. The library adds 1/32 to
 * caller_bytes. Unless the plan has room for it already, and not more than an eighth too much, the
 * run is planned again and state moves: all bits stay the same. A row of the state is then in its
 * old and its new place for a while. HY_ERR_MEMORY: no plan fits beside your passes, or there is no
 * memory for the move; the run keeps its plan. HY_ERR_STATE: a unit is held, the step has
 * gradients, the question asks for a loss, a paired test is running, or the run is over. */
hy_status hy_loop_plan_again(hy_loop *loop, int64_t caller_bytes, uint64_t caller_held);

/* Saves a checkpoint now. HY_ERR_STATE: the current question is not HY_DO_GRADIENTS, or the run is
 * in the discarded part of a paired test. All ranks must call it before the same answer. */
hy_status hy_loop_save(hy_loop *loop);
/* Ends the run after its last finished step, and saves it if it has a folder. It is enough that one
 * rank calls it; on the other ranks the call in progress or the next answer returns HY_STOPPED.
 * HY_ERR_STATE: a unit is held. */
hy_status hy_loop_stop(hy_loop *loop);
/* The last step or jump; false: there was none yet. Its strings are constants. */
static inline bool hy_loop_last(hy_loop *loop, hy_step_info *out);
/* The loop's trainer, for hy_trainer_summary, _memory, _plan_facts and the like, between calls and
 * when the run is over. It belongs to the loop: do not step, save or destroy it. */
const hy_trainer *hy_loop_trainer(hy_loop *loop);

/* (c) A loop as the optimizer of a program that has its own loop, such as a training framework. Each
 * step of that program answers one HY_DO_GRADIENTS question. The program sets learning rates itself
 * (lr = 1, schedule = constant, lr_warmup_steps = 0, steps large) and stores the optimizer's state
 * itself. These calls need an open HY_DO_GRADIENTS question and a single rank. The library's
 * checkpoints do not contain these rates and which updates were skipped. */

/* Sets lr_scale and weight_decay of every parameter, in the order of the list, from the next update
 * on. lr_scale below 0: updates skip the parameter. Its weights and state then stay as they are. Its
 * gradient is not read, but it must have an address. */
hy_status hy_loop_set_rates(hy_loop *loop, const hy_parameter_group *rates);

typedef struct hy_state_array {
    size_t size;
    char name[16]; /* "m", "v", "master"; the scales of 8-bit values are a second array "m.scale" */
    hy_dtype dtype; /* HY_U8: 8-bit values */
    int32_t ndim;
    int64_t shape[HY_PARAMETER_DIMS];
    uint64_t bytes;
} hy_state_array;

/* Array `index`, from 0, of a parameter's state; HY_ERR_INPUT: it has fewer. "master" is there only
 * if the weights that are updated are not the program's own. */
static inline hy_status hy_loop_state(hy_loop *loop, int32_t parameter, int32_t index,
                                      hy_state_array *out);
/* Copies all bytes of such an array to or from host memory. */
hy_status hy_loop_read_state(hy_loop *loop, int32_t parameter, int32_t index, void *out,
                             uint64_t bytes);
hy_status hy_loop_write_state(hy_loop *loop, int32_t parameter, int32_t index, const void *in,
                              uint64_t bytes);
/* The number of updates of every parameter, which bias corrections use, and the number of steps,
 * which stochastic rounding uses. */
hy_status hy_loop_read_updates(hy_loop *loop, int64_t *updates, int64_t *steps);
hy_status hy_loop_write_updates(hy_loop *loop, const int64_t *updates, int64_t steps);

/* ---- 7. Ranks -------------------------------------------------------------------------------- */

/* Several processes can train one model, each with its own device. A launcher (hybrid-train --gpus
 * N, mpirun, srun, torchrun, or your program with hy_start_ranks) starts all of them with the same
 * command and sets environment variables that give each process its rank. A trainer or loop in such
 * a process is one of the ranks. */
typedef struct hy_rank_info {
    size_t size;
    int32_t rank, count;             /* 0 of 1: there is only this process */
    int32_t local_rank, local_count; /* on this machine; local_count 0: the launcher did not say */
    const char *launcher; /* "hybrid-train", "torchrun", "Open MPI", "PMI", "Slurm"; "": none */
} hy_rank_info;

/* Finds the rank of this process. HY_ERR_INPUT: variables are missing or contradict each other; the
 * message names them. */
static inline hy_status hy_find_rank(hy_rank_info *out);

typedef struct hy_start_options {
    int32_t count;
    char *const *argv;   /* command of every rank; NULL ends it */
    bool uses_cards;     /* every rank has its own card; there must be at least `count` cards */
    double rank_timeout; /* as the key of that name; 0: 60 */
} hy_start_options;

/* Starts `count` ranks of a command on this machine, forwards signals to them and their output to
 * the terminal, and waits until they end. *exit_code is 0 if all ranks ended with 0. Otherwise it
 * is the code of rank 0, or 1 if that is 0. If a launcher has already started this process as one
 * of `count` ranks, or `count` is 1, nothing is started and *has_started is false: continue as that
 * rank. HY_ERR_INPUT: the launcher started another number of ranks, or there are too few cards. */
hy_status hy_start_ranks(const hy_start_options *options, bool *has_started, int *exit_code);

#include "hybrid_sized.h"

#ifdef __cplusplus
}
#endif

/* For older programs, until version 0.3: old names, and the functions that have moved to
 * hybrid_tools.h. Define HYBRID_NO_OLD_NAMES to compile without them. */
#ifndef HYBRID_NO_OLD_NAMES
#include "hybrid_old_names.h"
#include "hybrid_tools.h"
#endif
#endif
