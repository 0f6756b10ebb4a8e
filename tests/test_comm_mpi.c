/* test_comm_mpi.c: ranks started by mpirun: their numbers, and a link over MPI.
 *
 * The program starts itself under mpirun (mpi_rig.h), as "test_comm_mpi CASE". */
#include "link_checks.h"
#include "mpi_rig.h"

#include "comm/link_mpi.h"

/* ---- as a rank ------------------------------------------------------------------------------- */

static void open_all(hy_ranks *ranks, hy_control **c, hy_link **link) {
    require(hy_ranks_find(ranks) == HY_OK);
    require(ranks->source == HY_RANKS_OPENMPI || ranks->source == HY_RANKS_PMI);
    require(hy_mpi_find_address(ranks) == HY_OK);
    *c = rig_open(ranks, 5);
    require(hy_link_open_mpi(*c, link) == HY_OK);
    require(strcmp(hy_link_name(*link), "MPI") == 0);
}

static int check_everything(bool forgets_address) {
    hy_ranks ranks;
    hy_control *c;
    hy_link *link;
    if (forgets_address) {
        /* As on several machines, where MPI alone knows where rank 0 is. */
        require(hy_ranks_find(&ranks) == HY_OK);
        ranks.address[0] = 0;
        require(hy_control_open(&ranks, NULL, &c) == HY_ERR_INPUT);
        require(hy_mpi_find_address(&ranks) == HY_OK && ranks.address[0]);
        c = rig_open(&ranks, 5);
        require(hy_link_open_mpi(c, &link) == HY_OK);
    } else {
        open_all(&ranks, &c, &link);
        check_exchanges(link, 10, 300000);
    }
    require(hy_control_barrier(c) == HY_OK);
    hy_link_destroy(link);
    hy_mpi_finish(false);
    hy_control_close(c);
    return 0;
}

/* Ends like a program whose run failed. */
static int give_up(hy_control *c, hy_link *link, hy_status status) {
    if (status != HY_OK)
        fprintf(stderr, "rank %d failed: %s\n", hy_control_rank(c), hy_error_message());
    hy_link_destroy(link);
    hy_mpi_finish(status != HY_OK);
    hy_control_close(c);
    return status == HY_OK ? 0 : 1;
}

static int wait_for_one_that_fails(void) {
    hy_ranks ranks;
    hy_control *c;
    hy_link *link;
    char byte = 0;
    open_all(&ranks, &c, &link);
    if (ranks.rank == 1) {
        rig_sleep(0.2);
        hy_status status = hy_control_fail(c, HY_ERR_NUMERIC, "the loss is not a number");
        rig_sleep(0.5); /* mpirun ends all when the first does; the others want to print */
        return give_up(c, link, status);
    }
    return give_up(c, link, hy_link_exchange(link, NULL, 0, &(hy_transfer){1, &byte, 1}, 1));
}

static int send_too_little(bool sends_more) {
    hy_ranks ranks;
    hy_control *c;
    hy_link *link;
    char bytes[64] = "";
    open_all(&ranks, &c, &link);
    hy_transfer sent = {0, bytes, sends_more ? 40 : 8}, expected = {1, bytes, 16};
    hy_status status = ranks.rank == 0 ? hy_link_exchange(link, NULL, 0, &expected, 1)
                                       : hy_link_exchange(link, &sent, 1, NULL, 0);
    if (status == HY_OK)
        status = hy_control_barrier(c);
    else
        status = hy_control_fail(c, status, hy_error_message());
    rig_sleep(0.3);
    return give_up(c, link, status);
}

static int as_rank(const char *name) {
    if (strcmp(name, "everything") == 0) return check_everything(false);
    if (strcmp(name, "address") == 0) return check_everything(true);
    if (strcmp(name, "fails") == 0) return wait_for_one_that_fails();
    if (strcmp(name, "less") == 0) return send_too_little(false);
    if (strcmp(name, "more") == 0) return send_too_little(true);
    return 2;
}

/* ---- as a test ------------------------------------------------------------------------------- */

START_TEST(exchanges_and_sums_are_right_over_mpi) {
    hy_text output = {0};
    int code = run_under_mpi(_i, "everything", &output);
    ck_assert_msg(code == 0, "exit code %d: %s", code, hy_text_string(&output));
    hy_text_free(&output);
}
END_TEST

START_TEST(mpi_gives_the_address_of_rank_0) {
    hy_text output = {0};
    int code = run_under_mpi(2, "address", &output);
    ck_assert_msg(code == 0, "exit code %d: %s", code, hy_text_string(&output));
    hy_text_free(&output);
}
END_TEST

static void must_print(const hy_text *output, const char *words) {
    ck_assert_msg(strstr(hy_text_string(output), words) != NULL, "lacks \"%s\": %s", words,
                  hy_text_string(output));
}

START_TEST(a_rank_that_waits_in_mpi_for_a_failed_rank_gets_an_error) {
    hy_text output = {0};
    ck_assert_int_eq(run_under_mpi(3, "fails", &output), 1);
    must_print(&output, "rank 0 failed: rank 1 (");
    must_print(&output, "rank 2 failed: rank 1 (");
    must_print(&output, "the loss is not a number");
    hy_text_free(&output);
}
END_TEST

START_TEST(sizes_that_differ_are_named) {
    hy_text output = {0};
    ck_assert_int_eq(run_under_mpi(2, "less", &output), 1);
    must_print(&output, "rank 1 sends 8 bytes, but rank 0 expects 16");
    hy_text_clear(&output);
    ck_assert_int_eq(run_under_mpi(2, "more", &output), 1);
    must_print(&output, "rank 1 sends more bytes than the 16 that rank 0 expects");
    hy_text_free(&output);
}
END_TEST

START_TEST(a_missing_shared_object_is_named) {
    hy_control *c;
    hy_link *link;
    hy_ranks alone = {.count = 1, .local_count = 1};
    must(hy_control_open(&alone, NULL, &c));
    setenv("HYBRID_MPI_LIBRARY", "/no/such/libhybrid_mpi.so", 1);
    must_fail(hy_link_open_mpi(c, &link), HY_ERR_DEVICE, "/no/such/libhybrid_mpi.so");
    must_fail(hy_link_open_mpi(c, &link), HY_ERR_DEVICE, "openmpi-bin");
    must_fail(hy_link_open_mpi(c, &link), HY_ERR_DEVICE, "sockets work without");
    setenv("HYBRID_MPI_LIBRARY", "libm.so.6", 1);
    must_fail(hy_link_open_mpi(c, &link), HY_ERR_DEVICE, "another build");
    hy_mpi_finish(false); /* nothing was started */
    hy_control_close(c);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_mpi");
    TCase *c = tcase_create("mpi");
    tcase_add_test(c, a_missing_shared_object_is_named);
    if (has_mpi()) {
        tcase_add_loop_test(c, exchanges_and_sums_are_right_over_mpi, 2, 5);
        tcase_add_test(c, mpi_gives_the_address_of_rank_0);
        tcase_add_test(c, a_rank_that_waits_in_mpi_for_a_failed_rank_gets_an_error);
        tcase_add_test(c, sizes_that_differ_are_named);
    } else {
        say_mpi_is_missing();
    }
    suite_add_tcase(s, c);
    return s;
}

int main(int argc, char **argv) { return argc > 1 ? as_rank(argv[1]) : run_suite(suite()); }
