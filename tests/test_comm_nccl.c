/* test_comm_nccl.c: exchanges through NCCL's interface, over a stand-in for the library
 * (standin/nccl.c). */
#include "link_checks.h"

#include <dlfcn.h>

#include "comm/nccl.h"
#include "standin_rig.h"

static int wait_for_stream(void) {
    int (*wait)(void);
    void *library = dlopen(getenv("HYBRID_NCCL"), RTLD_NOW);
    require(library != NULL);
    *(void **)&wait = dlsym(library, "standin_wait");
    require(wait != NULL);
    return wait();
}

static char folder[256];

static void enter_folder(void) {
    use_standin("libnccl.so");
    setenv("STANDIN_NCCL_FOLDER", temp_folder(folder), 1);
}

static void leave_folder(void) { remove_folder(folder); }

/* ---- exchanges ------------------------------------------------------------------------------- */

static void exchange_round(hy_nccl *nccl, int rank, int n, int round) {
    hy_transfer sends[RIG_MOST * PIECES], receives[RIG_MOST * PIECES];
    int send_count = 0, receive_count = 0;
    for (int p = 0; p < n; p++) {
        for (int i = 0; i < piece_count(round, rank, p); i++) {
            uint64_t number = piece_number(round, rank, p, i), bytes = piece_bytes(number, 300000);
            sends[send_count] = (hy_transfer){.peer = p, .data = malloc(bytes + 1), .bytes = bytes};
            fill_bytes(sends[send_count++].data, bytes, number);
        }
        for (int i = 0; i < piece_count(round, p, rank); i++) {
            uint64_t bytes = piece_bytes(piece_number(round, p, rank, i), 300000);
            receives[receive_count++] =
                (hy_transfer){.peer = p, .data = calloc(1, bytes + 1), .bytes = bytes};
        }
    }
    require(hy_nccl_exchange(nccl, sends, send_count, receives, receive_count, NULL) == HY_OK);
    require(wait_for_stream() == 0);
    require(hy_nccl_check(nccl) == HY_OK);
    for (int p = 0, at = 0; p < n; p++) {
        for (int i = 0; i < piece_count(round, p, rank); i++, at++)
            require(
                has_bytes(receives[at].data, receives[at].bytes, piece_number(round, p, rank, i)));
    }
    for (int i = 0; i < send_count; i++) free(sends[i].data);
    for (int i = 0; i < receive_count; i++) free(receives[i].data);
}

static void exchange_much(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 10);
    hy_nccl *nccl;
    require(hy_nccl_open(c, &nccl) == HY_OK);
    require(strcmp(hy_nccl_version(nccl), "2.21.5") == 0);
    for (int round = 0; round < 8; round++) exchange_round(nccl, ranks->rank, ranks->count, round);
    double sums[2] = {(double)hy_nccl_bytes_sent(nccl), (double)hy_nccl_bytes_received(nccl)};
    double all[2 * RIG_MOST], sent = 0, received = 0;
    require(hy_control_gather(c, sums, 2, all) == HY_OK);
    for (int r = 0; r < ranks->count; r++) {
        sent += all[2 * r];
        received += all[2 * r + 1];
    }
    require(sent == received && (ranks->count == 1 || sent > 0));
    hy_nccl_close(nccl);
    hy_control_close(c);
}

START_TEST(exchanges_are_right) { rig_run(_i, exchange_much, NULL); }
END_TEST

/* Two exchanges on the stream, one behind the other, without a look in between. */
static void exchange_twice(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 10);
    hy_nccl *nccl;
    require(hy_nccl_open(c, &nccl) == HY_OK);
    int peer = 1 - ranks->rank;
    uint64_t bytes = 1 << 20;
    uint8_t *out = malloc(bytes), *first = malloc(bytes), *second = malloc(bytes);
    fill_bytes(out, bytes, (uint64_t)ranks->rank);
    require(hy_nccl_exchange(nccl, &(hy_transfer){peer, out, bytes}, 1,
                             &(hy_transfer){peer, first, bytes}, 1, NULL) == HY_OK);
    require(hy_nccl_exchange(nccl, &(hy_transfer){peer, out, bytes / 2}, 1,
                             &(hy_transfer){peer, second, bytes / 2}, 1, NULL) == HY_OK);
    require(wait_for_stream() == 0);
    require(has_bytes(first, bytes, (uint64_t)peer) &&
            has_bytes(second, bytes / 2, (uint64_t)peer));
    hy_nccl_close(nccl);
    hy_control_close(c);
    free(out);
    free(first);
    free(second);
}

START_TEST(exchanges_follow_each_other_on_a_stream) { rig_run(2, exchange_twice, NULL); }
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

typedef enum trouble { KILLED, STOPPED, SPEAKS } trouble;

