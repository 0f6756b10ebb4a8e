/* hybrid_types.h: the words that the library and its users share.
 *
 * Status codes, phases, classes of memory, places and element types. hybrid.h includes this file;
 * include hybrid.h instead. It stands alone so that every module of the library can speak these words
 * without knowing the public interface. Values are stable: they appear in files and metrics. */
#ifndef HYBRID_TYPES_H
#define HYBRID_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. Everything but HY_OK leaves a message for hy_error_message(). */
typedef enum hy_status {
    HY_OK = 0,
    HY_ERR_INPUT = 1,    /* the caller's input is wrong: file, key, value, shape (exit code 2) */
    HY_ERR_MEMORY = 2,   /* memory could not be allocated */
    HY_ERR_IO = 3,       /* reading or writing failed */
    HY_ERR_DEVICE = 4,   /* device or driver is missing, too old or failed */
    HY_ERR_NUMERIC = 5,  /* the numbers went bad: NaN, infinity, divergence (exit code 3) */
    HY_ERR_STATE = 6,    /* called in the wrong order */
    HY_ERR_INTERNAL = 7, /* a bug in the library */
    HY_STOPPED = 8 /* stopped on request, after saving where there is a folder (exit code 75) */
} hy_status;

/* The four phases a run cycles through. */
typedef enum hy_phase {
    HY_WARMUP = 0,
    HY_FULL = 1,
    HY_PREDICT = 2,
    HY_CORRECT = 3,
    HY_PHASE_COUNT = 4
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

/* Classes of bytes that training keeps: the rows of the placement table. */
typedef enum hy_class {
    HY_WEIGHTS = 0, /* the working copy */
    HY_MASTER = 1,  /* high-precision copy the optimizer writes, when it is another one */
    HY_GRADS = 2,
    HY_OPTIM = 3,     /* state of the optimizer */
    HY_PREDICTOR = 4, /* slow weights and velocity */
    HY_SNAPSHOT = 5,  /* weights before a jump */
    HY_ACTIVATIONS = 6,
    HY_LOGITS = 7, /* reserved: logits lie in the workspace, and this class never holds bytes */
    HY_WORKSPACE = 8,
    HY_QUANTS = 9,
    HY_DATA = 10,
    HY_CLASS_COUNT = 11
} hy_class;

/* Where bytes live. */
typedef enum hy_place {
    HY_NOWHERE = 0,
    HY_DEVICE = 1, /* the compute device's own memory (on a CPU: the compute arena) */
    HY_PINNED = 2, /* page-locked host memory */
    HY_HOST = 3,
    HY_DISK = 4,
    HY_PLACE_COUNT = 5
} hy_place;

/* How near a memory is to its budget. */
typedef enum hy_memory_status {
    HY_MEMORY_NORMAL = 0,
    HY_MEMORY_WARNING = 1,
    HY_MEMORY_CRITICAL = 2, /* the micro-batch should shrink */
    HY_MEMORY_EMERGENCY = 3 /* a cheaper plan is needed */
} hy_memory_status;

#define HY_RANKS_MOST 256 /* ranks that a run may have */

/* What steps cost one of several ranks. NaN: not known. */
typedef struct hy_rank_cost {
    double seconds;   /* of a step; this and the next three are medians */
    double waited;    /* of these, its device stood still: for other ranks, copies or data */
    double exchanged; /* the link between ranks was in use, beside compute where it can be */
    double bytes;     /* that it sent to other ranks */
    double memory;    /* the most that was live on its device, bytes */
    int64_t slowest;  /* steps in which all others waited longer than it, */
    int64_t steps;    /* of so many */
} hy_rank_cost;

const char *hy_status_name(hy_status status);
const char *hy_phase_name(hy_phase phase); /* "warmup", "full", "predict", "correct" */
const char *hy_dtype_name(
    hy_dtype dtype); /* "fp32", "bf16", "fp16", "fp64", "i32", ..., "int8", "e4m3", "e5m2", "nf4" */
const char *hy_class_name(hy_class cls);   /* "weights", "master", ... */
const char *hy_place_name(hy_place place); /* "none", "device", "pinned", "host", "disk" */
const char *hy_memory_status_name(hy_memory_status status); /* "normal", "warning", ... */
size_t hy_dtype_size(hy_dtype dtype); /* bytes of one element; of nf4, of two */

#ifdef __cplusplus
}
#endif
#endif
