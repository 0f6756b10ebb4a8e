/* test_gpu_decode.c: the ops of batched decoding on CUDA: against the double-precision reference,
 * with the same bits alone and among others, and replayed from a graph at other positions. */
#include "gpu_rig.h"

#include "sparse_calls.h"

/* ---- matmul ---------------------------------------------------------------------------------- */

/* Beside invariant_cases: every number of token columns, depths that end within a chunk of 128 and
 * within a slice, and matrices that are wide enough for blocks of many weights. */
static const matmul_case cases[] = {
    {1, 64, 16, false, true, false, false, false},
    {1, 1536, 1536, false, true, true, false, false},
    {7, 100, 896, false, true, true, true, false},
    {8, 48, 2304, false, true, false, false, true},
    {12, 200, 1040, false, true, true, false, false},
    {16, 33, 640, false, true, false, true, false},
    {31, 130, 4112, false, true, true, true, false},
    {64, 300, 1152, false, true, false, false, true},
    {65, 96, 272, false, true, true, true, false},
    {64, 8700, 144, false, true, true, false, false},
    {41, 9001, 1040, false, true, true, true, false},
    {64, 5100, 656, false, true, false, false, true},
    {200, 4300, 80, false, true, false, true, false},
    {300, 4500, 208, false, true, true, false, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int64_t work_of(const matmul_case *m) { return m->M * m->N * m->K / 64; }

/* b is read in a's type: of a wider b the reference knows too much. */
static bool rounds_b(const trial *t) {
    hy_dtype a = t->call.t[HY_MATMUL_A].dtype;
    return a != HY_F32 && t->call.t[HY_MATMUL_B].dtype != a;
}

static void check_case(const matmul_case *m, int mixture) {
    if (gpu_leaves_out(work_of(m))) return;
    trial t = invariant_trial(m, mixture);
    bool has_run = gpu_run_both(&t, mixture);
    if (has_run && !rounds_b(&t)) gpu_check(&t, HY_MATMUL_D, 1);
    trial_end(&t);
}

EACH_TYPE(batch_invariant_matmul_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < INVARIANT_CASES; i++) check_case(&invariant_cases[i], mixture);
    for (int i = 0; i < CASES; i++) check_case(&cases[i], mixture);
}

/* Views that begin at any element: a, b, d, bias and c in turn. */
EACH_TYPE(batch_invariant_matmul_of_unaligned_views_agrees_with_the_reference, PURE_TYPES) {
    for (int at = 0; at < 5; at++) {
        gpu.shifted = 1u << at;
        check_case(&cases[2], mixture);
    }
    gpu.shifted = 0;
}

/* `count` rows from row `first` on have the bits that they have in the whole call, which has run on
 * what `d` is. */
static void check_group(const hy_op_call *call, const hy_tensor *d, int64_t first, int64_t count) {
    hy_op_call whole = *call;
    whole.t[HY_MATMUL_D] = copy_tensor(d);
    hy_op_call some = call_of_rows(&whole, first, count), same = call_of_rows(call, first, count);
    gpu_must_run(&some);
    ck_assert_msg(memcmp(some.t[HY_MATMUL_D].data, same.t[HY_MATMUL_D].data,
                         hy_tensor_bytes(&some.t[HY_MATMUL_D])) == 0,
                  "%s by %s: rows %lld to %lld differ from those of a call of %lld",
                  hy_dtype_name(call->t[HY_MATMUL_A].dtype),
                  hy_dtype_name(call->t[HY_MATMUL_B].dtype), (long long)first,
                  (long long)(first + count - 1), (long long)hy_tensor_height(d));
    free(whole.t[HY_MATMUL_D].data);
}

/* Groups at both ends. */
static void check_company(const hy_op_call *call) {
    static const int64_t groups[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 200};
    hy_tensor before = copy_tensor(&call->t[HY_MATMUL_D]);
    int64_t M = hy_tensor_height(&before);
    gpu_must_run(call);
    for (size_t i = 0; i < 2 * sizeof groups / sizeof groups[0]; i++) {
        check_group(call, &before, i % 2 ? M - groups[i / 2] : 0, groups[i / 2]);
    }
    free(before.data);
}

/* The last forms are wide enough for blocks of many weights. */
static const matmul_case companies[] = {
    {265, 72, 1536, false, true, true, false, false},
    {265, 40, 1104, false, true, false, false, true},
    {520, 4300, 192, false, true, true, true, false},
    {265, 5002, 1152, false, true, false, true, false},
    {265, 9100, 1152, false, true, false, false, true},
};
enum { COMPANIES = sizeof companies / sizeof companies[0] };

EACH_TYPE(a_row_of_a_matmul_has_the_same_bits_in_any_company, PURE_TYPES) {
    for (int i = 0; i < COMPANIES; i++) {
        if (gpu_leaves_out(work_of(&companies[i]) / 16)) continue;
        trial t = invariant_trial(&companies[i], mixture);
        check_company(&t.call);
        trial_end(&t);
    }
}

/* bf16 numbers of either sign from 1/256 to 1/128. */
static hy_tensor drawn_rows(int64_t rows, int64_t cols, uint64_t seed) {
    int64_t count = rows * cols;
    uint16_t *x = malloc((size_t)count * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (uint16_t)(0x3b80 | seed >> 57 | (seed >> 56 & 1) << 15);
    }
    return hy_tensor_2d(x, HY_BF16, rows, cols);
}

/* So wide that a card of 126 to 140 multiprocessors with enough shared memory runs more than 32 rows
 * in large blocks, the last of which is not full. */
START_TEST(a_row_of_large_blocks_has_the_same_bits_in_any_company) {
    enum { M = 64, N = 36004, K = 2064 };
    hy_op_call call = {.kind = HY_OP_MATMUL};
    if (gpu.is_small) return;
    call.attr.matmul.trans_b = call.attr.matmul.is_batch_invariant = true;
    call.attr.matmul.alpha = 1;
    call.t[HY_MATMUL_A] = drawn_rows(M, K, 1);
    call.t[HY_MATMUL_B] = drawn_rows(N, K, 2);
    call.t[HY_MATMUL_D] = drawn_rows(M, N, 3);
    gpu_must_run(&call);
    check_group(&call, &call.t[HY_MATMUL_D], 5, 1);
    check_group(&call, &call.t[HY_MATMUL_D], 32, 32);
    check_group(&call, &call.t[HY_MATMUL_D], 0, 33);
    free_call(&call);
}
END_TEST

static void check_coded_company(const matmul_case *m, hy_dtype stored, int mixture) {
    trial t = invariant_trial(m, mixture);
    hy_tensor before = t.call.t[HY_MATMUL_B], codes = coded_rows(stored, m->N, m->K, 5);
    t.call.t[HY_MATMUL_B] = codes;
    check_company(&t.call);
    t.call.t[HY_MATMUL_B] = before;
    free_rows(&codes);
    trial_end(&t);
}

EACH_TYPE(stored_weights_give_the_bits_of_their_cast_in_any_company, PURE_TYPES) {
    static const hy_dtype stored[] = {HY_I8, HY_NF4, HY_E4M3};
    for (int i = 0; i < 4; i++) {
        coded_rows_are_plain = i == 3;
        check_invariant_coded(i == 3 ? HY_NF4 : stored[i], mixture, gpu_must_run);
        for (int j = 0; j < COMPANIES && !gpu.is_small; j++) {
            if (companies[j].K % HY_NF4_BLOCK == 0)
                check_coded_company(&companies[j], i == 3 ? HY_NF4 : stored[i], mixture);
        }
    }
    coded_rows_are_plain = false;
}

/* ---- positions ------------------------------------------------------------------------------- */

EACH_TYPE(rope_turns_each_sequence_at_its_own_position, PURE_TYPES) {
    static const heads_case heads[] = {
        {5, 1, 4, 2, 16, 0, false}, {4, 8, 6, 2, 40, 0, false}, {9, 1, 12, 2, 128, 0, false}};
    for (int i = 0; i < 3; i++) {
        trial t = rope_first_trial(&heads[i], mixture);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_ROPE_QKV, 1);
        trial_end(&t);
    }
}

