/* test_rounding.c: rounding that corrects later columns for the errors of earlier ones. */
#include <math.h>

#include "base/rng.h"
#include "harness.h"
#include "hub/rounding.h"

#define COLS 512 /* two panels */
#define ROWS 70
#define INPUTS 900

/* Inputs whose columns are correlated, with a few large ones. */
static float *make_inputs(void) {
    float *x = malloc(INPUTS * COLS * sizeof *x);
    for (int64_t i = 0; i < INPUTS; i++) {
        double before = 0;
        for (int64_t c = 0; c < COLS; c++) {
            uint64_t at = (uint64_t)(i * COLS + c);
            before = 0.8 * before + hy_rng_normal(3, HY_RNG_TEST, at);
            x[at] = (float)(c % 61 == 7 ? 9 * before : before);
        }
    }
    return x;
}

static float *make_matrix(void) {
    float *w = malloc(ROWS * COLS * sizeof *w);
    for (uint64_t i = 0; i < ROWS * COLS; i++) w[i] = (float)hy_rng_normal(5, HY_RNG_TEST, i);
    return w;
}

static hy_moments moments_of(const float *x) {
    hy_moments m;
    must(hy_moments_init(&m, COLS));
    for (int64_t i = 0; i < INPUTS; i++) {
        for (int64_t a = 0; a < COLS; a++) {
            for (int64_t b = 0; b < COLS; b++)
                m.u[a * COLS + b] += x[i * COLS + a] * x[i * COLS + b] / INPUTS;
        }
    }
    return m;
}

START_TEST(factors_multiply_to_the_damped_moments) {
    float *x = make_inputs();
    hy_moments m = moments_of(x), h = moments_of(x);
    double mean = 0, worst = 0;
    for (int64_t i = 0; i < COLS; i++) mean += h.u[i * COLS + i] / COLS;
    must(hy_moments_factor(&m, 0.01, 2));
    for (int64_t a = 0; a < COLS; a += 7) {
        for (int64_t b = a; b < COLS; b += 5) {
            double sum = a == b ? -0.01 * mean : 0;
            for (int64_t k = b; k < COLS; k++) {
                double ua = k == a ? 1 : m.u[a * COLS + k], ub = k == b ? 1 : m.u[b * COLS + k];
                sum += ua * ub * m.importance[k];
            }
            worst = fmax(worst, fabs(sum - h.u[a * COLS + b]) / mean);
        }
    }
    ck_assert_msg(worst < 1e-4, "%g", worst);
    hy_moments_fini(&m);
    hy_moments_fini(&h);
    free(x);
}
END_TEST

/* |X (W - Q)^T|^2 */
static double error_of(hy_block_type type, const float *x, const float *w, const void *blocks) {
    float *q = malloc(ROWS * COLS * sizeof *q);
    double sum = 0;
    hy_blocks_decode(type, blocks, ROWS * COLS, q);
    for (int64_t i = 0; i < INPUTS; i += 3) {
        for (int64_t r = 0; r < ROWS; r++) {
            double product = 0;
            for (int64_t c = 0; c < COLS; c++)
                product += (double)x[i * COLS + c] * (w[r * COLS + c] - q[r * COLS + c]);
            sum += product * product;
        }
    }
    free(q);
    return sum;
}

static const hy_block_type types[] = {HY_BLOCK_Q4_0, HY_BLOCK_Q5_0, HY_BLOCK_Q8_0,
                                      HY_BLOCK_Q4_K, HY_BLOCK_Q5_K, HY_BLOCK_Q6_K};

START_TEST(products_change_less_than_with_rounding_to_nearest) {
    hy_block_type type = types[_i];
    size_t bytes = (size_t)hy_blocks_bytes(type, ROWS * COLS);
    float *x = make_inputs(), *w = make_matrix();
    uint8_t *nearest = malloc(bytes), *corrected = malloc(bytes);
    hy_rounding_cost cost = {0};
    hy_moments m = moments_of(x);
    must(hy_moments_factor(&m, 0.01, 2));
    hy_blocks_encode(type, w, ROWS, COLS, NULL, nearest);
    must(hy_round_rows(type, w, ROWS, &m, corrected, &cost));
    double ratio = error_of(type, x, w, corrected) / error_of(type, x, w, nearest);
    ck_assert_msg(ratio < 0.5, "%s: %.3f", hy_block_traits_of(type)->name, ratio);
    hy_moments_fini(&m);
    free(x);
    free(w);
    free(nearest);
    free(corrected);
}
END_TEST

/* Without correlation nothing is corrected: each block is that of plain rounding. */
START_TEST(inputs_that_were_never_seen_are_rounded_to_nearest) {
    float *w = make_matrix(), q[COLS], nearest[COLS];
    uint8_t blocks[COLS / 32 * 18];
    hy_moments m;
    must(hy_moments_init(&m, COLS));
    must(hy_moments_factor(&m, 0.01, 1));
    hy_rounding_cost cost = {0};
    must(hy_round_rows(HY_BLOCK_Q4_0, w, 1, &m, blocks, &cost));
    hy_blocks_decode(HY_BLOCK_Q4_0, blocks, COLS, q);
    hy_blocks_encode(HY_BLOCK_Q4_0, w, COLS / 32, 32, m.importance, blocks);
    hy_blocks_decode(HY_BLOCK_Q4_0, blocks, COLS, nearest);
    for (int64_t i = 0; i < COLS; i++)
        ck_assert(fabsf(w[i] - q[i]) <= fabsf(w[i] - nearest[i]) + 1e-6f);
    hy_moments_fini(&m);
    free(w);
}
END_TEST

