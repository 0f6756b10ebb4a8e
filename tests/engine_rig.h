/* engine_rig.h: small runs under every choice of the memory engine, and what must be the same after them.
 *
 * A run makes moves, averages a tail, validates in between and saves at its end. What it
 * leaves is compared bit for bit: losses of steps and validations, and every tensor of the checkpoint. */
#ifndef HY_TESTS_ENGINE_RIG_H
#define HY_TESTS_ENGINE_RIG_H

#include "small_run.h"

#include "formats/checkpoint.h"
#include "kernels/cpu/stream.h"
#include "trainer/trainer.h"

enum { ENGINE_STEPS = 14, ENGINE_HALF = 7, ENGINE_WORDS = 48 };

#define ENGINE_RUN                                                                                 \
    "model nano layers 3 seq_len 16 context 16 batch_size 2 steps 14 lr 3e-3 vocab 256 "           \
    "builtin_bytes 30000 lr_warmup_steps 3 eval_batches 1 sample_tokens 0 threads 1 device cpu "   \
    "loss_chunks 2 overwrite true tune off tune_cache none "
/* Jumps every third optimizer step from the start to the end. */
#define ENGINE_MOVES                                                                               \
    "predictor outer full_steps 2 correct_steps 1 predict_from 0 predict_until 1 "                 \
    "confidence_threshold 0.5 snapshot true tail_share 0.5 fork_budget 0 "
#define ENGINE_LLAMA                                                                               \
    "width 32 heads 4 kv_heads 2 mlp_width 48 norm rmsnorm positions rope activation swiglu "      \
    "tied_head true "
#define ENGINE_GPT2                                                                                \
    "width 24 heads 2 mlp_width 96 norm layernorm positions learned activation gelu "              \
    "qkv_bias true proj_bias true tied_head false "

/* What is left of a run: losses of its steps, and of the validations half-way and at the end. */
typedef struct engine_losses {
    double steps[ENGINE_STEPS], held_out[2];
} engine_losses;

/* Each item of the run's streams waits up to so many microseconds from here on. A stream of the CPU begins
 * with its options (stream.c), and is idle between steps. Cards have delays of their own. */
static inline void engine_delay(hy_trainer *t, int microseconds) {
    hy_stream *streams[] = {t->engine.device.compute, t->engine.device.copies,
                            t->engine.device.returns};
    for (int i = 0; i < 3 && !t->engine.device.backend->facts.is_gpu; i++) {
        hy_stream_options *options = (hy_stream_options *)streams[i];
        ck_assert_ptr_nonnull(options->execute);
        options->delay_microseconds = microseconds;
        options->delay_seed = 5 + (uint64_t)i;
    }
}

static inline void engine_validate(hy_trainer *t, double *loss) {
    hy_eval_info info;
    must(hy_trainer_evaluate(t, &info));
    *loss = info.loss;
}

/* What was live in each phase is what was planned for it, on the device and in its classes. */
static inline void engine_check_plan(const hy_trainer *t) {
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        const hy_phase_summary *phase = &summary.phases[i];
        if (t->engine.state.ledger.phase_peak[i] == 0) continue; /* not in this sitting */
        ck_assert_msg(phase->vram_peak_bytes == phase->vram_planned_bytes,
                      "%s: %llu bytes of the device planned, %llu measured",
                      hy_phase_name((hy_phase)i), (unsigned long long)phase->vram_planned_bytes,
                      (unsigned long long)phase->vram_peak_bytes);
    }
    ck_assert_uint_le(t->engine.state.ledger.peak_in[HY_DEVICE], t->facts.vram_bytes);
}

/* Half-way the run may be stopped and go on as `later` says; NULL: it is not. Validations come after what
 * may be saved, so that an update that is still pending is there when a checkpoint is written. */
static inline void engine_run(const char *words, const char *out, const char *const *pairs,
                              const char *const *later, int delay, engine_losses *losses) {
    char resumed[1024];
    hy_trainer *t = small_trainer(words, out, NULL, pairs);
    engine_delay(t, delay);
    next_losses(t, ENGINE_HALF, losses->steps);
    if (later) {
        must(hy_trainer_save(t));
        hy_trainer_destroy(t);
        snprintf(resumed, sizeof resumed, "%s resume auto overwrite false ", words);
        t = small_trainer(resumed, out, NULL, later);
        engine_delay(t, delay);
    }
    engine_validate(t, &losses->held_out[0]);
    next_losses(t, ENGINE_STEPS - ENGINE_HALF, losses->steps + ENGINE_HALF);
    must(hy_trainer_save(t));
    engine_validate(t, &losses->held_out[1]);
    engine_check_plan(t);
    hy_trainer_destroy(t);
}

/* ---- what it left in files --------------------------------------------------------------------- */

/* The whole file of a run's last checkpoint; NULL where there is none. */
static inline char *engine_file(const char *out, const char *name, size_t *size) {
    char folder[256], path[512], *data = NULL;
    int64_t step;
    *size = 0;
    must(hy_checkpoint_latest(out, folder, sizeof folder, &step, NULL));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (hy_path_exists(path)) must(hy_file_read(path, &data, size));
    return data;
}

/* The first file in which the checkpoints of two runs differ; NULL: all bytes are the same. */
static inline const char *engine_difference(const char *out, const char *other) {
    static const char *const names[] = {"weights.safetensors", "optimizer.safetensors",
                                        "predictor.safetensors"};
    const char *found = NULL;
    for (int i = 0; i < 3 && !found; i++) {
        size_t size, other_size;
        char *a = engine_file(out, names[i], &size), *b = engine_file(other, names[i], &other_size);
        ck_assert(i > 1 || size > 0);
        if (size != other_size || (size && memcmp(a, b, size) != 0)) found = names[i];
        free(a);
        free(b);
    }
    return found;
}

#endif
