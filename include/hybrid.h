/* hybrid.h: train transformer language models from C.
 *
 * The whole library in one header, read from top to bottom:
 *
 *   1. Errors          every call returns hy_status; hy_error_message() says what was wrong.
 *   2. Configuration   a set of named values with defaults, profiles, files and overrides.
 *   3. Trainer         made from a configuration; runs to the end, or step by step.
 *   4. Using a model   what it writes, talking to it, and its loss on any data.
 *   5. Looking         what the run came to, what it keeps in memory, what this machine is.
 *   6. Your own        your model with our loop, or your loop with our phases and optimizer.
 *   7. Ranks           several processes that train one model.
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
 * Ownership: what a _create call gives you, the matching _destroy takes back; NULL is accepted there.
 * Strings given to the library are copied. Pointers inside structs the library fills stay its own and
 * live as long as the handle they came from, unless a comment says less.
 *
 * Threads: a handle belongs to one thread at a time. Two trainers may live side by side. Only
 * hy_trainer_request_stop() and hy_inference_request_stop() may be called from anywhere, a signal handler
 * included.
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

#define HYBRID_VERSION "0.1.0"
/* Of the binary interface: raised when a program built with an earlier header no longer fits, because a struct, an
 * enumeration or a function is another. Functions that are only added leave it. */
#define HYBRID_ABI 1

/* The same of the library that was loaded: a program that finds it by itself compares. */
const char *hy_version(void);
int hy_abi(void);

/* ---- 1. Errors ------------------------------------------------------------------------------- */

/* What went wrong in this thread's last call that did not return HY_OK: one sentence that names the
 * thing, its value and what is accepted. Valid until the next failing call of this thread. */
const char *hy_error_message(void);

/* ---- 2. Configuration -------------------------------------------------------------------------- */

/* Every value has a key like "train.batch_size". The part after the dot is unique and may be used alone
 * ("batch_size"); the program's flag is that part with dashes (--batch-size). hy_config_key() lists
 * them all. When a value is set in several ways, the stronger origin wins whatever the order of calls;
 * within one origin the later call wins. */
typedef struct hy_config hy_config;

typedef enum hy_origin {
    HY_FROM_DEFAULT = 0, /* built in */
    HY_FROM_PRESET = 1,  /* the model preset */
    HY_FROM_PROFILE = 2, /* conservative, balanced, aggressive */
    HY_FROM_FILE = 3,    /* a configuration file */
    HY_FROM_SET = 4,     /* --set key=value */
    HY_FROM_FLAG = 5,    /* a flag of its own */
    HY_FROM_CALLER = 6   /* a program's own choice: as strong as a flag */
} hy_origin;

/* What a key is: for help texts and completion. */
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

/* Reads a libconfig file. A wrong key or value fails with the file, the line, what is accepted and the
 * nearest key; nothing of the file is taken then. Several files may be loaded; the later one wins.
 * Where no such file exists, the name of a card file means the built-in one ("rtx5080"). */
hy_status hy_config_load(hy_config *config, const char *path);

/* Loads the configuration that a run was made with, as a file: `folder` is the run's folder or one of its
 * checkpoints; "auto" means the newest run below runs/. With this, resuming needs no other values. */
hy_status hy_config_load_run(hy_config *config, const char *folder);

/* Sets one value from text. "profile" and "model" bring their own values with them, as weaker origins. */
hy_status hy_config_set(hy_config *config, const char *key, const char *value, hy_origin origin);

/* The value of a key as text, and where it came from ("default", "profile balanced",
 * "my.cfg:12", "flag --batch-size"); origin may be NULL. Strings live until the config changes. */
hy_status hy_config_get(const hy_config *config, const char *key, const char **value,
                        const char **origin);

/* For a model or loop of your own (section 6): what the model preset says and the grad_accum_steps of the profile no
 * longer count, now or later, because nobody has chosen them for your model; lr_warmup_steps is 0 unless it or
 * lr_warmup_ratio is set. What files and calls say stays. Handles of section 6 do this by themselves, on a copy:
 * it is here to look at the values beforehand. */
hy_status hy_config_use_own(hy_config *config);

/* Key number i, or NULL when i is past the last. */
const hy_config_key_info *hy_config_key(size_t i);

/* What a name means: a key, its last part alone, a flag ("--batch-size"), or a name that other tools
 * use for it ("learning_rate", "--checkpoint-every-layer"). NULL when it means nothing. */
const hy_config_key_info *hy_config_find(const char *name);

/* The whole result as a libconfig file that can be loaded again, each line with its origin as a
 * comment. Allocated; free with hy_free. */
hy_status hy_config_print(const hy_config *config, char **out);

/* Names of the built-in presets ("model"), profiles ("profile") and card files ("gpu"); NULL past the
 * last. hy_builtin_text gives the file itself. */
const char *hy_builtin_name(const char *kind, size_t i);
const char *hy_builtin_text(const char *kind, const char *name);

/* The command line that the run was started with, for its records; "" by default. */
hy_status hy_config_set_command(hy_config *config, const char *command);

void hy_free(void *allocated_by_the_library);

/* ---- 3. Trainer -------------------------------------------------------------------------------- */

typedef struct hy_trainer hy_trainer;

/* A GPU as the driver's library sees it, at most a second ago; NaN where the card does not tell. */
typedef struct hy_gpu_state {
    bool is_known; /* false on a CPU and where the library is missing */
    double power_watts, temperature_c, sm_clock_mhz;
    double utilization; /* share of the time in which something ran, 0 to 1 */
} hy_gpu_state;

