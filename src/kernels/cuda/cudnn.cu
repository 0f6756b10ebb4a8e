/* cudnn.cu: opens cuDNN and builds its graphs. See cudnn.cuh.
 *
 * cuDNN's graph interface consists of descriptors with numbered attributes. Everything created for
 * a graph is kept until the graph is destroyed, because plans refer to it. */
#include "kernels/cuda/cudnn.cuh"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

/* Numbers from the C API of cuDNN 9: kinds of descriptors (for an operation, the kind of its
 * description comes first), their attributes, and the types of attributes. */
static constexpr int TENSOR = 17, TENSOR_ALIGNMENT = 900, TENSOR_TYPE = 901, TENSOR_SIZES = 902,
                     TENSOR_STRIDES = 903, TENSOR_ID = 906, TENSOR_IS_VIRTUAL = 907,
                     TENSOR_IS_BY_VALUE = 908;
static constexpr int POINTWISE = 0, POINTWISE_MODE = 0, POINTWISE_PRECISION = 1, POINTWISE_AXIS = 9,
                     POINTWISE_OPERATION = 13, POINTWISE_DESCRIPTOR = 750, POINTWISE_X = 751,
                     POINTWISE_B = 752, POINTWISE_Y = 753, POINTWISE_CONDITION = 758;
static constexpr int MATMUL = 18, MATMUL_PRECISION = 1500, MATMUL_OPERATION = 19, MATMUL_A = 1520,
                     MATMUL_B = 1521, MATMUL_C = 1522, MATMUL_DESCRIPTOR = 1523;
static constexpr int REDUCTION = 21, REDUCTION_OPERATOR = 1600, REDUCTION_PRECISION = 1601,
                     REDUCTION_OPERATION = 22, REDUCTION_X = 1610, REDUCTION_Y = 1611,
                     REDUCTION_DESCRIPTOR = 1612;
static constexpr int RESHAPE_OPERATION = 31, RESHAPE_X = 2200, RESHAPE_Y = 2201;
static constexpr int OPERATION_GRAPH = 15, GRAPH_HANDLE = 800, GRAPH_OPERATIONS = 801;
static constexpr int ENGINE = 2, ENGINE_NOTES = 1303, ENGINE_CONFIG = 3, CONFIG_ENGINE = 300;
static constexpr int ENGINE_HEURISTIC = 4, HEURISTIC_MODE = 200, HEURISTIC_GRAPH = 201,
                     HEURISTIC_RESULTS = 202;
static constexpr int EXECUTION_PLAN = 5, PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402;
static constexpr int VARIANT_PACK = 16, PACK_IDS = 1000, PACK_POINTERS = 1001,
                     PACK_WORKSPACE = 1003;
static constexpr int OF_HANDLE = 0, OF_DATA_TYPE = 1, OF_BOOLEAN = 2, OF_INT64 = 3, OF_POINTER = 6,
                     OF_HEURISTIC_MODE = 8, OF_NOTE = 11, OF_POINTWISE_MODE = 14,
                     OF_DESCRIPTOR = 15, OF_REDUCTION = 18;
enum { HEURISTIC_FALLBACK = 2, HEURISTIC_BEST = 3 };
enum { NOTE_NONDETERMINISTIC = 4, NOTES = 10 };

/* 9.10.2: earlier versions need another number in place of minus infinity, and 9.10.0 and 9.10.1
 * are known to compute attention wrongly. */
enum { OLDEST = 91002 };

/* ---- the library ----------------------------------------------------------------------------- */

