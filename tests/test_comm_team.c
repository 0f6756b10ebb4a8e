/* test_comm_team.c: the ranks of a run from the environment to an open link, and how they fail
 * together.
 *
 * Ranks are forked processes with the variables of our launcher. If mpirun or libhybrid_mpi.so is
 * missing, cases under mpirun are skipped with a message. */
#include "link_checks.h"
#include "mpi_rig.h"
#include "rank_variables.h"

#include "comm/link_mpi.h"
#include "comm/team.h"

/* Notes that a rank got, one behind the other. */
typedef struct notes {
    char text[2048];
} notes;

static void keep_note(void *user, hy_message_level level, const char *text) {
    notes *n = user;
    size_t used = strlen(n->text);
    (void)level;
    snprintf(n->text + used, sizeof n->text - used, "%s\n", text);
}

static hy_team_options with(hy_link_choice link) {
    return (hy_team_options){.link = link, .timeout = 3, .agreed = 7};
}

/* ---- opening --------------------------------------------------------------------------------- */

START_TEST(a_process_alone_has_no_team) {
    static const hy_link_choice links[] = {HY_LINK_AUTO, HY_LINK_SOCKETS, HY_LINK_MPI};
    for (int i = 0; i < 3; i++) {
        hy_team_options options = with(links[i]);
        hy_team *team = (hy_team *)&options;
        must(hy_team_open(&options, &team));
        ck_assert_ptr_null(team);
    }
    hy_fail(HY_ERR_IO, "the disk is full");
    ck_assert_int_eq(hy_team_fail(NULL, HY_ERR_IO), HY_ERR_IO);
    hy_team_close(NULL);
    ck_assert_str_eq(hy_error_message(), "the disk is full");
}
END_TEST

/* Which NCCL itself is opened for later, when there is a card. */
START_TEST(a_process_alone_that_asks_for_nccl_is_a_team_of_one) {
    hy_team_options options = with(HY_LINK_NCCL);
    hy_team *team;
    must(hy_team_open(&options, &team));
    ck_assert_ptr_nonnull(team);
    ck_assert_int_eq(team->who.count, 1);
    ck_assert_int_eq(team->core_sharers, 1);
    char from = 'a', to = 'b';
    must(
        hy_link_exchange(team->link, &(hy_transfer){0, &from, 1}, 1, &(hy_transfer){0, &to, 1}, 1));
    ck_assert_int_eq(to, 'a');
    hy_team_close(team);
}
END_TEST

static void work_together(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const hy_link_choice *link = user;
    hy_team_options options = with(*link);
    hy_team *team;
    (void)mine;
    set_rank_variables(ranks);
    require(hy_team_open(&options, &team) == HY_OK && team);
    require(team->who.rank == ranks->rank && team->who.count == ranks->count);
    require(team->local_rank == ranks->rank && team->local_count == ranks->count);
    require(team->core_sharers == ranks->count);
    require(strcmp(team->link_name, "sockets") == 0);
    require(hy_control_timeout(team->control) == 3);
    check_exchanges(team->link, 4, 100000);
    require(hy_team_fail(team, HY_OK) == HY_OK);
    require(hy_team_fail(team, HY_STOPPED) == HY_STOPPED);
    require(hy_control_barrier(team->control) == HY_OK);
    hy_team_close(team);
}

START_TEST(ranks_of_our_launcher_are_connected_by_sockets) {
    static const hy_link_choice links[] = {HY_LINK_AUTO, HY_LINK_SOCKETS};
    rig_run(2 + _i, work_together, &links[_i]);
}
END_TEST

static void open_slowly(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_team_options options = with(HY_LINK_AUTO);
    hy_team *team;
    char bytes[50000] = "";
    set_rank_variables(ranks);
    require(setenv("HYBRID_TEST_LINK", user, 1) == 0);
    rig_keep(mine, hy_team_open(&options, &team));
    if (mine->status != HY_OK) return;
    int other = 1 - ranks->rank;
    double began = hy_clock();
    hy_transfer out = {other, bytes, sizeof bytes}, in = {other, bytes, sizeof bytes};
    require(hy_link_exchange(team->link, &out, 1, &in, 1) == HY_OK);
    mine->seconds = hy_clock() - began;
    hy_team_close(team);
}

