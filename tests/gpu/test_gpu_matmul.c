/* test_gpu_matmul.c: matmuls on CUDA against the double-precision reference.
 *
 * All transposes, with bias, with an added matrix, adding to what is there; sizes that no tile
 * divides, single rows and columns, the forms that a training step is made of, and views that begin
 * at any row of a matrix. fp32 matmuls are to be fp32 matmuls: TF32 is off here and would fail
 * these bounds. */
#include "gpu_rig.h"

#include "row_calls.h"

/* Beside matmul_cases: the forms that training is made of. */
static const matmul_case cases[] = {
    {777, 1, 64, false, true, false, false, false},
    {128, 256, 64, false, true, true, false, false},   /* forward with bias */
    {128, 64, 256, false, true, true, true, false},    /* projection onto the residual */
    {128, 256, 64, false, false, false, false, false}, /* gradient of x */
    {256, 64, 128, true, false, false, false, false},  /* gradient of w */
    {256, 64, 128, true, false, false, false, true},   /* gradient of w, added */
    {40, 264, 48, false, true, false, false, false},   /* logits of a chunk */
    {264, 48, 40, true, false, false, false, true},
    {12, 36, 5, false, true, true, false, false}, /* nothing a multiple of eight */
    {36, 12, 5, true, false, false, false, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int64_t work_of(const matmul_case *m) { return m->M * m->N * m->K / 64; }

/* How often a 16-bit result is rounded: once; the library rounds the product before it adds to what
 * d holds, and once more where both bias and c are added and rows do not begin at round
 * addresses. */
static double roundings(const matmul_case *m, bool is_in_place) {
    bool is_round = m->M % 8 == 0 && m->N % 8 == 0 && m->K % 8 == 0;
    return 1 + (m->accumulate || is_in_place) + (!is_round && m->has_bias && m->has_c);
}

/* b is read in a's type: of a wider b, which used to be refused, the reference knows too much. */
static bool rounds_b(const trial *t) {
    hy_dtype a = t->call.t[HY_MATMUL_A].dtype;
    return a != HY_F32 && t->call.t[HY_MATMUL_B].dtype != a;
}

static void check_case(const matmul_case *m, int mixture, uint64_t seed) {
    if (gpu_leaves_out(work_of(m))) return;
    trial t = matmul_trial(m, mixture, seed);
    bool has_run = gpu_run_both(&t, mixture);
    if (has_run && !rounds_b(&t)) gpu_check(&t, HY_MATMUL_D, roundings(m, false));
    trial_end(&t);
}

EACH_TYPE(matmul_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < MATMUL_CASES + CASES; i++) {
        const matmul_case *m = i < MATMUL_CASES ? &matmul_cases[i] : &cases[i - MATMUL_CASES];
        check_case(m, mixture, (uint64_t)(100 * i + mixture));
    }
}

EACH_TYPE(matmul_of_any_shape_agrees_with_the_reference, GPU_MIXTURES) {
    dice d = {.seed = 77 + (uint64_t)mixture};
    for (int i = 0; i < 24; i++) {
        matmul_case m = {.M = roll(&d, 1, 300), .N = roll(&d, 1, 300), .K = roll(&d, 1, 300)};
        if (i % 2)
            m = (matmul_case){
                .M = (m.M + 7) / 8 * 8, .N = (m.N + 7) / 8 * 8, .K = (m.K + 7) / 8 * 8};
        m.trans_a = roll(&d, 0, 1);
        m.trans_b = roll(&d, 0, 1);
        m.accumulate = roll(&d, 0, 2) == 0;
        m.has_bias = !m.accumulate && roll(&d, 0, 1);
        m.has_c = !m.accumulate && roll(&d, 0, 1);
        check_case(&m, mixture, 1000 + (uint64_t)(100 * i + mixture));
    }
}

EACH_TYPE(matmul_may_add_to_c_in_place, PURE_TYPES) {
    static const matmul_case forms[] = {{70, 210, 65, false, true, true, true, false},
                                        {64, 128, 64, false, true, true, true, false},
                                        {64, 128, 64, false, true, false, true, false}};
    for (int i = 0; i < 3; i++) {
        trial t = matmul_trial(&forms[i], mixture, 7);
        hy_tensor result = copy_tensor(&t.call.t[HY_MATMUL_C]);
        hy_op_call same = t.call;
        same.t[HY_MATMUL_D] = same.t[HY_MATMUL_C] = result;
        gpu_must_run(&same);
        t.exact.attr = t.call.attr;
        reference_run(&t.exact);
        memcpy(t.call.t[HY_MATMUL_D].data, result.data, hy_tensor_bytes(&result));
        gpu_check(&t, HY_MATMUL_D, roundings(&forms[i], true));
        free(result.data);
        trial_end(&t);
    }
}

EACH_TYPE(a_matrix_has_the_same_bits_in_any_company, PURE_TYPES) {
    check_matmul_batches(mixture, gpu_must_run);
}

/* ---- int8 and fp8 weights -------------------------------------------------------------------- */

EACH_TYPE(a_matmul_by_int8_or_fp8_has_the_bits_of_one_by_their_numbers, PURE_TYPES) {
    static const matmul_case forms[] = {{1, 777, 130, false, true, true, false, false},
                                        {128, 256, 64, false, true, true, true, false},
                                        {128, 64, 256, false, false, false, false, false},
                                        {129, 67, 33, false, true, true, true, false},
                                        {40, 72, 1030, false, false, false, true, false}};
    for (int i = 0; i < 5; i++) {
        if (gpu_leaves_out(work_of(&forms[i]))) continue;
        check_coded_matmul(HY_I8, &forms[i], mixture, gpu_must_run);
        check_coded_matmul(HY_E4M3, &forms[i], mixture, gpu_must_run);
    }
}

START_TEST(casts_to_and_from_int8_are_exact) {
    check_coded_casts(HY_I8, 1, 1, gpu_must_run);
    check_coded_casts(HY_I8, 13, 48, gpu_must_run);
    check_coded_casts(HY_I8, 37, 1537, gpu_must_run);
    check_coded_casts(HY_I8, 3, 5000, gpu_must_run);
}
END_TEST

START_TEST(casts_from_fp8_are_exact) {
    check_coded_casts(HY_E4M3, 1, 1, gpu_must_run);
    check_coded_casts(HY_E4M3, 13, 48, gpu_must_run);
    check_coded_casts(HY_E4M3, 37, 1537, gpu_must_run);
    check_coded_casts(HY_E4M3, 64, 4096, gpu_must_run);
    gpu.shifted = 3;
    check_coded_casts(HY_E4M3, 13, 192, gpu_must_run);
    gpu.shifted = 0;
}
END_TEST

START_TEST(rows_looked_up_in_an_int8_table_are_exact) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 6; i++) {
        check_coded_embedding(HY_I8, 40, i % 2, reals[i / 2], gpu_must_run);
        check_coded_embedding(HY_I8, 1537, i % 2, reals[i / 2], gpu_must_run);
    }
}
END_TEST

