/* test_comm_control.c: ranks find each other, decide together, and notice a lost rank. */
#include "comm_rig.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "comm/wire.h"

#define SHORT 1.2 /* seconds of silence that count as lost, where a test waits for that */

/* ---- coming together, and calls -------------------------------------------------------------- */

static void call_everything(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 10);
    int n = ranks->count, local_rank, local_count;
    require(hy_control_rank(c) == ranks->rank && hy_control_count(c) == n);
    hy_control_local(c, &local_rank, &local_count);
    require(local_rank == ranks->rank && local_count == n);
    require(hy_control_member(c, ranks->rank)->pid == getpid());
    for (int round = 0; round < 50; round++) {
        double numbers[3] = {ranks->rank, round, 0.1 * ranks->rank}, all[3 * RIG_MOST];
        require(hy_control_gather(c, numbers, 3, all) == HY_OK);
        for (int r = 0; r < n; r++)
            require(all[3 * r] == r && all[3 * r + 1] == round && all[3 * r + 2] == 0.1 * r);
        int32_t root = round % n;
        char word[64] = "";
        snprintf(word, sizeof word, "from %d in %d", ranks->rank, round);
        require(hy_control_share(c, word, sizeof word, root) == HY_OK);
        char expected[64];
        snprintf(expected, sizeof expected, "from %d in %d", root, round);
        require(strcmp(word, expected) == 0);
        require(hy_control_barrier(c) == HY_OK);
        require(hy_control_gather(c, NULL, 0, NULL) == HY_OK);
    }
    require(hy_control_check(c) == HY_OK && hy_control_failed_rank(c) == -1);
    hy_control_close(c);
}

START_TEST(one_to_five_ranks_decide_together) { rig_run(_i, call_everything, NULL); }
END_TEST

static void share_much(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    size_t size = (size_t)20 << 20;
    uint8_t *data = malloc(size);
    hy_control *c = rig_open(ranks, 10);
    for (size_t i = 0; i < size; i++) data[i] = ranks->rank == 1 ? (uint8_t)(i * 31 >> 3) : 0;
    require(hy_control_share(c, data, size, 1) == HY_OK);
    for (size_t i = 0; i < size; i++) require(data[i] == (uint8_t)(i * 31 >> 3));
    require(hy_control_share(c, data, (size_t)65 << 20, 1) == HY_ERR_INPUT);
    require(hy_control_share(c, data, 1, 3) == HY_ERR_INPUT);
    hy_control_close(c);
    free(data);
}

START_TEST(a_share_may_be_large) { rig_run(3, share_much, NULL); }
END_TEST

static void be_slow(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 0.5);
    if (ranks->rank == 1) rig_sleep(1.7);
    require(hy_control_barrier(c) == HY_OK);
    if (ranks->rank == 0) rig_sleep(1.2);
    require(hy_control_barrier(c) == HY_OK);
    hy_control_close(c);
}

START_TEST(a_slow_rank_is_waited_for) { rig_run(3, be_slow, NULL); }
END_TEST

/* Rank 0's first port is someone else's, who is silent there. */
static void meet_beside_a_stranger(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    hy_control *c = rig_open(ranks, 10);
    require(hy_control_barrier(c) == HY_OK);
    hy_control_close(c);
}

START_TEST(a_port_that_is_taken_is_passed_over) {
    int fd;
    bool is_taken;
    /* The rig asks for a port and frees it; the next socket for any port may be given another, so
     * the stranger takes what the rig will ask for by holding it inside the processes' parent. */
    rig it = {.count = 2, .ranks = rig_ranks(2)};
    must(hy_net_listen("127.0.0.1", it.ranks.port, &fd, &is_taken));
    it.results = mmap(NULL, sizeof *it.results * RIG_MOST, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 0; r < 2; r++) {
        it.pids[r] = fork();
        if (it.pids[r] > 0) continue;
        hy_ranks ranks = it.ranks;
        ranks.rank = r;
        meet_beside_a_stranger(&ranks, &it.results[r], NULL);
        _exit(0);
    }
    rig_wait(&it);
    ck_assert_int_eq(it.codes[0] + it.codes[1], 0);
    /* Nothing was sent to the stranger. */
    int guest = hy_net_accept(fd);
    char byte;
    ck_assert_int_ge(guest, 0);
    ck_assert_int_le(recv(guest, &byte, 1, 0), 0);
    close(guest);
    close(fd);
    rig_free(&it);
}
END_TEST

