/* test_gpu_cudnn.c: attention by cuDNN against the double-precision reference and our own kernels.
 *
 * Two backends on one card: one that was asked for cuDNN, one that was not. Where cuDNN is not
 * found the tests of what it computes are skipped with a message, and asking for it must give a
 * warning and our own kernels' bits. */
#include "gpu_rig.h"

typedef struct heads_case {
    int32_t B, T, H, K, D, window;
    bool has_doc_starts;
} heads_case;

/* What cuDNN must serve: each head size, grouped heads, one token, an odd end, several tiles. */
static const heads_case served[] = {
    {2, 128, 4, 4, 64, 0, false},  {1, 257, 4, 2, 64, 0, false}, {3, 77, 2, 1, 128, 0, false},
    {1, 385, 4, 1, 128, 0, false}, {1, 513, 6, 2, 64, 0, false}, {1, 1, 2, 2, 64, 0, false},
    {1, 200, 2, 1, 80, 0, false},  {2, 193, 3, 3, 96, 0, false}, {1, 640, 1, 1, 128, 640, false},
};
/* What it does not: documents, windows, a head size without tiles. */
static const heads_case left[] = {
    {2, 70, 4, 2, 64, 0, true}, {1, 130, 2, 2, 128, 40, false}, {1, 90, 2, 1, 40, 0, false}};
enum { SERVED = sizeof served / sizeof served[0], LEFT = sizeof left / sizeof left[0] };

/* ---- the two backends ------------------------------------------------------------------------ */

typedef struct pair {
    hy_backend *backend;
    hy_stream *stream;
} pair;

static pair own, other;  /* other: asked for cuDNN */
static char absent[512]; /* why it cannot be had; "": it is here */

static void use(const pair *p) {
    gpu.backend = p->backend;
    gpu.stream = p->stream;
}

static void open_both(void) {
    hy_cuda_options options = {.tune = HY_TUNE_OFF, .attention = HY_ATTENTION_CUDNN};
    own = (pair){gpu.backend, gpu.stream};
    must(hy_cuda_backend_create(&options, &other.backend));
    must(other.backend->stream_create(other.backend, "test", &other.stream));
    snprintf(absent, sizeof absent, "%s", other.backend->facts.warning);
    if (absent[0]) printf("left out, what cuDNN computes: %s\n", absent);
}

static void close_both(void) {
    use(&own);
    other.backend->stream_destroy(other.stream);
    other.backend->destroy(other.backend);
}

/* ---- trials ---------------------------------------------------------------------------------- */

static int64_t rows_of(const heads_case *h) { return (int64_t)h->B * h->T; }
static int64_t packed_width(const heads_case *h) { return (int64_t)(h->H + 2 * h->K) * h->D; }

static trial forward_trial(const heads_case *h, hy_dtype dtype) {
    trial t = trial_begin(HY_OP_ATTENTION, (uint64_t)(h->T * 10 + h->D));
    int64_t N = rows_of(h);
    t.call.attr.heads.batch = h->B;
    t.call.attr.heads.seq = h->T;
    t.call.attr.heads.heads = h->H;
    t.call.attr.heads.kv_heads = h->K;
    t.call.attr.heads.head_dim = h->D;
    t.call.attr.heads.window = h->window;
    t.call.attr.heads.scale = (float)(1 / sqrt((double)h->D));
    t.exact.attr = t.call.attr;
    trial_normal(&t, HY_ATTENTION_QKV, dtype, N, packed_width(h), 0, 1.5);
    if (h->has_doc_starts) trial_tensor(&t, HY_ATTENTION_DOC_STARTS, HY_I32, 0, N);
    for (int64_t i = 0; h->has_doc_starts && i < N; i++) {
        trial_put(&t, HY_ATTENTION_DOC_STARTS, i, (double)(i % h->T / 16 * 16));
    }
    trial_tensor(&t, HY_ATTENTION_OUT, dtype, N, (int64_t)h->H * h->D);
    trial_tensor(&t, HY_ATTENTION_LSE, HY_F32, 0, N * h->H);
    return t;
}