/* One optimizer step, or one jump in Predict. */
typedef struct hy_step_info {
    int64_t step;        /* from 1 */
    int64_t steps_total; /* planned */
    hy_phase phase;
    const char *reason; /* why this phase, "" when nothing changed */
    double loss;        /* mean over this step's counted tokens, nats */
    double lr;
    double grad_norm;         /* before clipping */
    int64_t tokens;           /* trained on so far */
    double tokens_per_second; /* recent; of all tokens, whether their targets count or not */
    double seconds;           /* this step */
    double elapsed;           /* since the start of the run, earlier sessions included */
    double remaining;         /* expected, seconds */
    double confidence;        /* that predicting pays, 0 to 1 */
    hy_dtype precision;       /* HY_E4M3: bf16 with matmuls of the blocks in fp8 */
    /* In fp8, else NaN: of all numbers that went into its matmuls the largest magnitude, and in the layer where
     * it is most the share of those that were not zero and became it. */
    double fp8_largest, fp8_zeros;
    int64_t fp8_largest_layer, fp8_zeros_layer; /* where, from 0; -1: not in fp8 */
    int64_t batch_size, grad_accum; /* batch_size 0: yours, a micro-batch is what you make it */
    uint64_t vram_bytes, vram_peak_bytes; /* live on the device now; the most so far */
    uint64_t host_pinned_bytes;
    /* By the monitor's latest look, at most a second old; 0: not known, or memory.monitor is off. */
    uint64_t vram_planned_bytes;  /* of this phase */
    uint64_t vram_reserved_bytes; /* taken from the driver */
    uint64_t vram_free_bytes;     /* by the driver */
    uint64_t host_resident_bytes; /* of this process, by the system */
    hy_memory_status memory_status;
    uint64_t bytes_moved;   /* between places, in this step */
    double wait_seconds;    /* compute waited for copies or data */
    bool was_skipped;       /* the gradient was not finite: nothing was updated */
    double spent;           /* compute so far, in full steps: guard passes and forks included */
    double predicted_steps; /* Predict: how many optimizer steps the jump stands for; 0 elsewhere */
    bool was_rejected;      /* Predict: the guard refused the jump */
    bool was_rolled_back;   /* the step diverged and the last jump was undone */
    double residual_cosine; /* step after Correct: direction of the true way, */
    double residual_length; /* and its length, against the predicted one; NaN elsewhere */
    const char *obstacle;   /* why no jump comes next, "" when one may */
    /* GPU, else 0: the model's own operations per second (recomputation not counted) as a share of */
    double mfu; /* the card's dense bf16 rate by its data sheet; 0: not known */
    double sol; /* the rate of a large bf16 matmul timed at the start */
    hy_gpu_state gpu;
} hy_step_info;

typedef struct hy_eval_info {
    int64_t step;
    double loss; /* mean nats per token on held-out data */
    int64_t tokens;
    double seconds;
    bool is_final;
} hy_eval_info;

typedef enum hy_message_level { HY_NOTE = 0, HY_WARNING = 1 } hy_message_level;

struct hy_memory_state; /* section 5 */

/* What a run tells while it goes on. Any callback may be NULL. Structs live during the call. */
typedef struct hy_observer {
    void *user;
    void (*on_message)(void *user, hy_message_level level, const char *text);
    void (*on_step)(void *user, const hy_step_info *info);
    void (*on_eval)(void *user, const hy_eval_info *info);
    void (*on_progress)(void *user, const char *what, double fraction); /* long work beside steps */
    void (*on_save)(void *user, const char *path, double seconds, uint64_t bytes);
    /* Between steps, when the status of memory has changed. */
    void (*on_memory)(void *user, const struct hy_memory_state *state);
} hy_observer;

/* Builds everything a run needs: checks the configuration, opens the data, plans and takes all memory,
 * initialises the weights or loads the checkpoint it resumes. Nothing is written before all checks have
 * passed. observer may be NULL; it is copied. */
hy_status hy_trainer_create(const hy_config *config, const hy_observer *observer, hy_trainer **out);
void hy_trainer_destroy(hy_trainer *trainer);

/* The same up to where memory would be taken: everything is checked and planned, nothing is allocated for
 * the run and nothing is written. What comes back answers hy_trainer_summary (the placement table, with
 * planned bytes), hy_trainer_plan_facts and hy_trainer_plan_json, and is destroyed as usual; to ask it to
 * run is HY_ERR_STATE. A plan that does not fit is no failure here: the facts say so. Of a run of a program's own
 * that is resumed, its parameters are planned, by the shapes in its checkpoint. */
hy_status hy_trainer_plan(const hy_config *config, const hy_observer *observer, hy_trainer **out);

/* The plan of one of `count` ranks, of which none is started: with a card for each, or else sharing a card or computing
 * on the CPU. ranks.link says what is between them; nvlink, pcie4 and pcie5 are inside a machine, of ib200 each rank has
 * a machine of its own. */
hy_status hy_trainer_plan_ranks(const hy_config *config, int32_t count, bool has_cards,
                                const hy_observer *observer, hy_trainer **out);

#define HY_PLAN_REASONS 12
#define HY_PLAN_CHANGES 6
#define HY_PLAN_TEXT 200

typedef struct hy_plan_facts {
    bool fits;
    const char *problem; /* what is short, by how much and what would help; "" when it fits */
    uint64_t vram_bytes; /* taken on the device before step 0 */
    uint64_t host_pinned_bytes;           /* taken on the host, page-locked */
    uint64_t disk_bytes;                  /* in offload_folder */
    uint64_t host_fork_bytes;             /* host memory of paired forks, if it has room */
    uint64_t data_host_bytes;             /* pinned beside that: micro-batches read ahead */
    uint64_t data_buffer_bytes;           /* host memory while data is turned into tokens */
    uint64_t data_disk_bytes;             /* temporary file of data turned into tokens */
    int64_t batch_size, grad_accum_steps; /* as given or chosen */
    double tokens_per_second;             /* predicted, of a optimizer step */
    double step_seconds, wait_seconds;    /* of a optimizer step; of them, waiting for copies */
    uint64_t bytes_up, bytes_down;        /* between host and device in a step */
    uint64_t disk_written;                /* in a step */
    double save_seconds;      /* of a checkpoint, if the disk writes 1.5 GB/s: each save is timed */
    uint64_t save_free;       /* bytes free where checkpoints go; UINT64_MAX: not known */
    uint64_t model_bytes;     /* of OUT/model, about; 0: it is not written */
    char aside[HY_PLAN_TEXT]; /* why prediction stands aside for want of memory; "": it does not */
    int32_t reason_count, change_count;          /* of the next two */
    char reasons[HY_PLAN_REASONS][HY_PLAN_TEXT]; /* why it was chosen so, a sentence each */
    char changes[HY_PLAN_CHANGES][HY_PLAN_TEXT]; /* that would make it fit, each tried */
    /* Of several ranks; all else is of one of them, but tokens_per_second, which is of all together. */
    int32_t ranks;      /* how many; 1: there is one */
    int32_t zero_stage; /* as given or chosen */
    const char *link;   /* wire between them, as in ranks.link, or "sockets"; "": one */
    uint64_t link_grads, link_weights;   /* bytes that a rank sends in a step */
    uint64_t link_bytes;                 /* these, and a few sums */
    double link_seconds;                 /* of an optimizer step, on the wire; beside these: */
    double compute_seconds, bus_seconds; /* computing; copies between host, device and disk */
    const char *bound;                   /* the longest of the three: "compute", "bus" or "link" */
} hy_plan_facts;
void hy_trainer_plan_facts(const hy_trainer *trainer, hy_plan_facts *out);
/* A group of parameters, as the key "groups" has it. */
typedef struct hy_group_info {
    char names[512];              /* of its parameters, with * and ? */
    char changes[128];            /* "lr_scale 0.1, decay 0" */
    int64_t parameters, elements; /* that the names cover */
} hy_group_info;
/* Group number i, from 0 on; false: there are no more. */
bool hy_trainer_group(const hy_trainer *trainer, int32_t i, hy_group_info *out);
/* As a JSON object. Allocated; free with hy_free. */
hy_status hy_trainer_plan_json(const hy_trainer *trainer, char **out);

