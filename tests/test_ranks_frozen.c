/* test_ranks_frozen.c: several ranks with frozen weights: whole on every rank up to stage 2, parts
 * in stage 3. Stages agree in every bit of losses, norms and checkpoints, whatever the storage
 * type, place and source of the weights. A run continues with other ranks and stages, and a rank
 * uses the planned memory. Fast tests use one number of ranks for each way of training;
 * tests/long/test_ranks_frozen_all.c uses 2, 3 and 4. */
#include "ranks_variants.h"

#ifdef HY_ALL_RANKS
#define IS_LONG true
#else
#define IS_LONG false
#endif

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static const char *in_folder(const char *name, char out[600]) {
    snprintf(out, 600, "%s/%s", folder, name);
    return out;
}

#define LORA NONE "lora true "
#define QLORA NONE "qlora true width 64 mlp_width 64 precision bf16 "

/* More blocks than a ring of gathered ones holds; tables that share the blocks' buffers and such
 * that do not. */
static const variant frozen_variants[] = {
    {.name = "lora", .words = LORA "steps 5 layers 6", IN_FP32},
    {.name = "large table", .words = LORA "steps 4 layers 5 width 8 mlp_width 8", IN_FP32},
    {.name = "streaming",
     .words = LORA "weights_place pinned max_gpu_mem 64MiB steps 4 layers 6 ring_depth 2 "
                   "tied_head false batch_size 6 grad_accum_steps 2",
     IN_FP32},
    {.name = "resident",
     .words = LORA "weights_place pinned resident_units 2 steps 4 layers 6 precision bf16",
     IN_16_BITS},
    {.name = "disk",
     .words = LORA "weights_place disk max_gpu_mem 64MiB steps 4 layers 6 ring_depth 2",
     IN_FP32},
    {.name = "nf4", .words = QLORA "steps 5 layers 5 eval_every 2", IN_16_BITS},
    {.name = "int8",
     .words = QLORA "frozen_dtype int8 steps 4 layers 5 batch_size 6 grad_accum_steps 2",
     IN_16_BITS},
    {.name = "fp8", .words = QLORA "frozen_dtype fp8 steps 4", IN_16_BITS},
    {.name = "fp8 beside it",
     .words = NONE "steps 4 layers 6 train last:4 precision fp8 fp8 all width 64 mlp_width 64",
     IN_16_BITS},
    {.name = "last block", .words = NONE "steps 5 layers 5 train last:1", IN_FP32},
    {.name = "norms",
     .words = NONE "steps 4 layers 5 train *norm* recompute all tied_head false",
     IN_FP32},
    {.name = "outer",
     .words = PREDICTS "steps 14 predictor outer lora true layers 4 eval_every 5 precision bf16 "
                       "precision_correct fp32",
     IN_16_BITS,
     .jumps = 1},
};
enum { VARIANTS = sizeof frozen_variants / sizeof frozen_variants[0] };

static const variant *named(const char *name) {
    int i = 0;
    while (strcmp(frozen_variants[i].name, name) != 0) i++;
    return &frozen_variants[i];
}

static run_steps train_words(const char *words, int count, int stage, const char *out) {
    ranks_run run = {.count = count, .stage = stage, .words = RANKS_RUN, .more = words, .out = out};
    return train(&run);
}

static void must_be_close(const variant *v, const run_steps *now, const run_steps *one) {
    distance far = apart(now, one);
    ck_assert_msg(far.loss <= v->apart.loss && far.norm <= v->apart.norm,
                  "%s: losses are %.2g away, norms %.2g", v->name, far.loss, far.norm);
}

START_TEST(parts_give_the_bits_of_the_whole) {
    const variant *v = &frozen_variants[_i];
    char out[3][600], words[1024];
    snprintf(words, sizeof words, "%s offload_folder %s", v->words, folder);
    run_steps one = train_words(words, 1, -1, in_folder("one", out[0]));
    ck_assert_int_ge(jumps_of(&one), v->jumps);
    for (int count = 2; count <= 4; count++) {
        char name[2][16];
        if (!IS_LONG && count != 2 + _i % 2) continue;
        snprintf(name[0], sizeof name[0], "whole-%d", count);
        snprintf(name[1], sizeof name[1], "parts-%d", count);
        run_steps whole = train_words(words, count, _i % 3, in_folder(name[0], out[1]));
        run_steps parts = train_words(words, count, 3, in_folder(name[1], out[2]));
        must_be_same(&parts, &whole, v->name);
        must_have_same_checkpoint(out[2], out[1]);
        must_be_close(v, &parts, &one);
    }
}
END_TEST

/* ---- a base of files ------------------------------------------------------------------------- */

#define BASE_SHAPE "layers 4 width 64 mlp_width 64 "

/* A model as a run leaves it, which adapters stand beside: checkpoints then have them alone. */
static const char *make_base(char model[600]) {
    char out[600];
    train_words(NONE BASE_SHAPE "steps 2 save_model true", 1, -1, in_folder("base", out));
    return in_folder("base/model", model);
}

static const char *const storages[] = {"lora true precision bf16", "qlora true precision bf16",
                                       "qlora true frozen_dtype int8"};
enum { STORAGES = sizeof storages / sizeof storages[0] };

static void die_at(const ranks_run *run, int rank, const hy_step_info *info) {
    (void)rank;
    if (info->step == run->at) kill(getpid(), SIGKILL);
}

