/* guest.h: a run whose model is not ours: who computes is asked for losses and gradients.
 *
 * A run asks for micro-batches by number: those of a step, those that the guard and forks look at, held-out
 * ones. Whoever answers (src/own) reads the weights and writes the gradients where they were said to be. */
#pragma once

#include "engine/engine.h"

typedef enum hy_ask_kind { HY_ASK_GRADIENTS, HY_ASK_LOSS, HY_ASK_EVALUATE } hy_ask_kind;

typedef struct hy_ask {
    hy_ask_kind kind;
    hy_phase phase;
    int64_t step;         /* optimizer steps done before it */
    int64_t batch, count; /* micro-batches [batch, batch + count); evaluation has none */
    double loss_scale;    /* gradients are of this times the loss */
    double lr;
    hy_dtype precision; /* that the settings want for this phase */
    const char *reason; /* why this phase, "" when nothing changed */
    const char *obstacle;
    double confidence;
} hy_ask;

typedef struct hy_told {
    double loss_sum;
    double counted; /* what it is a sum over: targets, or 1 where it is a mean already */
    int64_t tokens; /* trained on or looked at */
    bool is_mean;   /* gradients are of the mean; else of the sum */
} hy_told;

typedef struct hy_guest {
    hy_guest_side side;
    void *const *weights; /* (side.count) where they are */
    void *const *grads;   /* (side.count) likewise; entries may change with each answer */
    void *user;
    /* HY_STOPPED ends the run: it is saved as it was after its last step. Other failures end it too. */
    hy_status (*answer)(void *user, const hy_ask *ask, hy_told *told);
    bool can_evaluate;
    bool can_rewind;      /* micro-batches may be asked for again: forks are possible */
    bool zeroes_grads;    /* before they are asked for; else the caller sees to it */
    bool writes_if_asked; /* there is a folder only where `out` names one */
    bool is_abandoned;    /* nothing is to be saved any more */
    int64_t answered_in;  /* optimizer step whose gradients are here already; -1: none */
    hy_told told;         /* for it */
    /* A blob of the caller's in each checkpoint; either may be NULL. */
    void *blob_user;
    hy_status (*save)(void *user, void **bytes, size_t *size); /* freed by the library */
    hy_status (*load)(void *user, const void *bytes, size_t size);
    void (*release)(struct hy_guest *guest); /* with its trainer; NULL: its owner does */
} hy_guest;

struct hy_trainer;
struct hy_checkpoint;

/* The settings of a run of a guest's on so many ranks, 0 where there is no team: what is about passes of ours means nothing. */
hy_status hy_guest_settings(hy_guest *guest, int32_t ranks, hy_settings *settings);
/* What ranks of one run must have alike of it, as one number; NULL: there is none. */
uint64_t hy_guest_agreed(const hy_guest *guest);
/* Before the first step: where weights and gradients are; weights to begin with unless it is resumed. */
hy_status hy_guest_begin(struct hy_trainer *t);
/* What of a checkpoint is the caller's own: asked for, and given back. */
#define HY_GUEST_FILE "caller.bin"
hy_status hy_guest_save(struct hy_trainer *t, struct hy_checkpoint *checkpoint);
hy_status hy_guest_load(struct hy_trainer *t, const char *checkpoint);
/* The gradients of a step are asked for and summed. May be done again: what was answered in full is not asked for
 * twice. */
hy_status hy_guest_gradients(struct hy_trainer *t, hy_dtype dtype, double lr);
/* The run ends, and the caller's weights are as its last step leaves them. */
hy_status hy_guest_end(struct hy_trainer *t);
/* Losses of micro-batches under the weights or what was proposed; and the held-out loss. Of several ranks each is asked
 * for some of them, and all are told all. */
hy_status hy_guest_look(struct hy_trainer *t, hy_probe *probe);
hy_status hy_guest_evaluate(struct hy_trainer *t, bool of_average, hy_probe *probe);
/* Before a call of the caller's returns with this status: its memory holds the weights as they are now, where a
 * 16-bit copy of them may be stale. Not after a failure of several ranks. */
hy_status hy_guest_hand_back(struct hy_trainer *t, hy_status status);
/* HY_ERR_STATE: it needs passes or a tokenizer of ours. */
hy_status hy_guest_has_none(const struct hy_trainer *t, const char *what);
