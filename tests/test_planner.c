/* test_planner.c: the planner: known results, and properties of every plan. */
#include "planner_rig.h"

#include "base/rng.h"

#ifdef HY_POISON /* a sanitizer's build is slower */
#define ROUNDS 10
#define DEVICE_STEP 8
#else
#define ROUNDS 24
#define DEVICE_STEP 2
#endif

/* ---- known answers --------------------------------------------------------------------------- */

/* Every class that is there lives at `place`. */
static bool all_state_is(const hy_plan *plan, hy_place place) {
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (plan->state.bytes[i] && plan->choice.state[i] != place) return false;
    }
    return true;
}

START_TEST(what_is_chosen_for_known_machines) {
    static const struct {
        const char *name;
        rig_options options;
        bool is_all_pinned, is_all_device;
        double least, most; /* tokens/s that a plan may promise */
    } table[] = {
        {"7B, 16 GB card of an H200, 128 GB host",
         {"qwen2.5-7b", "h200", CARD_16GB, 115 * GIB, 262144, SMALL_STATE},
         true,
         false,
         9500,
         12500},
        {"7B, the same, 64 GB host",
         {"qwen2.5-7b", "h200", CARD_16GB, 60 * GIB, 262144, SMALL_STATE},
         true,
         false,
         9500,
         12500},
        {"7B, a usual step",
         {"qwen2.5-7b", "h200", CARD_16GB, 60 * GIB, 16384, SMALL_STATE},
         true,
         false,
         6500,
         9500},
        {"7B, RTX 5080, 64 GB host",
         {"qwen2.5-7b", "rtx5080", 15 * GIB, 60 * GIB, 262144, SMALL_STATE},
         true,
         false,
         1400,
         2150},
        {"1.5B, 16 GB of an H200, 64 GB host",
         {"qwen2.5-1.5b", "h200", CARD_16GB, 60 * GIB, 131072, SMALL_STATE},
         false,
         false,
         49000,
         60000},
        {"1.5B, 16 GB of an H200, 128 GB host",
         {"qwen2.5-1.5b", "h200", CARD_16GB, 115 * GIB, 131072, SMALL_STATE},
         false,
         false,
         49000,
         60000},
        {"1.5B, a whole H200",
         {"qwen2.5-1.5b", "h200", 139 * GIB, 115 * GIB, 131072, PLAIN_STATE},
         false,
         true,
         53000,
         64000},
        {"124M, 8 GB",
         {"gpt2-124m", "rtx4060", 7500 * MIB, 30 * GIB, 524288, PLAIN_STATE},
         false,
         true,
         12000,
         30000},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        rig r;
        hy_plan plan;
        rig_begin(&r, &table[i].options);
        must(hy_plan_choose(&r.problem, &plan));
        ck_assert_msg(plan.fits, "%s: nothing fits", table[i].name);
        ck_assert_uint_le(plan.device, table[i].options.device);
        ck_assert_uint_le(plan.host, table[i].options.host);
        double rate = plan.cost.tokens_per_second;
        ck_assert_msg(rate >= table[i].least && rate <= table[i].most, "%s: %.0f tokens/s",
                      table[i].name, rate);
        if (table[i].is_all_pinned) {
            ck_assert_msg(all_state_is(&plan, HY_PINNED), "%s: not all pinned", table[i].name);
            ck_assert(plan.choice.keeps_update_pending);
        }
        if (table[i].is_all_device) {
            ck_assert_msg(all_state_is(&plan, HY_DEVICE), "%s: not all here", table[i].name);
            ck_assert_int_eq(plan.choice.recompute, HY_RECOMPUTE_NONE);
            ck_assert(!plan.choice.keeps_update_pending);
        }
        ck_assert_int_eq((int64_t)plan.choice.batch * plan.choice.accum * 1024,
                         table[i].options.step_tokens);
        rig_end(&r);
    }
}
END_TEST

/* 50 GiB pinned for 7B: state alone is 42.7. 40 GiB do as well: layers that stay on the device need
 * none. */
