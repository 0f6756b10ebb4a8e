/* test_monitor_run.c: the memory monitor in runs: its figures compared with the ledger, the system
 * and new plans; its messages, and when they appear. */
#include "fake_card.h"
#include "hybrid_tools.h"
#include "run_facts.h"
#include "small_run.h"

#include "memory/monitor.h"
#include "process_figures.h"
#include "skipped_time.h"

/* A plan for a card that is not here: places may be anything there. Nothing is left to be
 * chosen. */
#define CARD_PLAN                                                                                  \
    "model gpt2-124m card rtx5080 seq_len 512 batch_size 8 grad_accum_steps 3 steps 10 "           \
    "builtin_bytes 60000 profile balanced recompute none loss_chunks 4 ring_depth 3 "              \
    "resident_units 0 weights_place device master_place device grads_place device "                \
    "optim_place device activations_place device predictor_place pinned update now "               \
    "eval_batch_size 8 "

#define CPU_PLAN SMALL_RUN "batch_size 8 grad_accum_steps 3 recompute none loss_chunks 2 "

/* Host memory that a plan counts, forks and data apart. */
static int64_t host_of(const hy_trainer *t) {
    hy_memory_cell left = cell_of(t, HY_OPTIM, HY_PREDICT); /* offload_strategy cpu: not pinned */
    uint64_t pageable = left.place == HY_HOST ? left.planned_bytes : 0;
    return (int64_t)(facts_of(t).host_pinned_bytes + pageable);
}

/* ---- the state ------------------------------------------------------------------------------- */

static void check_sums(const hy_memory_state *s) {
    uint64_t in[HY_PLACE_COUNT] = {0}, planned = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        for (int place = 0; place < HY_PLACE_COUNT; place++)
            in[place] += s->classes[cls].live[place];
        if (s->classes[cls].place == HY_DEVICE) planned += s->classes[cls].planned;
    }
    ck_assert_uint_eq(in[HY_DEVICE], s->device.used);
    ck_assert_uint_eq(in[HY_PINNED], s->host_pinned);
    ck_assert_uint_eq(in[HY_DEVICE] + in[HY_PINNED] + in[HY_HOST], s->host.used); /* one memory */
    ck_assert_uint_eq(planned, s->device.planned);
    ck_assert_uint_le(s->device.used, s->device.reserved);
    ck_assert_uint_le(s->device.used, s->device.peak);
    ck_assert_double_lt(s->fragmentation, 0.01);
    ck_assert_double_ge(s->fragmentation, 0);
}

START_TEST(the_state_of_a_run_adds_up) {
    hy_trainer *t = small_trainer(SMALL_RUN "predictor none", "none", NULL, NULL);
    hy_memory_state s;
    hy_step_info info;
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, &info));
    must(hy_trainer_memory(t, &s));
    check_sums(&s);
    ck_assert_int_eq(s.step, 3);
    ck_assert_int_eq(s.status, HY_MEMORY_NORMAL);
    ck_assert(s.is_unified);
    ck_assert_uint_eq(s.device.used, s.device.planned); /* what a step needs is all live */
    ck_assert_uint_eq(s.device.reserved, facts_of(t).vram_bytes);
    ck_assert_uint_eq(info.vram_bytes, s.device.used);
    ck_assert_uint_eq(info.vram_planned_bytes, s.device.planned);
    ck_assert_uint_eq(info.vram_reserved_bytes, s.device.reserved);
    ck_assert_uint_gt(info.host_resident_bytes, 0);
    ck_assert_double_eq(s.warning, 0.92);
    must(hy_trainer_memory(t, &s));
    double resident = (double)s.host_resident;
    double rss = (double)status_bytes("VmRSS");
    ck_assert_double_lt(fabs(resident - rss), 0.01 * rss);
    ck_assert_uint_gt(s.host_resident, 0);
    ck_assert_uint_gt(s.host.free, 0);
    ck_assert_uint_ge(s.host.total, s.host.free);
    hy_trainer_destroy(t);
}
END_TEST

