/* test_engine_limits.c: memory limits of a run, and its messages when memory is short.
 *
 * A streamed run does not grow; saving and resuming need no more memory than training. An unusable
 * folder, a disk error or a budget that is too small is reported, and an earlier checkpoint
 * continues as if nothing had happened. Disk errors are real: a limit on the file size refuses
 * writes, and a write-only file refuses reads. */
#include "engine_growth.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static char out[256], disk[256];

static void set_up(void) {
    temp_folder(out);
    temp_folder(disk);
}

static void tear_down(void) {
    remove_folder(out);
    remove_folder(disk);
}

START_TEST(two_hundred_streamed_steps_do_not_grow) { check_growth(200); }
END_TEST

/* ---- saving and resuming --------------------------------------------------------------------- */

/* Large enough that a second copy of any class would show: 28 MB of weights. */
#define LARGE_RUN                                                                                  \
    ENGINE_RUN ENGINE_LLAMA "width 256 mlp_width 1024 layers 7 predictor none precision fp32 "
#define STAGING (8L << 20) /* that tensors pass through on the way to a file */
#define NOISE (4L << 20)   /* headers, the manifest, what allocators keep */

static void check_bounded(const char *what, long peak, long training) {
    long allowed = training + STAGING + NOISE;
#ifdef HY_POISON /* sanitizers keep what was freed, on purpose */
    allowed *= 4;
#endif
    ck_assert_msg(peak <= allowed, "%s took %ld MiB, training %ld", what, peak >> 20,
                  training >> 20);
}

/* The most that three steps take, the making of the run included. It may be saved then. */
static long train_some(const char *place, const char *resume, bool saves) {
    double losses[3];
    hy_trainer *t = small_trainer(LARGE_RUN, out, NULL,
                                  PAIRS("weights_place", place, "grads_place", place, "optim_place",
                                        place, "resume", resume, "offload_folder", disk));
    next_losses(t, 3, losses);
    long training = process_now().peak_rss;
    hy_memory_state before, after;
    if (saves) {
        ck_assert_uint_gt(cell_of(t, HY_WEIGHTS, HY_FULL).planned_bytes,
                          (uint64_t)2 * (STAGING + NOISE));
        must(hy_trainer_memory(t, &before));
        must(hy_trainer_save(t));
        check_bounded("saving", process_now().peak_rss, training);
        must(hy_trainer_memory(t, &after));
        must_hold_the_same(&before, &after);
    }
    hy_trainer_destroy(t);
    return training;
}

START_TEST(saving_and_resuming_take_no_more_than_training) {
    static const char *const places[] = {"pinned", "disk", "device"};
    if (!reset_peak_rss()) return; /* the system does not tell peaks */
    long training = train_some(places[_i], "", true);
    ck_assert(reset_peak_rss());
    check_bounded("resuming", train_some(places[_i], "auto", false), training);
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

static hy_status try_run(const char *const *pairs) {
    hy_config *config = small_run(ENGINE_RUN ENGINE_LLAMA ENGINE_MOVES, "none", pairs);
    hy_trainer *t = NULL;
    hy_status status = hy_trainer_create(config, NULL, &t);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    return status;
}

static hy_status try_folder(const char *folder) {
    return try_run(PAIRS("optim_place", "disk", "offload_folder", folder));
}

START_TEST(an_unusable_folder_is_reported_before_step_0) {
    char path[512];
    must_fail(try_folder(""), HY_ERR_INPUT, "offload_folder");
    snprintf(path, sizeof path, "%s/missing", disk);
    must_fail(try_folder(path), HY_ERR_INPUT, path);
    snprintf(path, sizeof path, "%s/file", disk);
    must(hy_file_write_atomic(path, "x", 1));
    must_fail(try_folder(path), HY_ERR_INPUT, path);
    must_fail(try_folder("/proc"), HY_ERR_INPUT, "/proc"); /* nothing can be written there */
    must_fail(try_run(PAIRS("optim_place", "disk", "offload_folder", disk, "offload_size", "8k")),
              HY_ERR_INPUT, "offload_size");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "short"));
    must_fail(try_run(PAIRS("predictor_place", "disk")), HY_ERR_INPUT, "offload_folder");
}
END_TEST

/* ---- a disk that fails in the middle of a step ----------------------------------------------- */

/* More layers than buffers, so that units pass through the file in every step. */
static hy_trainer *open_disk_run(const char *cls, const char *update, const char *resume) {
    return small_trainer(
        ENGINE_RUN ENGINE_LLAMA "layers 8 precision bf16 predictor none grad_accum_steps 2 ", out,
        NULL, PAIRS(cls, "disk", "update", update, "resume", resume, "offload_folder", disk));
}

/* No file may be written to beyond its first byte: as a disk that has become full. */
static void set_file_limit(bool is_on) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = is_on ? 1 : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* From here on the run's file can only be written to. */
static void refuse_reads(void) {
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[512] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length <= 0 || strncmp(target, disk, strlen(disk)) != 0) continue;
        int other = open("/dev/null", O_WRONLY | O_CLOEXEC);
        ck_assert_int_eq(dup2(other, fd), fd);
        close(other);
        return;
    }
    ck_abort_msg("there is no file in %s", disk);
}

/* When the disk begins to fail: before a step, or as its update begins. */
typedef struct disk_fault {
    const char *update;
    bool is_write, is_in_update;
} disk_fault;

