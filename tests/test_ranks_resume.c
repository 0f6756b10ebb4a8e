/* test_ranks_resume.c: runs of several ranks that are killed and resumed.
 *
 * With the same number of ranks and any stage they continue to the bits of an undisturbed run. With
 * another number of ranks, losses equal those of one rank except for the order of sums. Exported
 * models do not depend on the number of ranks. tests/long/test_ranks_resume_all.c kills at every
 * step and in every way of training. */
#include "ranks_variants.h"

#ifdef HY_ALL_RANKS
#define IS_LONG true
#else
#define IS_LONG false
#endif

#define SAVES "save_every 3 keep 0 "

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static const char *in_folder(const char *name, char out[600]) {
    snprintf(out, 600, "%s/%s", folder, name);
    return out;
}

/* ---- killing --------------------------------------------------------------------------------- */

static void die_at(const ranks_run *run, int rank, const hy_step_info *info) {
    (void)rank;
    if (info->step == run->at) kill(getpid(), SIGKILL);
}

/* All ranks are killed after step `at`; returns the steps until then. */
static run_steps train_until(ranks_run run, int64_t at) {
    run.at = at;
    run.after_step = die_at;
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    bool was_killed = false;
    for (int r = 0; r < run.count; r++) was_killed |= job.it.codes[r] == 128 + SIGKILL;
    ck_assert_msg(was_killed, "nobody came to step %lld: %s", (long long)at,
                  job.it.results[0].message);
    run_steps until = job.courses[0];
    job_free(&job);
    return until;
}

static run_steps go_on(ranks_run run) {
    run.is_resumed = true;
    return train(&run);
}

/* The steps of a session equal those of the whole run at the same place. */
static void must_go_on_as(const run_steps *whole, const run_steps *sitting, const char *what) {
    run_steps expected = part_of(whole, sitting);
    must_be_same(sitting, &expected, what);
}

static void check_killed(const variant *v, int count, int stage, int next_stage, int64_t at,
                         const run_steps *whole, const char *whole_out) {
    char words[1024], name[64], out[600];
    snprintf(name, sizeof name, "cut-%d-%d-%lld", stage, next_stage, (long long)at);
    ranks_run run = {.count = count,
                     .stage = stage,
                     .words = RANKS_RUN SAVES,
                     .more = words_of(v, folder, words),
                     .out = in_folder(name, out)};
    train_until(run, at);
    run.stage = next_stage;
    run_steps rest = go_on(run);
    ck_assert_msg(rest.step[0].step > 1, "%s: it began anew", v->name);
    must_go_on_as(whole, &rest, v->name);
    must_have_same_checkpoint(out, whole_out);
}

static run_steps train_whole(const variant *v, int count, int stage, const char *more,
                             char out[600]) {
    char words[1024];
    char all[2048];
    snprintf(all, sizeof all, "%s %s", words_of(v, folder, words), more);
    ranks_run run = {.count = count,
                     .stage = stage,
                     .words = RANKS_RUN SAVES,
                     .more = all,
                     .out = in_folder("whole", out)};
    return train(&run);
}

/* At step 4 or 5 one has just been saved, or a jump came since. */
START_TEST(a_run_of_ranks_that_was_killed_goes_on_bit_for_bit) {
    static const char *const names[] = {"outer", "muon", "8bit"};
    const variant *v = IS_LONG ? &variants[_i] : variant_named(names[_i]);
    int count = 2 + _i % 3, stages = stages_of(v);
    char out[600];
    run_steps whole = train_whole(v, count, 2, "", out);
    check_killed(v, count, 2, 2, 4, &whole, out);
    check_killed(v, count, stages - 1, _i % 2, 5, &whole, out);
}
END_TEST

/* The average, slow weights and snapshot of a run with jumps among them. */
START_TEST(it_goes_on_after_a_kill_at_any_step) {
    const variant *v = variant_named("line");
    char out[600];
    run_steps whole = train_whole(v, 2, 3, "", out);
    for (int64_t at = 4; at < 18; at++) check_killed(v, 2, 3, 3, at, &whole, out);
}
END_TEST

/* ---- other numbers of ranks ------------------------------------------------------------------ */

typedef struct sitting {
    int count, stage;
    int64_t until; /* killed there; 0: it comes to its end */
} sitting;

static const sitting sittings[][4] = {
    {{1, 0, 4}, {4, 3, 7}, {2, 1, 10}, {1, 0, 0}},
    {{4, 0, 4}, {1, 0, 7}, {3, 2, 10}, {2, 3, 0}},
    {{2, 3, 5}, {3, 1, 8}, {4, 2, 11}, {3, 0, 0}},
};

static void check_close(const variant *v, const run_steps *one, const run_steps *now) {
    run_steps expected = part_of(one, now);
    distance far = apart(now, &expected);
    ck_assert_msg(far.loss <= v->apart.loss && far.norm <= v->apart.norm,
                  "%s from step %lld on: losses are %.2g away, norms %.2g", v->name,
                  (long long)now->step[0].step, far.loss, far.norm);
}

START_TEST(other_numbers_of_ranks_and_stages_go_on_with_a_run) {
    static const char *const names[] = {"outer", "line",      "8bit",           "muon",
                                        "lora",  "adafactor", "correct in fp32"};
    const variant *v = variant_named(names[_i / 3]);
    const sitting *list = sittings[_i % 3];
    char words[1024], all[2048], out[2][600];
    snprintf(all, sizeof all, "%s steps 15", words_of(v, folder, words));
    ranks_run run = {
        .count = 1, .words = RANKS_RUN SAVES, .more = all, .out = in_folder("one", out[0])};
    run_steps one = train(&run);
    run.out = in_folder("many", out[1]);
    for (int i = 0; i < 4; i++) {
        run.count = list[i].count;
        run.stage = list[i].stage;
        run.is_resumed = i > 0;
        run_steps now = list[i].until > 0 ? train_until(run, list[i].until) : train(&run);
        check_close(v, &one, &now);
    }
}
END_TEST