/* ---- those that do not fit together ---------------------------------------------------------- */

typedef struct misfit {
    uint64_t agreed;
    int count, as_rank; /* what rank 2 says; 0: the truth */
    uint64_t job;
    bool is_absent;
} misfit;

static void open_only(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const misfit *m = user;
    hy_ranks said = *ranks;
    hy_control *c;
    hy_control_options options = {.timeout = 5, .open_timeout = 1, .agreed = 5};
    if (ranks->rank == 2) {
        if (m->is_absent) return;
        if (m->agreed) options.agreed = m->agreed;
        if (m->count) said.count = m->count;
        if (m->as_rank) said.rank = m->as_rank;
        if (m->job) said.job = m->job;
    }
    rig_keep(mine, hy_control_open(&said, &options, &c));
    require(mine->status != HY_OK && c == NULL);
}

static rig open_with(const misfit *m) {
    rig it = rig_start(3, open_only, m);
    rig_wait(&it);
    for (int r = 0; r < 3; r++) ck_assert_int_eq(it.codes[r], 0);
    return it;
}

START_TEST(other_settings_are_refused_by_name) {
    rig it = open_with(&(misfit){.agreed = 6});
    must_mention(&it, 0, "rank 2 (");
    must_mention(&it, 0, "has different settings than rank 0");
    must_mention(&it, 2, "has different settings than rank 0");
    ck_assert_int_eq(it.results[0].status, HY_ERR_INPUT);
    ck_assert_int_eq(it.results[2].status, HY_ERR_INPUT);
    must_mention(&it, 1, ""); /* it may not have come before rank 0 left */
    rig_free(&it);
}
END_TEST

START_TEST(another_count_is_refused) {
    rig it = open_with(&(misfit){.count = 4});
    must_mention(&it, 0, "says that it is rank 2 of 4, but rank 0 expects ranks 1 to 2 of 3");
    must_mention(&it, 2, "says that it is rank 2 of 4, but rank 0 expects ranks 1 to 2 of 3");
    rig_free(&it);
}
END_TEST

START_TEST(one_rank_twice_is_refused) {
    rig it = open_with(&(misfit){.as_rank = 1});
    must_mention(&it, 0, "two processes say that they are rank 1");
    rig_free(&it);
}
END_TEST

START_TEST(a_rank_that_does_not_come_is_named) {
    rig it = open_with(&(misfit){.is_absent = true});
    ck_assert_str_eq(it.results[2].message, "");
    must_mention(&it, 0, "rank 2 of 3 did not connect within 1 s");
    must_mention(&it, 1, "rank 2 of 3 did not connect within 1 s");
    rig_free(&it);
}
END_TEST

START_TEST(a_rank_of_another_job_is_not_let_in) {
    rig it = open_with(&(misfit){.job = 1});
    must_mention(&it, 0, "rank 2 of 3 did not connect");
    must_mention(&it, 2, "found no rank 0 at 127.0.0.1");
    rig_free(&it);
}
END_TEST

/* The message of rank 0 that names one missing rank: all others are connected. */
static void keep_message(void *user, hy_message_level level, const char *text) {
    rig_result *mine = user;
    (void)level;
    if (!strstr(text, " for rank ")) return;
    snprintf(mine->message, sizeof mine->message, "%s", text);
    atomic_store(&mine->stage, 1);
}