/* Predict has other columns; the figures follow. */
START_TEST(the_state_follows_the_phases) {
    hy_trainer *t = small_trainer(SMALL_RUN "steps 60 full_steps 6 correct_steps 2 predictor outer "
                                            "predict_from 0.1 regime scratch offload_strategy cpu",
                                  "none", NULL, NULL);
    hy_memory_state full, predict = {0};
    hy_step_info info = {0};
    must(hy_trainer_step(t, &info));
    must(hy_trainer_memory(t, &full));
    check_sums(&full);
    for (int i = 0; i < 50 && info.phase != HY_PREDICT; i++) must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_PREDICT);
    must(hy_trainer_memory(t, &predict));
    ck_assert_int_eq(predict.phase, HY_PREDICT);
    ck_assert_uint_eq(predict.classes[HY_GRADS].live[HY_DEVICE], 0);
    ck_assert_uint_gt(full.classes[HY_GRADS].live[HY_DEVICE], 0);
    ck_assert_uint_lt(predict.device.used, full.device.used);
    ck_assert_uint_eq(predict.device.reserved, full.device.reserved);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- estimates ------------------------------------------------------------------------------- */

static const char *const shapes[] = {
    "width 32 heads 4 mlp_width 48 ",
    "width 48 heads 4 kv_heads 2 mlp_width 64 norm rmsnorm positions rope activation swiglu "
    "tied_head false ",
};

static void check_estimate(const char *shape, const char *level, const char *place, int number) {
    char words[1024];
    hy_activation_estimate estimates[HY_RECOMPUTE_LEVELS];
    snprintf(words, sizeof words, SMALL_RUN "predictor none %s batch_size 6 seq_len 24 ", shape);
    const char *const *pairs = PAIRS("recompute", level, "activations_place", place, "max_gpu_mem",
                                     "100M", "ring_depth", "3", "loss_chunks", "3");
    hy_trainer *t = plan_words(words, pairs);
    hy_memory_cell kept = cell_of(t, HY_ACTIVATIONS, HY_FULL);
    hy_config *config = small_run(words, "none", pairs);
    must(hy_config_set(config, "batch_size", "1", HY_FROM_CALLER)); /* the call's own count */
    must(hy_estimate_activations(config, 6, 24, estimates));
    const hy_activation_estimate *e = &estimates[number];
    bool is_offloaded = strcmp(place, "pinned") == 0;
    ck_assert_str_eq(e->recompute, level);
    ck_assert_int_eq(kept.place, is_offloaded ? HY_PINNED : HY_DEVICE);
    ck_assert_uint_eq(is_offloaded ? e->offloaded : e->activations, kept.planned_bytes);
    uint64_t ring = is_offloaded ? e->offload_device : 0; /* what is left on the device */
    ck_assert_uint_eq(e->workspace + ring, cell_of(t, HY_WORKSPACE, HY_FULL).planned_bytes);
    hy_config_destroy(config);
    hy_trainer_destroy(t);
}

START_TEST(estimates_are_what_batch_plans_take) {
    static const char *const levels[] = {"none", "norm", "attention", "mlp", "all"};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int i = 0; i < HY_RECOMPUTE_LEVELS; i++) {
            check_estimate(shapes[s], levels[i], "device", i);
            check_estimate(shapes[s], levels[i], "pinned", i);
        }
    }
}
END_TEST

/* A 7B model on a 16 GB card, at once and without either. */
START_TEST(estimates_need_neither_the_model_nor_the_card) {
    hy_activation_estimate short_ones[HY_RECOMPUTE_LEVELS], long_ones[HY_RECOMPUTE_LEVELS];
    hy_config *config = small_run("model qwen2.5-7b card rtx5080 ", "none", NULL);
    must(hy_estimate_activations(config, 4, 1024, short_ones));
    must(hy_estimate_activations(config, 4, 4096, long_ones));
    for (int i = 0; i < HY_RECOMPUTE_LEVELS; i++) {
        double ratio = (double)long_ones[i].activations / (double)short_ones[i].activations;
        ck_assert_double_gt(ratio, 3.9); /* attention keeps no square */
        ck_assert_double_lt(ratio, 4.1);
        if (i > 0) ck_assert_uint_lt(short_ones[i].activations, short_ones[0].activations);
    }
    ck_assert_uint_gt(short_ones[0].activations, 5 * short_ones[4].activations);
    must_fail(hy_estimate_activations(config, 4, 1 << 30, long_ones), HY_ERR_INPUT, "accepted are");
    must_fail(hy_estimate_activations(config, -1, 16, long_ones), HY_ERR_INPUT, "-1 sequences");
    hy_config_destroy(config);
}
END_TEST

/* ---- advice ---------------------------------------------------------------------------------- */

