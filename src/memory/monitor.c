/* monitor.c: thresholds, shares, and when a status may fall. See monitor.h. */
#include "memory/monitor.h"

#define AS_PLANNED 0.005 /* a share this much above the plan is still normal */

hy_memory_status hy_memory_status_of(const hy_memory_thresholds *thresholds, double share,
                                     double planned) {
    if (share < thresholds->warning || share <= planned + AS_PLANNED) return HY_MEMORY_NORMAL;
    if (share < thresholds->critical) return HY_MEMORY_WARNING;
    return share < thresholds->emergency ? HY_MEMORY_CRITICAL : HY_MEMORY_EMERGENCY;
}

bool hy_gauge_look(hy_memory_gauge *gauge, const hy_memory_thresholds *thresholds, double share,
                   double planned, bool may_fall) {
    hy_memory_status now = hy_memory_status_of(thresholds, share, planned);
    /* The status with a small margin added: after a rise, the status falls only with some
     * distance. */
    hy_memory_status held =
        hy_memory_status_of(thresholds, share + HY_GAUGE_MARGIN, planned + HY_GAUGE_MARGIN);
    if (now > gauge->status) {
        *gauge = (hy_memory_gauge){.status = now};
        return true;
    }
    if (held >= gauge->status) {
        gauge->calm = 0;
        return false;
    }
    if (!may_fall || ++gauge->calm < HY_GAUGE_CALM) return false;
    *gauge = (hy_memory_gauge){.status = (hy_memory_status)(gauge->status - 1)};
    return true;
}

double hy_memory_share(uint64_t bytes, uint64_t budget) {
    return budget ? (double)bytes / (double)budget : 0;
}

double hy_memory_fragmentation(uint64_t reserved, uint64_t peak) {
    return peak < reserved ? (double)(reserved - peak) / (double)reserved : 0;
}

uint64_t hy_card_budget(uint64_t free_at_start, uint64_t free_now, uint64_t reserved,
                        uint64_t slack) {
    uint64_t ours = free_now + reserved;
    uint64_t lost = free_at_start > ours ? free_at_start - ours : 0;
    uint64_t aside = lost < slack ? slack - lost : 0;
    return ours > aside ? ours - aside : 1;
}
