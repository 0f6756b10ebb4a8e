/* hf_export.c: writes a model folder. See hf_export.h.
 *
 * Everything is written to .NAME.partial in the same parent folder, which is renamed when it is
 * complete and synced; the next attempt removes what a crash leaves behind. Memory: a piece of a
 * tensor, or one whole matrix if the format needs it transposed. */
#include "hub/hf_export.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/say.h"
#include "hub/bnb.h"
#include "hub/gguf_load.h"
#include "hub/hf_config.h"
#include "hub/hf_names.h"
#include "hub/hf_rest.h"
#include "hub/peft.h"
#include "kernels/cpu/machine.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define PIECE (1 << 20) /* elements at a time */
#define LARGEST_F16 65504.0f
#define SHARD_NAME_MAX 48

typedef struct shard {
    int32_t first, count; /* tensors */
    char name[SHARD_NAME_MAX];
} shard;

typedef struct export_job {
    const hy_hf_writing *w;
    char partial[HY_HF_PATH_MAX], old[HY_HF_PATH_MAX];
    hy_shape shape;    /* with the architecture used in the folder */
    hy_hf_quant quant; /* of the matrices in blocks */
    hy_hf_rest rest;   /* what the source has beside the text model */
    hy_hf_name *names;
    hy_bnb_tensors *tensors; /* of each name, then the rest */
    int32_t named, count;    /* names; tensors of both */
    shard *shards;
    int32_t shard_count;
    uint64_t total_bytes;
    int64_t done, total;        /* elements */
    hy_moments moments;         /* of the inputs of parameter `held`; size 0: rounded to nearest */
    int32_t held, uncalibrated; /* uncalibrated: matrices that calibration cannot round */
} export_job;

hy_status hy_hf_check_type(const char *type, bool is_adapter, hy_hf_quant *out) {
    *out = HY_HF_PLAIN;
    if (!type) return HY_OK;
    HY_FAIL_IF(!hy_hf_quant_named(type, out), HY_ERR_INPUT,
               "type %.40s is not accepted for a folder; accepted: " HY_HF_TYPES
               " (--dtype sets fp32, bf16 or fp16; --gguf FILE has other types)",
               type);
    HY_FAIL_IF(is_adapter, HY_ERR_INPUT,
               "adapters are not quantised, so type %s is for whole models; use --merge", type);
    return HY_OK;
}

static bool has_source(const export_job *e) { return e->w->source && e->w->source[0]; }

/* ---- names and files ------------------------------------------------------------------------- */

/* Does a source's config.json describe this model? Compares what would be written for both. The
 * settings of initial weights do not count. */
static hy_status says_the_same(const export_job *e, hy_hf_config *source, bool *out) {
    hy_text ours = {0}, theirs = {0};
    source->shape.init_std = e->shape.init_std;
    hy_status status = hy_hf_config_write(&e->shape, e->w->dtype, NULL, NULL, &ours);
    if (status == HY_OK) {
        status = hy_hf_config_write(&source->shape, e->w->dtype, NULL, NULL, &theirs);
    }
    *out = status == HY_OK && strcmp(ours.data, theirs.data) == 0;
    hy_text_free(&ours);
    hy_text_free(&theirs);
    return status;
}

/* Why the tensors beside the text model cannot stay, whatever they are; NULL: they can. */
static const char *why_changed(const export_job *e, const hy_hf_config *source, bool is_same) {
    const hy_hf_writing *w = e->w;
    return e->quant != HY_HF_PLAIN           ? "--type quantises it"
           : source->quant != HY_HF_PLAIN    ? "its source is quantised"
           : w->tokenizer && w->tokenizer[0] ? "it has another tokenizer"
           : !is_same                        ? "its shape has changed"
                                             : NULL;
}

/* A model of text and images stays one if nothing but its numbers changed and its other tensors are
 * there; otherwise the text model is written. A text model keeps its other tensors likewise. */
static hy_status find_rest(export_job *e, hy_hf_config *source) {
    const hy_hf_writing *w = e->w;
    const char *folder = w->weights && w->weights[0] ? w->weights : w->source;
    char left_out[HY_HF_NAME_MAX + 32] = "";
    bool is_same;
    HY_TRY(says_the_same(e, source, &is_same));
    const char *why = why_changed(e, source, is_same);
    hy_status status = hy_hf_rest_open(folder, hy_family_of(e->shape.arch), &e->rest);
    if (status == HY_ERR_MEMORY) return status;
    if (status == HY_OK && !why && e->rest.count > 0) return HY_OK;
    if (e->rest.count > 0)
        snprintf(left_out, sizeof left_out, " without %s%s,", e->rest.list[0].entry->name,
                 e->rest.count > 1 ? " and others" : "");
    if (!why) why = status == HY_OK ? "the folder has no parts for images" : hy_error_message();
    if (source->has_images || e->rest.is_any)
        hy_say_to(w->observer, HY_WARNING, "%s: only the text model is written,%s because %s",
                  w->folder, left_out, why);
    hy_hf_rest_close(&e->rest);
    return HY_OK;
}