static bool open_library(hy_cudnn *c, char *why, size_t why_bytes) {
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cudnnGetVersion", &c->call.version},
        {"cudnnCreate", &c->call.create},
        {"cudnnDestroy", &c->call.destroy},
        {"cudnnSetStream", &c->call.set_stream},
        {"cudnnGetErrorString", &c->call.error_string},
        {"cudnnBackendCreateDescriptor", &c->call.make},
        {"cudnnBackendDestroyDescriptor", &c->call.drop},
        {"cudnnBackendFinalize", &c->call.finalize},
        {"cudnnBackendSetAttribute", &c->call.set},
        {"cudnnBackendGetAttribute", &c->call.get},
        {"cudnnBackendExecute", &c->call.execute},
    };
    /* A process may open several backends, one after another; the state of the library stays. */
    const int how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    c->library = dlopen("libcudnn.so.9", how);
    if (!c->library) {
        snprintf(why, why_bytes, "%s (LD_LIBRARY_PATH may name its folder)", dlerror());
        c->library = dlopen("libcudnn_graph.so.9", how);
    }
    if (!c->library) return false;
    for (const auto &function : wanted) {
        void *found = dlsym(c->library, function.name);
        memcpy(function.place, &found, sizeof found);
        if (found) continue;
        snprintf(why, why_bytes, "libcudnn.so.9 does not have %s", function.name);
        return false;
    }
    c->version = (int)c->call.version();
    if (c->version >= OLDEST) return true;
    snprintf(why, why_bytes, "cuDNN is %d.%d.%d, expected 9.10.2 or newer", c->version / 10000,
             c->version / 100 % 100, c->version % 100);
    return false;
}

hy_status hy_cudnn_create(hy_cudnn **out, char *why, size_t why_bytes) {
    *out = NULL;
    hy_cudnn *c = (hy_cudnn *)calloc(1, sizeof *c);
    if (!c) return HY_ERR_MEMORY;
    pthread_mutex_init(&c->lock, NULL);
    int status = 0;
    bool is_open = open_library(c, why, why_bytes);
    if (is_open) status = c->call.create(&c->handle);
    if (status != 0) {
        c->handle = NULL;
        snprintf(why, why_bytes, "cuDNN does not start: %s", c->call.error_string(status));
    }
    if (is_open && status == 0) {
        *out = c;
        return HY_OK;
    }
    hy_cudnn_destroy(c);
    return HY_ERR_DEVICE;
}

