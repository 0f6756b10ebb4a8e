/* export_adapter.c: merges a PEFT adapter into a model folder, or writes one of both as a file for
 * llama.cpp. See hybrid.h.
 *
 * No run is needed: the adapter's folder describes the adapter, the model folder has the
 * weights, and the writer requests one piece after the other. Modules that the adapter
 * trains whole come from its own file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "config/builtin.h"
#include "config/config_adapter.h"
#include "hub/hf_load.h"
#include "hub/merge.h"
#include "hub/peft.h"
#include "record/export.h"
#include "record/record.h"
#include "setup/setup.h"

typedef struct pair {
    hy_config *config;
    hy_model *model;
    hy_peft_file adapter;
    hy_weight_files base;
    char base_path[HY_HF_PATH_MAX];
    bool is_merged;
} pair;

/* ---- opening --------------------------------------------------------------------------------- */

/* The model that the caller names, or else the one named in the adapter. */
static hy_status name_base(pair *p, const char *base) {
    const char *adapter = hy_config_settings(p->config)->lora.adapter;
    hy_peft_config config;
    HY_TRY(hy_peft_config_read(adapter, &config));
    const char *name = base && base[0] ? base : config.base;
    HY_FAIL_IF(!name[0], HY_ERR_INPUT,
               "%s does not say which base model it belongs to; name the base model's folder "
               "(--base FOLDER)",
               adapter);
    hy_model_files kind = HY_FILES_NONE;
    bool is_preset = hy_builtin_text("model", name) != NULL;
    if (!is_preset) HY_TRY(hy_hf_find(name, &kind, p->base_path));
    HY_FAIL_IF(
        kind == HY_FILES_NONE, HY_ERR_INPUT,
        "the base model of %s is %s, which is %s; name the base model's folder (--base FOLDER)",
        adapter, name, is_preset ? "a shape without weights" : "not there");
    return hy_config_set(p->config, "model", name, HY_FROM_CALLER);
}