static trial backward_trial(const heads_case *h, hy_dtype dtype) {
    trial f = forward_trial(h, dtype);
    trial t = trial_begin(HY_OP_ATTENTION_BWD, f.dice.seed + 5);
    static const struct {
        int from, to;
    } kept[] = {{HY_ATTENTION_QKV, HY_ATTENTION_BWD_QKV},
                {HY_ATTENTION_OUT, HY_ATTENTION_BWD_OUT},
                {HY_ATTENTION_LSE, HY_ATTENTION_BWD_LSE}};
    reference_run(&f.exact);
    t.exact.attr = t.call.attr = f.call.attr;
    trial_normal(&t, HY_ATTENTION_BWD_DOUT, dtype, rows_of(h), (int64_t)h->H * h->D, 0, 1);
    for (int i = 0; i < 3; i++) {
        const hy_tensor *from = &f.call.t[kept[i].from];
        bool is_flat = from->ndim == 1;
        trial_tensor(&t, kept[i].to, from->dtype, is_flat ? 0 : from->shape[0],
                     from->shape[is_flat ? 0 : 1]);
        trial_adopt(&t, kept[i].to, f.exact.t[kept[i].from].data);
    }
    if (h->has_doc_starts) {
        trial_tensor(&t, HY_ATTENTION_BWD_DOC_STARTS, HY_I32, 0, rows_of(h));
        for (int64_t i = 0; i < rows_of(h); i++)
            trial_put(&t, HY_ATTENTION_BWD_DOC_STARTS, i,
                      real_at(&f.call.t[HY_ATTENTION_DOC_STARTS], i));
    }
    trial_tensor(&t, HY_ATTENTION_BWD_DQKV, dtype, rows_of(h), packed_width(h));
    trial_end(&f);
    return t;
}

static bool is_served(const hy_op_call *call) {
    hy_op_call probe = *call;
    must(other.backend->prepare(other.backend, &probe));
    return probe.plan != NULL;
}

/* Runs the call by our own kernels into a copy of tensor `at`, which is to be freed. */
static hy_tensor by_own(const trial *t, int at) {
    hy_op_call call = t->call;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (hy_op_access(call.kind, i) != HY_ACCESS_READ) call.t[i] = copy_tensor(&t->call.t[i]);
    }
    use(&own);
    gpu_must_run(&call);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (i != at && hy_op_access(call.kind, i) != HY_ACCESS_READ) free(call.t[i].data);
    }
    return call.t[at];
}

/* Both are within their error of the reference, so within twice that of each other. */
static void check_against_own(const trial *t, int at, double factor) {
    hy_tensor mine = by_own(t, at);
    double wrong = 0, size = 0;
    for (int64_t i = 0; i < hy_tensor_count(&mine); i++) {
        double expected = real_at(&mine, i), difference = real_at(&t->call.t[at], i) - expected;
        wrong += difference * difference;
        size += expected * expected;
    }
    double allowed = 2 * factor * tolerance_of(mine.dtype);
    ck_assert_msg(sqrt(wrong) <= allowed * sqrt(size) + 1e-12,
                  "%s: cuDNN and our own kernels are %.3g apart, allowed %.3g",
                  hy_op_name(t->call.kind), sqrt(wrong / size), allowed);
    free(mine.data);
}

