/* test_gpu_heads.c: head norm, rope and attention on CUDA against the double-precision reference.
 *
 * Grouped heads, sliding windows, documents, every head size that has a fast path and sizes that
 * have none, sequences of one token, of several tiles and with an odd end. */
#include "gpu_rig.h"

#include "base/file.h"
#include "head_calls.h"
#include "kernels/attention_layout.h"
#include "sparse_calls.h"

/* ---- cases ----------------------------------------------------------------------------------- */

static const heads_case cases[] = {
    {1, 1, 1, 1, 16, 0, false},    {2, 7, 4, 2, 16, 0, true},     {1, 70, 3, 3, 64, 0, false},
    {3, 65, 6, 2, 40, 9, false},   {1, 130, 8, 1, 128, 0, true},  {1, 600, 2, 1, 24, 0, false},
    {2, 129, 2, 2, 256, 64, true}, {2, 128, 4, 2, 64, 0, false},  {1, 257, 4, 4, 64, 0, true},
    {1, 513, 2, 2, 64, 100, true}, {1, 200, 2, 1, 80, 0, false},  {1, 131, 3, 1, 80, 33, true},
    {1, 193, 2, 2, 96, 0, true},   {2, 64, 6, 2, 96, 0, false},   {1, 385, 4, 1, 128, 0, false},
    {1, 320, 2, 2, 128, 1, false}, {1, 300, 7, 1, 128, 50, true}, {1, 150, 2, 1, 256, 0, false},
    {3, 33, 2, 2, 6, 0, false},    {1, 100, 2, 1, 8, 0, true},    {1, 90, 2, 2, 72, 20, false},
    {1, 77, 2, 1, 112, 0, true},   {1, 50, 1, 1, 192, 0, false},  {1, 1030, 1, 1, 64, 0, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static bool leaves_out(const heads_case *h) { return gpu_leaves_out(rows_of(h) * packed_width(h)); }

/* ---- head norm ------------------------------------------------------------------------------- */

EACH_TYPE(head_norm_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_trial(&cases[i], mixture);
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, HY_HEAD_NORM_OUT, 1);
            gpu_check(&t, HY_HEAD_NORM_RSTD, 1);
        }
        trial_end(&t);
    }
}

EACH_TYPE(head_norm_backward_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_bwd_trial(&cases[i], mixture, i != 2);
        t.call.attr.accumulate = i % 2;
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, HY_HEAD_NORM_BWD_DQKV, 2);
            if (i != 2) gpu_check(&t, HY_HEAD_NORM_BWD_DWQ, 2);
            if (i != 2) gpu_check(&t, HY_HEAD_NORM_BWD_DWK, 2);
        }
        trial_end(&t);
    }
}

EACH_TYPE(head_norm_with_options_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 3 * CASES; i++) {
        const heads_case *h = &cases[i / 3];
        if (leaves_out(h)) continue;
        heads_with.norm_offset = i % 3 == 0 ? 0 : 1;
        heads_with.is_whole = i % 3 != 2;
        trial f = head_norm_trial(h, mixture), b = head_norm_bwd_trial(h, mixture, i % 7 != 2);
        b.call.attr.accumulate = i % 2;
        if (gpu_run_both(&f, mixture)) {
            gpu_check(&f, HY_HEAD_NORM_OUT, 1);
            gpu_check(&f, HY_HEAD_NORM_RSTD, 1);
        }
        if (gpu_run_both(&b, mixture)) {
            gpu_check(&b, HY_HEAD_NORM_BWD_DQKV, 2);
            if (i % 7 != 2) gpu_check(&b, HY_HEAD_NORM_BWD_DWQ, 2);
            if (i % 7 != 2) gpu_check(&b, HY_HEAD_NORM_BWD_DWK, 2);
        }
        trial_end(&f);
        trial_end(&b);
    }
    clear_options();
}

EACH_TYPE(head_norm_backward_may_write_over_its_input, PURE_TYPES) {
    for (int i = 0; i < 6; i++) {
        heads_with.is_whole = i % 2;
        check_head_norm_in_place(&cases[2 + i / 2], mixture, gpu_must_run);
    }
    clear_options();
}