/* trace(E H E^T) and the sum of H_ii w_i^2, with the damped H. */
START_TEST(rounding_says_how_far_the_products_change) {
    float *x = make_inputs(), *w = make_matrix(), *q = malloc(ROWS * COLS * sizeof *q);
    uint8_t *blocks = malloc((size_t)hy_blocks_bytes(HY_BLOCK_Q4_0, ROWS * COLS));
    hy_moments h = moments_of(x), m = moments_of(x);
    hy_rounding_cost cost = {0};
    must(hy_moments_factor(&m, 0.01, 2));
    must(hy_round_rows(HY_BLOCK_Q4_0, w, ROWS, &m, blocks, &cost));
    hy_blocks_decode(HY_BLOCK_Q4_0, blocks, ROWS * COLS, q);
    double mean = 0, error = 0, signal = 0;
    for (int64_t i = 0; i < COLS; i++) mean += h.u[i * COLS + i] / COLS;
    for (int64_t i = 0; i < COLS; i++) h.u[i * COLS + i] += (float)(0.01 * mean);
    for (int64_t r = 0; r < ROWS; r++) {
        for (int64_t a = 0; a < COLS; a++) {
            double of_a = w[r * COLS + a] - q[r * COLS + a], sum = 0;
            for (int64_t b = 0; b < COLS; b++)
                sum += h.u[a * COLS + b] * (w[r * COLS + b] - q[r * COLS + b]);
            error += of_a * sum;
            signal += h.u[a * COLS + a] * w[r * COLS + a] * w[r * COLS + a];
        }
    }
    ck_assert_msg(fabs(cost.error / error - 1) < 1e-3, "%g, not %g", cost.error, error);
    ck_assert_msg(fabs(cost.signal / signal - 1) < 1e-3, "%g, not %g", cost.signal, signal);
    hy_moments_fini(&m);
    hy_moments_fini(&h);
    free(x);
    free(w);
    free(q);
    free(blocks);
}
END_TEST

/* ---- moments without factors ----------------------------------------------------------------- */

/* A diagonal of ones and one pair of inputs beside it. */
typedef struct pair_source {
    float pair;
    int asked;
    char said[512];
} pair_source;

static hy_status give_pair(void *context, const hy_param *param, hy_moments *out) {
    pair_source *s = context;
    (void)param;
    s->asked++;
    HY_TRY(hy_moments_init(out, 64));
    for (int64_t i = 0; i < 64; i++) out->u[i * 64 + i] = 1;
    out->u[1] = out->u[64] = s->pair;
    return HY_OK;
}

static void keep_warning(void *user, hy_message_level level, const char *text) {
    pair_source *s = user;
    if (level == HY_WARNING) snprintf(s->said, sizeof s->said, "%s", text);
}

/* The smallest eigenvalue is 1 - pair: damping of 1 % is not enough for 1.05, 100 % not for 3. */
START_TEST(moments_that_are_not_positive_definite_get_more_damping_then_are_not_used) {
    static const struct {
        float pair;
        int asked;
        bool is_used;
    } cases[] = {
        {0.5f, 1, true}, {1.05f, 2, true}, {1.5f, 3, true}, {3, 3, false}, {NAN, 3, false}};
    pair_source s = {.pair = cases[_i].pair};
    hy_moments_source source = {.context = &s, .measure = give_pair};
    hy_observer observer = {.user = &s, .on_message = keep_warning};
    hy_param param = {.name = "layer.3.mlp.down"};
    hy_moments m;
    must(hy_moments_take(&source, &param, 1, &observer, &m));
    ck_assert_int_eq(s.asked, cases[_i].asked);
    ck_assert_int_eq(m.size, cases[_i].is_used ? 64 : 0);
    ck_assert_int_eq(strstr(s.said, "layer.3.mlp.down is rounded to nearest") != NULL,
                     !cases[_i].is_used);
    hy_moments_fini(&m);
}
END_TEST

START_TEST(moments_that_are_not_finite_are_refused) {
    hy_moments m;
    must(hy_moments_init(&m, 64));
    m.u[65] = NAN;
    must_fail(hy_moments_factor(&m, 0.01, 1), HY_ERR_NUMERIC, "second moments");
    hy_moments_fini(&m);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("rounding");
    TCase *c = tcase_create("rounding");
    tcase_add_test(c, factors_multiply_to_the_damped_moments);
    tcase_add_loop_test(c, products_change_less_than_with_rounding_to_nearest, 0,
                        sizeof types / sizeof types[0]);
    tcase_add_test(c, inputs_that_were_never_seen_are_rounded_to_nearest);
    tcase_add_test(c, rounding_says_how_far_the_products_change);
    tcase_add_loop_test(
        c, moments_that_are_not_positive_definite_get_more_damping_then_are_not_used, 0, 5);
    tcase_add_test(c, moments_that_are_not_finite_are_refused);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
