/* inference_model.c: settings, device, model and weights of something that is only used. See
 * inference.h.
 *
 * Weights lie on the device when they fit beside what else is needed there; else they stay in pinned
 * memory and pass through a ring, unit by unit, with every pass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/hf_load.h"
#include "tokenizer/tokenizer_llama2c.h"
#include "trainer/inference.h"

#define RING_DEPTH 3
#define FIRST_WITH_BF16 80 /* compute capability */

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
    return hy_config_set(config, "init_from", name, HY_FROM_CALLER);
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* auto: bf16 on a card that has it, else fp32. */
static hy_dtype choose_dtype(const hy_trainer *t) {
    const hy_device_facts *facts = &t->engine.backend->facts;
    hy_dtype_choice asked = t->settings.train.precision;
    bool is_low = asked == HY_DTYPE_BF16 || (facts->is_gpu && asked != HY_DTYPE_F32);
    return is_low && (!facts->is_gpu || facts->capability >= FIRST_WITH_BF16) ? HY_BF16 : HY_F32;
}

static hy_status open_parts(hy_trainer *t) {
    hy_shape shape;
    HY_TRY(hy_shape_from_settings(&t->settings, &shape));
    HY_TRY(hy_model_create(&shape, &t->engine.model));
    HY_TRY(hy_trainer_open_device(t));
    for (int i = 0; i < HY_PHASE_COUNT; i++) t->engine.types.of[i] = choose_dtype(t);
    t->engine.types.master = t->engine.types.of[HY_FULL];
    return HY_OK;
}

hy_status hy_model_open(const hy_config *config, const hy_observer *observer, hy_trainer **out) {
    *out = NULL;
    hy_trainer *t = calloc(1, sizeof *t);
    if (!t) return hy_fail(HY_ERR_MEMORY, "no memory for a model");
    t->settings = *hy_config_settings(config);
    t->settings.card[0] = 0; /* for plans only */
    if (observer) t->observer = *observer;
    hy_status status = hy_settings_bring_weights(&t->settings) ? open_parts(t) : HY_OK;
    if (!t->engine.model && status == HY_OK) {
        status = hy_fail(HY_ERR_INPUT,
                         "model %s is a shape without weights; accepted: a model's folder or name "
                         "on the hub, or the folder of a run or checkpoint",
                         t->settings.model);
    }
    if (status != HY_OK) {
        hy_trainer_destroy(t);
        return status;
    }
    *out = t;
    return HY_OK;
}

/* ---- weights ----------------------------------------------------------------------------------- */

static bool fits(const hy_trainer *t, uint64_t bytes) {
    uint64_t limit = hy_trainer_device_limit(t);
    return limit == 0 || bytes <= limit;
}

static hy_status take_ring(hy_trainer *t, const hy_layout *layout) {
    hy_ring_options ring = {.depth = RING_DEPTH, .copies = {t->engine.copies, t->engine.returns}};
    uint64_t device = hy_store_ring_bytes(layout, ring.depth);
    HY_TRY(hy_arena_init(&t->engine.state.pinned, t->engine.backend, &t->engine.ledger, HY_PINNED,
                         layout->bytes, "the weights"));
    HY_TRY(hy_arena_init(&t->engine.state.rings, t->engine.backend, &t->engine.ledger, HY_DEVICE,
                         device, "weights on their way"));
    return hy_store_init_ring(hy_store_of(&t->engine, HY_ROW_MASTER), &t->engine.state.pinned,
                              &t->engine.state.rings, HY_WEIGHTS, layout, &ring);
}

static hy_status take_device(hy_trainer *t, const hy_layout *layout) {
    HY_TRY(hy_arena_init(&t->engine.state.device, t->engine.backend, &t->engine.ledger, HY_DEVICE,
                         layout->bytes, "the weights"));
    return hy_store_init(hy_store_of(&t->engine, HY_ROW_MASTER), &t->engine.state.device,
                         HY_WEIGHTS, layout);
}

static hy_status take_weights(hy_trainer *t, uint64_t beside) {
    hy_layout layout = {0};
    HY_TRY(hy_params_layout(&t->engine.model->params, t->engine.types.of[HY_FULL], &layout));
    bool is_asked = t->settings.memory.weights_place == HY_PINNED;
    hy_status status = !is_asked && fits(t, layout.bytes + beside) ? take_device(t, &layout)
                                                                   : take_ring(t, &layout);
    hy_layout_fini(&layout);
    return status;
}

static hy_status read_weights(hy_trainer *t, char from[HY_PATH_MAX]) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    if (t->settings.init_from[0]) {
        HY_TRY(hy_trainer_find_checkpoint(t, t->settings.init_from, from));
        return hy_trainer_read_weights(t, from);
    }
    HY_TRY(hy_settings_model_files(&t->settings, &kind, path));
    snprintf(from, HY_PATH_MAX, "%s", path);
    return hy_trainer_load_model(t, kind, path);
}

hy_status hy_model_load(hy_trainer *t, uint64_t beside, char from[HY_PATH_MAX]) {
    HY_TRY(take_weights(t, beside));
    return read_weights(t, from);
}

hy_status hy_model_folder(const hy_trainer *t, char folder[HY_PATH_MAX]) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    folder[0] = 0;
    HY_TRY(hy_settings_model_files(&t->settings, &kind, path));
    if (kind == HY_FILES_HF) snprintf(folder, HY_PATH_MAX, "%s", path);
    return kind == HY_FILES_LLAMA2C ? hy_path_parent(folder, HY_PATH_MAX, path) : HY_OK;
}

hy_status hy_model_tokenizer(const hy_trainer *t, const char *asked, const char *folder,
                             char path[HY_PATH_MAX]) {
    bool is_auto = strcmp(asked, "auto") == 0;
    path[0] = 0;
    if (strcmp(asked, "none") == 0 || (is_auto && !folder[0])) return HY_OK;
    if (!is_auto) {
        snprintf(path, HY_PATH_MAX, "%s", asked);
        return HY_OK;
    }
    if (holds(folder, "tokenizer.json")) {
        return hy_path_join(path, HY_PATH_MAX, folder, "tokenizer.json");
    }
    return hy_llama2c_tokenizer_find(folder, t->engine.model->shape.vocab, path, HY_PATH_MAX);
}