static const disk_fault faults[] = {
    {"now", true, false},     {"gather", true, false}, {"now", false, false},
    {"gather", false, false}, {"now", true, true},     {"gather", true, true},
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

static void fail_in_update(hy_op_call *call) {
    if (call->kind == HY_OP_ADAMW) set_file_limit(true);
}

static void begin_fault(const disk_fault *fault) {
    if (fault->is_in_update) {
        engine_on_op = fail_in_update;
    } else if (fault->is_write) {
        set_file_limit(true);
    } else {
        refuse_reads();
    }
}

/* A step fails with the disk. Its state is that of no step, so going on and saving are refused.
 * Nothing is asserted while files cannot be written: the harness writes files. */
static void fail_a_step(hy_trainer *t, const disk_fault *fault) {
    hy_step_info info;
    begin_fault(fault);
    hy_status status = hy_trainer_step(t, &info);
    if (status == HY_OK) status = hy_trainer_step(t, &info); /* what was pending is written then */
    engine_on_op = NULL;
    set_file_limit(false);
    must_fail(status, HY_ERR_IO, disk);
    ck_assert_int_ne(hy_trainer_step(t, &info), HY_OK);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), disk));
    ck_assert_int_ne(hy_trainer_save(t), HY_OK);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), disk));
}

START_TEST(a_disk_error_in_a_step_is_reported_and_loses_nothing) {
    static const char *const classes[] = {"weights_place", "master_place", "grads_place",
                                          "optim_place"};
    const disk_fault *fault = &faults[_i];
    double straight[10], resumed[6];
    for (int c = _i % EVERY(2); c < 4; c += EVERY(2)) {
        hy_trainer *t = open_disk_run(classes[c], fault->update, "");
        next_losses(t, 4, straight);
        must(hy_trainer_save(t));
        next_losses(t, 6, straight + 4);
        fail_a_step(t, fault);
        hy_trainer_destroy(t);
        t = open_disk_run(classes[c], fault->update, "auto");
        ck_assert_int_eq(summary_of(t).steps, 4);
        next_losses(t, 6, resumed);
        ck_assert_mem_eq(straight + 4, resumed, sizeof resumed);
        hy_trainer_destroy(t);
    }
}
END_TEST

/* ---- budgets --------------------------------------------------------------------------------- */

#define TIGHT_RUN                                                                                  \
    ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA                                                           \
        "seq_len 64 context 64 batch_size 8 recompute none dynamic_batch off "

static hy_trainer *plan_run(const char *key, const char *limit) {
    hy_config *config = small_run(TIGHT_RUN, "none", PAIRS("precision", "bf16", key, limit));
    hy_trainer *t;
    must(hy_trainer_plan(config, NULL, &t));
    hy_config_destroy(config);
    return t;
}

/* A run with the limit and the change is made, and trains. */
static bool check_change(const char *key, const char *limit, const char *change) {
    hy_config *config = small_run(TIGHT_RUN, "none", PAIRS("precision", "bf16", key, limit));
    bool is_change = apply_change(config, change);
    if (is_change) {
        hy_trainer *t;
        double losses[2];
        hy_status status = hy_trainer_create(config, NULL, &t);
        ck_assert_msg(status == HY_OK, "%s with %s %s: %s", change, key, limit, hy_error_message());
        next_losses(t, 2, losses);
        hy_trainer_destroy(t);
    }
    hy_config_destroy(config);
    return is_change;
}

/* From all that the run would take downwards until it does not fit: then the message names the
 * limit and what is short, and every change that is proposed makes a run that fits. */
static void check_limit(const char *key, uint64_t all) {
    char limit[32];
    int tried = 0;
    bool fits = true;
    for (int share = 95; share > 0 && (fits || tried == 0); share -= 5) {
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)(all * (uint64_t)share / 100));
        hy_trainer *plan = plan_run(key, limit);
        hy_plan_facts facts;
        hy_trainer_plan_facts(plan, &facts);
        fits = facts.fits;
        if (!fits) {
            must_fail(
                try_run(PAIRS("precision", "bf16", "seq_len", "64", "context", "64", "batch_size",
                              "8", "recompute", "none", "dynamic_batch", "off", key, limit)),
                HY_ERR_INPUT, key);
            ck_assert_ptr_nonnull(strstr(hy_error_message(), "short"));
            ck_assert_int_gt(facts.change_count, 0);
            for (int i = 0; i < facts.change_count; i++) {
                tried += check_change(key, limit, facts.changes[i]);
            }
        }
        hy_trainer_destroy(plan);
    }
    ck_assert_msg(!fits && tried > 0, "%s: no limit was too small, or no change was proposed", key);
}

START_TEST(a_budget_that_is_too_small_names_changes_that_fit) {
    hy_plan_facts facts;
    hy_trainer *plan = plan_run("seed", "1");
    hy_trainer_plan_facts(plan, &facts);
    check_limit("max_gpu_mem", facts.vram_bytes);
    check_limit("cpu_mem", facts.vram_bytes + facts.host_pinned_bytes);
    hy_trainer_destroy(plan);
}
END_TEST

static Suite *limits_suite(void) {
    Suite *suite = suite_create("memory engine: limits");
    TCase *tests = tcase_create("limits");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, two_hundred_streamed_steps_do_not_grow);
    tcase_add_loop_test(tests, saving_and_resuming_take_no_more_than_training, 0,
                        COUNT_EVERY(3, 2));
    tcase_add_test(tests, an_unusable_folder_is_reported_before_step_0);
    tcase_add_loop_test(tests, a_disk_error_in_a_step_is_reported_and_loses_nothing, 0, FAULTS);
    tcase_add_test(tests, a_budget_that_is_too_small_names_changes_that_fit);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(limits_suite)