/* ---- nf4 weights ----------------------------------------------------------------------------- */

EACH_TYPE(a_matmul_by_nf4_rows_has_the_bits_of_one_by_their_numbers, PURE_TYPES) {
    static const matmul_case forms[] = {{1, 777, 128, false, true, true, false, false},
                                        {128, 256, 64, false, true, true, true, false},
                                        {128, 64, 256, false, false, false, false, false},
                                        {129, 67, 320, false, true, true, true, false},
                                        {40, 192, 1030, false, false, false, true, false}};
    for (int i = 0; i < 5; i++) {
        if (!gpu_leaves_out(work_of(&forms[i])))
            check_coded_matmul(HY_NF4, &forms[i], mixture, gpu_must_run);
    }
}

/* More words than a block of threads decodes, and a group that is all of a row, or a part of
 * one. */
START_TEST(casts_from_nf4_are_exact) {
    check_coded_casts(HY_NF4, 1, 64, gpu_must_run);
    check_coded_casts(HY_NF4, 13, 192, gpu_must_run);
    check_coded_casts(HY_NF4, 36, 1536, gpu_must_run);
    check_coded_casts(HY_NF4, 512, 256, gpu_must_run);
    gpu.shifted = 3;
    check_coded_casts(HY_NF4, 13, 192, gpu_must_run);
    gpu.shifted = 0;
}
END_TEST

