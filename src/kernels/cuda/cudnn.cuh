/* cudnn.cuh: NVIDIA's cuDNN, opened at run time, and graphs of its operations.
 *
 * cuDNN is not needed to build or to start: the library is searched for when a user requests it,
 * and the functions used are declared here. A graph consists of tensors and operations; its first
 * failure stays with it and later calls do nothing, so a graph is written as a list and checked
 * once, when it becomes a plan. Plans are made before step 0 and live as long as the backend. */
#pragma once

#include <pthread.h>

#include "kernels/cuda/cuda.cuh"

/* ---- facts of cuDNN 9's C API: numbers as its headers give them ------------------------------ */

typedef void *hy_cudnn_descriptor;

/* Status 0 is success. */
typedef struct hy_cudnn_functions {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    const char *(*error_string)(int status);
    int (*make)(int type, hy_cudnn_descriptor *out);
    int (*drop)(hy_cudnn_descriptor descriptor);
    int (*finalize)(hy_cudnn_descriptor descriptor);
    int (*set)(hy_cudnn_descriptor descriptor, int name, int type, int64_t count,
               const void *values);
    int (*get)(hy_cudnn_descriptor descriptor, int name, int type, int64_t asked, int64_t *count,
               void *values);
    int (*execute)(void *handle, hy_cudnn_descriptor plan, hy_cudnn_descriptor pack);
} hy_cudnn_functions;

/* Types of tensor elements. */
typedef enum hy_cudnn_type {
    HY_CUDNN_FLOAT = 0,
    HY_CUDNN_HALF = 2,
    HY_CUDNN_INT32 = 4,
    HY_CUDNN_BFLOAT16 = 9,
    HY_CUDNN_BOOLEAN = 11
} hy_cudnn_type;

/* Elementwise. SELECT takes x if the condition holds, otherwise b. */
typedef enum hy_cudnn_mode {
    HY_CUDNN_ADD = 0,
    HY_CUDNN_MUL = 1,
    HY_CUDNN_DIV = 6,
    HY_CUDNN_SUB = 9,
    HY_CUDNN_EXP = 13,
    HY_CUDNN_LOG = 15,
    HY_CUDNN_GREATER_EQUAL = 303,
    HY_CUDNN_INDEX = 501,
    HY_CUDNN_SELECT = 601
} hy_cudnn_mode;

typedef enum hy_cudnn_reduction { HY_CUDNN_SUM = 0, HY_CUDNN_MAX = 3 } hy_cudnn_reduction;

/* ---- the library ----------------------------------------------------------------------------- */

typedef struct hy_cudnn {
    void *library, *handle;
    hy_cudnn_functions call;
    int version;          /* 91900 is 9.19.0 */
    pthread_mutex_t lock; /* for handle, which has one stream at a time, and for plans */
    struct hy_cudnn_attention *plans; /* attention_cudnn.cu */
} hy_cudnn;

/* Opens the library for the current device. On failure returns HY_ERR_DEVICE, and `why` says what
 * is missing. */
hy_status hy_cudnn_create(hy_cudnn **out, char *why, size_t why_bytes);
void hy_cudnn_destroy(hy_cudnn *cudnn);

/* ---- graphs ---------------------------------------------------------------------------------- */

#define HY_CUDNN_DESCRIPTORS 192
#define HY_CUDNN_OPERATIONS 48

typedef struct hy_cudnn_graph {
    hy_cudnn *cudnn;
    hy_cudnn_descriptor made[HY_CUDNN_DESCRIPTORS]; /* everything that must be destroyed */
    hy_cudnn_descriptor operations[HY_CUDNN_OPERATIONS];
    int made_count, operation_count, status;
    const char *making, *failed; /* the current step, and the step that failed */
    int64_t next_id;             /* for internal tensors */
} hy_cudnn_graph;

/* Four dimensions, as attention has them: batch, head, row, column. */
typedef struct hy_cudnn_shape {
    int64_t size[4], stride[4];
} hy_cudnn_shape;

/* Rows one after another. */
hy_cudnn_shape hy_cudnn_packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns);
hy_cudnn_shape hy_cudnn_transposed(hy_cudnn_shape shape);

void hy_cudnn_graph_init(hy_cudnn_graph *g, hy_cudnn *cudnn);
void hy_cudnn_graph_fini(hy_cudnn_graph *g);

/* A tensor bound by its id when the plan runs (ids up to 99), a number bound likewise (host memory,
 * fp32), and an internal tensor. Data must be aligned to 16 bytes. */
hy_cudnn_descriptor hy_cudnn_tensor(hy_cudnn_graph *g, int64_t id, hy_cudnn_type type,
                                    hy_cudnn_shape shape);
hy_cudnn_descriptor hy_cudnn_number(hy_cudnn_graph *g, int64_t id);
hy_cudnn_descriptor hy_cudnn_inside(hy_cudnn_graph *g, hy_cudnn_type type, hy_cudnn_shape shape);

void hy_cudnn_matmul(hy_cudnn_graph *g, hy_cudnn_descriptor a, hy_cudnn_descriptor b,
                     hy_cudnn_descriptor c);
/* y = mode(x, b); b NULL: y = mode(x). */
void hy_cudnn_pointwise(hy_cudnn_graph *g, hy_cudnn_mode mode, hy_cudnn_descriptor x,
                        hy_cudnn_descriptor b, hy_cudnn_descriptor y);
/* y = x where row >= column, b elsewhere. */
void hy_cudnn_causal(hy_cudnn_graph *g, hy_cudnn_shape shape, hy_cudnn_descriptor x,
                     hy_cudnn_descriptor b, hy_cudnn_descriptor y);
/* Over the dimensions in which y has size 1, or fewer heads. */
void hy_cudnn_reduce(hy_cudnn_graph *g, hy_cudnn_reduction operation, hy_cudnn_descriptor x,
                     hy_cudnn_descriptor y);
void hy_cudnn_reshape(hy_cudnn_graph *g, hy_cudnn_descriptor x, hy_cudnn_descriptor y);

/* The best plan that cuDNN knows, without engines that it marks as not deterministic; NULL: there
 * is none, and g->failed says why. Owned by the graph. */
hy_cudnn_descriptor hy_cudnn_plan(hy_cudnn_graph *g, size_t *workspace_bytes);

/* Runs a plan. The handle's lock must be held. Returns cuDNN's status. */
int hy_cudnn_run(hy_cudnn *cudnn, hy_cudnn_descriptor plan, int count, const int64_t *ids,
                 void *const *data, void *workspace, cudaStream_t stream);
