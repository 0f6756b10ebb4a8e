/* test_own_ranks.c: custom models and custom loops on several ranks.
 *
 * Losses equal those of one rank, except for the order of sums. ZeRO stages agree in every bit of
 * losses, weights and checkpoints. A killed run continues. If a callback fails or stops on one
 * rank, the run ends on all. */
#include "inside.h"
#include "own_ranks_rig.h"

#define SMALL .size = {700, 33, 1024, 5}
#define NONE "predictor none "
#define IN_FP32 .apart = {5e-6, 5e-5}
#define IN_16_BITS .apart = {5e-3, 5e-2}

/* Others may be waiting for what a rank that does not continue would have updated. */
#define IN_TURN "optim_place pinned update gather max_gpu_mem 512MiB "

static const own_variant variants[] = {
    {.name = "model", .words = NONE "steps 6", SMALL, IN_FP32},
    {.name = "model, each", .words = NONE "steps 6", SMALL, .is_each = true, IN_FP32},
    {.name = "means", .words = NONE "steps 6 normalize false", SMALL, IN_FP32},
    {.name = "muon", .words = NONE "steps 6 optimizer muon", SMALL, IN_FP32},
    {.name = "8bit", .words = NONE "steps 6 optim_dtype 8bit", SMALL, IN_FP32},
    {.name = "bf16",
     .words = NONE "steps 6 precision bf16",
     SMALL,
     .dtype = HY_BF16,
     .grad_dtype = HY_BF16,
     IN_16_BITS},
    {.name = "bf16 alone",
     .words = NONE "steps 6 precision bf16 master_dtype bf16",
     SMALL,
     .dtype = HY_BF16,
     IN_16_BITS},
    {.name = "several units",
     .words = NONE "steps 3 optimizer sgd lr 1e-2",
     .size = {3 << 20, 33, 5 << 20, 1000, 4 << 20},
     IN_FP32},
    {.name = "loop", .words = NONE "steps 6 eval_every 2", SMALL, .is_loop = true, IN_FP32},
    {.name = "loop, each",
     .words = NONE "steps 6",
     SMALL,
     .is_loop = true,
     .is_each = true,
     IN_FP32},
    {.name = "in turn",
     .words = NONE IN_TURN "steps 4",
     .size = {3 << 20, 33, 1000, 4 << 20},
     .is_loop = true,
     .is_in_turn = true,
     IN_FP32},
    {.name = "outer",
     .words = PREDICTS "steps 18 predictor outer guard_share 0.5 eval_every 5",
     SMALL,
     IN_FP32,
     .jumps = 2},
    {.name = "outer, bf16",
     .words = PREDICTS "steps 18 predictor outer guard_share 0.5 precision bf16",
     SMALL,
     .dtype = HY_BF16,
     IN_16_BITS,
     .jumps = 1},
    {.name = "line",
     .words = PREDICTS "steps 18 predictor line tail_share 0.4 guard_share 1 eval_every 5",
     SMALL,
     .is_loop = true,
     IN_FP32,
     .jumps = 1},
    {.name = "forks",
     .words = "steps 24 predictor outer regime fine-tuning fork_budget 0.5 fork_steps 2 "
              "schedule constant full_steps 2 correct_steps 1 predict_from 0 predict_until 1 "
              "confidence_threshold 0.75 eval_every 4",
     SMALL,
     IN_FP32,
     .jumps = 1},
    {.name = "moved state",
     .words = PREDICTS "steps 18 predictor outer guard_share 0.5 offload_strategy pinned",
     SMALL,
     .is_loop = true,
     IN_FP32,
     .jumps = 2},
    {.name = "fp16",
     .words = NONE "steps 6 precision fp16",
     SMALL,
     .dtype = HY_F16,
     .grad_dtype = HY_F16,
     .is_loop = true,
     IN_16_BITS},
};
#define VARIANT_COUNT ((int)(sizeof variants / sizeof variants[0]))

__attribute__((noinline)) static const own_variant *variant_named(const char *name) {
    for (int i = 0; i < VARIANT_COUNT; i++) {
        if (strcmp(variants[i].name, name) == 0) return &variants[i];
    }
    ck_abort_msg("there is no variant %s", name);
    return NULL;
}

static char folder[256];
static int64_t *hashes;