/* Runs to the end: steps, validation, checkpoints, metrics, summary. HY_STOPPED when a stop was asked
 * for: the step in progress was finished and a checkpoint was saved. */
hy_status hy_trainer_run(hy_trainer *trainer);

/* One optimizer step, or one jump when Predict is next, for loops of your own. No validation, no saving
 * and no forks happen by themselves; but where memory gets short the micro-batch may change (unless
 * dynamic_batch is off), and in an emergency a run with a folder is planned anew through a checkpoint
 * there, after which pointers from earlier summaries are old. A shortage is survived by repeating;
 * HY_ERR_MEMORY means too often in a row: the state is that of the step before it, and can be saved. info
 * may be NULL. */
hy_status hy_trainer_step(hy_trainer *trainer, hy_step_info *info);

/* Held-out loss now. It changes nothing: a jump that could be undone before can be undone afterwards. (A model of your
 * own whose average is looked at meanwhile needs host memory for a copy of the weights.) */
hy_status hy_trainer_evaluate(hy_trainer *trainer, hy_eval_info *info);

typedef struct hy_sample_options {
    const char *prompt; /* NULL or "": begin freely */
    int32_t tokens;     /* how many to add */
    double temperature; /* 0: always the likeliest */
    int32_t top_k;      /* 0: all */
    uint64_t seed;
} hy_sample_options;

/* Text continued by the model as it is now; the prompt is not repeated. Allocated; free with hy_free.
 * text may hold zero bytes; *size counts them (size may be NULL). Of several ranks all call it, with the same
 * options: none may have all of the weights. The text is rank 0's, and a failure of one is everybody's. */
hy_status hy_trainer_sample(hy_trainer *trainer, const hy_sample_options *options, char **text,
                            size_t *size);

/* Saves a checkpoint into the run's folder now. */
hy_status hy_trainer_save(hy_trainer *trainer);

/* Asks hy_trainer_run to stop after the step in progress. Safe in a signal handler. */
void hy_trainer_request_stop(hy_trainer *trainer);

/* Writes the weights of a checkpoint, or of the newest one of a run's folder, as a folder that transformers
 * loads: config.json, safetensors in one file or in shards with an index, and what lay beside the weights
 * that the model began with. Where the run averaged its last part, the average is written. The folder is
 * whole or not there. HY_ERR_INPUT where no architecture of transformers is that model, or where what lay
 * beside those weights is gone. */
typedef struct hy_export_options {
    const char *out;   /* folder to make */
    const char *dtype; /* "fp32", "bf16", "fp16"; NULL or "auto": as in the folder the model came
                                from, or as in the checkpoint */
    uint64_t max_shard_size; /* most bytes of weights in a file; 0: 5,000,000,000 */
    bool overwrite;          /* replace a folder that is there */
    const char
        *base; /* where the model that the run began as is now; NULL: the run has kept what is
                            needed of it, or it is where it was */
    bool
        merge; /* of a run with adapters: a whole model with these added to it; else they are written
                            alone, as PEFT loads them */
    const char
        *onto; /* merge them onto "trained" (or NULL), the numbers that training had the base's
                            weights in, quantised where it had them so; or "folder", the weights
                            that its files hold. Not NULL: merge */
} hy_export_options;
hy_status hy_export(const char *checkpoint, const hy_export_options *options,
                    const hy_observer *observer);
/* The same of an adapter that PEFT saved, without a run: it is merged into the weights of the model's folder
 * options->base, or, where that is NULL, of the model that the adapter names. A whole model is written in any case;
 * options->onto does not count, because the folder's weights are all there is. */
hy_status hy_merge_adapter(const char *adapter, const hy_export_options *options,
                           const hy_observer *observer);

/* ---- 4. Using a model ---------------------------------------------------------------------------- */

/* Names the model by what there is of it: the folder of a run or one of its checkpoints, whose
 * configuration and weights are then taken, or whatever the key "model" accepts. */
hy_status hy_config_use_model(hy_config *config, const char *name);

/* A model that is there to be used: its weights, its tokenizer, and the text it knows so far, whose keys
 * and values are kept, so that only what is new is computed.
 *
 *     hy_config_use_model(config, "runs/mine");
 *     if (hy_inference_open(config, NULL, NULL, &model) != HY_OK) ...
 *     hy_inference_say(model, "Hello!", &(hy_generate_options){.temperature = 0.8}, print, NULL, NULL);
 */
typedef struct hy_inference hy_inference;

typedef struct hy_inference_options {
    int32_t context;       /* tokens it can know at a time; 0: as many as the model can, or fit */
    const char *tokenizer; /* tokenizer.json or its folder; "none": tokens are bytes; NULL: the one
                                  in the model's folder, else bytes */
    const char
        *chat_template;    /* chatml, llama2, llama3, mistral, alpaca; "plain": texts simply follow
                                  each other; NULL or "auto": as the model's folder says, else plain */
    bool without_thinking; /* the model's own template is told enable_thinking = false (Qwen3 then
                              leaves the place for thoughts empty) */
} hy_inference_options;

/* Opens device and model as the configuration says (model, device, threads, precision, max_gpu_mem).
 * Weights that do not fit the device pass through it block by block, for each token. Options and observer
 * may be NULL; messages and the progress of loading go to the observer. A preset alone is HY_ERR_INPUT:
 * it has no weights. */
hy_status hy_inference_open(const hy_config *config, const hy_inference_options *options,
                            const hy_observer *observer, hy_inference **out);
void hy_inference_close(hy_inference *model);

typedef struct hy_inference_facts {
    const char *model;         /* as it was named */
    const char *weights;       /* the folder they came from */
    const char *device;        /* its name */
    const char *tokenizer;     /* its path; "bytes" */
    const char *chat_template; /* its name; "its own": the one in the model's folder; "plain" */
    int64_t parameters;
    int32_t vocab, context; /* tokens */
    hy_dtype dtype;         /* it computes with */
    hy_place weights_place;
    uint64_t weights_bytes, cache_bytes; /* cache: keys and values of a full context */
} hy_inference_facts;
void hy_inference_describe(const hy_inference *model, hy_inference_facts *out);

/* The adapters that the key "adapter" names ("a,b,c"), by name: the last part of a folder's path that tells it from
 * the others, the run's for RUN/adapter. They are read when the model is opened, and the first is used. NULL past the
 * last. */
