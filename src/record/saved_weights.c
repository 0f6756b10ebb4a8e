/* saved_weights.c: see saved_weights.h.
 *
 * config.cfg describes the model and weights.safetensors holds it under our names. If the run
 * averaged its last part, predictor.safetensors holds the sum. */
#include "record/saved_weights.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/json.h"
#include "config/derived.h"
#include "record/record.h"
#include "setup/setup.h"

enum { BLOCK = 1 << 20, WIDEST = 4 /* bytes of an element, at most */ };

/* ---- opening --------------------------------------------------------------------------------- */

/* A parameter's average if it has one (frozen parameters have none), else its weights. */
static const hy_safetensors_entry *entry_of(const hy_saved_weights *s, int32_t param,
                                            const hy_safetensors **file) {
    char name[HY_PARAM_NAME_MAX + 8];
    snprintf(name, sizeof name, "tail.%s", s->model->params.list[param].name);
    const hy_safetensors_entry *sum = s->sum ? hy_safetensors_find(s->sum, name) : NULL;
    *file = sum ? s->sum : s->weights;
    return sum ? sum : hy_safetensors_find(s->weights, s->model->params.list[param].name);
}

static hy_status check_tensors(const hy_saved_weights *s) {
    for (int32_t i = 0; i < s->model->params.count; i++) {
        const hy_param *param = &s->model->params.list[i];
        const hy_safetensors *file;
        const hy_safetensors_entry *e = entry_of(s, i, &file);
        if (!e && s->lacks_base && !hy_is_adapter(param->kind)) continue;
        HY_FAIL_IF(!e, HY_ERR_INPUT, "%s: the weights have no tensor %s", s->path, param->name);
        bool is_known =
            hy_is_real(e->dtype) || (hy_is_coded(e->dtype) && hy_scales_of(file, e->name));
        HY_FAIL_IF(!is_known || e->bytes != hy_dtype_bytes(e->dtype, param->stored), HY_ERR_INPUT,
                   "%s: %s has %llu bytes of %s, which does not match the model", s->path, e->name,
                   (unsigned long long)e->bytes, hy_dtype_name(e->dtype));
    }
    return HY_OK;
}

/* The checkpoint has every value of the run, so the preset and its files are not needed. */
hy_status hy_saved_weights_open(hy_saved_weights *s) {
    hy_shape shape;
    char path[HY_PATH_MAX];
    s->scale = 1;
    HY_TRY(hy_checkpoint_read_config(s->path, &s->config));
    const hy_settings *settings = hy_config_settings(s->config.config);
    HY_TRY(hy_shape_from_settings(settings, &shape));
    HY_TRY(hy_model_create(&shape, &s->model));
    if (shape.adapter.rank > 0) HY_TRY(hy_settings_select(settings, s->model));
    HY_TRY(hy_path_join(path, sizeof path, s->path, "weights.safetensors"));
    HY_TRY(hy_safetensors_open(path, &s->weights));
    HY_TRY(hy_checkpoint_lacks_base(s->path, &s->lacks_base));
    HY_TRY(hy_checkpoint_open_sum(s->path, &s->sum, &s->sum_scale));
    s->raw = malloc((size_t)BLOCK * WIDEST);
    if (!s->raw) return hy_fail(HY_ERR_MEMORY, "not enough memory to read weights");
    return check_tensors(s);
}

void hy_saved_weights_close(hy_saved_weights *s) {
    free(s->raw);
    free(s->before);
    hy_weight_files_close(&s->base);
    hy_safetensors_close(s->weights);
    hy_safetensors_close(s->sum);
    hy_safetensors_close(s->initial);
    hy_model_destroy(s->model);
    hy_saved_config_free(&s->config);
    *s = (hy_saved_weights){0};
}

hy_status hy_saved_weights_open_base(hy_saved_weights *s, const hy_settings *settings) {
    hy_model_files kind;
    hy_settings known = *settings; /* --base names other files, but their weights must be equal */
    char run[HY_PATH_MAX];
    if (s->base_path[0]) return HY_OK; /* it is open */
    if (!known.kept.weights[0]) {
        HY_TRY(hy_path_parent(run, sizeof run, s->path));
        HY_TRY(hy_origin_read(run, &known.kept));
    }
    HY_TRY(hy_origin_find_weights(&known, &kind, s->base_path));
    return hy_weight_files_open(s->base_path, s->model, &s->base);
}

