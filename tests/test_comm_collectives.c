/* test_comm_collectives.c: all-gather, reduce-scatter, broadcast and all-reduce of forked ranks on
 * the CPU, a closed exchange (one rank), and a dry one, which counts what the others send. */
#include "comm/collectives.h"
#include "rank_variables.h"

enum { WORDS = 1000 };

/* Parts of all sizes; rank 1 of three or more has none. */
static void cut(int32_t count, hy_comm_part *parts) {
    uint64_t begin = 0;
    for (int32_t r = 0; r < count; r++) {
        uint64_t words = r == count - 1 ? WORDS - begin / sizeof(float)
                         : r == 1       ? 0
                                        : (uint64_t)(100 + 16 * r);
        parts[r] = (hy_comm_part){begin, words * sizeof(float)};
        begin += parts[r].bytes;
    }
}

static float value(int rank, int64_t i) { return (float)(1000 * rank) + (float)i / 3; }

typedef struct setup {
    hy_team *team;
    hy_backend *backend;
    hy_stream *stream;
    hy_exchange net;
    int32_t rank, count;
    hy_comm_part parts[RIG_MOST];
} setup;

static void open_exchange(setup *s, const hy_ranks *ranks) {
    const hy_team_options options = {.link = HY_LINK_SOCKETS, .timeout = 20};
    *s = (setup){.rank = ranks->rank, .count = ranks->count};
    set_rank_variables(ranks);
    require(hy_team_open(&options, &s->team) == HY_OK);
    require(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &s->backend) == HY_OK);
    require(s->backend->stream_create(s->backend, "test", &s->stream) == HY_OK);
    require(hy_exchange_open(&s->net, s->team, s->backend, 3) == HY_OK);
    require(hy_exchange_connect(&s->net) == HY_OK);
    cut(s->count, s->parts);
}

static void close_exchange(setup *s) {
    require(s->backend->stream_sync(s->stream) == HY_OK);
    require(hy_exchange_check(&s->net) == HY_OK);
    hy_exchange_close(&s->net);
    s->backend->stream_destroy(s->stream);
    s->backend->destroy(s->backend);
    hy_team_close(s->team);
}

static void gather(const hy_ranks *ranks, rig_result *mine, const void *user) {
    float whole[WORDS];
    hy_comm_op *op;
    setup s;
    (void)user;
    open_exchange(&s, ranks);
    for (int64_t i = 0; i < WORDS; i++) whole[i] = value(s.rank, i);
    char *own = (char *)whole + s.parts[s.rank].begin;
    require(hy_all_gather(&s.net, s.stream, own, (char *)whole, s.parts, &op) == HY_OK);
    require(hy_comm_wait(op, s.stream) == HY_OK);
    require(s.backend->stream_sync(s.stream) == HY_OK);
    for (int32_t r = 0; r < s.count; r++) {
        int64_t begin = (int64_t)(s.parts[r].begin / sizeof(float));
        int64_t end = begin + (int64_t)(s.parts[r].bytes / sizeof(float));
        for (int64_t i = begin; i < end; i++) require(whole[i] == value(r, i));
    }
    mine->number = (int64_t)hy_exchange_sent(&s.net);
    close_exchange(&s);
}

static void reduce(const hy_ranks *ranks, rig_result *mine, const void *user) {
    float whole[WORDS], arriving[WORDS * RIG_MOST], sum[WORDS];
    hy_reduction parts;
    setup s;
    (void)user;
    open_exchange(&s, ranks);
    for (int64_t i = 0; i < WORDS; i++) whole[i] = value(s.rank, i), sum[i] = 0.25F;
    for (int round = 0; round < 2; round++) { /* the second is added to the first */
        require(hy_reduce_scatter(&s.net, s.stream, (char *)whole, s.parts, (char *)arriving,
                                  &parts) == HY_OK);
        require(hy_reduce_scatter_end(&parts, s.stream, HY_F32, round == 1, (char *)sum) == HY_OK);
    }
    require(s.backend->stream_sync(s.stream) == HY_OK);
    int64_t begin = (int64_t)(s.parts[s.rank].begin / sizeof(float));
    int64_t count = (int64_t)(s.parts[s.rank].bytes / sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        float expected = value(0, begin + i);
        for (int r = 1; r < s.count; r++) expected += value(r, begin + i);
        require(sum[i] == expected + expected);
    }
    require(count == WORDS || sum[count] == 0.25F); /* nothing behind its part */
    mine->number = (int64_t)hy_exchange_sent(&s.net) / 2;
    close_exchange(&s);
}