static hy_status open_pair(pair *p, const char *adapter, const char *base) {
    hy_shape shape;
    HY_TRY(hy_config_create(&p->config));
    HY_TRY(hy_config_set(p->config, "lora.adapter", adapter, HY_FROM_CALLER));
    const hy_settings *s = hy_config_settings(p->config);
    HY_TRY(hy_settings_check_adapters(s));
    HY_TRY(name_base(p, base));
    HY_TRY(hy_origin_check_adapter(NULL, s, s->lora.adapter));
    HY_TRY(hy_shape_from_settings(s, &shape));
    HY_TRY(hy_model_create(&shape, &p->model));
    HY_TRY(hy_settings_select(s, p->model));
    HY_TRY(hy_peft_open(s->lora.adapter, p->model, &p->adapter));
    return p->is_merged ? hy_weight_files_open(p->base_path, p->model, &p->base) : HY_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Rows [row, row + rows) of a parameter from the adapter's file, where it is one tensor or
 * several. */
static hy_status read_rows(const pair *p, int32_t param, int64_t row, int64_t rows, float *out) {
    for (int32_t i = 0; i < p->adapter.count; i++) {
        const hy_hf_name *name = &p->adapter.names[i];
        int64_t begin = name->row > row ? name->row : row;
        int64_t end = name->row + name->rows < row + rows ? name->row + name->rows : row + rows;
        if (name->param != param || begin >= end) continue;
        HY_TRY(hy_peft_read(&p->adapter, i, begin - name->row, end - begin,
                            out + (begin - row) * name->cols));
    }
    return HY_OK;
}

/* Elements [first, first + count) of a parameter from the adapter's file; they may begin and end
 * inside a row. */
static hy_status read_trained(const pair *p, int32_t param, int64_t first, int64_t count,
                              float *out) {
    const hy_param *of = &p->model->params.list[param];
    int64_t width = hy_param_width(of), row = first / width;
    int64_t rows = (first + count + width - 1) / width - row;
    float *whole = malloc((size_t)(rows * width) * sizeof *whole);
    if (!whole) return hy_fail(HY_ERR_MEMORY, "not enough memory to read %s", of->name);
    hy_status status = read_rows(p, param, row, rows, whole);
    if (status == HY_OK) memcpy(out, whole + first % width, (size_t)count * sizeof *out);
    free(whole);
    return status;
}

static hy_status read_pair(void *context, int32_t param, int64_t first, int64_t count, float *out) {
    const pair *p = context;
    const hy_param *of = &p->model->params.list[param];
    bool is_trained = hy_is_adapter(of->kind) || of->is_beside;
    return is_trained ? read_trained(p, param, first, count, out)
                      : hy_weight_files_read(&p->base, param, first, count, out);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A model with the adapter merged, the adapter alone, or without one the model. */
static hy_status write_pair(pair *p, const hy_export_request *request) {
    const hy_settings *s = hy_config_settings(p->config);
    const char *adapter = s->lora.adapter;
    hy_export_plan plan;
    hy_dtype_choice dtype;
    HY_TRY(hy_export_check_apart(request, p->base_path));
    HY_TRY(hy_export_check_apart(request, adapter));
    HY_TRY(hy_export_choose_dtype(request->options, &dtype));
    HY_TRY(hy_export_prepare(s, dtype, HY_BF16, &plan));
    HY_TRY(hy_prompt_format_read(adapter[0] ? adapter : p->base_path, &plan.prompt));
    hy_merge sum = hy_merge_begin(&p->model->shape, &p->model->params, read_pair, p);
    hy_hf_writing writing = hy_export_writing(request);
    writing.read = p->is_merged ? hy_merge_read : read_pair;
    writing.context = p->is_merged ? (void *)&sum : p;
    writing.is_adapter = adapter[0] && !p->is_merged;
    hy_status status = hy_export_write(&plan, p->model, writing);
    hy_merge_end(&sum);
    return status;
}

static void close_pair(pair *p) {
    hy_weight_files_close(&p->base);
    hy_peft_close(&p->adapter);
    hy_model_destroy(p->model);
    hy_config_destroy(p->config);
}

hy_status hy_merge_adapter(const char *adapter, const hy_export_options *options,
                           const hy_observer *observer) {
    static const hy_observer nobody = {0};
    hy_export_request request = {.options = options, .observer = observer ? observer : &nobody};
    pair p = {.is_merged = !options->gguf || options->merge};
    HY_FAIL_IF(options->calibrate, HY_ERR_INPUT,
               "--calibrate needs a run or a model folder; merge the adapter into a folder first "
               "(--out FOLDER), and export that");
    HY_FAIL_IF(options->scale != 0 && options->scale != 1, HY_ERR_INPUT,
               "--scale is for runs; an adapter of PEFT is scaled by lora_alpha in its "
               "adapter_config.json");
    HY_TRY(hy_export_check_out(options));
    HY_FAIL_IF(!adapter || !adapter[0], HY_ERR_INPUT, "the name of the adapter to merge is empty");
    hy_status status = open_pair(&p, adapter, options->base);
    if (status == HY_OK) status = write_pair(&p, &request);
    if (status == HY_OK && p.is_merged)
        hy_say_to(request.observer, HY_NOTE, "merged %s into the weights of %s",
                  hy_config_settings(p.config)->lora.adapter, p.base_path);
    close_pair(&p);
    return status;
}

/* ---- a model without a run ------------------------------------------------------------------- */

bool hy_export_is_model(const char *name) {
    char config[HY_PATH_MAX], manifest[HY_PATH_MAX], path[HY_HF_PATH_MAX];
    hy_model_files kind;
    if (!hy_path_is_dir(name)) return hy_hf_find(name, &kind, path) == HY_OK && kind;
    return hy_path_join(config, sizeof config, name, "config.json") == HY_OK &&
           hy_path_join(manifest, sizeof manifest, name, "manifest.json") == HY_OK &&
           hy_path_exists(config) && !hy_path_exists(manifest) && !hy_peft_is_folder(name);
}

hy_status hy_export_model(const char *name, const hy_export_request *request) {
    pair p = {0};
    const hy_export_options *o = request->options;
    HY_FAIL_IF(o->merge || o->onto || (o->base && o->base[0]), HY_ERR_INPUT,
               "%s is a model without adapters; --merge, --merge-onto and --base are for a run or "
               "for --adapter",
               name);
    HY_FAIL_IF(
        o->scale != 0 && o->scale != 1, HY_ERR_INPUT,
        "%s is a model without a run, so what it began with is not known; --scale is for runs",
        name);
    hy_model_files kind;
    hy_shape shape;
    hy_status status = hy_config_create(&p.config);
    if (status == HY_OK) status = hy_config_set(p.config, "model", name, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_hf_find(name, &kind, p.base_path);
    if (status == HY_OK) status = hy_shape_from_settings(hy_config_settings(p.config), &shape);
    if (status == HY_OK) status = hy_model_create(&shape, &p.model);
    if (status == HY_OK) status = hy_weight_files_open(p.base_path, p.model, &p.base);
    if (status == HY_OK) status = write_pair(&p, request);
    close_pair(&p);
    return status;
}