START_TEST(a_variable_makes_the_link_slow) {
    rig it = rig_start(2, open_slowly, "500e3,0.2"); /* 0.1 s and 0.2 s */
    rig_wait(&it);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(it.results[r].status, HY_OK);
        ck_assert_msg(it.results[r].seconds > 0.25, "%.3f s", it.results[r].seconds);
    }
    rig_free(&it);
}
END_TEST

START_TEST(a_wrong_value_of_that_variable_is_named) {
    static const char *const values[] = {"fast", "1e6", "1e6,-1", "1e6,0.1,2", "nan,0"};
    rig it = rig_start(2, open_slowly, values[_i]);
    rig_wait(&it);
    must_mention(&it, 0, "HYBRID_TEST_LINK is \"");
    must_mention(&it, 1, values[_i]);
    ck_assert_int_eq(it.results[0].status, HY_ERR_INPUT);
    rig_free(&it);
}
END_TEST

/* ---- what is not there ----------------------------------------------------------------------- */

typedef struct unlike {
    hy_link_choice link;
    const char *variables[2]; /* name and value, of rank 1 alone */
    bool is_other;            /* rank 1 has other settings */
    bool is_late;             /* rank 2 comes when rank 0 has judged */
} unlike;

static void open_unlike(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const unlike *how = user;
    hy_team_options options = with(how->link);
    hy_team *team;
    set_rank_variables(ranks);
    if (ranks->rank == 1 && how->is_other) options.agreed = 8;
    if (ranks->rank == 1 && how->variables[0])
        require(setenv(how->variables[0], how->variables[1], 1) == 0);
    if (ranks->rank == 2 && how->is_late) rig_sleep(0.5);
    double began = hy_clock();
    rig_keep(mine, hy_team_open(&options, &team));
    mine->seconds = hy_clock() - began;
    require(mine->status == HY_OK || !team);
    hy_team_close(team);
}

static rig open_all_unlike(int count, const unlike *how) {
    rig it = rig_start(count, open_unlike, how);
    rig_wait(&it);
    for (int r = 0; r < count; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_int_ne(it.results[r].status, HY_OK);
    }
    return it;
}

START_TEST(other_settings_on_a_rank_are_refused_everywhere) {
    unlike how = {.link = HY_LINK_AUTO, .is_other = true, .is_late = _i == 1};
    rig it = open_all_unlike(3, &how);
    must_mention(&it, 0, "has different settings than rank 0");
    must_mention(&it, 1, "has different settings than rank 0");
    must_mention(&it, 2, "has different settings than rank 0");
    rig_free(&it);
}
END_TEST

/* Nobody starts MPI, which would wait for the rank that cannot. */
START_TEST(mpi_that_one_rank_lacks_is_named_with_what_to_install) {
    unlike how = {.link = HY_LINK_MPI,
                  .variables = {"HYBRID_MPI_LIBRARY", "/no/such/libhybrid_mpi.so"}};
    require(setenv("HYBRID_MPI_LIBRARY", mpi_library(), 1) == 0);
    rig it = open_all_unlike(3, &how);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.results[r].status, HY_ERR_DEVICE);
        ck_assert_msg(it.results[r].seconds < 3, "%.1f s", it.results[r].seconds);
        must_mention(&it, r, "rank 1 (");
        must_mention(&it, r, "openmpi-bin");
    }
    rig_free(&it);
}
END_TEST

START_TEST(mpi_that_is_nowhere_is_named_with_what_to_install) {
    unlike how = {.link = HY_LINK_MPI};
    require(setenv("HYBRID_MPI_LIBRARY", "/no/such/libhybrid_mpi.so", 1) == 0);
    rig it = open_all_unlike(2, &how);
    must_mention(&it, 0, "/no/such/libhybrid_mpi.so");
    must_mention(&it, 1, "openmpi-bin");
    rig_free(&it);
}
END_TEST

