/* test_comm_link.c: exchanges over sockets, and their failures. */
#include "link_checks.h"

static hy_link *open_link(hy_control *c, const hy_link_options *options) {
    hy_link *link;
    require(hy_link_open_sockets(c, options, &link) == HY_OK);
    return link;
}

static void check_link(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)mine;
    hy_control *c = rig_open(ranks, 10);
    hy_link *link = open_link(c, user);
    require(strcmp(hy_link_name(link), "sockets") == 0);
    check_exchanges(link, 12, 700000);
    require(hy_control_barrier(c) == HY_OK);
    hy_link_destroy(link);
    hy_control_close(c);
}

START_TEST(exchanges_are_right_over_unix_sockets) { rig_run(_i, check_link, NULL); }
END_TEST

START_TEST(exchanges_are_right_over_tcp) {
    rig_run(_i, check_link, &(hy_link_options){.is_tcp = true});
}
END_TEST

static void exchange_large(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    uint64_t bytes = (uint64_t)24 << 20;
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    hy_control *c = rig_open(ranks, 10);
    hy_link *link = open_link(c, NULL);
    int peer = 1 - ranks->rank;
    fill_bytes(out, bytes, (uint64_t)ranks->rank);
    hy_transfer send = {.peer = peer, .data = out, .bytes = bytes};
    hy_transfer receive = {.peer = peer, .data = in, .bytes = bytes};
    /* More than any buffer, both ways at once. */
    require(hy_link_exchange(link, &send, 1, &receive, 1) == HY_OK);
    require(has_bytes(in, bytes, (uint64_t)peer));
    require(hy_link_bytes_sent(link) == bytes && hy_link_bytes_received(link) == bytes);
    require(hy_control_barrier(c) == HY_OK);
    hy_link_destroy(link);
    hy_control_close(c);
    free(out);
    free(in);
}

START_TEST(large_pieces_pass_each_other) { rig_run(2, exchange_large, NULL); }
END_TEST

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void exchange_wrong(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const uint64_t *sizes = user; /* what rank 1 sends, what rank 0 expects */
    uint8_t data[4096] = {0};
    hy_control *c = rig_open(ranks, 5);
    hy_link *link = open_link(c, NULL);
    hy_transfer piece = {.peer = 1 - ranks->rank % 2, .data = data, .bytes = 8};
    bool is_pair = ranks->rank < 2;
    require(hy_link_exchange(link, &piece, is_pair, &piece, is_pair) == HY_OK);
    require(hy_control_barrier(c) == HY_OK);
    piece.bytes = sizes[ranks->rank == 1 ? 0 : 1];
    hy_status status = HY_OK;
    if (ranks->rank == 0) status = hy_link_exchange(link, NULL, 0, &piece, 1);
    if (ranks->rank == 1) status = hy_link_exchange(link, &piece, 1, NULL, 0);
    if (status != HY_OK) status = hy_control_fail(c, status, hy_error_message());
    if (ranks->rank != 0) status = hy_control_barrier(c);
    rig_keep(mine, status);
    hy_link_destroy(link);
    hy_control_close(c);
}

START_TEST(sizes_that_differ_name_both_ranks) {
    static const uint64_t sizes[][2] = {{100, 200}, {200, 100}, {0, 1}, {4000, 0}};
    rig it = rig_start(3, exchange_wrong, sizes[_i]);
    char words[96];
    rig_wait(&it);
    snprintf(words, sizeof words, "rank 1 sends %d bytes, but rank 0 expects %d", (int)sizes[_i][0],
             (int)sizes[_i][1]);
    for (int r = 0; r < 3; r++) must_mention(&it, r, words);
    rig_free(&it);
}
END_TEST

static void exchange_for_ever(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_control *c = rig_open(ranks, *(const double *)user);
    hy_link *link = open_link(c, NULL);
    uint64_t bytes = 300000;
    char *out = calloc(1, bytes), *in = calloc(RIG_MOST, bytes);
    hy_status status = HY_OK;
    while (status == HY_OK) {
        hy_transfer sends[RIG_MOST], receives[RIG_MOST];
        for (int p = 0; p < ranks->count; p++) {
            sends[p] = (hy_transfer){.peer = p, .data = out, .bytes = bytes};
            receives[p] =
                (hy_transfer){.peer = p, .data = in + (uint64_t)p * bytes, .bytes = bytes};
        }
        atomic_fetch_add(&mine->stage, 1);
        status = hy_link_exchange(link, sends, ranks->count, receives, ranks->count);
    }
    rig_keep(mine, status);
    free(out);
    free(in);
    hy_link_destroy(link);
    hy_control_close(c);
}

START_TEST(a_rank_killed_in_an_exchange_is_named_by_all) {
    double timeout = 20;
    for (int i = 0; i < 10; i++) {
        int count = 2 + i % 3,
            victim = (int)hy_rng_below(9, HY_RNG_TEST, (uint64_t)i, (uint64_t)count);
        char name[32];
        rig it = rig_start(count, exchange_for_ever, &timeout);
        rig_wait_for_stage(&it, victim, 3);
        rig_sleep(0.01 * hy_rng_uniform(10, HY_RNG_TEST, (uint64_t)i));
        kill(it.pids[victim], SIGKILL);
        rig_wait_except(&it, 5, 0);
        snprintf(name, sizeof name, "rank %d (", victim);
        for (int r = 0; r < count; r++) {
            if (r != victim) must_mention(&it, r, name);
            if (r != victim) must_mention(&it, r, "is gone");
        }
        rig_free(&it);
    }
}
END_TEST