EACH_TYPE(embeddings_are_at_the_position_of_each_sequence, PURE_TYPES) {
    for (int32_t T = 1; T < 12; T += 10) {
        trial t = embed_first_trial(7, T, mixture);
        ck_assert(gpu_run_both(&t, mixture));
        forget_idle(&t, HY_EMBED_X, t.call.t[HY_EMBED_FIRST].data, T);
        gpu_check(&t, HY_EMBED_X, 1);
        trial_end(&t);
    }
}

/* ---- a cache in blocks ----------------------------------------------------------------------- */

/* Beside blocks_cases: head sizes of tiles, groups that fill columns and that do not, and more
 * sequences than blocks of threads have ranges. */
static const blocks_case tables[] = {
    {{3, 1, 2, 2, 64, 0, false}, 16, 300},     {{5, 1, 9, 1, 80, 0, false}, 16, 520},
    {{4, 1, 6, 3, 96, 70, false}, 32, 400},    {{7, 1, 12, 2, 128, 0, false}, 16, 800},
    {{3, 1, 32, 1, 128, 300, false}, 16, 600}, {{3, 1, 8, 1, 256, 0, false}, 8, 300},
    {{3, 1, 10, 1, 256, 90, false}, 1, 270},   {{2, 33, 6, 1, 64, 0, false}, 16, 256},
    {{2, 70, 4, 4, 80, 50, false}, 16, 200},   {{3, 5, 4, 2, 96, 0, false}, 256, 500},
    {{1, 256, 6, 2, 128, 0, false}, 16, 512},  {{2, 40, 4, 1, 256, 300, false}, 16, 310},
    {{1, 300, 48, 4, 128, 0, false}, 16, 256}, {{1, 300, 48, 8, 128, 90, false}, 16, 700},
    {{530, 1, 1, 1, 16, 0, false}, 16, 300},
};
enum { TABLES = sizeof tables / sizeof tables[0] };

