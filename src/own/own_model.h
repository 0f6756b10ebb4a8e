/* own_model.h: a run of hy_train_own: inside this module only.
 *
 * The model is the caller's: parameters and callbacks. Everything else is here: micro-batches and
 * their accumulation, the precision of each phase, the loss scale, guard passes, where the
 * optimizer's state is in Predict, validation and the record. Always true outside the forward and
 * backward callbacks: the caller's arrays hold the exact fp32 weights. */
#pragma once

#include "own/loop.h"
#include "trainer/trainer.h"

typedef struct hy_own_offload {
    hy_offload kind;
    bool is_away;
    float *away; /* cpu, pinned: (2, elements) m and v; compress: scales and 8-bit codes; or NULL */
} hy_own_offload;

typedef struct hy_own_run {
    hy_settings settings;
    hy_own_model model;
    hy_observer observer;
    hy_loop *loop;

    hy_dtype precision[HY_PHASE_COUNT];
    float *exact;      /* (elements) weights, while callbacks see rounded ones; NULL: never */
    float *mean_grads; /* (elements) sum of micro-batch means; NULL: one mean over the step */
    hy_loss_scale scale;
    hy_own_offload offload;
    hy_ledger ledger;

    int64_t next_batch;    /* micro-batches trained on so far */
    int64_t guard_batches; /* micro-batches of a guard pass */
    int64_t tokens;        /* targets counted in training */
    double rate;           /* targets per second, smoothed */
    double loss_tail[HY_LOSS_TAIL];
    hy_own_summary summary;
    double phase_seconds[HY_PHASE_COUNT], phase_wait[HY_PHASE_COUNT];
    uint64_t phase_moved[HY_PHASE_COUNT];

    hy_record record;
} hy_own_run;

/* own_passes.c: the caller's callbacks over the micro-batches of a step or a guard pass. `grad_scale` makes
 * what backward left in the gradients that of the step's mean loss. */
typedef struct hy_own_losses {
    double sum;
    int64_t counted;
} hy_own_losses;
hy_status hy_own_backward(hy_own_run *run, hy_phase phase, hy_own_losses *out, double *grad_scale);
hy_status hy_own_guard_pass(hy_own_run *run, double *loss);
hy_status hy_own_evaluate(hy_own_run *run, hy_own_losses *out);

/* own_offload.c: m and v leave when Predict begins and are back before the next optimizer step. Returns how
 * many bytes went from one place to another. */
hy_status hy_own_offload_init(hy_own_run *run);
uint64_t hy_own_offload_move(hy_own_run *run, bool is_leaving);