/* A model from a folder keeps its tensor names, and its architecture if that still describes the
 * model: a setting may have added a window. */
static hy_status choose_names(export_job *e) {
    const char *prefix = e->w->prefix;
    hy_hf_config config = {0};
    hy_hf_tensors *tensors;
    hy_arch wanted = e->shape.arch;
    if (has_source(e)) {
        HY_TRY(hy_hf_config_look(e->w->source, &config));
        wanted = config.shape.arch;
        if (!prefix && hy_hf_tensors_open(e->w->source, &tensors) == HY_OK) {
            prefix = hy_hf_prefix_in(tensors, hy_family_of(wanted));
            hy_hf_tensors_close(tensors);
        }
    }
    HY_TRY(hy_arch_check(&e->shape));
    e->shape.arch = hy_arch_choose(&e->shape, wanted);
    const hy_family *family = hy_family_of(e->shape.arch);
    if (has_source(e) && e->shape.arch != wanted) {
        hy_say_to(e->w->observer, HY_WARNING,
                  "%s has no sliding window: the model is written as %s",
                  hy_family_of(wanted)->class_name, family->class_name);
    }
    if (e->w->is_adapter) {
        return hy_peft_list_names(&e->shape, e->w->params, &e->names, &e->named);
    }
    if (has_source(e)) HY_TRY(find_rest(e, &config));
    if (!prefix || prefix[0])
        prefix = e->rest.tensors && config.has_images ? e->rest.prefix : family->prefix;
    return hy_hf_list_names(family, prefix, &e->shape, e->w->params, &e->names, &e->named);
}

static bool is_coded(const export_job *e, const hy_hf_name *name) {
    hy_param_kind kind = e->w->params->list[name->param].kind;
    return e->quant != HY_HF_PLAIN && hy_linear_bit(kind) && !hy_kind_stays_real(kind);
}

static hy_bnb_writing coding_of(const export_job *e, const hy_hf_name *name) {
    return (hy_bnb_writing){.quant = e->quant,
                            .dtype = e->w->dtype,
                            .name = name->name,
                            .rows = name->rows,
                            .cols = name->cols,
                            .moments = &e->moments};
}

/* The tensors of each name, one, unless it is quantised; and those that are copied. */
static hy_status list_tensors(export_job *e) {
    e->count = e->named + e->rest.count;
    e->tensors = calloc((size_t)e->count, sizeof *e->tensors);
    if (!e->tensors) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of tensors");
    for (int32_t i = e->named; i < e->count; i++) {
        e->tensors[i] = (hy_bnb_tensors){.count = 1, .list = {*e->rest.list[i - e->named].entry}};
        e->total += hy_hf_rest_elements(&e->tensors[i].list[0]);
    }
    for (int32_t i = 0; i < e->named; i++) {
        const hy_hf_name *name = &e->names[i];
        hy_bnb_writing coding = coding_of(e, name);
        e->total += name->rows * name->cols;
        e->tensors[i].count = 1;
        e->tensors[i].list[0] =
            (hy_safetensors_entry){.name = name->name, .dtype = e->w->dtype, .ndim = name->ndim};
        hy_hf_dims(name, e->tensors[i].list[0].shape);
        if (is_coded(e, name)) hy_bnb_list(&coding, &e->tensors[i]);
    }
    return HY_OK;
}

static uint64_t bytes_of(const hy_bnb_tensors *tensors) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < tensors->count; i++) {
        const hy_safetensors_entry *t = &tensors->list[i];
        int64_t elements = 1;
        for (int k = 0; k < t->ndim; k++) elements *= t->shape[k];
        bytes += hy_dtype_bytes(t->dtype, elements);
    }
    return bytes;
}