static bool leaves_out(const blocks_case *k) {
    return gpu_leaves_out(rows_of(&k->heads) * packed_width(&k->heads) * (k->most / 256 + 1));
}

/* The weights of keys are rounded to 16 bits before they meet the values. */
static void check_attention_of(trial t, const blocks_case *k, int mixture) {
    bool is_fp32 = t.call.t[HY_ATTENTION_CACHED_QKV].dtype == HY_F32;
    double factor = t.call.attr.heads.softcap > 0 ? 3 : is_fp32 ? 1 : 1.5;
    if (gpu_run_both(&t, mixture)) {
        forget_idle(&t, HY_ATTENTION_CACHED_OUT, t.call.t[HY_ATTENTION_CACHED_FIRST].data,
                    k->heads.T);
        gpu_check_to(&t, HY_ATTENTION_CACHED_OUT, factor, is_fp32 ? factor : 4 * factor);
    }
    trial_end(&t);
}

static void check_attention(const blocks_case *k, int mixture) {
    check_attention_of(blocks_trial(k, mixture), k, mixture);
}

EACH_TYPE(attention_with_a_cache_in_blocks_agrees_with_the_reference, 5) {
    for (int i = 0; i < BLOCKS_CASES + TABLES; i++) {
        const blocks_case *k = i < BLOCKS_CASES ? &blocks_cases[i] : &tables[i - BLOCKS_CASES];
        if (leaves_out(k)) continue;
        check_attention(k, mixture);
        set_attention_options(i % ATTENTION_VARIANTS);
        check_attention(k, mixture);
        clear_options();
    }
}

EACH_TYPE(a_sequence_has_the_same_bits_in_any_company, PURE_TYPES) {
    for (int i = 0; i < BLOCKS_CASES + TABLES - 1; i++) {
        const blocks_case *k = i < BLOCKS_CASES ? &blocks_cases[i] : &tables[i - BLOCKS_CASES];
        if (leaves_out(k)) continue;
        trial t = blocks_trial(k, mixture);
        check_sequences_alone(&t.call, gpu_must_run);
        trial_end(&t);
    }
}

