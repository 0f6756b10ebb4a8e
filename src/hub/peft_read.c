/* peft_read.c: reads the tensors of an adapter's folder. See peft.h.
 *
 * Training and inference load adapters with it. Names and shapes are checked before anything is
 * read, and every number is finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "hub/peft.h"
#include "model/adapter.h"

#define PIECE (1 << 20) /* elements read at a time */

/* ---- checks ---------------------------------------------------------------------------------- */

static hy_status check_tensor(const char *path, const hy_hf_name *name, bool is_table,
                              const hy_safetensors_entry *entry) {
    HY_FAIL_IF(
        !entry, HY_ERR_INPUT,
        "%s: tensor \"%s\" is missing: the adapter belongs to another model or to other modules%s",
        path, name->name,
        is_table ? " (in this model the embedding and the head share one table)" : "");
    int64_t expected[3];
    hy_hf_dims(name, expected);
    bool fits = entry->ndim == name->ndim &&
                memcmp(entry->shape, expected, (size_t)name->ndim * sizeof *expected) == 0;
    HY_FAIL_IF(!fits, HY_ERR_INPUT,
               "%s: %s is %s, but this model needs %s: the adapter belongs to another model or has "
               "another rank (without --lora-rank, the adapter sets it)",
               path, name->name, hy_dims_to_text(entry->shape, entry->ndim).text,
               hy_dims_to_text(expected, name->ndim).text);
    HY_FAIL_IF(!hy_is_real(entry->dtype), HY_ERR_INPUT,
               "%s: %s is %s; accepted are fp32, bf16 and fp16", path, name->name,
               hy_safetensors_type(entry));
    return HY_OK;
}

static bool is_again(const hy_hf_name *names, int32_t i) {
    return i > 0 && names[i].param == names[i - 1].param && names[i].row == names[i - 1].row;
}

static hy_status check_all(const char *path, const hy_safetensors *file, const hy_hf_name *names,
                           int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        bool is_table = is_again(names, i) || (i + 1 < count && is_again(names, i + 1));
        const hy_safetensors_entry *entry = hy_safetensors_find(file, names[i].name);
        HY_TRY(check_tensor(path, &names[i], is_table, entry));
    }
    if (hy_safetensors_count(file) == (size_t)count) return HY_OK;
    for (size_t k = 0; k < hy_safetensors_count(file); k++) {
        const char *name = hy_safetensors_at(file, k)->name;
        int32_t i = 0;
        while (i < count && strcmp(names[i].name, name) != 0) i++;
        HY_FAIL_IF(i == count, HY_ERR_INPUT,
                   "%s: tensor \"%.200s\" does not match this model: the adapter belongs to "
                   "another model or to other modules",
                   path, name);
    }
    return HY_OK;
}

/* Two tensors for embedding and head become one here, so they must be equal. */
static hy_status check_tables(const char *path, const hy_safetensors *file, const hy_hf_name *names,
                              int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        bool is_same;
        if (!is_again(names, i)) continue;
        const hy_safetensors_entry *a = hy_safetensors_find(file, names[i - 1].name),
                                   *b = hy_safetensors_find(file, names[i].name);
        HY_TRY(hy_safetensors_compare(file, a, file, b, &is_same));
        HY_FAIL_IF(!is_same, HY_ERR_INPUT,
                   "%s: %s and %s differ, but in this model they share one table", path,
                   names[i - 1].name, names[i].name);
    }
    return HY_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