START_TEST(a_rank_stopped_in_an_exchange_is_named_after_the_timeout) {
    double timeout = 1;
    rig it = rig_start(3, exchange_for_ever, &timeout);
    rig_wait_for_stage(&it, 1, 3);
    kill(it.pids[1], SIGSTOP);
    rig_wait_except(&it, 5, 1u << 1);
    must_mention(&it, 0, "rank 1 (");
    must_mention(&it, 2, "has been silent for");
    rig_free(&it);
}
END_TEST

/* ---- an artificial rate ---------------------------------------------------------------------- */

enum { SLOW_BYTES = 2000000 };

/* Two ranks over a slow link, with something to send and room to receive it. */
typedef struct slow_rank {
    hy_control *control;
    hy_link *link;
    char *out, *in; /* (SLOW_BYTES) */
    int peer;
} slow_rank;

static slow_rank begin_slowly(const hy_ranks *ranks, const void *options) {
    slow_rank s = {.control = rig_open(ranks, 5),
                   .out = calloc(1, SLOW_BYTES),
                   .in = calloc(1, SLOW_BYTES),
                   .peer = 1 - ranks->rank};
    s.link = open_link(s.control, options);
    require(hy_control_barrier(s.control) == HY_OK);
    return s;
}

static void send_slowly(slow_rank *s, uint64_t sent, uint64_t got) {
    require(hy_link_exchange(s->link, &(hy_transfer){s->peer, s->out, sent}, 1,
                             &(hy_transfer){s->peer, s->in, got}, 1) == HY_OK);
}

static void end_slowly(slow_rank *s) {
    require(hy_control_barrier(s->control) == HY_OK);
    hy_link_destroy(s->link);
    hy_control_close(s->control);
    free(s->out);
    free(s->in);
}

static void exchange_slowly(const hy_ranks *ranks, rig_result *mine, const void *user) {
    slow_rank s = begin_slowly(ranks, user);
    double began = hy_clock();
    send_slowly(&s, SLOW_BYTES, SLOW_BYTES);
    mine->seconds = hy_clock() - began;
    end_slowly(&s);
}

START_TEST(an_artificial_rate_holds) {
    rig it =
        rig_start(2, exchange_slowly, &(hy_link_options){.bytes_per_second = 10e6, .latency = 0.1});
    rig_wait(&it);
    for (int r = 0; r < 2; r++) {
        double seconds = it.results[r].seconds;
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_msg(seconds > 0.28 && seconds < 1.5, "%.3f s", seconds); /* 0.1 + 0.2 */
    }
    rig_free(&it);
}
END_TEST

/* Exchanges one behind the other take as long as one of all their bytes. */
static void exchange_in_a_queue(const hy_ranks *ranks, rig_result *mine, const void *user) {
    slow_rank s = begin_slowly(ranks, user);
    double began = hy_clock();
    for (int i = 0; i < 60; i++) send_slowly(&s, 50000, 50000);
    mine->seconds = hy_clock() - began;
    end_slowly(&s);
}

/* While it waits for the other side, a wire gathers nothing that could be sent at once later. */
static void exchange_after_a_late_one(const hy_ranks *ranks, rig_result *mine, const void *user) {
    slow_rank s = begin_slowly(ranks, user);
    if (ranks->rank == 1) usleep(300000);
    send_slowly(&s, 1, 1);
    double began = hy_clock();
    send_slowly(&s, ranks->rank == 0 ? SLOW_BYTES : 1, ranks->rank == 0 ? 1 : SLOW_BYTES);
    mine->seconds = hy_clock() - began;
    end_slowly(&s);
}

START_TEST(an_artificial_rate_is_that_of_a_wire) {
    static void (*const bodies[])(const hy_ranks *, rig_result *,
                                  const void *) = {exchange_in_a_queue, exchange_after_a_late_one};
    static const double seconds[] = {0.3, 0.2};
    rig it = rig_start(2, bodies[_i], &(hy_link_options){.bytes_per_second = 10e6});
    rig_wait(&it);
    ck_assert(it.codes[0] == 0 && it.codes[1] == 0);
    double took = it.results[_i == 0 ? 1 : 0].seconds, least = 0.98 * seconds[_i];
    ck_assert_msg(took > least && took < 3 * seconds[_i], "%.3f s", took);
    rig_free(&it);
}
END_TEST

static void refuse_nonsense(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 5);
    hy_link *link = open_link(c, NULL);
    char byte = 0;
    require(hy_link_exchange(link, &(hy_transfer){2, &byte, 1}, 1, NULL, 0) == HY_ERR_INPUT);
    require(hy_link_exchange(link, &(hy_transfer){ranks->rank, &byte, 1}, 1, NULL, 0) ==
            HY_ERR_INTERNAL);
    require(hy_control_barrier(c) == HY_OK);
    hy_link_destroy(link);
    hy_control_close(c);
}

START_TEST(nonsense_is_refused_and_changes_nothing) { rig_run(2, refuse_nonsense, NULL); }
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_link");
    TCase *c = tcase_create("link");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, exchanges_are_right_over_unix_sockets, 1, 6);
    tcase_add_loop_test(c, exchanges_are_right_over_tcp, 2, 4);
    tcase_add_test(c, large_pieces_pass_each_other);
    tcase_add_loop_test(c, sizes_that_differ_name_both_ranks, 0, 4);
    tcase_add_test(c, a_rank_killed_in_an_exchange_is_named_by_all);
    tcase_add_test(c, a_rank_stopped_in_an_exchange_is_named_after_the_timeout);
    tcase_add_test(c, an_artificial_rate_holds);
    tcase_add_loop_test(c, an_artificial_rate_is_that_of_a_wire, 0, 2);
    tcase_add_test(c, nonsense_is_refused_and_changes_nothing);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
