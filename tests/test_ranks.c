/* test_ranks.c: a run as one of several ranks: joining the others, the device and cores of a rank,
 * and starting ranks. */
#include "comm_rig.h"
#include "rank_variables.h"

#include <sched.h>

#include "hybrid.h"
#include "kernels/cpu/machine.h"
#include "trainer/join.h"

/* ---- a machine that is shared ---------------------------------------------------------------- */

typedef struct fit {
    hy_rank_place place;
    hy_device_choice device, expected;
    int64_t threads, expected_threads;
} fit;

static const fit fits[] = {
    /* two ranks, two cards, eight cores */
    {{1, 2, 8, 2}, HY_USE_ANY, HY_USE_CARD + 1, 0, 4},
    {{1, 2, 8, 2}, HY_USE_CUDA, HY_USE_CARD + 1, 0, 4},
    /* said by name */
    {{1, 2, 8, 2}, HY_USE_CPU, HY_USE_CPU, 3, 3},
    {{1, 2, 8, 2}, HY_USE_CARD + 5, HY_USE_CARD + 5, 0, 4},
    /* fewer cards than ranks, as where each rank sees one of its own */
    {{3, 4, 8, 1}, HY_USE_CUDA, HY_USE_CARD, 0, 2},
    {{3, 4, 8, 2}, HY_USE_CUDA, HY_USE_CARD + 1, 0, 2},
    /* no card: auto stays, and cuda is missed where it is opened */
    {{1, 2, 8, 0}, HY_USE_ANY, HY_USE_ANY, 0, 4},
    {{1, 2, 8, 0}, HY_USE_CUDA, HY_USE_CUDA, 0, 4},
    /* bound to cores of its own; more ranks than cores */
    {{1, 1, 8, 0}, HY_USE_CPU, HY_USE_CPU, 0, 8},
    {{1, 4, 2, 0}, HY_USE_CPU, HY_USE_CPU, 0, 1},
    {{1, 3, 8, 0}, HY_USE_CPU, HY_USE_CPU, 0, 2},
};

START_TEST(cards_are_dealt_out_and_cores_divided_unless_somebody_says_them) {
    const fit *f = &fits[_i];
    hy_settings s = {.device = f->device, .threads = f->threads};
    hy_rank_fit(&s, &f->place);
    ck_assert_int_eq(s.device, f->expected);
    ck_assert_int_eq(s.threads, f->expected_threads);
}
END_TEST

/* ---- joining --------------------------------------------------------------------------------- */

typedef struct run_of_rank {
    const char *key, *value;       /* of rank 1 alone; NULL: as the others */
    const char *every, *its_value; /* of all */
    bool is_bound;                 /* rank 0 to one core */
} run_of_rank;

static void join(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const run_of_rank *how = user;
    hy_config *config;
    hy_team *team = NULL;
    set_rank_variables(ranks);
    require(hy_config_create(&config) == HY_OK);
    require(hy_config_set(config, "device", "cpu", HY_FROM_FLAG) == HY_OK);
    require(hy_config_set(config, "rank_timeout", "4", HY_FROM_FLAG) == HY_OK);
    if (how->every)
        require(hy_config_set(config, how->every, how->its_value, HY_FROM_FLAG) == HY_OK);
    if (how->key && ranks->rank == 1)
        require(hy_config_set(config, how->key, how->value, HY_FROM_FLAG) == HY_OK);
    if (how->is_bound && ranks->rank == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        require(sched_setaffinity(0, sizeof one, &one) == 0);
    }
    hy_settings settings = *hy_config_settings(config);
    hy_team_options options = {.link = settings.ranks.transport,
                               .timeout = settings.ranks.rank_timeout,
                               .agreed = hy_settings_agreed(&settings)};
    hy_status status = hy_team_open(&options, &team);
    if (status == HY_OK) status = hy_team_fail(team, hy_rank_check(&settings));
    rig_keep(mine, status);
    if (mine->status == HY_OK) {
        hy_rank_settle(&settings, team);
        mine->number = settings.threads;
        mine->seconds = hy_control_timeout(team->control);
    }
    hy_team_close(team);
    hy_config_destroy(config);
}

START_TEST(ranks_that_agree_come_together_and_divide_the_cores) {
    static const run_of_rank how[] = {{0}, {.key = "threads", .value = "7"}};
    rig it = rig_start(2, join, &how[_i]);
    rig_wait(&it);
    int share = hy_machine_threads() / 2;
    for (int r = 0; r < 2; r++) {
        ck_assert_msg(it.results[r].status == HY_OK, "%s", it.results[r].message);
        ck_assert(it.results[r].seconds == 4);
        bool is_said = _i == 1 && r == 1;
        ck_assert_int_eq(it.results[r].number, is_said ? 7 : share < 1 ? 1 : share);
    }
    rig_free(&it);
}
END_TEST

START_TEST(a_rank_that_is_bound_elsewhere_shares_no_cores) {
    static const run_of_rank how = {.is_bound = true};
    int all = hy_machine_threads();
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || !CPU_ISSET(0, &set) || all < 2) return;
    rig it = rig_start(2, join, &how);
    rig_wait(&it);
    ck_assert_int_eq(it.results[0].number, 1);
    ck_assert_int_eq(it.results[1].number, all);
    rig_free(&it);
}
END_TEST

