/* gguf_export.c: writes a file for llama.cpp. See gguf_export.h.
 *
 * Tensors are cut into pieces of whole rows. One thread at a time reads the next piece; threads
 * encode their pieces at the same time, and write them in order (base/in_order.h). Memory: one
 * piece for each of at most MOST_THREADS threads, which is 768 MiB; with calibration also the second
 * moments of one matrix. */
#include "hub/gguf_export.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/in_order.h"
#include "base/say.h"
#include "formats/gguf.h"
#include "hub/gguf_mix.h"
#include "hub/gguf_names.h"
#include "hub/gguf_tokenizer.h"
#include "hub/hf_config.h"
#include "hub/rounding.h"
#include "kernels/cpu/machine.h"
#include "model/param_names.h"

#define PIECE (1 << 20) /* elements at a time */
#define MOST_THREADS 64
#define QUANTISATION 2 /* the version of the block formats */

typedef struct export_job {
    const hy_hf_writing *w;
    const hy_gguf_mix *mix;
    hy_shape shape; /* with its architecture */
    hy_hf_name *names;
    int32_t count; /* of names */
    hy_gguf_shape_tensor made[HY_GGUF_SHAPE_TENSORS];
    int made_count;
    hy_gguf_tensor *tensors; /* of the names, then those that follow from the shape */
    hy_gguf_writer *out;
    int32_t at; /* the tensor and the row that are read next */
    int64_t row;
    int64_t done, total; /* elements */
    hy_error failure;    /* of reading */
    int32_t end;         /* the tensor before which this pass over pieces ends */
    int threads;
    hy_moments moments;     /* of their parameter; size 0: rounded to nearest */
    hy_tensor_costs *costs; /* to fill; NULL: none */
} export_job;

/* Some rows of a tensor. */
typedef struct piece {
    export_job *e;
    int32_t tensor;
    int64_t rows;
    float *numbers, *paired;
    char *bytes;
    hy_rounding_cost cost;
} piece;

/* ---- names and types ------------------------------------------------------------------------- */

hy_status hy_gguf_check_type(const char *type, bool is_adapter) {
    hy_text accepted = {0};
    bool is_accepted = false;
    const hy_gguf_mix *mix;
    for (size_t i = 0; (mix = hy_gguf_mix_at(i)) != NULL; i++) {
        bool is_plain = hy_block_traits_of(mix->type)->elements == 1 || mix->type == HY_BLOCK_Q8_0;
        if (is_adapter && !is_plain) continue;
        hy_text_addf(&accepted, "%s%s", accepted.size ? ", " : "", mix->name);
        is_accepted |= strcmp(mix->name, type) == 0;
    }
    hy_status status =
        is_accepted ? HY_OK
                    : hy_fail(HY_ERR_INPUT, "type %.40s is not accepted%s; accepted: %s%s", type,
                              is_adapter ? " for adapters" : "", hy_text_string(&accepted),
                              is_adapter ? "; --merge writes a whole model" : "");
    hy_text_free(&accepted);
    return status;
}

bool hy_gguf_is_plain(const char *type) {
    const hy_gguf_mix *mix = hy_gguf_mix_find(type);
    return mix && hy_block_traits_of(mix->type)->elements == 1;
}

static void choose_mix(export_job *e) {
    const char *name = e->w->dtype == HY_F32 ? "f32" : e->w->dtype == HY_F16 ? "f16" : "bf16";
    e->mix = hy_gguf_mix_find(e->w->type ? e->w->type : name);
}

/* The architecture in the source, if it still describes the model. */
static hy_status choose_shape(export_job *e) {
    hy_hf_config config;
    e->shape = *e->w->shape;
    hy_arch wanted = e->shape.arch;
    if (e->w->source && e->w->source[0]) {
        HY_TRY(hy_hf_config_look(e->w->source, &config));
        wanted = config.shape.arch;
    }
    HY_TRY(hy_arch_check(&e->shape));
    e->shape.arch = hy_arch_choose(&e->shape, wanted);
    return hy_gguf_check(&e->shape, e->w->observer);
}

/* The two matrices of the adapter of a tensor, if it has one. Tensors of one module of ours share
 * the first. */
