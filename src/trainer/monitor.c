/* monitor.c: checks memory once a step and reports changes. See monitor.h.
 *
 * The device and the host each have a status, which changes by the rules of memory/monitor.h. A
 * change is sent to the observer and the record, and printed with advice; in addition there is a
 * line every few steps. silent prints nothing and records everything. */
#include "trainer/monitor.h"

#include <stdlib.h>

#include "trainer/recording.h"

#define MUCH_STALLED 0.1 /* share of the time spent waiting for memory that is reported */
#define LINE_ADVICE 2    /* suggested settings in a line */
#define LOOK_PERIOD 0.01 /* seconds between two looks while the status is normal */

static hy_memory_status worse(hy_memory_status a, hy_memory_status b) { return a > b ? a : b; }

/* ---- begin and end --------------------------------------------------------------------------- */

/* The most that any phase of the plan needs on the device, as a share of its budget. */
static double planned_of_device(const hy_trainer *t) {
    uint64_t most = 0;
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        uint64_t planned = hy_monitor_planned(t, (hy_phase)phase);
        if (planned > most) most = planned;
    }
    return hy_memory_share(most, hy_budget_device(&t->engine->request));
}

hy_status hy_monitor_open(hy_trainer *t) {
    if (t->settings->memory.monitor == HY_MONITOR_OFF) return HY_OK;
    hy_monitor *m = calloc(1, sizeof *m);
    HY_FAIL_IF(!m, HY_ERR_MEMORY, "no memory for the memory monitor");
    m->watch = hy_host_watch_open("/proc", "/sys");
    m->is_silent = t->settings->memory.monitor == HY_MONITOR_SILENT;
    m->said_step = t->progress->step;
    m->thresholds = (hy_memory_thresholds){.target = t->settings->memory.target_usage,
                                           .warning = t->settings->memory.warning_usage,
                                           .critical = t->settings->memory.critical_usage,
                                           .emergency = t->settings->memory.emergency_usage};
    t->monitor = m;
    hy_memory_look look = hy_monitor_look(t, true);
    uint64_t ours = look.host.reserved > look.resident ? look.host.reserved : look.resident;
    m->device_planned = planned_of_device(t);
    m->host_planned = hy_memory_share(ours, look.host.budget);
    return HY_OK;
}

void hy_monitor_close(hy_trainer *t) {
    if (!t->monitor) return;
    hy_host_watch_close(t->monitor->watch);
    free(t->monitor);
    t->monitor = NULL;
}

/* host_planned stays: memory that other programs took since the start was not planned. */
void hy_monitor_reset(hy_trainer *t) {
    hy_monitor *m = t->monitor;
    if (!m) return;
    hy_memory_look look = hy_monitor_look(t, true);
    m->looked_at = 0;
    m->device_planned = planned_of_device(t);
    m->device = (hy_memory_gauge){
        .status = hy_memory_status_of(&m->thresholds, look.device.utilization, m->device_planned)};
    m->host = (hy_memory_gauge){
        .status = hy_memory_status_of(&m->thresholds, look.host.utilization, m->host_planned)};
}

/* ---- words ----------------------------------------------------------------------------------- */