START_TEST(seven_billion_fit_into_forty_gibibytes_of_host_memory) {
    for (int most = 50; most >= 40; most -= 10) {
        rig r;
        hy_plan plan, bare;
        uint64_t host = (uint64_t)most * GIB;
        rig_begin(&r, &(rig_options){"qwen2.5-7b", "h200", CARD_16GB, host, 262144, SMALL_STATE});
        must(hy_plan_choose(&r.problem, &plan));
        ck_assert(plan.fits);
        ck_assert_uint_le(plan.host, host);
        hy_plan_choice none = plan.choice;
        none.resident_units = 0;
        must(hy_plan_evaluate(&r.problem, &none, &bare));
        ck_assert_uint_ge(bare.host, 42 * GIB);
        ck_assert_uint_eq(bare.host - plan.host, bare.state.pinned - plan.state.pinned);
        if (most == 40) ck_assert_int_ge(plan.choice.resident_units, 2);
        rig_end(&r);
    }
}
END_TEST

/* Whether it fits where host memory is short is known without looking for the fastest. */
START_TEST(the_leanest_plan_for_the_host_has_layers_that_stay) {
    rig r;
    hy_plan lean, short_of;
    rig_begin(&r, &(rig_options){"qwen2.5-7b", "h200", CARD_16GB, 40 * GIB, 262144, SMALL_STATE});
    must(hy_plan_leanest(&r.problem, false, &lean));
    ck_assert(lean.fits);
    ck_assert_int_gt(lean.choice.resident_units, 0);
    r.problem.open.resident_units = false;
    must(hy_plan_leanest(&r.problem, false, &short_of));
    ck_assert(!short_of.fits);
    ck_assert_uint_gt(short_of.host_short, 0);
    rig_end(&r);
}
END_TEST

/* ---- true of every answer -------------------------------------------------------------------- */

START_TEST(more_memory_is_never_slower) {
    static const struct {
        const char *model;
        int64_t step_tokens;
    } cases[] = {{"qwen2.5-1.5b", 65536}, {"qwen2.5-7b", 65536}, {"gpt2-124m", 262144}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        double before = 1e300;
        rig_begin(&r, &(rig_options){cases[i].model, "rtx5080", 8 * GIB, 60 * GIB,
                                     cases[i].step_tokens, SMALL_STATE});
        r.sizer->spec.budget = 0; /* the pieces of the loss by themselves */
        for (uint64_t device = 2; device <= 160; device += device < 32 ? DEVICE_STEP : 32) {
            hy_plan plan;
            r.problem.limits.device = device * GIB;
            must(hy_plan_choose(&r.problem, &plan));
            if (!plan.fits) continue;
            ck_assert_msg(plan.cost.seconds <= before, "%s: %g s with %d GiB, %g s with less",
                          cases[i].model, plan.cost.seconds, (int)device, before);
            before = plan.cost.seconds;
        }
        ck_assert_msg(before < 1e300, "%s never fits", cases[i].model);
        rig_end(&r);
    }
}
END_TEST

START_TEST(more_host_memory_is_never_slower) {
    rig r;
    double before = 1e300;
    rig_begin(&r, &(rig_options){"qwen2.5-7b", "rtx5080", 15 * GIB, 0, 65536, SMALL_STATE});
    for (uint64_t host = 40; host <= 120; host += 4) {
        hy_plan plan;
        r.problem.limits.host = host * GIB;
        must(hy_plan_choose(&r.problem, &plan));
        if (!plan.fits) continue;
        ck_assert_double_le(plan.cost.seconds, before);
        before = plan.cost.seconds;
    }
    ck_assert_double_lt(before, 1e300);
    rig_end(&r);
}
END_TEST