static hy_status add_adapter(const export_job *e, const hy_hf_name *of, int32_t part,
                             hy_hf_name *list, int32_t *count) {
    const hy_params *params = e->w->params;
    const hy_param *matrix = &params->list[of->param];
    HY_FAIL_IF(matrix->is_beside, HY_ERR_INPUT,
               "%s was trained whole beside the adapters, and an adapter file of llama.cpp has no "
               "place for it; use --merge",
               matrix->name);
    if (hy_linear_bit(matrix->kind) == 0) return HY_OK;
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(&e->shape, matrix->kind);
    int32_t i = pieces.count > 1 ? part : 0;
    if (pieces.adapted == 0 || !pieces.is_there[i]) return HY_OK;
    int32_t a = hy_params_find(params, matrix->unit, hy_adapter_kind(matrix->kind));
    int64_t rank = e->shape.adapter.rank;
    hy_adapter_rows row = hy_adapter_rows_before(&pieces, i, rank);
    hy_hf_name *of_a = &list[(*count)++], *of_b = &list[(*count)++];
    *of_a = (hy_hf_name){
        .param = a, .row = row.a, .rows = rank, .cols = params->list[a].shape[1], .ndim = 2};
    if (of->tiles.are_columns) of_a->tiles = of->tiles;
    *of_b = (hy_hf_name){.param = a + 1,
                         .row = row.b + (pieces.count > 1 ? 0 : of->row),
                         .rows = of->rows,
                         .cols = rank,
                         .ndim = 2,
                         .head_size = of->head_size};
    if (!of->tiles.are_columns) of_b->tiles = of->tiles;
    snprintf(of_a->name, sizeof of_a->name, "%.*s.lora_a", HY_HF_NAME_MAX - 8, of->name);
    snprintf(of_b->name, sizeof of_b->name, "%.*s.lora_b", HY_HF_NAME_MAX - 8, of->name);
    return HY_OK;
}

static hy_status list_adapters(export_job *e) {
    hy_hf_name *all = e->names;
    int32_t every = e->count, part = 0;
    e->count = 0;
    e->names = calloc((size_t)every * 2, sizeof *e->names);
    hy_status status =
        e->names ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for the names of adapters");
    for (int32_t i = 0; i < every && status == HY_OK; i++) {
        part = i > 0 && all[i - 1].param == all[i].param ? part + 1 : 0;
        status = add_adapter(e, &all[i], part, e->names, &e->count);
    }
    free(all);
    return status;
}

/* The types of a mix, or of a list; adapters have one type for all. */
static hy_block_type type_of(const export_job *e, int32_t i) {
    const hy_hf_name *name = &e->names[i];
    const hy_tensor_costs *given = e->w->moments ? e->w->moments->costs : NULL;
    if (given && given->list) return given->list[i].type;
    const hy_shape *s = &e->shape;
    const hy_gguf_arch *arch = &hy_family_of(s->arch)->gguf;
    hy_gguf_mix_model model = {.architecture = arch->name,
                               .layers = s->layers,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .is_tied = s->has_tied_head && !arch->needs_head};
    bool is_vector = name->ndim == 1;
    if (!e->w->is_adapter)
        return hy_gguf_mix_type(e->mix, &model, name->name, is_vector ? 1 : name->rows,
                                is_vector ? name->rows : name->cols);
    bool fits = name->cols % hy_block_traits_of(e->mix->type)->elements == 0;
    return fits ? e->mix->type : HY_BLOCK_F16;
}

/* A list that the export fills. */
static hy_status begin_costs(export_job *e) {
    hy_tensor_costs *costs = e->w->moments ? e->w->moments->costs : NULL;
    if (!costs || costs->list) return HY_OK;
    costs->list = calloc((size_t)e->count, sizeof *costs->list);
    if (!costs->list) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of tensors");
    costs->count = e->count;
    e->costs = costs;
    for (int32_t i = 0; i < e->count; i++) {
        costs->list[i].type = e->tensors[i].type;
        costs->list[i].elements = e->names[i].rows * e->names[i].cols;
    }
    return HY_OK;
}