/* A row's bits depend on its position only, not on the chunk that it came in. */
EACH_TYPE(a_prompt_has_the_same_bits_in_chunks_of_any_size, PURE_TYPES) {
    static const blocks_case prompts[] = {{{1, 150, 6, 2, 24, 0, false}, 32, 90},
                                          {{1, 150, 4, 1, 80, 33, false}, 16, 530},
                                          {{1, 150, 6, 1, 128, 0, false}, 16, 300},
                                          {{1, 300, 48, 4, 128, 0, false}, 16, 256}};
    static const int32_t chunks[] = {7, 16, 64};
    for (int i = 0; i < 12; i++) {
        if (leaves_out(&prompts[i / 3])) continue;
        trial t = blocks_trial(&prompts[i / 3], mixture);
        check_chunks(&t.call, chunks[i % 3], gpu_must_run);
        trial_end(&t);
    }
}

static bool leaves_out_sparse(int i) { return leaves_out(&sparse_blocks_cases[i]); }

EACH_TYPE(sparse_attention_with_a_cache_agrees_with_the_reference, 5) {
    for (int i = 0; i < SPARSE_BLOCKS_CASES * SPARSE_PATTERNS; i++) {
        const blocks_case *k = &sparse_blocks_cases[i / SPARSE_PATTERNS];
        if (leaves_out_sparse(i / SPARSE_PATTERNS)) continue;
        check_attention_of(sparse_blocks_trial(k, mixture, i % SPARSE_PATTERNS), k, mixture);
    }
}

EACH_TYPE(a_sparse_sequence_has_the_same_bits_in_any_company, PURE_TYPES) {
    for (int i = 0; i < SPARSE_BLOCKS_CASES; i++) {
        if (leaves_out_sparse(i)) continue;
        trial t = sparse_blocks_trial(&sparse_blocks_cases[i], mixture, i % SPARSE_PATTERNS);
        check_sequences_alone(&t.call, gpu_must_run);
        trial_end(&t);
    }
}