static void wait_for_a_dead_rank(const hy_ranks *ranks, rig_result *mine, const void *user) {
    trouble kind = *(const trouble *)user;
    hy_control *c = rig_open(ranks, 1);
    hy_nccl *nccl;
    char byte[8] = {0};
    require(hy_nccl_open(c, &nccl) == HY_OK);
    int next = (ranks->rank + 1) % ranks->count, last = (ranks->rank + 2) % ranks->count;
    require(hy_nccl_exchange(nccl, &(hy_transfer){next, byte, 4}, 1,
                             &(hy_transfer){last, byte + 4, 4}, 1, NULL) == HY_OK);
    require(wait_for_stream() == 0);
    require(hy_control_barrier(c) == HY_OK);
    atomic_store(&mine->stage, 1);
    if (ranks->rank == 1 && kind == SPEAKS) {
        rig_keep(mine, hy_control_fail(c, HY_ERR_NUMERIC, "enough"));
    } else if (ranks->rank == 1) {
        rig_sleep(20);
    } else {
        /* Rank 1 never sends: the stream stands still until somebody aborts. */
        hy_status status = hy_nccl_exchange(nccl, NULL, 0, &(hy_transfer){1, byte, 8}, 1, NULL);
        if (status == HY_OK) require(wait_for_stream() == 1);
        rig_keep(mine, hy_nccl_check(nccl));
        require(hy_nccl_exchange(nccl, NULL, 0, &(hy_transfer){1, byte, 8}, 1, NULL) ==
                mine->status);
    }
    hy_nccl_close(nccl);
    hy_control_close(c);
}

START_TEST(a_rank_that_waits_for_a_dead_rank_is_released_with_an_error) {
    trouble kind = (trouble)_i;
    rig it = rig_start(3, wait_for_a_dead_rank, &kind);
    for (int r = 0; r < 3; r++) rig_wait_for_stage(&it, r, 1);
    if (kind == KILLED) kill(it.pids[1], SIGKILL);
    if (kind == STOPPED) kill(it.pids[1], SIGSTOP);
    rig_wait_except(&it, 8, kind == STOPPED ? 1u << 1 : 0);
    static const char *const words[] = {"is gone", "has been silent", "enough"};
    for (int r = 0; r < 3; r += 2) {
        ck_assert_int_eq(it.codes[r], 0);
        must_mention(&it, r, "rank 1 (");
        must_mention(&it, r, words[kind]);
    }
    rig_free(&it);
}
END_TEST

/* One rank never opens: the others wait inside the library. */
static void open_without_one(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user;
    hy_control *c = rig_open(ranks, 5);
    hy_nccl *nccl;
    if (ranks->rank == 2) {
        char id[128];
        double version = 22105, all[RIG_MOST];
        require(hy_control_gather(c, &version, 1, all) == HY_OK);
        require(hy_control_share(c, id, sizeof id, 0) == HY_OK);
        rig_sleep(0.2);
        rig_keep(mine, hy_control_fail(c, HY_ERR_DEVICE, "no device"));
    } else {
        rig_keep(mine, hy_nccl_open(c, &nccl));
    }
    hy_control_close(c);
}

START_TEST(a_rank_that_waits_while_connecting_is_released_with_an_error) {
    rig it = rig_start(3, open_without_one, NULL);
    rig_wait_except(&it, 5, 0);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        must_mention(&it, r, "rank 2 (");
        must_mention(&it, r, "no device");
    }
    rig_free(&it);
}
END_TEST

/* ---- libraries that are not what they should be ---------------------------------------------- */

static void open_wrong(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user;
    hy_nccl *nccl;
    hy_control *c = rig_open(ranks, 5);
    const char *odd = getenv("ODD_VERSION");
    if (odd && ranks->rank == 1) setenv("STANDIN_NCCL_VERSION", odd, 1);
    rig_keep(mine, hy_nccl_open(c, &nccl));
    require(nccl == NULL);
    hy_control_close(c);
}

static void expect_refusal(const char *first, const char *second) {
    rig it = rig_start(2, open_wrong, NULL);
    rig_wait(&it);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        must_mention(&it, r, first);
        must_mention(&it, r, second);
        ck_assert_int_eq(it.results[r].status, HY_ERR_DEVICE);
    }
    rig_free(&it);
}

START_TEST(a_library_that_does_not_do_is_named) {
    setenv("STANDIN_NCCL_VERSION", "21003", 1);
    expect_refusal("the NCCL version is 2.10", "expected 2.14 or newer");
    setenv("STANDIN_NCCL_VERSION", "2708", 1);
    expect_refusal("the NCCL version is 2.7", "expected 2.14 or newer");
    unsetenv("STANDIN_NCCL_VERSION");
    setenv("ODD_VERSION", "21803", 1);
    expect_refusal("rank 1 has NCCL 2.18.3", "rank 0 has NCCL 2.21.5");
    unsetenv("ODD_VERSION");
    use_standin("libnccl_without_recv.so");
    expect_refusal("has no function ncclRecv", "2.14 or newer");
    setenv("HYBRID_NCCL", "/no/such/libnccl.so", 1);
    expect_refusal("HYBRID_NCCL", "/no/such/libnccl.so");
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_nccl");
    TCase *c = tcase_create("nccl");
    tcase_add_checked_fixture(c, enter_folder, leave_folder);
    tcase_add_loop_test(c, exchanges_are_right, 1, 5);
    tcase_add_test(c, exchanges_follow_each_other_on_a_stream);
    tcase_add_loop_test(c, a_rank_that_waits_for_a_dead_rank_is_released_with_an_error, 0, 3);
    tcase_add_test(c, a_rank_that_waits_while_connecting_is_released_with_an_error);
    tcase_add_test(c, a_library_that_does_not_do_is_named);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
