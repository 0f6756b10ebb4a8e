/* library.c: three training runs through the public header alone, one line a step as
 * scripts/losses.sh writes them (without the name of the run).
 *
 *   library steps   the built-in model, stepped by a loop of ours
 *   library model   a model of ours in the library's loop: a small network on drawn points
 *   library loop    a loop of ours with the library's phases and optimizer, on the same network
 *
 * Moves happen in all three. Every number is printed with %.17g: equal lines are equal bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hybrid.h"

#define INPUTS 4
#define HIDDEN 12
#define BATCH 16

/* ---- a network with one hidden layer: is a point inside a shell? ----------------------------- */

typedef struct network {
    float w1[HIDDEN * INPUTS], b1[HIDDEN]; /* (HIDDEN, INPUTS), (HIDDEN) */
    float w2[HIDDEN], b2[1];               /* (HIDDEN), (1) */
} network;

static network weights, grads;

#define PARAMETER(array, dims, ...)                                                                \
    {                                                                                              \
        .name = #array, .weights = weights.array, .grads = grads.array, .ndim = dims, .shape = {   \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
static const hy_parameter list[] = {PARAMETER(w1, 2, HIDDEN, INPUTS), PARAMETER(b1, 1, HIDDEN),
                                    PARAMETER(w2, 2, 1, HIDDEN), PARAMETER(b2, 1, 1)};
static const hy_own_parameters parameters = {.list = list, .count = sizeof list / sizeof list[0]};

/* Uniform in -1 to 1, from two numbers: nothing is stored (splitmix64). */
static double uniform(int64_t sample, int position) {
    uint64_t z = ((uint64_t)sample * 64 + (uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1;
}

static void initialise(void) {
    for (int i = 0; i < HIDDEN * INPUTS; i++) weights.w1[i] = (float)uniform(-1, i);
    for (int i = 0; i < HIDDEN; i++) weights.w2[i] = (float)(0.5 * uniform(-2, i));
}

/* Loss of one sample; adds the gradient of scale times it, unless scale is 0. */
static double one_sample(int64_t number, double scale) {
    double x[INPUTS], h[HIDDEN], radius = 0, logit = weights.b2[0];
    for (int j = 0; j < INPUTS; j++) {
        x[j] = uniform(number, j);
        radius += x[j] * x[j];
    }
    int label = radius > 1.2;
    for (int i = 0; i < HIDDEN; i++) {
        double sum = weights.b1[i];
        for (int j = 0; j < INPUTS; j++) sum += weights.w1[i * INPUTS + j] * x[j];
        h[i] = tanh(sum);
        logit += weights.w2[i] * h[i];
    }
    double p = 1 / (1 + exp(-logit)), d = scale * (p - label);
    if (scale != 0) {
        grads.b2[0] += (float)d;
        for (int i = 0; i < HIDDEN; i++) {
            double d_sum = d * weights.w2[i] * (1 - h[i] * h[i]);
            grads.w2[i] += (float)(d * h[i]);
            grads.b1[i] += (float)d_sum;
            for (int j = 0; j < INPUTS; j++) grads.w1[i * INPUTS + j] += (float)(d_sum * x[j]);
        }
    }
    return -log(label ? p : 1 - p);
}

static double sum_of_batch(int64_t batch, double scale) {
    double sum = 0;
    for (int64_t i = 0; i < BATCH; i++) sum += one_sample(batch * BATCH + i, scale);
    return sum;
}

/* ---- configuration and lines ----------------------------------------------------------------- */

static const char *const common[][2] = {{"predictor", "outer"},
                                        {"steps", "40"},
                                        {"lr_warmup_steps", "4"},
                                        {"full_steps", "4"},
                                        {"correct_steps", "2"},
                                        {"predict_from", "0.1"},
                                        {"predict_until", "0.9"},
                                        {"guard_share", "1"},
                                        {"confidence_threshold", "0"},
                                        {"out", "none"},
                                        {"device", "cpu"},
                                        {"threads", "2"},
                                        {"lr", "0.01"}};
static const char *const small[][2] = {{"model", "nano"},
                                       {"layers", "2"},
                                       {"width", "64"},
                                       {"heads", "4"},
                                       {"mlp_width", "128"},
                                       {"seq_len", "64"},
                                       {"batch_size", "2"},
                                       {"grad_accum_steps", "2"},
                                       {"eval_batches", "4"},
                                       {"sample_tokens", "0"},
                                       {"builtin_bytes", "120000"},
                                       {"fork_budget", "0"},
                                       {"steps", "20"},
                                       {"lr", "0.002"}};

static hy_status set_all(hy_config *config, const char *const values[][2], size_t count) {
    for (size_t i = 0; i < count; i++) {
        hy_status status = hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER);
        if (status != HY_OK) return status;
    }
    return HY_OK;
}
#define SET_ALL(config, values) set_all(config, values, sizeof values / sizeof values[0])

static void print_step(void *user, const hy_step_info *info) {
    (void)user;
    printf("step=%lld phase=%d loss=%.17g grad_norm=%.17g spent=%.17g", (long long)info->step,
           (int)info->phase, info->loss, info->grad_norm, info->spent);
    if (info->phase == HY_PREDICT) {
        printf(" predicted_steps=%.17g rejected=%d", info->predicted_steps, info->was_rejected);
    }
    printf("\n");
}

static void print_eval(void *user, const hy_eval_info *info) {
    (void)user;
    printf("step=%lld val_loss=%.17g\n", (long long)info->step, info->loss);
}

/* ---- steps: the built-in model --------------------------------------------------------------- */

static hy_status step_through(hy_trainer *trainer) {
    hy_step_info info;
    hy_eval_info eval;
    do {
        hy_status status = hy_trainer_step(trainer, &info);
        if (status != HY_OK) return status;
        print_step(NULL, &info);
        if (info.step % 10 || info.phase == HY_PREDICT) continue;
        status = hy_trainer_evaluate(trainer, &eval);
        if (status != HY_OK) return status;
        print_eval(NULL, &eval);
    } while (info.spent < 19.5);
    return HY_OK;
}

static hy_status run_steps(hy_config *config) {
    hy_trainer *trainer = NULL;
    hy_status status = SET_ALL(config, small);
    if (status == HY_OK) status = hy_trainer_create(config, NULL, &trainer);
    if (status == HY_OK) status = step_through(trainer);
    hy_trainer_destroy(trainer);
    return status;
}

/* ---- model: ours, in the library's loop ------------------------------------------------------ */

static hy_status forward(void *user, int64_t batch, double *loss_sum, int64_t *counted) {
    (void)user;
    *loss_sum += sum_of_batch(batch, 0);
    *counted = BATCH;
    return HY_OK;
}

static hy_status backward(void *user, int64_t batch, double loss_scale, double *loss_sum,
                          int64_t *counted) {
    (void)user;
    *loss_sum += sum_of_batch(batch, loss_scale);
    *counted = BATCH;
    return HY_OK;
}

static hy_status evaluate(void *user, double *loss_sum, int64_t *counted) {
    (void)user;
    for (int64_t i = 0; i < 20; i++) *loss_sum += sum_of_batch((INT64_C(1) << 40) + i, 0);
    *counted = 20 * BATCH;
    return HY_OK;
}

static hy_status run_model(hy_config *config) {
    hy_own_model model = {
        .parameters = parameters, .forward = forward, .backward = backward, .evaluate = evaluate};
    hy_observer observer = {.on_step = print_step, .on_eval = print_eval};
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_status status = hy_config_set(config, "grad_accum_steps", "2", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "eval_every", "20", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_trainer_create_own(config, &model, &observer, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (status == HY_OK) {
        hy_trainer_summary(trainer, &summary);
        printf("final_loss=%.17g val_loss=%.17g moves=%lld rejected=%lld\n", summary.final_loss,
               summary.val_loss, (long long)summary.moves, (long long)summary.rejected_moves);
    }
    hy_trainer_destroy(trainer);
    return status;
}

/* ---- loop: ours, around the library's phases and optimizer ----------------------------------- */

static hy_status answer(hy_loop *loop, const hy_loop_step *step) {
    bool wants = step->todo == HY_DO_GRADIENTS;
    if (wants) memset(&grads, 0, sizeof grads);
    double loss = sum_of_batch(step->batch, wants ? 1.0 / BATCH : 0) / BATCH;
    if (!wants) printf("look=%lld loss=%.17g\n", (long long)step->batch, loss);
    return hy_loop_answer(loop, loss, BATCH);
}

static hy_status run_loop(hy_config *config) {
    hy_loop *loop = NULL;
    hy_loop_step step = {0};
    hy_loop_options options = {.parameters = parameters};
    hy_observer observer = {.on_step = print_step};
    hy_status status = hy_loop_create(config, &options, &observer, &loop);
    while (status == HY_OK && (status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        status = answer(loop, &step);
    }
    hy_loop_destroy(loop);
    return status;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        hy_status (*run)(hy_config *config);
    } runs[] = {{"steps", run_steps}, {"model", run_model}, {"loop", run_loop}};
    hy_config *config = NULL;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = SET_ALL(config, common);
    initialise();
    for (int i = 0; i < 3; i++) {
        if (argc != 2 || strcmp(argv[1], runs[i].name) != 0) continue;
        if (status == HY_OK) status = runs[i].run(config);
        if (status != HY_OK) fprintf(stderr, "%s\n", hy_error_message());
        hy_config_destroy(config);
        return status == HY_OK ? 0 : 1;
    }
    hy_config_destroy(config);
    fprintf(stderr, "usage: library steps|model|loop\n");
    return 2;
}