/* ---- stopping -------------------------------------------------------------------------------- */

static hy_trainer *own_trainer;
static int64_t batches_after; /* of the validation, on the rank that was asked to stop */

/* Only this rank is asked to stop, in a validation after step `at`. */
static void stop_one_rank(void *user, const char *what, double fraction) {
    const rank_notes *n = user;
    const run_steps *mine = n->mine;
    bool is_there = mine->count > 0 && mine->step[mine->count - 1].step >= n->run->at;
    (void)fraction;
    if (n->rank != n->run->victim || !is_there || strcmp(what, "validating") != 0) return;
    require(batches_after++ < 3);
    hy_trainer_request_stop(own_trainer);
}

static hy_status train_and_stop(const ranks_run *run, int rank, const hy_config *config,
                                const hy_observer *observer) {
    hy_observer with_stop = *observer;
    (void)run;
    (void)rank;
    with_stop.on_progress = stop_one_rank;
    hy_status status = hy_trainer_create(config, &with_stop, &own_trainer);
    if (status == HY_OK) status = hy_trainer_run(own_trainer);
    hy_trainer_destroy(own_trainer);
    return status;
}

/* Between steps and at the end; in stage 3 the ranks gather the weights of each batch. */
START_TEST(a_stop_of_one_rank_breaks_off_the_validation_of_all) {
    const variant *v = variant_named("outer");
    const char *const many = "eval_every 4 eval_batches 0 eval_batch_size 1";
    char words[1024], all[2048], whole_out[600], out[600];
    run_steps whole = train_whole(v, 2, _i, many, whole_out);
    snprintf(all, sizeof all, "%s %s", words_of(v, folder, words), many);
    for (int is_end = 0; is_end < 2; is_end++) {
        ranks_run run = {.count = 2,
                         .stage = _i,
                         .words = RANKS_RUN SAVES,
                         .more = all,
                         .victim = 1,
                         .at = is_end ? whole.step[whole.count - 1].step : 4,
                         .train = train_and_stop,
                         .out = in_folder(is_end ? "end" : "cut", out)};
        ranks_job job = job_start(&run);
        rig_wait_except(&job.it, RUN_SECONDS, 0);
        for (int r = 0; r < 2; r++) {
            ck_assert_int_eq(job.it.codes[r], 0);
            ck_assert_int_eq(job.it.results[r].status, HY_STOPPED);
        }
        run_steps first = job.courses[0];
        job_free(&job);
        ck_assert_double_eq(first.step[first.count - 1].val_loss, 0);
        run.train = NULL;
        run.is_resumed = true;
        if (is_end) { /* only the validation is left */
            job = job_start(&run);
            rig_wait_except(&job.it, RUN_SECONDS, 0);
            ck_assert_int_eq(job.it.results[0].status, HY_OK);
            ck_assert_int_eq(job.courses[0].count, 0);
            job_free(&job);
        } else {
            run_steps rest = train(&run);
            ck_assert_int_eq(first.count + rest.count, whole.count);
            must_go_on_as(&whole, &rest, "after a stop");
        }
        must_have_same_checkpoint(out, whole_out);
    }
}
END_TEST

/* ---- what is exported ------------------------------------------------------------------------ */

typedef struct export_task {
    const char *checkpoint, *out;
} export_task;

static void export_model(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const export_task *task = user;
    hy_export_options options = {.out = task->out, .overwrite = true};
    (void)ranks;
    rig_keep(mine, hy_export(task->checkpoint, &options, NULL));
    require(mine->status == HY_OK);
}

/* With an average and without. */
START_TEST(a_model_does_not_show_which_ranks_saved_it) {
    static const char *const names[] = {"plain", "line", "lora"};
    const variant *v = variant_named(names[_i]);
    char words[1024], all[2048], out[2][600], model[2][600], path[HY_PATH_MAX], written[1300];
    snprintf(all, sizeof all, "%s save_model true", words_of(v, folder, words));
    for (int i = 0; i < 2; i++) {
        ranks_run run = {.count = 3,
                         .stage = 3 * i,
                         .words = RANKS_RUN,
                         .more = all,
                         .out = in_folder(i ? "sharded" : "whole", out[i])};
        train(&run);
        last_checkpoint(out[i], path);
        export_task task = {path, in_folder(i ? "sharded-model" : "whole-model", model[i])};
        rig_run(1, export_model, &task);
        snprintf(written, sizeof written, "%s/%s", out[i], _i == 2 ? "adapter" : "model");
        must_have_same_files(written, model[i], ".safetensors");
        must_have_same_files(written, model[i], ".json");
    }
    must_have_same_files(model[0], model[1], ".safetensors");
    must_have_same_files(model[0], model[1], ".json");
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_resume");
    TCase *c = tcase_create("resume");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    tcase_add_loop_test(c, a_run_of_ranks_that_was_killed_goes_on_bit_for_bit, 0,
                        IS_LONG ? VARIANT_COUNT : 3);
    tcase_add_loop_test(c, other_numbers_of_ranks_and_stages_go_on_with_a_run, 0, IS_LONG ? 21 : 1);
    if (IS_LONG) tcase_add_test(c, it_goes_on_after_a_kill_at_any_step);
    tcase_add_loop_test(c, a_stop_of_one_rank_breaks_off_the_validation_of_all, IS_LONG ? 0 : 3, 4);
    tcase_add_loop_test(c, a_model_does_not_show_which_ranks_saved_it, IS_LONG ? 0 : 1,
                        IS_LONG ? 3 : 2);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
