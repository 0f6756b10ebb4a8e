/* test_ranks_steering.c: one of several ranks is short of memory, and all ranks react alike.
 *
 * Each rank has a fake card (fake_card.h) in its own process. Other programs fill one of the cards
 * during the run, or the card reports more memory than it gives. All ranks then use smaller
 * micro-batches, recompute, or plan again, in the same step, and losses equal those of an
 * undisturbed run except for the order of sums. */
#include "fake_card.h"
#include "inside.h"
#include "ranks_rig.h"
#include "run_facts.h"
#include "skipped_time.h"

#define RANKS 3
#define STEPS 20
#define STEERED                                                                                    \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 batch_size 12 "                  \
    "grad_accum_steps 1 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_batches 1 steps 60 "    \
    "predictor none sample_tokens 0 threads 1 device cuda tune_cache none precision fp32 "         \
    "precision_correct same monitor silent batch_check_every 1 save_model false transport "        \
    "sockets "

typedef struct seen_step {
    int64_t batch, accum, recomputes;
    double loss;
    uint64_t device; /* as planned */
} seen_step;

/* What a rank saw, in memory that it shares with the test. */
typedef struct seen {
    seen_step step[STEPS];
    int64_t plans;
} seen;

typedef struct task {
    int stage;
    const char *words;
    int victim;      /* -1: nobody */
    int from, until; /* steps in which its card is full */
    bool is_refused; /* at the start, or for another plan: the card has less than it reports */
    bool plans_anew; /* in the middle, and back again */
    seen *all;       /* (RANKS) */
} task;

static void let_it_be(const task *k, int step) {
    bool is_kept_full = k->until == STEPS && step > k->from; /* what the run gives back, too */
    if (step == k->from || is_kept_full) card.others = card.memory_free - card.live - 4096;
    if (step == k->until) card.others = 0;
}

static uint64_t device_of(const hy_trainer *t) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(t, &facts);
    return facts.vram_bytes;
}

/* Less of the card, and what it was again: more than one of them can have leaves everybody as
 * before. Counts the plans that were taken. */
static void change_plan(hy_trainer *t, const task *k, int rank, int step) {
    hy_phase_summary full = summary_of(t).phases[HY_FULL];
    uint64_t all = device_of(t), work = full.memory[HY_ACTIVATIONS].planned_bytes +
                                        full.memory[HY_WORKSPACE].planned_bytes +
                                        full.memory[HY_DATA].planned_bytes;
    uint64_t cap = step == 7 ? all - (all - work) / 2 : 0;
    if (!k->plans_anew || (step != 7 && step != 13)) return;
    if (rank == k->victim && k->is_refused) card.hidden = CARD_BYTES - card.live - 4096;
    hy_status status = inside_replan(t, cap);
    card.hidden = 0;
    k->all[rank].plans += status == HY_OK;
    require(status == (k->victim >= 0 && step == 13 ? HY_ERR_INPUT : HY_OK));
}

static hy_status train_as(const task *k, int rank) {
    ranks_run run = {
        .count = RANKS, .stage = k->stage, .words = STEERED, .more = k->words, .out = "none"};
    hy_config *config = config_of(&run);
    hy_trainer *t = NULL;
    bool is_victim = rank == k->victim;
    if (is_victim && k->is_refused && !k->plans_anew) card.hidden = CARD_BYTES - ((size_t)5 << 18);
    hy_status status = hy_trainer_create(config, NULL, &t);
    hy_config_destroy(config);
    for (int i = 0; status == HY_OK && i < STEPS; i++) {
        hy_step_info info;
        if (is_victim && !k->is_refused) let_it_be(k, i);
        change_plan(t, k, rank, i);
        skip_time(2); /* what it knows may be a second old */
        status = hy_trainer_step(t, &info);
        k->all[rank].step[i] = (seen_step){.batch = info.batch_size,
                                           .accum = info.grad_accum,
                                           .recomputes = plan_says(t, "choices.recompute", "all"),
                                           .loss = info.loss,
                                           .device = device_of(t)};
    }
    hy_trainer_destroy(t);
    return status;
}

static void body(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const task *k = user;
    set_rank_variables(ranks);
    rig_keep(mine, train_as(k, ranks->rank));
}