START_TEST(what_the_user_fixed_stays) {
    rig r;
    hy_plan plan;
    rig_begin(&r,
              &(rig_options){"qwen2.5-1.5b", "rtx5080", 15 * GIB, 60 * GIB, 65536, PLAIN_STATE});
    hy_plan_problem all_open = r.problem;
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        r.problem = all_open;
        r.problem.base.state[i] = HY_PINNED;
        r.problem.open.state[i] = false;
        must(hy_plan_choose(&r.problem, &plan));
        ck_assert_int_eq(plan.choice.state[i], HY_PINNED);
    }
    r.problem = all_open;
    r.problem.base.recompute = HY_RECOMPUTE_ATTENTION;
    r.problem.base.recompute_layers = 5;
    r.problem.base.loss_chunks = 64;
    r.problem.base.ring_depth = 5;
    r.problem.base.resident_units = 2;
    r.problem.base.batch = 2;
    r.problem.base.accum = 32;
    r.problem.open = (hy_plan_open){.state = {true, true, true, true}};
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(plan.fits);
    ck_assert_int_eq(plan.choice.recompute, HY_RECOMPUTE_ATTENTION);
    ck_assert_int_eq(plan.choice.recompute_layers, 5);
    ck_assert_int_eq(plan.choice.loss_chunks, 64);
    ck_assert_int_eq(plan.choice.ring_depth, 5);
    ck_assert_int_eq(plan.choice.resident_units, 2);
    ck_assert_int_eq(plan.choice.batch, 2);
    ck_assert(!plan.choice.keeps_update_pending);
    ck_assert_int_eq(plan.choice.activations, HY_DEVICE);
    rig_end(&r);
}
END_TEST

/* A micro-batch that was given is split when nothing else fits, and only then. */
START_TEST(a_given_micro_batch_is_kept_where_it_fits) {
    rig r;
    hy_plan plan;
    rig_begin(&r,
              &(rig_options){"qwen2.5-1.5b", "rtx5080", 15 * GIB, 60 * GIB, 65536, SMALL_STATE});
    r.problem.keeps_batch = true;
    r.problem.base.batch = 8;
    r.problem.base.accum = 8;
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(plan.fits);
    ck_assert_int_eq(plan.choice.batch, 8);
    r.problem.base.batch = 64;
    r.problem.base.accum = 1;
    r.problem.limits.device = 4 * GIB;
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(plan.fits);
    ck_assert_int_lt(plan.choice.batch, 64);
    ck_assert_int_eq(plan.choice.batch * plan.choice.accum, 64);
    rig_end(&r);
}
END_TEST

/* A plan of 8 sequences in one micro-batch, on a card with room for everything. */
static void plan_with_room(rig *r, hy_plan *plan) {
    rig_begin(r, &(rig_options){"gpt2-124m", "h200", 100 * GIB, 60 * GIB, 8192, PLAIN_STATE});
    r->problem.keeps_batch = true;
    r->problem.base.batch = 8;
    r->problem.base.accum = 1;
    must(hy_plan_choose(&r->problem, plan));
}

START_TEST(where_all_fits_nothing_is_streamed_or_recomputed) {
    rig r;
    hy_plan plan;
    plan_with_room(&r, &plan);
    ck_assert_int_eq(memcmp(&plan.choice, &r.problem.base, sizeof plan.choice), 0);
    rig_end(&r);
}
END_TEST

START_TEST(disk_is_used_when_nothing_else_fits_and_only_then) {
    rig r;
    hy_plan plan;
    rig_begin(&r, &(rig_options){"qwen2.5-7b", "rtx5080", 15 * GIB, 20 * GIB, 65536, SMALL_STATE});
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(!plan.fits);
    ck_assert_uint_gt(plan.device_short + plan.host_short, 0);
    r.problem.limits.has_folder = true;
    r.problem.limits.disk = UINT64_MAX;
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(plan.fits);
    ck_assert_uint_gt(plan.disk, 0);
    ck_assert_uint_gt(plan.cost.disk_written, 0);
    r.problem.limits.host = 100 * GIB;
    must(hy_plan_choose(&r.problem, &plan));
    ck_assert(plan.fits);
    ck_assert_uint_eq(plan.disk, 0);
    rig_end(&r);
}
END_TEST