EACH_TYPE(a_sparse_prompt_has_the_same_bits_in_chunks_of_any_size, PURE_TYPES) {
    static const blocks_case prompts[] = {{{1, 150, 6, 2, 24, 0, false}, 32, 390},
                                          {{1, 300, 4, 1, 128, 0, false}, 16, 530},
                                          {{1, 200, 4, 2, 64, 0, false}, 16, 700}};
    static const int32_t chunks[] = {7, 16, 64};
    for (int i = 0; i < 9; i++) {
        if (leaves_out(&prompts[i / 3])) continue;
        trial t = sparse_blocks_trial(&prompts[i / 3], mixture, i % SPARSE_PATTERNS);
        check_chunks(&t.call, chunks[i % 3], gpu_must_run);
        trial_end(&t);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Rows with limits of all kinds, alone and together. */
static hy_op_call random_call(const sample_rows *s, double deviation, uint64_t seed) {
    static const float temperatures[] = {1, 0.7f, 1.5f}, shares[] = {0, 0.95f, 0.5f, 1e-12f, 1};
    static const int32_t counts[] = {0, 40, 1, 300, 1000000};
    static const float least[] = {0, 0.05f, 0.5f};
    hy_op_call call = sample_call(s, deviation, seed);
    for (int64_t row = 0; row < s->rows; row++) {
        *sampling_at(&call, row) =
            (hy_sampling){.temperature = row % 16 == 15 ? 0 : temperatures[row % 3],
                          .top_p = shares[row % 5],
                          .top_k = counts[row / 5 % 5],
                          .min_p = least[row / 25 % 3],
                          .penalty = s->has_seen ? 1 + 0.1f * (float)(row % 4) : 0,
                          .forced = row % 32 == 9 ? (int32_t)row : -1,
                          .seed = seed,
                          .position = (uint64_t)row};
    }
    for (int64_t i = 0; s->has_seen && i < hy_tensor_count(&call.t[HY_SAMPLE_SEEN]); i++) {
        ((uint32_t *)call.t[HY_SAMPLE_SEEN].data)[i] = (uint32_t)(i * 0x9e3779b9u);
    }
    return call;
}

/* Rows that are aligned and that are not, vocabularies that end within a span, many equal
 * logits. */
static const sample_rows shapes[] = {
    {75, 5003, 5, HY_F32, 5000, 1, 0, true},    {75, 4096, 20, HY_BF16, 4096, 0, 0, false},
    {75, 9001, 0, HY_F16, 9001, 0.5f, 0, true}, {75, 700, 1, HY_F32, 641, 1, 5, false},
    {40, 20, 20, HY_F32, 20, 1, 0, true},       {40, 151936, 3, HY_BF16, 151643, 1, 0, true},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

START_TEST(sampled_tokens_are_those_of_a_full_sort) {
    for (int i = 0; i < 2 * SHAPES; i++) {
        const sample_rows *s = &shapes[i / 2];
        if (gpu_leaves_out(s->rows * s->V / 16)) continue;
        hy_op_call call = random_call(s, i % 2 ? 0.1 : 3, (uint64_t)i), before = call;
        before.t[HY_SAMPLE_SEEN] = copy_tensor(&call.t[HY_SAMPLE_SEEN]);
        gpu_must_run(&call);
        before.t[HY_SAMPLE_TOKENS] = call.t[HY_SAMPLE_TOKENS];
        ck_assert_int_gt(check_tokens_chosen(&before), s->rows * 8 / 10);
        check_log_probabilities(&call);
        free(before.t[HY_SAMPLE_SEEN].data);
        free_call(&call);
    }
}
END_TEST

START_TEST(a_sampled_row_has_the_same_bits_in_any_company) {
    for (int i = 0; i < SHAPES; i++) {
        if (gpu_leaves_out(shapes[i].rows * shapes[i].V / 16)) continue;
        hy_op_call call = random_call(&shapes[i], 1, 9);
        check_samples_alone(&call, gpu_must_run);
        free_call(&call);
    }
}
END_TEST

/* Of zeros of either sign, the lowest ids are candidates. */
START_TEST(among_equal_logits_the_lowest_ids_are_first) {
    enum { ROWS = 64, V = 5000 };
    sample_rows s = {ROWS, V, 3, HY_F32, V, 1, 0, false};
    hy_op_call call = sample_call(&s, 0, 3);
    bool has_token[10] = {false};
    for (int64_t i = 0; i < ROWS * V; i++) {
        ((float *)call.t[HY_SAMPLE_LOGITS].data)[i] = i % 2 ? 0.0f : -0.0f;
    }
    for (int64_t row = 0; row < ROWS; row++) {
        hy_sampling *with = sampling_at(&call, row);
        with->temperature = row % 4 ? 1 : 0;
        with->top_k = row % 2 ? 10 : 0;
        with->top_p = row % 4 == 2 ? 0.0009f : 0; /* five of 5,000 */
    }
    gpu_must_run(&call);
    for (int64_t row = 0; row < ROWS; row++) {
        int32_t limit = row % 4 == 0 ? 1 : row % 2 ? 10 : 5, token = token_at(&call, row);
        ck_assert(token >= 0 && token < limit);
        has_token[token] = true;
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(((int32_t *)call.t[HY_SAMPLE_TOP_TOKENS].data)[row * 3 + i], i);
        }
    }
    for (int i = 0; i < 10; i++) ck_assert(has_token[i]);
    free_call(&call);
}
END_TEST

/* Rows with NaN, with infinities, and without any number. */
START_TEST(logits_that_are_no_numbers_give_a_token_that_exists) {
    enum { ROWS = 12, V = 300 };
    sample_rows s = {ROWS, V, 4, HY_F32, 290, 1, 0, false};
    hy_op_call call = sample_call(&s, 1, 3);
    float *logits = call.t[HY_SAMPLE_LOGITS].data;
    for (int row = 0; row < ROWS; row++) {
        sampling_at(&call, row)->temperature = (float)(row % 3);
        sampling_at(&call, row)->top_p = row % 2 ? 0.9f : 0;
        for (int i = 0; row >= 3 && i < V; i++) {
            logits[row * V + i] = row < 6 ? NAN : row < 9 ? -INFINITY : logits[row * V + i];
        }
        if (row < 3) logits[row * V + 7 * row] = NAN;
        if (row >= 9) logits[row * V + 11] = INFINITY;
    }
    gpu_must_run(&call);
    for (int row = 0; row < ROWS; row++) {
        const int32_t *top = (int32_t *)call.t[HY_SAMPLE_TOP_TOKENS].data + row * 4;
        ck_assert(token_at(&call, row) >= 0 && token_at(&call, row) < 290);
        ck_assert(isnan(logprob_at(&call, row)));
        for (int i = 0; i < 4; i++) {
            ck_assert(top[i] >= 0 && top[i] < 290);
            for (int k = 0; k < i; k++) ck_assert_int_ne(top[i], top[k]);
        }
        if (row < 3) ck_assert_int_ne(token_at(&call, row), 7 * row);
        if (row >= 9) ck_assert_int_eq(token_at(&call, row), 11);
    }
    free_call(&call);
}
END_TEST

START_TEST(the_penalty_is_for_seen_tokens_and_the_chosen_one_is_marked) {
    enum { V = 70 };
    sample_rows s = {2, V, 0, HY_F32, V, 1, 0, true};
    hy_op_call call = sample_call(&s, 0, 3);
    float *logits = call.t[HY_SAMPLE_LOGITS].data;
    uint32_t *seen = call.t[HY_SAMPLE_SEEN].data;
    logits[66] = 2, logits[3] = 1.5f; /* 2 / 1.6 is below 1.5 */
    for (int i = 0; i < V; i++) logits[V + i] = -3;
    logits[V + 5] = -1, logits[V + 65] = -1.5f; /* -1 * 1.6 is below -1.5 */
    seen[2] = 1u << 2, seen[3] = 1u << 5;
    for (int i = 0; i < 2; i++) sampling_at(&call, i)->penalty = 1.6f;
    gpu_run(&call); /* twice, each time from what was seen before */
    ck_assert_int_eq(token_at(&call, 0), 3);
    ck_assert_int_eq(token_at(&call, 1), 65);
    ck_assert_uint_eq(seen[0], 1u << 3);
    ck_assert_uint_eq(seen[2], 1u << 2);
    ck_assert_uint_eq(seen[3], 1u << 5);
    ck_assert_uint_eq(seen[5], 1u << 1);
    free_call(&call);
}
END_TEST

/* ---- graphs ---------------------------------------------------------------------------------- */

enum { REPLAYS = 3 };

/* Copies the call's tensors to where the graph has them, replays it, and compares what it writes
 * with the same call run by itself. */
static void check_replay(const hy_op_call *call, const gpu_layout *l, hy_graph *graph) {
    char *before = gpu_image(call, l), *after = malloc(l->total);
    ck_assert_ptr_nonnull(after);
    must(gpu.backend->copy(gpu.stream, gpu.device, before, l->total));
    must(gpu.backend->replay(gpu.stream, graph));
    must(gpu.backend->copy(gpu.stream, after, gpu.device, l->total));
    must(gpu.backend->stream_sync(gpu.stream));
    gpu_check_bands(call, l, after);
    hy_op_call alone = *call;
    for (int i = 0; i < HY_OP_TENSORS; i++) alone.t[i] = copy_tensor(&call->t[i]);
    gpu_must_run(&alone);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i]) continue;
        ck_assert_msg(memcmp(after + l->begin[i], alone.t[i].data, l->end[i] - l->begin[i]) == 0,
                      "%s: %s differs when replayed", hy_op_name(call->kind),
                      hy_op_tensor_name(call->kind, i));
    }
    free_call(&alone);
    free(before);
    free(after);
}

