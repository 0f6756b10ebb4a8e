/* inference.h: a model that is used, not trained; only inside the modules infer and generate.
 *
 * A loaded model is an engine with device, model and weights and no plan. inference_model.c
 * opens it, for text and for evaluation; inference.c is the handle of hybrid.h; inference_text.c
 * generates text; inference_talk.c keeps a conversation. The tokens in the decoder's cache are
 * always the first of `known`. */
#pragma once

#include <stdatomic.h>

#include "engine/engine.h"
#include "infer/adapters.h"
#include "infer/codec.h"
#include "infer/solo.h"

/* ---- inference_model.c ----------------------------------------------------------------------- */

typedef struct hy_used_model {
    hy_settings settings;
    hy_observer observer;
    hy_engine *engine;
    hy_adapters adapters; /* named in the settings */
    hy_dataset *data;     /* evaluation only */
    bool uses_held_out;   /* evaluation: on the run's held-out data instead of all its data */
} hy_used_model;

/* Opens device, model, adapters and the compute type; allocates no memory yet. */
hy_status hy_model_open(const hy_config *config, const hy_observer *observer, hy_used_model **out);
void hy_model_close(hy_used_model *m);
/* Allocates memory for the weights and reads them, and leaves `beside` bytes of the device free.
 * `from` becomes the path of the weights. */
hy_status hy_model_load(hy_used_model *m, uint64_t beside, char from[HY_PATH_MAX]);

/* evaluation.c: opens the data, loads the weights and allocates the memory of a pass over about so
 * many tokens; 0: over one batch. `from` as above. */
hy_status hy_model_prepare(hy_used_model *m, int64_t tokens, hy_batch_plan **plan,
                           char from[HY_PATH_MAX]);

/* The loss on the data. With several adapters, out[0] is the base alone and out[i] adapter i - 1. */
hy_status hy_model_evaluate(hy_used_model *m, hy_evaluation *out, int32_t count);

/* A model that an export or a merge evaluates. */
typedef struct hy_measured {
    const char *checkpoint; /* or a model folder or file */
    hy_merge_options how;
    const char *file; /* written from the checkpoint; its data is used. NULL: the checkpoint */
    bool as_files;    /* its adapters on the weights in the base's files, not on those quantised */
} hy_measured;
hy_status hy_measured_configure(const hy_measured *what, const char *data, hy_config **out);
hy_status hy_measure(const hy_measured *what, const hy_observer *observer, hy_evaluation *out);
/* A checkpoint with adapters on the base as training used it and, if training quantised the base
 * and its files are there, on the weights in the files. */
hy_status hy_measure_bases(const hy_measured *what, const hy_observer *observer,
                           hy_evaluation *trained, hy_evaluation *folder, bool *has_folder);

/* How the rows were written that the run, the first adapter or else the model in `folder` ("":
 * none) was trained on; HY_CHAT_AUTO: not known. */
hy_status hy_model_read_format(const hy_used_model *m, const char *folder, hy_prompt_format *out);
/* Says if the adapters were trained with different formats, and that all are used with `chat`. */
void hy_model_compare_formats(const hy_used_model *m, hy_chat_kind chat);

/* ---- the handle ------------------------------------------------------------------------------ */

struct hy_inference {
    hy_used_model *model;
    hy_solo solo;
    bool is_placed;       /* the decoder has its memory, and nothing has failed since */
    hy_codec codec;       /* sampled token ids are below codec.vocab */
    hy_ids known;         /* all tokens so far; the last may not be in the cache */
    hy_conversation said; /* the turns so far; a text belongs to `messages`, or to its turn */
    hy_json *messages;    /* from hy_inference_set_messages, or NULL */
    atomic_bool stop_requested;
    char weights_from[HY_PATH_MAX];
};

hy_status hy_inference_place(hy_inference *in); /* inference.c: if necessary */

/* ---- inference_text.c ------------------------------------------------------------------------ */

/* An answer that is being generated. */
typedef struct hy_answer {
    const hy_generate_options *options;
    hy_text_callback on_text; /* or NULL */
    void *user;
    hy_generated info;
    hy_text text; /* all of it; the caller frees it */
} hy_answer;

/* Continues after exactly these tokens; tokens in the cache are not computed again. */
hy_status hy_inference_continue(hy_inference *in, const int32_t *prompt, size_t count,
                                hy_answer *answer);

/* ---- inference_talk.c ------------------------------------------------------------------------ */

void hy_inference_forget(hy_inference *in); /* clears the conversation */
