/* optimizer.c: a loop as the optimizer of a program that has its own loop. See hybrid.h, 6 (c).
 *
 * The program sets rates before a step and stores the optimizer's state itself: the arrays are the
 * tensors of a checkpoint's files (record/state_files.h), copied to and from its memory. The run's
 * thread waits for an answer meanwhile, so nothing else uses the engine. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "custom/loop.h"
#include "record/state_files.h"

/* ---- rates ----------------------------------------------------------------------------------- */

static hy_status check_rates(const hy_trainer *t, const hy_parameter_group *rates) {
    const hy_custom_side *side = t->engine->custom;
    for (int32_t i = 0; i < side->count; i++) {
        const hy_parameter_group *one = &rates[i];
        const char *name = side->params[i].name;
        HY_FAIL_IF(!isfinite(one->lr_scale) || !isfinite(one->weight_decay), HY_ERR_INPUT,
                   "parameter %s has lr_scale %g and weight_decay %g; expected finite numbers",
                   name, one->lr_scale, one->weight_decay);
        HY_FAIL_IF(one->lr_scale < 0 && t->provider->facts.can_rewind, HY_ERR_INPUT,
                   "parameter %s is skipped, but paired tests (can_rewind) repeat steps: create "
                   "the loop without can_rewind",
                   name);
    }
    return HY_OK;
}

static hy_status set_rates(hy_trainer *t, const hy_parameter_group *rates) {
    const hy_custom_side *side = t->engine->custom;
    HY_TRY(check_rates(t, rates));
    HY_TRY(hy_custom_use(t->engine, -1)); /* a pending update has the rates of its own step */
    for (int32_t i = 0; i < side->count; i++) {
        for (int32_t part = side->first_part[i]; part < side->first_part[i + 1]; part++) {
            hy_param *param = &t->engine->model->params.list[part];
            param->lr_scale = rates[i].lr_scale;
            param->own_decay = rates[i].weight_decay;
            param->is_skipped = rates[i].lr_scale < 0;
        }
    }
    return HY_OK;
}

hy_status hy_loop_set_rates(hy_loop *loop, const hy_parameter_group *rates) {
    hy_trainer *t;
    HY_FAIL_IF(!rates, HY_ERR_INPUT, "hy_loop_set_rates needs a list of rates; it is NULL");
    HY_TRY(hy_loop_begin_call(loop, "hy_loop_set_rates", &t));
    return hy_loop_leave(loop, set_rates(t, rates));
}

/* ---- arrays of state ------------------------------------------------------------------------- */

/* Finds an array of a parameter among the rows that have state and are not the program's memory. */
static hy_status find_array(const hy_trainer *t, int32_t parameter, int32_t index,
                            hy_state_tensor *out) {
    const hy_engine *e = t->engine;
    const hy_custom_side *side = e->custom;
    HY_FAIL_IF(t->team, HY_ERR_STATE, "the state is shared by %d ranks; only one rank can copy it",
               hy_engine_ranks(e));
    HY_FAIL_IF(parameter < 0 || parameter >= side->count, HY_ERR_INPUT,
               "parameter number %d does not exist; the model has %d, numbered from 0", parameter,
               side->count);
    int32_t param = side->first_part[parameter], left = index;
    for (int row = 0; row < HY_ROW_SLOW; row++) {
        const hy_row *r = &e->state->rows->row[row];
        bool has_state = row == HY_ROW_MASTER || row >= HY_ROW_OPTIM;
        if (!r->kind || r->is_callers || !has_state) continue;
        hy_state_cursor at = {.file = r->kind->file, .row = row, .param = param};
        while (hy_state_next(e, &at, out) && out->row == row && out->param == param)
            if (left-- == 0) return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "parameter %s has no array number %d of optimizer state",
                   side->params[parameter].name, index);
}

static hy_status describe(const hy_trainer *t, int32_t parameter, int32_t index,
                          hy_state_array *out) {
    hy_state_tensor tensor;
    HY_TRY(find_array(t, parameter, index, &tensor));
    const char *name = t->engine->state->rows->row[tensor.row].name;
    *out = (hy_state_array){.dtype = tensor.dtype,
                            .ndim = tensor.ndim,
                            .bytes = hy_dtype_bytes(tensor.dtype, tensor.count)};
    snprintf(out->name, sizeof out->name, "%.8s%s", name[0] ? name : "master",
             tensor.is_scale ? ".scale" : "");
    memcpy(out->shape, tensor.shape, sizeof out->shape);
    return HY_OK;
}

hy_status hy_loop_state_sized(hy_loop *loop, int32_t parameter, int32_t index, hy_state_array *out,
                              size_t size) {
    hy_trainer *t;
    hy_state_array array;
    HY_FAIL_IF(!out, HY_ERR_INPUT, "hy_loop_state needs an output pointer; it is NULL");
    HY_TRY(hy_loop_begin_call(loop, "hy_loop_state", &t));
    hy_status status = describe(t, parameter, index, &array);
    if (status == HY_OK) hy_copy_sized(out, size, &array, sizeof array);
    return hy_loop_leave(loop, status);
}

