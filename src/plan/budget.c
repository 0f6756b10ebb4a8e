/* budget.c: does a plan fit into the user's limits and the free memory? See request.h.
 *
 * On a CPU everything is in one memory. A card has its own memory; the host then holds the
 * predictor's state and whatever is moved there. The error names the missing amount and the
 * limit. */
#include <stdio.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "config/derived.h"
#include "data/loader.h"
#include "memory/pinned.h"
#include "plan/request.h"

#define MOST_AHEAD 64 /* micro-batches */

/* Checks the need for one kind of memory against a limit with this name; 0: the limit is not
 * known. */
static hy_status check_one(const char *what, uint64_t needed, uint64_t limit, const char *name) {
    HY_FAIL_IF(limit && needed > limit, HY_ERR_INPUT,
               "this run needs %s of %s, but %s is %s: %s short", hy_bytes_as_text(needed).text,
               what, name, limit > 1 ? hy_bytes_as_text(limit).text : "nothing", /* 1 means none */
               hy_bytes_as_text(needed - limit).text);
    return HY_OK;
}

/* The share of one rank in memory that several ranks share. */
static uint64_t share_of(uint64_t bytes, int32_t sharers) {
    return sharers > 1 ? bytes / (uint64_t)sharers : bytes;
}

/* The free memory of the card with that of a caller, which counts its own, minus the reserve. */
static uint64_t card_limit(const hy_plan_request *r) {
    uint64_t free_bytes = share_of(r->backend->facts.memory_free, r->card_sharers);
    if (r->custom) free_bytes += hy_caller_share(r->custom);
    return free_bytes > HY_CARD_RESERVE ? free_bytes - HY_CARD_RESERVE : 1;
}

/* The smaller of two limits; 0 means no limit. */
static uint64_t smaller_limit(uint64_t a, uint64_t b) { return !a ? b : !b || a < b ? a : b; }

uint64_t hy_budget_device(const hy_plan_request *r) {
    uint64_t asked = (uint64_t)r->settings->memory.max_gpu_mem;
    uint64_t card = r->backend->facts.is_gpu ? card_limit(r) : 0;
    return smaller_limit(smaller_limit(asked, card), r->device_cap);
}

/* The memory that this machine can spare, unless the plan is for another machine. host_reserve
 * stays free for other programs. */
uint64_t hy_budget_host(const hy_plan_request *r) {
    uint64_t asked = (uint64_t)r->settings->memory.cpu_mem, spare = 0;
    bool is_elsewhere = r->is_plan && asked; /* planned for a machine with that much memory */
    if (!is_elsewhere) {
        hy_host_memory host;
        hy_host_memory_read("/proc", "/sys", &host);
        uint64_t reserve = hy_host_reserve(host.total, r->settings->memory.host_reserve);
        spare = share_of(hy_host_budget(&host, 0, 0, reserve), r->sharers);
        if (host.available && !spare) spare = 1; /* no spare memory is also a limit */
        if (spare > 0) spare += r->host_held;    /* not shared with other ranks */
    }
    return smaller_limit(smaller_limit(asked, spare), r->host_cap);
}

uint64_t hy_budget_disk(const hy_settings *s) {
    struct statvfs disk;
    const char *folder = s->memory.offload_folder;
    if (!folder[0]) return 0;
    if (s->memory.offload_size) return (uint64_t)s->memory.offload_size;
    if (s->card[0] || statvfs(folder, &disk) != 0) return UINT64_MAX;
    return (uint64_t)disk.f_bavail * disk.f_frsize;
}

/* A step's micro-batches are freed at its end, so on a GPU those of the next step are ready at
 * the same time: the GPU should not wait for data. */
int64_t hy_data_depth(const hy_plan_request *r, int64_t accum) {
    int64_t ahead = r->settings->input.prefetch, step = accum > MOST_AHEAD ? MOST_AHEAD : accum;
    if (r->backend->facts.is_gpu && step > ahead) ahead = step;
    return accum + ahead;
}

uint64_t hy_data_bytes(const hy_plan_request *r, int64_t batch, int64_t accum) {
    uint64_t rows = (uint64_t)batch * (uint64_t)r->settings->train.seq_len;
    uint64_t values = r->has_doc_starts ? 3 : 2; /* tokens, targets, documents */
    bool is_compared = hy_preference_has_reference(r->settings->task);
    values += is_compared && !hy_settings_reference_is_inline(r->settings); /* the reference */
    if (!hy_model_has_passes(r->model)) return 0; /* a custom model reads its own data */
    if (r->model->loss.kind == HY_LOSS_POLICY) {
        rows = (uint64_t)(r->settings->grpo.prompts * r->settings->grpo.samples);
        return hy_policy_bytes(r->settings->train.seq_len, (int64_t)rows);
    }
    return (uint64_t)hy_data_depth(r, accum) * rows * values * sizeof(int32_t);
}

/* ---- checking -------------------------------------------------------------------------------- */

static const char *host_limit_name(const hy_plan_request *r, uint64_t limit) {
    if (limit == (uint64_t)r->settings->memory.cpu_mem) return "cpu_mem";
    if (limit == r->host_cap) return "the limit since the system refused more";
    return r->sharers > 1 ? "a rank's share of free memory minus host_reserve"
                          : "free memory minus host_reserve";
}

hy_status hy_budget_check(const hy_plan_request *r, const hy_plan *plan) {
    const hy_settings *s = r->settings;
    bool is_gpu = r->backend->facts.is_gpu;
    uint64_t device = (uint64_t)s->memory.max_gpu_mem;
    uint64_t host = hy_budget_host(r), disk = hy_budget_disk(s);
    uint64_t needed =
        hy_plan_host_bytes(plan) + hy_data_bytes(r, plan->choice.batch, plan->choice.accum);
    HY_TRY(check_one("device memory", plan->device, device, "max_gpu_mem"));
    if (is_gpu) {
        HY_TRY(check_one("device memory", plan->device, card_limit(r),
                         r->card_sharers > 1
                             ? "a rank's share of the card's free memory minus 256 MiB"
                             : "the card's free memory minus 256 MiB"));
        /* Another machine's limit is not known. */
        if (!s->card[0] && needed > r->host_held) HY_TRY(hy_pin_check(needed - r->host_held));
    }
    HY_TRY(check_one(is_gpu ? "host memory" : "memory", needed + (is_gpu ? 0 : plan->device), host,
                     host_limit_name(r, host)));
    if (plan->disk == 0) return HY_OK;
    HY_FAIL_IF(!s->memory.offload_folder[0], HY_ERR_INPUT,
               "the plan places data on disk, but offload_folder is empty: set it to a folder on a "
               "fast disk");
    char free_space[HY_TEXT_MAX + 48];
    snprintf(free_space, sizeof free_space, "the free space in %s (offload_folder)",
             s->memory.offload_folder);
    return check_one("disk", plan->disk,
                     disk == UINT64_MAX ? 0
                     : disk             ? disk
                                        : 1,
                     s->memory.offload_size ? "offload_size" : free_space);
}