const char *hy_inference_adapter(const hy_inference *model, size_t i);
const char *hy_inference_adapter_used(const hy_inference *model); /* "": none, the base alone */
/* Changes over; NULL or "none": to the base alone. What was said stays; its keys and values are computed anew with
 * the next answer, because they depend on the adapter. HY_ERR_INPUT names those there are. */
hy_status hy_inference_use_adapter(hy_inference *model, const char *name);

/* Text to token ids and back. Allocated; free with hy_free. Special tokens that are written out in the text
 * count as such. The text of ids may end in half a character. size may be NULL. */
hy_status hy_inference_encode(const hy_inference *model, const char *text, size_t size,
                              int32_t **ids, size_t *count);
hy_status hy_inference_decode(const hy_inference *model, const int32_t *ids, size_t count,
                              char **text, size_t *size);

typedef struct hy_generate_options {
    int32_t max_tokens; /* 0: until the model ends, or the context does */
    double temperature; /* 0: always the likeliest */
    int32_t top_k;      /* of the k likeliest; 0: of all */
    double top_p;       /* of the likeliest that make up this share; 0 or 1: of all */
    uint64_t seed;      /* the same seed, model and text before give the same text */
} hy_generate_options;

typedef enum hy_end {
    HY_END_MODEL = 0,      /* the model ended its text */
    HY_END_MAX_TOKENS = 1, /* as many as were asked for */
    HY_END_CONTEXT = 2,    /* the context is full */
    HY_END_STOPPED = 3     /* hy_inference_request_stop() */
} hy_end;

typedef struct hy_generated {
    hy_end end;
    int32_t prompt_tokens; /* all that lay before the answer, */
    int32_t reused_tokens; /* and of them those that were known already */
    int32_t tokens;        /* of the answer */
    double prompt_seconds, seconds;
} hy_generated;

/* Called with each piece of text as it comes: whole characters, never half of one. */
typedef void (*hy_text_callback)(void *user, const char *text, size_t size);

/* Continues a text; `prompt` is not repeated, and NULL or "" begins freely. What the prompt shares with the
 * text that is known already is not computed again. on_text and info may be NULL. */
hy_status hy_inference_complete(hy_inference *model, const char *prompt,
                                const hy_generate_options *options, hy_text_callback on_text,
                                void *user, hy_generated *info);

/* The next turn of a conversation: a message, written as the chat template has it, and the answer. What
 * was said before is remembered; when the context gets too small, the oldest turns are let go. A model
 * without a template goes on with all the text so far. With message NULL the answer is to what was said
 * already (hy_inference_set_messages). */
hy_status hy_inference_say(hy_inference *model, const char *message,
                           const hy_generate_options *options, hy_text_callback on_text, void *user,
                           hy_generated *info);
/* Begins a new conversation; `system` is what the model is told before it, may be NULL. */
hy_status hy_inference_reset(hy_inference *model, const char *system);
/* Begins anew with a conversation in JSON: a list of messages, each with "role" (system, user, assistant,
 * tool) and "content" (a text, or a list of parts {"type": "text", "text": ...}), or an object with
 * "messages" and "tools". The model's own template sees messages as they are ("tool_calls",
 * "reasoning_content"). When it fails, nothing was said. */
hy_status hy_inference_set_messages(hy_inference *model, const char *json, size_t size);

/* Ends the answer in progress after its present token, or the next one at once. Safe in a signal
 * handler. */
void hy_inference_request_stop(hy_inference *model);

/* What a model makes of data. */
typedef struct hy_evaluation {
    double loss;          /* mean nats per counted token */
    double perplexity;    /* its exponential */
    double bits_per_byte; /* NaN where the data's bytes are not known: shards */
    int64_t tokens;       /* counted */
    int64_t sequences;
    double seconds, tokens_per_second;
    char data[256];  /* in words */
    char model[512]; /* where its weights came from */
    char device[128];
    char adapter[256];     /* the name of the one that was used; "": none was named */
    char frozen_dtype[16]; /* what frozen weights were stored as, by frozen_dtype; "": no codes */
} hy_evaluation;

/* Loss of the configured model on all of the configured data, in sequences of seq_len tokens and
 * micro-batches of eval_batch_size (0: batch_size). Nothing is written. */
hy_status hy_evaluate(const hy_config *config, const hy_observer *observer, hy_evaluation *out);
/* As a JSON object. Allocated; free with hy_free. */
hy_status hy_evaluation_json(const hy_evaluation *evaluation, char **out);
/* The same of every adapter that the key "adapter" names ("a,b,c"), beside a base that is loaded once: of several,
 * of the base alone first and then of each in its order; else it is the one that hy_evaluate gives. Allocated; free
 * with hy_free. */
hy_status hy_evaluate_each(const hy_config *config, const hy_observer *observer,
                           hy_evaluation **out, size_t *count);
/* The loss of a run's newest checkpoint, or of this one, with its adapters, on held-out text: what merging them onto
 * one base or the other comes to, but for the rounding of what is written. One after the other is loaded. */
typedef struct hy_merge_options {
    const char *base;     /* as in hy_export_options */
    const char *data;     /* all of it; NULL: what the run's validations look at */
    const char *device;   /* NULL: the run's */
    int64_t eval_batches; /* the first so many micro-batches; 0: everything */
} hy_merge_options;
typedef struct hy_merge_losses {
    hy_evaluation trained; /* beside the base as training had it */
    hy_evaluation folder;  /* beside the weights of its files, where has_folder */
    bool has_folder;       /* training had them quantised, and they are there as they were */
} hy_merge_losses;
/* HY_ERR_MEMORY, too, where the weights of the files would take more than the machine has free. */
hy_status hy_merge_evaluate(const char *checkpoint, const hy_merge_options *options,
                            const hy_observer *observer, hy_merge_losses *out);
/* Several of one call as a JSON object with a list. Allocated; free with hy_free. */
hy_status hy_evaluations_json(const hy_evaluation *list, size_t count, char **out);

/* A model's folder that was fetched from the hub. */
typedef struct hy_downloaded {
    char folder[1024]; /* a value for "model" */
    char commit[65];   /* the revision that it is */
    int64_t files;
    uint64_t bytes;   /* of the model */
    uint64_t fetched; /* of them now; the others were here */
} hy_downloaded;

/* Fetches the model `name` ("Qwen/Qwen2.5-0.5B"; "NAME@REVISION" for another revision than main) from the
 * Hugging Face hub over HTTPS, which needs libcurl: config, tokenizer and weights as safetensors, sizes and
 * checksums verified. Into `folder`; NULL or "": into the hub's cache, where "model" finds it by its name.
 * What an interrupted call has left is continued. HF_ENDPOINT names another hub; HF_TOKEN (else
 * HUGGING_FACE_HUB_TOKEN, else the file that huggingface-cli keeps) is sent to the hub alone. Observed are
 * on_message and on_progress. */
