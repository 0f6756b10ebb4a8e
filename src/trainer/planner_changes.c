/* planner_changes.c: what would fit, when nothing does. See planner_run.h.
 *
 * A few changes of the settings are tried: each alone, and where none helps, some together. What
 * is suggested was planned and fits. */
#include <stdio.h>

#include "base/error.h"
#include "trainer/planner_run.h"

/* Makes the change; false where there is nothing to change. */
typedef bool (*change_maker)(const hy_trainer *t, hy_settings *s);

static bool open_recompute(const hy_trainer *t, hy_settings *s) {
    (void)t;
    return hy_settings_change(s, "recompute", "all");
}

static bool open_places(const hy_trainer *t, hy_settings *s) {
    hy_place *places[] = {&s->memory.weights_place, &s->memory.master_place, &s->memory.grads_place,
                          &s->memory.optim_place, &s->memory.activations_place};
    bool is_changed = false;
    if (!t->engine.backend->facts.is_gpu && !s->memory.max_gpu_mem) return false;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        is_changed |= *places[i] != HY_PLACE_AUTO;
        *places[i] = HY_PLACE_AUTO;
    }
    return is_changed;
}

static bool use_8bit(const hy_trainer *t, hy_settings *s) {
    (void)t;
    bool is_8bit = s->optimizer.optimizer & HY_OPTIMIZER_8BIT;
    return !is_8bit && hy_settings_change(s, "optim_dtype", "8bit");
}

static bool use_bf16_grads(const hy_trainer *t, hy_settings *s) {
    return t->engine.types.of[HY_FULL] == HY_BF16 && hy_settings_change(s, "grad_dtype", "bf16");
}

static bool use_bf16_master(const hy_trainer *t, hy_settings *s) {
    bool has_predictor = t->course.rules.has_predictor && s->phases.predictor != HY_PREDICTOR_NONE;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        bool is_used = has_predictor || i == HY_FULL || i == HY_WARMUP;
        if (is_used && t->engine.types.of[i] != HY_BF16) return false;
    }
    return hy_settings_change(s, "master_dtype", "bf16");
}

static bool without_predictor(const hy_trainer *t, hy_settings *s) {
    return t->course.rules.has_predictor && hy_settings_change(s, "predictor", "none");
}

static bool use_folder(const hy_trainer *t, hy_settings *s) {
    if (!t->engine.backend->facts.is_gpu && !s->memory.max_gpu_mem) return false;
    s->memory.offload_size = INT64_MAX;
    return hy_settings_change(s, "offload_folder", ".");
}

static bool halve_sequence(const hy_trainer *t, hy_settings *s) {
    (void)t;
    if (s->train.seq_len < 256 || s->train.seq_len % 2 != 0) return false;
    s->train.seq_len /= 2;
    if (s->train.step_tokens == 0) s->train.grad_accum_steps *= 2;
    return true;
}

static const struct {
    change_maker make;
    const char *words;
} changes[] = {
    {open_places, "places left to auto"},     {open_recompute, "recompute = all"},
    {without_predictor, "predictor = none"}, /* before those that ask which phases there are */
    {use_8bit, "optim_dtype = 8bit"},         {use_bf16_grads, "grad_dtype = bf16"},
    {use_bf16_master, "master_dtype = bf16"}, {use_folder, "an offload_folder"},
    {halve_sequence, "half the seq_len"},
};
#define CHANGES ((int)(sizeof changes / sizeof changes[0]))
#define FOLDER (1u << 6) /* a disk is slower than anything else: not the first thing to suggest */
#define MOST_TOGETHER 4

/* The settings with a set of changes, given as bits; false when one of them changes nothing. */
static bool make_changes(const hy_trainer *t, unsigned set, hy_settings *out) {
    *out = t->settings;
    for (int i = 0; i < CHANGES; i++) {
        if ((set >> i & 1) && !changes[i].make(t, out)) return false;
    }
    return true;
}

static hy_status try_changes(const hy_trainer *t, const hy_rates *rates, unsigned set, bool *fits) {
    hy_settings settings;
    hy_plan_setup setup;
    hy_plan plan = {0};
    *fits = false;
    if (!make_changes(t, set, &settings)) return HY_OK;
    hy_status status = hy_plan_setup_begin(&setup, t, &settings, rates);
    if (status == HY_OK) {
        status = hy_plan_leanest(&setup.problem, false, &plan);
        hy_plan_setup_end(&setup);
    }
    if (status == HY_ERR_INPUT)
        return HY_OK; /* what does not go together is no change to suggest */
    *fits = status == HY_OK && plan.fits;
    return status;
}

/* With the settings as they are: how much host memory, or device memory, would do? */
static hy_status ask_for_memory(const hy_trainer *t, const hy_rates *rates, hy_plan_facts *facts) {
    hy_plan_setup setup;
    hy_plan with_host = {0}, with_both = {0};
    char host[32], device[32];
    HY_TRY(hy_plan_setup_begin(&setup, t, &t->settings, rates));
    setup.problem.host = UINT64_MAX;
    hy_status status = hy_plan_leanest(&setup.problem, false, &with_host);
    setup.problem.device = UINT64_MAX;
    if (status == HY_OK) status = hy_plan_leanest(&setup.problem, true, &with_both);
    hy_plan_setup_end(&setup);
    HY_TRY(status);
    hy_format_bytes((double)with_host.host, host, sizeof host);
    hy_format_bytes((double)with_both.device, device, sizeof device);
    if (facts->change_count == HY_PLAN_CHANGES) return HY_OK;
    char *out = facts->changes[facts->change_count++];
    if (with_host.fits) {
        snprintf(out, HY_PLAN_TEXT, "%s of host memory", host);
    } else {
        hy_format_bytes((double)with_both.host, host, sizeof host);
        snprintf(out, HY_PLAN_TEXT, "%s of device memory and %s of host memory", device, host);
    }
    return HY_OK;
}

static void write_change(unsigned set, hy_plan_facts *facts) {
    char *out = facts->changes[facts->change_count++];
    size_t length = 0;
    for (int i = 0; i < CHANGES && length < sizeof facts->changes[0]; i++) {
        if (!(set >> i & 1)) continue;
        length += (size_t)snprintf(out + length, sizeof facts->changes[0] - length, "%s%s",
                                   length ? " and " : "", changes[i].words);
    }
}

static int bits_of(unsigned set) {
    int count = 0;
    for (; set; set &= set - 1) count++;
    return count;
}

/* The smallest sets `among` these changes with those that are `wanted`, `most` of them at the most. */
static hy_status find_smallest(const hy_trainer *t, const hy_rates *rates, unsigned among,
                               unsigned wanted, int most, hy_plan_facts *facts) {
    int32_t before = facts->change_count;
    for (int together = 1; together <= MOST_TOGETHER && facts->change_count == before; together++) {
        for (unsigned set = 1; set <= among && facts->change_count < before + most; set++) {
            bool fits;
            bool is_in = (set & ~among) == 0 && (set & wanted) == wanted;
            if (!is_in || bits_of(set) != together) continue;
            HY_TRY(try_changes(t, rates, set, &fits));
            if (fits) write_change(set, facts);
        }
    }
    return HY_OK;
}

hy_status hy_plan_find_changes(const hy_trainer *t, const hy_rates *rates, hy_plan_facts *facts) {
    unsigned all = (1u << CHANGES) - 1;
    facts->change_count = 0;
    HY_TRY(find_smallest(t, rates, all & ~FOLDER, 0, 3, facts));
    HY_TRY(find_smallest(t, rates, all, FOLDER, 1, facts));
    return ask_for_memory(t, rates, facts);
}