/* One sentence: the live bytes of each budget, and what the process holds in addition. */
static void describe_look(const hy_trainer *t, const hy_memory_look *look, hy_text *out) {
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    if (is_gpu || look->device.budget) {
        const hy_memory_pool *p = &look->device;
        hy_text_addf(out, "device %s", hy_bytes_as_text(p->used).text);
        if (p->budget) {
            hy_text_addf(out, " of %s (%.0f %%)", hy_bytes_as_text(p->budget).text,
                         100 * p->utilization);
        }
        if (p->planned != p->used)
            hy_text_addf(out, ", planned %s", hy_bytes_as_text(p->planned).text);
        if (p->free) hy_text_addf(out, ", %s free", hy_bytes_as_text(p->free).text);
        hy_text_add(out, "; ");
    }
    if (is_gpu) {
        hy_text_addf(out, "host %s pinned", hy_bytes_as_text(look->pinned).text);
    } else {
        hy_text_addf(out, "%s live", hy_bytes_as_text(look->host.used).text);
    }
    if (look->resident) {
        hy_text_addf(out, ", %s resident of %s (%.0f %%)", hy_bytes_as_text(look->resident).text,
                     hy_bytes_as_text(look->host.budget).text, 100 * look->host.utilization);
    }
    if (look->host.utilization >= 1) {
        hy_text_addf(out, ", %s left on the machine", hy_bytes_as_text(look->host.free).text);
    }
    if (look->stalled >= MUCH_STALLED) {
        hy_text_addf(out, ", %.0f %% of the time spent waiting for memory", 100 * look->stalled);
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void say(hy_trainer *t, hy_message_level level, const char *text) {
    t->monitor->said_step = t->progress->step;
    if (!t->monitor->is_silent) hy_say(t, level, "%s", text);
}

static void report_change(hy_trainer *t, const hy_memory_look *look) {
    hy_monitor *m = t->monitor;
    hy_memory_state state;
    hy_text line = {0};
    hy_memory_status was = m->reported, now = worse(m->device.status, m->host.status);
    bool is_host = m->host.status >= m->device.status;
    const hy_memory_pool *pool = is_host ? &look->host : &look->device;
    if (hy_monitor_describe(t, &state) != HY_OK) state.advice_count = 0;
    m->reported = now;
    hy_text_addf(&line, "memory %s (was %s): ", hy_memory_status_name(now),
                 hy_memory_status_name(was));
    describe_look(t, look, &line);
    for (int i = 0; now > HY_MEMORY_NORMAL && i < state.advice_count && i < LINE_ADVICE; i++) {
        hy_text_addf(&line, "; %s", state.advice[i].text);
    }
    say(t, now > was ? HY_WARNING : HY_NOTE, hy_text_string(&line));
    hy_trainer_record_event(t, &(hy_event_line){.event = "memory",
                                                .status = hy_memory_status_name(now),
                                                .old_status = hy_memory_status_name(was),
                                                .utilization = pool->utilization,
                                                .text = hy_text_string(&line)});
    if (t->observer.on_memory) t->observer.on_memory(t->observer.user, &state);
    hy_text_free(&line);
}

static void fill_info(const hy_monitor *m, const hy_memory_look *look, hy_step_info *info) {
    info->vram_planned_bytes = look->device.planned;
    info->vram_reserved_bytes = look->device.reserved;
    info->vram_free_bytes = look->device.free;
    info->host_resident_bytes = look->resident;
    info->memory_status = worse(m->device.status, m->host.status);
}

void hy_monitor_step(hy_trainer *t, hy_step_info *info) {
    hy_monitor *m = t->monitor;
    if (!m) return;
    double begin = hy_clock();
    int64_t every = t->settings->memory.monitor_every;
    bool is_line_due =
        !m->is_silent && every > 0 && info->step != m->said_step && info->step % every == 0;
    /* Steps of a millisecond are not all checked: while the status is normal, recent figures of the
     * same phase are used. */
    if (m->looked_at > 0 && begin - m->looked_at < LOOK_PERIOD && info->phase == m->looked_phase &&
        m->reported == HY_MEMORY_NORMAL && !is_line_due) {
        fill_info(m, &m->look, info);
        return;
    }
    hy_memory_look look = m->look = hy_monitor_look(t, false);
    m->looked_at = begin;
    m->looked_phase = info->phase;
    bool may_fall = info->phase != HY_PREDICT; /* the next optimizer step needs more again */
    hy_gauge_look(&m->device, &m->thresholds, look.device.utilization, m->device_planned, may_fall);
    hy_gauge_look(&m->host, &m->thresholds, look.host.utilization, m->host_planned, true);
    fill_info(m, &look, info);
    if (info->memory_status != m->reported) {
        report_change(t, &look);
    } else if (is_line_due) {
        hy_text line = {0};
        hy_text_addf(&line, "step %lld: memory %s: ", (long long)t->progress->step,
                     hy_memory_status_name(info->memory_status));
        describe_look(t, &look, &line);
        say(t, HY_NOTE, hy_text_string(&line));
        hy_text_free(&line);
    }
    m->seconds += hy_clock() - begin;
}
