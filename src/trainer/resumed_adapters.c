/* resumed_adapters.c: checks that a resumed run computes the same function. See resumed_adapters.h.
 *
 * Rank, targets and scale of adapters, parameters that are trained whole and the storage of
 * frozen weights define the function: another value would change it without a message. Other
 * settings, such as dropout and learning rates, may change. */
#include "trainer/resumed_adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/checkpoint.h"
#include "optim/groups.h"
#include "record/state_files.h"

/* Was `adapter` written after this checkpoint, and is there no later one? Then a run ended there. */
static bool has_adapters_of(const char *run, const char *checkpoint, const char *adapter) {
    char newest[HY_PATH_MAX];
    struct stat written, saved, last;
    return hy_checkpoint_newest(run, newest, sizeof newest) == HY_OK &&
           stat(adapter, &written) == 0 && stat(checkpoint, &saved) == 0 &&
           stat(newest, &last) == 0 && saved.st_ino == last.st_ino &&
           written.st_mtime >= saved.st_mtime;
}

hy_status hy_trainer_advise_new_run(const hy_trainer *t, const char *checkpoint, hy_status status) {
    char run[HY_PATH_MAX], adapter[HY_PATH_MAX];
    const char *model = t->settings->model;
    hy_error error;
    bool lacks_base = false;
    hy_error_save(&error, status);
    bool is_ours = t->provider->facts.has_model_files;
    if (is_ours && hy_checkpoint_lacks_base(checkpoint, &lacks_base) != HY_OK) is_ours = false;
    bool is_written = lacks_base && hy_path_parent(run, sizeof run, checkpoint) == HY_OK &&
                      hy_path_join(adapter, sizeof adapter, run, "adapter") == HY_OK &&
                      has_adapters_of(run, checkpoint, adapter);
    (void)hy_error_restore(&error);
    if (is_written)
        return hy_fail_hint(status, "for a new run with these adapters: --model %s --adapter %s",
                            model, adapter);
    if (lacks_base)
        return hy_fail_hint(status,
                            "for a new run with these adapters: hybrid-export %s --out FOLDER, "
                            "then --model %s --adapter FOLDER",
                            checkpoint, model);
    return hy_fail_hint(status, "for a new run with these weights: %s%s%s--init-from %s%s",
                        is_ours ? "--model " : "", is_ours ? model : "", is_ours ? " " : "",
                        checkpoint,
                        is_ours && !hy_path_exists(model) ? " and the run's shape settings" : "");
}

/* Names a key with its values then and now. Adapters with another function start from the merged
 * model. */
static hy_status refuse(const hy_trainer *t, const char *key, const char *then, const char *now) {
    hy_status status = hy_fail(HY_ERR_INPUT,
                               "%s: %s was %s when this was saved and is %s now, which changes the "
                               "model: restore the old value",
                               t->resumed, key, then, now);
    bool is_same_adapter = !strncmp(key, "train.", 6) || !strncmp(key, "optimizer.", 10);
    bool is_whole = !strcmp(key, "lora.lora") && !strcmp(then, "false");
    if (is_same_adapter || is_whole) return hy_trainer_advise_new_run(t, t->resumed, status);
    return hy_fail_hint(
        status,
        "to train the merged model: hybrid-export %s --merge --out FOLDER, then --model "
        "FOLDER",
        t->resumed);
}

static hy_status refuse_setting(const hy_trainer *t, const char *key, const hy_settings *then,
                                const hy_settings *now) {
    const hy_setting *setting = hy_setting_find(key, NULL);
    char was[HY_VALUE_MAX], is[HY_VALUE_MAX];
    return refuse(t, key, hy_setting_format(setting, then, was),
                  hy_setting_format(setting, now, is));
}

/* The groups that set frozen_dtype, with their types. */
static void list_frozen(const char *groups, hy_text *out) {
    hy_group group = {0};
    bool is_there = true; /* they were read before, so this cannot fail */
    while (hy_groups_next(&groups, &group, &is_there) == HY_OK && is_there) {
        int32_t type = group.types[HY_GROUP_FROZEN];
        if (type) hy_text_addf(out, "%s:%d;", group.names, type);
    }
}

static bool have_same_frozen(const hy_settings *then, const hy_settings *now) {
    hy_text was = {0}, is = {0};
    list_frozen(then->optimizer.groups, &was);
    list_frozen(now->optimizer.groups, &is);
    bool are_same = strcmp(hy_text_string(&was), hy_text_string(&is)) == 0;
    hy_text_free(&was);
    hy_text_free(&is);
    return are_same;
}

static hy_status check_settings(const hy_trainer *t, const hy_settings *then,
                                const hy_settings *now) {
    char was[2 * HY_TEXT_MAX], is[2 * HY_TEXT_MAX];
    hy_shape before, after;
    const hy_adapter *a = &before.adapter, *b = &after.adapter;
    bool lacks_base;
    if (!then->lora.lora && !now->lora.lora) return HY_OK;
    if (then->lora.lora != now->lora.lora) return refuse_setting(t, "lora.lora", then, now);
    HY_TRY(hy_shape_from_settings(then, &before));
    HY_TRY(hy_shape_from_settings(now, &after));
    if (a->rank != b->rank) return refuse_setting(t, "lora.lora_rank", then, now);
    if (a->parts != b->parts) return refuse_setting(t, "lora.lora_targets", then, now);
    hy_settings_trained(then, was, sizeof was);
    hy_settings_trained(now, is, sizeof is);
    if (strcmp(was, is) != 0) return refuse_setting(t, "lora.lora_modules", then, now);
    if (a->scale != b->scale) {
        snprintf(was, sizeof was, "%g%s", a->alpha, a->is_root_scaled ? " with rslora" : "");
        snprintf(is, sizeof is, "%g%s", b->alpha, b->is_root_scaled ? " with rslora" : "");
        return refuse(t, "lora.lora_alpha", was, is);
    }
    /* Frozen weights stored in the checkpoint can be decoded, so auto is allowed. If they are read
     * from the base model, another type gives other numbers. */
    HY_TRY(hy_checkpoint_lacks_base(t->resumed, &lacks_base));
    if (lacks_base && !have_same_frozen(then, now))
        return refuse_setting(t, "optimizer.groups", then, now);
    if (then->train.frozen_dtype == now->train.frozen_dtype) return HY_OK;
    if (!lacks_base && now->train.frozen_dtype == HY_DTYPE_AUTO) return HY_OK;
    return refuse_setting(t, "train.frozen_dtype", then, now);
}

/* The checkpoint has the adapter that the run started from, so its folder may be missing;
 * another adapter would be ignored. */
static hy_status check_adapter(const hy_trainer *t, const char *then, const char *now) {
    if (!now[0] || strcmp(then, now) == 0) return HY_OK;
    char *was = realpath(then, NULL), *is = realpath(now, NULL);
    bool is_same = was && is && strcmp(was, is) == 0;
    free(was);
    free(is);
    if (is_same) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s began with %s: --adapter %s would be ignored; leave out --adapter, or leave "
                   "out --resume for a new run",
                   t->resumed, then[0] ? then : "no adapter", now);
}

hy_status hy_trainer_check_adapters(const hy_trainer *t) {
    hy_saved_config saved;
    if (!t->provider->facts.has_model_files) return HY_OK;
    HY_TRY(hy_checkpoint_read_config(t->resumed, &saved));
    hy_status status = check_settings(t, hy_config_settings(saved.config), t->settings);
    if (status == HY_OK) status = check_adapter(t, saved.adapter, t->settings->lora.adapter);
    hy_saved_config_free(&saved);
    return status;
}