static hy_status list_tensors(export_job *e) {
    HY_TRY(hy_gguf_list_names(&e->shape, e->w->params, &e->names, &e->count));
    if (e->w->is_adapter) HY_TRY(list_adapters(e));
    e->made_count = e->w->is_adapter ? 0 : hy_gguf_shape_tensors(&e->shape, e->made);
    e->tensors = calloc((size_t)(e->count + e->made_count), sizeof *e->tensors);
    if (!e->tensors) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of tensors");
    for (int32_t i = 0; i < e->count; i++) {
        const hy_hf_name *name = &e->names[i];
        e->tensors[i] = (hy_gguf_tensor){.name = name->name,
                                         .type = type_of(e, i),
                                         .ndim = name->ndim,
                                         .shape = {name->rows, name->cols}};
        e->total += name->rows * name->cols;
    }
    for (int i = 0; i < e->made_count; i++)
        e->tensors[e->count + i] =
            (hy_gguf_tensor){.name = e->made[i].name, .ndim = 1, .shape = {e->made[i].count}};
    return begin_costs(e);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void put_name(const char *path, hy_gguf_keys *keys) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t size = strlen(name);
    if (hy_has_ending(name, ".gguf")) size -= 5;
    hy_gguf_put_bytes(keys, "general.name", name, size);
}