START_TEST(what_cannot_be_is_refused_on_every_rank) {
    static const struct {
        run_of_rank how;
        const char *words;
    } cases[] = {
        {{.key = "seed", .value = "2"}, "has different settings than rank 0"},
        {{.every = "data", .its_value = "-"}, "data is standard input (-)"},
        {{.every = "data", .its_value = "book.txt:0.5,-:0.5"}, "data is standard input (-)"},
        {{.every = "val_data", .its_value = "-"}, "val_data is standard input (-)"},
        {{.every = "eval_rows", .its_value = "a,-"}, "eval.eval_rows is standard input (-)"},
    };
    rig it = rig_start(2, join, &cases[_i].how);
    rig_wait(&it);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_int_eq(it.results[r].status, HY_ERR_INPUT);
        must_mention(&it, r, cases[_i].words);
    }
    rig_free(&it);
}
END_TEST

START_TEST(a_name_with_a_dash_is_not_standard_input) {
    static const run_of_rank how = {.every = "data", .its_value = "-book.txt,a-:0.5"};
    rig it = rig_start(2, join, &how);
    rig_wait(&it);
    ck_assert_msg(it.results[0].status == HY_OK, "%s", it.results[0].message);
    rig_free(&it);
}
END_TEST

/* ---- starting -------------------------------------------------------------------------------- */

typedef struct start_case {
    const char *set; /* variables, NAME=value with blanks between */
    int count;
    bool starts;
    const char *words; /* of a refusal; NULL: none */
} start_case;

#define TORCHRUN " LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
#define STEP "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_STEP_NODELIST=a SLURM_PROCID=0 "

static const start_case start_cases[] = {
    {"", 2, true, NULL},
    {"", 1, false, NULL},
    {"RANK=0 WORLD_SIZE=2" TORCHRUN, 2, false, NULL},
    {"RANK=0 WORLD_SIZE=8" TORCHRUN, 2, false,
     "2 ranks were requested, but torchrun started 8 (WORLD_SIZE is 8)"},
    {"RANK=0 WORLD_SIZE=1" TORCHRUN, 2, false, "torchrun started 1"},
    {"RANK=0 WORLD_SIZE=8", 2, false, "LOCAL_RANK is not"},
    {STEP "SLURM_NTASKS=1", 2, true, NULL}, /* a shell of an allocation */
    {STEP "SLURM_NTASKS=4", 2, false, "Slurm started 4 (SLURM_NTASKS is 4)"},
};

static void set_variables(const char *text) {
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strsep(&rest, " "));) {
        char *equals = strchr(word, '=');
        if (!equals) continue;
        *equals = 0;
        setenv(word, equals + 1, 1);
    }
}

START_TEST(ranks_are_started_unless_a_launcher_has_done_so) {
    const start_case *c = &start_cases[_i];
    char *argv[] = {"sh", "-c", "[ $HYBRID_RANKS = 2 ] && exit 5", NULL};
    hy_start_options options = {.count = c->count, .argv = argv};
    bool has_started = !c->starts;
    int code = -1;
    set_variables(c->set);
    if (c->words) {
        must_fail(hy_start_ranks(&options, &has_started, &code), HY_ERR_INPUT, c->words);
    } else {
        must(hy_start_ranks(&options, &has_started, &code));
        if (c->starts) ck_assert_int_eq(code, 5);
    }
    ck_assert_int_eq(has_started, c->starts);
}
END_TEST

START_TEST(a_process_knows_its_rank_and_who_started_it) {
    hy_rank_info who;
    must(hy_find_rank(&who));
    ck_assert_int_eq(who.count, 1);
    ck_assert_str_eq(who.launcher, "");
    set_variables(
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=2");
    must(hy_find_rank(&who));
    ck_assert_int_eq(who.rank, 5);
    ck_assert_int_eq(who.count, 8);
    ck_assert_int_eq(who.local_rank, 1);
    ck_assert_int_eq(who.local_count, 4);
    ck_assert_str_eq(who.launcher, "torchrun");
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks");
    TCase *c = tcase_create("ranks");
    tcase_add_loop_test(c, cards_are_dealt_out_and_cores_divided_unless_somebody_says_them, 0,
                        sizeof fits / sizeof fits[0]);
    tcase_add_loop_test(c, ranks_that_agree_come_together_and_divide_the_cores, 0, 2);
    tcase_add_test(c, a_rank_that_is_bound_elsewhere_shares_no_cores);
    tcase_add_loop_test(c, what_cannot_be_is_refused_on_every_rank, 0, 5);
    tcase_add_test(c, a_name_with_a_dash_is_not_standard_input);
    tcase_add_loop_test(c, ranks_are_started_unless_a_launcher_has_done_so, 0,
                        sizeof start_cases / sizeof start_cases[0]);
    tcase_add_test(c, a_process_knows_its_rank_and_who_started_it);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