/* ---- rope ------------------------------------------------------------------------------------ */

EACH_TYPE(rope_turns_as_the_reference_and_back, PURE_TYPES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = rope_trial(&cases[i], mixture);
        hy_tensor before = copy_tensor(&t.exact.t[HY_ROPE_QKV]);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_ROPE_QKV, 1);
        check_rope_back(&t, before.data, gpu_must_run);
        free(before.data);
        trial_end(&t);
    }
}

EACH_TYPE(rope_of_part_of_a_head_agrees_with_the_reference, PURE_TYPES) {
    for (int i = 0; i < 8 * CASES; i++) {
        const heads_case *h = &cases[i / 8];
        if (leaves_out(h)) continue;
        set_rope_options(h, i % 4);
        trial t = rope_trial(h, mixture);
        t.call.attr.heads.inverse = i & 4;
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_ROPE_QKV, 1);
        trial_end(&t);
    }
    clear_options();
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What attention in 16 bits may cost: the weights are rounded to the type before they meet v, and
 * the result once more; both are one rounding in size. Tokens that see few keys have larger results
 * than most, and an error to match. lse is fp32, from exact products. */
static void check_forward(const trial *t) {
    bool is_fp32 = t->call.t[HY_ATTENTION_QKV].dtype == HY_F32;
    gpu_check_to(t, HY_ATTENTION_OUT, is_fp32 ? 1 : 1.5, is_fp32 ? 1 : 4);
    /* the tanh of capped scores is exact to 4e-7, times the cap */
    gpu_check(t, HY_ATTENTION_LSE, t->call.attr.heads.softcap > 0 ? 5 : 1);
}

EACH_TYPE(attention_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = attention_trial(&cases[i], mixture);
        if (gpu_run_both(&t, mixture)) check_forward(&t);
        trial_end(&t);
    }
}

EACH_TYPE(attention_of_any_shape_agrees_with_the_reference, PURE_TYPES) {
    static const int32_t sizes[] = {64, 128, 80, 96, 256, 32};
    dice d = {.seed = 5 + (uint64_t)mixture};
    for (int i = 0; i < 12; i++) {
        heads_case h = {.B = (int32_t)roll(&d, 1, 3), .T = (int32_t)roll(&d, 1, 300)};
        h.K = (int32_t)roll(&d, 1, 3);
        h.H = h.K * (int32_t)roll(&d, 1, 4);
        h.D = sizes[i % 6];
        h.window = roll(&d, 0, 1) ? (int32_t)roll(&d, 1, 300) : 0;
        h.has_doc_starts = roll(&d, 0, 1);
        if (leaves_out(&h)) continue;
        trial t = attention_trial(&h, mixture);
        ck_assert(gpu_run_both(&t, mixture));
        check_forward(&t);
        trial_end(&t);
    }
}

/* Scores that grow along the sequence make each tile raise the running maximum. */
EACH_TYPE(attention_survives_scores_that_would_overflow, 2) {
    heads_case h = {1, 1100, 1, 1, 64, 0, false};
    if (leaves_out(&h)) return;
    trial t = attention_trial(&h, mixture);
    for (int64_t i = 0; i < h.T; i++) {
        for (int64_t d = 0; d < h.D; d++) {
            trial_put(&t, HY_ATTENTION_QKV, i * 3 * h.D + d, 1);
            trial_put(&t, HY_ATTENTION_QKV, i * 3 * h.D + h.D + d, (double)(i / 8 * 8));
        }
    }
    ck_assert(gpu_run_both(&t, mixture));
    gpu_check(&t, HY_ATTENTION_OUT, 3);
    gpu_check(&t, HY_ATTENTION_LSE, 1);
    trial_end(&t);
}

/* Roundings on the way in 16 bits: `out` as it comes (and with it delta), the weights, the gradient
 * of the scores, the result. They add up over a sequence like chance does, and more where few keys
 * are seen: the worst of 10^5 elements is off by up to ten times the usual error. */