static hy_control_options telling(rig_result *mine) {
    return (hy_control_options){.timeout = 5,
                                .open_timeout = RIG_SECONDS,
                                .say_after = 0.05,
                                .observer = {.user = mine, .on_message = keep_message}};
}

static void come_late(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user;
    hy_control *c;
    hy_control_options options = telling(mine);
    const rig_result *rank_0 = mine - ranks->rank;
    while (ranks->rank == 3 && atomic_load(&rank_0->stage) == 0) rig_sleep(0.01);
    require(hy_control_open(ranks, &options, &c) == HY_OK);
    hy_control_close(c);
}

START_TEST(waiting_is_reported) {
    rig it = rig_start(4, come_late, NULL);
    rig_wait(&it);
    for (int r = 0; r < 4; r++) ck_assert_int_eq(it.codes[r], 0);
    const char *message = it.results[0].message;
    ck_assert_msg(strstr(message, "rank 0 has waited "), "%s", message);
    ck_assert_msg(strstr(message, " s for rank 3 of 4"), "%s", message);
    rig_free(&it);
}
END_TEST

/* A stranger that connects and talks nonsense, or nothing, is no rank. */
START_TEST(strangers_do_no_harm) {
    rig it = rig_start(2, come_late, NULL);
    (void)it;
    int fd = -1;
    for (int i = 0; i < 20 && fd < 0; i++) {
        if (hy_net_connect("127.0.0.1", it.ranks.port, hy_clock() + 1, &fd) != HY_OK)
            rig_sleep(0.01);
    }
    if (fd >= 0)
        hy_net_send(fd, "GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n", 36, hy_clock() + 1);
    rig_wait(&it);
    ck_assert_int_eq(it.codes[0] + it.codes[1], 0);
    if (fd >= 0) close(fd);
    rig_free(&it);
}
END_TEST

/* ---- different calls ------------------------------------------------------------------------- */

typedef struct wrong_call {
    const char *first, *second; /* in the message */
    int kind;
} wrong_call;

static void call_wrong(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const wrong_call *w = user;
    hy_control *c = rig_open(ranks, 5);
    double numbers[2] = {0}, all[2 * RIG_MOST];
    char word[16] = "";
    for (int i = 0; i < 16; i++) require(hy_control_barrier(c) == HY_OK);
    hy_status status = HY_OK;
    bool is_odd = ranks->rank == 1;
    switch (w->kind) {
    case 0: status = is_odd ? hy_control_barrier(c) : hy_control_gather(c, numbers, 1, all); break;
    case 1: status = hy_control_gather(c, numbers, is_odd ? 2 : 1, all); break;
    case 2: status = hy_control_share(c, word, 8, is_odd ? 1 : 0); break;
    case 3:
        if (!is_odd) status = hy_control_barrier(c);
        break;
    case 4: status = is_odd ? hy_control_barrier(c) : hy_control_gather(c, NULL, 0, NULL); break;
    default: break;
    }
    rig_keep(mine, status);
    if (w->kind != 3 || !is_odd) require(hy_control_barrier(c) == status);
    hy_control_close(c);
}

static const wrong_call wrong_calls[] = {
    {"rank 1 is at barrier 17", "rank 0 is at gather 17 (8 bytes)", 0},
    {"rank 1 is at gather 17 (16 bytes)", "gather 17 (8 bytes)", 1},
    {"share 17 (8 bytes from rank 1)", "share 17 (8 bytes from rank 0)", 2},
    {"rank 1 (", "has ended, while rank", 3},
    {"barrier 17", "gather 17 (0 bytes)", 4},
};

START_TEST(ranks_at_different_calls_are_found) {
    const wrong_call *w = &wrong_calls[_i];
    rig it = rig_start(3, call_wrong, w);
    rig_wait(&it);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        if (_i == 3 && r == 1) continue;
        if (_i >= 2) must_mention(&it, r, w->first);
        if (_i == 1 || _i >= 3) must_mention(&it, r, w->second);
        must_mention(&it, r, _i == 3 ? "barrier 17" : "rank 1");
        ck_assert_str_eq(it.results[r].message, it.results[0].message);
    }
    rig_free(&it);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

