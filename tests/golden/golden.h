/* golden.h: a golden file opened: the model it describes, its parameters and batch on a device.
 *
 * What a test of the model against PyTorch needs before it can compare anything. The model is built
 * from the file's metadata alone; memory that passes write into is filled with NaN first, so that a
 * value never written shows. Failures are Check failures. README.md tells what the files hold. */
#ifndef HY_TESTS_GOLDEN_H
#define HY_TESTS_GOLDEN_H

#include <stdarg.h>

#include "formats/safetensors.h"
#include "harness.h"
#include "kernels/half.h"
#include "model/model.h"
#include "optim/optimizer.h"

#ifndef HY_SOURCE_DIR
#define HY_SOURCE_DIR "." /* started in the repository's root */
#endif

/* ---- a golden file and the model it describes ------------------------------------------------ */

typedef struct golden {
    const char *name;
    hy_safetensors *file;
    hy_backend *backend;
    bool owns_backend;
    hy_dtype dtype; /* of weights and activations */
    hy_stream *stream;
    hy_model *model;
    hy_ledger ledger;
    hy_arena arena;
    hy_store weights, grads, m, v;
    hy_store master; /* fp32, where weights are not */
    int32_t batch, seq;
    int64_t counted; /* targets that are not -1 */
    /* on the device */
    int32_t *tokens, *targets; /* (B,T) */
    float *losses;             /* (B,T) */
    float *rope;               /* hy_shape_rope_tables */
    float *clip;               /* (2) */
    double *square_sum;        /* (1) */
    hy_tensor workspace;       /* of the optimizer */
} golden;

static inline const char *text_of(const golden *g, const char *key) {
    const char *value = hy_safetensors_metadata(g->file, key);
    ck_assert_msg(value != NULL, "%s: the metadata lacks %s", g->name, key);
    return value;
}

static inline int32_t int_of(const golden *g, const char *key) { return atoi(text_of(g, key)); }
static inline double double_of(const golden *g, const char *key) {
    return strtod(text_of(g, key), NULL);
}

static inline bool is_word(const golden *g, const char *key, const char *word) {
    return strcmp(text_of(g, key), word) == 0;
}

static inline hy_shape shape_of(const golden *g) {
    return (hy_shape){
        .layers = int_of(g, "layers"),
        .width = int_of(g, "width"),
        .heads = int_of(g, "heads"),
        .kv_heads = int_of(g, "kv_heads"),
        .head_size = int_of(g, "head_size"),
        .mlp_width = int_of(g, "mlp_width"),
        .vocab = int_of(g, "vocab"),
        .context = int_of(g, "context"),
        .is_rms = is_word(g, "norm", "rmsnorm"),
        .has_rope = is_word(g, "positions", "rope"),
        .is_gated = is_word(g, "activation", "swiglu"),
        .has_qkv_bias = is_word(g, "qkv_bias", "true"),
        .has_proj_bias = is_word(g, "proj_bias", "true"),
        .has_qk_norm = is_word(g, "qk_norm", "true"),
        .has_tied_head = is_word(g, "tied_head", "true"),
        .norm_eps = double_of(g, "norm_eps"),
        .rope_theta = double_of(g, "rope_theta"),
        .rope_scaling =
            is_word(g, "rope_scaling", "llama3") ? HY_ROPE_SCALED_LLAMA3 : HY_ROPE_UNSCALED,
        .rope_factor = double_of(g, "rope_factor"),
        .rope_low_freq = double_of(g, "rope_low_freq"),
        .rope_high_freq = double_of(g, "rope_high_freq"),
        .rope_original_context = int_of(g, "rope_original_context"),
        .sliding_window = int_of(g, "sliding_window"),
        .init_std = 0.02,
    };
}

static inline const hy_safetensors_entry *entry_of(const golden *g, const char *format, ...) {
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const hy_safetensors_entry *entry = hy_safetensors_find(g->file, name);
    ck_assert_msg(entry != NULL, "%s has no tensor %s", g->name, name);
    return entry;
}

/* The bytes of a tensor, to be freed. */
static inline void *bytes_of(const golden *g, const hy_safetensors_entry *entry) {
    void *data = malloc(entry->bytes);
    ck_assert_ptr_nonnull(data);
    must(hy_safetensors_read(g->file, entry, 0, data, entry->bytes));
    return data;
}

static inline void to_device(const golden *g, void *device, const void *host, size_t bytes) {
    must(g->backend->copy(g->stream, device, host, bytes));
    must(g->backend->stream_sync(g->stream));
}

static inline void *from_device(const golden *g, const void *device, size_t bytes) {
    void *host = malloc(bytes);
    ck_assert_ptr_nonnull(host);
    must(g->backend->copy(g->stream, host, device, bytes));
    must(g->backend->stream_sync(g->stream));
    return host;
}

/* Every byte 0xff: a NaN in any floating-point type, -1 in any integer. */
static inline void spoil(const golden *g, void *device, size_t bytes) {
    void *host = malloc(bytes);
    ck_assert_ptr_nonnull(host);
    memset(host, 0xff, bytes);
    to_device(g, device, host, bytes);
    free(host);
}

