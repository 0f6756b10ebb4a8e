/* kernel_rig.h: what tests of ops need: a backend with a stream, and calls made of random numbers.
 *
 * A trial holds a call for the backend and the same call in double precision for the reference. Its
 * numbers are drawn from a counter, rounded to the tensor's type, and given to both, so that what
 * differs afterwards is the op's own error. */
#ifndef HY_TESTS_KERNEL_RIG_H
#define HY_TESTS_KERNEL_RIG_H

#include <math.h>

#include "base/rng.h"
#include "harness.h"
#include "kernels/half.h"
#include "reference.h"

typedef struct rig {
    hy_backend *backend;
    hy_stream *stream;
} rig;

static inline rig rig_create(int threads) {
    hy_cpu_options options = {.threads = threads};
    rig r;
    must(hy_cpu_backend_create(&options, &r.backend));
    must(r.backend->stream_create(r.backend, "test", &r.stream));
    return r;
}

static inline void rig_destroy(rig *r) {
    r->backend->stream_destroy(r->stream);
    r->backend->destroy(r->backend);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static inline double real_at(const hy_tensor *t, int64_t i) {
    switch (t->dtype) {
    case HY_F32: return (double)((const float *)t->data)[i];
    case HY_BF16: return (double)hy_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case HY_F16: return (double)hy_f16_to_f32(((const uint16_t *)t->data)[i]);
    case HY_F64: return ((const double *)t->data)[i];
    default: return (double)((const int32_t *)t->data)[i];
    }
}

static inline void put_real(const hy_tensor *t, int64_t i, double value) {
    switch (t->dtype) {
    case HY_F32: ((float *)t->data)[i] = (float)value; break;
    case HY_BF16: ((uint16_t *)t->data)[i] = hy_f32_to_bf16((float)value); break;
    case HY_F16: ((uint16_t *)t->data)[i] = hy_f32_to_f16((float)value); break;
    case HY_F64: ((double *)t->data)[i] = value; break;
    default: ((int32_t *)t->data)[i] = (int32_t)value; break;
    }
}

typedef struct dice {
    uint64_t seed, next;
} dice;

static inline double roll_normal(dice *d) { return hy_rng_normal(d->seed, HY_RNG_TEST, d->next++); }
static inline int64_t roll(dice *d, int64_t low, int64_t high) { /* in [low, high] */
    return low + (int64_t)hy_rng_below(d->seed, HY_RNG_TEST, d->next++, (uint64_t)(high - low + 1));
}

/* ---- trials ---------------------------------------------------------------------------------- */

typedef struct trial {
    hy_op_call call;  /* for the backend */
    hy_op_call exact; /* for the reference: reals as double */
    dice dice;
} trial;

static inline trial trial_begin(hy_op_kind kind, uint64_t seed) {
    trial t = {.dice = {.seed = seed}};
    t.call.kind = t.exact.kind = kind;
    return t;
}

/* A tensor of the trial, rows x cols (rows 0: one dimension), zeroed in both calls. */
static inline hy_tensor *trial_tensor(trial *t, int at, hy_dtype dtype, int64_t rows,
                                      int64_t cols) {
    int64_t count = (rows ? rows : 1) * cols;
    hy_tensor *mine = &t->call.t[at], *exact = &t->exact.t[at];
    void *data = calloc((size_t)count, hy_dtype_size(dtype));
    *mine = rows ? hy_tensor_2d(data, dtype, rows, cols) : hy_tensor_1d(data, dtype, cols);
    *exact = *mine;
    if (dtype == HY_I32) {
        exact->data = malloc((size_t)count * sizeof(int32_t));
    } else {
        exact->dtype = HY_F64;
        exact->data = malloc((size_t)count * sizeof(double));
    }
    memset(exact->data, 0, hy_tensor_bytes(exact));
    return mine;
}

/* Gives element i of tensor `at` a value, rounded to its type, in both calls. */
static inline void trial_put(trial *t, int at, int64_t i, double value) {
    put_real(&t->call.t[at], i, value);
    put_real(&t->exact.t[at], i, real_at(&t->call.t[at], i));
}

/* A tensor of normal numbers around `mean`. */
static inline void trial_normal(trial *t, int at, hy_dtype dtype, int64_t rows, int64_t cols,
                                double mean, double deviation) {
    trial_tensor(t, at, dtype, rows, cols);
    for (int64_t i = 0; i < hy_tensor_count(&t->call.t[at]); i++) {
        trial_put(t, at, i, mean + deviation * roll_normal(&t->dice));
    }
}

/* A tensor of whole numbers in [low, high]. */
static inline void trial_ints(trial *t, int at, int64_t count, int64_t low, int64_t high) {
    trial_tensor(t, at, HY_I32, 0, count);
    for (int64_t i = 0; i < count; i++) trial_put(t, at, i, (double)roll(&t->dice, low, high));
}

/* Copies what the reference computed into the backend's tensor (statistics of a forward op). */
static inline void trial_adopt(trial *t, int at, const double *values) {
    for (int64_t i = 0; i < hy_tensor_count(&t->call.t[at]); i++) trial_put(t, at, i, values[i]);
}

/* A copy of a double tensor, to be freed. */
static inline hy_tensor copy_tensor(const hy_tensor *t) {
    hy_tensor copy = *t;
    if (!t->data) return copy;
    copy.data = malloc(hy_tensor_bytes(t));
    memcpy(copy.data, t->data, hy_tensor_bytes(t));
    return copy;
}

static inline void trial_end(trial *t) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        free(t->call.t[i].data);
        free(t->exact.t[i].data);
    }
}