/* Killed behind a step, and gone on with by others. */
static run_steps train_in_two(ranks_run run, int64_t at, int count, int stage) {
    run_steps rest;
    run.at = at;
    run.after_step = die_at;
    ranks_job job = job_start(&run);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    job_free(&job);
    run.after_step = NULL;
    run.is_resumed = true;
    run.count = count;
    run.stage = stage;
    rest = train(&run);
    ck_assert_int_gt(rest.step[0].step, 1);
    return rest;
}

START_TEST(a_base_of_files_is_read_in_parts_and_other_ranks_go_on_with_it) {
    char model[600], out[4][600], words[1500];
    const variant v = {.name = storages[_i], IN_16_BITS};
    int count = 2 + _i % 2;
    snprintf(words, sizeof words, NONE BASE_SHAPE "model %s base %s %s steps 6 save_every 2 keep 0",
             make_base(model), model, storages[_i]);
    run_steps whole = train_words(words, count, 2, in_folder("whole", out[0]));
    run_steps parts = train_words(words, count, 3, in_folder("parts", out[1]));
    must_be_same(&parts, &whole, v.name);
    must_have_same_checkpoint(out[1], out[0]);
    ranks_run run = {.count = count,
                     .stage = 3,
                     .words = RANKS_RUN,
                     .more = words,
                     .out = in_folder("same", out[2])};
    run_steps again = train_in_two(run, 3, count, 1), expected = part_of(&whole, &again);
    must_be_same(&again, &expected, "the same ranks in another stage");
    must_have_same_checkpoint(out[2], out[0]);
    run.stage = 1;
    run.out = in_folder("other", out[3]);
    run_steps others = train_in_two(run, 3, 5 - count, 3);
    expected = part_of(&whole, &others);
    must_be_close(&v, &others, &expected);
}
END_TEST

/* The same where checkpoints have the weights that are not trained. */
START_TEST(other_ranks_go_on_with_parts_of_a_checkpoint) {
    char out[2][600], words[1024];
    const variant *v = named("nf4");
    snprintf(words, sizeof words, "%s steps 6 save_every 2 keep 0", v->words);
    run_steps whole = train_words(words, 2, 3, in_folder("whole", out[0]));
    ranks_run run = {
        .count = 2, .stage = 3, .words = RANKS_RUN, .more = words, .out = in_folder("cut", out[1])};
    run_steps again = train_in_two(run, 3, 2, 3), expected = part_of(&whole, &again);
    must_be_same(&again, &expected, v->name);
    must_have_same_checkpoint(out[1], out[0]);
    run.count = 1;
    run.out = in_folder("alone", out[1]);
    run_steps others = train_in_two(run, 3, 3, 3);
    expected = part_of(&whole, &others);
    must_be_close(v, &others, &expected);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a rank has of the weights, and whether all that it has was planned. */
static void measure(const hy_ranks *ranks, rig_result *mine, const void *user) {
    char config_out[] = "none";
    ranks_run run = {
        .count = ranks->count, .stage = 3, .words = RANKS_RUN, .more = user, .out = config_out};
    hy_config *config = config_of(&run);
    hy_trainer *t = NULL;
    hy_step_info info;
    hy_summary summary;
    set_rank_variables(ranks);
    require(hy_trainer_create(config, NULL, &t) == HY_OK);
    for (int i = 0; i < 2; i++) require(hy_trainer_step(t, &info) == HY_OK);
    hy_trainer_summary(t, &summary);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_cell *cell = &summary.phases[HY_FULL].memory[cls];
        if (cell->planned_bytes != cell->measured_bytes) mine->status = HY_ERR_INTERNAL;
    }
    mine->number = (int64_t)summary.phases[HY_FULL].memory[HY_WEIGHTS].planned_bytes;
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

START_TEST(a_rank_has_its_part_of_the_weights_as_planned) {
    static const char *const words[] = {
        LORA "steps 4 layers 12 lr_warmup_steps 0", QLORA "steps 4 layers 12 lr_warmup_steps 0",
        LORA "steps 4 layers 12 lr_warmup_steps 0 weights_place pinned max_gpu_mem 64MiB",
        NONE "steps 4 layers 12 lr_warmup_steps 0 train last:6 precision fp8 fp8 all width 64 "
             "mlp_width 64"};
    int count = 2 + _i % 2;
    rig alone = rig_start(1, measure, words[_i / 2]), it = rig_start(count, measure, words[_i / 2]);
    rig_wait(&alone);
    rig_wait(&it);
    int64_t whole = alone.results[0].number, all = 0;
    ck_assert_int_gt(whole, 0);
    for (int r = 0; r < count; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_int_eq(it.results[r].status, HY_OK);
        all += it.results[r].number;
        ck_assert_int_le(it.results[r].number, whole / count + whole / 50);
    }
    ck_assert_int_ge(all, whole); /* together they have the whole once, and what is rounded up */
    ck_assert_int_le(all, whole + whole / 50);
    rig_free(&alone);
    rig_free(&it);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_frozen");
    TCase *c = tcase_create("frozen");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    tcase_add_loop_test(c, parts_give_the_bits_of_the_whole, 0, VARIANTS);
    tcase_add_loop_test(c, a_base_of_files_is_read_in_parts_and_other_ranks_go_on_with_it, 0,
                        STORAGES);
    tcase_add_test(c, other_ranks_go_on_with_parts_of_a_checkpoint);
    tcase_add_loop_test(c, a_rank_has_its_part_of_the_weights_as_planned, 0, 8);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