/* Copies an array from its store to `out`, or from `in` to its store: one of them is NULL. */
static hy_status copy(hy_trainer *t, int32_t parameter, int32_t index, char *out, const char *in,
                      uint64_t bytes) {
    hy_state_tensor tensor;
    hy_engine *e = t->engine;
    HY_TRY(find_array(t, parameter, index, &tensor));
    uint64_t all = hy_dtype_bytes(tensor.dtype, tensor.count), offset, done = 0;
    HY_FAIL_IF(bytes != all, HY_ERR_INPUT, "the state %s has %llu bytes, not %llu", tensor.name,
               (unsigned long long)all, (unsigned long long)bytes);
    HY_TRY(hy_custom_use(e, -1));
    HY_TRY(hy_offload_await(e->state));
    HY_TRY(hy_engine_sync(e));
    hy_store *store = hy_store_of(e, tensor.row);
    for (int64_t at = 0, some; at < tensor.count; at += some) {
        some = tensor.count - at;
        (void)hy_state_find(e, &tensor, at, &some, &offset); /* a single rank has everything */
        uint64_t size = hy_dtype_bytes(tensor.dtype, some);
        HY_TRY(in ? hy_store_write(store, e->device.compute, offset, in + done, size)
                  : hy_store_read(store, e->device.compute, offset, out + done, size));
        done += size;
    }
    if (!in) return HY_OK;
    hy_row_changed(e->state, tensor.row);
    return hy_store_settle(store);
}

static hy_status copy_in_call(hy_loop *loop, const char *call, int32_t parameter, int32_t index,
                              char *out, const char *in, uint64_t bytes) {
    hy_trainer *t;
    HY_FAIL_IF(!out && !in, HY_ERR_INPUT, "%s needs memory for the array; it is NULL", call);
    HY_TRY(hy_loop_begin_call(loop, call, &t));
    return hy_loop_leave(loop, copy(t, parameter, index, out, in, bytes));
}

hy_status hy_loop_read_state(hy_loop *loop, int32_t parameter, int32_t index, void *out,
                             uint64_t bytes) {
    return copy_in_call(loop, "hy_loop_read_state", parameter, index, out, NULL, bytes);
}

hy_status hy_loop_write_state(hy_loop *loop, int32_t parameter, int32_t index, const void *in,
                              uint64_t bytes) {
    return copy_in_call(loop, "hy_loop_write_state", parameter, index, NULL, in, bytes);
}

/* ---- counts of updates ----------------------------------------------------------------------- */

hy_status hy_loop_read_updates(hy_loop *loop, int64_t *updates, int64_t *steps) {
    hy_trainer *t;
    HY_FAIL_IF(!updates || !steps, HY_ERR_INPUT,
               "hy_loop_read_updates needs two output pointers; one is NULL");
    HY_TRY(hy_loop_begin_call(loop, "hy_loop_read_updates", &t));
    const hy_engine *e = t->engine;
    for (int32_t i = 0; i < e->custom->count; i++) {
        int64_t missed = e->model->params.list[e->custom->first_part[i]].missed;
        updates[i] = e->progress.updates - missed;
    }
    *steps = t->progress->step;
    return hy_loop_leave(loop, HY_OK);
}

static hy_status write_updates(hy_trainer *t, const int64_t *updates, int64_t steps) {
    hy_engine *e = t->engine;
    const hy_custom_side *side = e->custom;
    int64_t most = 0;
    HY_FAIL_IF(steps < 0, HY_ERR_INPUT, "the number of steps is %lld; expected 0 or more",
               (long long)steps);
    for (int32_t i = 0; i < side->count; i++) {
        HY_FAIL_IF(updates[i] < 0, HY_ERR_INPUT,
                   "the number of updates of parameter %s is %lld; expected 0 or more",
                   side->params[i].name, (long long)updates[i]);
        if (updates[i] > most) most = updates[i];
    }
    HY_TRY(hy_custom_use(e, -1));
    for (int32_t i = 0; i < e->model->params.count; i++) {
        hy_param *param = &e->model->params.list[i];
        param->missed = most - updates[param->whole];
    }
    e->progress.updates = most;
    t->progress->step = steps;
    return HY_OK;
}

hy_status hy_loop_write_updates(hy_loop *loop, const int64_t *updates, int64_t steps) {
    hy_trainer *t;
    HY_FAIL_IF(!updates, HY_ERR_INPUT, "hy_loop_write_updates needs a list of counts; it is NULL");
    HY_TRY(hy_loop_begin_call(loop, "hy_loop_write_updates", &t));
    return hy_loop_leave(loop, write_updates(t, updates, steps));
}