START_TEST(rows_looked_up_in_an_nf4_table_are_exact) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 6; i++) {
        check_coded_embedding(HY_NF4, 64, i % 2, reals[i / 2], gpu_must_run);
        check_coded_embedding(HY_NF4, 1536, i % 2, reals[i / 2], gpu_must_run);
    }
}
END_TEST

/* The same three where scales are fp32 (single quantisation). */
START_TEST(nf4_with_fp32_scales_is_exact_too) {
    static const matmul_case form = {129, 67, 320, false, true, true, true, false};
    coded_rows_are_plain = true;
    for (int mixture = 0; mixture < PURE_TYPES; mixture++) {
        check_coded_matmul(HY_NF4, &form, mixture, gpu_must_run);
    }
    check_coded_casts(HY_NF4, 13, 192, gpu_must_run);
    check_coded_casts(HY_NF4, 512, 256, gpu_must_run);
    check_coded_embedding(HY_NF4, 1536, true, HY_BF16, gpu_must_run);
    coded_rows_are_plain = false;
}
END_TEST

/* ---- gelu taken into a matmul ---------------------------------------------------------------- */

typedef enum gelu_form { GELU_ALONE, GELU_BESIDE, GELU_BACK } gelu_form;

static trial gelu_trial(const matmul_case *m, gelu_form form, int mixture) {
    trial t = matmul_trial(m, mixture, 21);
    hy_dtype dtype = t.call.t[HY_MATMUL_D].dtype;
    t.call.attr.matmul.is_gelu = form == GELU_ALONE;
    if (form == GELU_BESIDE) trial_tensor(&t, HY_MATMUL_ACT, dtype, m->M, m->N);
    if (form == GELU_BACK) trial_normal(&t, HY_MATMUL_PRE, dtype, m->M, m->N, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

static void reference_gelu_matmul(trial *t) {
    double *d = t->exact.t[HY_MATMUL_D].data, *act = t->exact.t[HY_MATMUL_ACT].data,
           *pre = t->exact.t[HY_MATMUL_PRE].data;
    reference_run(&t->exact); /* knows nothing of gelu */
    for (int64_t i = 0; i < hy_tensor_count(&t->exact.t[HY_MATMUL_D]); i++) {
        if (act) act[i] = reference_act(HY_ACT_GELU_TANH, d[i]);
        if (pre) d[i] *= reference_act_slope(HY_ACT_GELU_TANH, pre[i]);
        if (t->call.attr.matmul.is_gelu) d[i] = reference_act(HY_ACT_GELU_TANH, d[i]);
    }
}

/* Whatever is served must be right; bf16 in round shapes must be served: training counts on it. */
EACH_TYPE(gelu_beside_a_matmul_agrees_with_the_reference, PURE_TYPES) {
    static const matmul_case forms[] = {{128, 256, 64, false, true, true, false, false},
                                        {256, 1024, 128, false, true, false, false, false},
                                        {40, 72, 24, false, true, true, false, false},
                                        {37, 51, 19, false, true, true, false, false}};
    for (int i = 0; i < 12; i++) {
        gelu_form form = (gelu_form)(i % 3);
        matmul_case m = forms[i / 3];
        if (gpu_leaves_out(work_of(&m))) continue;
        m.has_bias = m.has_bias && form != GELU_BACK;
        m.trans_b = form != GELU_BACK;
        trial t = gelu_trial(&m, form, mixture);
        bool is_served = gpu_run(&t.call);
        bool may_refuse = mixture != 1 || i >= 6 || !gpu.backend->facts.is_gpu;
        ck_assert_msg(is_served || may_refuse, "%s", hy_error_message());
        if (is_served) {
            reference_gelu_matmul(&t);
            gpu_check(&t, HY_MATMUL_D, 1.5);
            if (form == GELU_BESIDE) gpu_check(&t, HY_MATMUL_ACT, 2);
        }
        trial_end(&t);
    }
}

/* The same of sizes at which sums may be split, with algorithms that the clock has chosen. */
START_TEST(timed_batches_have_the_same_bits_in_any_company) {
    static const matmul_case forms[] = {{768, 768, 3072, false, true, false, false, false},
                                        {384, 384, 1536, true, false, false, false, false},
                                        {768, 768, 768, false, false, false, true, false},
                                        {384, 1536, 384, false, false, false, true, false}};
    if (!gpu.backend->facts.is_gpu) return;
    hy_backend *backend = gpu.backend;
    hy_stream *stream = gpu.stream;
    hy_cuda_options options = gpu_options();
    options.tune = HY_TUNE_FAST;
    must(hy_cuda_backend_create(&options, &gpu.backend));
    must(gpu.backend->stream_create(gpu.backend, "timed", &gpu.stream));
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        trial t = batch_trial(&forms[i], 1, 32);
        hy_op_call planned = gpu_planned(&t.call);
        must(gpu.backend->prepare(gpu.backend, &planned));
        check_batch_bits(&t, gpu_must_run);
        trial_end(&t);
    }
    gpu.backend->stream_destroy(gpu.stream);
    gpu.backend->destroy(gpu.backend);
    gpu.backend = backend;
    gpu.stream = stream;
}
END_TEST

/* The key of the line with gelu's backward, and the algorithm of the one without, as a line of a
 * table: scope, key, level, microseconds, algorithm. */
static void compose_apart(char *table, char *out, size_t size) {
    char scope[96], key[96], level[8], microseconds[16], algorithm[160], found[160] = "";
    out[0] = 0;
    for (char *line = strtok(table, "\n"); line; line = strtok(NULL, "\n")) {
        if (sscanf(line, "%95s %95s %7s %15s %159s", scope, key, level, microseconds, algorithm) !=
            5)
            continue;
        bool is_back = strstr(key, "gelu-back");
        if (!is_back) snprintf(found, sizeof found, "%s", algorithm);
        if (is_back) snprintf(out, size, "%s %s fast 1.0 ", scope, key);
    }
    ck_assert(out[0] && found[0]);
    snprintf(out + strlen(out), size - strlen(out), "%s apart\n", found);
}

/* Where the clock says so, gelu's backward goes its own way; here a table says it. */
START_TEST(gelu_backward_apart_agrees_with_the_reference) {
    static const matmul_case form = {256, 1024, 128, false, false, false, false, false};
    if (!gpu.backend->facts.is_gpu) return;
    hy_backend *backend = gpu.backend;
    hy_stream *stream = gpu.stream;
    hy_cuda_options options = gpu_options();
    trial back = gelu_trial(&form, GELU_BACK, 1), plain = matmul_trial(&form, 1, 3);
    char *table, text[512];
    for (int i = 0; i < 2; i++) { /* the second has the table */
        must(hy_cuda_backend_create(&options, &gpu.backend));
        must(gpu.backend->stream_create(gpu.backend, "apart", &gpu.stream));
        if (i == 1) must(gpu.backend->load_matmul_table(gpu.backend, text));
        gpu_must_run(&back.call);
        if (i == 0) gpu_must_run(&plain.call);
        must(gpu.backend->matmul_table(gpu.backend, &table));
        ck_assert_int_eq(strstr(table, " apart") != NULL, i == 1);
        if (i == 0) compose_apart(table, text, sizeof text);
        free(table);
        gpu.backend->stream_destroy(gpu.stream);
        gpu.backend->destroy(gpu.backend);
    }
    gpu.backend = backend;
    gpu.stream = stream;
    reference_gelu_matmul(&back);
    gpu_check(&back, HY_MATMUL_D, 2);
    trial_end(&back);
    trial_end(&plain);
}
END_TEST

/* ---- views and plans ------------------------------------------------------------------------- */

/* The head works on chunks of rows: x and its gradient are views into larger matrices. */
EACH_TYPE(rows_of_a_matrix_may_begin_anywhere, PURE_TYPES) {
    static const matmul_case forms[] = {{33, 71, 13, false, true, false, false, false},
                                        {40, 264, 48, false, true, false, false, false},
                                        {40, 48, 264, false, false, false, false, false},
                                        {264, 48, 40, true, false, false, false, true}};
    for (int i = 0; i < 4; i++) {
        for (unsigned shifted = 1; shifted < 8; shifted++) {
            gpu.shifted = shifted;
            trial t = matmul_trial(&forms[i], mixture, 9);
            ck_assert(gpu_run_both(&t, mixture));
            gpu_check(&t, HY_MATMUL_D, roundings(&forms[i], false));
            trial_end(&t);
        }
    }
    gpu.shifted = 0;
}

/* A plan is made once for a shape; many calls with other memory may use it in turn. */
START_TEST(one_plan_serves_calls_of_its_shape) {
    for (uint64_t seed = 0; seed < 3; seed++) {
        trial a = matmul_trial(&cases[1], 1, seed), b = matmul_trial(&cases[5], 1, seed);
        ck_assert(gpu_run_both(&a, 1) && gpu_run_both(&b, 1));
        gpu_check(&a, HY_MATMUL_D, roundings(&cases[1], false));
        gpu_check(&b, HY_MATMUL_D, roundings(&cases[5], false));
        trial_end(&a);
        trial_end(&b);
    }
}
END_TEST

/* Elements far apart in size: a matmul in fp32 with a mantissa of 10 bits would lose the small. */
START_TEST(fp32_matmuls_keep_fp32) {
    matmul_case m = {96, 128, 256, false, true, false, false, false};
    trial t = matmul_trial(&m, 0, 5);
    for (int at = 0; at < 2; at++) {
        for (int64_t i = 0; i < hy_tensor_count(&t.call.t[at]); i++) {
            trial_put(&t, at, i, real_at(&t.call.t[at], i) + 1 + 0x1p-13);
        }
    }
    ck_assert(gpu_run_both(&t, 0));
    gpu_check(&t, HY_MATMUL_D, 0.25);
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: matmul");
    TCase *all = tcase_create("matmul");
    tcase_add_test(all, matmul_agrees_with_the_reference);
    tcase_add_test(all, matmul_of_any_shape_agrees_with_the_reference);
    tcase_add_test(all, matmul_may_add_to_c_in_place);
    tcase_add_test(all, a_matrix_has_the_same_bits_in_any_company);
    tcase_add_test(all, gelu_beside_a_matmul_agrees_with_the_reference);
    tcase_add_test(all, timed_batches_have_the_same_bits_in_any_company);
    tcase_add_test(all, gelu_backward_apart_agrees_with_the_reference);
    tcase_add_test(all, rows_of_a_matrix_may_begin_anywhere);
    tcase_add_test(all, one_plan_serves_calls_of_its_shape);
    tcase_add_test(all, fp32_matmuls_keep_fp32);
    tcase_add_test(all, a_matmul_by_int8_or_fp8_has_the_bits_of_one_by_their_numbers);
    tcase_add_test(all, casts_from_fp8_are_exact);
    tcase_add_test(all, casts_to_and_from_int8_are_exact);
    tcase_add_test(all, rows_looked_up_in_an_int8_table_are_exact);
    tcase_add_test(all, a_matmul_by_nf4_rows_has_the_bits_of_one_by_their_numbers);
    tcase_add_test(all, casts_from_nf4_are_exact);
    tcase_add_test(all, rows_looked_up_in_an_nf4_table_are_exact);
    tcase_add_test(all, nf4_with_fp32_scales_is_exact_too);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
