/* inference_model.c: settings, device, model and weights of something that is only used. See
 * inference.h.
 *
 * Weights lie on the device when they fit beside what else is needed there; else they stay in pinned
 * memory and pass through a ring, unit by unit, with every pass. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "infer/inference.h"
#include "record/record.h"
#include "record/state_files.h"

/* ---- naming a model ---------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *file) {
    char path[HY_PATH_MAX];
    return hy_path_join(path, sizeof path, folder, file) == HY_OK && hy_path_exists(path);
}

/* A run keeps its configuration, a checkpoint its manifest; a model's folder has neither. */
static bool is_run(const char *name) {
    if (!hy_path_is_dir(name) || holds(name, "config.json")) return false;
    return holds(name, "config.cfg") || holds(name, "manifest.json");
}

hy_status hy_config_use_model(hy_config *config, const char *name) {
    if (!is_run(name)) return hy_config_set(config, "model", name, HY_FROM_CALLER);
    HY_TRY(hy_config_load_run(config, name));
    /* How much of its held-out data the run looked at says nothing about what is looked at now. */
    HY_TRY(hy_config_set(config, "eval.eval_batches", "-1", HY_FROM_FILE));
    /* An adapter that it began with is in its weights, further trained. */
    HY_TRY(hy_config_set(config, "lora.adapter", "", HY_FROM_FILE));
    return hy_config_set(config, "init_from", name, HY_FROM_CALLER);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static hy_status open_engine(hy_used_model *m) {
    hy_engine *e = &m->engine;
    hy_shape shape;
    HY_TRY(hy_shape_from_settings(&m->settings, &shape));
    HY_TRY(hy_model_create(&shape, &e->model));
    if (shape.adapter.rank > 0) {
        char names[2 * HY_TEXT_MAX];
        hy_settings_trained(&m->settings, names, sizeof names);
        HY_TRY(hy_params_mark_beside(&e->model->params, names));
    }
    HY_TRY(hy_engine_open_device(e));
    hy_dtype dtype = hy_types_for_use(&m->settings, &e->backend->facts);
    for (int i = 0; i < HY_PHASE_COUNT; i++) e->types.of[i] = dtype;
    e->types.master = dtype;
    e->subject.settings = &m->settings;
    e->subject.backend = e->backend;
    return HY_OK;
}

hy_status hy_model_open(const hy_config *config, const hy_observer *observer, hy_used_model **out) {
    *out = NULL;
    hy_used_model *m = calloc(1, sizeof *m);
    if (!m) return hy_fail(HY_ERR_MEMORY, "no memory for a model");
    m->settings = *hy_config_settings(config);
    m->settings.card[0] = 0; /* for plans only */
    if (observer) m->observer = *observer;
    m->engine.settings = &m->settings;
    m->engine.observer = &m->observer;
    bool has_weights = hy_settings_bring_weights(&m->settings);
    hy_status status =
        has_weights ? open_engine(m)
                    : hy_fail(HY_ERR_INPUT,
                              "model %s is a shape without weights; accepted: a model's folder or "
                              "name on the hub, or the folder of a run or checkpoint",
                              m->settings.model);
    if (status != HY_OK) {
        hy_model_close(m);
        return status;
    }
    *out = m;
    return HY_OK;
}

void hy_model_close(hy_used_model *m) {
    if (!m) return;
    hy_engine_close(&m->engine);
    hy_dataset_close(m->data);
    free(m);
}

hy_status hy_model_load(hy_used_model *m, uint64_t beside, char from[HY_PATH_MAX]) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    const char *adapter = m->settings.lora.adapter;
    HY_TRY(hy_engine_take_weights(&m->engine, beside));
    if (m->settings.init_from[0]) {
        HY_TRY(hy_checkpoint_find(&m->observer, m->settings.init_from, from));
        HY_TRY(hy_engine_initialise_adapters(&m->engine));
        HY_TRY(hy_checkpoint_lacks_base(from, &m->engine.base_is_named));
        if (m->engine.base_is_named) {
            HY_TRY(hy_origin_find_weights(&m->settings, &kind, path));
            HY_TRY(hy_engine_load_model(&m->engine, kind, path));
        }
        HY_TRY(hy_checkpoint_read_model(&m->engine, from));
    } else {
        HY_TRY(hy_settings_model_files(&m->settings, &kind, path));
        snprintf(from, HY_PATH_MAX, "%s", path);
        HY_TRY(hy_engine_load_model(&m->engine, kind, path));
    }
    return adapter[0] ? hy_engine_load_adapter(&m->engine, adapter) : HY_OK;
}
