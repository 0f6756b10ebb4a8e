/* parameters.c: checks and copies a program's list of parameters. See custom.h.
 *
 * The copy has its own names and shapes; weights and gradients stay in the program's memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "custom/custom.h"

static hy_status check_group(const hy_custom_parameters *p, const hy_parameter *one) {
    int32_t most = p->groups ? p->group_count : 1;
    HY_FAIL_IF(one->group < 0 || one->group >= most, HY_ERR_INPUT,
               "parameter %s is in group %d; accepted: groups 0 to %d", one->name, one->group,
               most - 1);
    if (!p->groups) return HY_OK;
    const hy_parameter_group *group = &p->groups[one->group];
    HY_FAIL_IF(!(group->lr_scale >= 0) || !isfinite(group->lr_scale), HY_ERR_INPUT,
               "lr_scale of group %d is %g; expected 0 or more", one->group, group->lr_scale);
    HY_FAIL_IF(isnan(group->weight_decay) || group->weight_decay > 1, HY_ERR_INPUT,
               "weight_decay of group %d is %g; expected at most 1, or below 0 for the run's value",
               one->group, group->weight_decay);
    return HY_OK;
}

static hy_status check_type(hy_dtype dtype, const char *what) {
    HY_FAIL_IF(dtype != HY_F32 && dtype != HY_BF16 && dtype != HY_F16, HY_ERR_INPUT,
               "the type of %s has the value %d; accepted: HY_F32, HY_BF16 and HY_F16", what,
               (int)dtype);
    return HY_OK;
}

/* is_kept: the library keeps the weights. */
static hy_status copy_one(hy_custom_provider *custom, const hy_custom_parameters *p, int32_t i,
                          bool has_memory, bool is_kept) {
    const hy_parameter *one = &p->list[i];
    HY_FAIL_IF(!one->name || !one->name[0], HY_ERR_INPUT, "parameter number %d has no name", i);
    HY_FAIL_IF(has_memory && !one->weights, HY_ERR_INPUT,
               "parameter %s has no memory for its weights", one->name);
    HY_TRY(check_group(p, one));
    HY_FAIL_IF(one->is_frozen && !is_kept, HY_ERR_INPUT,
               "parameter %s is frozen; without units (unit_of) list only parameters that are "
               "trained",
               one->name);
    if (one->is_frozen) HY_TRY(check_type(one->dtype, one->name));
    hy_parameter_group group = p->groups ? p->groups[one->group] : (hy_parameter_group){1, -1};
    int64_t *shape = malloc(sizeof one->shape);
    char *name = strdup(one->name);
    custom->specs[i] = (hy_param_spec){.name = name,
                                       .ndim = one->ndim,
                                       .shape = shape,
                                       .lr_scale = group.lr_scale,
                                       .decay = group.weight_decay,
                                       .is_frozen = one->is_frozen,
                                       .dtype = one->dtype};
    if (!shape || !name) return hy_fail(HY_ERR_MEMORY, "not enough memory for a parameter's name");
    memcpy(shape, one->shape, sizeof one->shape);
    custom->weights[i] = one->weights;
    custom->grads[i] = one->grads;
    return HY_OK;
}

/* ---- shared memory --------------------------------------------------------------------------- */

typedef struct span {
    uintptr_t begin, end;
    const char *name;
} span;

/* 0: more bytes than can be counted; hy_params_init_list refuses such a list. */
static uint64_t bytes_of(const hy_parameter *one, hy_dtype dtype) {
    uint64_t bytes = hy_dtype_size(dtype);
    for (int32_t i = 0; i < one->ndim && i < HY_PARAMETER_DIMS; i++) {
        bool is_wrong = one->shape[i] < 1 ||
                        __builtin_mul_overflow(bytes, (uint64_t)one->shape[i], &bytes) ||
                        bytes > UINTPTR_MAX - (uintptr_t)one->weights;
        if (is_wrong) return 0;
    }
    return bytes;
}

