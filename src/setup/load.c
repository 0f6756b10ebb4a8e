/* load.c: loads initial weights from a model's files, and says which. See setup.h. */
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "engine/engine.h"
#include "hub/hf_load.h"
#include "hub/peft.h"
#include "setup/setup.h"

#define SLOW_ELEMENTS 50e6 /* from this size on, progress is reported */

static void tell_progress(void *user, double share) {
    const hy_engine *e = user;
    e->observer->on_progress(e->observer->user, "reading weights", share);
}

static hy_status tell_notes(const hy_engine *e, const char *folder) {
    hy_hf_config config;
    HY_TRY(hy_hf_config_read(folder, &config));
    char *at = config.notes.data;
    while (at && *at) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        hy_say_to(e->observer, HY_WARNING, "%s", at);
        at = end ? end + 1 : NULL;
    }
    hy_hf_config_free(&config);
    return HY_OK;
}

/* Reports how a quantised folder was loaded, so that users know which numbers a run computes
 * with. */
static void tell_counts(const hy_engine *e, const char *path, const hy_load_counts *counts) {
    const hy_params *params = &e->model->params;
    if (counts->kept > 0) {
        hy_say_to(e->observer, HY_NOTE,
                  "%d matrices of %s keep their NF4 codes from bitsandbytes, with scales in %s",
                  counts->kept, path, params->has_plain_scales ? "fp32" : "8 bits");
    }
    if (counts->decoded > 0) {
        hy_say_to(e->observer, HY_NOTE, "%d NF4 matrices of %s were decoded", counts->decoded,
                  path);
    }
    if (counts->real > 0) {
        hy_say_to(e->observer, HY_NOTE,
                  "%s has %d matrices in its blocks that are not quantised; they stay that way",
                  path, counts->real);
    }
}

hy_status hy_engine_load_model(hy_engine *e, hy_model_files kind, const char *path) {
    hy_load_counts counts = {0};
    hy_load_options options = {
        .threads = (int)e->request.settings->threads, .user = e, .counts = &counts};
    bool is_slow = (double)e->model->params.elements >= SLOW_ELEMENTS;
    if (is_slow && e->observer->on_progress) options.on_progress = tell_progress;
    if (kind == HY_FILES_HF) HY_TRY(tell_notes(e, path));
    HY_TRY(hy_engine_initialise_adapters(e));
    hy_row_changed(e->state, HY_ROW_MASTER);
    HY_TRY(hy_hf_load_weights(path, e->model, hy_store_of(e, HY_ROW_MASTER), e->device.compute,
                              &options));
    if (hy_has_row(e, HY_ROW_FROZEN)) {
        hy_store *frozen = hy_store_of(e, HY_ROW_FROZEN);
        HY_TRY(hy_hf_load_weights(path, e->model, frozen, e->device.compute, &options));
    }
    tell_counts(e, path, &counts);
    hy_say_to(e->observer, HY_NOTE, "the run starts with the weights of %s", path);
    return HY_OK;
}

hy_status hy_engine_load_adapter(hy_engine *e, const char *folder) {
    hy_row_changed(e->state, HY_ROW_MASTER);
    HY_TRY(hy_peft_load(folder, e->model, hy_store_of(e, HY_ROW_MASTER), e->device.compute));
    hy_say_to(e->observer, HY_NOTE, "the run starts with the adapters of %s", folder);
    return HY_OK;
}