static void set_up(void) {
    temp_folder(folder);
    hashes = mmap(NULL, sizeof *hashes * RIG_MOST, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(hashes, MAP_FAILED);
}

static void tear_down(void) {
    munmap(hashes, sizeof *hashes * RIG_MOST);
    remove_folder(folder);
}

static const char *in_folder(const char *name, char out[600]) {
    snprintf(out, 600, "%s/%s", folder, name);
    return out;
}

static run_steps train_own(const own_variant *v, int count, int stage, const char *out) {
    own_task task = {.v = v, .hashes = hashes};
    ranks_run run = {.count = count,
                     .stage = stage,
                     .words = OWN_RUN,
                     .more = v->words,
                     .out = out,
                     .train = own_train,
                     .user = &task};
    run_steps c = train(&run);
    for (int r = 1; r < count; r++) {
        ck_assert_msg(hashes[r] == hashes[0], "%s: ranks 0 and %d end with other weights", v->name,
                      r);
    }
    return c;
}

/* ---- the same -------------------------------------------------------------------------------- */

static void check_stages(const own_variant *v, int count, const run_steps *one) {
    char first[600] = "", out[600], name[32];
    run_steps expected = {0};
    int64_t weights = 0;
    bool is_large = v->size[0] > 1 << 20;
    for (int stage = 0; stage < 3; stage += is_large ? EVERY(2) : 1) {
        snprintf(name, sizeof name, "%d-%d", count, stage);
        run_steps now = train_own(v, count, stage, in_folder(name, out));
        distance far = apart(&now, one);
        ck_assert_msg(far.loss <= v->apart.loss && far.norm <= v->apart.norm,
                      "%s, %d ranks, stage %d: losses are %.2g away, norms %.2g", v->name, count,
                      stage, far.loss, far.norm);
        if (stage > 0) {
            must_be_same(&now, &expected, v->name);
            must_have_same_checkpoint(out, first);
            ck_assert_int_eq(hashes[0], weights);
        }
        expected = now;
        weights = hashes[0];
        strcpy(first, out);
    }
}

START_TEST(ranks_train_a_custom_model_as_one_does_and_stages_agree_to_the_bit) {
    const own_variant *v = &variants[_i];
    char out[600];
    run_steps one = train_own(v, 1, -1, in_folder("one", out));
    ck_assert_msg(jumps_of(&one) >= v->jumps, "%s: %d jumps", v->name, jumps_of(&one));
    check_stages(v, 2 + _i % 2, &one);
}
END_TEST

/* ---- going on -------------------------------------------------------------------------------- */

static void die_at(const ranks_run *run, int rank, const hy_step_info *info) {
    (void)rank;
    if (info->step == run->at) kill(getpid(), SIGKILL);
}

static void train_until(ranks_run run, int64_t at) {
    run.at = at;
    run.after_step = die_at;
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    bool was_killed = false;
    for (int r = 0; r < run.count; r++) was_killed |= job.it.codes[r] == 128 + SIGKILL;
    ck_assert_msg(was_killed, "nobody came to step %lld: %s", (long long)at,
                  job.it.results[0].message);
    job_free(&job);
}

#define SAVES "save_every 3 keep 0 "

START_TEST(a_killed_custom_run_continues_to_the_same_bits) {
    static const char *const names[] = {"outer", "loop", "bf16", "line"};
    const own_variant *v = variant_named(names[_i]);
    char out[2][600], more[512];
    snprintf(more, sizeof more, SAVES "%s", v->words);
    own_variant saving = *v;
    saving.words = more;
    run_steps whole = train_own(&saving, 2, 2, in_folder("whole", out[0]));
    own_task task = {.v = &saving, .hashes = hashes};
    ranks_run run = {.count = 2,
                     .stage = _i % 3,
                     .words = OWN_RUN,
                     .more = more,
                     .out = in_folder("cut", out[1]),
                     .train = own_train,
                     .user = &task};
    train_until(run, 4);
    run.is_resumed = true;
    run.stage = 1;
    run_steps rest = train(&run);
    ck_assert_int_gt(rest.step[0].step, 1);
    run_steps expected = part_of(&whole, &rest);
    must_be_same(&rest, &expected, v->name);
    must_have_same_checkpoint(out[0], out[1]);
}
END_TEST

START_TEST(other_numbers_of_ranks_continue_a_custom_run) {
    static const int counts[] = {3, 1, 2};
    const own_variant *v = variant_named(_i ? "loop" : "model");
    char out[2][600], more[512];
    snprintf(more, sizeof more, SAVES "%s steps 12", v->words);
    own_variant longer = *v;
    longer.words = more;
    run_steps one = train_own(&longer, 1, -1, in_folder("one", out[0]));
    own_task task = {.v = &longer, .hashes = hashes};
    ranks_run run = {.stage = 2,
                     .words = OWN_RUN,
                     .more = more,
                     .out = in_folder("many", out[1]),
                     .train = own_train,
                     .user = &task};
    for (int i = 0; i < 3; i++) {
        run.count = counts[i];
        run.is_resumed = i > 0;
        if (i < 2) {
            train_until(run, 4 + 3 * i);
            continue;
        }
        run_steps rest = train(&run);
        run_steps expected = part_of(&one, &rest);
        distance far = apart(&rest, &expected);
        ck_assert_int_gt(rest.step[0].step, 4);
        ck_assert_msg(far.loss <= v->apart.loss && far.norm <= v->apart.norm,
                      "losses are %.2g away, norms %.2g", far.loss, far.norm);
    }
}
END_TEST

/* ---- what cannot be -------------------------------------------------------------------------- */

static void must_refuse(const own_task *task, int stage, const char *more, const char *fragment) {
    char out[600];
    ranks_run run = {.count = 2,
                     .stage = stage,
                     .words = OWN_RUN "steps 6 ",
                     .more = more,
                     .out = in_folder("refused", out),
                     .train = own_train,
                     .user = task};
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(job.it.codes[r], 0);
        must_mention(&job.it, r, fragment);
    }
    job_free(&job);
}

