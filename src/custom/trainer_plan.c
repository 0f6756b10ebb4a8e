/* trainer_plan.c: hy_trainer_plan, for new runs and for runs that are resumed. See hybrid.h.
 *
 * Usually the configuration describes the model. A run of a custom model or loop is described by
 * its checkpoint: names and shapes are in weights.safetensors, types in trainer.json. The
 * provider made from them has no memory and cannot answer requests: it serves only for a plan. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "custom/custom.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "plan/plan_value.h"

typedef struct listed {
    hy_custom_provider custom;
    hy_safetensors *file; /* owns the names and shapes */
} listed;

static void release(hy_provider *provider) {
    listed *l = (listed *)provider;
    hy_safetensors_close(l->file);
    free(l->custom.specs);
    free(l->custom.unit_of);
    free(l);
}

/* Finds the checkpoint that would be resumed. File sizes are checked, contents are not, because
 * nothing computes with them. */
static hy_status find_checkpoint(const hy_settings *s, char path[HY_PATH_MAX]) {
    const char *from = strcmp(s->save.resume, "auto") == 0 ? s->out : s->save.resume;
    HY_TRY(hy_path_join(path, HY_PATH_MAX, from, "manifest.json"));
    if (hy_path_exists(path)) return hy_path_join(path, HY_PATH_MAX, "", from);
    return hy_checkpoint_peek(from, path, HY_PATH_MAX);
}

/* Reads what only trainer.json has about parameters. */
static hy_status read_traits(const hy_json *json, const char *path, hy_custom_provider *p) {
    const hy_json_node *node = hy_json_get(hy_json_root(json), "own_parameters");
    HY_FAIL_IF(!node, HY_ERR_INPUT,
               "%s is a checkpoint of a custom model or loop, from a version that did not store "
               "the types of parameters; list them with --plan-shapes",
               path);
    HY_TRY(hy_dtype_read(json, node, "dtype", path, &p->side.types.weights));
    HY_TRY(hy_dtype_read(json, node, "grad_dtype", path, &p->side.types.grads));
    HY_TRY(hy_json_bool(json, node, "sums_gradients", &p->side.types.asks_each));
    HY_TRY(hy_json_bool(json, node, "uses_in_turn", &p->side.uses_in_turn));
    (void)hy_json_as_count(hy_json_get(node, "caller_bytes"), &p->side.types.caller_bytes);
    return hy_json_bool(json, node, "can_rewind", &p->provider.facts.can_rewind);
}

static hy_status list_parameters(listed *l, const char *path) {
    char file[HY_PATH_MAX];
    HY_TRY(hy_path_join(file, sizeof file, path, "weights.safetensors"));
    HY_TRY(hy_safetensors_open(file, &l->file));
    size_t count = hy_safetensors_count(l->file);
    HY_FAIL_IF(count < 1 || count > INT32_MAX, HY_ERR_INPUT,
               "%s has %zu tensors; expected at least 1", file, count);
    l->custom.specs = calloc(count, sizeof *l->custom.specs);
    HY_FAIL_IF(!l->custom.specs, HY_ERR_MEMORY, "not enough memory for a list of %zu parameters",
               count);
    for (size_t i = 0; i < count; i++) {
        const hy_safetensors_entry *entry = hy_safetensors_at(l->file, i);
        l->custom.specs[i] = (hy_param_spec){.name = entry->name,
                                             .ndim = entry->ndim,
                                             .shape = entry->shape,
                                             .lr_scale = 1,
                                             .decay = -1};
    }
    l->custom.side.params = l->custom.specs;
    l->custom.side.count = (int32_t)count;
    return HY_OK;
}

/* The unit of each parameter, if the run kept its weights in units. hy_params_init_list checks the
 * order. */