typedef struct trouble {
    int rank;       /* who is in trouble */
    bool is_silent; /* no last words */
} trouble;

static void count_call(void *user) { atomic_fetch_add(&((rig_result *)user)->stage, 1); }

static void fail_in_words(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const trouble *t = user;
    hy_control *c = rig_open(ranks, 5);
    hy_control_on_failure(c, count_call, mine);
    for (int i = 0; i < 5; i++) require(hy_control_barrier(c) == HY_OK);
    if (ranks->rank == t->rank) {
        rig_sleep(0.1);
        rig_keep(mine, hy_control_fail(c, HY_ERR_NUMERIC, "the loss is not a number"));
    } else if (ranks->rank == (t->rank + 1) % 3) {
        /* One waits with poll(), as a link does, and one in a call. */
        struct pollfd polled = {.fd = hy_control_failure_fd(c), .events = POLLIN};
        require(poll(&polled, 1, 5000) == 1);
        rig_keep(mine, hy_control_check(c));
    } else {
        rig_keep(mine, hy_control_barrier(c));
    }
    require(hy_control_failed_rank(c) == t->rank);
    require(hy_control_fail(c, HY_ERR_IO, "too late") == HY_ERR_NUMERIC);
    for (int i = 0; i < 500 && atomic_load(&mine->stage) == 0; i++) rig_sleep(0.01);
    hy_control_on_failure(c, count_call, mine); /* called though it came after */
    for (int i = 0; i < 500 && atomic_load(&mine->stage) < 2; i++) rig_sleep(0.01);
    hy_control_on_failure(c, NULL, NULL);
    hy_control_close(c);
}

START_TEST(last_words_reach_everybody) {
    rig it = rig_start(3, fail_in_words, &(trouble){.rank = _i});
    char name[32];
    rig_wait(&it);
    snprintf(name, sizeof name, "rank %d (", _i);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        must_mention(&it, r, name);
        must_mention(&it, r, "): the loss is not a number");
        ck_assert_int_eq(it.results[r].status, HY_ERR_NUMERIC);
        ck_assert_int_eq(atomic_load(&it.results[r].stage), 2);
    }
    rig_free(&it);
}
END_TEST

static void go_on_until_failure(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const double *timeout = user;
    hy_control *c = rig_open(ranks, *timeout);
    double number = ranks->rank, all[RIG_MOST];
    hy_status status = HY_OK;
    double began = hy_clock();
    while (status == HY_OK) {
        atomic_fetch_add(&mine->stage, 1);
        began = hy_clock();
        status = hy_control_gather(c, &number, 1, all);
    }
    mine->seconds = hy_clock() - began;
    rig_keep(mine, status);
    mine->number = hy_control_failed_rank(c);
    hy_control_close(c);
}

START_TEST(a_killed_rank_is_noticed_at_once_by_all) {
    double timeout = 20; /* far more than the test takes */
    for (int i = 0; i < 20; i++) {
        int count = 2 + i % 4,
            victim = (int)hy_rng_below(7, HY_RNG_TEST, (uint64_t)i, (uint64_t)count);
        char name[32];
        rig it = rig_start(count, go_on_until_failure, &timeout);
        rig_wait_for_stage(&it, victim, 1);
        rig_sleep(0.02 * hy_rng_uniform(8, HY_RNG_TEST, (uint64_t)i));
        kill(it.pids[victim], SIGKILL);
        double began = hy_clock();
        rig_wait_except(&it, 5, 0);
        ck_assert_msg(hy_clock() - began < 2, "%.1f s", hy_clock() - began);
        snprintf(name, sizeof name, "rank %d (", victim);
        for (int r = 0; r < count; r++) {
            if (r == victim) continue;
            ck_assert_int_eq(it.codes[r], 0);
            must_mention(&it, r, name);
            must_mention(&it, r, "is gone");
            ck_assert_int_eq(it.results[r].number, victim);
        }
        rig_free(&it);
    }
}
END_TEST