static void check_advice(const char *words, const hy_trainer *plan, const hy_memory_advice *a) {
    char accum[32] = "3";
    if (strcmp(a->key, "batch_size") == 0) {
        snprintf(accum, sizeof accum, "%ld", 24 / strtol(a->value, NULL, 10));
    }
    hy_trainer *other = plan_words(words, PAIRS(a->key, a->value, "grad_accum_steps", accum));
    int64_t device = (int64_t)facts_of(plan).vram_bytes - (int64_t)facts_of(other).vram_bytes;
    int64_t host = host_of(plan) - host_of(other);
    ck_assert_msg(device == a->device_bytes && host == a->host_bytes,
                  "%s: %lld of the device and %lld of the host are freed, not %lld and %lld",
                  a->text, (long long)device, (long long)host, (long long)a->device_bytes,
                  (long long)a->host_bytes);
    ck_assert_ptr_nonnull(strstr(a->text, " frees "));
    hy_trainer_destroy(other);
}

static int check_all_advice(const char *words) {
    hy_memory_state s;
    hy_trainer *plan = plan_words(words, NULL);
    must(hy_trainer_memory(plan, &s));
    for (int i = 0; i < s.advice_count; i++) check_advice(words, plan, &s.advice[i]);
    hy_trainer_destroy(plan);
    return s.advice_count;
}

START_TEST(advice_frees_what_it_says) {
    ck_assert_int_ge(check_all_advice(CPU_PLAN "predictor none "), 4);
    ck_assert_int_ge(check_all_advice(CPU_PLAN "eval_batch_size 64 predictor none "), 1);
    ck_assert_int_ge(check_all_advice(CPU_PLAN "predictor outer offload_strategy cpu "), 4);
    ck_assert_int_eq(check_all_advice(CARD_PLAN), HY_MEMORY_ADVICE);
    ck_assert_int_ge(check_all_advice(CARD_PLAN "optim_dtype 8bit recompute all "), 3);
}
END_TEST

START_TEST(advice_is_in_words) {
    hy_memory_state s;
    hy_trainer *plan = plan_words(CARD_PLAN, NULL);
    must(hy_trainer_memory(plan, &s));
    ck_assert_ptr_eq(strstr(s.advice[0].text, "changing micro-batch from 8 to 6 frees "),
                     s.advice[0].text);
    ck_assert_str_eq(s.advice[0].key, "batch_size");
    ck_assert_str_eq(s.advice[0].value, "6");
    ck_assert_ptr_eq(strstr(s.advice[1].text, "changing micro-batch from 8 to 4 frees "),
                     s.advice[1].text);
    ck_assert_int_gt(s.advice[1].device_bytes, s.advice[0].device_bytes);
    hy_trainer_destroy(plan);
}
END_TEST

START_TEST(advice_keeps_the_least_micro_batch) {
    hy_memory_state s;
    hy_trainer *plan = plan_words(CARD_PLAN, PAIRS("min_batch_size", "5"));
    must(hy_trainer_memory(plan, &s));
    ck_assert_str_eq(s.advice[0].value, "6");
    for (int i = 1; i < s.advice_count; i++) ck_assert_str_ne(s.advice[i].key, "batch_size");
    hy_trainer_destroy(plan);
    plan = plan_words(CARD_PLAN, PAIRS("min_batch_size", "7"));
    must(hy_trainer_memory(plan, &s));
    for (int i = 0; i < s.advice_count; i++) ck_assert_str_ne(s.advice[i].key, "batch_size");
    hy_trainer_destroy(plan);
}
END_TEST

/* ---- savings --------------------------------------------------------------------------------- */

static hy_saving saving_of(const hy_trainer *t, const char *key) {
    hy_savings all;
    must(hy_trainer_savings(t, &all));
    for (int i = 0; i < all.count; i++) {
        if (strcmp(all.list[i].key, key) == 0) return all.list[i];
    }
    ck_abort_msg("no saving by %s", key);
}

/* What it would save where it is off is what it saves where it is on, and the difference of the
 * plans. */
