/* export.c: writes OUT/model at the end of a run. See export.h.
 *
 * Weights are read in chunks from their backing store, wherever it is. If the run averages its
 * last part, the average is written. */
#include "record/export.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "hub/gguf_export.h"
#include "hub/gguf_load.h"
#include "hub/hf_config.h"
#include "hub/hf_load.h"
#include "hub/merge.h"
#include "kernels/coded.h"
#include "setup/setup.h"
#include "tokenizer/tokenizer_llama2c.h"

enum { WIDEST = 4 }; /* bytes of an element, at most */

/* The tokenizer of the data if it is not in the model folder: a tokenizer that was named, or the
 * file of llama2.c. */
static hy_status find_tokenizer(const hy_settings *settings, hy_model_files kind,
                                hy_export_plan *out) {
    const char *asked = settings->input.tokenizer;
    bool is_auto = strcmp(asked, "auto") == 0;
    char folder[HY_PATH_MAX];
    if (!is_auto && strcmp(asked, "none") != 0) {
        HY_FAIL_IF(!hy_path_exists(asked), HY_ERR_INPUT,
                   "the model's tokenizer is missing: %s, the tokenizer of the training data, no "
                   "longer exists",
                   asked);
        return hy_path_join(out->tokenizer, sizeof out->tokenizer, "", asked);
    }
    if (!is_auto || kind != HY_FILES_LLAMA2C) return HY_OK;
    HY_TRY(hy_model_folder(settings, folder));
    return hy_llama2c_tokenizer_find(folder, (int32_t)settings->shape.vocab, out->tokenizer,
                                     sizeof out->tokenizer);
}

hy_status hy_export_prepare(const hy_settings *settings, hy_dtype_choice asked, hy_dtype held,
                            hy_export_plan *out) {
    const hy_kept_origin *kept = &settings->kept;
    hy_model_files kind = kept->kind;
    *out = (hy_export_plan){.dtype = hy_dtype_chosen(asked, held),
                            .has_dtype = asked != HY_DTYPE_AUTO,
                            .threads = (int)settings->threads};
    if (kept->folder[0]) {
        HY_TRY(hy_path_join(out->source, sizeof out->source, "", kept->folder));
        if (kind == HY_FILES_HF) out->prefix = kept->prefix; /* others have names of their own */
        hy_model_files found; /* it may be gone: the weights are in the run */
        if (hy_settings_base_files(settings, &found, out->weights) != HY_OK) out->weights[0] = 0;
    } else {
        HY_TRY(hy_settings_model_files(settings, &kind, out->source));
    }
    HY_TRY(find_tokenizer(settings, kind, out));
    if (kind != HY_FILES_HF && kind != HY_FILES_GGUF)
        out->source[0] = 0; /* there is only a weight file */
    if (asked != HY_DTYPE_AUTO || !out->source[0]) return HY_OK;
    hy_hf_config config;
    HY_TRY(hy_hf_config_read(out->source, &config));
    if (config.has_dtype) out->dtype = config.dtype;
    hy_hf_config_free(&config);
    return HY_OK;
}

hy_status hy_export_write(const hy_export_plan *plan, const hy_model *model,
                          hy_hf_writing writing) {
    writing.source = plan->source;
    writing.prefix = plan->prefix;
    writing.weights = plan->weights;
    writing.tokenizer = plan->tokenizer;
    /* What is not quantised has 16 bits in bitsandbytes. */
    bool is_coded = writing.type && !writing.is_gguf && !plan->has_dtype;
    writing.dtype = is_coded && plan->dtype == HY_F32 ? HY_BF16 : plan->dtype;
    writing.prompt = plan->prompt;
    writing.threads = plan->threads;
    writing.shape = &model->shape;
    writing.params = &model->params;
    return writing.is_gguf ? hy_gguf_write(&writing) : hy_hf_write(&writing);
}

/* The name of a file of another format would promise that format. */
static hy_status check_name(const char *out) {
    static const char *const endings[] = {".gguf", ".ggml", ".safetensors", ".bin", ".pt",
                                          ".pth",  ".ckpt", ".onnx",        ".zip", ".tar",
                                          ".gz",   ".tgz",  ".npz",         ".h5",  ".llamafile"};
    size_t end = strlen(out);
    while (end > 1 && out[end - 1] == '/') end--;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(endings[i]);
        if (end < length || strncasecmp(out + end - length, endings[i], length) != 0) continue;
        return hy_fail(HY_ERR_INPUT,
                       "%s looks like a %s file, but an export is a folder with config.json, "
                       "model.safetensors and the tokenizer: name a folder%s",
                       out, endings[i],
                       i < 2 ? ", or use --gguf FILE for a file of llama.cpp" : "");
    }
    return HY_OK;
}

