/* monitor_state.c: the placement table as it is now, for hybrid.h. See monitor.h. */
#include "base/error.h"
#include "base/sized.h"
#include "trainer/monitor.h"

#include <stdio.h>
#include <string.h>

#define LEAST_SHARE 0.01 /* what frees less is left out */

static void fill_classes(const hy_ledger *l, hy_memory_class out[HY_CLASS_SLOTS]) {
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_cell *cell = &l->cell[cls][l->phase];
        out[cls] =
            (hy_memory_class){.place = cell->place, .dtype = cell->dtype, .planned = cell->planned};
        for (int place = 0; place < HY_PLACE_COUNT; place++) {
            out[cls].live[place] = l->live[cls][place];
        }
    }
}

/* ---- advice ---------------------------------------------------------------------------------- */

/* What counts where memory is short. */
static int64_t counted(const hy_memory_state *state, int64_t device, int64_t host) {
    if (state->is_unified && !state->device.budget) return device + host;
    return state->host.status > state->device.status ? host : device;
}

static hy_memory_advice describe(const hy_advice *a) {
    hy_memory_advice out = {.device_bytes = a->device_bytes, .host_bytes = a->host_bytes};
    bool is_batch = strcmp(a->key, "batch_size") == 0, is_host = a->device_bytes <= 0;
    int64_t gain = is_host ? a->host_bytes : a->device_bytes;
    int64_t price = is_host ? -a->device_bytes : -a->host_bytes;
    snprintf(out.key, sizeof out.key, "%.31s", a->key);
    snprintf(out.value, sizeof out.value, "%.31s", a->to);
    int length = snprintf(out.text, sizeof out.text, "%.31s %.31s to %.31s frees %s%s",
                          is_batch ? "micro-batch" : a->key, a->from, a->to,
                          hy_bytes_as_text((uint64_t)gain).text, is_host ? " of host memory" : "");
    if (price > 0) {
        snprintf(out.text + length, sizeof out.text - (size_t)length, " and takes %s of %s",
                 hy_bytes_as_text((uint64_t)price).text, is_host ? "the device" : "host memory");
    }
    return out;
}

static hy_status advise(const hy_trainer *t, hy_memory_state *state) {
    const hy_plan *plan = t->engine->plan;
    hy_advice list[HY_ADVICE_MAX];
    int32_t count;
    HY_TRY(hy_advise_less(&t->engine->request, plan, list, &count));
    int64_t all = counted(state, (int64_t)plan->device, (int64_t)hy_plan_host_bytes(plan));
    state->advice_count = 0;
    for (int32_t i = 0; i < count && state->advice_count < HY_MEMORY_ADVICE; i++) {
        int64_t freed = counted(state, list[i].device_bytes, list[i].host_bytes);
        if (freed <= 0 || (double)freed < LEAST_SHARE * (double)all) continue;
        state->advice[state->advice_count++] = describe(&list[i]);
    }
    return HY_OK;
}

static hy_status describe_memory(const hy_trainer *t, hy_memory_state *out) {
    hy_memory_look look = hy_monitor_look(t, true);
    *out = (hy_memory_state){.size = sizeof *out,
                             .step = t->progress->step,
                             .phase = t->engine->state->ledger.phase,
                             .is_unified = !t->engine->device.backend->facts.is_gpu,
                             .device = look.device,
                             .host = look.host,
                             .target = t->settings->memory.target_usage,
                             .warning = t->settings->memory.warning_usage,
                             .critical = t->settings->memory.critical_usage,
                             .emergency = t->settings->memory.emergency_usage,
                             .host_pinned = look.pinned,
                             .host_resident = look.resident,
                             .process_device = look.process_device,
                             .stalled = look.stalled,
                             .fragmentation =
                                 hy_memory_fragmentation(look.device.reserved, look.device.peak)};
    out->device.status = hy_monitor_device_status(t);
    out->host.status = hy_monitor_host_status(t);
    out->status = out->host.status > out->device.status ? out->host.status : out->device.status;
    fill_classes(&t->engine->state->ledger, out->classes);
    return advise(t, out);
}

hy_status hy_trainer_memory_sized(const hy_trainer *t, hy_memory_state *out, size_t size) {
    hy_memory_state state;
    hy_status status = describe_memory(t, &state);
    hy_copy_sized(out, size, &state, sizeof state);
    return status;
}
