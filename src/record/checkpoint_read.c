/* checkpoint_read.c: finds and reads a checkpoint, its configuration, or only its weights. See
 * state_files.h.
 *
 * Names, shapes and types are checked against this run's model before the first tensor is
 * loaded. A run in bf16 can resume a checkpoint in fp32 and the reverse: numbers are converted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "base/text.h"
#include "config/config_file.h"
#include "formats/checkpoint.h"
#include "hub/hf_load.h"
#include "kernels/coded.h"
#include "model/coding.h"
#include "record/state_files.h"

hy_status hy_checkpoint_find(const hy_observer *observer, const char *from,
                             char path[HY_PATH_MAX]) {
    HY_FAIL_IF(!hy_path_is_dir(from), HY_ERR_INPUT, "%s is not a checkpoint folder or a run folder",
               from);
    HY_TRY(hy_path_join(path, HY_PATH_MAX, from, "manifest.json"));
    if (hy_path_exists(path)) {
        HY_TRY(hy_path_join(path, HY_PATH_MAX, "", from));
        return hy_checkpoint_verify(path, true);
    }
    hy_text notes = {0};
    int64_t step;
    hy_status status = hy_checkpoint_latest(from, path, HY_PATH_MAX, &step, &notes);
    if (notes.size) hy_say_to(observer, HY_WARNING, "%s", hy_text_string(&notes));
    hy_text_free(&notes);
    return status;
}

/* Whether these scales are computed here, because the file stores the tensor in another type. */
static bool is_made(const hy_safetensors *file, const hy_state_tensor *tensor) {
    if (!tensor->is_scale) return false;
    char codes[HY_STATE_NAME_MAX];
    snprintf(codes, sizeof codes, "%.*s", (int)(strlen(tensor->name) - strlen(".scale")),
             tensor->name);
    const hy_safetensors_entry *entry = hy_safetensors_find(file, codes);
    return entry && entry->dtype != tensor->codes;
}

/* A scalar may have one dimension or none: earlier versions wrote (1) for both. Quantised values
 * are stored in rows. */
static bool has_shape_of(const hy_safetensors_entry *entry, const hy_state_tensor *tensor) {
    if (entry->ndim == 0 && hy_is_coded(entry->dtype)) return false;
    bool is_number = tensor->count == 1 && tensor->ndim <= 1 && entry->ndim <= 1;
    if (is_number) return entry->ndim == 0 || entry->shape[0] == 1;
    return entry->ndim == tensor->ndim &&
           memcmp(entry->shape, tensor->shape, (size_t)entry->ndim * sizeof *entry->shape) == 0;
}

static hy_status check_tensor(const char *path, const hy_safetensors *file,
                              const hy_state_tensor *tensor) {
    const hy_safetensors_entry *entry = hy_safetensors_find(file, tensor->name);
    HY_FAIL_IF(!entry, HY_ERR_INPUT, "%s is a checkpoint of another model: it has no tensor %s",
               path, tensor->name);
    HY_FAIL_IF(!has_shape_of(entry, tensor), HY_ERR_INPUT,
               "%s is a checkpoint of another model: the shape of %s is %s, in this model %s", path,
               tensor->name, hy_dims_to_text(entry->shape, entry->ndim).text,
               hy_dims_to_text(tensor->shape, tensor->ndim).text);
    /* Quantised values in a file are stored with their scales. */
    hy_dtype from = entry->dtype, to = tensor->dtype;
    bool is_number = hy_is_real(from) || (hy_is_coded(from) && hy_scales_of(file, tensor->name));
    bool is_convertible = is_number && (hy_is_real(to) || hy_is_coded(to));
    HY_FAIL_IF(from != to && !is_convertible, HY_ERR_INPUT, "%s: %s is %s, expected %s", path,
               tensor->name, hy_dtype_name(from), hy_dtype_name(to));
    return HY_OK;
}

