/* inference_model.c: settings, device, model and weights for inference. See inference.h.
 *
 * Weights are on the device if they fit there with everything else; otherwise they stay in
 * pinned memory and stream through a ring, unit by unit, in every pass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "infer/inference.h"
#include "kernels/coded.h"
#include "record/record.h"
#include "record/state_files.h"
#include "setup/setup.h"

/* ---- naming a model -------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *file) {
    char path[HY_PATH_MAX];
    return hy_path_join(path, sizeof path, folder, file) == HY_OK && hy_path_exists(path);
}

/* "--adapter lora" names a method of training. Here it is a folder that does not exist. */
static hy_status check_adapter(const hy_config *config) {
    static const char *const keys[] = {"lora.lora", "lora.qlora"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *origin;
        HY_TRY(hy_config_get(config, keys[i], NULL, &origin));
        HY_FAIL_IF(
            !strcmp(origin, "flag --adapter"), HY_ERR_INPUT,
            "adapter %s was not found; expected a folder saved by PEFT, or a run with adapters",
            keys[i] + 5);
    }
    return HY_OK;
}

hy_status hy_config_use_model(hy_config *config, const char *name) {
    HY_TRY(check_adapter(config));
    /* A run folder has a configuration, a checkpoint a manifest; a model folder has neither. */
    bool is_run = hy_path_is_dir(name) && !holds(name, "config.json") &&
                  (holds(name, "config.cfg") || holds(name, "manifest.json"));
    if (!is_run) return hy_config_set(config, "model", name, HY_FROM_FLAG);
    HY_TRY(hy_config_load_run(config, name));
    /* The run's own eval_batches does not apply to this evaluation. */
    HY_TRY(hy_config_set(config, "eval.eval_batches", "-1", HY_FROM_FILE));
    /* Parameters trained whole were never quantised, whatever the configuration says about
     * frozen weights. */
    const hy_settings *s = hy_config_settings(config);
    bool has_frozen = s->lora.lora || strcmp(s->train.train, "all") != 0;
    if (!has_frozen) HY_TRY(hy_config_set(config, "train.frozen_dtype", "auto", HY_FROM_FILE));
    /* An adapter that the run started from is part of its weights. */
    HY_TRY(hy_config_set(config, "lora.adapter", "", HY_FROM_FILE));
    return hy_config_set(config, "init_from", name, HY_FROM_CALLER);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Frozen weights stay quantised as in training: a run trained on an NF4 base computes with that
 * base. For a model that is not quantised, frozen_dtype applies to all matrices of its blocks. */
static hy_status choose_stored(const hy_settings *s, hy_model *model) {
    hy_params *params = &model->params;
    if (s->lora.lora || strcmp(s->train.train, "all") != 0) return hy_settings_select(s, model);
    if (!hy_is_coded(hy_dtype_chosen(s->train.frozen_dtype, HY_F32))) return HY_OK;
    for (int32_t i = 0; i < params->count; i++) params->list[i].is_trainable = false;
    return hy_settings_store_frozen(s, model);
}

static hy_status open_engine(hy_used_model *m) {
    hy_engine *e = m->engine;
    hy_shape shape;
    e->request.settings = &m->settings;
    e->observer = &m->observer;
    HY_TRY(hy_shape_from_settings(&m->settings, &shape));
    HY_TRY(hy_model_create(&shape, &e->model));
    HY_TRY(choose_stored(&m->settings, e->model));
    HY_TRY(hy_engine_open_device(e));
    hy_dtype dtype = hy_types_for_use(&m->settings, &e->device.backend->facts);
    for (int i = 0; i < HY_PHASE_COUNT; i++) e->plan->types.of[i] = dtype;
    e->plan->types.master = dtype;
    e->request.backend = e->device.backend;
    return hy_adapters_open(&m->adapters, e);
}

hy_status hy_model_open(const hy_config *config, const hy_observer *observer, hy_used_model **out) {
    *out = NULL;
    hy_used_model *m = calloc(1, sizeof *m);
    if (!m) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    m->settings = *hy_config_settings(config);
    m->settings.card[0] = 0; /* for plans only */
    if (observer) m->observer = *observer;
    hy_status status = hy_engine_create(&m->engine);
    if (status == HY_OK && !hy_settings_bring_weights(&m->settings)) {
        status = hy_fail(HY_ERR_INPUT,
                         "model %s is a shape without weights; accepted: a model folder, a model "
                         "name on the hub, a run folder or a checkpoint folder",
                         m->settings.model);
    }
    if (status == HY_OK) status = open_engine(m);
    if (status == HY_OK)
        *out = m;
    else
        hy_model_close(m);
    return status;
}

void hy_model_close(hy_used_model *m) {
    if (!m) return;
    hy_adapters_close(&m->adapters);
    hy_engine_destroy(m->engine);
    hy_dataset_close(m->data);
    free(m);
}

hy_status hy_model_read_format(const hy_used_model *m, const char *folder, hy_prompt_format *out) {
    const char *from = m->settings.init_from;
    bool has_adapter = m->adapters.set.count > 0;
    *out = has_adapter ? m->adapters.set.list[0].format : (hy_prompt_format){0};
    if (out->chat == HY_CHAT_AUTO && from[0]) return hy_prompt_format_read_run(from, out);
    return has_adapter || !folder[0] ? HY_OK : hy_prompt_format_read(folder, out);
}

static const char *format_name(hy_prompt_format format) {
    if (format.is_mixed) return "several templates";
    if (format.chat == HY_CHAT_OWN) return "the template of the model folder";
    return format.chat == HY_CHAT_AUTO ? "not stored" : hy_chat_kind_name(format.chat);
}

void hy_model_compare_formats(const hy_used_model *m, hy_chat_kind chat) {
    const hy_peft_set *set = &m->adapters.set;
    hy_prompt_format used = {.chat = chat == HY_CHAT_AUTO ? HY_CHAT_OWN : chat};
    for (int32_t i = 1; i < set->count; i++) {
        hy_prompt_format first = set->list[0].format, other = set->list[i].format;
        if (first.chat == other.chat && first.is_mixed == other.is_mixed) continue;
        hy_say_to(&m->observer, HY_WARNING,
                  "the adapters were trained on rows of different formats (%s: %s; %s: %s); all of "
                  "them are used with %s, which --chat-template changes",
                  set->list[0].name, format_name(first), set->list[i].name, format_name(other),
                  format_name(used));
        return;
    }
}

/* A run's weights include its own adapters, so other adapters cannot be loaded. */
static hy_status load_checkpoint(hy_used_model *m, char from[HY_PATH_MAX]) {
    hy_engine *e = m->engine;
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    bool has_own;
    HY_TRY(hy_checkpoint_find(&m->observer, m->settings.init_from, from));
    HY_TRY(hy_checkpoint_has_adapters(from, &has_own));
    HY_FAIL_IF(has_own && m->adapters.set.count > 0, HY_ERR_INPUT,
               "%s holds adapters; name their base model (--model), and add the run's folder "
               "\"adapter\" to --adapter",
               m->settings.init_from);
    HY_TRY(hy_engine_initialise_adapters(e));
    HY_TRY(hy_checkpoint_lacks_base(from, &e->base_is_named));
    if (e->base_is_named) {
        HY_TRY(hy_origin_find_weights(&m->settings, &kind, path));
        HY_TRY(hy_engine_load_model(e, kind, path));
    }
    return hy_checkpoint_read_model(e, from);
}

hy_status hy_model_load(hy_used_model *m, uint64_t beside, char from[HY_PATH_MAX]) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    HY_TRY(hy_engine_take_weights(m->engine, m->settings.memory.weights_place, beside));
    if (m->settings.init_from[0]) {
        HY_TRY(load_checkpoint(m, from));
    } else {
        HY_TRY(hy_settings_model_files(&m->settings, &kind, path));
        snprintf(from, HY_PATH_MAX, "%s", path);
        HY_TRY(hy_engine_load_model(m->engine, kind, path));
    }
    return hy_adapters_load(&m->adapters, m->engine);
}