static hy_status put_keys(const export_job *e, hy_gguf_keys *keys) {
    bool is_adapter = e->w->is_adapter;
    hy_gguf_put_string(keys, "general.architecture", hy_family_of(e->shape.arch)->gguf.name);
    hy_gguf_put_string(keys, "general.type", is_adapter ? "adapter" : "model");
    put_name(e->w->folder, keys);
    hy_gguf_put_int(keys, "general.file_type", HY_GGUF_U32, e->mix->file_type);
    hy_gguf_put_int(keys, "general.quantization_version", HY_GGUF_U32, QUANTISATION);
    if (!is_adapter) {
        hy_gguf_put_shape(&e->shape, keys);
        return hy_gguf_put_tokenizer(e->w, e->shape.vocab, keys);
    }
    const hy_adapter *adapter = &e->shape.adapter; /* llama.cpp divides alpha by the rank */
    hy_gguf_put_string(keys, "adapter.type", "lora");
    hy_gguf_put_f32(keys, "adapter.lora.alpha", adapter->scale * adapter->rank);
    return HY_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Rows of a piece: whole heads if they are paired; all of a vector. */
static int64_t rows_at_once(const hy_hf_name *name) {
    int64_t unit = name->head_size ? name->head_size : 1;
    int64_t rows = PIECE / name->cols / unit * unit;
    if (rows < unit) rows = unit;
    return name->ndim == 1 || rows > name->rows ? name->rows : rows;
}

/* Rows of the file. */
static hy_status read_rows(const export_job *e, const hy_hf_name *name, int64_t first, int64_t rows,
                           float *out) {
    for (int64_t at = first, end = first + rows, run; at < end; at += run) {
        int64_t ours = hy_gguf_row_of_ours(name, at, &run);
        if (run > end - at) run = end - at;
        HY_TRY(e->w->read(e->w->context, name->param, (name->row + ours) * name->cols,
                          run * name->cols, out + (at - first) * name->cols));
    }
    return HY_OK;
}

/* Reads the next piece; false: none is left, or reading failed. */
static bool next_piece(void *context, void *slot) {
    export_job *e = context;
    piece *p = slot;
    if (e->at == e->end || e->failure.status != HY_OK) return false;
    const hy_hf_name *name = &e->names[e->at];
    int64_t rows = rows_at_once(name), left = name->rows - e->row;
    p->tensor = e->at;
    p->rows = rows < left ? rows : left;
    hy_status status = read_rows(e, name, e->row, p->rows, p->numbers);
    e->row += p->rows;
    if (e->row == name->rows) e->at++, e->row = 0;
    if (status != HY_OK) hy_error_save(&e->failure, status);
    return status == HY_OK;
}

static hy_status encode_piece(void *context, void *slot) {
    const export_job *e = context;
    piece *p = slot;
    const hy_hf_name *name = &e->names[p->tensor];
    hy_block_type type = e->tensors[p->tensor].type;
    hy_param_kind kind = e->w->params->list[name->param].kind;
    int64_t count = p->rows * name->cols;
    float *numbers = p->numbers, offset = hy_gguf_surplus(&e->shape, name, kind);
    HY_TRY(hy_hf_check_numbers(name->name, numbers, count,
                               type == HY_BLOCK_F16 ? "--type bf16" : NULL));
    if (name->head_size) {
        hy_gguf_pair(numbers, p->rows, name->cols, name->head_size, p->paired);
        numbers = p->paired;
    }
    if (name->tiles.are_columns) {
        hy_gguf_tile_columns(&name->tiles, numbers, p->rows, name->cols, sizeof *numbers, true,
                             p->paired);
        numbers = p->paired;
    }
    for (int64_t i = 0; i < count && offset != 0; i++) numbers[i] += offset;
    for (int64_t i = 0; i < count && kind == HY_P_A_LOG; i++)
        numbers[i] = (float)-exp((double)numbers[i]);
    bool is_vector = name->ndim == 1;
    hy_status status = HY_OK;
    p->cost = (hy_rounding_cost){0};
    /* moments are in our order of columns */
    bool has_moments = e->moments.size > 0 && !name->tiles.are_columns;
    if (has_moments && hy_block_traits_of(type)->elements > 1)
        status = hy_round_rows(type, numbers, p->rows, &e->moments, p->bytes, &p->cost);
    else
        hy_blocks_encode(type, numbers, is_vector ? 1 : p->rows, is_vector ? count : name->cols,
                         NULL, p->bytes);
    HY_TRY(status);
    HY_FAIL_IF(!hy_blocks_are_finite(type, p->bytes, count), HY_ERR_NUMERIC,
               "%s contains numbers that are too large for %s; use --type bf16", name->name,
               hy_block_traits_of(type)->name);
    return HY_OK;
}

static hy_status write_piece(void *context, void *slot, bool is_caller) {
    export_job *e = context;
    piece *p = slot;
    const hy_observer *observer = e->w->observer;
    int64_t count = p->rows * e->names[p->tensor].cols;
    HY_TRY(hy_gguf_put(e->out, p->bytes, hy_blocks_bytes(e->tensors[p->tensor].type, count)));
    e->done += count;
    if (e->costs) {
        e->costs->list[p->tensor].cost.error += p->cost.error;
        e->costs->list[p->tensor].cost.signal += p->cost.signal;
    }
    if (is_caller && observer && observer->on_progress)
        observer->on_progress(observer->user, "writing", (double)e->done / (double)e->total);
    return HY_OK;
}

static void free_pieces(piece *pieces, int32_t count) {
    for (int32_t i = 0; pieces && i < count; i++) {
        free(pieces[i].numbers);
        free(pieces[i].paired);
        free(pieces[i].bytes);
    }
    free(pieces);
}

static hy_status make_pieces(const export_job *e, int32_t count, piece **out) {
    int64_t most = 0, paired = 0;
    for (int32_t i = 0; i < e->count; i++) {
        int64_t elements = rows_at_once(&e->names[i]) * e->names[i].cols;
        if (elements > most) most = elements;
        bool is_moved = e->names[i].head_size || e->names[i].tiles.are_columns;
        if (elements > paired && is_moved) paired = elements;
    }
    piece *pieces = calloc((size_t)count, sizeof *pieces);
    bool has_memory = pieces;
    for (int32_t i = 0; has_memory && i < count; i++) {
        pieces[i].numbers = malloc((size_t)most * sizeof(float));
        pieces[i].paired = malloc((size_t)(paired + 1) * sizeof(float));
        pieces[i].bytes = malloc((size_t)most * sizeof(float)); /* fp32 is the largest type */
        has_memory = pieces[i].numbers && pieces[i].paired && pieces[i].bytes;
    }
    *out = pieces;
    if (has_memory) return HY_OK;
    free_pieces(pieces, count);
    *out = NULL;
    return hy_fail(HY_ERR_MEMORY, "not enough memory to write weights");
}

/* With calibration, one parameter at a time: its moments are measured on this thread. */
static hy_status write_parameters(export_job *e, const hy_in_order *job) {
    const hy_moments_source *source = e->w->moments;
    while (e->at < e->count && e->failure.status == HY_OK) {
        int32_t param = e->names[e->at].param;
        for (e->end = e->at; e->end < e->count && e->names[e->end].param == param;) e->end++;
        hy_moments_fini(&e->moments);
        HY_TRY(hy_moments_take(source, &e->w->params->list[param], e->threads, e->w->observer,
                               &e->moments));
        HY_TRY(hy_in_order_run(job));
    }
    return HY_OK;
}

static hy_status write_tensors(export_job *e) {
    e->threads = e->w->threads > 0 ? e->w->threads : hy_machine_threads();
    int32_t workers = e->threads < MOST_THREADS ? e->threads : MOST_THREADS;
    piece *pieces;
    HY_TRY(make_pieces(e, workers, &pieces));
    hy_in_order job = {.context = e,
                       .next = next_piece,
                       .work = encode_piece,
                       .done = write_piece,
                       .slots = pieces,
                       .slot_size = sizeof *pieces,
                       .workers = workers};
    e->end = e->count;
    hy_status status = e->w->moments ? write_parameters(e, &job) : hy_in_order_run(&job);
    hy_moments_fini(&e->moments);
    free_pieces(pieces, workers);
    const hy_observer *observer = e->w->observer;
    if (observer && observer->on_progress) observer->on_progress(observer->user, "writing", 1);
    if (status == HY_OK) status = hy_error_restore(&e->failure);
    for (int i = 0; i < e->made_count && status == HY_OK; i++)
        status = hy_gguf_put(e->out, e->made[i].values,
                             (size_t)e->made[i].count * sizeof e->made[i].values[0]);
    return status;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* "1.9 GiB, 4.85 bits per weight; 120 tensors q4_K, 49 f32" */
static void report(const export_job *e, uint64_t size) {
    hy_text text = {0};
    uint64_t bytes = 0;
    int32_t counts[HY_BLOCK_TYPES] = {0};
    for (int32_t i = 0; i < e->count + e->made_count; i++) {
        bytes += e->tensors[i].bytes;
        counts[e->tensors[i].type]++;
    }
    hy_text_addf(&text, "%s, %.2f bits per weight; tensors:", hy_bytes_as_text(size).text,
                 8 * (double)bytes / (double)e->total);
    bool has_any = false;
    for (uint32_t type = HY_BLOCK_TYPES; type-- > 0;) {
        if (!counts[type]) continue;
        hy_text_addf(&text, "%s %d %s", has_any ? "," : "", counts[type],
                     hy_block_traits_of(type)->name);
        has_any = true;
    }
    hy_say_to(e->w->observer, HY_NOTE, "%s: %s", e->w->folder, hy_text_string(&text));
    hy_text_free(&text);
}

static hy_status write_file(export_job *e) {
    hy_gguf_keys keys = {0};
    const char *path = e->w->folder;
    size_t count = (size_t)(e->count + e->made_count);
    uint64_t size = 0;
    hy_status status = put_keys(e, &keys);
    if (status == HY_OK) status = hy_gguf_layout(path, &keys, e->tensors, count, &size);
    uint64_t space = hy_path_free(path);
    if (status == HY_OK && space < size)
        status = hy_fail(HY_ERR_IO, "%s needs %s, but the disk has only %s free", path,
                         hy_bytes_as_text(size).text, hy_bytes_as_text(space).text);
    if (status == HY_OK) status = hy_gguf_create(path, &keys, e->tensors, count, &e->out);
    hy_gguf_keys_free(&keys);
    HY_TRY(status);
    status = write_tensors(e);
    if (status == HY_OK) {
        status = hy_gguf_finish(e->out);
    } else {
        hy_gguf_abandon(e->out);
    }
    if (status == HY_OK) report(e, size);
    return status;
}

hy_status hy_gguf_write(const hy_hf_writing *w) {
    export_job e = {.w = w};
    if (w->type) HY_TRY(hy_gguf_check_type(w->type, w->is_adapter));
    choose_mix(&e);
    hy_status status = choose_shape(&e);
    if (status == HY_OK) status = list_tensors(&e);
    if (status == HY_OK) status = write_file(&e);
    free(e.names);
    free(e.tensors);
    return status;
}
