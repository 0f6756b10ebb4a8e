/* test_ranks_overlap.c: communication between ranks overlaps with compute.
 *
 * Two ranks train over a link that takes 0.5, 0.75, 1, 1.5 and 2 times as long as the compute of a
 * step. A step takes at most 1.15 times the longer of the two, except where both take equally long
 * and most bytes belong to one pass (docs/performance.md, "Several ranks"). Both are measured here:
 * compute by the same ranks over loopback, the link by the bytes that they send. A busy machine may
 * fail the test, so each figure has three tries. */
#include "../ranks_rig.h"

#define MOST 1.15
#define TRIES 3
/* Many units, as real models have: of two, nothing could go beside the other. */
#define DEEP                                                                                       \
    "model nano layers 24 width 128 heads 4 mlp_width 384 seq_len 128 batch_size 8 "               \
    "grad_accum_steps 1 predictor none steps 12 builtin_bytes 60000 eval_batches 1 "               \
    "sample_tokens 0 threads 1 device cpu save_model false transport sockets "

typedef struct way {
    const char *name, *words;
    int stage;
    double most_when_equal;
} way;

static const way ways[] = {
    {"weights as shards", "precision fp32", 3, MOST},
    {"weights in 16 bits", "precision bf16", 2, MOST},
    {"weights in host memory", "precision bf16 weights_place pinned max_gpu_mem 1GiB", 2, MOST},
    {"weights as shards in 16 bits", "precision bf16", 3, 1.22},
    {"weights in 32 bits", "precision fp32", 2, 1.29},
};
static const double shares[] = {0.5, 0.75, 1, 1.5, 2};
enum { SHARES = sizeof shares / sizeof *shares };

static char folder[256];
static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

typedef struct timed {
    const ranks_run *run;
    hy_rank_cost *cost; /* shared with the ranks */
} timed;

static void timed_body(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const timed *task = user;
    hy_config *config = config_of(task->run);
    hy_trainer *trainer = NULL;
    set_rank_variables(ranks);
    if (task->run->variable) require(putenv((char *)(uintptr_t)task->run->variable) == 0);
    hy_status status = hy_trainer_create(config, NULL, &trainer);
    hy_config_destroy(config);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (status == HY_OK && ranks->rank == 0) require(hy_trainer_rank(trainer, 0, task->cost));
    hy_trainer_destroy(trainer);
    rig_keep(mine, status);
}

/* Medians of a run's steps. variable: NULL: loopback. */
static hy_rank_cost cost_of(const way *w, const char *variable) {
    static int runs;
    char out[300];
    hy_rank_cost *cost =
        mmap(NULL, sizeof *cost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(cost, MAP_FAILED);
    snprintf(out, sizeof out, "%s/%d", folder, runs++);
    ranks_run run = {.count = 2,
                     .stage = w->stage,
                     .words = DEEP,
                     .more = w->words,
                     .out = out,
                     .variable = variable};
    timed task = {.run = &run, .cost = cost};
    rig it = rig_start(2, timed_body, &task);
    rig_wait_except(&it, RUN_SECONDS, 0);
    for (int r = 0; r < 2; r++) {
        ck_assert_msg(it.codes[r] == 0 && it.results[r].status == HY_OK, "%s, rank %d: %s", w->name,
                      r, it.results[r].message);
    }
    rig_free(&it);
    hy_rank_cost result = *cost;
    munmap(cost, sizeof *cost);
    return result;
}

/* How much longer a step takes than the longer of compute and wire. */
static double ratio_of(const way *w, double share) {
    hy_rank_cost alone = cost_of(w, NULL);
    double wire = share * alone.seconds, longer = wire > alone.seconds ? wire : alone.seconds;
    char variable[64];
    snprintf(variable, sizeof variable, "HYBRID_TEST_LINK=%.0f,0", alone.bytes / wire);
    hy_rank_cost both = cost_of(w, variable);
    /* A step's count ends with something on its way. */
    ck_assert_msg(fabs(both.bytes / alone.bytes - 1) < 0.01,
                  "%s: %.0f bytes over one link, %.0f over another", w->name, alone.bytes,
                  both.bytes);
    return both.seconds / longer;
}

START_TEST(a_step_takes_little_more_than_the_longer_of_compute_and_wire) {
    const way *w = &ways[_i / SHARES];
    double share = shares[_i % SHARES], best = INFINITY;
    double most = share == 1 ? w->most_when_equal : MOST;
    for (int i = 0; i < TRIES && best > most; i++) {
        double now = ratio_of(w, share);
        if (now < best) best = now;
    }
    ck_assert_msg(best <= most, "%s, a wire of %g of compute: %.3f of the longer", w->name, share,
                  best);
    printf("%s, a wire of %g of compute: %.3f of the longer\n", w->name, share, best);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_overlap");
    TCase *c = tcase_create("overlap");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    tcase_add_loop_test(c, a_step_takes_little_more_than_the_longer_of_compute_and_wire, 0,
                        SHARES * (int)(sizeof ways / sizeof *ways));
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
