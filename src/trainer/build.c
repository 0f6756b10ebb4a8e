/* build.c: from settings to a run that can take its first step. See trainer.h.
 *
 * Everything that can be wrong is checked before anything is written: shape, data, device, memory, the
 * run's folder, the checkpoint to resume. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"
#include "trainer/monitor.h"
#include "trainer/phase_rules.h"

#define FIRST_LOSS_SCALE 0x1p16
#define MOST_AHEAD 64

static int64_t sequences_per_step(const hy_settings *s) {
    if (s->train.step_tokens == 0) return s->train.batch_size * s->train.grad_accum_steps;
    int64_t sequences = s->train.step_tokens / s->train.seq_len;
    return sequences < 1 ? 1 : sequences;
}

/* How long the run is: steps, or tokens, or epochs, in this order. */
static hy_status choose_length(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    double steps = (double)s->train.steps;
    double sequences = (double)hy_dataset_describe(t->data.set)->sequences[HY_TRAIN];
    double per_step = (double)sequences_per_step(s);
    if (steps == 0 && s->train.tokens > 0) {
        steps = ceil((double)s->train.tokens / (per_step * (double)s->train.seq_len));
    }
    if (steps == 0) {
        double epochs = s->train.epochs > 0 ? s->train.epochs : 1;
        steps = ceil(epochs * sequences / per_step);
    }
    if (steps < 1 || steps > 1e12) {
        return hy_fail(HY_ERR_INPUT, "the run would have %g steps; check steps, tokens and epochs",
                       steps);
    }
    t->course.steps_total = (int64_t)steps;
    return HY_OK;
}

static hy_status set_up_optimizer(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    double lr = s->optimizer.lr;
    if (s->train.scale_lr) lr *= (double)s->train.grad_accum_steps;
    t->course.schedule = (hy_schedule){.lr = lr,
                                       .min_ratio = s->optimizer.min_lr_ratio,
                                       .cooldown = s->optimizer.cooldown,
                                       .warmup = s->optimizer.lr_warmup_steps,
                                       .total = t->course.steps_total};
    t->course.schedule.kind = s->optimizer.schedule;
    if (t->course.schedule.warmup > t->course.steps_total)
        t->course.schedule.warmup = t->course.steps_total;
    t->engine.update.optimizer = (hy_optimizer){.kind = hy_settings_optimizer(s),
                                                .max_norm = s->train.grad_clip,
                                                .weight_decay = s->optimizer.weight_decay,
                                                .beta1 = s->optimizer.beta1,
                                                .beta2 = s->optimizer.beta2,
                                                .eps = s->optimizer.adam_eps,
                                                .momentum = s->optimizer.momentum,
                                                .is_nesterov = s->optimizer.nesterov};
    return HY_OK;
}

static hy_status set_up_phases(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    t->engine.optim.strategy = s->memory.offload_strategy;
    HY_TRY(hy_rules_from_settings(s, t->course.schedule.warmup, &t->engine.predictor,
                                  &t->course.rules, &t->course.limits));
    if (!t->course.rules.has_predictor)
        t->engine.optim.strategy = HY_OFFLOAD_NONE; /* there will be no Predict */
    bool is_tuning = s->phases.regime == HY_REGIME_TUNING ||
                     (s->phases.regime == HY_REGIME_AUTO && hy_settings_bring_weights(s));
    t->course.regime = is_tuning ? HY_FINE_TUNING : HY_FROM_SCRATCH;
    t->engine.has_snapshot = s->phases.snapshot && hy_predictor_slots(t->engine.predictor.kind) > 0;
    t->engine.has_average = s->phases.tail_share > 0;
    return HY_OK;
}

static bool uses_half(const hy_trainer *t) {
    return t->engine.types.has_low && t->engine.types.low == HY_F16;
}

static void begin_progress(hy_trainer *t) {
    t->progress = (hy_progress){.machine = hy_phase_begin(&t->course.rules),
                                .confidence = hy_confidence_prior(t->course.regime),
                                .loss_scale.scale = uses_half(t) ? FIRST_LOSS_SCALE : 1,
                                .residual_cosine = NAN,
                                .residual_length = NAN,
                                .val_loss = NAN};
}