/* The first tensor of the file that this model does not have; NULL: there is none. */
static const char *first_unknown(const hy_engine *e, const char *file, const hy_safetensors *st) {
    const char *name = NULL;
    size_t count = hy_safetensors_count(st);
    bool *is_known = calloc(count, sizeof *is_known);
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    while (is_known && hy_state_next(e, &cursor, &tensor)) {
        const hy_safetensors_entry *entry = hy_safetensors_find(st, tensor.name);
        if (entry) is_known[entry - hy_safetensors_at(st, 0)] = true;
    }
    for (size_t i = 0; is_known && i < count && !name; i++)
        if (!is_known[i]) name = hy_safetensors_at(st, i)->name;
    free(is_known);
    return name;
}

/* ---- config.cfg ------------------------------------------------------------------------------ */

static hy_status take_value(void *user, const char *key, const char *value, unsigned line) {
    hy_saved_config *c = user;
    (void)line;
    char *name = strcmp(key, "model") == 0          ? c->model
                 : strcmp(key, "lora.adapter") == 0 ? c->adapter
                                                    : NULL;
    if (!name) return hy_config_set(c->config, key, value, HY_FROM_FILE);
    snprintf(name, HY_TEXT_MAX, "%s", value);
    return HY_OK;
}

hy_status hy_checkpoint_read_config(const char *checkpoint, hy_saved_config *out) {
    char path[HY_PATH_MAX], *text;
    size_t size;
    *out = (hy_saved_config){0};
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, "config.cfg"));
    HY_TRY(hy_file_read(path, &text, &size));
    hy_status status = hy_config_create(&out->config);
    if (status == HY_OK) status = hy_config_file_read(text, size, path, take_value, out);
    free(text);
    if (status != HY_OK) hy_saved_config_free(out);
    return status;
}

void hy_saved_config_free(hy_saved_config *saved) {
    hy_config_destroy(saved->config);
    *saved = (hy_saved_config){0};
}

/* ---- checking -------------------------------------------------------------------------------- */

#define ADAPTER ".lora_" /* in names */

/* A model with adapters can load weights without adapters, and a model that reads its base from
 * files can load adapters alone. Missing tensors keep their values. */
static bool is_left_out(const hy_engine *e, const hy_safetensors *st,
                        const hy_state_tensor *tensor) {
    bool is_adapter = strstr(tensor->name, ADAPTER) != NULL;
    return e->model->shape.adapter.rank > 0 && is_adapter != e->base_is_named &&
           !hy_safetensors_find(st, tensor->name);
}

static bool has_adapters(const hy_safetensors *st) {
    for (size_t i = 0; i < hy_safetensors_count(st); i++)
        if (strstr(hy_safetensors_at(st, i)->name, ADAPTER)) return true;
    return false;
}

static hy_status look_at_names(const char *path, bool *is_adapted, bool *is_whole) {
    /* Besides adapters, a run may train some parameters whole, but hardly all of these. */
    static const char *const names[] = {"embed.tokens.weight",      "blocks.0.norm1.weight",
                                        "blocks.0.attn.qkv.weight", "blocks.0.attn.out.weight",
                                        "blocks.0.mlp.down.weight", "final_norm.weight"};
    char file[HY_PATH_MAX];
    hy_safetensors *st;
    HY_TRY(hy_path_join(file, sizeof file, path, "weights.safetensors"));
    HY_TRY(hy_safetensors_open(file, &st));
    *is_adapted = has_adapters(st);
    *is_whole = true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        *is_whole &= hy_safetensors_find(st, names[i]) != NULL;
    hy_safetensors_close(st);
    return HY_OK;
}

hy_status hy_checkpoint_has_adapters(const char *path, bool *out) {
    bool is_whole;
    return look_at_names(path, out, &is_whole);
}

/* For checkpoints without this field, which is newer than they are: their tensor names decide. */
static hy_status looks_baseless(const char *path, bool *out) {
    bool is_adapted, is_whole;
    HY_TRY(look_at_names(path, &is_adapted, &is_whole));
    *out = is_adapted && !is_whole;
    return HY_OK;
}