/* All ranks see the same; what rank 0 saw. */
static seen train_them(task k) {
    k.all = mmap(NULL, RANKS * sizeof *k.all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    ck_assert_ptr_ne(k.all, MAP_FAILED);
    rig it = rig_start(RANKS, body, &k);
    rig_wait_except(&it, RUN_SECONDS, 0);
    for (int r = 0; r < RANKS; r++) {
        ck_assert_msg(it.codes[r] == 0 && it.results[r].status == HY_OK, "rank %d: %s", r,
                      it.results[r].message);
        for (int i = 0; i < STEPS; i++) {
            const seen_step *a = &k.all[r].step[i], *b = &k.all[0].step[i];
            ck_assert_msg(
                a->batch == b->batch && a->accum == b->accum && a->loss == b->loss &&
                    a->recomputes == b->recomputes,
                "step %d: rank %d has %lld x %lld and loss %.9g, rank 0 %lld x %lld and %.9g",
                i + 1, r, (long long)a->accum, (long long)a->batch, a->loss, (long long)b->accum,
                (long long)b->batch, b->loss);
        }
    }
    rig_free(&it);
    seen first = k.all[0];
    munmap(k.all, RANKS * sizeof *k.all);
    return first;
}

static void must_be_close(const seen *a, const seen *b) {
    for (int i = 0; i < STEPS; i++) {
        double x = a->step[i].loss, y = b->step[i].loss;
        ck_assert_msg(fabs(x - y) <= 1e-4 * fabs(y), "step %d: %.9g, undisturbed %.9g", i + 1, x,
                      y);
    }
}

START_TEST(ranks_shrink_and_grow_with_the_one_that_is_short) {
    task k = {.stage = 1 + _i, .words = "recompute none", .victim = -1, .from = 4, .until = 10};
    seen plain = train_them(k);
    k.victim = _i;
    seen now = train_them(k);
    int64_t least = 4;
    for (int i = 0; i < STEPS; i++) {
        ck_assert_int_eq(plain.step[i].batch, 4);
        ck_assert_int_eq(now.step[i].batch * now.step[i].accum, 4);
        if (now.step[i].batch < least) least = now.step[i].batch;
    }
    ck_assert_int_lt(least, 4);
    ck_assert_int_eq(now.step[STEPS - 1].batch, 4);
    must_be_close(&now, &plain);
}
END_TEST

/* Where no smaller one is left. */
START_TEST(in_an_emergency_ranks_recompute_together) {
    task k = {.stage = 2,
              .words = "recompute none min_batch_size 4",
              .victim = -1,
              .from = 4,
              .until = STEPS};
    seen plain = train_them(k);
    k.victim = 2;
    seen now = train_them(k);
    ck_assert_int_eq(now.step[STEPS - 1].batch, 4);
    ck_assert_int_eq(now.step[3].recomputes, 0);
    ck_assert_int_eq(now.step[STEPS - 1].recomputes, 1);
    ck_assert_uint_lt(now.step[STEPS - 1].device, now.step[3].device);
    must_be_close(&now, &plain);
}
END_TEST

/* Rows leave the cards of all and come back, or stay where they are on all: no bit changes. */
START_TEST(ranks_plan_anew_together_or_none_does) {
    task k = {.stage = 1 + _i * EVERY(2),
              .words = "recompute all dynamic_batch off loss_chunks 1",
              .victim = -1};
    seen plain = train_them(k);
    k.plans_anew = true;
    seen now = train_them(k);
    k.victim = 1;
    k.is_refused = true;
    seen refused = train_them(k);
    ck_assert_int_eq(now.plans, 2);
    ck_assert_int_eq(refused.plans, 1);
    ck_assert_uint_lt(now.step[7].device, now.step[6].device);
    ck_assert_uint_gt(now.step[13].device, now.step[12].device);
    for (int i = 0; i < STEPS; i++) {
        ck_assert_double_eq(now.step[i].loss, plain.step[i].loss);
        ck_assert_double_eq(refused.step[i].loss, plain.step[i].loss);
        ck_assert_uint_eq(refused.step[i].device, now.step[i < 13 ? i : 12].device);
    }
}
END_TEST

START_TEST(what_one_rank_is_refused_at_the_begin_all_do_without) {
    task k = {.stage = 1 + _i, .words = "", .victim = -1};
    seen plain = train_them(k);
    k.victim = 1 + _i % 2;
    k.is_refused = true;
    seen now = train_them(k);
    ck_assert_uint_lt(now.step[0].device, plain.step[0].device);
    must_be_close(&now, &plain);
}
END_TEST

/* ---- weights that are not trained ------------------------------------------------------------ */

enum { MOVED_STEPS = 6 };

/* In stage 3 each rank has a part of them. Parts move to another place between steps, on all ranks;
 * what the last loss was. */
static void train_and_move(const hy_ranks *ranks, rig_result *mine, const void *user) {
    char out[] = "none";
    const char *const *places = user;
    ranks_run run = {.count = ranks->count,
                     .stage = 3,
                     .words = RANKS_RUN,
                     .more = "predictor none qlora true width 64 mlp_width 64 precision bf16 steps "
                             "6 layers 5 weights_place device max_gpu_mem 64MiB",
                     .out = out};
    hy_config *config = config_of(&run);
    hy_trainer *t = NULL;
    hy_step_info info;
    set_rank_variables(ranks);
    require(hy_trainer_create(config, NULL, &t) == HY_OK);
    for (int i = 0; i < MOVED_STEPS; i++) {
        if (places[i]) {
            inside_set(t, "weights_place", places[i]);
            require(inside_replan(t, 0) == HY_OK);
            require(plan_says(t, "choices.weights_place", places[i]));
        }
        require(hy_trainer_step(t, &info) == HY_OK);
    }
    mine->seconds = info.loss;
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

START_TEST(parts_that_move_change_no_bit) {
    static const char *const stay[MOVED_STEPS];
    static const char *const move[MOVED_STEPS] = {[2] = "pinned", [4] = "device"};
    const char *const *const places[] = {stay, move};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        rig it = rig_start(3, train_and_move, places[i]);
        rig_wait(&it);
        for (int r = 0; r < 3; r++) ck_assert_int_eq(it.codes[r], 0);
        loss[i] = it.results[0].seconds;
        rig_free(&it);
    }
    ck_assert_msg(loss[0] == loss[1], "%.17g, undisturbed %.17g", loss[1], loss[0]);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_steering");
    TCase *c = tcase_create("steering");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, ranks_shrink_and_grow_with_the_one_that_is_short, 0, 3);
    tcase_add_test(c, in_an_emergency_ranks_recompute_together);
    tcase_add_loop_test(c, ranks_plan_anew_together_or_none_does, 0, COUNT_EVERY(3, 2));
    tcase_add_loop_test(c, what_one_rank_is_refused_at_the_begin_all_do_without, 0,
                        COUNT_EVERY(2, 2));
    tcase_add_test(c, parts_that_move_change_no_bit);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