/* ---- failing together ------------------------------------------------------------------------ */

static void fail_on_rank_1(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_team_options options = with(HY_LINK_AUTO);
    hy_team *team;
    char byte = 0;
    (void)user;
    set_rank_variables(ranks);
    require(hy_team_open(&options, &team) == HY_OK);
    hy_status status = HY_OK;
    if (ranks->rank == 1)
        status = hy_fail(HY_ERR_MEMORY, "no memory for row 3");
    else if (ranks->rank == 0)
        status = hy_control_barrier(team->control);
    else
        status = hy_link_exchange(team->link, NULL, 0, &(hy_transfer){1, &byte, 1}, 1);
    status = hy_team_fail(team, status);
    hy_team_close(team);
    rig_keep(mine, status); /* closing leaves the message */
}

START_TEST(the_first_failure_is_everybodys) {
    rig it = rig_start(3, fail_on_rank_1, NULL);
    rig_wait(&it);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.results[r].status, HY_ERR_MEMORY);
        must_mention(&it, r, "rank 1 (");
        must_mention(&it, r, "no memory for row 3");
    }
    rig_free(&it);
}
END_TEST

/* ---- under mpirun ---------------------------------------------------------------------------- */

/* "auto" and "asked" must have MPI; "lacking": rank 1 has no library; "slow": sockets are
 * slowed. */
static int as_rank(const char *name) {
    notes said = {""};
    bool lacks = strcmp(name, "lacking") == 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    hy_team_options options = with(strcmp(name, "asked") == 0 ? HY_LINK_MPI : HY_LINK_AUTO);
    hy_team *team;
    options.observer = (hy_observer){.user = &said, .on_message = keep_note};
    if (lacks && rank && strcmp(rank, "1") == 0) setenv("HYBRID_MPI_LIBRARY", "/no/such/file", 1);
    if (strcmp(name, "slow") == 0) setenv("HYBRID_TEST_LINK", "0,0.001", 1);
    require(hy_team_open(&options, &team) == HY_OK && team);
    bool is_mpi = strcmp(name, "auto") == 0 || strcmp(name, "asked") == 0;
    require(strcmp(team->link_name, is_mpi ? "MPI" : "sockets") == 0);
    require(!lacks || strstr(said.text, "ranks are connected by sockets: "));
    require(!lacks || team->who.rank == 1 || strstr(said.text, "rank 1 cannot use MPI"));
    check_exchanges(team->link, 3, 50000);
    hy_team_close(team);
    return 0;
}

START_TEST(ranks_of_mpirun_use_mpi_where_all_can) {
    static const char *const names[] = {"auto", "asked", "lacking", "slow"};
    hy_text output = {0};
    int code = run_under_mpi(3, names[_i], &output);
    ck_assert_msg(code == 0, "%s: exit code %d: %s", names[_i], code, hy_text_string(&output));
    hy_text_free(&output);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_team");
    TCase *c = tcase_create("team");
    tcase_add_test(c, a_process_alone_has_no_team);
    tcase_add_test(c, a_process_alone_that_asks_for_nccl_is_a_team_of_one);
    tcase_add_loop_test(c, ranks_of_our_launcher_are_connected_by_sockets, 0, 2);
    tcase_add_test(c, a_variable_makes_the_link_slow);
    tcase_add_loop_test(c, a_wrong_value_of_that_variable_is_named, 0, 5);
    tcase_add_loop_test(c, other_settings_on_a_rank_are_refused_everywhere, 0, 2);
    tcase_add_test(c, mpi_that_is_nowhere_is_named_with_what_to_install);
    tcase_add_test(c, the_first_failure_is_everybodys);
    if (has_mpi()) {
        tcase_add_test(c, mpi_that_one_rank_lacks_is_named_with_what_to_install);
        tcase_add_loop_test(c, ranks_of_mpirun_use_mpi_where_all_can, 0, 4);
    } else {
        say_mpi_is_missing();
    }
    suite_add_tcase(s, c);
    return s;
}

int main(int argc, char **argv) { return argc > 1 ? as_rank(argv[1]) : run_suite(suite()); }