/* Zero bits are the number zero in every type, quantised ones too: their scales are zero. */
hy_status hy_trainer_zero(hy_trainer *t, hy_store *store) {
    if (store->place != HY_DEVICE) return hy_store_zero(store);
    for (int32_t i = 0; i < store->layout.item_count; i++) {
        uint64_t bytes = hy_layout_item_bytes(&store->layout.items[i]);
        hy_op_call fill = {.kind = HY_OP_FILL};
        fill.t[HY_FILL_DST] =
            hy_tensor_1d(hy_store_backing(store, i), HY_I32, (int64_t)(bytes / 4));
        HY_TRY(t->engine.backend->enqueue(t->engine.compute, &fill));
    }
    return HY_OK;
}

/* Micro-batches read ahead beyond one step. A step's own are given back at its end, so on a GPU the next
 * step's lie ready beside them: it should not stand still while they are read. */
static int64_t batches_ahead(const hy_trainer *t) {
    int64_t asked = t->settings.input.prefetch, step = t->settings.train.grad_accum_steps;
    if (step > MOST_AHEAD) step = MOST_AHEAD;
    return t->engine.backend->facts.is_gpu && step > asked ? step : asked;
}

int64_t hy_trainer_loader_depth(const hy_trainer *t) {
    return t->settings.train.grad_accum_steps + batches_ahead(t);
}

hy_status hy_trainer_start_loader(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    int64_t depth = hy_trainer_loader_depth(t);
    hy_loader *anew;
    HY_TRY(hy_loader_create(t->data.set, (int32_t)s->train.batch_size, (int32_t)depth,
                            (uint64_t)t->progress.sequences, t->engine.backend, &anew));
    hy_loader_destroy(t->data.loader);
    t->data.loader = anew;
    return HY_OK;
}

static hy_status new_weights(hy_trainer *t) {
    char checkpoint[HY_PATH_MAX];
    if (!t->settings.init_from[0]) {
        hy_model_files kind;
        char model[HY_HF_PATH_MAX];
        HY_TRY(hy_settings_model_files(&t->settings, &kind, model));
        return kind == HY_FILES_NONE ? hy_trainer_initialise_weights(t)
                                     : hy_trainer_load_model(t, kind, model);
    }
    HY_TRY(hy_trainer_find_checkpoint(t, t->settings.init_from, checkpoint));
    HY_TRY(hy_trainer_read_weights(t, checkpoint));
    hy_say(t, HY_NOTE, "the weights begin as those of %s", checkpoint);
    return HY_OK;
}

/* The checkpoint that is gone on with, before any plan is made: it says how steps are split and which
 * algorithms to take. */
static hy_status find_resumed(hy_trainer *t) {
    const char *from = t->settings.save.resume;
    if (!from[0]) return HY_OK;
    char file[HY_PATH_MAX];
    HY_TRY(hy_trainer_find_checkpoint(t, strcmp(from, "auto") == 0 ? t->record.out : from,
                                      t->resumed));
    HY_TRY(hy_path_join(file, sizeof file, t->resumed, "trainer.json"));
    HY_TRY(hy_progress_read_split(t, file));
    return hy_trainer_read_algorithms(t, t->resumed);
}

/* A checkpoint may come from a device with another 16-bit type: only fp16 scales the loss. */
static void fit_loss_scale(hy_trainer *t) {
    hy_loss_scale *s = &t->progress.loss_scale;
    bool was_without = s->scale == 1 && s->good_steps == 0 && t->progress.skipped == 0;
    if (!uses_half(t)) {
        *s = (hy_loss_scale){.scale = 1};
    } else if (was_without) {
        s->scale = FIRST_LOSS_SCALE;
    }
}

static hy_status begin_or_resume(hy_trainer *t) {
    begin_progress(t);
    t->saved_step = -1;
    if (!t->resumed[0]) {
        HY_TRY(new_weights(t));
        for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
            HY_TRY(hy_trainer_zero(t, hy_store_of(&t->engine, HY_ROW_OPTIM + i)));
        }
        return t->engine.backend->stream_sync(t->engine.compute);
    }
    HY_TRY(hy_trainer_read_checkpoint(t, t->resumed));
    fit_loss_scale(t);
    hy_say(t, HY_NOTE, "resumed %s: %lld of %lld steps done", t->resumed,
           (long long)t->progress.step, (long long)t->course.steps_total);
    return HY_OK;
}

