/* hybrid_types.h: enumerations and small structs that the public headers share.
 *
 * They are status codes, phases, classes of memory, places and element types. Programs include
 * hybrid.h, which includes this file. The values never change, because they appear in files and
 * metrics.
 *
 * How structs grow: a struct that begins with `size` may get new members at its end, and compiled
 * programs keep working. The library writes only as many bytes as the program's own definition of
 * the struct has, and sets `size` to the number of bytes that it filled. If the program was
 * compiled with a newer header than the library, members that the library does not know are zero;
 * HY_HAS_MEMBER tells them from real zeros. Structs without `size` keep their layout as long as
 * HYBRID_ABI stays the same. */
#ifndef HYBRID_TYPES_H
#define HYBRID_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* True when the library that filled *pointer knows the member. */
#define HY_HAS_MEMBER(pointer, member)                                                             \
    ((pointer)->size >= (size_t)((const char *)(&(pointer)->member + 1) - (const char *)(pointer)))

/* The result of a call. Every value except HY_OK leaves a message for hy_error_message(). */
typedef enum hy_status {
    HY_OK = 0,
    HY_ERR_INPUT = 1,    /* the caller's input is wrong: file, key, value, shape (exit code 2) */
    HY_ERR_MEMORY = 2,   /* memory could not be allocated */
    HY_ERR_IO = 3,       /* reading or writing failed */
    HY_ERR_DEVICE = 4,   /* device or driver is missing, too old or failed */
    HY_ERR_NUMERIC = 5,  /* a number is NaN or infinite, or the run diverged (exit code 3) */
    HY_ERR_STATE = 6,    /* this call is not possible now */
    HY_ERR_INTERNAL = 7, /* a bug in the library */
    HY_STOPPED = 8       /* stopped on request; saved if the run has a folder (exit code 75) */
} hy_status;

/* Warmup runs once; then a run cycles through Full, Predict and Correct. Evaluate is a validation
 * between two steps. Reference measures pairs of answers with the model before training. Rollout
 * generates answers, for rewards. */
typedef enum hy_phase {
    HY_WARMUP = 0,
    HY_FULL = 1,
    HY_PREDICT = 2,
    HY_CORRECT = 3,
    HY_EVALUATE = 4,
    HY_REFERENCE = 5,
    HY_ROLLOUT = 6,
    HY_PHASE_COUNT = 7
} hy_phase;

/* Element types. Sizes: hy_dtype_size(). */
typedef enum hy_dtype {
    HY_F32 = 0,
    HY_BF16 = 1,
    HY_F16 = 2,
    HY_F64 = 3,
    HY_I32 = 4,
    HY_U16 = 5,
    HY_U8 = 6,
    HY_I8 = 7,
    HY_E4M3 = 8, /* 8 bits of floating point, with a scale for the tensor */
    HY_E5M2 = 9,
    HY_NF4 = 10, /* half a byte, two to a byte */
    HY_DTYPE_COUNT = 11
} hy_dtype;

/* Classes of memory that training uses: the rows of the placement table. */
typedef enum hy_class {
    HY_WEIGHTS = 0, /* the working copy */
    HY_MASTER = 1,  /* fp32 copy that the optimizer updates, if there is one */
    HY_GRADS = 2,
    HY_OPTIM = 3,     /* optimizer state */
    HY_PREDICTOR = 4, /* slow weights and velocity */
    HY_SNAPSHOT = 5,  /* weights before a jump */
    HY_ACTIVATIONS = 6,
    HY_LOGITS = 7, /* reserved and always empty: logits are part of the workspace */
    HY_WORKSPACE = 8,
    HY_QUANTS = 9, /* fp8 copy of the blocks' matrices */
    HY_DATA = 10,
    HY_CLASS_COUNT = 11
} hy_class;

/* Where memory is. */
typedef enum hy_place {
    HY_NOWHERE = 0,
    HY_DEVICE = 1, /* memory of the compute device (on a CPU: host memory for computing) */
    HY_PINNED = 2, /* page-locked host memory */
    HY_HOST = 3,
    HY_DISK = 4,
    HY_PLACE_COUNT = 5
} hy_place;

