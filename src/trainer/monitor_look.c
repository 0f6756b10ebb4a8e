/* monitor_look.c: reads the memory of a run from ledger, driver and system. See monitor_look.h.
 *
 * During a step the driver's figures come from their own thread, and the system's are read again
 * only after some time. A budget is what may be used now: that of a card shrinks when other
 * programs use it, that of the machine follows the available memory. */
#include "trainer/monitor_look.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/advice.h"

#define LEAST_SHARE 0.01 /* advice that frees a smaller share is left out */
#define CARD_PERIOD 1.0  /* seconds between two requests to the backend */
#define SAME_CARD 0.05   /* largest relative difference between the totals of driver and backend */

/* With lookahead the optimizer's state starts to return before Predict ends. */
uint64_t hy_monitor_planned(const hy_trainer *t, hy_phase phase) {
    const hy_engine *e = t->engine;
    bool moves = hy_offload_moves(e->plan->offload);
    bool is_early = phase == HY_PREDICT && moves && hy_offload_is_ahead(&e->state->offload);
    return hy_ledger_planned(&e->state->ledger, phase, HY_DEVICE) +
           (is_early ? e->plan->state.bytes[HY_PLAN_OPTIM] : 0);
}

/* ---- the device ------------------------------------------------------------------------------ */

static uint64_t ask_backend(const hy_trainer *t, bool is_fresh) {
    hy_backend *b = t->engine->device.backend;
    hy_monitor *m = t->monitor;
    size_t free_bytes = 0, total = 0;
    double now = hy_clock();
    bool is_known = m && m->asked_at > 0 && now - m->asked_at < CARD_PERIOD;
    if (is_known && !is_fresh) return m->card_free;
    if (!b->memory_now || b->memory_now(b, &free_bytes, &total) != HY_OK) return 0;
    if (m) {
        m->card_free = free_bytes;
        m->asked_at = now;
    }
    return free_bytes;
}

static void look_at_card(const hy_trainer *t, bool is_fresh, hy_memory_look *out) {
    const hy_device_facts *facts = &t->engine->device.backend->facts;
    hy_nvml_sample sample =
        is_fresh ? hy_nvml_ask(t->engine->nvml) : hy_nvml_latest(t->engine->nvml);
    /* The driver's library may see another card of that name, or a whole card that is
     * partitioned. */
    double total = (double)facts->memory_total;
    bool is_ours =
        sample.memory_total > 0 && fabs((double)sample.memory_total - total) <= SAME_CARD * total;
    hy_memory_pool *pool = &out->device;
    pool->total = facts->memory_total;
    pool->free = is_ours && !is_fresh ? sample.memory_free : ask_backend(t, is_fresh);
    out->process_device = is_ours ? sample.process_memory : 0;
    if (!pool->free) return;
    const hy_custom_types *types = t->engine->custom ? &t->engine->custom->types : NULL;
    /* What a caller's passes take is not known before the first step has measured it: until then
     * nothing is reported as short. Plans ask for a fresh look and know it. */
    if (!is_fresh && types && types->keeps_weights && types->caller_bytes < 0) return;
    uint64_t held = types ? hy_caller_share(types) : 0;
    uint64_t card =
        hy_card_budget(facts->memory_free + held, pool->free, pool->reserved, HY_CARD_RESERVE);
    if (card < pool->budget) pool->budget = card;
}

static void look_at_device(const hy_trainer *t, bool is_fresh, hy_memory_look *out) {
    const hy_ledger *l = &t->engine->state->ledger;
    uint64_t callers = t->engine->custom ? l->live[HY_ACTIVATIONS][HY_DEVICE] : 0;
    out->device = (hy_memory_pool){.used = l->live_in[HY_DEVICE],
                                   .reserved = hy_engine_reserved(t->engine, HY_DEVICE) + callers,
                                   .peak = l->peak_in[HY_DEVICE],
                                   .planned = hy_monitor_planned(t, l->phase),
                                   .budget = hy_budget_device(&t->engine->request)};
    if (t->engine->device.backend->facts.is_gpu) look_at_card(t, is_fresh, out);
    out->device.utilization = hy_memory_share(out->device.used, out->device.budget);
}