static void broadcast_and_sum(const hy_ranks *ranks, rig_result *mine, const void *user) {
    int64_t words[WORDS];
    hy_comm_op *op;
    setup s;
    (void)mine, (void)user;
    open_exchange(&s, ranks);
    int32_t root = s.count - 1;
    for (int i = 0; i < WORDS; i++) words[i] = 7000 * s.rank + i;
    require(hy_broadcast(&s.net, s.stream, root, words, sizeof words, &op) == HY_OK);
    require(hy_comm_wait(op, s.stream) == HY_OK);
    double numbers[2] = {0.1 * (s.rank + 1), -s.rank}, sums[2] = {0.1, 0};
    for (int r = 1; r < s.count; r++) sums[0] += 0.1 * (r + 1), sums[1] -= r;
    double *const each[] = {numbers, numbers + 1};
    require(hy_all_reduce(&s.net, s.stream, each, 2) == HY_OK);
    require(s.backend->stream_sync(s.stream) == HY_OK);
    for (int i = 0; i < WORDS; i++) require(words[i] == 7000 * root + i);
    require(numbers[0] == sums[0] && numbers[1] == sums[1]); /* to the bit: in the order of ranks */
    close_exchange(&s);
}

/* Each rank's bytes on the wire are those that a dry exchange counts. */
static void must_send_as_counted(rig_body body, int count, bool is_gather) {
    static char memory[WORDS * RIG_MOST * sizeof(float)];
    rig it = rig_start(count, body, NULL);
    rig_wait(&it);
    for (int32_t r = 0; r < count; r++) {
        hy_exchange dry;
        hy_comm_part parts[RIG_MOST];
        hy_comm_op *op;
        hy_reduction reduction;
        ck_assert_int_eq(it.codes[r], 0);
        cut(count, parts);
        hy_exchange_open_dry(&dry, r, count);
        must(is_gather ? hy_all_gather(&dry, NULL, memory, memory, parts, &op)
                       : hy_reduce_scatter(&dry, NULL, memory, parts, memory, &reduction));
        ck_assert_int_eq(dry.dry_ops, 1);
        ck_assert_int_eq((int64_t)dry.dry_bytes, it.results[r].number);
    }
    rig_free(&it);
}

START_TEST(all_ranks_have_all_parts_after_an_all_gather) { must_send_as_counted(gather, _i, true); }
END_TEST

START_TEST(each_rank_has_the_sum_of_its_part_after_a_reduce_scatter) {
    must_send_as_counted(reduce, _i, false);
}
END_TEST

START_TEST(a_broadcast_and_an_all_reduce_reach_all_ranks) { rig_run(_i, broadcast_and_sum, NULL); }
END_TEST

START_TEST(one_rank_exchanges_nothing) {
    hy_exchange closed = {0};
    float whole[4] = {1, 2, 3, 4};
    double number = 5, *const numbers[] = {&number};
    const hy_comm_part parts[] = {{0, sizeof whole}};
    hy_comm_op *op = (hy_comm_op *)whole;
    hy_reduction reduction;
    must(hy_all_gather(&closed, NULL, (char *)whole, (char *)whole, parts, &op));
    ck_assert_ptr_null(op);
    must(hy_comm_wait(op, NULL));
    must(hy_reduce_scatter(&closed, NULL, (char *)whole, parts, NULL, &reduction));
    must(hy_reduce_scatter_end(&reduction, NULL, HY_F32, false, (char *)whole));
    must(hy_broadcast(&closed, NULL, 0, whole, sizeof whole, &op));
    ck_assert_ptr_null(op);
    must(hy_all_reduce(&closed, NULL, numbers, 1));
    must(hy_exchange_check(&closed));
    for (int i = 0; i < 4; i++) ck_assert(whole[i] == (float)(i + 1));
    ck_assert(number == 5);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("comm_collectives");
    TCase *c = tcase_create("collectives");
    tcase_add_loop_test(c, all_ranks_have_all_parts_after_an_all_gather, 2, 5);
    tcase_add_loop_test(c, each_rank_has_the_sum_of_its_part_after_a_reduce_scatter, 2, 5);
    tcase_add_loop_test(c, a_broadcast_and_an_all_reduce_reach_all_ranks, 2, 5);
    tcase_add_test(c, one_rank_exchanges_nothing);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
