/* gguf_load.c: finds the weights of a model in a GGUF file. See gguf_load.h.
 *
 * fp32, fp16 and bf16 are read as they are. Other types, and norms to which llama.cpp adds 1, are
 * decoded while they are read (part_read.c). */
#include "hub/gguf_load.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define HEAD "output.weight"

static const struct {
    hy_block_type type;
    hy_dtype dtype;
} real_types[] = {{HY_BLOCK_F32, HY_F32}, {HY_BLOCK_F16, HY_F16}, {HY_BLOCK_BF16, HY_BF16}};

static hy_status check_tensor(const char *path, const hy_hf_name *name, const hy_gguf_tensor *t) {
    const int64_t expected[2] = {name->rows, name->cols};
    HY_FAIL_IF(!t, HY_ERR_INPUT, "%s: tensor \"%s\" is missing", path, name->name);
    HY_FAIL_IF(t->ndim != name->ndim || memcmp(t->shape, expected, (size_t)t->ndim * 8) != 0,
               HY_ERR_INPUT, "%s: tensor \"%s\" has shape %s, but the model needs %s", path,
               name->name, hy_dims_to_text(t->shape, t->ndim).text,
               hy_dims_to_text(expected, name->ndim).text);
    const hy_block_traits *traits = hy_block_traits_of((uint32_t)t->type);
    HY_FAIL_IF(!traits->can_decode || (t->ndim == 1 && traits->elements > 1), HY_ERR_INPUT,
               "%s: tensor \"%s\" is %s; supported: %s", path, name->name, traits->name,
               t->ndim == 1 ? "f32, f16, bf16" : hy_gguf_readable_types().text);
    return HY_OK;
}

/* One part for each run of rows that are in our order. */
static void split_rows(const hy_hf_name *name, hy_weight_files *out) {
    hy_weight_part whole = out->parts[out->count];
    uint64_t row_bytes = whole.is_decoded ? hy_blocks_bytes(whole.blocks, whole.cols)
                                          : hy_dtype_bytes(whole.dtype, whole.cols);
    for (int64_t row = 0, run; row < name->rows; row += run) {
        hy_weight_part *part = &out->parts[out->count++];
        int64_t ours = hy_gguf_row_of_ours(name, row, &run);
        *part = whole;
        part->row = whole.row + ours;
        part->rows = run;
        part->offset += (uint64_t)row * row_bytes;
    }
}

static hy_status add_part(const char *path, const hy_model *model, const hy_hf_name *name,
                          hy_weight_files *out) {
    const hy_gguf_tensor *t = hy_gguf_find(out->gguf, name->name);
    hy_weight_part *part = &out->parts[out->count];
    hy_param_kind kind = model->params.list[name->param].kind;
    HY_TRY(check_tensor(path, name, t));
    *part = (hy_weight_part){.param = name->param,
                             .row = name->row,
                             .rows = name->rows,
                             .cols = name->cols,
                             .order = name->head_size ? HY_PART_PAIRED : HY_PART_PLAIN,
                             .head_size = name->head_size,
                             .dtype = HY_F32,
                             .is_decoded = true,
                             .blocks = t->type,
                             .surplus = hy_gguf_surplus(&model->shape, name, kind),
                             .rate = kind == HY_P_A_LOG ? t->name : NULL,
                             .tiles = name->tiles};
    if (name->tiles.are_columns) part->order = HY_PART_TILED;
    for (size_t i = 0; i < sizeof real_types / sizeof real_types[0]; i++) {
        bool is_other = part->surplus != 0 || part->rate;
        if (t->type != real_types[i].type || is_other) continue;
        part->dtype = real_types[i].dtype;
        part->is_decoded = false;
    }
    part->reader = hy_gguf_place(out->gguf, t, &part->offset);
    split_rows(name, out);
    return HY_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const hy_hf_name *)a)->name, ((const hy_hf_name *)b)->name);
}

/* All tensors must have a place. Those of rope are in the shape; older files have them even if they
 * are not used. */
static hy_status check_others(const char *path, const hy_hf_name *names, int32_t count,
                              const hy_gguf *file) {
    static const char ignored[] = " rope_freqs.weight rope_factors_long.weight"
                                  " rope_factors_short.weight ";
    for (size_t i = 0; i < hy_gguf_count(file); i++) {
        hy_hf_name wanted;
        const char *name = hy_gguf_at(file, i)->name;
        memcpy(wanted.name, name, strlen(name) + 1); /* both have room for names of GGUF files */
        bool has_place =
            bsearch(&wanted, names, (size_t)count, sizeof *names, compare_names) != NULL;
        bool is_old = hy_has_ending(name, ".attn_rot_embd.weight") ||
                      hy_has_ending(name, ".attn_rot_embd") || hy_word_is_in(ignored, name);
        HY_FAIL_IF(!has_place && !is_old, HY_ERR_INPUT,
                   "%s: tensor \"%s\" does not belong to the model that the keys describe", path,
                   name);
    }
    return HY_OK;
}

static hy_status match(const char *path, const hy_model *model, hy_hf_name *names, int32_t count,
                       hy_weight_files *out) {
    size_t parts = (size_t)count + 1;
    for (int32_t i = 0; i < count; i++)
        parts += (size_t)(names[i].tiles.groups * names[i].tiles.in_group);
    out->parts = calloc(parts, sizeof *out->parts);
    HY_FAIL_IF(!out->parts, HY_ERR_MEMORY, "not enough memory for a list of %d tensors", count);
    for (int32_t i = 0; i < count; i++) {
        /* some architectures write a tied head; then it counts as an own one */
        bool is_left_out = model->shape.has_tied_head && strcmp(names[i].name, HEAD) == 0;
        if (!is_left_out) HY_TRY(add_part(path, model, &names[i], out));
    }
    qsort(names, (size_t)count, sizeof *names, compare_names);
    return check_others(path, names, count, out->gguf);
}

hy_status hy_gguf_open_weights(const char *path, const hy_model *model, hy_weight_files *out) {
    hy_shape shape = model->shape, in_file;
    hy_hf_name *names = NULL;
    hy_text notes = {0};
    int32_t count;
    HY_TRY(hy_gguf_open(path, &out->gguf));
    hy_status status = hy_gguf_read_shape(out->gguf, &in_file, &notes);
    hy_text_free(&notes);
    HY_TRY(status);
    shape.arch = in_file.arch;
    HY_FAIL_IF(!hy_shape_family(&shape)->gguf.modules, HY_ERR_INPUT,
               "%s: llama.cpp has no names for the tensors of %s", path,
               hy_shape_family(&shape)->name);
    status = hy_gguf_list_names(&shape, &model->params, &names, &count);
    if (status == HY_OK) status = match(path, model, names, count, out);
    free(names);
    return status;
}
