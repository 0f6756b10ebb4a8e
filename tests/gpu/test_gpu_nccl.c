/* test_gpu_nccl.c: NCCL itself with one rank, which sends everything to itself: bytes, order on
 * streams, a run.
 *
 * One card holds one rank of NCCL, so this is what a machine with a single card can say about the
 * real library: it opens, its groups run on our streams, and a run whose gradients and weights go
 * through it learns the same. Where NCCL is not found everything is skipped with a message. To try
 * the tests themselves without a card: HYBRID_GPU_TESTS_DEVICE=cpu with HYBRID_TEST_NCCL, and
 * HYBRID_NCCL naming the library that stands in (tests/standin). */
#include "gpu_rig.h"

#include "base/clock.h"
#include "comm/exchange.h"
#include "small_run.h"

static bool is_here;
static hy_team *team;

static void open_team(void) {
    hy_team_options options = {.link = HY_LINK_NCCL};
    is_here = hy_nccl_look(NULL) == HY_OK;
    if (!is_here) {
        printf("left out, what NCCL moves: %s\n", hy_error_message());
        return;
    }
    must(hy_team_open(&options, &team));
    ck_assert_ptr_nonnull(team);
    team->uses_nccl = true;
}

static void close_team(void) { hy_team_close(team); }

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct buffers {
    uint64_t bytes;
    uint8_t *host, *back;
    char *from, *to; /* on the device */
} buffers;

static buffers take(uint64_t bytes, uint64_t seed) {
    hy_backend *b = gpu.backend;
    buffers m = {.bytes = bytes, .host = malloc(bytes), .back = malloc(bytes)};
    ck_assert(m.host && m.back);
    for (uint64_t i = 0; i < bytes; i++)
        m.host[i] = (uint8_t)((i + seed) * 0x9e3779b97f4a7c15u >> 56);
    must(b->alloc(b, HY_DEVICE, bytes, (void **)&m.from));
    must(b->alloc(b, HY_DEVICE, bytes, (void **)&m.to));
    must(b->copy(gpu.stream, m.from, m.host, bytes));
    return m;
}

/* In the order of the stream: whatever was enqueued before has to be over by itself. */
static void must_have_arrived(buffers *m) {
    memset(m->back, 0, m->bytes);
    must(gpu.backend->copy(gpu.stream, m->back, m->to, m->bytes));
    must(gpu.backend->stream_sync(gpu.stream));
    ck_assert_msg(memcmp(m->back, m->host, m->bytes) == 0, "%llu bytes came changed",
                  (unsigned long long)m->bytes);
}

static void release(buffers *m) {
    gpu.backend->release(gpu.backend, HY_DEVICE, m->from, m->bytes);
    gpu.backend->release(gpu.backend, HY_DEVICE, m->to, m->bytes);
    free(m->host);
    free(m->back);
}

static void *handle(void) {
    return gpu.backend->stream_handle ? gpu.backend->stream_handle(gpu.stream) : NULL;
}

/* ---- the library ----------------------------------------------------------------------------- */

static void send_to_itself(hy_nccl *nccl, buffers *m) {
    hy_transfer send = {.peer = 0, .data = m->from, .bytes = m->bytes};
    hy_transfer receive = {.peer = 0, .data = m->to, .bytes = m->bytes};
    if (!handle()) must(gpu.backend->stream_sync(gpu.stream)); /* the stand-in knows no stream */
    must(hy_nccl_exchange(nccl, &send, 1, &receive, 1, handle()));
}

START_TEST(what_a_rank_sends_to_itself_arrives_in_the_order_of_the_stream) {
    static const uint64_t sizes[] = {1, 255, 4097, 1 << 20, (16 << 20) + 3};
    hy_nccl *nccl;
    if (!is_here) return;
    must(hy_nccl_open(team->control, &nccl));
    printf("NCCL %s\n", hy_nccl_version(nccl));
    for (int i = 0; i < 5; i++) {
        buffers m = take(sizes[i], sizes[i]);
        send_to_itself(nccl, &m);
        must_have_arrived(&m);
        release(&m);
    }
    must(hy_nccl_check(nccl));
    ck_assert_uint_eq(hy_nccl_bytes_sent(nccl), 0); /* to others */
    hy_nccl_close(nccl);
}
END_TEST

static double seconds_of(hy_nccl *nccl, buffers *m, int times) {
    must(gpu.backend->stream_sync(gpu.stream));
    double begin = hy_clock();
    for (int i = 0; i < times; i++) send_to_itself(nccl, m);
    must(gpu.backend->stream_sync(gpu.stream));
    return (hy_clock() - begin) / times;
}