START_TEST(the_leanest_plan_needs_no_more_than_any_other) {
    rig r;
    hy_plan plan, lean;
    rig_begin(&r,
              &(rig_options){"qwen2.5-1.5b", "rtx5080", 15 * GIB, 60 * GIB, 65536, SMALL_STATE});
    must(hy_plan_choose(&r.problem, &plan));
    must(hy_plan_leanest(&r.problem, true, &lean));
    ck_assert(plan.fits && lean.fits);
    ck_assert_uint_le(lean.device, plan.device);
    must(hy_plan_leanest(&r.problem, false, &lean));
    ck_assert_uint_le(lean.host, plan.host);
    rig_end(&r);
}
END_TEST

/* ---- measured ops ---------------------------------------------------------------------------- */

static double one_millisecond(hy_backend *b, const hy_op_call *call) {
    (void)b;
    return call->kind == HY_OP_MATMUL ? 1e-3 : 0;
}

static hy_status prepare_nothing(hy_backend *b, hy_op_call *call) {
    (void)b;
    (void)call;
    return HY_OK;
}

START_TEST(measured_ops_replace_the_estimate_of_their_time) {
    rig r;
    hy_plan plan;
    plan_with_room(&r, &plan);
    hy_plan_work work = plan.work;
    r.backend->op_seconds = one_millisecond;
    r.backend->prepare = prepare_nothing;
    must(hy_sizer_clock(r.sizer, &plan.choice, &work));
    /* 12 layers with 4 matmuls; under load each takes longer than alone */
    ck_assert_double_gt(work.forward, 48e-3);
    ck_assert_double_lt(work.forward, 60e-3);
    ck_assert_double_gt(work.backward, work.forward);
    rig_end(&r);
}
END_TEST

/* ---- random problems ------------------------------------------------------------------------- */

typedef struct dice {
    uint64_t seed, count;
} dice;

static int64_t throw(dice * d, int64_t sides) {
    return (int64_t)(hy_rng_u64(d->seed, 0, d->count++) % (uint64_t)sides);
}

/* Any choice of the set that the planner looks at. */
static hy_plan_choice any_choice(const rig *r, dice *d) {
    static const uint64_t logits[] = {1u << 30, 1u << 29, 1u << 28, 1u << 27, 1u << 26};
    const hy_plan_problem *p = &r->problem;
    hy_plan_choice c = p->base;
    do c.batch = (int32_t) throw(d, 64) + 1;
    while (p->step_sequences % c.batch != 0);
    c.accum = (int32_t)(p->step_sequences / c.batch);
    c.recompute = (hy_recompute) throw(d, HY_RECOMPUTE_COUNT);
    c.activations = throw(d, 2) ? HY_PINNED : HY_DEVICE;
    if (c.recompute != HY_RECOMPUTE_NONE && c.activations == HY_DEVICE) {
        int32_t layers = p->layers * ((int32_t) throw(d, 4) + 1) / 4;
        c.recompute_layers = layers == p->layers ? 0 : layers;
    }
    c.loss_chunks = hy_sizer_chunks(p->sizer, c.batch, logits[throw(d, 5)]);
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (p->open.state[i]) c.state[i] = throw(d, 2) ? HY_PINNED : HY_DEVICE;
    }
    c.ring_depth = (int32_t) throw(d, 3) + 2;
    c.resident_units = (int32_t) throw(d, p->layers + 1);
    c.keeps_update_pending = throw(d, 2);
    return c;
}