hy_status hy_download(const char *name, const char *folder, const hy_observer *observer,
                      hy_downloaded *out);
/* As a JSON object. Allocated; free with hy_free. */
hy_status hy_downloaded_json(const hy_downloaded *downloaded, char **out);

/* ---- 5. Looking -------------------------------------------------------------------------------- */

/* A cell of the placement table. */
typedef struct hy_memory_cell {
    hy_place place;
    hy_dtype dtype;
    uint64_t planned_bytes;
    uint64_t measured_bytes; /* the most that was live in this phase */
} hy_memory_cell;

typedef struct hy_phase_summary {
    int64_t steps;
    double seconds;
    double wait_seconds;
    uint64_t bytes_moved;
    uint64_t vram_planned_bytes, vram_peak_bytes;
    hy_memory_cell memory[HY_CLASS_COUNT];
} hy_phase_summary;

typedef struct hy_summary {
    const char *model;
    const char *device;
    const char *matmul; /* how the device multiplies: library, core type */
    const char *data;
    const char *out; /* the run's folder; "" when nothing is written */
    int64_t parameters;
    int64_t steps_total; /* planned */
    int64_t steps, full_steps, predicted_steps, correct_steps, backward_passes, skipped_steps;
    int64_t fp8_matmuls, block_matmuls; /* of a micro-batch: those in fp8 of the blocks' */
    int64_t moves, rejected_moves, divergences, forks;
    double spent; /* compute in full steps */
    double confidence;
    double fork_gain;        /* nats, summed over forks: positive where jumps won, */
    double fork_gain_steps;  /* and in optimizer steps of the run without jumps */
    const char *predictor;   /* its name */
    const char *why_not;     /* why nothing is predicted now, "" when it is */
    int64_t tokens;          /* trained on; of a run of your own as you told them */
    int64_t tokens_per_step; /* 0: yours, not known */
    double seconds, tokens_per_second;
    double flops_per_token; /* model work, forward and backward */
    bool is_gpu;
    int capability;      /* GPU: 90 for sm_90 */
    double peak_flops;   /* GPU: dense bf16 rate by the data sheet; 0: not known */
    double matmul_flops; /* timed at the start: fp32, on a GPU bf16 */
    double mfu, sol;     /* GPU: as in hy_step_info, over the whole run */
    double final_loss;   /* mean of the last steps */
    double val_loss; /* NaN before the first validation; of the tail average where there is one */
    double raw_val_loss; /* of the raw weights, where val_loss is of the average; else NaN */
    bool knows_entropy;
    double source_entropy;     /* nats per token, exact */
    double val_optimum;        /* what the true source scores on the held-out text */
    double ngram_loss;         /* a 5-gram counted on the training bytes; NaN when not computed */
    uint64_t checkpoint_bytes; /* size of one checkpoint */
    hy_phase_summary phases[HY_PHASE_COUNT];
    int64_t val_tokens;   /* that val_loss is of */
    double best_val_loss; /* the lowest, on the sequences that all validations look at; NaN: none */
    int64_t best_val_step;
    bool is_stopped_early; /* by early_stop */
} hy_summary;

void hy_trainer_summary(const hy_trainer *trainer, hy_summary *out);

/* The ranks of a run, or of a plan, where there are several. */
typedef struct hy_ranks_info {
    int32_t count, rank;   /* rank: this process' own, from 0 */
    int32_t zero_stage;    /* as chosen */
    const char *transport; /* "sockets", "MPI", "NCCL": what moves data between them */
} hy_ranks_info;

/* False: the run is alone, and *out is zeros. */
bool hy_trainer_ranks(const hy_trainer *trainer, hy_ranks_info *out);
/* What steps of this session cost a rank. False: there is none of that number, or no step yet; only rank 0 knows. */
bool hy_trainer_rank(const hy_trainer *trainer, int32_t rank, hy_rank_cost *out);
/* The same as a JSON object, as it stands in OUT/summary.json. Allocated; free with hy_free. */
hy_status hy_trainer_summary_json(const hy_trainer *trainer, char **out);

/* What a run keeps in memory now, beside what was planned.
 *
 * Utilisation is of the budget, not of the card: what the user allows, or what was free, and less
 * when other programs take of it. A status rises at once when its threshold is reached and falls
 * when the share stays clearly below for some steps; Predict needs less and lowers none. What was
 * planned is a warning at most: critical and emergency mean that the budget has shrunk, or that
 * more is live than was planned. On a CPU device and host are one memory: its places count
 * together, against the host's budget. */
typedef struct hy_memory_pool {
    uint64_t used;        /* live bytes of the run's classes */
    uint64_t reserved;    /* taken from the driver or the system for them */
    uint64_t peak;        /* the most that was live so far */
    uint64_t planned;     /* of this phase */
    uint64_t free, total; /* by the driver or the system, now; 0: not known */
    uint64_t budget;      /* that the run may use now; 0: no limit is known */
    double utilization;   /* of the budget; 0 where there is none */
    hy_memory_status status;
} hy_memory_pool;

typedef struct hy_memory_class {
    hy_place place; /* by the plan of this phase */
    hy_dtype dtype;
    uint64_t planned;              /* bytes there in this phase */
    uint64_t live[HY_PLACE_COUNT]; /* now, by place */
} hy_memory_class;

/* Something that would need less, tried on the plans of this run: with the key set to the value and
 * all else as it is, so much less would be taken. Negative: it costs there. With another
 * batch_size a step keeps its tokens: grad_accum_steps follows. */
#define HY_MEMORY_ADVICE 6
typedef struct hy_memory_advice {
    char key[32], value[32];
    int64_t device_bytes, host_bytes; /* freed */
    char text[HY_PLAN_TEXT];          /* "micro-batch 8 to 6 frees 1.9 GiB" */
} hy_memory_advice;

typedef struct hy_memory_state {
    int64_t step;
    hy_phase phase;
    bool is_unified; /* device and host are one memory */
    hy_memory_pool device, host;
    hy_memory_status status;                     /* the worse of the two */
    double target, warning, critical, emergency; /* thresholds, shares of a budget */
    uint64_t host_pinned;                        /* page-locked, live; part of host.used */
    uint64_t host_resident;                      /* of this process, by the system */
    uint64_t process_device; /* of this process on the card, by the driver; 0: not known */
    double stalled;          /* share of the last ten seconds lost waiting for memory */
    double fragmentation;    /* share of what is reserved on the device that no phase used */
    hy_memory_class classes[HY_CLASS_COUNT];
    int32_t advice_count; /* what costs little first */
    hy_memory_advice advice[HY_MEMORY_ADVICE];
} hy_memory_state;