START_TEST(a_stopped_rank_is_noticed_after_the_timeout) {
    double timeout = SHORT;
    int victim = _i;
    rig it = rig_start(3, go_on_until_failure, &timeout);
    rig_wait_for_stage(&it, victim, 20);
    kill(it.pids[victim], SIGSTOP);
    double began = hy_clock();
    while (rig_collect(&it) > 1 && hy_clock() - began < 10) rig_sleep(0.01);
    double took = hy_clock() - began;
    ck_assert_int_eq(rig_collect(&it), 1);
    ck_assert_msg(took > 0.7 * SHORT && took < 3 * SHORT, "%.2f s", took);
    /* It goes on, and learns that the others have given it up rather than accusing them. */
    kill(it.pids[victim], SIGCONT);
    rig_wait_except(&it, 5, 0);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        if (r != victim) must_mention(&it, r, "has been silent for");
        if (r != victim) ck_assert_int_eq(it.results[r].number, victim);
    }
    if (victim != 0) must_mention(&it, victim, "has been silent for");
    if (victim != 0) ck_assert_int_eq(it.results[victim].number, victim);
    rig_free(&it);
}
END_TEST

START_TEST(a_short_stop_is_forgiven) {
    double timeout = SHORT;
    rig it = rig_start(3, go_on_until_failure, &timeout);
    for (int victim = 0; victim < 3; victim++) {
        rig_wait_for_stage(&it, victim, 5);
        kill(it.pids[victim], SIGSTOP);
        rig_sleep(0.3 * SHORT);
        kill(it.pids[victim], SIGCONT);
    }
    int stage = atomic_load(&it.results[1].stage);
    rig_wait_for_stage(&it, 1, stage + 50);
    ck_assert_int_eq(rig_collect(&it), 3);
    kill(it.pids[2], SIGKILL);
    rig_wait_except(&it, 5, 0);
    must_mention(&it, 0, "is gone");
    rig_free(&it);
}
END_TEST

/* A machine that was suspended: nobody may take the others' silence, which was its own, for their
 * end. */
START_TEST(a_stop_of_all_is_forgiven) {
    double timeout = 0.6;
    rig it = rig_start(3, go_on_until_failure, &timeout);
    for (int r = 0; r < 3; r++) rig_wait_for_stage(&it, r, 5);
    for (int r = 0; r < 3; r++) kill(it.pids[r], SIGSTOP);
    rig_sleep(2 * timeout);
    for (int r = 0; r < 3; r++) kill(it.pids[r], SIGCONT);
    int stage = atomic_load(&it.results[1].stage);
    rig_wait_for_stage(&it, 1, stage + 50);
    ck_assert_int_eq(rig_collect(&it), 3);
    kill(it.pids[2], SIGKILL);
    rig_wait_except(&it, 5, 0);
    must_mention(&it, 0, "is gone");
    rig_free(&it);
}
END_TEST

static void exit_early(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user;
    hy_control *c;
    hy_control_options options = telling(mine);
    if (ranks->rank == 2) rig_sleep(2 * RIG_SECONDS);
    rig_keep(mine, hy_control_open(ranks, &options, &c));
}

START_TEST(a_rank_that_dies_before_all_have_come_is_named) {
    rig it = rig_start(4, exit_early, NULL);
    rig_wait_for_stage(&it, 0, 1);
    kill(it.pids[1], SIGKILL);
    rig_wait_except(&it, 10, 1u << 2);
    must_mention(&it, 0, "rank 1 (");
    must_mention(&it, 0, "ended before all ranks were connected");
    must_mention(&it, 3, "ended before all ranks were connected");
    rig_free(&it);
}
END_TEST