static void check_saving(const char *words, const char *key, const char *off, const char *on) {
    hy_trainer *without = plan_words(words, PAIRS(key, off));
    hy_trainer *with = plan_words(words, PAIRS(key, on));
    hy_saving would = saving_of(without, key), does = saving_of(with, key);
    int64_t device = (int64_t)facts_of(without).vram_bytes - (int64_t)facts_of(with).vram_bytes;
    ck_assert(!would.is_on && does.is_on);
    ck_assert_msg(would.device_bytes == device && does.device_bytes == device,
                  "%s: plans differ by %lld, told are %lld and %lld", key, (long long)device,
                  (long long)would.device_bytes, (long long)does.device_bytes);
    ck_assert_int_eq(would.host_bytes, does.host_bytes);
    ck_assert_int_eq(does.host_bytes, host_of(without) - host_of(with));
    hy_trainer_destroy(without);
    hy_trainer_destroy(with);
}

START_TEST(savings_are_differences_of_plans) {
    check_saving(CARD_PLAN, "recompute", "none", "all");
    check_saving(CARD_PLAN, "loss_chunks", "1", "8");
    check_saving(CARD_PLAN, "activations_place", "device", "pinned");
    check_saving(CARD_PLAN, "optim_place", "device", "pinned");
    check_saving(CARD_PLAN, "grads_place", "device", "pinned");
    check_saving(CARD_PLAN, "weights_place", "device", "pinned");
    check_saving(CARD_PLAN, "master_place", "device", "pinned");
    check_saving(CARD_PLAN, "optim_dtype", "fp32", "8bit");
    check_saving(CARD_PLAN, "grad_dtype", "fp32", "bf16");
    check_saving(CARD_PLAN "predictor none ", "master_dtype", "fp32", "bf16");
    check_saving(CPU_PLAN, "recompute", "none", "all");
    check_saving(CPU_PLAN, "optim_dtype", "fp32", "8bit");
}
END_TEST

/* What a run cannot turn round is not offered. */
START_TEST(exact_state_offers_no_smaller_type) {
    hy_trainer *t = plan_words(CARD_PLAN, PAIRS("optimizer", "adafactor"));
    hy_savings all;
    must(hy_trainer_savings(t, &all));
    ck_assert_int_gt(all.count, 0);
    for (int i = 0; i < all.count; i++) ck_assert_str_ne(all.list[i].key, "optim_dtype");
    hy_trainer_destroy(t);
}
END_TEST

/* Things that touch different bytes: together they save the sum. */
START_TEST(savings_of_different_bytes_add_up) {
    hy_trainer *plain = plan_words(CARD_PLAN, NULL);
    hy_trainer *lean = plan_words(
        CARD_PLAN, PAIRS("recompute", "all", "optim_dtype", "8bit", "grad_dtype", "bf16"));
    int64_t sum = saving_of(lean, "recompute").device_bytes +
                  saving_of(lean, "optim_dtype").device_bytes +
                  saving_of(lean, "grad_dtype").device_bytes;
    int64_t all = (int64_t)facts_of(plain).vram_bytes - (int64_t)facts_of(lean).vram_bytes;
    ck_assert_double_lt(fabs((double)(sum - all)), 0.01 * (double)all);
    hy_trainer_destroy(plain);
    hy_trainer_destroy(lean);
}
END_TEST