static inline const hy_param *param_at(const golden *g, int32_t index) {
    return &g->model->params.list[index];
}

/* The model has the file's parameters: these names, these shapes, no others. */
static inline void check_params(const golden *g) {
    size_t in_file = 0;
    for (size_t i = 0; i < hy_safetensors_count(g->file); i++) {
        in_file += strncmp(hy_safetensors_at(g->file, i)->name, "param.", 6) == 0;
    }
    ck_assert_uint_eq(in_file, (size_t)g->model->params.count);
    ck_assert_int_eq(g->model->params.elements, int_of(g, "parameters"));
    for (int32_t i = 0; i < g->model->params.count; i++) {
        const hy_param *param = param_at(g, i);
        const hy_safetensors_entry *entry = entry_of(g, "param.%s", param->name);
        ck_assert_int_eq(entry->dtype, HY_F32);
        ck_assert_int_eq(entry->ndim, param->ndim);
        for (int d = 0; d < param->ndim; d++) ck_assert_int_eq(entry->shape[d], param->shape[d]);
        ck_assert_int_eq(param->has_decay, param->ndim >= 2);
    }
}

/* Rounds to the type of weights on the way. */
static inline void to_device_narrow(const golden *g, void *device, const float *values,
                                    int64_t count) {
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    ck_assert_ptr_nonnull(narrow);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] = g->dtype == HY_BF16 ? hy_f32_to_bf16(values[i]) : hy_f32_to_f16(values[i]);
    }
    to_device(g, device, narrow, (size_t)count * sizeof *narrow);
    free(narrow);
}

static inline void load_params(golden *g) {
    for (int32_t i = 0; i < g->model->params.count; i++) {
        const hy_safetensors_entry *entry = entry_of(g, "param.%s", param_at(g, i)->name);
        float *values = bytes_of(g, entry);
        if (g->dtype == HY_F32) {
            to_device(g, hy_store_backing(&g->weights, i), values, entry->bytes);
        } else {
            to_device(g, hy_store_backing(&g->master, i), values, entry->bytes);
            to_device_narrow(g, hy_store_backing(&g->weights, i), values, param_at(g, i)->count);
        }
        free(values);
    }
}

static inline void *push(golden *g, hy_class cls, uint64_t bytes) {
    void *data = NULL;
    must(hy_arena_push(&g->arena, cls, bytes, &data));
    return data;
}

static inline size_t rope_bytes(const golden *g) {
    return (size_t)hy_shape_rope_floats(&g->model->shape, g->seq) * sizeof(float);
}

static inline void take_memory(golden *g) {
    hy_layout layout, weights;
    size_t rows = (size_t)g->batch * (size_t)g->seq;
    size_t rope = rope_bytes(g);
    must(hy_params_layout(&g->model->params, HY_SET_ALL, HY_F32, &layout));
    must(hy_params_layout(&g->model->params, HY_SET_ALL, g->dtype, &weights));
    hy_optimizer optimizer = {.kind = hy_optimizer_kind_of(HY_ADAMW)};
    uint64_t adamw = hy_optimizer_workspace(&optimizer, &g->model->params, g->backend, HY_F32);
    uint64_t bytes = 5 * hy_align(layout.bytes) + 3 * hy_align(4 * rows) + hy_align(rope) +
                     2 * HY_ALIGNMENT + hy_align(adamw);
    must(hy_arena_init(&g->arena, g->backend, &g->ledger, HY_DEVICE, bytes, "a golden model"));
    must(hy_store_init(&g->weights, &g->arena, HY_WEIGHTS, &weights));
    if (g->dtype != HY_F32) must(hy_store_init(&g->master, &g->arena, HY_MASTER, &layout));
    must(hy_store_init(&g->grads, &g->arena, HY_GRADS, &layout));
    must(hy_store_init(&g->m, &g->arena, HY_OPTIM, &layout));
    must(hy_store_init(&g->v, &g->arena, HY_OPTIM, &layout));
    hy_layout_fini(&layout);
    hy_layout_fini(&weights);
    g->tokens = push(g, HY_DATA, 4 * rows);
    g->targets = push(g, HY_DATA, 4 * rows);
    g->losses = push(g, HY_WORKSPACE, 4 * rows);
    g->rope = push(g, HY_WORKSPACE, rope);
    g->clip = push(g, HY_WORKSPACE, 2 * sizeof(float));
    g->square_sum = push(g, HY_WORKSPACE, sizeof(double));
    g->workspace = hy_tensor_1d(push(g, HY_WORKSPACE, adamw), HY_U8, (int64_t)adamw);
}