START_TEST(unsupported_ranks_of_a_custom_model_are_refused_by_name) {
    own_task task = {.v = variant_named(_i % 2 ? "loop" : "model")}, other = task;
    must_refuse(&task, 3, NULL, "zero_stage is 3");
    must_refuse(&task, 3, NULL, "accepted: 0 to 2");
    must_refuse(&task, 2, "grad_accum_steps 3", "use a multiple of 2");
    other.is_other = true;
    must_refuse(&other, 2, NULL, "different settings or parameters than rank 0");
}
END_TEST

/* ---- a caller that does not continue --------------------------------------------------------- */

static ranks_job run_with(const own_variant *v, const own_fault *fault, const char *more,
                          const char *out) {
    own_task task = {.v = v, .fault = fault};
    ranks_run run = {.count = 3,
                     .stage = 2,
                     .words = OWN_RUN NONE "steps 8 ",
                     .more = more,
                     .out = out,
                     .train = own_train,
                     .user = &task};
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, 60, 0);
    return job;
}

START_TEST(a_callback_that_fails_on_one_rank_ends_all_and_names_it) {
    own_fault fault = {.rank = 1 + _i % 2, .at = 5, .status = HY_ERR_IO};
    char out[600], rank[16];
    const own_variant *v = variant_named(_i < 2 ? "model" : "model, each");
    ranks_job job = run_with(v, &fault, NULL, in_folder("failed", out));
    snprintf(rank, sizeof rank, "rank %d (", fault.rank);
    for (int r = 0; r < 3; r++) {
        must_mention(&job.it, r, rank);
        must_mention(&job.it, r, "the backward callback returned");
        ck_assert_int_eq(job.it.results[r].status, HY_ERR_IO);
    }
    job_free(&job);
}
END_TEST

/* All have it at hand, and the step's questions come once more, on all of them. */
START_TEST(a_callback_that_lacks_memory_for_a_moment_is_asked_again) {
    own_fault fault = {.rank = 1 + _i, .at = 5, .status = HY_ERR_MEMORY}, none = {.rank = -1};
    const own_variant *v = variant_named(_i ? "model, each" : "model");
    char out[600];
    run_steps found, expected;
    ranks_job job = run_with(v, &fault, NULL, in_folder("again", out));
    job_end(&job, v->name, &found);
    job = run_with(v, &none, NULL, in_folder("once", out));
    job_end(&job, v->name, &expected);
    must_be_same(&found, &expected, v->name);
}
END_TEST