/* Asks driver and system anew. Advice comes from plans made on the spot: some milliseconds. */
hy_status hy_trainer_memory(const hy_trainer *trainer, hy_memory_state *out);

/* What saves memory on this run, and what would. */
#define HY_SAVINGS 16
typedef struct hy_saving {
    const char *name;  /* "recompute" */
    const char *key;   /* the setting that turns it on or off; "": there is none */
    const char *other; /* the value it is held against: "none"; of what is off: that saves */
    char now[48];      /* its value on this run: "all, in 12 of 28 layers" */
    bool is_on;
    bool is_measured;                 /* by what was live; else by plans with and without it */
    int64_t device_bytes, host_bytes; /* saved, or what it would save; negative: it costs there */
    double seconds; /* of a step that it saves, as the planner reckons; negative: it costs them */
    hy_phase phase; /* in which it saves the bytes; HY_PHASE_COUNT: in all */
} hy_saving;

/* Each is held against the run as it is: where two touch the same bytes, their sum is not what both
 * save together. */
typedef struct hy_savings {
    int32_t count;
    hy_saving list[HY_SAVINGS];
} hy_savings;
hy_status hy_trainer_savings(const hy_trainer *trainer, hy_savings *out);

/* Memory of one micro-batch's passes, forward and backward, for any shape; nothing is taken for it. */
typedef struct hy_activation_estimate {
    const char *recompute;   /* "none", "norm", "attention", "mlp", "all" */
    uint64_t activations;    /* kept from forward to backward */
    uint64_t workspace;      /* scratch of one unit and its logits */
    uint64_t offloaded;      /* with activations_place pinned: on the host, */
    uint64_t offload_device; /* and what is left of `activations` on the device */
} hy_activation_estimate;

#define HY_RECOMPUTE_LEVELS 5
/* Of the configured model on the configured device, or card, at each level of recomputation in all
 * layers; 0 for batch or seq: as configured. */
hy_status hy_estimate_activations(const hy_config *config, int64_t batch, int64_t seq,
                                  hy_activation_estimate out[HY_RECOMPUTE_LEVELS]);
/* The same of a run or a plan. */
hy_status hy_trainer_estimate_activations(const hy_trainer *trainer, int64_t batch, int64_t seq,
                                          hy_activation_estimate out[HY_RECOMPUTE_LEVELS]);

/* What this machine has, for --doctor and for planning; `folder` is the one whose disk is asked about.
 * Measuring takes about a second; 64 MiB are written to the folder and nothing stays there. */
typedef struct hy_machine {
    char cpu[128];
    int cores;              /* usable by this process */
    char blas[256];         /* library, version, core type */
    char blas_warning[512]; /* "" when all is well */
    double sgemm_gflops;    /* measured */
    uint64_t ram_total, ram_available;
    double host_copy_bytes_per_second; /* all cores copying: bytes read plus bytes written */
    uint64_t pin_limit;                /* bytes that can be pinned now; UINT64_MAX: all */
    char pin_reason[160];              /* where that limit comes from */
    uint64_t disk_free;                /* in the folder asked about */
    double disk_read_bytes_per_second, disk_write_bytes_per_second;
    char disk_problem[512]; /* why the disk could not be measured, "" when it was */
    bool is_wsl, is_container;
    char cuda[1024]; /* found, or which of driver, device or backend is missing */
    bool has_cuda;   /* the rest is set when it is true, but for the driver */
    char driver[128];
    char gpu[128], gpu_detail[256];
    int gpu_capability; /* 90 for sm_90 */
    uint64_t vram_total, vram_free;
    double gpu_peak_flops, gpu_matmul_flops; /* bf16: by the data sheet (0: not known), measured */
    double gpu_memory_bytes_per_second;      /* bytes read plus bytes written */
    double upload_bytes_per_second;          /* from pinned memory, alone */
    double download_bytes_per_second;        /* to it, alone */
    double both_ways_bytes_per_second;       /* each way, when both run */
} hy_machine;

hy_status hy_machine_probe(const char *folder, hy_machine *out);

/* Parameters of a built-in model, by name. */
hy_status hy_model_parameters(const char *preset, int64_t *parameters);

/* Does the device compute what it should, and how fast? Every op on a GPU against the CPU at small
 * shapes, in fp32, bf16 and fp16; on a CPU a few ops against answers known beforehand. Then rates of
 * matmuls, attention and copies. Takes some seconds. */
typedef struct hy_selftest_op {
    const char *name;    /* "attention backward" */
    const char *dtype;   /* "bf16" */
    const char *tensor;  /* the worst of its outputs */
    double error;        /* norm of the difference over norm of what is expected */
    double allowed;      /* what rounding to the type may cost */
    bool is_ok;          /* error within it, two runs with equal bits, nothing refused */
    const char *message; /* what was wrong, "" when nothing was */
} hy_selftest_op;

typedef struct hy_selftest_rate {
    const char *name; /* "matmul, bf16, 4096 x 4096 x 4096" */
    double value;
    const char *unit; /* "TFLOP/s", "GB/s" */
} hy_selftest_rate;

/* What a self-test tells while it goes on; strings live during the call. Either may be NULL. */
typedef struct hy_selftest_observer {
    void *user;
    void (*on_op)(void *user, const hy_selftest_op *op);
    void (*on_rate)(void *user, const hy_selftest_rate *rate);
} hy_selftest_observer;

typedef struct hy_selftest_result {
    char device[128], detail[256];
    bool is_gpu;
    int capability; /* GPU: 90 for sm_90 */
    int ops, failures;
} hy_selftest_result;

/* device is "auto", "cpu", "cuda" or "cuda:N", as the key of that name. HY_OK when the test could be
 * made: failures are counted in the result. */
hy_status hy_selftest(const char *device, const hy_selftest_observer *observer,
                      hy_selftest_result *out);

/* Do several ranks work together on these machines? Who they are and what connects them; the exchanges that training
 * makes, each compared to the bit with what every rank can compute itself, and timed; exchanges beside matmuls; and short
 * runs of a small model in each ZeRO stage against each other, one rank alone, and the plan. Takes about a minute. */
typedef enum hy_check_verdict {
    HY_CHECK_TOLD = 0, /* nothing to pass or fail */
    HY_CHECK_PASSED = 1,
    HY_CHECK_FAILED = 2
} hy_check_verdict;

