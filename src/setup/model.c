/* model.c: creates the model of a run from its settings: shape, adapters, trained parameters,
 * and how frozen ones are stored. See setup.h.
 *
 * It is called before anything is planned. Errors name the wrong key. */
#include "base/error.h"
#include "base/say.h"
#include "config/config_adapter.h"
#include "config/derived.h"
#include "engine/engine.h"
#include "hub/bnb.h"
#include "hub/hf_load.h"
#include "kernels/coded.h"
#include "model/adapter.h"
#include "model/param_layout.h"
#include "optim/groups.h"
#include "setup/setup.h"

/* Matrices that are not quantised in a quantised folder stay that way here. Missing files are
 * reported when they are read. */
static hy_status keep_skipped(const hy_settings *s, hy_model *model) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    if (!hy_is_coded(model->params.frozen_codes)) return HY_OK;
    if (hy_settings_base_files(s, &kind, path) != HY_OK || kind != HY_FILES_HF) return HY_OK;
    return hy_bnb_mark_skipped(path, &model->shape, &model->params);
}

static void set_codes(const hy_settings *s, hy_params *params) {
    params->frozen_codes = hy_dtype_chosen(s->train.frozen_dtype, HY_F32);
    params->has_plain_scales = s->train.frozen_dtype == HY_DTYPE_NF4_SINGLE;
}

hy_status hy_settings_store_frozen(const hy_settings *s, hy_model *model) {
    set_codes(s, &model->params);
    HY_TRY(keep_skipped(s, model));
    hy_model_settle(model);
    return HY_OK;
}

static hy_status apply_groups(const hy_settings *s, hy_model *model) {
    hy_status status = hy_groups_apply(s->optimizer.groups, &model->params);
    if (status != HY_OK) return hy_fail_context(status, "optimizer.groups");
    hy_model_settle(model);
    return HY_OK;
}

hy_status hy_settings_select(const hy_settings *s, hy_model *model) {
    char names[2 * HY_TEXT_MAX];
    hy_settings_trained(s, names, sizeof names);
    hy_status status = s->lora.lora ? hy_adapter_check_modules(s->lora.lora_modules) : HY_OK;
    if (status == HY_OK) {
        status = hy_model_select(model, names, hy_dtype_chosen(s->train.frozen_dtype, HY_F32));
    }
    if (status == HY_OK && s->lora.lora) status = hy_params_mark_beside(&model->params, names);
    const char *key = s->lora.lora ? "lora.lora_modules" : "train.train";
    if (status != HY_OK) return hy_fail_context(status, "%s", key);
    HY_TRY(hy_settings_store_frozen(s, model));
    return apply_groups(s, model);
}

hy_status hy_settings_make_model(const hy_settings *s, hy_model **out) {
    hy_shape shape;
    HY_TRY(hy_shape_from_settings(s, &shape));
    HY_TRY(hy_settings_check_base(s));
    hy_loss loss = hy_loss_from_settings(s);
    HY_TRY(hy_model_create(&shape, out));
    hy_model_set_loss(*out, &loss);
    HY_TRY(hy_settings_check_adapters(s));
    HY_TRY(hy_settings_select(s, *out));
    if (!s->save.resume[0]) { /* for a resumed run this was checked when it began */
        hy_status status = hy_adapter_check_beside(&(*out)->params);
        if (status != HY_OK) return hy_fail_context(status, "lora.lora_modules");
    }
    return HY_OK;
}

/* NF4 has blocks of 64 numbers of a row. Matrices with other rows stay as they are, which takes
 * more memory than the name of the type promises. */
static void say_not_coded(const hy_engine *e) {
    const hy_params *params = &e->model->params;
    int32_t all = 0, kept = 0, first = 0;
    hy_dtype type = HY_F32;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        hy_dtype codes = hy_params_codes(params, i);
        bool is_matrix = hy_linear_bit(p->kind) || p->frozen_as;
        if (p->is_trainable || !hy_is_coded(codes) || !is_matrix) continue;
        bool is_kept = hy_param_block(p, codes) == 0;
        type = codes;
        if (is_kept && kept == 0) first = i;
        kept += is_kept;
        all++;
    }
    if (e->custom && all == 0 && hy_is_coded(params->frozen_codes)) {
        hy_say_to(e->observer, HY_WARNING,
                  "frozen_dtype is %s, but no parameter is stored in it: expected frozen matrices "
                  "with rows of at least %d numbers, other than embeddings and heads",
                  hy_dtype_name(params->frozen_codes), HY_NF4_BLOCK);
    }
    if (kept == 0) return;
    hy_say_to(e->observer, HY_WARNING,
              "%d of %d frozen matrices are not stored in %s: their rows are not a multiple of %d "
              "numbers (the first has rows of %lld); they keep %s",
              kept, all, hy_dtype_name(type), HY_NF4_BLOCK,
              (long long)hy_param_width(&params->list[first]),
              e->custom ? "their own type" : "the type of training");
}

hy_status hy_engine_make_model(hy_engine *e) {
    const hy_settings *s = e->request.settings;
    if (e->custom) {
        HY_TRY(hy_custom_make_model(e));
        set_codes(s, &e->model->params);
        HY_TRY(apply_groups(s, e->model));
        say_not_coded(e);
        return HY_OK;
    }
    e->base_is_named = s->lora.lora && hy_settings_bring_files(s);
    e->request.make_model = hy_settings_make_model;
    HY_TRY(hy_settings_make_model(s, &e->model));
    say_not_coded(e);
    return HY_OK;
}