static inline void load_batch(golden *g) {
    size_t bytes = 4 * (size_t)g->batch * (size_t)g->seq;
    int32_t *values = bytes_of(g, entry_of(g, "tokens"));
    to_device(g, g->tokens, values, bytes);
    free(values);
    values = bytes_of(g, entry_of(g, "targets"));
    to_device(g, g->targets, values, bytes);
    for (int64_t i = 0; i < (int64_t)g->batch * g->seq; i++) g->counted += values[i] >= 0;
    ck_assert_int_lt(g->counted, (int64_t)g->batch * g->seq); /* some are ignored */
    free(values);
    if (!g->model->shape.has_rope) return;
    size_t rope = rope_bytes(g);
    float *table = malloc(rope);
    ck_assert_ptr_nonnull(table);
    hy_shape_rope_tables(&g->model->shape, g->seq, table);
    to_device(g, g->rope, table, rope);
    free(table);
}

/* Where the files are: in the sources, or below the folder a program was started in. */
static inline void golden_path(char path[1024], const char *name) {
    snprintf(path, 1024, "%s/tests/golden/%s.safetensors", HY_SOURCE_DIR, name);
    if (!hy_path_exists(path)) snprintf(path, 1024, "tests/golden/%s.safetensors", name);
}

static inline void open_golden_on(golden *g, const char *name, hy_backend *backend,
                                  hy_dtype dtype) {
    char path[1024];
    *g = (golden){.name = name, .backend = backend, .dtype = dtype};
    golden_path(path, name);
    must(hy_safetensors_open(path, &g->file));
    must(g->backend->stream_create(g->backend, "golden", &g->stream));
    hy_shape shape = shape_of(g);
    must(hy_model_create(&shape, &g->model));
    check_params(g);
    const hy_safetensors_entry *tokens = entry_of(g, "tokens");
    g->batch = (int32_t)tokens->shape[0];
    g->seq = (int32_t)tokens->shape[1];
    take_memory(g);
    load_batch(g);
    load_params(g);
}

static inline void open_golden(golden *g, const char *name) {
    hy_backend *backend;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &backend));
    open_golden_on(g, name, backend, HY_F32);
    g->owns_backend = true;
}

static inline void close_golden(golden *g) {
    hy_store_fini(&g->weights);
    hy_store_fini(&g->grads);
    hy_store_fini(&g->m);
    hy_store_fini(&g->v);
    hy_store_fini(&g->master);
    hy_arena_fini(&g->arena);
    hy_model_destroy(g->model);
    g->backend->stream_destroy(g->stream);
    if (g->owns_backend) g->backend->destroy(g->backend);
    hy_safetensors_close(g->file);
}

/* ---- a plan with its memory ------------------------------------------------------------------ */

typedef struct trial {
    golden *g;
    hy_batch_plan *plan;
    hy_arena arena;
} trial;

static inline void open_trial(trial *t, golden *g, int recompute, int32_t chunks,
                              bool is_training) {
    *t = (trial){.g = g};
    hy_batch_options options = {.batch = g->batch,
                                .seq = g->seq,
                                .chunks = chunks,
                                .dtype = g->dtype,
                                .grad_dtype = HY_F32,
                                .recompute = recompute,
                                .is_training = is_training};
    must(hy_batch_plan_create(g->model, g->backend, &options, &t->plan));
    const hy_batch_bytes *need = &t->plan->bytes;
    uint64_t bytes = hy_align(need->activations) + hy_align(need->workspace);
    must(hy_arena_init(&t->arena, g->backend, &g->ledger, HY_DEVICE, bytes, "a golden pass"));
    void *activations, *workspace;
    must(hy_arena_push(&t->arena, HY_ACTIVATIONS, need->activations, &activations));
    must(hy_arena_push(&t->arena, HY_WORKSPACE, need->workspace, &workspace));
    spoil(g, t->arena.data, bytes);
    hy_batch_plan_place(t->plan, activations, workspace);
}

static inline void close_trial(trial *t) {
    hy_arena_fini(&t->arena);
    hy_batch_plan_destroy(t->plan);
}

static inline hy_batch_input input_of(golden *g, double loss_scale, bool accumulate) {
    return (hy_batch_input){.stream = g->stream,
                            .weights = &g->weights,
                            .grads = &g->grads,
                            .tokens = g->tokens,
                            .targets = g->targets,
                            .rope = g->model->shape.has_rope ? g->rope : NULL,
                            .losses = g->losses,
                            .loss_scale = (float)loss_scale,
                            .accumulate = accumulate};
}

static inline void spoil_results(golden *g) {
    spoil(g, g->grads.data, g->grads.layout.bytes);
    spoil(g, g->losses, 4 * (size_t)g->batch * (size_t)g->seq);
}

/* Forward and backward of the mean loss. */
static inline void train(trial *t) {
    golden *g = t->g;
    spoil_results(g);
    hy_batch_input input = input_of(g, 1.0 / (double)g->counted, false);
    must(hy_batch_train(t->plan, &input));
    must(g->backend->stream_sync(g->stream));
}

static inline double mean_loss(const golden *g) {
    size_t rows = (size_t)g->batch * (size_t)g->seq;
    float *losses = from_device(g, g->losses, rows * sizeof(float));
    double sum = 0;
    for (size_t i = 0; i < rows; i++) sum += losses[i];
    free(losses);
    return sum / (double)g->counted;
}

#endif