START_TEST(ranks_without_rank_0_end) {
    rig it = rig_start(3, exit_early, NULL);
    rig_wait_for_stage(&it, 0, 1);
    kill(it.pids[0], SIGKILL);
    rig_wait_except(&it, 10, 1u << 2);
    must_mention(&it, 1, "rank 0 ended before");
    rig_free(&it);
}
END_TEST

/* ---- messages -------------------------------------------------------------------------------- */

START_TEST(messages_come_out_of_bytes_however_they_are_cut) {
    hy_wire_buffer whole = {0}, in = {0};
    char text[300];
    memset(text, 'x', sizeof text);
    for (uint32_t i = 0; i < 20; i++) {
        hy_wire_head head = {
            .magic = HY_WIRE_MAGIC, .kind = HY_WIRE_CALL, .size = 13 * i, .number = i};
        ck_assert(hy_wire_add(&whole, &head, text));
    }
    uint64_t seen = 0;
    for (size_t at = 0, piece = 1; at < whole.end; at += piece, piece = piece % 97 + 1) {
        hy_wire_message m;
        if (at + piece > whole.end) piece = whole.end - at;
        ck_assert(hy_wire_reserve(&in, piece));
        memcpy(in.data + in.end, whole.data + at, piece);
        in.end += piece;
        while (hy_wire_take(&in, &m) == HY_WIRE_ONE) {
            ck_assert_uint_eq(m.head.number, seen);
            ck_assert_uint_eq(m.head.size, 13 * seen);
            ck_assert(m.head.size == 0 || memcmp(m.data, text, m.head.size) == 0);
            seen++;
        }
    }
    ck_assert_uint_eq(seen, 20);
    hy_wire_free(&whole);
    hy_wire_free(&in);
}
END_TEST

START_TEST(heads_that_cannot_be_are_nonsense) {
    const hy_wire_head heads[] = {
        {.magic = 0x48595431, .kind = HY_WIRE_BEAT},
        {.magic = HY_WIRE_MAGIC, .kind = 0},
        {.magic = HY_WIRE_MAGIC, .kind = HY_WIRE_KINDS},
        {.magic = HY_WIRE_MAGIC, .kind = HY_WIRE_BEAT, .size = HY_WIRE_MOST + 1}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        hy_wire_message m;
        hy_wire_buffer in = {.data = (uint8_t *)(uintptr_t)&heads[i], .end = sizeof heads[i]};
        ck_assert_int_eq(hy_wire_take(&in, &m), HY_WIRE_NONSENSE);
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_control");
    TCase *c = tcase_create("control");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, one_to_five_ranks_decide_together, 1, 6);
    tcase_add_test(c, a_share_may_be_large);
    tcase_add_test(c, a_slow_rank_is_waited_for);
    tcase_add_test(c, a_port_that_is_taken_is_passed_over);
    tcase_add_test(c, other_settings_are_refused_by_name);
    tcase_add_test(c, another_count_is_refused);
    tcase_add_test(c, one_rank_twice_is_refused);
    tcase_add_test(c, a_rank_that_does_not_come_is_named);
    tcase_add_test(c, a_rank_of_another_job_is_not_let_in);
    tcase_add_test(c, waiting_is_reported);
    tcase_add_test(c, strangers_do_no_harm);
    tcase_add_loop_test(c, ranks_at_different_calls_are_found, 0, 5);
    tcase_add_loop_test(c, last_words_reach_everybody, 0, 3);
    tcase_add_test(c, a_killed_rank_is_noticed_at_once_by_all);
    tcase_add_loop_test(c, a_stopped_rank_is_noticed_after_the_timeout, 0, 2);
    tcase_add_test(c, a_short_stop_is_forgiven);
    tcase_add_test(c, a_stop_of_all_is_forgiven);
    tcase_add_test(c, a_rank_that_dies_before_all_have_come_is_named);
    tcase_add_test(c, ranks_without_rank_0_end);
    tcase_add_test(c, messages_come_out_of_bytes_however_they_are_cut);
    tcase_add_test(c, heads_that_cannot_be_are_nonsense);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
