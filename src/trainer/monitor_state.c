/* monitor_state.c: the placement table as it is now, for hybrid.h. See monitor.h. */
#include "base/error.h"
#include "trainer/monitor.h"

static void fill_classes(const hy_ledger *l, hy_memory_class out[HY_CLASS_COUNT]) {
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_cell *cell = &l->cell[cls][l->phase];
        out[cls] =
            (hy_memory_class){.place = cell->place, .dtype = cell->dtype, .planned = cell->planned};
        for (int place = 0; place < HY_PLACE_COUNT; place++) {
            out[cls].live[place] = l->live[cls][place];
        }
    }
}

hy_status hy_trainer_memory(const hy_trainer *t, hy_memory_state *out) {
    HY_TRY(hy_trainer_must_have_plan(t));
    hy_memory_look look = hy_monitor_look(t, true);
    *out = (hy_memory_state){.step = t->progress.step,
                             .phase = t->engine.ledger.phase,
                             .is_unified = !t->engine.backend->facts.is_gpu,
                             .device = look.device,
                             .host = look.host,
                             .target = t->settings.memory.target_usage,
                             .warning = t->settings.memory.warning_usage,
                             .critical = t->settings.memory.critical_usage,
                             .emergency = t->settings.memory.emergency_usage,
                             .host_pinned = look.pinned,
                             .host_resident = look.resident,
                             .process_device = look.process_device,
                             .stalled = look.stalled,
                             .fragmentation =
                                 hy_memory_fragmentation(look.device.reserved, look.device.peak)};
    out->device.status = hy_monitor_device_status(t);
    out->host.status = hy_monitor_host_status(t);
    out->status = out->host.status > out->device.status ? out->host.status : out->device.status;
    fill_classes(&t->engine.ledger, out->classes);
    return hy_monitor_advise(t, out);
}