static void check_same_bits(const trial *t, int at) {
    hy_tensor mine = by_own(t, at);
    ck_assert_msg(memcmp(mine.data, t->call.t[at].data, hy_tensor_bytes(&mine)) == 0,
                  "%s: another result than our own kernels'", hy_op_name(t->call.kind));
    free(mine.data);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const hy_dtype types[] = {HY_BF16, HY_F16};

START_TEST(forward_agrees_with_the_reference_and_with_our_kernels) {
    for (int i = 0; !absent[0] && i < 2 * SERVED; i++) {
        const heads_case *h = &served[i / 2];
        if (gpu_leaves_out(rows_of(h) * packed_width(h))) continue;
        trial t = forward_trial(h, types[i % 2]);
        ck_assert_msg(is_served(&t.call), "case %d: %s", i / 2, other.backend->facts.warning);
        use(&other);
        gpu_must_run(&t.call);
        reference_run(&t.exact);
        gpu_check_to(&t, HY_ATTENTION_OUT, 1.5, 4);
        gpu_check(&t, HY_ATTENTION_LSE, 1);
        check_against_own(&t, HY_ATTENTION_OUT, 1.5);
        trial_end(&t);
    }
}
END_TEST

START_TEST(backward_agrees_with_the_reference_and_with_our_kernels) {
    for (int i = 0; !absent[0] && i < 2 * SERVED; i++) {
        const heads_case *h = &served[i / 2];
        if (gpu_leaves_out(rows_of(h) * packed_width(h))) continue;
        trial t = backward_trial(h, types[i % 2]);
        bool may_be_left = h->T % 128 != 0; /* to cuDNN 9.16 and newer */
        ck_assert_msg(is_served(&t.call) || may_be_left, "case %d: %s", i / 2,
                      other.backend->facts.warning);
        use(&other);
        gpu_must_run(&t.call);
        reference_run(&t.exact);
        gpu_check_to(&t, HY_ATTENTION_BWD_DQKV, 3, 30);
        check_against_own(&t, HY_ATTENTION_BWD_DQKV, 3);
        trial_end(&t);
    }
}
END_TEST

/* Many blocks at once, so that an order which depends on them would show. gpu_run runs twice. */
START_TEST(backward_of_many_tiles_gives_the_same_bits_each_time) {
    heads_case h = {4, 1024, 12, 4, 64, 0, false};
    if (absent[0] || gpu.is_small) return;
    trial t = forward_trial(&h, HY_BF16), b = trial_begin(HY_OP_ATTENTION_BWD, 3);
    use(&other);
    gpu_must_run(&t.call);
    b.call.attr = t.call.attr;
    trial_normal(&b, HY_ATTENTION_BWD_DOUT, HY_BF16, rows_of(&h), (int64_t)h.H * h.D, 0, 1);
    trial_tensor(&b, HY_ATTENTION_BWD_DQKV, HY_BF16, rows_of(&h), packed_width(&h));
    b.call.t[HY_ATTENTION_BWD_QKV] = t.call.t[HY_ATTENTION_QKV];
    b.call.t[HY_ATTENTION_BWD_OUT] = t.call.t[HY_ATTENTION_OUT];
    b.call.t[HY_ATTENTION_BWD_LSE] = t.call.t[HY_ATTENTION_LSE];
    ck_assert(is_served(&b.call));
    gpu_must_run(&b.call);
    hy_tensor first = copy_tensor(&b.call.t[HY_ATTENTION_BWD_DQKV]);
    for (int i = 0; i < 3; i++) {
        gpu_must_run(&b.call);
        ck_assert_mem_eq(first.data, b.call.t[HY_ATTENTION_BWD_DQKV].data, hy_tensor_bytes(&first));
    }
    check_against_own(&b, HY_ATTENTION_BWD_DQKV, 3);
    free(first.data);
    b.call.t[HY_ATTENTION_BWD_QKV].data = b.call.t[HY_ATTENTION_BWD_OUT].data =
        b.call.t[HY_ATTENTION_BWD_LSE].data = NULL; /* t's */
    trial_end(&b);
    trial_end(&t);
}
END_TEST

START_TEST(our_kernels_serve_what_cudnn_does_not_support) {
    for (int i = 0; i < LEFT; i++) {
        trial f = forward_trial(&left[i], HY_BF16), b = backward_trial(&left[i], HY_BF16);
        ck_assert(!is_served(&f.call) && !is_served(&b.call));
        use(&other);
        gpu_must_run(&f.call);
        check_same_bits(&f, 2);
        use(&other);
        gpu_must_run(&b.call);
        check_same_bits(&b, 5);
        trial_end(&f);
        trial_end(&b);
    }
    /* The first reason is reported: an older cuDNN has another one. */
    const char *told = other.backend->facts.warning;
    bool is_old = strstr(told, "need cuDNN") != NULL;
    ck_assert_msg(is_old || strstr(told, absent[0] ? "cuDNN" : "document"), "%s", told);
}
END_TEST

/* Captures the call as a graph that is replayed twice; its output must be what gpu_run left
 * there. */
static void check_captured(const trial *t, int at) {
    hy_backend *b = other.backend;
    hy_op_call probe = t->call;
    hy_graph *graph = NULL;
    gpu_layout l = gpu_lay_out(&t->call, b->workspace(b, &probe));
    gpu_reserve(l.total);
    hy_op_call bound = gpu_bound(&t->call, &l);
    char *before = gpu_image(&t->call, &l), *after = malloc(l.total);
    must(b->prepare(b, &bound));
    must(b->capture_begin(gpu.stream));
    must(b->enqueue(gpu.stream, &bound));
    must(b->capture_end(gpu.stream, &graph));
    for (int i = 0; i < 2; i++) {
        must(b->copy(gpu.stream, gpu.device, before, l.total));
        must(b->replay(gpu.stream, graph));
        must(b->copy(gpu.stream, after, gpu.device, l.total));
        must(b->stream_sync(gpu.stream));
        ck_assert_mem_eq(after + l.begin[at], t->call.t[at].data, l.end[at] - l.begin[at]);
    }
    b->graph_destroy(graph);
    free(before);
    free(after);
}

START_TEST(a_captured_graph_gives_the_bits_of_the_calls_themselves) {
    heads_case h = {2, 256, 4, 2, 64, 0, false};
    trial f = forward_trial(&h, HY_BF16), b = backward_trial(&h, HY_BF16);
    use(&other);
    gpu_must_run(&f.call);
    check_captured(&f, 2);
    gpu_must_run(&b.call);
    check_captured(&b, 5);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: cuDNN");
    TCase *all = tcase_create("cuDNN");
    tcase_add_unchecked_fixture(all, open_both, close_both);
    tcase_add_test(all, forward_agrees_with_the_reference_and_with_our_kernels);
    tcase_add_test(all, backward_agrees_with_the_reference_and_with_our_kernels);
    tcase_add_test(all, backward_of_many_tiles_gives_the_same_bits_each_time);
    tcase_add_test(all, our_kernels_serve_what_cudnn_does_not_support);
    tcase_add_test(all, a_captured_graph_gives_the_bits_of_the_calls_themselves);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
