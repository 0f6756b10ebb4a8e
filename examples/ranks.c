/* ranks.c: a custom model on several ranks, which the program starts itself.
 *
 * Least squares: learns the weights of a sum from noisy samples. `ranks 3` trains on three ranks;
 * mpirun, srun and torchrun --no-python can start it too. The number of ranks does not change the
 * loss.
 *   cc ranks.c $(pkg-config --cflags --libs hybrid) -lm -o ranks */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hybrid.h"

#define FEATURES 600
#define BATCH 32
#define HELD_OUT 960
#define FIRST_HELD_OUT (INT64_C(1) << 40) /* numbers of samples that are not used in training */

static float weights[FEATURES], grads[FEATURES];
static hy_rank_info who;

/* Random bits of a sample, computed from its number and a position (splitmix64). */
static double uniform(int64_t sample, int position) {
    uint64_t z = ((uint64_t)sample * 4096 + (uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return 2 * ((double)((z ^ z >> 31) >> 11) * 0x1p-53) - 1;
}

/* Half the squared error; adds `scale` times its gradient unless scale is 0. */
static double sample_loss(int64_t number, double scale) {
    double x[FEATURES], error = 0.3 * uniform(number, FEATURES);
    for (int j = 0; j < FEATURES; j++) {
        x[j] = uniform(number, j);
        error += x[j] * (weights[j] - sin(j));
    }
    for (int j = 0; j < FEATURES && scale != 0; j++) grads[j] += (float)(scale * error * x[j]);
    return 0.5 * error * error;
}

/* ---- callbacks: the library gives a rank the numbers of its micro-batches -------------------- */

static hy_status backward(void *user, int64_t batch, double loss_scale, double *loss_sum,
                          int64_t *counted) {
    (void)user;
    for (int i = 0; i < BATCH; i++) *loss_sum += sample_loss(batch * BATCH + i, loss_scale);
    *counted = BATCH;
    return HY_OK;
}

static hy_status forward(void *user, int64_t batch, double *loss_sum, int64_t *counted) {
    return backward(user, batch, 0, loss_sum, counted);
}

/* Each rank evaluates its share of the held-out samples and returns the sums. */
static hy_status evaluate(void *user, double *loss_sum, int64_t *counted) {
    (void)user;
    for (int i = who.rank; i < HELD_OUT; i += who.count) {
        *loss_sum += sample_loss(FIRST_HELD_OUT + i, 0);
        ++*counted;
    }
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Twelve micro-batches per step: 1, 2, 3, 4, 6 or 12 ranks can share them. */
static hy_status configure(hy_config *config) {
    const char *values[][2] = {{"steps", "200"},     {"grad_accum_steps", "12"}, {"lr", "0.02"},
                               {"device", "cpu"},    {"weight_decay", "0"},      {"out", "none"},
                               {"predictor", "none"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hy_status status = hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER);
        if (status != HY_OK) return status;
    }
    return HY_OK;
}

static hy_status train(void) {
    hy_parameter parameter = {
        .name = "weights", .weights = weights, .grads = grads, .ndim = 1, .shape = {FEATURES}};
    hy_custom_model model = {.parameters = {.list = &parameter, .count = 1},
                             .forward = forward,
                             .backward = backward,
                             .evaluate = evaluate};
    hy_config *config = NULL;
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(config);
    if (status == HY_OK) status = hy_trainer_create_custom(config, &model, NULL, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (status == HY_OK) hy_trainer_summary(trainer, &summary);
    if (status == HY_OK && who.rank == 0) {
        printf("%d rank(s): held-out loss %.4f after %lld steps\n", who.count, summary.val_loss,
               (long long)summary.steps);
    }
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status;
}

int main(int argc, char **argv) {
    bool has_started;
    int code;
    hy_start_options start = {.count = argc > 1 ? atoi(argv[1]) : 2, .argv = argv};
    hy_status status = hy_start_ranks(&start, &has_started, &code);
    if (status == HY_OK && has_started) return code; /* the ranks have done the work */
    if (status == HY_OK) status = hy_find_rank(&who);
    if (status == HY_OK) status = train();
    if (status != HY_OK) fprintf(stderr, "%s\n", hy_error_message());
    return status == HY_OK ? 0 : 1;
}