/* How close memory use is to its budget. */
typedef enum hy_memory_status {
    HY_MEMORY_NORMAL = 0,
    HY_MEMORY_WARNING = 1,
    HY_MEMORY_CRITICAL = 2, /* the micro-batch should shrink */
    HY_MEMORY_EMERGENCY = 3 /* a plan with less memory is needed */
} hy_memory_status;

/* Lengths of arrays that have an entry for each phase, class or place: longer than the
 * enumerations, so that these can grow. Entries from HY_PHASE_COUNT (_CLASS_, _PLACE_) on are
 * zero. */
#define HY_PHASE_SLOTS 8
#define HY_CLASS_SLOTS 16
#define HY_PLACE_SLOTS 8

/* Steps are optimizer steps, counted from 1 over all sessions of a run; the step of a line, an
 * event or a checkpoint is the number of steps that were done by then. Jumps and validations are
 * not steps. A run has a budget of compute in full steps (the key `steps`), and prediction's passes
 * and paired tests use some of it. This is the number of steps at the end of the run: those done
 * and those that the rest of the budget allows. */
static inline int64_t hy_steps_at_end(int64_t done, double spent, int64_t budget) {
    double left = (double)budget - spent - 0.5;
    int64_t whole = left > 9e15 ? (int64_t)9e15 : left > 0 ? (int64_t)left : 0;
    return done + whole + (left > (double)whole);
}

/* Answers that were generated for a step, their rewards, and how far the update went (task grpo).
 * NaN: other tasks. Means are over all answers, from `clipped` on over the tokens that were trained.
 * docs/rewards.md explains them. */
typedef struct hy_reward_figures {
    double reward;           /* mean reward */
    double reward_deviation; /* mean standard deviation of the rewards of a row's answers */
    double answer_tokens;    /* mean length */
    double answers_ended;    /* share that ended before answer_tokens */
    double groups_equal;     /* share of rows whose answers all have the same reward */
    double rollout_seconds, reward_seconds;
    double rollout_copy_seconds; /* of rollout_seconds: bringing weights to the device */
    double rollout_speed;        /* tokens of answers per second */
    double clipped;              /* share of tokens whose ratio was clipped */
    double kl;         /* estimated divergence from the model before training, nats per token */
    double apart;      /* |log-probability by the decoder minus that by training| */
    double apart_most; /* the largest */
    double importance; /* weight of a token because of this difference */
    double capped;     /* share of tokens whose weight is the largest allowed */
    double entropy;    /* estimated, nats per token */
} hy_reward_figures;

#define HY_RANKS_MOST 256 /* largest number of ranks in a run */

/* Cost of a step on one of several ranks. NaN: not known. */
typedef struct hy_rank_cost {
    size_t size;
    double seconds;   /* of a step; this and the next three are medians */
    double waited;    /* part of them in which its device waited for ranks, copies or data */
    double exchanged; /* seconds in which the link between ranks was busy */
    double bytes;     /* sent to other ranks */
    double memory;    /* peak on its device, bytes */
    int64_t slowest;  /* number of steps in which this rank was the slowest */
    int64_t steps;    /* number of steps measured */
} hy_rank_cost;

/* Names: constant strings; "?" for a value that is not in the enumeration. */
const char *hy_status_name(hy_status status);
const char *hy_phase_name(hy_phase phase); /* "warmup", "full", "predict", "correct" */
/* "fp32", "bf16", "fp16", "fp64", "i32", ..., "int8", "e4m3", "e5m2", "nf4" */
const char *hy_dtype_name(hy_dtype dtype);
const char *hy_class_name(hy_class cls);   /* "weights", "master", ... */
const char *hy_place_name(hy_place place); /* "none", "device", "pinned", "host", "disk" */
const char *hy_memory_status_name(hy_memory_status status); /* "normal", "warning", ... */
size_t hy_dtype_size(hy_dtype dtype); /* bytes of one element; for nf4: of two elements */

#ifdef __cplusplus
}
#endif
#endif
