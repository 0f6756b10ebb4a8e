/* export_checkpoint.c: writes a checkpoint as a folder for transformers. See hybrid.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "formats/checkpoint.h"
#include "hub/merge.h"
#include "hub/peft.h"
#include "hub/requantise.h"
#include "kernels/coded.h"
#include "record/export.h"
#include "record/record.h"
#include "record/saved_weights.h"
#include "setup/setup.h"

/* ---- what it began as ------------------------------------------------------------------------ */

/* The model that the run started from: the copy in the run folder, its old path, or the path
 * that the caller names. Without it the export would lack the architecture, the tokenizer and
 * the end tokens. */
static hy_status find_origin(const hy_saved_weights *s, const char *base, hy_settings *settings) {
    char run[HY_PATH_MAX], path[HY_HF_PATH_MAX];
    hy_model_files kind;
    const char *model = base && base[0] ? base : s->config.model;
    bool has_files = !hy_builtin_text("model", model) && !hy_has_ending(model, ".cfg");
    HY_FAIL_IF(strlen(model) >= sizeof settings->model, HY_ERR_INPUT, "path %s is too long", model);
    strcpy(settings->model, model);
    if (model != s->config.model) settings->lora.base[0] = 0; /* replaced by --base */
    if (model == s->config.model) {
        HY_TRY(hy_path_parent(run, sizeof run, s->path));
        HY_TRY(hy_origin_read(run, &settings->kept));
    }
    if (settings->kept.tokenizer[0])
        memcpy(settings->input.tokenizer, settings->kept.tokenizer,
               sizeof settings->kept.tokenizer);
    if (settings->kept.folder[0] || !has_files) return HY_OK;
    HY_TRY(hy_settings_model_files(settings, &kind, path));
    HY_FAIL_IF(kind == HY_FILES_NONE, HY_ERR_INPUT,
               "the model that the run started from, %s, was not found; the export needs its "
               "architecture, tokenizer and end tokens: name its folder (--base FOLDER)",
               model);
    return HY_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* The weights that adapters are added to: the base as quantised in training, or the files. */
typedef struct merging {
    hy_requantise base;
    hy_merge sum;
} merging;

/* Did training use quantised weights? */
static bool was_coded(const hy_saved_weights *s) {
    bool is_any = false;
    for (int32_t i = 0; i < s->model->params.count; i++) {
        is_any |= hy_is_coded(hy_params_stored(&s->model->params, i, HY_F32));
    }
    return is_any;
}

static hy_status choose_onto(const hy_saved_weights *s, const char *onto, bool *as_files) {
    *as_files = onto && strcmp(onto, "folder") == 0;
    HY_FAIL_IF(onto && !*as_files && strcmp(onto, "trained") != 0, HY_ERR_INPUT,
               "--merge-onto is %.40s; accepted: trained, folder", onto);
    HY_FAIL_IF(*as_files && was_coded(s) && !s->lacks_base, HY_ERR_INPUT,
               "%s holds its base weights only as %s, so there is no folder with the original "
               "weights; use --merge-onto trained",
               s->path, hy_settings_frozen_name(hy_config_settings(s->config.config)));
    return HY_OK;
}

/* Says which weights the adapters were merged into, and how to compare them with the others. */
static void report_base(const hy_saved_weights *s, bool as_files, const hy_observer *observer) {
    const char *from = s->lacks_base ? s->base_path : s->path;
    const char *name = hy_settings_frozen_name(hy_config_settings(s->config.config));
    const char *type = name[0] ? name : "the types of its groups";
    const char *hint = s->lacks_base
                           ? "; --eval-batches 20 measures the difference to the folder's "
                             "weights (--merge-onto folder)"
                           : "";
    if (!was_coded(s))
        hy_say_to(observer, HY_NOTE, "merged into the weights of %s", from);
    else if (as_files)
        hy_say_to(observer, HY_NOTE,
                  "merged into the original weights of %s; training used them in %s; "
                  "--eval-batches 20 measures the difference",
                  from, type);
    else
        hy_say_to(observer, HY_NOTE,
                  "merged into the weights of %s, quantised to %s as in training%s", from, type,
                  hint);
}

static hy_status begin_merge(hy_saved_weights *s, const hy_export_request *request,
                             const hy_settings *settings, bool *as_files, merging *m) {
    const hy_shape *shape = &s->model->shape;
    const hy_params *params = &s->model->params;
    HY_FAIL_IF(shape->adapter.rank == 0, HY_ERR_INPUT, "%s has no adapters to merge", s->path);
    HY_TRY(choose_onto(s, request->options->onto, as_files));
    if (s->lacks_base) HY_TRY(hy_saved_weights_open_base(s, settings));
    /* Quantised values, of the checkpoint or of the folder, are decoded. */
    bool is_recoded = s->lacks_base && !*as_files && !s->base.keeps_codes;
    m->base = hy_requantise_begin(params, hy_saved_weights_read, s);
    m->sum = hy_merge_begin(shape, params, is_recoded ? hy_requantise_read : hy_saved_weights_read,
                            is_recoded ? (void *)&m->base : s);
    return HY_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static hy_status write_model(hy_saved_weights *s, const hy_export_request *request) {
    const hy_export_options *options = request->options;
    hy_settings settings = *hy_config_settings(s->config.config);
    hy_export_plan plan;
    char name[HY_PATH_MAX];
    hy_dtype_choice dtype;
    HY_TRY(hy_export_choose_dtype(options, &dtype));
    HY_TRY(find_origin(s, options->base, &settings));
    HY_TRY(hy_export_prepare(&settings, dtype, hy_saved_weights_dtype(s), &plan));
    HY_TRY(hy_export_check_apart(request, plan.source));
    HY_TRY(hy_prompt_format_read_run(s->path, &plan.prompt));
    if (options->scale != 0) HY_TRY(hy_saved_weights_scale(s, &settings, options->scale));
    bool is_merged = options->merge || options->onto, as_files = false;
    bool is_adapter = s->model->shape.adapter.rank > 0 && !is_merged;
    if (is_adapter) plan.dtype = hy_dtype_chosen(dtype, hy_saved_weights_dtype(s));
    merging merge = {0};
    if (is_merged) HY_TRY(begin_merge(s, request, &settings, &as_files, &merge));
    if (s->base_path[0]) HY_TRY(hy_export_check_apart(request, s->base_path));
    hy_export_base_name(settings.lora.base[0] ? settings.lora.base : settings.model, name);
    hy_hf_writing writing = hy_export_writing(request);
    writing.read = is_merged ? hy_merge_read : hy_saved_weights_read;
    writing.context = is_merged ? (void *)&merge.sum : s;
    writing.is_adapter = is_adapter;
    writing.base = name;
    hy_status status = hy_export_write(&plan, s->model, writing);
    hy_merge_end(&merge.sum);
    hy_requantise_end(&merge.base);
    if (status == HY_OK && is_merged) report_base(s, as_files, request->observer);
    return status;
}

hy_status hy_export_find(const char *name, const hy_observer *observer, char path[PATH_MAX]) {
    char found[HY_PATH_MAX], manifest[HY_PATH_MAX];
    HY_FAIL_IF(hy_peft_is_folder(name), HY_ERR_INPUT, "%s is an adapter; name it with --adapter",
               name);
    HY_TRY(hy_path_join(manifest, sizeof manifest, name, "manifest.json"));
    bool is_run = hy_path_is_dir(name) && !hy_path_exists(manifest);
    HY_TRY(is_run ? hy_checkpoint_newest(name, found, sizeof found)
                  : hy_checkpoint_find(observer, name, found));
    HY_FAIL_IF(!realpath(found, path), HY_ERR_IO, "cannot read %s: %s", found, strerror(errno));
    return HY_OK;
}

hy_status hy_export_checkpoint(const char *checkpoint, const hy_export_request *request) {
    hy_saved_weights s = {0};
    HY_TRY(hy_export_check_out(request->options));
    if (hy_export_is_model(checkpoint)) return hy_export_model(checkpoint, request);
    HY_TRY(hy_export_find(checkpoint, request->observer, s.path));
    hy_status status = hy_saved_weights_open(&s);
    if (status == HY_OK) status = write_model(&s, request);
    hy_saved_weights_close(&s);
    return status;
}

hy_status hy_export(const char *checkpoint, const hy_export_options *options,
                    const hy_observer *observer) {
    static const hy_observer nobody = {0};
    hy_export_request request = {.options = options, .observer = observer ? observer : &nobody};
    HY_FAIL_IF(options->calibrate, HY_ERR_INPUT, "hy_export_evaluate takes calibration text");
    return hy_export_checkpoint(checkpoint, &request);
}