hy_status hy_checkpoint_lacks_base(const char *path, bool *out) {
    char file[HY_PATH_MAX];
    hy_json *json;
    HY_TRY(hy_path_join(file, sizeof file, path, "trainer.json"));
    if (!hy_path_exists(file)) return looks_baseless(path, out); /* weights alone */
    HY_TRY(hy_json_read_file(file, &json));
    bool is_known = hy_json_as_bool(hy_json_get(hy_json_root(json), HY_LACKS_BASE), out);
    hy_json_free(json);
    return is_known ? HY_OK : looks_baseless(path, out);
}

static hy_status check_file(const hy_engine *e, const char *file, const char *path,
                            const hy_safetensors *st) {
    size_t expected = 0;
    bool is_plain = e->model->shape.adapter.rank == 0 && hy_model_has_passes(e->model);
    HY_FAIL_IF(is_plain && has_adapters(st), HY_ERR_INPUT,
               "%s is a checkpoint of a run that trains adapters; merge them into a model first "
               "(hybrid-export --merge), or continue training the adapters (lora)",
               path);
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    while (hy_state_next(e, &cursor, &tensor)) {
        if (is_made(st, &tensor) || is_left_out(e, st, &tensor)) continue;
        HY_TRY(check_tensor(path, st, &tensor));
        hy_dtype theirs = hy_safetensors_find(st, tensor.name)->dtype;
        /* quantised values in another type than ours come with their scales */
        expected += hy_is_coded(theirs) && theirs != tensor.dtype ? 2 : 1;
    }
    if (hy_safetensors_count(st) == expected) return HY_OK;
    const char *other = first_unknown(e, file, st);
    return hy_fail(
        HY_ERR_INPUT,
        "%s is a checkpoint of another model: it has %zu tensors, this model has %zu%s%s", path,
        hy_safetensors_count(st), expected, other ? "; this model does not have " : "",
        other ? other : "");
}

/* ---- loading --------------------------------------------------------------------------------- */

#define CHUNK_ELEMENTS (HY_STATE_STAGING / sizeof(float)) /* read and converted at a time */

static const hy_safetensors_entry *sum_of(const hy_safetensors *file, const char *name) {
    char tail[HY_STATE_NAME_MAX];
    snprintf(tail, sizeof tail, "tail.%.*s", (int)(sizeof tail - sizeof "tail."), name);
    return hy_safetensors_find(file, tail);
}

const hy_safetensors_entry *hy_scales_of(const hy_safetensors *file, const char *name) {
    char scales[HY_STATE_NAME_MAX];
    snprintf(scales, sizeof scales, "%.*s.scale", (int)(sizeof scales - sizeof ".scale"), name);
    return hy_safetensors_find(file, scales);
}

/* Writes the scales of blocks [first, first + count) of a quantised parameter to `out` as fp32.
 * `out` needs room for the file's bytes after them. Two-level scales are stored complete, with
 * their padding. */
static hy_status read_scales(const hy_safetensors *file, const hy_safetensors_entry *entry,
                             const hy_param *param, int64_t first, int64_t count, float *out) {
    const hy_safetensors_entry *scales = hy_scales_of(file, entry->name);
    int64_t blocks = param->count / hy_param_block(param, entry->dtype);
    bool is_plain = scales->dtype == HY_F32; /* those of two levels are bytes */
    int32_t group = is_plain ? 0 : hy_param_group(param, entry->dtype);
    hy_scale_span span = hy_coded_span(blocks, group, first, count);
    char *held = (char *)(out + count);
    if (span.pairs_bytes > 0)
        HY_TRY(hy_safetensors_read(file, scales, span.pairs_at, held, span.pairs_bytes));
    HY_TRY(
        hy_safetensors_read(file, scales, span.rest_at, held + span.pairs_bytes, span.rest_bytes));
    hy_coded_open_scales(group, first, count, held, out);
    return HY_OK;
}