START_TEST(a_custom_model_that_stops_on_one_rank_is_saved_by_all) {
    int at = _i * EVERY(2);
    own_fault fault = {.rank = at % 3, .at = 4 + 4 * (at < 3), .status = HY_STOPPED, .stops = true};
    const own_variant *v = variant_named(at < 3 ? "model" : at < 6 ? "loop" : "in turn");
    char out[600], path[HY_PATH_MAX];
    ranks_job job = run_with(v, &fault, at < 6 ? NULL : IN_TURN, in_folder("stopped", out));
    for (int r = 0; r < 3; r++) {
        hy_status found = job.it.results[r].status;
        bool is_own = at >= 3 && r == fault.rank; /* hy_loop_stop ended well */
        ck_assert_msg(found == (is_own ? HY_OK : HY_STOPPED), "rank %d: %s", r,
                      job.it.results[r].message);
    }
    ck_assert_int_eq(last_checkpoint(out, path), 3);
    job_free(&job);
}
END_TEST

START_TEST(a_loop_that_is_destroyed_on_one_rank_ends_the_others) {
    int at = _i * EVERY(2);
    own_fault fault = {.rank = at % 3, .at = 4, .destroys = true};
    char out[600], rank[16];
    const own_variant *v = variant_named(at < 3 ? "loop" : "in turn");
    ranks_job job = run_with(v, &fault, at < 3 ? NULL : IN_TURN, in_folder("destroyed", out));
    snprintf(rank, sizeof rank, "rank %d (", fault.rank);
    for (int r = 0; r < 3; r++) {
        if (r == fault.rank) continue;
        must_mention(&job.it, r, rank);
        must_mention(&job.it, r, "the loop was destroyed");
    }
    job_free(&job);
}
END_TEST

START_TEST(a_killed_rank_of_a_custom_model_ends_the_others) {
    own_fault fault = {.rank = _i / 2, .at = 5, .dies = true};
    char out[600], rank[16];
    const own_variant *v = variant_named(_i % 2 ? "loop" : "model, each");
    ranks_job job = run_with(v, &fault, NULL, in_folder("killed", out));
    snprintf(rank, sizeof rank, "rank %d", fault.rank);
    for (int r = 0; r < 3; r++) {
        if (r != fault.rank) must_mention(&job.it, r, rank);
    }
    job_free(&job);
}
END_TEST

START_TEST(a_loss_of_one_rank_that_is_not_finite_skips_the_step_on_all) {
    own_fault fault = {.rank = 1, .at = 5, .is_nan = true};
    const own_variant *v = variant_named(_i ? "loop, each" : "model");
    char out[600];
    run_steps found;
    ranks_job job = run_with(v, &fault, NULL, in_folder("skipped", out));
    job_end(&job, v->name, &found);
    int bad = 0;
    for (int64_t i = 0; i < found.count; i++) bad += !isfinite(found.step[i].loss);
    ck_assert_int_eq(bad, 1);
    ck_assert_int_eq(found.count, 8);
    ck_assert(isfinite(found.step[7].loss));
}
END_TEST

START_TEST(loops_save_together_on_request) {
    own_fault fault = {.rank = 0, .at = 5, .saves = true};
    char out[600], path[HY_PATH_MAX];
    ranks_job job =
        run_with(variant_named("loop"), &fault, "save_every 0 keep 0", in_folder("saved", out));
    for (int r = 0; r < 3; r++) {
        ck_assert_msg(job.it.results[r].status == HY_OK, "rank %d: %s", r,
                      job.it.results[r].message);
    }
    snprintf(path, sizeof path, "%s/checkpoint-4", out);
    ck_assert(hy_path_exists(path));
    job_free(&job);
}
END_TEST

/* ---- step by step ---------------------------------------------------------------------------- */

static int64_t take_steps(hy_trainer *t, int rank, int count) {
    hy_ranks_info info;
    hy_plan_facts facts;
    hy_eval_info held_out;
    uint64_t before = 0, now;
    require(hy_trainer_ranks(t, &info) && info.rank == rank && info.count == count);
    hy_trainer_plan_facts(t, &facts);
    for (int step = 0; step < 4; step++) {
        require(hy_trainer_step(t, NULL) == HY_OK);
        require(inside_bytes_sent(t, &now) == HY_OK);
        if (step > 0 && now - before != facts.link_bytes) {
            fprintf(stderr, "step %d: %llu bytes, planned were %llu\n", step,
                    (unsigned long long)(now - before), (unsigned long long)facts.link_bytes);
            _exit(98);
        }
        before = now;
    }
    require(hy_trainer_evaluate(t, &held_out) == HY_OK && isfinite(held_out.loss));
    require(hy_trainer_save(t) == HY_OK);
    return (int64_t)facts.link_bytes;
}

