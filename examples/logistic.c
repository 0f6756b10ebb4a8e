/* logistic.c: logistic regression in a custom loop, with the phases and optimizer of the library.
 *
 * Labels are drawn from a known model, so the program can compare its loss with the best possible
 * one. `logistic none` trains without prediction, for comparison.
 *   cc logistic.c $(pkg-config --cflags --libs hybrid) -lm -o logistic */
#include <math.h>
#include <stdio.h>

#include "hybrid.h"

#define FEATURES 20
#define BATCH 64
#define HELD_OUT 20000
#define FIRST_HELD_OUT (INT64_C(1) << 40) /* numbers of samples that are not used in training */

typedef struct model {
    float weights[FEATURES], bias[1];
} model;

static model learned, grads, truth;

/* Random bits of a sample, computed from its number and a position (splitmix64). */
static double uniform(int64_t sample, int position) {
    uint64_t z = ((uint64_t)sample * 64 + (uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static double probability(const model *m, const double x[FEATURES]) {
    double logit = m->bias[0];
    for (int j = 0; j < FEATURES; j++) logit += m->weights[j] * x[j];
    return 1 / (1 + exp(-logit));
}

static int draw_sample(int64_t number, double x[FEATURES]) {
    for (int j = 0; j < FEATURES; j++) x[j] = 2 * uniform(number, j) - 1;
    return uniform(number, FEATURES) < probability(&truth, x);
}

/* The mean loss of samples first, first + 1, ...; and its gradient unless that is NULL. */
static double mean_loss(const model *m, int64_t first, int count, model *gradient) {
    double loss = 0, x[FEATURES];
    if (gradient) *gradient = (model){0};
    for (int64_t i = first; i < first + count; i++) {
        int label = draw_sample(i, x);
        double p = probability(m, x), error = (p - label) / count;
        loss -= log(label ? p : 1 - p) / count;
        if (!gradient) continue;
        for (int j = 0; j < FEATURES; j++) gradient->weights[j] += (float)(error * x[j]);
        gradient->bias[0] += (float)error;
    }
    return loss;
}

/* Computes what the loop asks for. Micro-batch n has BATCH samples, the first is n * BATCH. */
static hy_status answer(hy_loop *loop, const hy_loop_step *step) {
    bool wants_gradient = step->todo == HY_DO_GRADIENTS;
    double loss = mean_loss(&learned, step->batch * BATCH, BATCH, wants_gradient ? &grads : NULL);
    return hy_loop_answer(loop, loss, BATCH);
}

static hy_status train(hy_loop *loop) {
    hy_loop_step step;
    hy_status status;
    while ((status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        if ((status = answer(loop, &step)) != HY_OK) break;
    }
    return status;
}

static void on_step(void *user, const hy_step_info *info) {
    (void)user;
    if (info->phase != HY_PREDICT) return;
    printf("step %3lld  predicted %4.1f steps, %s\n", (long long)info->step, info->predicted_steps,
           info->was_rejected ? "rejected" : "accepted");
}

static hy_status configure(hy_config *config, const char *predictor) {
    const char *values[][2] = {{"steps", "400"},        {"lr", "0.05"},
                               {"weight_decay", "0"},   {"lr_warmup_steps", "20"},
                               {"guard_share", "0.25"}, {"predict_from", "0.3"},
                               {"predictor", predictor}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hy_status status = hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER);
        if (status != HY_OK) return status;
    }
    return HY_OK;
}

int main(int argc, char **argv) {
    hy_parameter parameters[] = {
        {.name = "weights",
         .weights = learned.weights,
         .grads = grads.weights,
         .ndim = 1,
         .shape = {FEATURES}},
        {.name = "bias", .weights = learned.bias, .grads = grads.bias, .ndim = 1, .shape = {1}},
    };
    hy_loop_options options = {.parameters = {.list = parameters, .count = 2}};
    hy_observer observer = {.on_step = on_step};
    hy_config *config = NULL;
    hy_loop *loop = NULL;
    for (int j = 0; j < FEATURES; j++) truth.weights[j] = (j % 2 ? -4.0f : 4.0f) / (1 + 0.2f * j);
    truth.bias[0] = 0.5f;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(config, argc > 1 ? argv[1] : "outer");
    if (status == HY_OK) status = hy_loop_create(config, &options, &observer, &loop);
    if (status == HY_OK) status = train(loop);
    if (status == HY_OK) {
        printf("held-out loss %.4f, the best possible %.4f\n",
               mean_loss(&learned, FIRST_HELD_OUT, HELD_OUT, NULL),
               mean_loss(&truth, FIRST_HELD_OUT, HELD_OUT, NULL));
    } else {
        fprintf(stderr, "%s\n", hy_error_message());
    }
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    return status == HY_OK ? 0 : 1;
}