static hy_status read_units(const hy_json *json, const char *path, hy_custom_provider *p) {
    const hy_json_node *own = hy_json_get(hy_json_root(json), "own_parameters");
    const hy_json_node *list = hy_json_get(own, "unit_of");
    int64_t unit = 0;
    int32_t count = 0;
    if (!list) return HY_OK;
    p->unit_of = calloc((size_t)p->side.count, sizeof *p->unit_of);
    if (!p->unit_of) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of units");
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        bool is_number = hy_json_as_count(n, &unit) && unit < INT32_MAX;
        HY_FAIL_IF(!is_number || count == p->side.count, HY_ERR_INPUT,
                   "%s: unit_of in trainer.json does not fit the %d tensors", path, p->side.count);
        p->unit_of[count++] = (int32_t)unit;
    }
    HY_FAIL_IF(count != p->side.count, HY_ERR_INPUT,
               "%s: unit_of in trainer.json has %d entries, but there are %d tensors", path, count,
               p->side.count);
    p->side.unit_of = p->unit_of;
    p->side.types.keeps_weights = true;
    p->side.types.is_caller_stored = p->side.types.caller_bytes > 0;
    return HY_OK;
}

/* Frozen parameters are not in the checkpoint, so their shapes are not known. */
static hy_status check_frozen(const hy_json *json, const char *path) {
    const hy_json_node *frozen = hy_json_get(hy_json_root(json), "frozen");
    HY_FAIL_IF(frozen && hy_json_first(frozen), HY_ERR_INPUT,
               "%s is a checkpoint of a custom loop with frozen parameters, which it does not "
               "contain; plan it with its list of parameters (hy_loop_plan)",
               path);
    return HY_OK;
}

static hy_status make_provider(const char *path, const hy_json *json, hy_provider **out) {
    static const hy_provider_ops ops = {.release = release};
    listed *l = calloc(1, sizeof *l);
    if (!l) return hy_fail(HY_ERR_MEMORY, "not enough memory for a plan");
    hy_custom_provider_begin(&l->custom, &ops);
    l->custom.provider.facts.can_evaluate = true;
    hy_status status = check_frozen(json, path);
    if (status == HY_OK) status = read_traits(json, path, &l->custom);
    if (status == HY_OK) status = list_parameters(l, path);
    if (status == HY_OK) status = read_units(json, path, &l->custom);
    if (status != HY_OK) {
        release(&l->custom.provider);
        return status;
    }
    *out = &l->custom.provider;
    return HY_OK;
}

/* Sets *out to NULL if the run has a model of the settings, or if no run is resumed. */
static hy_status find_provider(const hy_settings *s, hy_provider **out) {
    char path[HY_PATH_MAX], file[HY_PATH_MAX];
    hy_json *json;
    bool is_own = false;
    *out = NULL;
    if (!s->save.resume[0]) return HY_OK;
    HY_TRY(find_checkpoint(s, path));
    HY_TRY(hy_path_join(file, sizeof file, path, "trainer.json"));
    HY_TRY(hy_json_read_file(file, &json));
    (void)hy_json_as_bool(hy_json_get(hy_json_root(json), "own"), &is_own);
    hy_status status = is_own ? make_provider(path, json, out) : HY_OK;
    hy_json_free(json);
    return status;
}

hy_status hy_planned_ranks_check(int32_t count) {
    HY_FAIL_IF(count < 1 || count > HY_RANKS_MOST, HY_ERR_INPUT,
               "a plan for %d ranks; accepted are 1 to %d", count, HY_RANKS_MOST);
    return HY_OK;
}

hy_status hy_trainer_plan(const hy_config *config, const hy_observer *observer, hy_trainer **out) {
    return hy_trainer_plan_ranks(config, 1, false, observer, out);
}

hy_status hy_trainer_plan_ranks(const hy_config *config, int32_t count, bool has_cards,
                                const hy_observer *observer, hy_trainer **out) {
    hy_making making = {.is_plan = true, .planned = {count, has_cards}};
    *out = NULL;
    HY_TRY(hy_planned_ranks_check(count));
    HY_TRY(find_provider(hy_config_settings(config), &making.provider));
    return hy_trainer_make(config, observer, &making, out);
}