void hy_cudnn_destroy(hy_cudnn *c) {
    if (!c) return;
    if (c->handle) c->call.destroy(c->handle);
    if (c->library) dlclose(c->library);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- writing a graph ------------------------------------------------------------------------- */

hy_cudnn_shape hy_cudnn_packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    return {{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

hy_cudnn_shape hy_cudnn_transposed(hy_cudnn_shape s) {
    return {{s.size[0], s.size[1], s.size[3], s.size[2]},
            {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

void hy_cudnn_graph_init(hy_cudnn_graph *g, hy_cudnn *cudnn) {
    memset(g, 0, sizeof *g);
    g->cudnn = cudnn;
    g->next_id = 100;
}

void hy_cudnn_graph_fini(hy_cudnn_graph *g) {
    while (g->made_count > 0) g->cudnn->call.drop(g->made[--g->made_count]);
}

static void note(hy_cudnn_graph *g, int status, const char *what) {
    if (status == 0 || g->status != 0) return;
    g->status = status;
    g->failed = what;
}

static hy_cudnn_descriptor make(hy_cudnn_graph *g, int kind, const char *what) {
    hy_cudnn_descriptor made = NULL;
    g->making = what;
    if (g->made_count == HY_CUDNN_DESCRIPTORS) note(g, -1, "too many descriptors");
    if (g->status == 0) note(g, g->cudnn->call.make(kind, &made), what);
    if (g->status == 0) g->made[g->made_count++] = made;
    return made;
}

static void set(hy_cudnn_graph *g, hy_cudnn_descriptor d, int name, int type, int64_t count,
                const void *values) {
    if (g->status == 0) note(g, g->cudnn->call.set(d, name, type, count, values), g->making);
}

static void set_descriptor(hy_cudnn_graph *g, hy_cudnn_descriptor d, int name,
                           hy_cudnn_descriptor value) {
    set(g, d, name, OF_DESCRIPTOR, 1, &value);
}

static void set_type(hy_cudnn_graph *g, hy_cudnn_descriptor d, int name, int value) {
    set(g, d, name, OF_DATA_TYPE, 1, &value);
}

static void finish(hy_cudnn_graph *g, hy_cudnn_descriptor d) {
    if (g->status == 0) note(g, g->cudnn->call.finalize(d), g->making);
}

/* An operand of an operation: the number of its attribute, and its descriptor. */
typedef struct operand {
    int name;
    hy_cudnn_descriptor descriptor; /* NULL: omitted */
} operand;

static void add_operation(hy_cudnn_graph *g, int kind, std::initializer_list<operand> operands) {
    hy_cudnn_descriptor d = make(g, kind, g->making);
    for (const operand &o : operands) {
        if (o.descriptor) set_descriptor(g, d, o.name, o.descriptor);
    }
    finish(g, d);
    if (g->operation_count == HY_CUDNN_OPERATIONS) note(g, -1, "too many operations");
    if (g->status == 0) g->operations[g->operation_count++] = d;
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum place { OUTSIDE, INSIDE, BY_VALUE } place;

static hy_cudnn_descriptor tensor(hy_cudnn_graph *g, int64_t id, hy_cudnn_type type,
                                  const hy_cudnn_shape *shape, place where) {
    hy_cudnn_descriptor t = make(g, TENSOR, "a tensor");
    int64_t alignment = where == BY_VALUE ? 4 : 16;
    bool is_inside = where == INSIDE, is_by_value = where == BY_VALUE;
    set_type(g, t, TENSOR_TYPE, type);
    set(g, t, TENSOR_SIZES, OF_INT64, 4, shape->size);
    set(g, t, TENSOR_STRIDES, OF_INT64, 4, shape->stride);
    set(g, t, TENSOR_ID, OF_INT64, 1, &id);
    set(g, t, TENSOR_ALIGNMENT, OF_INT64, 1, &alignment);
    set(g, t, TENSOR_IS_VIRTUAL, OF_BOOLEAN, 1, &is_inside);
    set(g, t, TENSOR_IS_BY_VALUE, OF_BOOLEAN, 1, &is_by_value);
    finish(g, t);
    return t;
}

hy_cudnn_descriptor hy_cudnn_tensor(hy_cudnn_graph *g, int64_t id, hy_cudnn_type type,
                                    hy_cudnn_shape shape) {
    return tensor(g, id, type, &shape, OUTSIDE);
}

hy_cudnn_descriptor hy_cudnn_number(hy_cudnn_graph *g, int64_t id) {
    hy_cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(g, id, HY_CUDNN_FLOAT, &one, BY_VALUE);
}

hy_cudnn_descriptor hy_cudnn_inside(hy_cudnn_graph *g, hy_cudnn_type type, hy_cudnn_shape shape) {
    return tensor(g, g->next_id++, type, &shape, INSIDE);
}

/* ---- operations ------------------------------------------------------------------------------ */

void hy_cudnn_matmul(hy_cudnn_graph *g, hy_cudnn_descriptor a, hy_cudnn_descriptor b,
                     hy_cudnn_descriptor c) {
    hy_cudnn_descriptor how = make(g, MATMUL, "a matmul");
    set_type(g, how, MATMUL_PRECISION, HY_CUDNN_FLOAT);
    finish(g, how);
    add_operation(g, MATMUL_OPERATION,
                  {{MATMUL_A, a}, {MATMUL_B, b}, {MATMUL_C, c}, {MATMUL_DESCRIPTOR, how}});
}

typedef struct pointwise {
    int mode;
    hy_cudnn_type precision;
    int64_t axis; /* of an index; -1: none */
    hy_cudnn_descriptor x, b, condition, y;
} pointwise;

static void add_pointwise(hy_cudnn_graph *g, pointwise p) {
    hy_cudnn_descriptor how = make(g, POINTWISE, "an operation on elements");
    set(g, how, POINTWISE_MODE, OF_POINTWISE_MODE, 1, &p.mode);
    set_type(g, how, POINTWISE_PRECISION, p.precision);
    if (p.axis >= 0) set(g, how, POINTWISE_AXIS, OF_INT64, 1, &p.axis);
    finish(g, how);
    add_operation(g, POINTWISE_OPERATION,
                  {{POINTWISE_DESCRIPTOR, how},
                   {POINTWISE_X, p.x},
                   {POINTWISE_B, p.b},
                   {POINTWISE_CONDITION, p.condition},
                   {POINTWISE_Y, p.y}});
}

void hy_cudnn_pointwise(hy_cudnn_graph *g, hy_cudnn_mode mode, hy_cudnn_descriptor x,
                        hy_cudnn_descriptor b, hy_cudnn_descriptor y) {
    add_pointwise(g, {mode, HY_CUDNN_FLOAT, -1, x, b, NULL, y});
}

void hy_cudnn_causal(hy_cudnn_graph *g, hy_cudnn_shape shape, hy_cudnn_descriptor x,
                     hy_cudnn_descriptor b, hy_cudnn_descriptor y) {
    enum { ROW_AXIS = 2, COLUMN_AXIS = 3 };
    hy_cudnn_descriptor row = hy_cudnn_inside(g, HY_CUDNN_INT32, shape);
    hy_cudnn_descriptor column = hy_cudnn_inside(g, HY_CUDNN_INT32, shape);
    hy_cudnn_descriptor is_seen = hy_cudnn_inside(g, HY_CUDNN_BOOLEAN, shape);
    add_pointwise(g, {HY_CUDNN_INDEX, HY_CUDNN_FLOAT, ROW_AXIS, x, NULL, NULL, row});
    add_pointwise(g, {HY_CUDNN_INDEX, HY_CUDNN_FLOAT, COLUMN_AXIS, x, NULL, NULL, column});
    add_pointwise(g, {HY_CUDNN_GREATER_EQUAL, HY_CUDNN_BOOLEAN, -1, row, column, NULL, is_seen});
    add_pointwise(g, {HY_CUDNN_SELECT, HY_CUDNN_FLOAT, -1, x, b, is_seen, y});
}

void hy_cudnn_reduce(hy_cudnn_graph *g, hy_cudnn_reduction operation, hy_cudnn_descriptor x,
                     hy_cudnn_descriptor y) {
    hy_cudnn_descriptor how = make(g, REDUCTION, "a reduction");
    int value = operation;
    set(g, how, REDUCTION_OPERATOR, OF_REDUCTION, 1, &value);
    set_type(g, how, REDUCTION_PRECISION, HY_CUDNN_FLOAT);
    finish(g, how);
    add_operation(g, REDUCTION_OPERATION,
                  {{REDUCTION_X, x}, {REDUCTION_Y, y}, {REDUCTION_DESCRIPTOR, how}});
}

void hy_cudnn_reshape(hy_cudnn_graph *g, hy_cudnn_descriptor x, hy_cudnn_descriptor y) {
    g->making = "a reshape";
    add_operation(g, RESHAPE_OPERATION, {{RESHAPE_X, x}, {RESHAPE_Y, y}});
}

/* ---- plans ----------------------------------------------------------------------------------- */

#define CONFIGS 8

/* The configurations that cuDNN suggests, best first. A mode without suggestions is not a failure
 * of the graph. */
static int64_t list_configs(hy_cudnn_graph *g, hy_cudnn_descriptor graph, int mode,
                            hy_cudnn_descriptor configs[CONFIGS]) {
    int64_t count = 0;
    hy_cudnn_descriptor heuristic = make(g, ENGINE_HEURISTIC, "querying engines");
    set_descriptor(g, heuristic, HEURISTIC_GRAPH, graph);
    set(g, heuristic, HEURISTIC_MODE, OF_HEURISTIC_MODE, 1, &mode);
    for (int i = 0; i < CONFIGS; i++) configs[i] = make(g, ENGINE_CONFIG, g->making);
    if (g->status != 0 || g->cudnn->call.finalize(heuristic) != 0) return 0;
    int status =
        g->cudnn->call.get(heuristic, HEURISTIC_RESULTS, OF_DESCRIPTOR, CONFIGS, &count, configs);
    if (status != 0) return 0;
    return count < CONFIGS ? count : CONFIGS;
}

/* As far as cuDNN reports it. For attention it reports nothing; there the form of the graph
 * decides: attention_cudnn.cu. */
static bool is_deterministic(hy_cudnn_graph *g, hy_cudnn_descriptor config) {
    int notes[NOTES];
    int64_t count = 0;
    hy_cudnn_descriptor engine = make(g, ENGINE, "an engine");
    if (g->status != 0) return false;
    int status = g->cudnn->call.get(config, CONFIG_ENGINE, OF_DESCRIPTOR, 1, &count, &engine);
    if (status == 0) {
        status = g->cudnn->call.get(engine, ENGINE_NOTES, OF_NOTE, NOTES, &count, notes);
    }
    if (status != 0) return false;
    for (int64_t i = 0; i < count && i < NOTES; i++) {
        if (notes[i] == NOTE_NONDETERMINISTIC) return false;
    }
    return true;
}

static hy_cudnn_descriptor plan_of(hy_cudnn_graph *g, hy_cudnn_descriptor config, size_t *bytes) {
    int64_t workspace = 0, count = 0;
    hy_cudnn_descriptor plan = make(g, EXECUTION_PLAN, "a plan");
    set(g, plan, PLAN_HANDLE, OF_HANDLE, 1, &g->cudnn->handle);
    set_descriptor(g, plan, PLAN_CONFIG, config);
    if (g->status != 0 || g->cudnn->call.finalize(plan) != 0) return NULL;
    if (g->cudnn->call.get(plan, PLAN_WORKSPACE, OF_INT64, 1, &count, &workspace) != 0) return NULL;
    *bytes = (size_t)workspace;
    return plan;
}

hy_cudnn_descriptor hy_cudnn_plan(hy_cudnn_graph *g, size_t *workspace_bytes) {
    static const int modes[] = {HEURISTIC_BEST, HEURISTIC_FALLBACK};
    hy_cudnn_descriptor graph = make(g, OPERATION_GRAPH, "the graph"), configs[CONFIGS];
    set(g, graph, GRAPH_OPERATIONS, OF_DESCRIPTOR, g->operation_count, g->operations);
    set(g, graph, GRAPH_HANDLE, OF_HANDLE, 1, &g->cudnn->handle);
    finish(g, graph);
    for (int m = 0; m < 2; m++) {
        int64_t count = list_configs(g, graph, modes[m], configs);
        for (int64_t i = 0; i < count; i++) {
            hy_cudnn_descriptor plan =
                is_deterministic(g, configs[i]) ? plan_of(g, configs[i], workspace_bytes) : NULL;
            if (plan) return plan;
        }
    }
    note(g, -1, "the graph: no engine supports it");
    return NULL;
}

/* The variant pack is created for each run, because a finalised descriptor cannot be changed. */
int hy_cudnn_run(hy_cudnn *c, hy_cudnn_descriptor plan, int count, const int64_t *ids,
                 void *const *data, void *workspace, cudaStream_t stream) {
    hy_cudnn_descriptor pack = NULL;
    int status = c->call.make(VARIANT_PACK, &pack);
    if (status != 0) return status;
    status = c->call.set(pack, PACK_POINTERS, OF_POINTER, count, data);
    if (status == 0) status = c->call.set(pack, PACK_IDS, OF_INT64, count, ids);
    if (status == 0) status = c->call.set(pack, PACK_WORKSPACE, OF_POINTER, 1, &workspace);
    if (status == 0) status = c->call.finalize(pack);
    if (status == 0) status = c->call.set_stream(c->handle, stream);
    if (status == 0) status = c->call.execute(c->handle, plan, pack);
    c->call.drop(pack);
    return status;
}