START_TEST(of_random_problems_no_choice_that_fits_is_faster) {
    static const char *const models[] = {"gpt2-124m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"};
    static const char *const cards[] = {"rtx5080", "h200", "rtx4060", "rtx3090"};
    dice d = {.seed = 17};
    int fitting = 0, compared = 0;
    for (int round = 0; round < ROUNDS; round++) {
        rig r;
        hy_plan plan, other;
        bool is_small = throw(&d, 2);
        rig_begin(&r, &(rig_options){.model = models[throw(&d, 4)],
                                     .card = cards[throw(&d, 4)],
                                     .device = (uint64_t)(throw(&d, 40) + 2) * GIB,
                                     .host = (uint64_t)(throw(&d, 120) + 4) * GIB,
                                     .step_tokens = 1024 << throw(&d, 9),
                                     .grads = is_small ? HY_BF16 : HY_F32,
                                     .optim = is_small ? HY_U8 : HY_F32,
                                     .has_master = throw(&d, 2)});
        must(hy_plan_choose(&r.problem, &plan));
        fitting += plan.fits;
        for (int i = 0; i < 40; i++) {
            hy_plan_choice choice = any_choice(&r, &d);
            must(hy_plan_evaluate(&r.problem, &choice, &other));
            ck_assert_msg(plan.fits || !other.fits, "round %d: a plan that fits was missed", round);
            if (!other.fits) continue;
            compared++;
            ck_assert_msg(plan.cost.seconds <= other.cost.seconds,
                          "round %d: %g s was chosen, %g s would do", round, plan.cost.seconds,
                          other.cost.seconds);
        }
        if (plan.fits) {
            ck_assert_uint_le(plan.device, r.problem.limits.device);
            ck_assert_uint_le(plan.host, r.problem.limits.host);
        }
        rig_end(&r);
    }
    ck_assert_int_gt(fitting, ROUNDS / 3);
    ck_assert_int_gt(compared, 2 * ROUNDS);
}
END_TEST

START_TEST(every_choice_has_a_reason) {
    rig r;
    hy_plan plan;
    hy_plan_facts facts = {0};
    rig_begin(&r, &(rig_options){"qwen2.5-7b", "h200", CARD_16GB, 60 * GIB, 262144, SMALL_STATE});
    must(hy_plan_choose(&r.problem, &plan));
    must(hy_plan_explain(&r.problem, &plan, &facts));
    static const char *const words[] = {"micro-batch", "weights in pinned memory",
                                        "gradients in pinned memory",
                                        "optimizer state in pinned memory", "a layer is updated"};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        bool is_there = false;
        for (int i = 0; i < facts.reason_count; i++) {
            is_there |= !!strstr(facts.reasons[i], words[k]);
        }
        ck_assert_msg(is_there, "no reason says \"%s\"", words[k]);
    }
    rig_end(&r);
}
END_TEST

static Suite *planner_suite(void) {
    Suite *suite = suite_create("trainer: planner");
    TCase *answers = tcase_create("answers");
    tcase_set_timeout(answers, 300);
    tcase_add_test(answers, what_is_chosen_for_known_machines);
    tcase_add_test(answers, seven_billion_fit_into_forty_gibibytes_of_host_memory);
    tcase_add_test(answers, the_leanest_plan_for_the_host_has_layers_that_stay);
    tcase_add_test(answers, every_choice_has_a_reason);
    tcase_add_test(answers, measured_ops_replace_the_estimate_of_their_time);
    suite_add_tcase(suite, answers);
    TCase *rules = tcase_create("rules");
    tcase_set_timeout(rules, 300);
    tcase_add_test(rules, more_memory_is_never_slower);
    tcase_add_test(rules, more_host_memory_is_never_slower);
    tcase_add_test(rules, what_the_user_fixed_stays);
    tcase_add_test(rules, a_given_micro_batch_is_kept_where_it_fits);
    tcase_add_test(rules, where_all_fits_nothing_is_streamed_or_recomputed);
    tcase_add_test(rules, disk_is_used_when_nothing_else_fits_and_only_then);
    tcase_add_test(rules, the_leanest_plan_needs_no_more_than_any_other);
    tcase_add_test(rules, of_random_problems_no_choice_that_fits_is_faster);
    suite_add_tcase(suite, rules);
    return suite;
}

HY_TEST_MAIN(planner_suite)