static hy_status cut_shards(export_job *e) {
    uint64_t in_shard = 0;
    e->shards = calloc((size_t)e->count, sizeof *e->shards);
    if (!e->shards) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of files");
    for (int32_t i = 0; i < e->count; i++) {
        uint64_t bytes = bytes_of(&e->tensors[i]);
        bool is_full = in_shard > 0 && in_shard + bytes > e->w->shard_size && !e->w->is_adapter;
        if (i == 0 || is_full) {
            e->shards[e->shard_count++] = (shard){.first = i};
            in_shard = 0;
        }
        e->shards[e->shard_count - 1].count++;
        in_shard += bytes;
        e->total_bytes += bytes;
    }
    for (int32_t i = 0; i < e->shard_count; i++) {
        if (e->shard_count == 1) {
            snprintf(e->shards[i].name, SHARD_NAME_MAX, "%s",
                     e->w->is_adapter ? HY_PEFT_TENSORS : HY_HF_SINGLE);
        } else {
            snprintf(e->shards[i].name, SHARD_NAME_MAX, "model-%05d-of-%05d.safetensors", i + 1,
                     e->shard_count);
        }
    }
    return HY_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

hy_status hy_hf_check_numbers(const char *name, const float *x, int64_t count, const char *wider) {
    float largest = wider ? LARGEST_F16 : INFINITY;
    for (int64_t i = 0; i < count; i++) {
        HY_FAIL_IF(!isfinite(x[i]), HY_ERR_NUMERIC, "%s contains a number that is not finite",
                   name);
        HY_FAIL_IF(fabsf(x[i]) > largest, HY_ERR_NUMERIC,
                   "%s contains %g, which is too large for fp16; use %s", name, (double)x[i],
                   wider);
    }
    return HY_OK;
}

/* Elements [at, at + count) in the order of the file. */
static hy_status read_elements(const export_job *e, const hy_hf_name *name, int64_t at,
                               int64_t count, float *out) {
    for (int64_t end = at + count, some, run; at < end; at += some) {
        int64_t row = at / name->cols, ours = name->row + hy_hf_row_of_ours(name, row, &run);
        int64_t left = (row + run) * name->cols - at; /* elements in the same order */
        some = left < end - at ? left : end - at;
        float *to = out + count - (end - at);
        HY_TRY(
            e->w->read(e->w->context, name->param, ours * name->cols + at % name->cols, some, to));
    }
    return hy_hf_check_numbers(name->name, out, count,
                               e->w->dtype == HY_F16 ? "--dtype bf16" : NULL);
}

static void count_done(export_job *e, int64_t elements) {
    const hy_observer *observer = e->w->observer;
    e->done += elements;
    if (observer && observer->on_progress)
        observer->on_progress(observer->user, "writing", (double)e->done / (double)e->total);
}

static hy_status put_plain(export_job *e, const hy_hf_name *name, hy_safetensors_writer *out,
                           float *piece) {
    int64_t all = name->rows * name->cols;
    for (int64_t at = 0, count; at < all; at += count) {
        count = all - at < PIECE ? all - at : PIECE;
        HY_TRY(read_elements(e, name, at, count, piece));
        if (e->w->dtype != HY_F32) hy_convert(piece, HY_F32, count, piece, e->w->dtype);
        HY_TRY(hy_safetensors_put(out, piece, (uint64_t)count * hy_dtype_size(e->w->dtype)));
        count_done(e, count);
    }
    return HY_OK;
}

static hy_status put_transposed(export_job *e, const hy_hf_name *name, hy_safetensors_writer *out) {
    int64_t all = name->rows * name->cols;
    float *ours = malloc((size_t)all * sizeof *ours), *turned = malloc((size_t)all * sizeof *ours);
    hy_status status =
        ours && turned ? HY_OK
                       : hy_fail(HY_ERR_MEMORY, "not enough memory to transpose %s", name->name);
    if (status == HY_OK) status = read_elements(e, name, 0, all, ours);
    if (status == HY_OK) {
        hy_transpose(ours, name->cols, name->rows, sizeof *ours, turned);
        hy_convert(turned, HY_F32, all, ours, e->w->dtype);
        status = hy_safetensors_put(out, ours, (uint64_t)all * hy_dtype_size(e->w->dtype));
    }
    free(ours);
    free(turned);
    count_done(e, all);
    return status;
}

/* With calibration: measures the inputs of a tensor's parameter, which may have several tensors. */
static hy_status take_moments(export_job *e, int32_t param) {
    const hy_hf_writing *w = e->w;
    if (!w->moments || e->held == param) return HY_OK;
    hy_moments_fini(&e->moments);
    e->held = param;
    int threads = w->threads > 0 ? w->threads : hy_machine_threads();
    return hy_moments_take(w->moments, &w->params->list[param], threads, w->observer, &e->moments);
}

/* Quantised matrices are always (rows, cols): bitsandbytes transposes those of GPT-2. */
static hy_status put_coded(export_job *e, const hy_hf_name *name, hy_safetensors_writer *out,
                           float *piece) {
    bool has_whole_blocks = name->cols % HY_NF4_BLOCK == 0;
    if (has_whole_blocks) HY_TRY(take_moments(e, name->param));
    e->uncalibrated += e->w->moments && !has_whole_blocks;
    hy_bnb_writing coding = coding_of(e, name);
    int64_t all = name->rows * name->cols, most = hy_bnb_piece(&coding, PIECE);
    hy_status status = hy_bnb_begin(&coding);
    for (int64_t at = 0, count; at < all && status == HY_OK; at += count) {
        count = all - at < most ? all - at : most;
        status = read_elements(e, name, at, count, piece);
        if (status == HY_OK) status = hy_bnb_put(&coding, at, count, piece, out);
        count_done(e, count);
    }
    if (status == HY_OK) status = hy_bnb_finish(&coding, out);
    hy_bnb_end(&coding);
    return status;
}

static hy_status put_rest(export_job *e, int32_t i, hy_safetensors_writer *out, void *piece,
                          uint64_t size) {
    HY_TRY(hy_hf_rest_copy(e->rest.list[i], piece, size, out));
    count_done(e, hy_hf_rest_elements(e->rest.list[i].entry));
    return HY_OK;
}

static hy_status put_tensors(export_job *e, const shard *s, hy_safetensors_writer *out) {
    int64_t most = PIECE; /* a row of int8 may be longer */
    for (int32_t i = 0; i < e->named; i++) {
        if (e->names[i].cols > most) most = e->names[i].cols;
    }
    float *piece = malloc((size_t)most * sizeof *piece);
    hy_status status = piece ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to write weights");
    for (int32_t i = s->first; i < s->first + s->count && status == HY_OK; i++) {
        if (i >= e->named) {
            status = put_rest(e, i - e->named, out, piece, (uint64_t)most * sizeof *piece);
            continue;
        }
        const hy_hf_name *name = &e->names[i];
        status = is_coded(e, name)     ? put_coded(e, name, out, piece)
                 : name->is_transposed ? put_transposed(e, name, out)
                                       : put_plain(e, name, out, piece);
    }
    free(piece);
    return status;
}

/* Single bytes are the last tensors of a file, so that the others stay aligned. */
static bool is_byte(const hy_safetensors_entry *entry) { return entry->ndim == 0; }

static size_t list_shard(const export_job *e, const shard *s, bool has_bytes,
                         hy_safetensors_entry *out) {
    size_t count = 0;
    for (const hy_bnb_tensors *t = e->tensors + s->first; t < e->tensors + s->first + s->count; t++)
        for (int32_t i = 0; i < t->count; i++) {
            if (is_byte(&t->list[i]) == has_bytes) out[count++] = t->list[i];
        }
    return count;
}

static hy_status write_shard(export_job *e, const shard *s) {
    static const char *const metadata[] = {"format", "pt", NULL};
    char path[HY_HF_PATH_MAX];
    hy_safetensors_writer *out = NULL;
    HY_TRY(hy_path_join(path, sizeof path, e->partial, s->name));
    size_t most = sizeof e->tensors->list / sizeof e->tensors->list[0];
    hy_safetensors_entry *entries = calloc((size_t)s->count * most, sizeof *entries);
    if (!entries) return hy_fail(HY_ERR_MEMORY, "not enough memory to list %s", s->name);
    size_t count = list_shard(e, s, false, entries);
    size_t bytes = list_shard(e, s, true, entries + count);
    hy_status status = hy_safetensors_create(path, entries, count + bytes, metadata, &out);
    free(entries);
    HY_TRY(status);
    status = put_tensors(e, s, out);
    for (size_t i = 0; i < bytes && status == HY_OK; i++) status = hy_safetensors_put(out, "", 1);
    if (status == HY_OK) return hy_safetensors_finish(out, NULL, NULL);
    hy_safetensors_abandon(out);
    return status;
}

/* ---- the small files ------------------------------------------------------------------------- */

/* Writes and frees a text; `status` is the result of making it. */
static hy_status put_text(const export_job *e, const char *name, hy_status status, hy_text *text) {
    if (status == HY_OK) status = hy_text_status(text);
    if (status == HY_OK) status = hy_hf_put_file(e->partial, name, text->data, text->size);
    hy_text_free(text);
    return status;
}

static hy_status write_index(const export_job *e) {
    hy_text text = {0};
    hy_json_writer w;
    if (e->shard_count == 1) return HY_OK;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_open_object(&w, "metadata");
    hy_json_put_int(&w, "total_size", (int64_t)e->total_bytes);
    hy_json_close_object(&w);
    hy_json_open_object(&w, "weight_map");
    for (int32_t s = 0; s < e->shard_count; s++) {
        for (int32_t i = 0; i < e->shards[s].count; i++) {
            const hy_bnb_tensors *t = &e->tensors[e->shards[s].first + i];
            for (int32_t k = 0; k < t->count; k++)
                hy_json_put_string(&w, t->list[k].name, e->shards[s].name);
        }
    }
    hy_json_close_object(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return put_text(e, HY_HF_INDEX, HY_OK, &text);
}

/* The source's config.json. */
static hy_status read_source(const char *source, hy_json **out) {
    char path[HY_HF_PATH_MAX];
    hy_text text = {0};
    HY_TRY(hy_path_join(path, sizeof path, source, "config.json"));
    if (!hy_gguf_is_file(source)) return hy_json_read_file(path, out);
    hy_status status = hy_gguf_config_json(source, &text);
    if (status == HY_OK) status = hy_json_parse(text.data, text.size, source, out);
    hy_text_free(&text);
    return status;
}

/* The source's file with a new dtype; if a setting changed the shape, a new file. */
static hy_status make_config(const export_job *e, const hy_hf_tokens *tokens, hy_text *text) {
    hy_hf_config config;
    hy_json *json;
    bool is_same;
    if (!has_source(e)) {
        return hy_hf_config_write(&e->shape, e->w->dtype, NULL, tokens, text);
    }
    HY_TRY(hy_hf_config_look(e->w->source, &config));
    HY_TRY(says_the_same(e, &config, &is_same));
    HY_TRY(read_source(e->w->source, &json));
    const hy_json_node *root = hy_json_root(json);
    bool is_whole = !config.has_images || e->rest.tensors;
    if (!is_whole) root = hy_json_get(root, "text_config");
    bool is_kept = is_same && is_whole;
    hy_status status = is_kept ? hy_hf_config_copy(root, e->w->dtype, tokens, text)
                               : hy_hf_config_write(&e->shape, e->w->dtype, root, tokens, text);
    hy_json_free(json);
    return status;
}

#define TEMPLATES "additional_chat_templates"

/* Chat templates may be in a subfolder; other subfolders hold weights in other formats. Only
 * files inside `root`, the model folder, are copied: a link that leads out of it is skipped. */
static hy_status copy_side_files(const char *root, const char *from, const char *to,
                                 const hy_observer *observer) {
    char **names, source[HY_HF_PATH_MAX], target[HY_HF_PATH_MAX];
    size_t count;
    HY_TRY(hy_dir_list(from, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        bool is_folder = strcmp(names[i], TEMPLATES) == 0;
        if (!is_folder && !hy_hf_is_side_file(names[i])) continue;
        status = hy_path_join(source, sizeof source, from, names[i]);
        if (status == HY_OK) status = hy_path_join(target, sizeof target, to, names[i]);
        if (status != HY_OK) break;
        if (hy_path_is_dir(source)) {
            if (is_folder) status = hy_dir_make(target);
            if (is_folder && status == HY_OK) {
                status = copy_side_files(root, source, target, observer);
            }
        } else if (hy_hf_holds_file(root, source)) {
            status = hy_hf_copy_file(source, to, names[i]);
        } else {
            hy_say_to(observer, HY_WARNING,
                      "%s is not copied: it is not a regular file in the model folder", source);
        }
    }
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_hf_copy_side_files(const char *from, const char *to, const hy_observer *observer) {
    return hy_gguf_is_file(from) ? hy_gguf_put_side_files(from, to)
                                 : copy_side_files(from, from, to, observer);
}

hy_status hy_hf_copy_config(const char *from, const char *to) {
    char path[HY_HF_PATH_MAX];
    hy_text text = {0};
    HY_TRY(hy_path_join(path, sizeof path, from, "config.json"));
    if (!hy_gguf_is_file(from)) return hy_hf_copy_file(path, to, "config.json");
    hy_status status = hy_gguf_config_json(from, &text);
    if (status == HY_OK) status = hy_hf_put_file(to, "config.json", text.data, text.size);
    hy_text_free(&text);
    return status;
}

static hy_status write_format(const export_job *e) {
    hy_text text = {0};
    hy_json_writer w;
    if (e->w->prompt.chat == HY_CHAT_AUTO) return HY_OK;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_prompt_format_put(&w, e->w->prompt);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return put_text(e, HY_FORMAT_FILE, HY_OK, &text);
}

/* Replaces the templates of the folder, which may be in other files too: some programs prefer
 * those. */
static hy_status put_template(const export_job *e, hy_text *text) {
    char path[HY_HF_PATH_MAX];
    hy_text config = {0};
    hy_json *json;
    HY_TRY(hy_path_join(path, sizeof path, e->partial, TEMPLATES));
    HY_TRY(hy_dir_remove(path));
    HY_TRY(hy_path_join(path, sizeof path, e->partial, "chat_template.json"));
    hy_disk_unlink_at(AT_FDCWD, path, 0); /* if there is one */
    HY_TRY(hy_hf_put_file(e->partial, "chat_template.jinja", text->data, text->size));
    HY_TRY(hy_path_join(path, sizeof path, e->partial, "tokenizer_config.json"));
    if (!hy_path_exists(path)) return HY_OK;
    HY_TRY(hy_json_read_file(path, &json));
    bool has_key = hy_json_get(hy_json_root(json), "chat_template");
    hy_status status = HY_OK;
    if (has_key) status = hy_hf_json_filter(hy_json_root(json), "chat_template", false, &config);
    hy_json_free(json);
    return has_key ? put_text(e, "tokenizer_config.json", status, &config) : HY_OK;
}

/* The folder gets the format of the rows as its chat template, so that other programs ask the model
 * in the same way. */
static hy_status write_template(const export_job *e) {
    char path[HY_HF_PATH_MAX];
    hy_tokenizer *tokenizer;
    hy_chat_template chat = {0};
    hy_text text = {0};
    const char *name = hy_chat_kind_name(e->w->prompt.chat);
    if (!hy_prompt_format_is_built_in(&e->w->prompt)) return HY_OK;
    HY_TRY(hy_tokenizer_file(e->partial, path, sizeof path));
    if (!path[0]) return write_format(e); /* bytes */
    HY_TRY(hy_tokenizer_open(path, &tokenizer));
    hy_status status = hy_chat_template_open(HY_CHAT_AUTO, tokenizer, e->partial, &chat);
    bool has_other = chat.is_of_folder && chat.kind != e->w->prompt.chat;
    chat.kind = e->w->prompt.chat;
    if (status == HY_OK) status = hy_chat_template_jinja(&chat, tokenizer, &text);
    if (status == HY_OK && text.size > 0) status = put_template(e, &text);
    if (status == HY_OK && has_other && text.size > 0)
        hy_say_to(e->w->observer, HY_NOTE,
                  "%s/chat_template.jinja is the format of the rows, %s, instead of the chat "
                  "template of the starting model",
                  e->w->folder, name);
    if (status == HY_OK && has_other && text.size == 0)
        hy_say_to(e->w->observer, HY_WARNING,
                  "%s keeps the chat template of the starting model, but the rows were written as "
                  "%s, which cannot be a chat_template.jinja: in other programs, choose %s",
                  e->w->folder, name, name);
    hy_text_free(&text);
    hy_chat_template_close(&chat);
    hy_tokenizer_close(tokenizer);
    return status == HY_OK ? write_format(e) : status;
}

/* ---- replacing the folder -------------------------------------------------------------------- */

static hy_status name_partial(export_job *e) {
    char parent[HY_HF_PATH_MAX], name[HY_HF_PATH_MAX + 16];
    HY_TRY(hy_path_parent(parent, sizeof parent, e->w->folder));
    size_t end = strlen(e->w->folder);
    while (end > 1 && e->w->folder[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && e->w->folder[begin - 1] != '/') begin--;
    const char *last = e->w->folder + begin;
    int length = (int)(end - begin);
    bool has_name = length > 0 && *last != '/' && strspn(last, ".") < (size_t)length;
    HY_FAIL_IF(!has_name, HY_ERR_INPUT,
               "\"%s\" cannot be the output folder: choose a folder with a name", e->w->folder);
    snprintf(name, sizeof name, ".%.*s.partial", length, last);
    HY_TRY(hy_path_join(e->partial, sizeof e->partial, parent, name));
    snprintf(name, sizeof name, ".%.*s.old", length, last);
    return hy_path_join(e->old, sizeof e->old, parent, name);
}

static bool is_file_of_ours(const char *name) {
    return hy_hf_is_side_file(name) || strcmp(name, "config.json") == 0 ||
           strcmp(name, HY_PEFT_CONFIG) == 0 || hy_has_ending(name, ".safetensors") ||
           hy_has_ending(name, ".safetensors.index.json") || strcmp(name, HY_LOCK_FILE) == 0 ||
           hy_has_ending(name, ".partial");
}

/* A folder of the user's with the name of a file of ours would be removed. */
static hy_status check_names(const char *folder, char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char inside[HY_HF_PATH_MAX];
        HY_TRY(hy_path_join(inside, sizeof inside, folder, names[i]));
        HY_FAIL_IF(is_file_of_ours(names[i]) && hy_path_is_dir(inside) && !hy_path_is_link(inside),
                   HY_ERR_INPUT, "%s is a folder, so %s is not replaced; move it elsewhere", inside,
                   folder);
    }
    return HY_OK;
}

/* Only a model folder may be replaced by a model folder. */
static hy_status check_target(const export_job *e) {
    char config[HY_HF_PATH_MAX], **names;
    size_t count;
    const char *folder = e->w->folder;
    if (!hy_path_exists(folder) && hy_path_exists(e->old)) {
        HY_TRY(hy_path_rename(e->old, folder)); /* from a swap that was interrupted */
    }
    if (!hy_path_exists(folder)) return HY_OK;
    HY_FAIL_IF(!hy_path_is_dir(folder) || hy_path_is_link(folder), HY_ERR_INPUT,
               "%s is not a plain folder, so it is not replaced", folder);
    const char *name = e->w->is_adapter ? HY_PEFT_CONFIG : "config.json";
    HY_TRY(hy_path_join(config, sizeof config, folder, name));
    HY_TRY(hy_dir_list(folder, &names, &count));
    hy_status status = check_names(folder, names, count);
    hy_dir_list_free(names, count);
    HY_TRY(status);
    HY_FAIL_IF(count > 0 && !hy_path_exists(config), HY_ERR_INPUT,
               "%s is not replaced: it is not a %s folder (it has no %s)", folder,
               e->w->is_adapter ? "adapter's" : "model's", name);
    return HY_OK;
}

/* Files that a user added to the old folder are moved to the new one. */
static hy_status keep_foreign(const char *older, const char *folder) {
    char **names, from[HY_HF_PATH_MAX], to[HY_HF_PATH_MAX];
    size_t count;
    HY_TRY(hy_dir_list(older, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        bool is_moved = !is_file_of_ours(names[i]) && strcmp(names[i], TEMPLATES) != 0;
        status = hy_path_join(from, sizeof from, older, names[i]);
        if (status == HY_OK) status = hy_path_join(to, sizeof to, folder, names[i]);
        if (status == HY_OK && is_moved && !hy_path_exists(to)) status = hy_path_rename(from, to);
    }
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_hf_discard(const char *hidden, const char *folder) {
    if (hy_path_is_dir(hidden) && hy_path_is_dir(folder)) HY_TRY(keep_foreign(hidden, folder));
    return hy_dir_remove_ours(hidden);
}

/* Creates the empty partial folder; another process that writes the same folder is not
 * disturbed. */
static hy_status take_partial(const export_job *e, hy_lock **lock) {
    if (hy_path_exists(e->partial)) {
        HY_TRY(hy_lock_take(e->partial, lock));
        hy_status removed = hy_hf_discard(e->partial, e->w->folder);
        hy_lock_release(*lock);
        *lock = NULL;
        HY_TRY(removed);
    }
    hy_status status = hy_dir_make(e->partial);
    if (status == HY_OK) status = hy_lock_take(e->partial, lock);
    if (status != HY_OK) hy_disk_unlink_at(AT_FDCWD, e->partial, AT_REMOVEDIR); /* if it is empty */
    return status;
}

/* A folder with a SentencePiece file alone gets the files that transformers needs. The run may not
 * have used this tokenizer, so one that is not supported is copied as it is. */
static hy_status publish_tokenizer(const export_job *e) {
    char pieces[HY_HF_PATH_MAX] = "";
    hy_status status = hy_tokenizer_file(e->w->source, pieces, sizeof pieces);
    if (status == HY_OK && hy_sentencepiece_is_named(pieces))
        status = hy_hf_publish_pieces(pieces, e->partial);
    if (status != HY_ERR_INPUT) return status;
    hy_say_to(e->w->observer, HY_WARNING, "the tokenizer was copied as it is: %s",
              hy_error_message());
    return HY_OK;
}

static hy_status write_config(const export_job *e, const hy_hf_tokens *tokens) {
    hy_text config = {0};
    hy_status status = make_config(e, tokens, &config);
    if (status == HY_OK && e->quant != HY_HF_PLAIN)
        status = hy_bnb_put_config(&e->shape, e->quant, e->w->dtype, &config);
    return put_text(e, "config.json", status, &config);
}

static hy_status check_space(const export_job *e) {
    uint64_t space = hy_path_free(e->partial);
    HY_FAIL_IF(e->w->has_to_fit && space < e->total_bytes, HY_ERR_IO,
               "the weights need %s, but the disk has only %s free",
               hy_bytes_as_text(e->total_bytes).text, hy_bytes_as_text(space).text);
    return HY_OK;
}

static hy_status fill_partial(export_job *e) {
    HY_TRY(check_space(e));
    if (e->w->is_adapter) {
        hy_text text = {0};
        hy_status made = hy_peft_config_write(&e->shape, e->w->params, e->w->base, &text);
        HY_TRY(put_text(e, HY_PEFT_CONFIG, made, &text));
        HY_TRY(write_format(e));
        return write_shard(e, &e->shards[0]);
    }
    if (has_source(e)) {
        HY_TRY(hy_hf_copy_side_files(e->w->source, e->partial, e->w->observer));
    }
    bool is_named = e->w->tokenizer && e->w->tokenizer[0];
    if (has_source(e) && !is_named) HY_TRY(publish_tokenizer(e));
    hy_hf_tokens tokens;
    bool has_tokens = false; /* of a tokenizer other than the source's */
    hy_text generation = {0};
    if (is_named) {
        HY_TRY(hy_hf_write_tokenizer(e->w->tokenizer, e->partial));
        hy_tokenizer *t;
        HY_TRY(hy_tokenizer_open(e->w->tokenizer, &t));
        tokens = (hy_hf_tokens){.bos = hy_tokenizer_bos(t), .eos = hy_tokenizer_eos(t)};
        hy_tokenizer_close(t);
        has_tokens = tokens.eos >= 0;
    }
    HY_TRY(write_config(e, has_tokens ? &tokens : NULL));
    if (has_tokens) {
        HY_TRY(put_text(e, "generation_config.json", hy_hf_generation_write(&tokens, &generation),
                        &generation));
    }
    HY_TRY(write_template(e));
    for (int32_t i = 0; i < e->shard_count; i++) HY_TRY(write_shard(e, &e->shards[i]));
    return write_index(e);
}

/* The lock moved with the folder and is still held. */
static void drop_lock_file(const char *folder) {
    char path[HY_HF_PATH_MAX];
    if (hy_path_join(path, sizeof path, folder, HY_LOCK_FILE) == HY_OK) {
        hy_disk_unlink_at(AT_FDCWD, path, 0);
    }
}

/* An old folder is removed only after the new one has its name. If the file system cannot swap
 * them, the old one is renamed first, and renamed back on failure. */
static hy_status take_name(const export_job *e) {
    const char *folder = e->w->folder;
    HY_TRY(hy_dir_sync(e->partial));
    bool has_older = hy_path_exists(folder);
    if (has_older && hy_path_exchange(e->partial, folder) == HY_OK) {
        drop_lock_file(folder);
        HY_TRY(hy_path_sync_parent(folder));
        return hy_hf_discard(e->partial, folder);
    }
    if (has_older) {
        HY_TRY(hy_hf_discard(e->old, folder));
        HY_TRY(hy_path_rename(folder, e->old));
    }
    hy_status status = hy_path_rename(e->partial, folder);
    if (status != HY_OK && has_older) {
        hy_error first;
        hy_error_save(&first, status);
        (void)hy_path_rename(e->old, folder);
        return hy_error_restore(&first);
    }
    if (status == HY_OK) drop_lock_file(folder);
    if (status == HY_OK) status = hy_path_sync_parent(folder);
    return status == HY_OK && has_older ? hy_hf_discard(e->old, folder) : status;
}

hy_status hy_hf_check_folder(const char *folder) {
    export_job e = {.w = &(hy_hf_writing){.folder = folder}};
    HY_TRY(name_partial(&e));
    return check_target(&e);
}

hy_status hy_hf_rename(const char *from, const char *folder) {
    export_job e = {.w = &(hy_hf_writing){.folder = folder}};
    HY_TRY(name_partial(&e));
    HY_TRY(check_target(&e));
    HY_TRY(hy_path_join(e.partial, sizeof e.partial, "", from));
    return take_name(&e);
}

/* "1.9 GiB, 4.85 bits per weight; matrices of blocks in nf4, the rest in bf16" */
static void report(const export_job *e) {
    if (e->quant == HY_HF_PLAIN || !e->w->observer) return;
    hy_say_to(e->w->observer, HY_NOTE,
              "%s: %s, %.2f bits per weight; matrices of blocks in %s, the rest in %s",
              e->w->folder, hy_bytes_as_text(e->total_bytes).text,
              8 * (double)e->total_bytes / (double)e->total, e->w->type,
              hy_dtype_name(e->w->dtype));
    if (e->uncalibrated > 0)
        hy_say_to(e->w->observer, HY_WARNING,
                  "%d of the matrices are rounded to nearest: the lengths of their rows are not "
                  "multiples of %d, which calibration needs",
                  e->uncalibrated, HY_NF4_BLOCK);
}

hy_status hy_hf_write(const hy_hf_writing *writing) {
    export_job e = {.w = writing, .shape = *writing->shape, .held = -1};
    HY_TRY(hy_hf_check_type(writing->type, writing->is_adapter, &e.quant));
    HY_TRY(name_partial(&e));
    HY_TRY(check_target(&e));
    hy_status status = choose_names(&e);
    if (status == HY_OK) status = list_tensors(&e);
    if (status == HY_OK) status = cut_shards(&e);
    hy_lock *lock = NULL;
    if (status == HY_OK) status = take_partial(&e, &lock);
    if (lock) {
        if (status == HY_OK) status = fill_partial(&e);
        if (status == HY_OK) status = take_name(&e);
        if (status != HY_OK) {
            hy_error first; /* removing files may fail, too */
            hy_error_save(&first, status);
            (void)hy_hf_discard(e.partial, writing->folder);
            (void)hy_error_restore(&first);
            status = hy_fail_context(status, "%s", writing->folder);
        }
        hy_lock_release(lock); /* until now nobody else could write this folder */
    }
    if (status == HY_OK) report(&e);
    hy_moments_fini(&e.moments);
    hy_hf_rest_close(&e.rest);
    free(e.names);
    free(e.tensors);
    free(e.shards);
    return status;
}
