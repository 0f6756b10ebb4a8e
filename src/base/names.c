/* names.c: the names of the shared enumerations, for files and the screen. */
#include "hybrid_types.h"

#define NAME_OF(table, value)                                                                      \
    ((size_t)(value) < sizeof(table) / sizeof(table)[0] ? (table)[(size_t)(value)] : "?")

static const char *const status_names[] = {"ok",       "wrong input",    "out of memory",
                                           "i/o",      "device",         "numeric",
                                           "sequence", "internal error", "stopped"};
static const char *const phase_names[] = {"warmup",   "full",      "predict", "correct",
                                          "evaluate", "reference", "rollout"};
static const char *const dtype_names[] = {"fp32", "bf16", "fp16", "fp64", "i32", "u16",
                                          "u8",   "int8", "e4m3", "e5m2", "nf4"};
static const size_t dtype_sizes[] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 1, 1};
static const char *const class_names[] = {"weights",   "master",   "grads",       "optim",
                                          "predictor", "snapshot", "activations", "logits",
                                          "workspace", "quants",   "data"};
static const char *const place_names[] = {"none", "device", "pinned", "host", "disk"};
static const char *const memory_names[] = {"normal", "warning", "critical", "emergency"};

const char *hy_status_name(hy_status status) { return NAME_OF(status_names, status); }
const char *hy_phase_name(hy_phase phase) { return NAME_OF(phase_names, phase); }
const char *hy_dtype_name(hy_dtype dtype) { return NAME_OF(dtype_names, dtype); }
const char *hy_class_name(hy_class cls) { return NAME_OF(class_names, cls); }
const char *hy_place_name(hy_place place) { return NAME_OF(place_names, place); }
const char *hy_memory_status_name(hy_memory_status status) { return NAME_OF(memory_names, status); }

size_t hy_dtype_size(hy_dtype dtype) {
    return (size_t)dtype < HY_DTYPE_COUNT ? dtype_sizes[(size_t)dtype] : 0;
}