static double backward_factor(const trial *t) {
    double out = tolerance_of(t->call.t[HY_ATTENTION_BWD_OUT].dtype) /
                 tolerance_of(t->call.t[HY_ATTENTION_BWD_DQKV].dtype);
    return 1 + 1.5 * out + (t->call.t[HY_ATTENTION_BWD_QKV].dtype == HY_F32 ? 0 : 0.5);
}

EACH_TYPE(attention_backward_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = attention_bwd_trial(&cases[i], mixture);
        double factor = backward_factor(&t);
        if (gpu_run_both(&t, mixture)) gpu_check_to(&t, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
        trial_end(&t);
    }
}

EACH_TYPE(attention_with_sinks_and_capped_scores_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < ATTENTION_VARIANTS * CASES; i++) {
        const heads_case *h = &cases[i / ATTENTION_VARIANTS];
        if (leaves_out(h)) continue;
        set_attention_options(i % ATTENTION_VARIANTS);
        trial f = attention_trial(h, mixture), b = attention_bwd_trial(h, mixture);
        double factor = backward_factor(&b);
        b.call.attr.accumulate = i % 2;
        if (gpu_run_both(&f, mixture)) check_forward(&f);
        if (gpu_run_both(&b, mixture)) {
            gpu_check_to(&b, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
            check_sink_gradient(&b);
        }
        trial_end(&f);
        trial_end(&b);
    }
    clear_options();
}