/* ---- the host -------------------------------------------------------------------------------- */

/* The limit of the user (cpu_mem) applies to planned memory, the free memory of the machine to
 * everything that the process holds. */
static void look_at_host(const hy_trainer *t, const hy_host_memory *host, hy_memory_look *out) {
    uint64_t limit = (uint64_t)t->settings->memory.cpu_mem;
    uint64_t reserve = hy_host_reserve(host->total, t->settings->memory.host_reserve);
    uint64_t ours = host->resident > out->pinned ? host->resident : out->pinned;
    hy_memory_pool *pool = &out->host;
    const hy_ledger *l = &t->engine->state->ledger;
    const hy_place places[] = {HY_PINNED, HY_HOST, HY_DEVICE}; /* on a CPU all three are the host */
    *pool = (hy_memory_pool){.free = host->available,
                             .total = host->total,
                             .budget = hy_host_budget(host, ours, 0, reserve),
                             .utilization = hy_host_pressure(host, ours, 0, reserve)};
    for (int i = 0; i < (t->engine->device.backend->facts.is_gpu ? 2 : 3); i++) {
        pool->used += l->live_in[places[i]];
        pool->reserved += hy_engine_reserved(t->engine, places[i]);
        pool->peak += l->peak_in[places[i]];
        pool->planned += hy_ledger_planned(l, l->phase, places[i]);
    }
    double of_limit = hy_memory_share(pool->used, limit);
    if (of_limit <= pool->utilization) return;
    pool->utilization = of_limit;
    pool->budget = limit;
}

hy_memory_look hy_monitor_look(const hy_trainer *t, bool is_fresh) {
    hy_monitor *m = t->monitor;
    hy_host_memory host;
    hy_memory_look look = {.pinned = t->engine->state->ledger.live_in[HY_PINNED]};
    if (m && m->watch) {
        host = *(is_fresh ? hy_host_watch_read(m->watch) : hy_host_watch_look(m->watch));
    } else {
        hy_host_memory_read("/proc", "/sys", &host);
    }
    look.resident = host.resident;
    look.stalled = host.stalled;
    look_at_device(t, is_fresh, &look);
    look_at_host(t, &host, &look);
    look.device.status = m ? m->device.status : HY_MEMORY_NORMAL; /* as of the last step */
    look.host.status = m ? m->host.status : HY_MEMORY_NORMAL;
    return look;
}

bool hy_trainer_is_short(const hy_trainer *t) {
    return t->monitor && (t->monitor->device.status >= HY_MEMORY_CRITICAL ||
                          t->monitor->host.status >= HY_MEMORY_CRITICAL);
}

/* ---- the table with advice ------------------------------------------------------------------- */

/* The bytes of the memory that is short: device or host. */
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
    int length =
        snprintf(out.text, sizeof out.text, "changing %.31s from %.31s to %.31s frees %s%s",
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

hy_status hy_monitor_describe(const hy_trainer *t, hy_memory_state *out) {
    hy_memory_look look = hy_monitor_look(t, true);
    const hy_ledger *l = &t->engine->state->ledger;
    *out = (hy_memory_state){.size = sizeof *out,
                             .step = t->progress->step,
                             .phase = l->phase,
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
    out->status = out->host.status > out->device.status ? out->host.status : out->device.status;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_cell *cell = &l->cell[cls][l->phase];
        out->classes[cls] =
            (hy_memory_class){.place = cell->place, .dtype = cell->dtype, .planned = cell->planned};
        memcpy(out->classes[cls].live, l->live[cls], sizeof l->live[cls]);
    }
    return advise(t, out);
}
