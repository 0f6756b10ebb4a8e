/* memory_budget.c: whether a plan fits: limits the user gave, and what is free. See trainer.h.
 *
 * On a CPU everything lies in one memory. A card has its own, and beside it the host holds what the
 * predictor keeps and what is moved there. What is short is said with the amount, the limit's name and
 * what could be done without. */
#include "base/error.h"
#include "memory/host_memory.h"
#include "memory/pinned.h"
#include "trainer/planner_run.h"

/* What could be done without, and what that would save. */
static void add_savings(const hy_trainer *t, uint64_t host, uint64_t moved, hy_text *out) {
    char bytes[32];
    /* A card's host memory has no part in the rings. */
    uint64_t kept = host + (t->engine.backend->facts.is_gpu ? 0 : t->engine.work.ring_bytes);
    if (moved) {
        hy_text_addf(out, " offload_strategy = none would save %s;",
                     hy_format_bytes((double)moved, bytes, sizeof bytes));
    }
    if (kept) {
        hy_text_addf(out, " predictor = none would save %s;",
                     hy_format_bytes((double)kept, bytes, sizeof bytes));
    }
}

/* One kind of memory: what is asked of it, and how much there may be. */
typedef struct budget {
    const char *what; /* "device memory" */
    uint64_t needed;
    uint64_t limit;   /* 0: the system does not say */
    const char *name; /* of the limit */
    const char *savings, *advice;
} budget;

static const char batch_advice[] = " a smaller batch_size with more grad_accum_steps, recompute = "
                                   "all or a smaller model would need less";

static hy_status check_one(const budget *b) {
    char need[32], have[32] = "nothing", missing[32];
    if (!b->limit || b->needed <= b->limit) return HY_OK;
    if (b->limit > 1) hy_format_bytes((double)b->limit, have, sizeof have); /* 1: none at all */
    return hy_fail(HY_ERR_INPUT, "this run needs %s of %s and %s is %s: %s short;%s%s",
                   hy_format_bytes((double)b->needed, need, sizeof need), b->what, b->name, have,
                   hy_format_bytes((double)(b->needed - b->limit), missing, sizeof missing),
                   b->savings, b->advice);
}

/* What a card can give now. */
static uint64_t card_limit(const hy_trainer *t) {
    uint64_t free_bytes = t->engine.backend->facts.memory_free;
    return free_bytes > HY_CARD_RESERVE ? free_bytes - HY_CARD_RESERVE : 1;
}

/* The smaller of two limits, of which 0 is none. */
static uint64_t closer(uint64_t a, uint64_t b) { return !a ? b : !b || a < b ? a : b; }

uint64_t hy_trainer_device_limit(const hy_trainer *t) {
    uint64_t asked = (uint64_t)t->settings.memory.max_gpu_mem;
    uint64_t card = t->engine.backend->facts.is_gpu ? card_limit(t) : 0;
    return closer(closer(asked, card), t->engine.device_cap);
}

/* What this machine can spare, unless somebody plans for another one. A machine that is brought to its
 * knees trains nothing: the rest of it keeps host_reserve. */
static uint64_t spare_host(const hy_trainer *t) {
    hy_host_memory host;
    hy_host_memory_read("/proc", "/sys", &host);
    uint64_t reserve = hy_host_reserve(host.total, t->settings.memory.host_reserve);
    uint64_t spare = hy_host_budget(&host, 0, 0, reserve);
    return host.available && !spare ? 1 : spare; /* nothing to spare is a limit too */
}

uint64_t hy_trainer_host_limit(const hy_trainer *t) {
    uint64_t asked = (uint64_t)t->settings.memory.cpu_mem;
    bool is_elsewhere = t->life.is_plan && asked; /* the plan of a machine with that much */
    return closer(is_elsewhere ? asked : closer(asked, spare_host(t)), t->engine.host_cap);
}

static const char *host_limit_name(const hy_trainer *t) {
    uint64_t asked = (uint64_t)t->settings.memory.cpu_mem;
    return asked && hy_trainer_host_limit(t) == asked ? "cpu_mem" : "free memory less host_reserve";
}

static hy_status check_card(const hy_trainer *t, uint64_t device, uint64_t host,
                            const char *savings) {
    HY_TRY(check_one(&(budget){.what = "device memory",
                               .needed = device,
                               .limit = card_limit(t),
                               .name = "what is free on the card",
                               .savings = "",
                               .advice = batch_advice}));
    if (!t->settings.card[0]) HY_TRY(hy_pin_check(host)); /* another machine's limit is not known */
    return check_one(&(budget){.what = "host memory",
                               .needed = host,
                               .limit = hy_trainer_host_limit(t),
                               .name = host_limit_name(t),
                               .savings = savings,
                               .advice = " a smaller model would need less"});
}

static hy_status check_cpu(const hy_trainer *t, uint64_t all, const char *savings) {
    return check_one(&(budget){.what = "memory",
                               .needed = all,
                               .limit = hy_trainer_host_limit(t),
                               .name = host_limit_name(t),
                               .savings = savings,
                               .advice = batch_advice});
}

hy_status hy_trainer_check_budget(const hy_trainer *t, uint64_t device, uint64_t host,
                                  uint64_t moved) {
    HY_TRY(check_one(&(budget){.what = "device memory",
                               .needed = device,
                               .limit = (uint64_t)t->settings.memory.max_gpu_mem,
                               .name = "max_gpu_mem",
                               .savings = "",
                               .advice = batch_advice}));
    hy_text savings = {0};
    add_savings(t, host, moved, &savings);
    const char *text = hy_text_string(&savings);
    uint64_t beside = host + moved + hy_trainer_data_bytes(t);
    hy_status status = t->engine.backend->facts.is_gpu ? check_card(t, device, beside, text)
                                                       : check_cpu(t, device + beside, text);
    hy_text_free(&savings);
    return status;
}

hy_status hy_trainer_check_disk(const hy_trainer *t, uint64_t bytes) {
    const char *folder = t->settings.memory.offload_folder;
    uint64_t limit = hy_plan_budgets_of(t, &t->settings).disk;
    if (bytes == 0) return HY_OK;
    if (!folder[0]) {
        return hy_fail(HY_ERR_INPUT,
                       "a place is disk and offload_folder is empty: name a folder on a fast disk");
    }
    return check_one(&(budget){
        .what = "disk",
        .needed = bytes,
        .limit = limit == UINT64_MAX ? 0 : limit,
        .name = t->settings.memory.offload_size ? "offload_size" : "what is free in offload_folder",
        .savings = "",
        .advice = " less state on disk or a smaller model would need less"});
}