/* Runs a call with a workspace of exactly the size asked for, filled with NaN. */
static inline hy_status rig_try(rig *r, const hy_op_call *call) {
    hy_op_call bound = *call;
    size_t bytes = r->backend->workspace(r->backend, &bound);
    void *workspace = NULL;
    if (bytes > 0) {
        must(r->backend->alloc(r->backend, HY_DEVICE, bytes, &workspace));
        memset(workspace, 0xff, bytes);
        bound.workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    }
    must(r->backend->supports(r->backend, &bound));
    must(r->backend->prepare(r->backend, &bound));
    must(r->backend->enqueue(r->stream, &bound));
    hy_status status = r->backend->stream_sync(r->stream);
    if (workspace) r->backend->release(r->backend, HY_DEVICE, workspace, bytes);
    return status;
}

static inline void rig_run(rig *r, const hy_op_call *call) { must(rig_try(r, call)); }

/* Runs a trial on the backend and by the reference. */
static inline void rig_run_both(rig *r, trial *t) {
    t->exact.attr = t->call.attr;
    rig_run(r, &t->call);
    reference_run(&t->exact);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Norm of the difference over norm of what is expected. NaN and infinity count as infinitely
 * wrong. */
static inline double distance(const hy_tensor *t, const double *expected) {
    double wrong = 0, size = 0;
    for (int64_t i = 0; i < hy_tensor_count(t); i++) {
        double value = real_at(t, i), difference = value - expected[i];
        if (!isfinite(value)) return INFINITY;
        wrong += difference * difference;
        size += expected[i] * expected[i];
    }
    return size > 0 ? sqrt(wrong / size) : sqrt(wrong);
}

/* What one rounding to the type may cost; fp32: a few dozen roundings. */
static inline double tolerance_of(hy_dtype dtype) {
    switch (dtype) {
    case HY_BF16: return 4e-3;
    case HY_F16: return 5e-4;
    default: return 2e-6;
    }
}

/* Tensor `at` of the trial lies within `factor` times its type's tolerance of the reference. */
static inline void trial_check(const trial *t, int at, double factor) {
    double found = distance(&t->call.t[at], t->exact.t[at].data);
    double allowed = factor * tolerance_of(t->call.t[at].dtype);
    ck_assert_msg(found <= allowed, "%s: %s (%s) is off by %.3g, allowed %.3g",
                  hy_op_name(t->call.kind), hy_op_tensor_name(t->call.kind, at),
                  hy_dtype_name(t->call.t[at].dtype), found, allowed);
}

/* The types a test goes through: each alone, then a mixture drawn per tensor. Under the thread
 * sanitizer loops are tens of times slower and ops run on one thread, so one type will do there. */
#if defined(__SANITIZE_THREAD__)
enum { MIXTURES = 1, PURE_TYPES = 1 };
#else
enum { MIXTURES = 5, PURE_TYPES = 3 };
#endif
/* After the mixtures that are drawn: that of training, bf16 but for the gradients of parameters. */
enum { TRAINING_TYPES = 5 };

static inline hy_dtype pick_dtype(int mixture, dice *d) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    if (mixture == TRAINING_TYPES) return HY_BF16;
    return mixture < 3 ? reals[mixture] : reals[roll(d, 0, 2)];
}
/* Of a gradient of parameters. */
static inline hy_dtype pick_grad_dtype(int mixture, dice *d) {
    return mixture == TRAINING_TYPES ? HY_F32 : pick_dtype(mixture, d);
}

/* Runs a call of host tensors on the backend under test; what must hold on every backend is written
 * over such a function. */
typedef void (*call_runner)(const hy_op_call *call);

/* A test that goes through mixtures of types [low, high), in one process: making a backend takes
 * longer than most of them. */
#define EACH_MIXTURE(name, low, high)                                                              \
    static void name##_in(int mixture);                                                            \
    START_TEST(name) {                                                                             \
        for (int mixture = (low); mixture < (high); mixture++) name##_in(mixture);                 \
    }                                                                                              \
    END_TEST                                                                                       \
    static void name##_in(int mixture)

#endif
