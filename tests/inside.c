/* inside.c: see inside.h. */
#include "inside.h"

#include <assert.h>

#include "trainer/recovery.h"
#include "trainer/resize.h"
#include "trainer/trainer.h"

hy_status inside_resize(hy_trainer *t, int64_t batch_size) {
    return hy_trainer_resize(t, batch_size, "a test asks for it");
}

hy_status inside_replan(hy_trainer *t, uint64_t device_bytes) {
    return hy_trainer_replan(t, device_bytes, 0, "a test asks for it");
}

hy_status inside_device_at(const hy_trainer *t, int64_t batch_size, uint64_t *bytes) {
    hy_plan plan;
    hy_status status = hy_trainer_work_at(t, batch_size, &plan);
    if (status == HY_OK) *bytes = plan.device;
    return status;
}

void inside_set(hy_trainer *t, const char *key, const char *value) {
    const hy_setting *setting = hy_setting_find(key, NULL);
    assert(setting);
    hy_setting_store(setting, value, t->settings);
}

hy_status inside_give_up(hy_trainer *t, hy_status status) { return hy_trainer_give_up(t, status); }

hy_status inside_enter(hy_trainer *t, const hy_phase_row *row, void **lent, uint64_t *bytes) {
    hy_engine *e = t->engine;
    hy_phase phase = row ? row->phase : HY_FULL;
    if (row) hy_plan_column(e->state->rows, e->plan, row, &e->state->ledger);
    hy_status status = hy_engine_enter_phase(e, row ? row : &hy_phase_table[phase]);
    if (lent) *lent = e->work->lent[1].data;
    if (bytes) *bytes = e->plan->work.lent.workspace;
    return status;
}

void inside_phase_bytes(const hy_trainer *t, int phase, uint64_t *peak, uint64_t *planned) {
    *peak = t->engine->state->ledger.phase_peak[phase];
    *planned = hy_ledger_planned(&t->engine->state->ledger, (hy_phase)phase, HY_DEVICE);
}

hy_status inside_bytes_sent(hy_trainer *t, uint64_t *bytes) {
    hy_status status = t->engine->device.backend->stream_sync(t->engine->collectives->net.stream);
    *bytes = hy_link_bytes_sent(t->team->link);
    return status;
}
