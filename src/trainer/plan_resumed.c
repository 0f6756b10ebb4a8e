/* plan_resumed.c: the plan of a run that is gone on with. See hybrid.h.
 *
 * What a run of ours is, its configuration says. A run of a caller's own is known by its checkpoint: names and shapes
 * from weights.safetensors, types from trainer.json. The guest that is made of them has no memory and no answers:
 * it is for a plan alone. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "trainer/make.h"
#include "trainer/saving.h"
#include "trainer/trainer.h"

typedef struct listed {
    hy_guest guest;
    hy_safetensors *file; /* whose names and shapes these are */
    hy_param_spec *specs;
} listed;

static void release(hy_guest *guest) {
    listed *l = (listed *)guest;
    hy_safetensors_close(l->file);
    free(l->specs);
    free(l);
}

/* The checkpoint that the run would go on from, by the sizes of its files: nothing of them is computed with. */
static hy_status find_checkpoint(const hy_settings *s, char path[HY_PATH_MAX]) {
    const char *from = strcmp(s->save.resume, "auto") == 0 ? s->out : s->save.resume;
    HY_TRY(hy_path_join(path, HY_PATH_MAX, from, "manifest.json"));
    if (hy_path_exists(path)) return hy_path_join(path, HY_PATH_MAX, "", from);
    return hy_checkpoint_peek(from, path, HY_PATH_MAX);
}

static hy_status list_parameters(listed *l, const char *path) {
    char file[HY_PATH_MAX];
    HY_TRY(hy_path_join(file, sizeof file, path, "weights.safetensors"));
    HY_TRY(hy_safetensors_open(file, &l->file));
    size_t count = hy_safetensors_count(l->file);
    HY_FAIL_IF(count < 1 || count > INT32_MAX, HY_ERR_INPUT, "%s has %zu tensors", file, count);
    l->specs = calloc(count, sizeof *l->specs);
    if (!l->specs) return hy_fail(HY_ERR_MEMORY, "no memory for a list of %zu parameters", count);
    for (size_t i = 0; i < count; i++) {
        const hy_safetensors_entry *entry = hy_safetensors_at(l->file, i);
        l->specs[i] = (hy_param_spec){.name = entry->name,
                                      .ndim = entry->ndim,
                                      .shape = entry->shape,
                                      .lr_scale = 1,
                                      .decay = -1};
    }
    l->guest.side.params = l->specs;
    l->guest.side.count = (int32_t)count;
    return HY_OK;
}

static hy_status make_guest(const char *path, const hy_json *json, hy_guest **out) {
    listed *l = calloc(1, sizeof *l);
    if (!l) return hy_fail(HY_ERR_MEMORY, "no memory for a plan");
    l->guest.release = release;
    l->guest.can_evaluate = true;
    hy_status status = hy_progress_read_own(json, path, &l->guest);
    if (status == HY_OK) status = list_parameters(l, path);
    if (status != HY_OK) {
        release(&l->guest);
        return status;
    }
    *out = &l->guest;
    return HY_OK;
}

/* NULL: the run is ours, or none is gone on with. */
static hy_status find_guest(const hy_settings *s, hy_guest **out) {
    char path[HY_PATH_MAX], file[HY_PATH_MAX];
    hy_json *json;
    bool is_own = false;
    *out = NULL;
    if (!s->save.resume[0]) return HY_OK;
    HY_TRY(find_checkpoint(s, path));
    HY_TRY(hy_path_join(file, sizeof file, path, "trainer.json"));
    HY_TRY(hy_json_read_file(file, &json));
    (void)hy_json_as_bool(hy_json_get(hy_json_root(json), "own"), &is_own);
    hy_status status = is_own ? make_guest(path, json, out) : HY_OK;
    hy_json_free(json);
    return status;
}

static hy_status plan(const hy_config *config, const hy_observer *observer,
                      hy_planned_ranks planned, hy_trainer **out) {
    hy_making making = {.is_plan = true, .planned = planned};
    *out = NULL;
    HY_TRY(find_guest(hy_config_settings(config), &making.guest));
    return hy_trainer_make(config, observer, &making, out);
}

hy_status hy_trainer_plan(const hy_config *config, const hy_observer *observer, hy_trainer **out) {
    return plan(config, observer, (hy_planned_ranks){0}, out);
}

hy_status hy_planned_ranks_check(int32_t count) {
    HY_FAIL_IF(count < 1 || count > HY_RANKS_MOST, HY_ERR_INPUT,
               "a plan for %d ranks; accepted are 1 to %d", count, HY_RANKS_MOST);
    return HY_OK;
}

hy_status hy_trainer_plan_ranks(const hy_config *config, int32_t count, bool has_cards,
                                const hy_observer *observer, hy_trainer **out) {
    *out = NULL;
    HY_TRY(hy_planned_ranks_check(count));
    hy_planned_ranks planned = {.count = count, .has_cards = has_cards};
    return plan(config, observer, count > 1 ? planned : (hy_planned_ranks){0}, out);
}
