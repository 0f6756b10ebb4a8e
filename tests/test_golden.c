/* test_golden.c: the model against PyTorch.
 *
 * Each file in tests/golden (its README tells how they are made) is a small model with a batch and
 * what PyTorch makes of it in double precision: logits, loss, every gradient, ten AdamW steps. Here
 * the same is done in fp32 and compared, at every recompute setting and several numbers of loss
 * chunks. The last test turns one weight at a time and demands that the comparison fails. */
#include <math.h>

#include "golden/compare.h"

/* Norm of the difference over norm of PyTorch's, for tensors; relative, for numbers. */
#define TENSOR_BOUND 1e-5
#define LOSS_BOUND 1e-5
#define NORM_BOUND 1e-4
#define CURVE_BOUND 1e-4
#define RECOMPUTE_SETTINGS (HY_KEEP_ALL + 1)

static const char *const cases[] = {"gpt2", "llama", "llama3-rope", "qwen2", "qwen3", "mistral"};
static const int case_count = sizeof cases / sizeof cases[0];
static const int32_t chunkings[] = {1, 2, 5};
static const int chunking_count = sizeof chunkings / sizeof chunkings[0];

/* ---- bounds ---------------------------------------------------------------------------------- */

static void check_loss_and_gradients(const golden *g, int recompute, int32_t chunks) {
    const char *name = "";
    double loss = loss_distance(g), gradient = worst_gradient(g, &name);
    ck_assert_msg(loss <= LOSS_BOUND, "%s, recompute %d, %d chunks: the loss is off by %.2e",
                  g->name, recompute, chunks, loss);
    ck_assert_msg(gradient <= TENSOR_BOUND,
                  "%s, recompute %d, %d chunks: the gradient of %s is off by %.2e", g->name,
                  recompute, chunks, name, gradient);
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(logits_are_those_of_pytorch) {
    golden g;
    open_golden(&g, cases[_i]);
    for (int c = 0; c < chunking_count; c++) {
        trial t;
        open_trial(&t, &g, 0, chunkings[c], false);
        double far = logits_distance(&t);
        ck_assert_msg(far <= TENSOR_BOUND, "%s, %d chunks: the logits are off by %.2e", g.name,
                      chunkings[c], far);
        close_trial(&t);
    }
    close_golden(&g);
}
END_TEST

START_TEST(evaluation_gives_the_loss_of_pytorch) {
    golden g;
    open_golden(&g, cases[_i]);
    for (int c = 0; c < chunking_count; c++) {
        trial t;
        open_trial(&t, &g, 0, chunkings[c], false);
        spoil_results(&g);
        hy_batch_input input = input_of(&g, 1, false);
        must(hy_batch_evaluate(t.plan, &input));
        must(g.backend->stream_sync(g.stream));
        double far = loss_distance(&g);
        ck_assert_msg(far <= LOSS_BOUND, "%s, %d chunks: the loss is off by %.2e", g.name,
                      chunkings[c], far);
        close_trial(&t);
    }
    close_golden(&g);
}
END_TEST

START_TEST(loss_and_every_gradient_are_those_of_pytorch) {
    golden g;
    open_golden(&g, cases[_i]);
    for (int c = 0; c < chunking_count; c++) {
        for (int recompute = 0; recompute < RECOMPUTE_SETTINGS; recompute++) {
            trial t;
            open_trial(&t, &g, recompute, chunkings[c], true);
            train(&t);
            check_loss_and_gradients(&g, recompute, chunkings[c]);
            close_trial(&t);
        }
    }
    close_golden(&g);
}
END_TEST

START_TEST(recomputing_changes_no_bit_of_loss_or_gradient) {
    golden g;
    open_golden(&g, cases[_i]);
    size_t rows = (size_t)g.batch * (size_t)g.seq;
    float *losses = NULL, *grads = NULL;
    for (int recompute = 0; recompute < RECOMPUTE_SETTINGS; recompute++) {
        trial t;
        open_trial(&t, &g, recompute, 2, true);
        train(&t);
        float *new_losses = from_device(&g, g.losses, 4 * rows);
        float *new_grads = from_device(&g, g.grads.data, g.grads.layout.bytes);
        if (recompute > 0) {
            ck_assert_mem_eq(new_losses, losses, 4 * rows);
            ck_assert_mem_eq(new_grads, grads, g.grads.layout.bytes);
        }
        free(losses);
        free(grads);
        losses = new_losses;
        grads = new_grads;
        close_trial(&t);
    }
    free(losses);
    free(grads);
    close_golden(&g);
}
END_TEST

START_TEST(two_half_passes_accumulate_to_the_gradients_of_pytorch) {
    golden g;
    trial t;
    open_golden(&g, cases[_i]);
    open_trial(&t, &g, 0, 2, true);
    spoil_results(&g);
    for (int pass = 0; pass < 2; pass++) {
        hy_batch_input input = input_of(&g, 0.5 / (double)g.counted, pass > 0);
        must(hy_batch_train(t.plan, &input));
    }
    must(g.backend->stream_sync(g.stream));
    check_loss_and_gradients(&g, 0, 2);
    close_trial(&t);
    close_golden(&g);
}
END_TEST

static void check_final_params(const golden *g) {
    int compared = 0;
    for (int32_t i = 0; i < g->model->params.count; i++) {
        char name[96];
        snprintf(name, sizeof name, "final.%s", param_at(g, i)->name);
        if (!hy_safetensors_find(g->file, name)) continue;
        double far = store_distance(g, &g->weights, i, "final");
        ck_assert_msg(far <= TENSOR_BOUND, "%s: after the steps %s is off by %.2e", g->name,
                      param_at(g, i)->name, far);
        compared++;
    }
    ck_assert_int_eq(compared, 3);
}

START_TEST(ten_adamw_steps_follow_pytorch) {
    golden g;
    trial t;
    open_golden(&g, cases[_i]);
    open_trial(&t, &g, 0, 1, true);
    hy_adamw adamw = adamw_of(&g);
    int32_t steps = int_of(&g, "steps");
    float *losses = bytes_of(&g, entry_of(&g, "losses"));
    float *norms = bytes_of(&g, entry_of(&g, "norms"));
    clear_moments(&g);
    ck_assert_int_eq(steps, 10);
    for (int32_t step = 0; step < steps; step++) {
        double norm = adamw_step(&t, &adamw, double_of(&g, "lr"), step), loss = mean_loss(&g);
        ck_assert_msg(relative(loss, losses[step]) <= LOSS_BOUND,
                      "%s, step %d: the loss is %.8g, PyTorch's %.8g", g.name, step, loss,
                      losses[step]);
        ck_assert_msg(relative(norm, norms[step]) <= NORM_BOUND,
                      "%s, step %d: the norm is %.8g, PyTorch's %.8g", g.name, step, norm,
                      norms[step]);
    }
    check_final_params(&g);
    free(losses);
    free(norms);
    close_trial(&t);
    close_golden(&g);
}
END_TEST

START_TEST(fifty_adamw_steps_follow_pytorch) {
    static const char *const curves[] = {"gpt2", "llama", "qwen2", "qwen3"};
    golden g;
    trial t;
    open_golden(&g, curves[_i]);
    open_trial(&t, &g, 0, 2, true);
    double far = curve_distance(&t);
    ck_assert_msg(far <= CURVE_BOUND, "%s: a loss of fifty is off by %.2e", g.name, far);
    close_trial(&t);
    close_golden(&g);
}
END_TEST

/* Where the file's gradient of a parameter is largest: a change there must matter. */
static int64_t most_felt(const golden *g, int32_t index) {
    float *gradient = bytes_of(g, entry_of(g, "grad.%s", param_at(g, index)->name));
    int64_t best = 0;
    for (int64_t i = 1; i < param_at(g, index)->count; i++) {
        if (fabsf(gradient[i]) > fabsf(gradient[best])) best = i;
    }
    free(gradient);
    return best;
}

/* The test of the tests: one element of any one parameter off by 0.01 is beyond the bounds. */
START_TEST(one_wrong_weight_is_seen) {
    golden g;
    trial training, evaluation;
    open_golden(&g, cases[_i]);
    open_trial(&training, &g, 0, 1, true);
    open_trial(&evaluation, &g, 0, 1, false);
    for (int32_t i = 0; i < g.model->params.count; i++) {
        const char *name = "";
        float *element = (float *)hy_store_home(&g.weights, i) + most_felt(&g, i);
        float *right = from_device(&g, element, sizeof(float)), wrong = *right + 0.01f;
        to_device(&g, element, &wrong, sizeof(float));
        train(&training);
        ck_assert_msg(worst_gradient(&g, &name) > 3 * TENSOR_BOUND,
                      "%s: the gradients do not feel %s", g.name, param_at(&g, i)->name);
        ck_assert_msg(logits_distance(&evaluation) > 3 * TENSOR_BOUND,
                      "%s: the logits do not feel %s", g.name, param_at(&g, i)->name);
        to_device(&g, element, right, sizeof(float));
        free(right);
    }
    train(&training);
    check_loss_and_gradients(&g, 0, 1); /* and all is well again */
    close_trial(&training);
    close_trial(&evaluation);
    close_golden(&g);
}
END_TEST

static Suite *golden_suite(void) {
    Suite *suite = suite_create("golden");
    TCase *tc = tcase_create("pytorch");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, logits_are_those_of_pytorch, 0, case_count);
    tcase_add_loop_test(tc, evaluation_gives_the_loss_of_pytorch, 0, case_count);
    tcase_add_loop_test(tc, loss_and_every_gradient_are_those_of_pytorch, 0, case_count);
    tcase_add_loop_test(tc, recomputing_changes_no_bit_of_loss_or_gradient, 0, case_count);
    tcase_add_loop_test(tc, two_half_passes_accumulate_to_the_gradients_of_pytorch, 0, case_count);
    tcase_add_loop_test(tc, ten_adamw_steps_follow_pytorch, 0, case_count);
    tcase_add_loop_test(tc, fifty_adamw_steps_follow_pytorch, 0, 4);
    tcase_add_loop_test(tc, one_wrong_weight_is_seen, 0, case_count);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(golden_suite)