hy_status hy_read_floats(const hy_safetensors *file, const hy_safetensors_entry *entry,
                         const hy_param *param, int64_t first, int64_t count, float *out,
                         char *raw) {
    uint64_t bytes = hy_dtype_bytes(entry->dtype, count);
    HY_TRY(hy_safetensors_read(file, entry, hy_dtype_bytes(entry->dtype, first), raw, bytes));
    if (!hy_is_coded(entry->dtype)) {
        hy_convert(raw, entry->dtype, count, out, HY_F32);
        return HY_OK;
    }
    int32_t block = hy_param_block(param, entry->dtype);
    HY_FAIL_IF(block == 0, HY_ERR_INPUT,
               "%s is stored as %s, which does not support rows of %lld elements", entry->name,
               hy_dtype_name(entry->dtype), (long long)param->shape[1]);
    int64_t skipped = first / block, blocks = (first + count - 1) / block - skipped + 1;
    float *scales = (float *)(void *)(raw + hy_align(bytes));
    HY_TRY(read_scales(file, entry, param, skipped, blocks, scales));
    hy_coded_decode(entry->dtype, raw, first, count, block, scales, out);
    return HY_OK;
}

/* A file to read, and the sum that averages are computed from instead of its tensors, or NULL. */
typedef struct state_source {
    const hy_safetensors *file, *sum;
    double scale;
} state_source;

/* Elements [first, first + count) of a tensor or of its average as fp32; `raw` as in
 * hy_read_floats. */
static hy_status read_numbers(const state_source *from, const hy_state_tensor *tensor,
                              const hy_param *param, int64_t first, int64_t count, float *out,
                              char *raw) {
    const hy_safetensors_entry *sum = from->sum ? sum_of(from->sum, tensor->name) : NULL;
    if (!sum) {
        const hy_safetensors_entry *entry = hy_safetensors_find(from->file, tensor->name);
        return hy_read_floats(from->file, entry, param, first, count, out, raw);
    }
    HY_TRY(hy_read_floats(from->sum, sum, param, first, count, out, raw));
    for (int64_t i = 0; i < count; i++) out[i] = (float)(out[i] * from->scale);
    return HY_OK;
}

/* Elements [first, first + count) in the type of the store, at `raw`. Elements missing in the
 * file are zero. */
static hy_status read_part(const state_source *from, const hy_state_tensor *tensor,
                           const hy_param *param, int64_t first, int64_t count, float *numbers,
                           char *raw) {
    const hy_safetensors_entry *entry = hy_safetensors_find(from->file, tensor->name);
    bool has_sum = from->sum && sum_of(from->sum, tensor->name);
    int64_t held = first < tensor->count ? tensor->count - first : 0;
    if (held > count) held = count;
    uint64_t begin = hy_dtype_bytes(tensor->dtype, held);
    if (held > 0 && !has_sum && entry->dtype == tensor->dtype) {
        HY_TRY(hy_safetensors_read(from->file, entry, hy_dtype_bytes(tensor->dtype, first), raw,
                                   begin));
    } else if (held > 0) {
        HY_TRY(read_numbers(from, tensor, param, first, held, numbers, raw));
        hy_convert(numbers, HY_F32, held, raw, tensor->dtype);
    }
    memset(raw + begin, tensor->zero, hy_dtype_bytes(tensor->dtype, count) - begin);
    return HY_OK;
}