START_TEST(what_predict_saves_is_measured_once_it_ran) {
    hy_trainer *t = small_trainer(SMALL_RUN "steps 60 full_steps 6 correct_steps 2 predictor outer "
                                            "predict_from 0.1 regime scratch offload_strategy cpu",
                                  "none", NULL, NULL);
    hy_saving before = saving_of(t, "offload_strategy");
    hy_step_info info = {0};
    for (int i = 0; i < 50 && info.phase != HY_PREDICT; i++) must(hy_trainer_step(t, &info));
    hy_saving after = saving_of(t, "offload_strategy");
    ck_assert(before.is_on && !before.is_measured && after.is_measured);
    ck_assert_int_eq(after.phase, HY_PREDICT);
    ck_assert_int_eq(after.device_bytes, (int64_t)cell_of(t, HY_OPTIM, HY_FULL).planned_bytes);
    ck_assert_int_eq(before.device_bytes, after.device_bytes);
    ck_assert_int_eq(after.host_bytes, -(int64_t)cell_of(t, HY_OPTIM, HY_FULL).planned_bytes);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- what is said ---------------------------------------------------------------------------- */

typedef struct heard {
    int lines, warnings, changes;
    char last[2048];
    hy_memory_state state;
} heard;

static void on_message(void *user, hy_message_level level, const char *text) {
    heard *h = user;
    if (!strstr(text, "memory ")) return;
    h->lines += level == HY_NOTE;
    h->warnings += level == HY_WARNING;
    snprintf(h->last, sizeof h->last, "%s", text);
}

static void on_memory(void *user, const hy_memory_state *state) {
    heard *h = user;
    h->changes++;
    h->state = *state;
}

#define ON_CARD "device", "cuda", "precision", "fp32", "tune_cache", "none", "dynamic_batch", "off"

static hy_trainer *listen_to(heard *h, const char *const *pairs) {
    hy_observer observer = {.user = h, .on_message = on_message, .on_memory = on_memory};
    hy_config *config = small_run(SMALL_RUN "predictor none monitor_every 5 ", "none", pairs);
    hy_trainer *t;
    *h = (heard){0};
    card.others = 0;
    must(hy_trainer_create(config, &observer, &t));
    hy_config_destroy(config);
    h->lines = h->warnings = 0; /* of the beginning */
    return t;
}

static hy_step_info take_steps(hy_trainer *t, int count) {
    hy_step_info info = {0};
    for (int i = 0; i < count; i++) must(hy_trainer_step(t, &info));
    return info;
}

START_TEST(a_line_comes_every_so_many_steps) {
    heard h;
    hy_trainer *t = listen_to(&h, NULL);
    take_steps(t, 12);
    ck_assert_int_eq(h.lines, 2);
    ck_assert_int_eq(h.warnings + h.changes, 0);
    ck_assert_int_eq(strncmp(h.last, "step 10: memory normal: ", 24), 0);
    hy_trainer_destroy(t);
    t = listen_to(&h, PAIRS("monitor_every", "0"));
    take_steps(t, 12);
    ck_assert_int_eq(h.lines, 0);
    hy_trainer_destroy(t);
}
END_TEST

/* Others take so much of the card that this is left of it for the run; what was known before is
 * old. */
static void leave(uint64_t budget) {
    card.others = CARD_BYTES - budget;
    skip_time(2);
}

START_TEST(silent_says_nothing_and_sees_all) {
    heard h;
    hy_trainer *t = listen_to(&h, PAIRS("monitor", "silent", "warning_usage", "0.01", ON_CARD));
    leave(50000000);
    hy_step_info info = take_steps(t, 10);
    ck_assert_int_eq(h.lines + h.warnings, 0);
    ck_assert_int_eq(h.changes, 1);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_WARNING);
    ck_assert_uint_gt(info.host_resident_bytes, 0);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(off_samples_nothing) {
    heard h;
    hy_memory_state s;
    hy_trainer *t =
        listen_to(&h, PAIRS("monitor", "off", "max_gpu_mem", "100M", "warning_usage", "0.01"));
    hy_step_info info = take_steps(t, 10);
    ck_assert_int_eq(h.lines + h.warnings + h.changes, 0);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_NORMAL);
    ck_assert_uint_eq(info.host_resident_bytes + info.vram_planned_bytes, 0);
    must(hy_trainer_memory(t, &s)); /* a call still returns everything */
    check_sums(&s);
    hy_trainer_destroy(t);
}
END_TEST

#define ALL_ON_DEVICE                                                                              \
    "monitor_every", "0", "recompute", "none", "weights_place", "device", "grads_place", "device", \
        "optim_place", "device", "activations_place", "device"

START_TEST(a_plan_that_fills_its_budget_is_as_it_should_be) {
    heard h;
    hy_trainer *t = listen_to(&h, NULL);
    uint64_t need = facts_of(t).vram_bytes;
    char budget[32];
    hy_trainer_destroy(t);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)(need + need / 100));
    t = listen_to(&h, PAIRS("max_gpu_mem", budget, ALL_ON_DEVICE));
    take_steps(t, 3);
    ck_assert_int_eq(h.changes + h.warnings, 0);
    hy_trainer_destroy(t);
}
END_TEST

/* When the budget shrinks under a plan, that is an emergency; when there is room again it passes,
 * one level after the other. */
