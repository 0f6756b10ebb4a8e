/* hf_trainer.c: a run whose weights begin as those of a model's files. See trainer.h. */
#include <string.h>

#include "base/error.h"
#include "hub/hf_load.h"
#include "trainer/trainer.h"

#define SLOW_ELEMENTS 50e6 /* from here on it takes long enough to be told of */

static void tell_progress(void *user, double share) {
    const hy_trainer *t = user;
    t->observer.on_progress(t->observer.user, "reading weights", share);
}

static hy_status tell_notes(const hy_trainer *t, const char *folder) {
    hy_hf_config config;
    HY_TRY(hy_hf_config_read(folder, &config));
    char *at = config.notes.data;
    while (at && *at) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        hy_say(t, HY_WARNING, "%s", at);
        at = end ? end + 1 : NULL;
    }
    hy_hf_config_free(&config);
    return HY_OK;
}

hy_status hy_trainer_load_model(hy_trainer *t, hy_model_files kind, const char *path) {
    hy_load_options options = {.threads = (int)t->settings.threads, .user = t};
    bool is_slow = (double)t->engine.model->params.elements >= SLOW_ELEMENTS;
    if (is_slow && t->observer.on_progress) options.on_progress = tell_progress;
    if (kind == HY_FILES_HF) HY_TRY(tell_notes(t, path));
    HY_TRY(hy_hf_load_weights(path, t->engine.model, hy_store_of(&t->engine, HY_ROW_MASTER),
                              t->engine.compute, &options));
    hy_say(t, HY_NOTE, "the weights begin as those of %s", path);
    return HY_OK;
}
