/* own_build.c: from the caller's parameters and a configuration to a run that can begin. See
 * own_model.h.
 *
 * Everything that can be wrong is checked before anything is written; all memory is taken here. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "own/own_model.h"

#define FIRST_LOSS_SCALE 0x1p16

/* ---- checks ---------------------------------------------------------------------------------- */

/* ---- precision ------------------------------------------------------------------------------- */

static bool is_finer(hy_dtype a, hy_dtype b) { return a == HY_F32 && b != HY_F32; }

/* ---- memory ---------------------------------------------------------------------------------- */

static hy_status take_buffers(hy_own_run *run) {
    size_t elements = (size_t)run->loop->elements;
    bool sums_means = !run->settings.train.normalize && run->settings.train.grad_accum_steps > 1;
    bool is_any_low = false;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_dtype_choice asked = hy_settings_precision(&run->settings, (hy_phase)i);
        /* auto: fp32 on a CPU */
        run->precision[i] = hy_dtype_chosen(asked, asked == HY_DTYPE_16BIT ? HY_BF16 : HY_F32);
        is_any_low |= run->precision[i] != HY_F32;
    }
    /* Gradients of Warmup and Correct cannot be coarser than those of Full, and the guard cannot judge
 * weights finer than Full computes with. */
    const hy_dtype *precision = run->precision;
    static const hy_phase others[] = {HY_WARMUP, HY_CORRECT, HY_PREDICT};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        hy_dtype full = precision[HY_FULL], other = precision[others[i]];
        bool is_guard = others[i] == HY_PREDICT;
        if (is_guard ? !is_finer(other, full) : !is_finer(full, other)) continue;
        return hy_fail(HY_ERR_INPUT,
                       "precision_%s is %s and precision_full %s; %s cannot be %s than full",
                       hy_phase_name(others[i]), hy_dtype_name(other), hy_dtype_name(full),
                       hy_phase_name(others[i]), is_guard ? "finer" : "coarser");
    }
    if (is_any_low) {
        run->exact = malloc(elements * sizeof *run->exact);
        if (!run->exact) return hy_fail(HY_ERR_MEMORY, "no memory for the exact weights");
    }
    if (sums_means) {
        run->mean_grads = malloc(elements * sizeof *run->mean_grads);
        if (!run->mean_grads) return hy_fail(HY_ERR_MEMORY, "no memory for sums of gradients");
    }
    return hy_own_offload_init(run);
}

/* ---- the run --------------------------------------------------------------------------------- */

hy_status hy_own_build(hy_own_run *run, const hy_config *config) {
    const hy_settings *s = &run->settings;
    if (!run->model.forward || !run->model.backward) {
        return hy_fail(HY_ERR_INPUT, "a model of your own needs a %s callback, it is NULL",
                       run->model.forward ? "backward" : "forward");
    }
    if (s->save.resume[0]) {
        return hy_fail(
            HY_ERR_INPUT,
            "resume is \"%s\", but runs of your own model have no checkpoints: their weights "
            "are yours to save",
            s->save.resume);
    }
    HY_TRY(hy_loop_create(config, run->model.parameters, run->model.parameter_count, &run->loop));
    double batches = (double)s->train.grad_accum_steps;
    if (s->train.scale_lr) run->loop->schedule.lr *= batches;
    run->guard_batches = (int64_t)ceil(s->phases.guard_share * batches);
    run->loop->guard_cost = (double)run->guard_batches / batches / 3; /* whole micro-batches */
    run->scale.scale = FIRST_LOSS_SCALE;
    run->summary.val_loss = run->summary.final_loss = NAN;
    HY_TRY(take_buffers(run));
    /* What is kept beside the caller's arrays. Only m and v ever change places. */
    const hy_loop *loop = run->loop;
    uint64_t copy = (uint64_t)loop->elements * sizeof(float);
    int slots = hy_predictor_slots(loop->predictor.kind);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_ledger_plan(&run->ledger, HY_OPTIM, (hy_phase)i, HY_DEVICE, HY_F32, 2 * copy);
    }
    hy_ledger_enter(&run->ledger, loop->state.phase);
    hy_ledger_take(&run->ledger, HY_OPTIM, HY_DEVICE, 2 * copy);
    hy_ledger_take(&run->ledger, HY_PREDICTOR, HY_HOST, (uint64_t)slots * copy);
    if (loop->snapshot) hy_ledger_take(&run->ledger, HY_SNAPSHOT, HY_HOST, copy);
    if (run->exact) hy_ledger_take(&run->ledger, HY_MASTER, HY_DEVICE, copy);
    return hy_own_record_open(run, hy_config_command(config));
}

void hy_own_tear_down(hy_own_run *run) {
    hy_record_release(&run->record);
    hy_own_offload_fini(&run->offload);
    free(run->exact);
    free(run->mean_grads);
    hy_loop_destroy(run->loop);
    free(run);
}