/* Elements from file to store. */
static hy_status load_elements(hy_engine *e, const state_source *from,
                               const hy_state_tensor *tensor, char *staging) {
    const hy_param *param = &e->model->params.list[tensor->param];
    float *numbers = (float *)(void *)staging;
    char *raw = staging + HY_STATE_STAGING;
    for (int64_t first = 0, count; first < tensor->in_memory; first += count) {
        int64_t left = tensor->in_memory - first;
        count = left < (int64_t)CHUNK_ELEMENTS ? left : (int64_t)CHUNK_ELEMENTS;
        uint64_t offset;
        hy_store *store = hy_store_of(e, tensor->row);
        if (!hy_state_find(e, tensor, first, &count, &offset)) continue;
        uint64_t bytes = hy_dtype_bytes(tensor->dtype, count), own_offset = offset, own = bytes;
        if (!hy_store_clip(store, &own_offset, &own)) continue; /* another rank holds them */
        HY_TRY(read_part(from, tensor, param, first, count, numbers, raw));
        HY_TRY(hy_store_write(store, e->device.compute, offset, raw, bytes));
    }
    return HY_OK;
}

/* A tensor that is being quantised; `raw` as in hy_read_floats. */
typedef struct coded_tensor {
    const state_source *from;
    const hy_state_tensor *tensor;
    const hy_param *param;
    char *raw;
} coded_tensor;

static hy_status read_coded(void *context, int64_t first, int64_t count, float *out) {
    const coded_tensor *c = context;
    int64_t most = (int64_t)CHUNK_ELEMENTS;
    for (int64_t at = 0, some; at < count; at += some) {
        some = count - at < most ? count - at : most;
        HY_TRY(read_numbers(c->from, c->tensor, c->param, first + at, some, out + at, c->raw));
    }
    return HY_OK;
}

/* Quantises numbers of the file and computes their scales. */
static hy_status load_as_codes(hy_engine *e, const state_source *from,
                               const hy_state_tensor *tensor, char *staging) {
    hy_coding_target to = {
        .store = hy_store_of(e, tensor->row), .stream = e->device.compute, .item = tensor->item};
    if (!hy_store_has_item(to.store, to.item)) return HY_OK; /* another rank's */
    const hy_param *param = &e->model->params.list[tensor->param];
    coded_tensor coded = {from, tensor, param, staging};
    return hy_coding_run(param, &to.store->layout.items[to.item],
                         &(hy_coding_source){&coded, read_coded, 1}, &to);
}

static hy_status load_tensors(hy_engine *e, const char *file, const state_source *from) {
    /* fp32 numbers, and the bytes of file and store */
    char *staging = malloc(2 * HY_STATE_STAGING);
    if (!staging) return hy_fail(HY_ERR_MEMORY, "not enough memory to stage a checkpoint");
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    hy_status status = HY_OK;
    while (status == HY_OK && hy_state_next(e, &cursor, &tensor)) {
        hy_row_changed(e->state, tensor.row);
        if (is_made(from->file, &tensor) || is_left_out(e, from->file, &tensor)) continue;
        hy_dtype theirs = hy_safetensors_find(from->file, tensor.name)->dtype;
        bool becomes_coded = hy_is_coded(tensor.dtype) && theirs != tensor.dtype;
        status = becomes_coded ? load_as_codes(e, from, &tensor, staging)
                               : load_elements(e, from, &tensor, staging);
    }
    free(staging);
    for (int row = 0; row < HY_ROW_COUNT && status == HY_OK; row++)
        status = hy_store_settle(hy_store_of(e, row)); /* rows on disk already have their data */
    return status;
}

/* Checks a file; with a source also loads it. */
static hy_status read_state_file(hy_engine *e, const char *file, const char *folder,
                                 state_source *from) {
    char path[HY_PATH_MAX];
    hy_safetensors *st;
    HY_TRY(hy_path_join(path, sizeof path, folder, file));
    HY_TRY(hy_safetensors_open(path, &st));
    hy_status status = check_file(e, file, path, st);
    if (from) from->file = st;
    if (status == HY_OK && from) status = load_tensors(e, file, from);
    hy_safetensors_close(st);
    return status;
}

hy_status hy_checkpoint_read_weights(hy_engine *e, const char *path) {
    return read_state_file(e, e->state->rows->row[HY_ROW_MASTER].kind->file, path,
                           &(state_source){0});
}