/* Numbers for people; that they are there is all that is checked. */
START_TEST(how_fast_a_rank_sends_to_itself) {
    static const uint64_t sizes[] = {64, 64 << 10, 16 << 20, 256 << 20};
    hy_nccl *nccl;
    if (!is_here) return;
    must(hy_nccl_open(team->control, &nccl));
    for (int i = 0; i < (gpu.is_small ? 2 : 4); i++) {
        buffers m = take(sizes[i], 1);
        (void)seconds_of(nccl, &m, 2);
        double seconds = seconds_of(nccl, &m, 20);
        ck_assert(seconds > 0);
        printf("NCCL to itself, %llu bytes: %.1f us, %.1f GB/s\n", (unsigned long long)m.bytes,
               1e6 * seconds, 1e-9 * (double)m.bytes / seconds);
        must_have_arrived(&m);
        release(&m);
    }
    hy_nccl_close(nccl);
}
END_TEST

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Each round copies, sends and copies back without a wait of the host in between; there are more
 * rounds than ops. */
START_TEST(ops_begin_after_one_stream_and_are_waited_for_by_it) {
    hy_exchange net;
    hy_comm_op *op;
    if (!is_here) return;
    buffers m = take((1 << 20) + 512, 7);
    must(hy_exchange_open(&net, team, gpu.backend, 3));
    must(hy_exchange_connect(&net));
    ck_assert_ptr_nonnull(net.nccl);
    for (int round = 0; round < 10; round++) {
        must(gpu.backend->copy(gpu.stream, m.from, m.host, m.bytes));
        must(hy_comm_begin(&net, &op));
        hy_comm_send(op, 0, m.from, m.bytes);
        hy_comm_receive(op, 0, m.to, m.bytes);
        must(hy_comm_start(op, gpu.stream));
        must(hy_comm_wait(op, gpu.stream));
        must_have_arrived(&m);
        m.host[round]++; /* the next round brings other bytes */
    }
    must(hy_exchange_check(&net));
    hy_exchange_close(&net);
    release(&m);
}
END_TEST

/* ---- a run ----------------------------------------------------------------------------------- */

enum { STEPS = 12 };

#define RUN                                                                                        \
    "model nano layers 3 width 64 heads 4 mlp_width 160 seq_len 64 batch_size 4 "                  \
    "grad_accum_steps 2 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_every 0 "               \
    "sample_tokens 0 threads 2 tune off tune_cache none predictor none steps 12 "

static void losses_of(const char *precision, const char *place, const char *stage, double *losses) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    const char *pairs[] = {"precision",
                           precision,
                           "weights_place",
                           place,
                           "grads_place",
                           place,
                           "max_gpu_mem",
                           "64MiB",
                           "zero_stage",
                           stage ? stage : "auto",
                           "transport",
                           stage ? "nccl" : "auto",
                           NULL};
    hy_trainer *trainer = small_trainer(RUN, "none", device ? device : "cuda", pairs);
    hy_ranks_info ranks;
    ck_assert(hy_trainer_ranks(trainer, &ranks) == (stage != NULL));
    if (stage) ck_assert_str_eq(ranks.transport, "NCCL");
    next_losses(trainer, STEPS, losses);
    hy_trainer_destroy(trainer);
}

/* Stages and places agree to the bit; with a run that exchanges nothing up to the order of sums. */
START_TEST(a_run_that_goes_through_nccl_learns_the_same) {
    static const char *const precisions[] = {"fp32", "bf16"},
                             *const places[] = {"device", "pinned"}, *const stages[] = {"2", "3"};
    static const double bounds[] = {2e-6, 2e-3};
    double alone[STEPS], first[STEPS], losses[STEPS];
    if (!is_here) return;
    losses_of(precisions[_i], "device", NULL, alone);
    for (int i = 0; i < 4; i++) {
        losses_of(precisions[_i], places[i / 2], stages[i % 2], losses);
        if (i == 0) memcpy(first, losses, sizeof first);
        ck_assert_msg(memcmp(losses, first, sizeof first) == 0,
                      "%s, stage %s, weights and "
                      "gradients %s: other bits",
                      precisions[_i], stages[i % 2], places[i / 2]);
    }
    for (int i = 0; i < STEPS; i++) {
        double far = fabs(first[i] / alone[i] - 1);
        ck_assert_msg(far <= bounds[_i], "%s, step %d: the loss is %.9g, alone %.9g",
                      precisions[_i], i + 1, first[i], alone[i]);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: NCCL with one rank");
    TCase *all = tcase_create("nccl");
    tcase_add_unchecked_fixture(all, open_team, close_team);
    tcase_add_test(all, what_a_rank_sends_to_itself_arrives_in_the_order_of_the_stream);
    tcase_add_test(all, how_fast_a_rank_sends_to_itself);
    tcase_add_test(all, ops_begin_after_one_stream_and_are_waited_for_by_it);
    tcase_add_loop_test(all, a_run_that_goes_through_nccl_learns_the_same, 0, 2);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