hy_dtype hy_saved_weights_dtype(const hy_saved_weights *s) {
    const hy_safetensors *file;
    hy_dtype held = HY_BF16;
    for (int32_t i = 0; i < s->model->params.count; i++) {
        const hy_safetensors_entry *e = entry_of(s, i, &file);
        if (e && e->dtype == HY_F32) return HY_F32;
        if (e && !hy_is_coded(e->dtype)) held = e->dtype;
    }
    return held;
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* The checkpoint that the run began with; runs of older versions know only the name that they were
 * given, which may have newer checkpoints by now. */
static hy_status find_initial(const hy_saved_weights *s, const char *given,
                              char folder[HY_PATH_MAX]) {
    char path[HY_PATH_MAX];
    hy_json *json;
    const char *known = "";
    HY_TRY(hy_path_join(path, sizeof path, s->path, "trainer.json"));
    HY_TRY(hy_json_read_file(path, &json));
    bool is_known = hy_json_as_string(hy_json_get(hy_json_root(json), "init_from"), &known, NULL);
    snprintf(folder, HY_PATH_MAX, "%s", known);
    hy_json_free(json);
    if (!is_known) return hy_checkpoint_find(&(hy_observer){0}, given, folder);
    HY_FAIL_IF(!hy_path_exists(folder), HY_ERR_INPUT,
               "%s began with %s, which is not there any more", s->path, folder);
    return HY_OK;
}

static hy_status open_initial(hy_saved_weights *s, const char *name) {
    char folder[HY_PATH_MAX], path[HY_PATH_MAX];
    bool lacks_base;
    HY_TRY(find_initial(s, name, folder));
    HY_TRY(hy_checkpoint_lacks_base(folder, &lacks_base));
    HY_FAIL_IF(lacks_base, HY_ERR_INPUT, "%s contains only adapters", folder);
    HY_TRY(hy_path_join(path, sizeof path, folder, "weights.safetensors"));
    return hy_safetensors_open(path, &s->initial);
}

static bool has_adapters(const hy_safetensors *initial, const hy_model *model) {
    for (int32_t i = 0; initial && i < model->params.count; i++) {
        const hy_param *param = &model->params.list[i];
        if (hy_is_adapter(param->kind) && hy_safetensors_find(initial, param->name)) return true;
    }
    return false;
}

/* Parameters that are trained whole began with other weights than zero. */
static bool trains_whole(const hy_saved_weights *s) {
    const hy_params *params = &s->model->params;
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].is_trainable && !hy_is_adapter(params->list[i].kind)) return true;
    }
    return false;
}

hy_status hy_saved_weights_scale(hy_saved_weights *s, const hy_settings *settings, double scale) {
    HY_FAIL_IF(!(scale >= 0 && scale <= 100), HY_ERR_INPUT,
               "the scale is %g; accepted: numbers from 0 to 100 (1: the weights as trained)",
               scale);
    s->scale = scale;
    if (scale == 1 || s->before) return HY_OK;
    const char *adapter = s->config.adapter, *initial = settings->init_from;
    bool is_whole = trains_whole(s);
    if (initial[0]) HY_TRY(open_initial(s, initial));
    if (!adapter[0] && has_adapters(s->initial, s->model)) adapter = initial;
    HY_FAIL_IF(adapter[0], HY_ERR_INPUT,
               "%s began with the adapters of %s, and the product of two matrices that both "
               "changed cannot be scaled from there; adapters that began at zero can",
               s->path, adapter);
    HY_FAIL_IF(is_whole && !initial[0] && !hy_settings_bring_files(settings), HY_ERR_INPUT,
               "%s began with random weights, so it cannot be scaled away from them", s->path);
    if (is_whole && !initial[0]) HY_TRY(hy_saved_weights_open_base(s, settings));
    s->before = malloc((size_t)BLOCK * sizeof *s->before);
    return s->before ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to scale weights");
}

/* ---- reading --------------------------------------------------------------------------------- */

static hy_status read_before(const hy_saved_weights *s, int32_t param, int64_t first, int64_t count,
                             float *out) {
    const hy_param *of = &s->model->params.list[param];
    if (!s->initial) return hy_weight_files_read(&s->base, param, first, count, out);
    const hy_safetensors_entry *e = hy_safetensors_find(s->initial, of->name);
    bool is_same = e && hy_is_real(e->dtype) && e->bytes == hy_dtype_bytes(e->dtype, of->stored);
    HY_FAIL_IF(!is_same, HY_ERR_INPUT,
               "the checkpoint that %s began with has no tensor %s of the same size", s->path,
               of->name);
    return hy_read_floats(s->initial, e, of, first, count, out, s->raw);
}

/* A matrix B began at zero, and its product with A grows as it does. */
static hy_status scale_block(const hy_saved_weights *s, int32_t param, int64_t first, int64_t count,
                             float *out) {
    const hy_param *of = &s->model->params.list[param];
    bool is_b = hy_is_adapter_b(of->kind);
    if (!of->is_trainable || (hy_is_adapter(of->kind) && !is_b)) return HY_OK;
    if (!is_b) HY_TRY(read_before(s, param, first, count, s->before));
    for (int64_t i = 0; i < count; i++) {
        double start = is_b ? 0 : s->before[i];
        out[i] = (float)(start + s->scale * (out[i] - start));
    }
    return HY_OK;
}

hy_status hy_saved_weights_read(void *saved, int32_t param, int64_t first, int64_t count,
                                float *out) {
    hy_saved_weights *s = saved;
    const hy_safetensors *file;
    const hy_safetensors_entry *e = entry_of(s, param, &file);
    if (!e) return hy_weight_files_read(&s->base, param, first, count, out);
    double scale = file == s->sum ? s->sum_scale : 1;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t some = count - at < BLOCK ? count - at : BLOCK;
        HY_TRY(hy_read_floats(file, e, &s->model->params.list[param], first + at, some, out + at,
                              s->raw));
        for (int64_t i = at; scale != 1 && i < at + some; i++) out[i] = (float)(out[i] * scale);
        if (s->scale != 1) HY_TRY(scale_block(s, param, first + at, some, out + at));
    }
    return HY_OK;
}