static int compare_spans(const void *a, const void *b) {
    const span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Refuses two parameters in the same memory, because both would update it. Spans are sorted by
 * their start: if any overlap, two neighbours do. */
static hy_status check_sharing(const hy_custom_parameters *p) {
    span *spans = malloc((size_t)p->count * sizeof *spans);
    if (!spans)
        return hy_fail(HY_ERR_MEMORY, "not enough memory to compare %d parameters", p->count);
    for (int32_t i = 0; i < p->count; i++) {
        uintptr_t begin = (uintptr_t)p->list[i].weights;
        spans[i] = (span){begin, begin + bytes_of(&p->list[i], p->dtype), p->list[i].name};
    }
    qsort(spans, (size_t)p->count, sizeof *spans, compare_spans);
    hy_status status = HY_OK;
    for (int32_t i = 1; i < p->count && status == HY_OK; i++) {
        const span *a = &spans[i - 1], *b = &spans[i];
        if (b->begin >= a->end || b->begin == b->end || strcmp(a->name, b->name) == 0) continue;
        status = hy_fail(HY_ERR_INPUT,
                         "parameters %s and %s share memory: list tied weights as one parameter",
                         a->name, b->name);
    }
    free(spans);
    return status;
}

static hy_status copy_all(hy_custom_provider *custom, const hy_custom_parameters *p,
                          bool has_memory, bool is_kept) {
    HY_TRY(check_type(p->dtype, "weights"));
    HY_TRY(check_type(p->grad_dtype, "gradients"));
    HY_FAIL_IF(!p->list || p->count < 1, HY_ERR_INPUT, "at least one parameter is needed, %d given",
               p->list ? p->count : 0);
    size_t count = (size_t)p->count;
    custom->specs = calloc(count, sizeof *custom->specs);
    custom->weights = calloc(count, sizeof *custom->weights);
    custom->grads = calloc(count, sizeof *custom->grads);
    HY_FAIL_IF(!custom->specs || !custom->weights || !custom->grads, HY_ERR_MEMORY,
               "not enough memory for a list of %d parameters", p->count);
    custom->side.count = p->count;
    for (int32_t i = 0; i < p->count; i++) HY_TRY(copy_one(custom, p, i, has_memory, is_kept));
    return has_memory ? check_sharing(p) : HY_OK;
}

static hy_status copy_units(hy_custom_provider *custom, const hy_custom_parameters *p,
                            const int32_t *unit_of) {
    size_t bytes = (size_t)p->count * sizeof *unit_of;
    custom->unit_of = malloc(bytes);
    if (!custom->unit_of) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of units");
    memcpy(custom->unit_of, unit_of, bytes);
    for (int32_t i = 0; i < p->count; i++) {
        HY_FAIL_IF(p->list[i].weights || p->list[i].grads, HY_ERR_INPUT,
                   "parameter %s has memory of its own; with units (unit_of) the library keeps "
                   "weights and gradients, so both pointers must be NULL",
                   p->list[i].name);
    }
    return HY_OK;
}

hy_status hy_custom_provider_init(hy_custom_provider *custom, const hy_custom_parameters *p,
                                  const int32_t *unit_of, bool has_memory) {
    hy_custom_provider_begin(custom, &hy_custom_ops);
    custom->save = p->save;
    custom->load = p->load;
    custom->file_user = p->user;
    hy_status status = copy_all(custom, p, has_memory && !unit_of, unit_of != NULL);
    if (status == HY_OK && unit_of) status = copy_units(custom, p, unit_of);
    if (status != HY_OK) {
        hy_custom_provider_fini(custom);
        return status;
    }
    hy_custom_side *side = &custom->side;
    side->types = (hy_custom_types){.weights = p->dtype,
                                    .grads = p->grad_dtype,
                                    .keeps_weights = unit_of != NULL,
                                    .asks_each = p->sums_gradients || unit_of};
    side->unit_of = custom->unit_of;
    side->params = custom->specs;
    side->stream_handle = p->stream;
    side->weights = custom->weights;
    side->grads = custom->grads;
    return HY_OK;
}

hy_status hy_custom_provider_of_loop(hy_custom_provider *custom, const hy_loop_options *options,
                                     bool has_memory) {
    HY_FAIL_IF(options->caller_bytes < (options->unit_of ? -1 : 0), HY_ERR_INPUT,
               "caller_bytes is %lld; expected 0 or more, or with units (unit_of) -1: not known",
               (long long)options->caller_bytes);
    HY_TRY(hy_custom_provider_init(custom, &options->parameters, options->unit_of, has_memory));
    custom->side.uses_in_turn = options->uses_in_turn || options->unit_of;
    custom->side.types.caller_bytes = options->caller_bytes;
    custom->side.types.caller_held = options->caller_held;
    custom->provider.facts.can_evaluate = options->can_evaluate;
    custom->provider.facts.can_rewind = options->can_rewind;
    return HY_OK;
}

void hy_custom_provider_fini(hy_custom_provider *custom) {
    for (int32_t i = 0; custom->specs && i < custom->side.count; i++) {
        free((char *)custom->specs[i].name);
        free((int64_t *)custom->specs[i].shape);
    }
    free(custom->specs);
    free(custom->unit_of);
    free(custom->weights);
    free(custom->grads);
    *custom = (hy_custom_provider){0};
}
