/* resumed_adapters.c: checks that a resumed run computes the same function. See resumed_adapters.h.
 *
 * Rank, targets and scale of adapters, parameters that are trained whole and the storage of
 * frozen weights define the function: another value would change it without a message. Other
 * settings, such as dropout and learning rates, may change. */
#include "trainer/resumed_adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/groups.h"
#include "record/state_files.h"

/* Names a key with its values then and now. */
static hy_status refuse(const hy_trainer *t, const char *key, const char *then, const char *now) {
    return hy_fail(
        HY_ERR_INPUT,
        "%s: %s was %s when this was saved and is %s now, which changes the model: restore the old "
        "value, or start a new run from these adapters (hybrid-export, then --adapter)",
        t->resumed, key, then, now);
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
    return is_same ? HY_OK : refuse(t, "lora.adapter", then[0] ? then : "not set", now);
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
