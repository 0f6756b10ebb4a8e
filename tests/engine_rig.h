/* engine_rig.h: small runs under every choice of the memory engine, and what must be the same after
 * them.
 *
 * A run makes moves, averages a tail, validates in between and saves at its end. What it leaves is
 * compared bit for bit: losses of steps and validations, and every tensor of the checkpoint.
 * Programs that include this are linked so that the CPU's streams are made and fed through
 * functions of this file (make/tests.mk): tests delay what they do and change ops on their way. */
#ifndef HY_TESTS_ENGINE_RIG_H
#define HY_TESTS_ENGINE_RIG_H

#include "run_facts.h"
#include "small_run.h"

#include "kernels/cpu/stream.h"

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

/* ---- between the library and the CPU's streams ----------------------------------------------- */

enum { ENGINE_STREAMS = 64 };
static hy_stream *engine_streams[ENGINE_STREAMS]; /* that are there; others are NULL */
static void (*engine_on_op)(hy_op_call *call);    /* may change it; NULL: all stay as they are */

hy_status __real_hy_cpu_stream_create(const hy_stream_options *options, hy_stream **out);
hy_status __wrap_hy_cpu_stream_create(const hy_stream_options *options, hy_stream **out);
void __real_hy_cpu_stream_destroy(hy_stream *s);
void __wrap_hy_cpu_stream_destroy(hy_stream *s);
hy_status __real_hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call);
hy_status __wrap_hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call);

hy_status __wrap_hy_cpu_stream_create(const hy_stream_options *options, hy_stream **out) {
    hy_status status = __real_hy_cpu_stream_create(options, out);
    int at = 0;
    while (at < ENGINE_STREAMS && engine_streams[at]) at++;
    if (status == HY_OK && at < ENGINE_STREAMS) engine_streams[at] = *out;
    return status;
}

void __wrap_hy_cpu_stream_destroy(hy_stream *s) {
    for (int i = 0; i < ENGINE_STREAMS; i++) {
        if (engine_streams[i] == s) engine_streams[i] = NULL;
    }
    __real_hy_cpu_stream_destroy(s);
}

hy_status __wrap_hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call) {
    if (!engine_on_op) return __real_hy_cpu_stream_enqueue(s, call);
    hy_op_call changed = *call;
    engine_on_op(&changed);
    return __real_hy_cpu_stream_enqueue(s, &changed);
}

/* Each item of the run's streams waits up to so many microseconds from here on. A stream of the CPU
 * begins with its options (stream.c), and is idle between steps. Cards have delays of their own. */
static inline void engine_delay(int microseconds) {
    for (int i = 0; i < ENGINE_STREAMS; i++) {
        hy_stream_options *options = (hy_stream_options *)engine_streams[i];
        if (!options) continue;
        ck_assert_ptr_nonnull(options->execute);
        options->delay_microseconds = microseconds;
        options->delay_seed = 5 + (uint64_t)i;
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

static inline void engine_validate(hy_trainer *t, double *loss) {
    hy_eval_info info;
    must(hy_trainer_evaluate(t, &info));
    *loss = info.loss;
}

/* What was live in each phase is what was planned for it, on the device and in its classes. */
static inline void engine_check_plan(const hy_trainer *t) {
    hy_summary summary = summary_of(t);
    hy_memory_state memory;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        const hy_phase_summary *phase = &summary.phases[i];
        if (phase->vram_peak_bytes == 0) continue; /* not in this sitting */
        ck_assert_msg(phase->vram_peak_bytes == phase->vram_planned_bytes,
                      "%s: %llu bytes of the device planned, %llu measured",
                      hy_phase_name((hy_phase)i), (unsigned long long)phase->vram_planned_bytes,
                      (unsigned long long)phase->vram_peak_bytes);
    }
    must(hy_trainer_memory(t, &memory));
    ck_assert_uint_le(memory.device.peak, facts_of(t).vram_bytes);
}

/* Half-way the run may be stopped and continue as `later` says; NULL: it is not. Validations come
 * after what may be saved, so that an update that is still pending is there when a checkpoint is
 * written. */
static inline void engine_run(const char *words, const char *out, const char *const *pairs,
                              const char *const *later, int delay, engine_losses *losses) {
    char resumed[1024];
    hy_trainer *t = small_trainer(words, out, NULL, pairs);
    engine_delay(delay);
    next_losses(t, ENGINE_HALF, losses->steps);
    if (later) {
        must(hy_trainer_save(t));
        hy_trainer_destroy(t);
        snprintf(resumed, sizeof resumed, "%s resume auto overwrite false ", words);
        t = small_trainer(resumed, out, NULL, later);
        engine_delay(delay);
    }
    engine_validate(t, &losses->held_out[0]);
    next_losses(t, ENGINE_STEPS - ENGINE_HALF, losses->steps + ENGINE_HALF);
    must(hy_trainer_save(t));
    engine_validate(t, &losses->held_out[1]);
    engine_check_plan(t);
    hy_trainer_destroy(t);
}

/* ---- what it left in files ------------------------------------------------------------------- */

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