typedef struct hy_selftest_check {
    const char *part; /* what it belongs to: "exchanges over NCCL" */
    const char *name; /* "all-gather, 64 MiB" */
    const char *text; /* what was found or measured */
    hy_check_verdict verdict;
    const char *message; /* of a failure: which rank, and what was wrong; else "" */
} hy_selftest_check;

/* What rank 0 tells while it goes on; strings live during the call. Either may be NULL. */
typedef struct hy_ranks_observer {
    void *user;
    void (*on_check)(void *user, const hy_selftest_check *check);
    void (*on_progress)(void *user, const char *what, double fraction); /* of all */
} hy_ranks_observer;

typedef struct hy_ranks_result {
    int32_t ranks;        /* 1: there is one, and nothing was tested */
    char transport[16];   /* that training would take: "NCCL", "MPI", "sockets" */
    int checks, failures; /* alike on all ranks */
} hy_ranks_result;

/* Every rank calls it, started as for training; of the configuration it takes device, threads, transport and
 * rank_timeout. HY_OK when the test could be made: failures are counted in the result. A single rank is tested too where
 * transport is nccl: with itself. */
hy_status hy_selftest_ranks(const hy_config *config, const hy_ranks_observer *observer,
                            hy_ranks_result *out);

/* ---- 6. Your own model, your own loop ----------------------------------------------------------- */

/* Parameters that are not our transformer's, in your memory. The library phases, predicts, optimizes, keeps
 * master weights and optimizer state (on the card, in pinned memory, on disk, as the plan says), validates,
 * saves and records; you compute losses and gradients. Two ways: callbacks that a trainer calls (a), or a
 * loop of your own (b). Both are runs like any other: same keys, same phases, same folder, same resume.
 *
 * Keys about our own passes and data (model, data, batch_size, seq_len, recompute, ...) mean nothing here; a
 * step is grad_accum_steps micro-batches of yours (1 unless you set it), told by number: 0, 1, 2, ... The run's length
 * is `steps`, which has to be set. There is no warm-up of the learning rate unless you set one, and nothing of a model
 * preset counts (hy_config_use_own).
 *
 * Memory: what a parameter's pointers lead to is yours and stays where it is as long as the handle lives. With
 * device = cpu (or auto, where no card can be used) it is host memory; on a card it is memory that the card
 * reaches, on borders of 16 bytes.
 *
 * Streams: on a card, your work on weights and gradients is enqueued on the stream that you name. Ours waits
 * for yours and yours for ours by events; the host waits once in a step, for the norm of its gradients.
 *
 * Ranks (7): each is a process that makes its handle with the same parameters and the same keys, but for those of its
 * machine. A step is still grad_accum_steps micro-batches, of which each rank is asked for as many, by other numbers, so
 * the count of ranks has to divide it; loss and gradients of all are taken together, every target weighing the same.
 * The weights to begin with are rank 0's. What you tell of held-out data is added up: each rank may look at its share, or
 * at all of it. Calls that save, evaluate or step are made by all ranks, at the same place. What fails or stops on one
 * rank ends the run on all; after a failure weights in your memory are not what they were. zero_stage is 0, 1 or 2:
 * your weights are whole in your memory. */
#define HY_PARAMETER_DIMS 8

typedef struct hy_parameter {
    const char *name; /* copied; no two alike, UTF-8, as it is in checkpoints */
    void *weights;    /* read and written by the library; shared with no other parameter */
    void *grads;      /* read, and with callbacks zeroed; NULL: hy_loop_set_gradient says where */
    int32_t ndim;     /* 0: a single number */
    int64_t shape[HY_PARAMETER_DIMS];
    int32_t group; /* which of the groups; 0 where there are none */
} hy_parameter;

/* The key "groups" of the configuration says the same by names, and wins. */
typedef struct hy_parameter_group {
    double lr_scale;     /* of the run's learning rate */
    double weight_decay; /* below 0: the run's, for parameters of two dimensions or more */
} hy_parameter_group;

typedef struct hy_own_parameters {
    const hy_parameter *list; /* copied */
    int32_t count;
    const hy_parameter_group *groups; /* copied; NULL: one, of {1, -1} */
    int32_t group_count;
    /* HY_F32, HY_BF16 or HY_F16, of all weights and of all gradients. 16-bit weights have a master copy in fp32,
     * kept by the library, unless master_dtype says otherwise. */
    hy_dtype dtype, grad_dtype;
    /* The library adds up the gradients of a step's micro-batches, in a row of its own (grad_dtype, grads_place
     * of the configuration): each is asked for by itself. Else you sum over all of a step's. */
    bool sums_gradients;
    void *stream; /* card: the cudaStream_t that you compute on; NULL: the default one */
    /* A part of every checkpoint that is yours: `save` gives bytes from malloc, which the library frees; `load`
     * gets them back when a run is resumed. Either may be NULL. Of several ranks rank 0 gives it and all get it. */
    void *user;
    hy_status (*save)(void *user, void **bytes, size_t *size);
    hy_status (*load)(void *user, const void *bytes, size_t size);
} hy_own_parameters;

/* (a) Your own model: callbacks over your parameters. A callback works on micro-batch number `batch`, counted on
 * without end in training; the guard and forks ask for numbers that training has not reached, and forks go
 * back to numbers that were asked for before. Callbacks are called in the thread that calls
 * hy_trainer_run or _step, one at a time; they may not call the trainer. A status other than HY_OK ends the
 * run and is what it returns; HY_STOPPED saves it first. */
typedef struct hy_own_model {
    hy_own_parameters parameters;
    void *user;
    /* Sum of losses over the micro-batch, and how many targets it counts. Weights are only read. */
    hy_status (*forward)(void *user, int64_t batch, double *loss_sum, int64_t *counted);
    /* The same, and adds the gradient of loss_scale * loss_sum to grads, which are zero at first. */
    hy_status (*backward)(void *user, int64_t batch, double loss_scale, double *loss_sum,
                          int64_t *counted);
    /* Held-out loss now; may be NULL. */
    hy_status (*evaluate)(void *user, double *loss_sum, int64_t *counted);
} hy_own_model;

/* A trainer for it: hy_trainer_run, _step, _evaluate, _save, _summary, _memory and _destroy are as for ours.
 * hy_trainer_plan_own needs no memory behind the parameters and takes none: weights and grads may be NULL. */
hy_status hy_trainer_create_own(const hy_config *config, const hy_own_model *model,
                                const hy_observer *observer, hy_trainer **out);
hy_status hy_trainer_plan_own(const hy_config *config, const hy_own_parameters *parameters,
                              const hy_observer *observer, hy_trainer **out);
/* The same for one of `count` ranks, as hy_trainer_plan_ranks. */
hy_status hy_trainer_plan_own_ranks(const hy_config *config, const hy_own_parameters *parameters,
                                    int32_t count, bool has_cards, const hy_observer *observer,
                                    hy_trainer **out);