static hy_status step_by_step(const ranks_run *run, int rank, const hy_config *config,
                              const hy_observer *observer) {
    const own_task *task = run->user;
    own_work w = {.v = task->v, .rank = rank, .loaded = -1};
    hy_trainer *t;
    own_make(&w, false);
    hy_own_model model = own_model_of(&w);
    require(hy_trainer_create_own(config, &model, observer, &t) == HY_OK);
    task->hashes[rank] = take_steps(t, rank, run->count);
    hy_trainer_destroy(t);
    own_free(&w);
    return HY_OK;
}

/* What nobody has started is planned alike: as the rank that has most. */
static void must_be_planned(const ranks_run *run, const int64_t *link_bytes) {
    own_work w = {.v = ((const own_task *)run->user)->v};
    hy_config *config = config_of(run);
    hy_trainer *t;
    hy_plan_facts facts;
    own_make(&w, false);
    hy_own_model model = own_model_of(&w);
    must(hy_trainer_plan_own_ranks(config, &model.parameters, run->count, false, NULL, &t));
    hy_trainer_plan_facts(t, &facts);
    ck_assert_int_eq(facts.ranks, run->count);
    ck_assert_int_eq(facts.zero_stage, run->stage);
    bool is_one = false;
    for (int r = 0; r < run->count; r++) is_one |= (int64_t)facts.link_bytes == link_bytes[r];
    ck_assert_msg(is_one, "planned are %lld bytes", (long long)facts.link_bytes);
    hy_trainer_destroy(t);
    must_fail(hy_trainer_plan_own_ranks(config, &model.parameters, 0, false, NULL, &t),
              HY_ERR_INPUT, "accepted are 1 to");
    hy_config_destroy(config);
    own_free(&w);
}

START_TEST(a_custom_model_is_stepped_on_ranks_and_sends_the_planned_bytes) {
    static const char *const names[] = {"model", "model, each", "bf16", "several units"};
    own_task task = {.v = variant_named(names[_i / 3]), .hashes = hashes};
    char out[600], path[HY_PATH_MAX];
    ranks_run run = {.count = 2 + _i % 2,
                     .stage = _i % 3,
                     .words = OWN_RUN,
                     .more = task.v->words,
                     .out = in_folder("stepped", out),
                     .train = step_by_step,
                     .user = &task};
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    for (int r = 0; r < run.count; r++) ck_assert_int_eq(job.it.codes[r], 0);
    ck_assert_int_eq(last_checkpoint(out, path), 4);
    job_free(&job);
    must_be_planned(&run, hashes);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("own_ranks");
    TCase *c = tcase_create("own_ranks");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, ranks_train_a_custom_model_as_one_does_and_stages_agree_to_the_bit, 0,
                        VARIANT_COUNT);
    tcase_add_loop_test(c, a_killed_custom_run_continues_to_the_same_bits, 0, 4);
    tcase_add_loop_test(c, other_numbers_of_ranks_continue_a_custom_run, 0, 2);
    tcase_add_loop_test(c, unsupported_ranks_of_a_custom_model_are_refused_by_name, 0, 2);
    tcase_add_loop_test(c, a_callback_that_fails_on_one_rank_ends_all_and_names_it, 0, 4);
    tcase_add_loop_test(c, a_callback_that_lacks_memory_for_a_moment_is_asked_again, 0, 2);
    tcase_add_loop_test(c, a_custom_model_that_stops_on_one_rank_is_saved_by_all, 0,
                        COUNT_EVERY(9, 2));
    tcase_add_loop_test(c, a_loop_that_is_destroyed_on_one_rank_ends_the_others, 0,
                        COUNT_EVERY(6, 2));
    tcase_add_loop_test(c, a_killed_rank_of_a_custom_model_ends_the_others, 0, 4);
    tcase_add_loop_test(c, a_loss_of_one_rank_that_is_not_finite_skips_the_step_on_all, 0, 2);
    tcase_add_test(c, loops_save_together_on_request);
    tcase_add_loop_test(c, a_custom_model_is_stepped_on_ranks_and_sends_the_planned_bytes, 0, 9);
    tcase_add_loop_test(c, a_custom_model_is_stepped_on_ranks_and_sends_the_planned_bytes,
                        EVERY(2) == 1 ? 9 : 11, 12);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