hy_status hy_trainer_build(hy_trainer *t) {
    hy_shape shape;
    HY_TRY(hy_shape_from_settings(&t->settings, &shape));
    HY_TRY(hy_model_create(&shape, &t->engine.model));
    HY_TRY(hy_trainer_open_data(t));
    HY_TRY(choose_length(t));
    HY_TRY(set_up_optimizer(t));
    HY_TRY(set_up_phases(t));
    if (!t->life.is_plan) HY_TRY(hy_record_choose_folder(&t->record, &t->settings));
    HY_TRY(hy_trainer_open_device(t));
    HY_TRY(hy_trainer_choose_precision(t)); /* what the device is good at */
    if (t->life.is_plan) {
        begin_progress(t);
        return hy_trainer_take_memory(t); /* which plans, and stops there */
    }
    HY_TRY(find_resumed(t));
    HY_TRY(hy_trainer_take_memory(t));
    if (t->first_batch == 0) t->first_batch = t->settings.train.batch_size;
    HY_TRY(hy_monitor_open(t));
    hy_trainer_tell_plan(t);
    hy_trainer_tell_warning(t); /* of what was prepared */
    HY_TRY(begin_or_resume(t));
    HY_TRY(hy_fork_take_memory(t));
    HY_TRY(hy_trainer_start_loader(t));
    t->checkpoint_bytes = hy_trainer_checkpoint_size(t);
    HY_TRY(hy_trainer_take_reserve(t));
    return hy_trainer_open_record(t);
}

static void release_memory(hy_trainer *t) {
    hy_store *stores[] = {
        hy_store_of(&t->engine, HY_ROW_MASTER),    hy_store_of(&t->engine, HY_ROW_WORKING),
        hy_store_of(&t->engine, HY_ROW_GRADS),     hy_store_of(&t->engine, HY_ROW_OPTIM),
        hy_store_of(&t->engine, HY_ROW_OPTIM + 1), hy_store_of(&t->engine, HY_ROW_SLOW + 0),
        hy_store_of(&t->engine, HY_ROW_SLOW + 1),  hy_store_of(&t->engine, HY_ROW_SNAPSHOT),
        hy_store_of(&t->engine, HY_ROW_AVERAGE),   hy_store_of(&t->engine, HY_ROW_CANDIDATE)};
    hy_fork_release(t);
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) hy_store_fini(stores[i]);
    if (t->engine.optim.host) {
        hy_place place = t->engine.optim.strategy == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
        t->engine.backend->release(t->engine.backend, place, t->engine.optim.host, 0);
    }
    hy_release_work(t);
    hy_arena_fini(&t->engine.state.device);
    hy_arena_fini(&t->engine.state.pinned);
    hy_arena_fini(&t->engine.state.staging);
    (void)hy_spill_close(t->engine.state.spill); /* a failure there was told when it mattered */
    hy_arena_fini(&t->engine.state.rings);
    hy_arena_fini(&t->engine.state.kept);
    hy_state_forget_layouts(t);
}

static void close_device(hy_trainer *t) {
    hy_stream *streams[] = {t->engine.compute, t->engine.copies, t->engine.returns};
    if (!t->engine.backend) return;
    for (int i = 0; i < 3; i++) {
        if (streams[i]) t->engine.backend->stream_sync(streams[i]);
    }
    hy_drop_batch_plans(t);
    hy_loader_destroy(t->data.loader); /* its batches may have been on their way until here */
    release_memory(t);
    if (t->engine.optim.is_back) t->engine.backend->event_destroy(t->engine.optim.is_back);
    for (int i = 0; i < 3; i++) {
        if (streams[i]) t->engine.backend->stream_destroy(streams[i]);
    }
    hy_nvml_watch_destroy(t->engine.nvml);
    t->engine.backend->destroy(t->engine.backend);
}

void hy_trainer_tear_down(hy_trainer *t) {
    hy_record_release(&t->record);
    hy_monitor_close(t);
    hy_trainer_give_reserve(t);
    close_device(t);
    hy_model_destroy(t->engine.model);
    hy_dataset_close(t->data.set);
}