static hy_status check_gguf(const hy_export_options *options) {
    const char *path = options->gguf;
    bool has_both = options->out && options->out[0];
    HY_FAIL_IF(!path[0], HY_ERR_INPUT, "the name of the output file is empty");
    HY_FAIL_IF(has_both, HY_ERR_INPUT,
               "--out writes a folder and --gguf writes a file; use one of them");
    HY_FAIL_IF(options->dtype, HY_ERR_INPUT,
               "--dtype is for folders; with --gguf, use --type, such as --type q4_k_m");
    HY_FAIL_IF(options->max_shard_size, HY_ERR_INPUT,
               "--max-shard-size is for folders; --gguf writes one file");
    if (options->type) HY_TRY(hy_gguf_check_type(options->type, false));
    HY_FAIL_IF(hy_path_is_dir(path), HY_ERR_INPUT,
               "%s is a folder; --gguf needs the name of a file, such as %s/model.gguf", path,
               path);
    HY_FAIL_IF(hy_path_exists(path) && !options->overwrite, HY_ERR_INPUT,
               "%s already exists; choose another file, or use --overwrite", path);
    return HY_OK;
}

hy_hf_writing hy_export_writing(const hy_export_request *request) {
    const hy_export_options *options = request->options;
    uint64_t most = options->max_shard_size;
    return (hy_hf_writing){.folder = options->gguf ? options->gguf : options->out,
                           .is_gguf = options->gguf,
                           .has_to_fit = true, /* a run tries it with what is left */
                           .type = options->type,
                           .shard_size = most ? most : HY_DEFAULT_SHARD,
                           .observer = request->observer,
                           .moments = request->moments};
}

hy_status hy_export_check_out(const hy_export_options *options) {
    if (options->gguf) return check_gguf(options);
    hy_hf_quant quant;
    HY_TRY(hy_hf_check_type(options->type, false, &quant));
    HY_FAIL_IF(!options->out || !options->out[0], HY_ERR_INPUT,
               "the name of the output folder is empty");
    HY_TRY(check_name(options->out));
    HY_FAIL_IF(hy_path_exists(options->out) && !options->overwrite, HY_ERR_INPUT,
               "%s already exists; choose another folder, or use --overwrite", options->out);
    return HY_OK;
}

hy_status hy_export_check_apart(const hy_export_request *request, const char *source) {
    const hy_export_options *o = request->options;
    const char *out = request->asked ? request->asked : o->gguf ? o->gguf : o->out;
    char target[PATH_MAX], from[PATH_MAX];
    if (!realpath(out, target) || !realpath(source, from)) return HY_OK; /* one is not there */
    bool is_inside = o->gguf && hy_path_is_file_below(out, source) && !hy_gguf_is_file(out);
    HY_FAIL_IF(is_inside || strcmp(target, from) == 0, HY_ERR_INPUT,
               "%s is %s the model or adapter that is exported, so it is not replaced; choose "
               "another name",
               out, is_inside ? "a file of" : "itself");
    return HY_OK;
}

hy_status hy_export_choose_dtype(const hy_export_options *options, hy_dtype_choice *out) {
    int dtype = HY_DTYPE_AUTO;
    HY_FAIL_IF(options->dtype && !hy_choice_value("model_dtype", options->dtype, &dtype),
               HY_ERR_INPUT, "dtype %.40s is not accepted; accepted: %s", options->dtype,
               hy_config_find("model_dtype")->accepted);
    *out = (hy_dtype_choice)dtype;
    return HY_OK;
}

void hy_export_base_name(const char *model, char out[HY_PATH_MAX]) {
    char path[PATH_MAX];
    bool is_path = !hy_builtin_text("model", model) && realpath(model, path);
    bool fits = is_path && strlen(path) < HY_PATH_MAX;
    bool is_known = fits || !hy_builtin_text("model", model); /* a preset has no weights */
    snprintf(out, HY_PATH_MAX, "%.*s", HY_PATH_MAX - 1, fits ? path : is_known ? model : "");
}

/* ---- out of a run ---------------------------------------------------------------------------- */

typedef struct run_reader {
    hy_engine *e;
    int row;      /* the weights, or their sum */
    double scale; /* 1, or 1 / (number of weights in the sum) */
    char *raw;    /* bytes as the store has them */
    int64_t room; /* elements that fit there */
} run_reader;