START_TEST(status_changes_are_reported_with_advice) {
    heard h;
    hy_trainer *t = listen_to(&h, PAIRS(ALL_ON_DEVICE, ON_CARD));
    uint64_t need = facts_of(t).vram_bytes;
    take_steps(t, 3);
    ck_assert_int_eq(h.changes + h.warnings, 0);

    leave(need + 4096);
    hy_step_info info = take_steps(t, 1);
    ck_assert_int_eq(h.warnings, 1);
    ck_assert_msg(strncmp(h.last, "memory emergency (was normal): device ", 38) == 0, "%s", h.last);
    ck_assert_msg(strstr(h.last, "; changing micro-batch from 4 to ") != NULL, "%s", h.last);
    ck_assert_msg(strstr(h.last, "(100 %)") != NULL, "%s", h.last);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_EMERGENCY);
    ck_assert_int_eq(h.state.status, HY_MEMORY_EMERGENCY);
    ck_assert_int_eq(h.state.device.status, HY_MEMORY_EMERGENCY);
    ck_assert_uint_eq(h.state.device.budget, need + 4096);
    ck_assert_double_gt(h.state.device.utilization, 0.98);

    leave(2 * need);
    int before = h.changes;
    info = take_steps(t, 3 * HY_GAUGE_CALM - 1);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_WARNING);
    info = take_steps(t, 1);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_NORMAL);
    ck_assert_int_eq(h.changes, before + 3);
    ck_assert_msg(strncmp(h.last, "memory normal (was warning): ", 29) == 0, "%s", h.last);
    hy_trainer_destroy(t);
}
END_TEST

/* Also where nothing is said. */
START_TEST(changes_are_recorded) {
    char folder[256], path[300], *text;
    size_t size;
    hy_config *config = small_run(SMALL_RUN "predictor none monitor silent warning_usage 0.01",
                                  temp_folder(folder), PAIRS(ON_CARD));
    hy_trainer *t;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    must(hy_config_set(config, "overwrite", "true", HY_FROM_SET));
    must(hy_trainer_create(config, NULL, &t));
    leave(8000000);
    take_steps(t, 3);
    must(hy_file_read(path, &text, &size));
    const char *line = strstr(text, "\"event\":\"memory\"");
    ck_assert_msg(line != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(line, "\"status\":\"warning\""));
    ck_assert_ptr_nonnull(strstr(line, "\"old_status\":\"normal\""));
    ck_assert_ptr_nonnull(strstr(line, "\"utilization\":0."));
    ck_assert_ptr_nonnull(strstr(line, "frees"));
    ck_assert_ptr_null(strstr(line + 1, "\"event\":\"memory\"")); /* once */
    free(text);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* It does not fall level by level, as it does where nothing was done about it. */
START_TEST(after_a_smaller_micro_batch_the_status_is_that_of_now) {
    heard h;
    hy_trainer *t = listen_to(
        &h, PAIRS(ALL_ON_DEVICE, ON_CARD, "dynamic_batch", "on", "batch_check_every", "1"));
    uint64_t need = facts_of(t).vram_bytes;
    take_steps(t, 1);
    leave(need + 4096);
    hy_step_info info = take_steps(t, 1);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_EMERGENCY);
    ck_assert_int_eq(info.batch_size, 4);
    info = take_steps(t, 1);
    ck_assert_int_lt(info.batch_size, 4);
    ck_assert_int_eq(info.memory_status, HY_MEMORY_NORMAL);
    hy_trainer_destroy(t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("memory monitor of runs");
    TCase *runs = tcase_create("runs");
    tcase_set_timeout(runs, 120);
    tcase_add_test(runs, the_state_of_a_run_adds_up);
    tcase_add_test(runs, the_state_follows_the_phases);
    tcase_add_test(runs, estimates_are_what_batch_plans_take);
    tcase_add_test(runs, estimates_need_neither_the_model_nor_the_card);
    tcase_add_test(runs, advice_frees_what_it_says);
    tcase_add_test(runs, advice_is_in_words);
    tcase_add_test(runs, advice_keeps_the_least_micro_batch);
    tcase_add_test(runs, savings_are_differences_of_plans);
    tcase_add_test(runs, exact_state_offers_no_smaller_type);
    tcase_add_test(runs, savings_of_different_bytes_add_up);
    tcase_add_test(runs, what_predict_saves_is_measured_once_it_ran);
    tcase_add_test(runs, a_line_comes_every_so_many_steps);
    tcase_add_test(runs, silent_says_nothing_and_sees_all);
    tcase_add_test(runs, off_samples_nothing);
    tcase_add_test(runs, status_changes_are_reported_with_advice);
    tcase_add_test(runs, changes_are_recorded);
    tcase_add_test(runs, after_a_smaller_micro_batch_the_status_is_that_of_now);
    tcase_add_test(runs, a_plan_that_fills_its_budget_is_as_it_should_be);
    suite_add_tcase(suite, runs);
    return suite;
}

HY_TEST_MAIN(make_suite)