/* (b) Your own loop: the library says what it wants to know next, you compute, you answer.
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
 * Between next and answer the weights are those that the loss is wanted of: in Predict the proposed ones, at the
 * end of a run with tail_share their average. Answer returns when they are as the next question wants them.
 * A jump that is refused is taken back, bit for bit. Nothing is written unless `out` names a folder. */
typedef struct hy_loop hy_loop;

typedef enum hy_todo {
    HY_DO_GRADIENTS = 0, /* loss, and its gradients, of the step's micro-batches */
    HY_DO_LOSS = 1,      /* loss of one micro-batch */
    HY_DO_EVALUATE = 2,  /* held-out loss */
    HY_DO_NOTHING = 3    /* the run is over */
} hy_todo;

typedef struct hy_loop_options {
    hy_own_parameters parameters;
    /* You say when your forward pass comes to a parameter (hy_loop_use): where state lives in pinned memory or on
     * disk, a step's update is then made as the next pass goes on, so that its copies hide behind your
     * compute. The same numbers, the same bits. */
    bool uses_in_turn;
    bool can_evaluate; /* HY_DO_EVALUATE may be asked: eval_every, early_stop and the run's end */
    bool can_rewind; /* to micro-batches of earlier steps: whether predicting pays can be tested */
} hy_loop_options;

typedef struct hy_loop_step {
    hy_todo todo;
    bool is_over;         /* todo is HY_DO_NOTHING */
    int64_t step;         /* optimizer steps done before it */
    int64_t batch, count; /* micro-batches [batch, batch + count); of several ranks this one's */
    hy_phase phase;
    const char *reason;   /* why this phase; "" when nothing changed */
    const char *obstacle; /* why no jump can follow yet; "" when one may */
    double lr;            /* of this step's update */
    double loss_scale;    /* gradients are wanted of this times the loss: 1 but for fp16 */
    hy_dtype precision;   /* that the configuration wants passes of this phase to compute in */
    double confidence;
} hy_loop_step;

/* The observer may be NULL and is copied; it is called from a thread of the loop's while a call of yours waits.
 * A loop that is resumed writes the weights of the checkpoint into your memory before it returns. */
hy_status hy_loop_create(const hy_config *config, const hy_loop_options *options,
                         const hy_observer *observer, hy_loop **out);
/* What was not saved is lost: hy_loop_stop saves. */
void hy_loop_destroy(hy_loop *loop);

/* What is wanted now; the same until it is answered. */
hy_status hy_loop_next(hy_loop *loop, hy_loop_step *out);
/* `loss` is a mean, and gradients are of loss_scale times it; `tokens` is how many targets it is a mean of: what
 * micro-batches weigh, and what speeds are told in (1 where all weigh alike). HY_ERR_NUMERIC: the run
 * diverged, or twenty updates in a row were not finite. After a failure hy_loop_next says whether the run is over:
 * an answer that could not be taken (tokens below 1, a gradient that is nowhere) may be given again. */
hy_status hy_loop_answer(hy_loop *loop, double loss, int64_t tokens);
/* Where the gradients of a parameter are from now on, for loops in which that changes; before answer. */
hy_status hy_loop_set_gradient(hy_loop *loop, int32_t parameter, void *grads);
/* The same of all parameters at once, in their order. */
hy_status hy_loop_set_gradients(hy_loop *loop, void *const *grads);
/* The three in one call, for languages to which a call is dear: gradients (NULL: where they were), the answer, and what
 * is wanted next, which is filled when all went well; `last` (may be NULL) gets what hy_loop_last gives. */
hy_status hy_loop_exchange(hy_loop *loop, void *const *grads, double loss, int64_t tokens,
                           hy_loop_step *next, hy_step_info *last);
/* From here on your stream may read this parameter (-1: all of them): with uses_in_turn, while gradients are asked
 * for, before you read it first. In the order of the list it costs no waiting. Gradients of the step before
 * must stay as they are until all parameters were asked for, and all must be before you write new ones. */
hy_status hy_loop_use(hy_loop *loop, int32_t parameter);
/* Saves a checkpoint now: while gradients are asked for, that is between two steps, and not in the part of a
 * paired fork that is thrown away (HY_ERR_STATE). Of several ranks all call it before the same answer. */
hy_status hy_loop_save(hy_loop *loop);
/* Ends the run as it is after its last step: saved where there is a folder. It is over then. Of several ranks one is
 * enough: on the others the answer, or the call that waits, comes back with HY_STOPPED. */
hy_status hy_loop_stop(hy_loop *loop);
/* What the last step or jump came to; false: there was none yet. Its texts are constants: they outlive the loop. */
bool hy_loop_last(hy_loop *loop, hy_step_info *out);
/* The run behind the loop, to look at between calls and once it is over (hy_trainer_summary, _memory, _plan_facts,
 * ...). It is the loop's: not to be stepped, saved or destroyed, and gone with it. */
const hy_trainer *hy_loop_trainer(hy_loop *loop);

/* ---- 7. Ranks ------------------------------------------------------------------------------------ */

/* Several processes that train one model, each with a device of its own. A launcher starts all of them with the same
 * command and tells each who it is by variables: hybrid-train --gpus N, mpirun, srun, torchrun, or a program's own call
 * of hy_start_ranks. A trainer or loop that is made in such a process is one of the ranks. */
typedef struct hy_rank_info {
    int32_t rank, count;             /* 0 of 1: this process is alone */
    int32_t local_rank, local_count; /* on this machine; local_count 0: the launcher did not say */
    const char *launcher; /* "hybrid-train", "torchrun", "Open MPI", "PMI", "Slurm"; "": nobody's */
} hy_rank_info;

/* Which rank this process is. HY_ERR_INPUT names variables that are partial or contradict each other. */
hy_status hy_find_rank(hy_rank_info *out);

typedef struct hy_start_options {
    int32_t count;
    char *const *argv;   /* the command of every rank, NULL at its end */
    bool uses_cards;     /* every rank has a card of its own: there must be as many */
    double rank_timeout; /* as the key of that name; 0: 60 */
} hy_start_options;

/* Starts `count` ranks of a command on this machine, passes on signals and what they print, and waits for them.
 * *exit_code is 0 where all ranks ended with 0, what rank 0 ended with where that is not 0, else 1. Where a launcher
 * has started this process as one of `count` already, or `count` is 1, nothing is started and *has_started is false: the
 * caller goes on as that rank. HY_ERR_INPUT where it is one of another number, or where there are fewer cards. */
hy_status hy_start_ranks(const hy_start_options *options, bool *has_started, int *exit_code);

#ifdef __cplusplus
}
#endif
#endif