static hy_status read_coded(run_reader *r, hy_store *store, int32_t item, int64_t first,
                            int64_t count, float *out) {
    const hy_layout_item *entry = &store->layout.items[item];
    int64_t block = first / entry->block, blocks = (first + count - 1) / entry->block - block + 1;
    uint64_t at = hy_store_offset(store, item), bytes = hy_dtype_bytes(entry->dtype, count);
    float *scales = (float *)(void *)(r->raw + hy_align(bytes)); /* codes take a quarter, at most */
    char *held = (char *)(scales + blocks);
    int64_t all = hy_layout_scales(entry, entry->count);
    hy_scale_span span = hy_coded_span(all, entry->group, block, blocks);
    hy_stream *stream = r->e->device.compute;
    HY_TRY(hy_store_read(store, stream, at + hy_dtype_bytes(entry->dtype, first), r->raw, bytes));
    at += hy_layout_scales_at(entry);
    if (span.pairs_bytes > 0)
        HY_TRY(hy_store_read(store, stream, at + span.pairs_at, held, span.pairs_bytes));
    HY_TRY(
        hy_store_read(store, stream, at + span.rest_at, held + span.pairs_bytes, span.rest_bytes));
    hy_coded_open_scales(entry->group, block, blocks, held, scales);
    hy_coded_decode(entry->dtype, r->raw, first, count, entry->block, scales, out);
    return HY_OK;
}

static hy_status read_store(void *context, int32_t param, int64_t first, int64_t count,
                            float *out) {
    run_reader *r = context;
    const hy_rows *rows = r->e->state->rows;
    bool is_frozen = !r->e->model->params.list[param].is_trainable;
    int row = is_frozen ? HY_ROW_FROZEN : r->row;
    hy_store *store = hy_store_of(r->e, row);
    int32_t item =
        rows->row[row].kind->is_tiled ? rows->tiles.first[param] : hy_store_item_of(store, param);
    hy_dtype dtype = store->layout.items[item].dtype;
    uint64_t backing = hy_store_offset(store, item);
    for (int64_t at = 0; at < count; at += r->room) {
        int64_t some = count - at < r->room ? count - at : r->room;
        if (hy_is_coded(dtype)) {
            HY_TRY(read_coded(r, store, item, first + at, some, out + at));
            continue;
        }
        HY_TRY(hy_store_read(store, r->e->device.compute,
                             backing + hy_dtype_bytes(dtype, first + at), r->raw,
                             hy_dtype_bytes(dtype, some)));
        hy_convert(r->raw, dtype, some, out + at, HY_F32);
    }
    double scale = is_frozen ? 1 : r->scale;
    for (int64_t i = 0; scale != 1 && i < count; i++) out[i] = (float)(out[i] * scale);
    return HY_OK;
}

hy_status hy_export_engine(hy_engine *e, hy_export_what what, hy_prompt_format prompt,
                           const char *folder) {
    int64_t samples = hy_has_row(e, HY_ROW_AVERAGE) ? e->progress.average_samples : 0;
    const hy_settings *s = e->request.settings;
    hy_export_plan plan;
    HY_TRY(hy_export_prepare(s, s->save.model_dtype, e->plan->types.master, &plan));
    plan.prompt = prompt;
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    run_reader reader = {.e = e,
                         .row = samples > 0 ? HY_ROW_AVERAGE : HY_ROW_MASTER,
                         .scale = samples > 0 ? 1.0 / (double)samples : 1,
                         .room = 1 << 20};
    reader.raw = malloc((size_t)reader.room * WIDEST);
    if (!reader.raw) return hy_fail(HY_ERR_MEMORY, "not enough memory to write a model");
    hy_merge merge = hy_merge_begin(&e->model->shape, &e->model->params, read_store, &reader);
    bool is_adapter = what == HY_EXPORT_ADAPTER;
    char base[HY_PATH_MAX];
    hy_export_base_name(s->lora.base[0] ? s->lora.base : s->model, base);
    if (is_adapter) plan.dtype = hy_dtype_chosen(s->save.model_dtype, e->plan->types.master);
    hy_status status =
        hy_export_write(&plan, e->model,
                        (hy_hf_writing){.folder = folder,
                                        .shard_size = (uint64_t)s->save.max_shard_size,
                                        .read = is_adapter ? read_store : hy_merge_read,
                                        .context = is_adapter ? (void *)&reader : &merge,
                                        .is_adapter = is_adapter,
                                        .base = base,
                                        .observer = e->observer});
    hy_merge_end(&merge);
    free(reader.raw);
    return status;
}
