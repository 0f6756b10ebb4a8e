/* test_ranks_alone.c: one rank that sends everything to itself, over a stand-in for NCCL
 * (standin/nccl.c).
 *
 * Its losses equal those of a run without ranks, except for the order in which norms are summed.
 * Stages and places agree to the bit: device memory is sent directly, other memory passes through a
 * ring. */
#include "own_ranks_rig.h"
#include "standin_rig.h"

static char folder[256];

static void set_up(void) {
    use_standin("libnccl.so");
    setenv("STANDIN_NCCL_FOLDER", temp_folder(folder), 1);
    setenv("STANDIN_NCCL_WAITS", "1", 1);
    setenv("HYBRID_TEST_NCCL", "1", 1);
}

static void tear_down(void) { remove_folder(folder); }

static run_steps train_alone(const ranks_run *like, const char *words, const char *more) {
    static int runs;
    char out[300], all[1200];
    snprintf(out, sizeof out, "%s/%d", folder, runs++);
    snprintf(all, sizeof all, "%s %s", words, more);
    ranks_run run = *like;
    run.count = 1;
    run.more = all;
    run.out = out;
    return train(&run);
}

static void must_be_near(const run_steps *now, const run_steps *one, distance most,
                         const char *name, const char *more) {
    distance far = apart(now, one);
    ck_assert_msg(far.loss <= most.loss && far.norm <= most.norm,
                  "%s,%s: losses are %.2g away, norms %.2g", name, more, far.loss, far.norm);
}

/* ---- our models ------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "model nano layers 3 width 64 heads 4 mlp_width 160 seq_len 32 batch_size 4 "                  \
    "grad_accum_steps 3 steps 5 builtin_bytes 60000 eval_every 0 sample_tokens 0 threads 1 "       \
    "device cpu save_model false predictor none "

typedef struct kind {
    const char *name, *words;
    distance apart;
} kind;

static const kind kinds[] = {
    {"fp32", "precision fp32", {1e-6, 1e-5}},
    {"tied head", "precision fp32 tied_head true", {1e-6, 1e-5}},
    {"bf16", "precision bf16", {5e-3, 5e-2}},
    {"bf16 gradients", "precision bf16 grad_dtype bf16", {5e-3, 5e-2}},
    {"8bit", "precision fp32 optim_dtype 8bit", {1e-5, 1e-4}},
};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static const char *const ways[] = {
    " transport nccl zero_stage 0",
    " transport nccl zero_stage 2",
    " transport nccl zero_stage 3",
    " transport nccl zero_stage 2 weights_place pinned grads_place pinned max_gpu_mem 64MiB",
    " transport nccl zero_stage 3 weights_place pinned grads_place pinned max_gpu_mem 64MiB",
};

START_TEST(one_rank_that_sends_to_itself_learns_the_same_in_every_stage_and_place) {
    const kind *k = &kinds[_i];
    const ranks_run like = {.words = RUN};
    run_steps one = train_alone(&like, k->words, ""), first = {0};
    ck_assert_int_eq(one.count, 5);
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        run_steps now = train_alone(&like, k->words, ways[i]);
        must_be_near(&now, &one, k->apart, k->name, ways[i]);
        if (i > 0) must_be_same(&now, &first, k->name);
        first = now;
    }
}
END_TEST

/* What went through the stand-in is what was used: damaged bits change a run. */
START_TEST(what_it_sends_to_itself_is_used) {
    const ranks_run like = {.words = RUN};
    for (int i = 1; i < 5; i++) {
        run_steps whole = train_alone(&like, kinds[0].words, ways[i]);
        setenv("STANDIN_NCCL_FLIP", "0,0", 1);
        run_steps damaged = train_alone(&like, kinds[0].words, ways[i]);
        unsetenv("STANDIN_NCCL_FLIP");
        ck_assert_msg(memcmp(whole.step, damaged.step, sizeof whole.step) != 0,
                      "%s: nothing went through NCCL", ways[i]);
    }
}
END_TEST

/* ---- a caller's ------------------------------------------------------------------------------ */

/* The last ends where its memory does: the byte that is damaged is one of its own. */
#define SMALL .size = {700, 33, 5, 1024}, .apart = {5e-6, 5e-5}
static const own_variant variants[] = {
    {.name = "model", .words = "predictor none steps 6", SMALL},
    {.name = "model, each", .words = "predictor none steps 6", SMALL, .is_each = true},
    {.name = "loop", .words = "predictor none steps 6", SMALL, .is_loop = true},
};

START_TEST(a_custom_model_that_sends_to_itself_learns_the_same) {
    const own_variant *v = &variants[_i];
    own_task task = {.v = v};
    const ranks_run like = {.words = OWN_RUN, .train = own_train, .user = &task};
    run_steps one = train_alone(&like, v->words, ""), first = {0};
    ck_assert_int_eq(one.count, 6);
    for (int i = 0; i < 2; i++) { /* a custom model has no stage 3 */
        run_steps now = train_alone(&like, v->words, ways[i]);
        must_be_near(&now, &one, v->apart, v->name, ways[i]);
        if (i > 0) must_be_same(&now, &first, v->name);
        first = now;
    }
    setenv("STANDIN_NCCL_FLIP", "0,0", 1);
    run_steps damaged = train_alone(&like, v->words, ways[1]);
    unsetenv("STANDIN_NCCL_FLIP");
    ck_assert_msg(memcmp(first.step, damaged.step, sizeof first.step) != 0,
                  "%s: nothing went through NCCL", v->name);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_alone");
    TCase *c = tcase_create("alone");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, one_rank_that_sends_to_itself_learns_the_same_in_every_stage_and_place,
                        0, KINDS);
    tcase_add_test(c, what_it_sends_to_itself_is_used);
    tcase_add_loop_test(c, a_custom_model_that_sends_to_itself_learns_the_same, 0,
                        (int)(sizeof variants / sizeof *variants));
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