/* Captures a call, and replays it with its integers at `at` changed. */
static void check_graph(hy_op_call *call, int at, int32_t (*changed)(int32_t value, int round)) {
    hy_backend *b = gpu.backend;
    hy_graph *graph = NULL;
    hy_op_call planned = gpu_planned(call);
    must(b->prepare(b, &planned));
    gpu_layout l = gpu_lay_out(call, b->workspace(b, &planned));
    hy_tensor first = copy_tensor(&call->t[at]);
    gpu_must_run(call); /* loads the kernels, and makes room */
    gpu_reserve(l.total);
    hy_op_call bound = gpu_bound(call, &l);
    must(b->capture_begin(gpu.stream));
    must(b->enqueue(gpu.stream, &bound));
    must(b->capture_end(gpu.stream, &graph));
    for (int round = 0; round < REPLAYS; round++) {
        for (int64_t i = 0; i < hy_tensor_count(&first); i++) {
            ((int32_t *)call->t[at].data)[i] = changed(((const int32_t *)first.data)[i], round);
        }
        check_replay(call, &l, graph);
    }
    b->graph_destroy(graph);
    free(first.data);
}

/* In the small set, the memory of each run lies elsewhere. */
static bool has_graphs(void) { return gpu.backend->capture_begin && !gpu.is_small; }