hy_status hy_peft_open(const char *folder, const hy_model *model, hy_peft_file *out) {
    char path[HY_PATH_MAX], pickle[HY_PATH_MAX];
    *out = (hy_peft_file){0};
    HY_TRY(hy_arch_check(&model->shape));
    HY_TRY(hy_adapter_check_beside(&model->params));
    HY_TRY(hy_path_join(pickle, sizeof pickle, folder, "adapter_model.bin"));
    HY_TRY(hy_path_join(path, HY_PATH_MAX, folder, HY_PEFT_TENSORS));
    /* Older versions of PEFT wrote a pickle file, which can run code. */
    HY_FAIL_IF(hy_path_exists(pickle) && !hy_path_exists(path), HY_ERR_INPUT,
               "%s is not read, because a pickle file can run any code; load it with PEFT and save "
               "it again as " HY_PEFT_TENSORS,
               pickle);
    HY_TRY(hy_safetensors_open(path, &out->tensors));
    hy_status status = hy_peft_list_names(&model->shape, &model->params, &out->names, &out->count);
    if (status == HY_OK) hy_peft_use_old_head(hy_shape_family(&model->shape), out);
    if (status == HY_OK) hy_peft_use_text_prefix(hy_shape_family(&model->shape), out);
    if (status == HY_OK) status = check_all(path, out->tensors, out->names, out->count);
    if (status == HY_OK) status = check_tables(path, out->tensors, out->names, out->count);
    if (status != HY_OK) hy_peft_close(out);
    return status;
}

void hy_peft_close(hy_peft_file *file) {
    free(file->names);
    hy_safetensors_close(file->tensors);
    *file = (hy_peft_file){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

hy_status hy_peft_read(const hy_peft_file *file, int32_t i, int64_t row, int64_t rows, float *out) {
    const hy_hf_name *name = &file->names[i];
    const hy_safetensors_entry *entry = hy_safetensors_find(file->tensors, name->name);
    hy_weight_part part = {.rows = name->rows,
                           .cols = name->cols,
                           .order = name->is_transposed ? HY_PART_TRANSPOSED : HY_PART_PLAIN,
                           .dtype = entry->dtype};
    part.reader = hy_safetensors_place(file->tensors, entry, &part.offset);
    for (int64_t r = row, run; r < row + rows; r += run) {
        int64_t in_file = hy_hf_row_in_file(name, r, &run);
        if (run > row + rows - r) run = row + rows - r;
        HY_TRY(hy_part_read(&part, in_file * name->cols, run * name->cols,
                            out + (r - row) * name->cols));
    }
    /* An adapter that diverged in training makes every answer useless. */
    for (int64_t k = 0; k < rows * name->cols; k++) {
        HY_FAIL_IF(!isfinite(out[k]), HY_ERR_INPUT,
                   "%s: tensor \"%s\" holds %g (row %lld, column %lld): the adapter is not usable, "
                   "or its file is damaged",
                   hy_safetensors_path(file->tensors), name->name, (double)out[k],
                   (long long)(row + k / name->cols), (long long)(k % name->cols));
    }
    return HY_OK;
}

int64_t hy_peft_rows_at_once(const hy_peft_file *file, int32_t i) {
    int64_t rows = PIECE / file->names[i].cols;
    return rows < 1 ? 1 : rows < file->names[i].rows ? rows : file->names[i].rows;
}

static hy_status load_tensor(const hy_peft_file *file, int32_t i, hy_store *store,
                             hy_stream *stream) {
    const hy_hf_name *name = &file->names[i];
    int32_t item = hy_store_item_of(store, name->param);
    if (item < 0) return HY_OK; /* another rank has it */
    hy_dtype dtype = store->layout.items[item].dtype;
    int64_t most = hy_peft_rows_at_once(file, i);
    float *numbers = malloc(2 * (size_t)(most * name->cols) * sizeof *numbers);
    float *made = numbers + most * name->cols; /* in the type of the store, which is not wider */
    hy_status status =
        numbers ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to read an adapter");
    for (int64_t row = 0, rows; row < name->rows && status == HY_OK; row += rows) {
        rows = name->rows - row < most ? name->rows - row : most;
        status = hy_peft_read(file, i, row, rows, numbers);
        if (status != HY_OK) break;
        hy_convert(numbers, HY_F32, rows * name->cols, made, dtype);
        status = hy_store_put(store, stream, item, (name->row + row) * name->cols,
                              rows * name->cols, made);
    }
    free(numbers);
    return status;
}

hy_status hy_peft_load(const char *folder, const hy_model *model, hy_store *store,
                       hy_stream *stream) {
    hy_peft_file file;
    HY_TRY(hy_peft_open(folder, model, &file));
    hy_status status = HY_OK;
    for (int32_t i = 0; i < file.count && status == HY_OK; i++) {
        status = load_tensor(&file, i, store, stream);
    }
    hy_peft_close(&file);
    return status;
}