/* Runs the backward pass as on a card with `memory` bytes; returns a copy of dqkv. */
static hy_tensor backward_with(trial *t, size_t memory) {
    hy_device_facts *facts = &gpu.backend->facts;
    size_t all = facts->memory_total;
    double factor = backward_factor(t);
    facts->memory_total = memory;
    ck_assert(gpu_run_both(t, 1));
    facts->memory_total = all;
    gpu_check_to(t, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
    check_sink_gradient(t);
    return copy_tensor(&t->call.t[HY_ATTENTION_BWD_DQKV]);
}

/* Memory of a card that keeps scores' gradients of so many heads of k and v at a time. */
static size_t memory_for(const heads_case *h, int32_t units) {
    size_t pieces = (size_t)hy_attention_pieces(h->T) * (size_t)(units * (h->H / h->K));
    return pieces * HY_BWD_PIECE_BYTES * HY_BWD_SHARE_OF_MEMORY;
}

START_TEST(attention_backward_agrees_whether_gradients_of_scores_are_kept_or_not) {
    static const heads_case shapes[] = {{2, 300, 4, 2, 64, 0, false},
                                        {1, 129, 3, 3, 80, 0, false},
                                        {3, 64, 6, 2, 96, 0, false},
                                        {2, 257, 6, 3, 128, 300, false},
                                        {1, 100, 4, 1, 256, 0, false}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (int i = 0; i < SHAPES * (1 + ATTENTION_VARIANTS); i++) {
        const heads_case *h = &shapes[i % SHAPES];
        if (leaves_out(h)) continue;
        if (i >= SHAPES) set_attention_options(i / SHAPES - 1);
        trial t = attention_bwd_trial(h, 1);
        hy_tensor kept = backward_with(&t, memory_for(h, h->B * h->K)),
                  made_twice = backward_with(&t, memory_for(h, 1) - 1);
        free(kept.data);
        free(made_twice.data);
        trial_end(&t);
    }
    clear_options();
}
END_TEST

/* Many heads of short sequences, since a card is to have enough to do in each round. */
START_TEST(attention_backward_has_the_same_bits_in_rounds) {
    const heads_case h = {40, 200, 8, 8, 64, 0, false};
    if (gpu.is_small) return;
    trial t = attention_bwd_trial(&h, 1);
    hy_tensor whole = backward_with(&t, memory_for(&h, h.B * h.K)),
              halves = backward_with(&t, memory_for(&h, h.B * h.K / 2 + 3));
    ck_assert_mem_eq(whole.data, halves.data, hy_tensor_bytes(&whole));
    free(whole.data);
    free(halves.data);
    trial_end(&t);
}
END_TEST

/* One token's weights are 1 whatever it scores: no gradient reaches q and k. */
START_TEST(attention_backward_of_single_tokens_passes_dout_to_v) {
    heads_case h = {1, 40, 2, 2, 64, 1, false};
    trial t = attention_bwd_trial(&h, 0);
    gpu_must_run(&t.call);
    const float *dout = t.call.t[HY_ATTENTION_BWD_DOUT].data,
                *dqkv = t.call.t[HY_ATTENTION_BWD_DQKV].data;
    for (int64_t n = 0; n < h.T; n++) {
        for (int64_t i = 0; i < 4 * h.D; i++) {
            if (fabsf(dqkv[n * 6 * h.D + i]) > 1e-5f) ck_abort_msg("token %lld", (long long)n);
        }
        for (int64_t i = 0; i < 2 * h.D; i++) {
            float found = dqkv[n * 6 * h.D + 4 * h.D + i];
            if (fabsf(found - dout[n * 2 * h.D + i]) > 1e-5f) ck_abort_msg("v %lld", (long long)n);
        }
    }
    trial_end(&t);
}
END_TEST

/* ---- block-sparse attention ------------------------------------------------------------------ */

/* Beside sparse_cases: several tiles of every head size of the fast path, documents within and across
 * tiles, global keys whose queries several blocks of threads share, and their last tile half empty. */
static const sparse_case sparse_tiles[] = {
    {{1, 1000, 4, 1, 64, 0, false}, 2, 1, 0},  {{2, 900, 2, 2, 128, 0, false}, 3, 2, 0},
    {{2, 700, 4, 2, 128, 0, true}, 2, 1, 300}, {{1, 1200, 2, 1, 256, 0, false}, 1, 2, 0},
    {{1, 1100, 6, 2, 80, 0, true}, 2, 1, 500}, {{1, 1300, 3, 3, 96, 0, false}, 4, 4, 0},
    {{1, 1025, 2, 1, 64, 0, true}, 1, 3, 900}, {{1, 640, 2, 2, 256, 0, true}, 1, 1, 350},
    {{1, 1984, 2, 1, 128, 0, false}, 1, 9, 0}, {{3, 450, 8, 2, 128, 0, false}, 2, 0, 0},
};
enum { SPARSE_TILES = sizeof sparse_tiles / sizeof sparse_tiles[0] };

static void check_sparse_here(const sparse_case *c, int mixture, int variant) {
    set_sparse(c);
    if (variant > 0) set_attention_options(variant - 1);
    trial f = attention_trial(&c->heads, mixture), b = attention_bwd_trial(&c->heads, mixture);
    double factor = backward_factor(&b);
    if (gpu_run_both(&f, mixture)) check_forward(&f);
    if (gpu_run_both(&b, mixture)) {
        gpu_check_to(&b, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
        check_sink_gradient(&b);
    }
    trial_end(&f);
    trial_end(&b);
    clear_options();
}

EACH_TYPE(sparse_attention_agrees_with_the_reference, 5) {
    for (int i = 0; i < SPARSE_CASES + SPARSE_TILES; i++) {
        const sparse_case *c =
            i < SPARSE_CASES ? &sparse_cases[i] : &sparse_tiles[i - SPARSE_CASES];
        if (leaves_out(&c->heads)) continue;
        check_sparse_here(c, mixture, 0);
        if (i < SPARSE_CASES) check_sparse_here(c, mixture, 1 + i % ATTENTION_VARIANTS);
    }
}

/* They then run the same kernels. */
EACH_TYPE(blocks_that_cover_everything_are_full_attention, PURE_TYPES) {
    static const heads_case shapes[] = {{1, 200, 4, 2, 64, 0, false}, {2, 129, 2, 2, 128, 0, true}};
    for (int i = 0; i < 2; i++) {
        if (!leaves_out(&shapes[i])) check_sparse_is_another(&shapes[i], mixture, gpu_must_run);
    }
}

/* ---- whose attention ------------------------------------------------------------------------- */

/* Backends beside the one of the program, which runs our own attention. */
typedef struct side {
    hy_backend *backend;
    hy_stream *stream;
} side;

static side own; /* the program's, while another is in its place */

static void leave_side(void) {
    gpu.backend->stream_destroy(gpu.stream);
    gpu.backend->destroy(gpu.backend);
    gpu.backend = own.backend;
    gpu.stream = own.stream;
}

/* From here on, calls run on a backend with these options, and what a table says. */
static void enter_side(hy_attention_choice attention, hy_tune tune, const char *cache,
                       const char *table) {
    hy_cuda_options options = gpu_options();
    own = (side){gpu.backend, gpu.stream};
    options.attention = attention;
    options.tune = tune;
    options.cache = cache;
    must(hy_cuda_backend_create(&options, &gpu.backend));
    must(gpu.backend->stream_create(gpu.backend, "side", &gpu.stream));
    if (table) must(gpu.backend->load_matmul_table(gpu.backend, table));
}

static char *table_here(void) {
    char *text;
    must(gpu.backend->matmul_table(gpu.backend, &text));
    return text;
}

static const void *plan_here(const hy_op_call *call) {
    hy_op_call planned = gpu_planned(call);
    must(gpu.backend->prepare(gpu.backend, &planned));
    return planned.plan;
}

START_TEST(attention_left_to_the_clock_agrees_with_the_reference) {
    if (!gpu.backend->facts.is_gpu) return;
    enter_side(HY_ATTENTION_AUTO, HY_TUNE_FAST, NULL, NULL);
    for (int i = 0; i < 2 * CASES; i++) {
        if (leaves_out(&cases[i / 2])) continue;
        int type = 1 + i % 2; /* bf16, fp16 */
        trial f = attention_trial(&cases[i / 2], type),
              b = attention_bwd_trial(&cases[i / 2], type);
        double factor = backward_factor(&b);
        ck_assert(gpu_run_both(&f, type) && gpu_run_both(&b, type));
        check_forward(&f);
        gpu_check_to(&b, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
        trial_end(&f);
        trial_end(&b);
    }
    ck_assert_str_eq(gpu.backend->facts.warning, ""); /* what cuDNN does not serve is no news */
    leave_side();
}
END_TEST

/* cuDNN does not serve these, even where it was chosen for the same shape without them. */
START_TEST(sinks_and_capped_scores_use_our_attention) {
    if (!gpu.backend->facts.is_gpu) return;
    static const heads_case h = {2, 256, 4, 2, 128, 0, false};
    enter_side(HY_ATTENTION_CUDNN, HY_TUNE_OFF, NULL, NULL);
    trial plain = attention_trial(&h, 1);
    (void)plan_here(&plain.call);
    for (int variant = 0; variant < ATTENTION_VARIANTS; variant++) {
        set_attention_options(variant);
        trial f = attention_trial(&h, 1), b = attention_bwd_trial(&h, 1);
        ck_assert_ptr_null(plan_here(&f.call));
        ck_assert_ptr_null(plan_here(&b.call));
        ck_assert(gpu_run_both(&f, 1) && gpu_run_both(&b, 1));
        check_forward(&f);
        gpu_check_to(&b, HY_ATTENTION_BWD_DQKV, backward_factor(&b), 10 * backward_factor(&b));
        trial_end(&f);
        trial_end(&b);
    }
    clear_options();
    leave_side();
    trial_end(&plain);
}
END_TEST

/* Forward and backward of a shape that both serve. */
static const heads_case either = {2, 256, 4, 2, 64, 0, false};

/* What a backend chooses for the two, as text that is to be freed. */
static char *chosen(hy_tune tune, const char *cache, const char *table) {
    trial f = attention_trial(&either, 1), b = attention_bwd_trial(&either, 1);
    enter_side(HY_ATTENTION_AUTO, tune, cache, table);
    (void)plan_here(&f.call);
    (void)plan_here(&b.call);
    char *text = table_here();
    leave_side();
    trial_end(&f);
    trial_end(&b);
    return text;
}

START_TEST(a_table_keeps_which_attention_was_chosen) {
    if (!gpu.backend->facts.is_gpu) return;
    char *first = chosen(HY_TUNE_FAST, NULL, NULL);
    ck_assert_ptr_nonnull(strstr(first, "attention-forward/2x256/4-2x64/bf16 "));
    ck_assert_ptr_nonnull(strstr(first, "attention-backward/2x256/4-2x64/bf16 "));
    /* What is timed anew has other microseconds. */
    char *kept = chosen(HY_TUNE_FAST, NULL, first), *untimed = chosen(HY_TUNE_OFF, NULL, first);
    ck_assert_str_eq(kept, first);
    ck_assert_str_eq(untimed, first);
    free(first);
    free(kept);
    free(untimed);
}
END_TEST

/* The text with the choice `from` of every line turned into `to`. */
static char *turned(const char *text, const char *from, const char *to) {
    char *out = calloc(1, 2 * strlen(text) + 1), *end = out;
    ck_assert_ptr_nonnull(out);
    for (const char *at; (at = strstr(text, from)) != NULL; text = at + strlen(from)) {
        end += sprintf(end, "%.*s%s", (int)(at - text), text, to);
    }
    strcpy(end, text);
    return out;
}

/* Runs the trial again by this attention: the result must have the bits that are there. */
static void check_bits_of(const trial *t, int at, hy_attention_choice attention) {
    hy_tensor found = copy_tensor(&t->call.t[at]);
    enter_side(attention, HY_TUNE_OFF, NULL, NULL);
    gpu_must_run(&t->call);
    leave_side();
    ck_assert_mem_eq(found.data, t->call.t[at].data, hy_tensor_bytes(&found));
    free(found.data);
}

/* Whatever the clock would say. */
static void check_table_rules(const char *table, hy_attention_choice attention) {
    trial f = attention_trial(&either, 1), b = attention_bwd_trial(&either, 1);
    enter_side(HY_ATTENTION_AUTO, HY_TUNE_FAST, NULL, table);
    ck_assert_int_eq(plan_here(&f.call) != NULL, attention == HY_ATTENTION_CUDNN);
    ck_assert_int_eq(plan_here(&b.call) != NULL, attention == HY_ATTENTION_CUDNN);
    gpu_must_run(&f.call);
    gpu_must_run(&b.call);
    leave_side();
    check_bits_of(&f, HY_ATTENTION_OUT, attention);
    check_bits_of(&b, HY_ATTENTION_BWD_DQKV, attention);
    trial_end(&f);
    trial_end(&b);
}

START_TEST(what_a_table_says_is_what_runs) {
    if (!gpu.backend->facts.is_gpu) return;
    enter_side(HY_ATTENTION_AUTO, HY_TUNE_OFF, NULL, NULL);
    bool has_cudnn = strstr(gpu.backend->facts.detail, "cuDNN") != NULL;
    leave_side();
    char *first = chosen(HY_TUNE_FAST, NULL, NULL);
    char *to_own = turned(first, " cudnn ", " own "), *to_cudnn = turned(first, " own ", " cudnn ");
    check_table_rules(to_own, HY_ATTENTION_OWN);
    if (has_cudnn) check_table_rules(to_cudnn, HY_ATTENTION_CUDNN);
    free(first);
    free(to_own);
    free(to_cudnn);
}
END_TEST

START_TEST(without_tuning_our_attention_is_used) {
    if (!gpu.backend->facts.is_gpu) return;
    char *text = chosen(HY_TUNE_OFF, NULL, NULL);
    ck_assert_ptr_nonnull(strstr(text, "/bf16 own 0.0 0.0\n"));
    ck_assert_ptr_null(strstr(text, "/bf16 cudnn "));
    free(text);
}
END_TEST

START_TEST(the_cache_spares_timing_attention_again) {
    char folder[256], cache[300], *kept;
    size_t size;
    if (!gpu.backend->facts.is_gpu) return;
    temp_folder(folder);
    snprintf(cache, sizeof cache, "%s/algorithms", folder);
    char *first = chosen(HY_TUNE_FAST, cache, NULL), *second = chosen(HY_TUNE_FAST, cache, NULL);
    ck_assert_str_eq(second, first);
    bool was_timed = strstr(first, " 0.0 0.0\n") == NULL;
    ck_assert_int_eq(hy_path_exists(cache), was_timed);
    if (was_timed) {
        must(hy_file_read(cache, &kept, &size));
        ck_assert_ptr_nonnull(strstr(kept, first));
        free(kept);
    }
    free(first);
    free(second);
    remove_folder(folder);
}
END_TEST

/* What our own and what cuDNN's attention ask for, the larger. */
static size_t larger_workspace(const hy_op_call *call) {
    static const hy_attention_choice either_one[] = {HY_ATTENTION_OWN, HY_ATTENTION_CUDNN};
    hy_op_call planned = gpu_planned(call);
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        enter_side(either_one[i], HY_TUNE_OFF, NULL, NULL);
        size_t bytes = gpu.backend->workspace(gpu.backend, &planned);
        if (bytes > most) most = bytes;
        leave_side();
    }
    return most;
}

/* Sizes are asked for before anything is chosen, and must not change when it is. */
START_TEST(workspace_is_the_same_before_and_after_the_choice) {
    if (!gpu.backend->facts.is_gpu) return;
    trial t[] = {attention_trial(&either, 1), attention_bwd_trial(&either, 1)};
    for (int i = 0; i < 2; i++) {
        size_t wanted = larger_workspace(&t[i].call);
        hy_op_call planned = gpu_planned(&t[i].call);
        enter_side(HY_ATTENTION_AUTO, HY_TUNE_FAST, NULL, NULL);
        ck_assert_uint_eq(gpu.backend->workspace(gpu.backend, &planned), wanted);
        must(gpu.backend->prepare(gpu.backend, &planned));
        ck_assert_uint_eq(gpu.backend->workspace(gpu.backend, &planned), wanted);
        leave_side();
        trial_end(&t[i]);
    }
}
END_TEST

START_TEST(nothing_is_timed_while_a_graph_is_captured) {
    if (!gpu.backend->facts.is_gpu) return;
    trial f = attention_trial(&either, 1);
    hy_op_call planned = gpu_planned(&f.call);
    hy_graph *graph = NULL;
    enter_side(HY_ATTENTION_AUTO, HY_TUNE_FAST, NULL, NULL);
    (void)gpu.backend->workspace(gpu.backend, &planned); /* makes cuDNN's plan */
    must(gpu.backend->capture_begin(gpu.stream));
    ck_assert_ptr_null(plan_here(&f.call));
    must(gpu.backend->capture_end(gpu.stream, &graph));
    char *text = table_here();
    ck_assert_str_eq(text, ""); /* nor settled */
    gpu.backend->graph_destroy(graph);
    leave_side();
    free(text);
    trial_end(&f);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: heads");
    TCase *all = tcase_create("heads");
    tcase_add_test(all, head_norm_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_agrees_with_the_reference);
    tcase_add_test(all, head_norm_with_options_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_may_write_over_its_input);
    tcase_add_test(all, rope_turns_as_the_reference_and_back);
    tcase_add_test(all, rope_of_part_of_a_head_agrees_with_the_reference);
    tcase_add_test(all, attention_agrees_with_the_reference);
    tcase_add_test(all, attention_of_any_shape_agrees_with_the_reference);
    tcase_add_test(all, attention_survives_scores_that_would_overflow);
    tcase_add_test(all, attention_backward_agrees_with_the_reference);
    tcase_add_test(all, attention_with_sinks_and_capped_scores_agrees_with_the_reference);
    tcase_add_test(all, attention_backward_agrees_whether_gradients_of_scores_are_kept_or_not);
    tcase_add_test(all, attention_backward_has_the_same_bits_in_rounds);
    tcase_add_test(all, attention_backward_of_single_tokens_passes_dout_to_v);
    tcase_add_test(all, sparse_attention_agrees_with_the_reference);
    tcase_add_test(all, blocks_that_cover_everything_are_full_attention);
    tcase_add_test(all, attention_left_to_the_clock_agrees_with_the_reference);
    tcase_add_test(all, sinks_and_capped_scores_use_our_attention);
    tcase_add_test(all, a_table_keeps_which_attention_was_chosen);
    tcase_add_test(all, what_a_table_says_is_what_runs);
    tcase_add_test(all, without_tuning_our_attention_is_used);
    tcase_add_test(all, the_cache_spares_timing_attention_again);
    tcase_add_test(all, workspace_is_the_same_before_and_after_the_choice);
    tcase_add_test(all, nothing_is_timed_while_a_graph_is_captured);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