/* Earlier positions, and every other sequence idle. */
static int32_t earlier(int32_t first, int round) {
    return round == 2 && first % 2 ? -1 : first < 0 ? -1 : first * (round + 1) / REPLAYS;
}
static int32_t other_bits(int32_t bits, int round) { return bits ^ round * 0x01010101; }
/* Of the bits of an fp32 number. */
static int32_t half_as_large(int32_t bits, int round) {
    return hy_bits_float((uint32_t)bits) == 0 ? 0 : bits - (round << 23);
}

EACH_TYPE(a_graph_serves_all_positions, PURE_TYPES) {
    static const blocks_case k[] = {{{5, 1, 6, 2, 64, 0, false}, 16, 600},
                                    {{3, 20, 6, 2, 128, 0, false}, 16, 300},
                                    {{3, 1, 6, 2, 24, 0, false}, 16, 300}};
    if (!has_graphs()) return;
    for (int i = 0; i < 3; i++) {
        trial t = blocks_trial(&k[i], mixture);
        for (int64_t n = 0; n < hy_tensor_count(&t.call.t[HY_ATTENTION_CACHED_CACHE]); n++) {
            trial_put(&t, HY_ATTENTION_CACHED_CACHE, n, roll_normal(&t.dice));
        }
        check_graph(&t.call, HY_ATTENTION_CACHED_FIRST, earlier);
        trial_end(&t);
    }
    trial rope = rope_first_trial(&k[0].heads, mixture), embed = embed_first_trial(5, 1, mixture);
    check_graph(&rope.call, HY_ROPE_FIRST, earlier);
    check_graph(&embed.call, HY_EMBED_FIRST, earlier);
    trial_end(&rope);
    trial_end(&embed);
}

START_TEST(matmuls_and_sampling_are_replayed) {
    if (!has_graphs()) return;
    hy_op_call sample = random_call(&shapes[0], 1, 9);
    check_graph(&sample, HY_SAMPLE_SEEN, other_bits);
    free_call(&sample);
    for (int i = 0; i < CASES; i++) {
        if (work_of(&cases[i]) > 1 << 18) continue;
        trial t = invariant_trial(&cases[i], 0);
        check_graph(&t.call, HY_MATMUL_A, half_as_large);
        trial_end(&t);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: decode");
    TCase *all = tcase_create("decode");
    tcase_add_test(all, batch_invariant_matmul_agrees_with_the_reference);
    tcase_add_test(all, batch_invariant_matmul_of_unaligned_views_agrees_with_the_reference);
    tcase_add_test(all, a_row_of_a_matmul_has_the_same_bits_in_any_company);
    tcase_add_test(all, a_row_of_large_blocks_has_the_same_bits_in_any_company);
    tcase_add_test(all, stored_weights_give_the_bits_of_their_cast_in_any_company);
    tcase_add_test(all, rope_turns_each_sequence_at_its_own_position);
    tcase_add_test(all, embeddings_are_at_the_position_of_each_sequence);
    tcase_add_test(all, attention_with_a_cache_in_blocks_agrees_with_the_reference);
    tcase_add_test(all, a_sequence_has_the_same_bits_in_any_company);
    tcase_add_test(all, a_prompt_has_the_same_bits_in_chunks_of_any_size);
    tcase_add_test(all, sparse_attention_with_a_cache_agrees_with_the_reference);
    tcase_add_test(all, a_sparse_sequence_has_the_same_bits_in_any_company);
    tcase_add_test(all, a_sparse_prompt_has_the_same_bits_in_chunks_of_any_size);
    tcase_add_test(all, sampled_tokens_are_those_of_a_full_sort);
    tcase_add_test(all, a_sampled_row_has_the_same_bits_in_any_company);
    tcase_add_test(all, among_equal_logits_the_lowest_ids_are_first);
    tcase_add_test(all, logits_that_are_no_numbers_give_a_token_that_exists);
    tcase_add_test(all, the_penalty_is_for_seen_tokens_and_the_chosen_one_is_marked);
    tcase_add_test(all, a_graph_serves_all_positions);
    tcase_add_test(all, matmuls_and_sampling_are_replayed);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