hy_status hy_checkpoint_must_be_ours(const hy_json_node *progress, const char *path) {
    bool is_own = false;
    (void)hy_json_as_bool(hy_json_get(progress, "own"), &is_own);
    HY_FAIL_IF(is_own, HY_ERR_INPUT,
               "%s is a checkpoint of a custom model or loop: only the program that wrote it can "
               "resume it or use it; weights.safetensors holds its parameters by name",
               path);
    return HY_OK;
}

hy_status hy_checkpoint_open_sum(const char *path, hy_safetensors **sum, double *scale) {
    char file[HY_PATH_MAX];
    int64_t samples; /* number of weights in the sum; 0: there is no sum */
    hy_json *json;
    *sum = NULL;
    HY_TRY(hy_path_join(file, sizeof file, path, "trainer.json"));
    HY_TRY(hy_json_read_file(file, &json));
    hy_status status = hy_checkpoint_must_be_ours(hy_json_root(json), path);
    if (status == HY_OK) status = hy_json_int(json, hy_json_root(json), "tail_samples", &samples);
    hy_json_free(json);
    HY_TRY(status);
    if (samples == 0) return HY_OK;
    *scale = 1.0 / (double)samples;
    HY_TRY(hy_path_join(file, sizeof file, path, "predictor.safetensors"));
    return hy_safetensors_open(file, sum);
}

/* Frozen parameters have no average. */
static hy_status check_sums(const hy_engine *e, const char *path, const hy_safetensors *sum) {
    hy_state_cursor cursor = {.file = e->state->rows->row[HY_ROW_MASTER].kind->file};
    hy_state_tensor tensor;
    while (hy_state_next(e, &cursor, &tensor)) {
        const hy_safetensors_entry *entry = sum_of(sum, tensor.name);
        if (!entry) continue;
        HY_FAIL_IF(!has_shape_of(entry, &tensor) || !hy_is_real(entry->dtype), HY_ERR_INPUT,
                   "%s: the average of %s has shape %s and dtype %s, expected %s", path,
                   tensor.name, hy_dims_to_text(entry->shape, entry->ndim).text,
                   hy_dtype_name(entry->dtype), hy_dims_to_text(tensor.shape, tensor.ndim).text);
    }
    return HY_OK;
}

hy_status hy_checkpoint_read_model(hy_engine *e, const char *path) {
    hy_safetensors *sum;
    state_source from = {0};
    HY_TRY(hy_checkpoint_open_sum(path, &sum, &from.scale));
    from.sum = sum;
    hy_status status = sum ? check_sums(e, path, sum) : HY_OK;
    if (status == HY_OK)
        status = read_state_file(e, e->state->rows->row[HY_ROW_MASTER].kind->file, path, &from);
    hy_safetensors_close(sum);
    return status;
}

/* All files are checked before the first is loaded: a refused checkpoint changes nothing. */
hy_status hy_checkpoint_read_rows(hy_engine *e, const char *path) {
    const char *files[HY_STATE_FILES_MAX];
    int count = hy_state_files(e, files);
    for (int i = 0; i < count; i++) HY_TRY(read_state_file(e, files[i], path, NULL));
    for (int i = 0; i < count; i++) HY_TRY(read_state_file(e, files[i], path, &(state_source){0}));
    return HY_OK;
}

hy_status hy_checkpoint_read_algorithms(hy_engine *e, const char *path) {
    char file[HY_PATH_MAX], *text;
    size_t size;
    HY_TRY(hy_path_join(file, sizeof file, path, HY_ALGORITHMS_FILE));
    if (!e->device.backend->load_matmul_table || !hy_path_exists(file)) return HY_OK;
    HY_TRY(hy_file_read(file, &text, &size));
    hy_status status = e->device.backend->load_matmul_table(e->device.backend, text);
    free(text);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", file);
}
