/* convnet.c: a small convolutional network as a custom model, trained by the library.
 *
 * It recognises digits drawn in 12 x 12 pixels, at one of nine positions, with noise. The forward
 * and backward passes are plain C below; the library does accumulation, phases, optimizer, guard
 * and metrics. `convnet none` trains without prediction, for comparison.
 *   cc convnet.c $(pkg-config --cflags --libs hybrid) -lm -o convnet */
#include <math.h>
#include <stdio.h>

#include "hybrid.h"

#define SIZE 12  /* pixels per side */
#define MAPS1 8  /* maps of the first convolution: 10 x 10, pooled to 5 x 5 */
#define MAPS2 16 /* maps of the second convolution: 3 x 3 */
#define CLASSES 10
#define IN2 (MAPS1 * 5 * 5)
#define IN3 (MAPS2 * 3 * 3)
#define BATCH 32
#define HELD_OUT 2000
#define FIRST_HELD_OUT (INT64_C(1) << 40) /* numbers of images that are not used in training */

/* ---- images ---------------------------------------------------------------------------------- */

/* Digits of 5 x 7 dots, with one row in five bits. */
static const unsigned char font[CLASSES][7] = {
    {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14},  {14, 17, 1, 2, 4, 8, 31},
    {31, 2, 4, 2, 1, 17, 14},     {2, 6, 10, 18, 31, 2, 2}, {31, 16, 30, 1, 1, 17, 14},
    {6, 8, 16, 30, 17, 17, 14},   {31, 1, 2, 4, 8, 8, 8},   {14, 17, 17, 14, 17, 17, 14},
    {14, 17, 17, 15, 1, 2, 12},
};

/* Random bits of an image, computed from its number and a position (splitmix64). */
static uint64_t bits(int64_t image, int position) {
    uint64_t z = ((uint64_t)image * 256 + (uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Draws image `number` and returns its digit. */
static int draw_image(int64_t number, float pixels[SIZE * SIZE]) {
    int digit = (int)(bits(number, 200) % CLASSES);
    int left = 2 + (int)(bits(number, 201) % 3), top = 1 + (int)(bits(number, 202) % 3);
    for (int i = 0; i < SIZE * SIZE; i++) {
        int x = i % SIZE - left, y = i / SIZE - top;
        int is_ink = x >= 0 && x < 5 && y >= 0 && y < 7 && font[digit][y] >> (4 - x) & 1;
        float noise = (float)(bits(number, i) >> 40) * 0x1p-24f - 0.5f;
        pixels[i] = (is_ink ? 1.0f : 0.0f) + 1.2f * noise;
    }
    return digit;
}

/* ---- the network ----------------------------------------------------------------------------- */

typedef struct network {
    float conv1[MAPS1 * 9], bias1[MAPS1];
    float conv2[MAPS2 * MAPS1 * 9], bias2[MAPS2];
    float linear[CLASSES * IN3], bias3[CLASSES];
} network;

static network weights, grads;

/* Results of the forward pass that the backward pass needs. */
typedef struct activations {
    float pixels[SIZE * SIZE];
    float maps1[MAPS1 * 10 * 10];
    float pooled[IN2];
    int winner[IN2]; /* index in maps1 of each pooled value */
    float maps2[IN3];
    float probability[CLASSES];
} activations;

/* out (maps, n-2, n-2) = relu(in (channels, n, n) * kernel (maps, channels, 3, 3) + bias) */
static void convolve(const float *in, int channels, int n, const float *kernel, const float *bias,
                     int maps, float *out) {
    int m = n - 2;
    for (int i = 0; i < maps * m * m; i++) {
        int map = i / (m * m), y = i / m % m, x = i % m;
        float sum = bias[map];
        for (int c = 0; c < channels; c++) {
            const float *k = kernel + (map * channels + c) * 9, *p = in + c * n * n + y * n + x;
            for (int dy = 0; dy < 3; dy++) {
                for (int dx = 0; dx < 3; dx++) sum += k[dy * 3 + dx] * p[dy * n + dx];
            }
        }
        out[i] = sum > 0 ? sum : 0;
    }
}

/* Backward pass: adds to the gradients of kernel, bias and, unless d_in is NULL, in. */
static void convolve_back(const float *in, int channels, int n, const float *kernel, int maps,
                          const float *out, const float *d_out, float *d_kernel, float *d_bias,
                          float *d_in) {
    int m = n - 2;
    for (int i = 0; i < maps * m * m; i++) {
        int map = i / (m * m), y = i / m % m, x = i % m;
        if (out[i] <= 0 || d_out[i] == 0) continue; /* relu was 0 here */
        d_bias[map] += d_out[i];
        for (int c = 0; c < channels; c++) {
            int at = c * n * n + y * n + x, k = (map * channels + c) * 9;
            for (int j = 0; j < 9; j++) {
                int from = at + j / 3 * n + j % 3;
                d_kernel[k + j] += d_out[i] * in[from];
                if (d_in) d_in[from] += d_out[i] * kernel[k + j];
            }
        }
    }
}

static void pool(activations *a) {
    for (int i = 0; i < IN2; i++) {
        /* position in a 2 x 2 square of maps1 */
        int corner = i / 25 * 100 + i / 5 % 5 * 20 + i % 5 * 2;
        int best = corner;
        for (int j = 1; j < 4; j++) {
            int other = corner + j / 2 * 10 + j % 2;
            if (a->maps1[other] > a->maps1[best]) best = other;
        }
        a->winner[i] = best;
        a->pooled[i] = a->maps1[best];
    }
}

/* The loss of one image. */
static double forward_image(activations *a, int label) {
    float logit[CLASSES], largest = -INFINITY;
    double sum = 0;
    convolve(a->pixels, 1, SIZE, weights.conv1, weights.bias1, MAPS1, a->maps1);
    pool(a);
    convolve(a->pooled, MAPS1, 5, weights.conv2, weights.bias2, MAPS2, a->maps2);
    for (int c = 0; c < CLASSES; c++) {
        logit[c] = weights.bias3[c];
        for (int j = 0; j < IN3; j++) logit[c] += weights.linear[c * IN3 + j] * a->maps2[j];
        if (logit[c] > largest) largest = logit[c];
    }
    for (int c = 0; c < CLASSES; c++) sum += exp(logit[c] - largest);
    for (int c = 0; c < CLASSES; c++) a->probability[c] = (float)(exp(logit[c] - largest) / sum);
    return log(sum) - (logit[label] - largest);
}

/* Adds the gradient of `scale` times the loss. */
static void backward_image(const activations *a, int label, double scale) {
    float d_maps2[IN3] = {0}, d_pooled[IN2] = {0}, d_maps1[MAPS1 * 100] = {0};
    for (int c = 0; c < CLASSES; c++) {
        float d_logit = (float)scale * (a->probability[c] - (c == label));
        grads.bias3[c] += d_logit;
        for (int j = 0; j < IN3; j++) {
            grads.linear[c * IN3 + j] += d_logit * a->maps2[j];
            d_maps2[j] += d_logit * weights.linear[c * IN3 + j];
        }
    }
    convolve_back(a->pooled, MAPS1, 5, weights.conv2, MAPS2, a->maps2, d_maps2, grads.conv2,
                  grads.bias2, d_pooled);
    for (int i = 0; i < IN2; i++) d_maps1[a->winner[i]] += d_pooled[i];
    convolve_back(a->pixels, 1, SIZE, weights.conv1, MAPS1, a->maps1, d_maps1, grads.conv1,
                  grads.bias1, NULL);
}

/* ---- callbacks of the library ---------------------------------------------------------------- */

static int is_right(const activations *a, int label) {
    for (int c = 0; c < CLASSES; c++) {
        if (a->probability[c] > a->probability[label]) return 0;
    }
    return 1;
}

static hy_status forward(void *user, int64_t batch, double *loss_sum, int64_t *counted) {
    activations *a = user;
    for (int i = 0; i < BATCH; i++) {
        int label = draw_image(batch * BATCH + i, a->pixels);
        *loss_sum += forward_image(a, label);
    }
    *counted = BATCH;
    return HY_OK;
}

static hy_status backward(void *user, int64_t batch, double loss_scale, double *loss_sum,
                          int64_t *counted) {
    activations *a = user;
    for (int i = 0; i < BATCH; i++) {
        int label = draw_image(batch * BATCH + i, a->pixels);
        *loss_sum += forward_image(a, label);
        backward_image(a, label, loss_scale);
    }
    *counted = BATCH;
    return HY_OK;
}

static hy_status evaluate(void *user, double *loss_sum, int64_t *counted) {
    activations *a = user;
    int right = 0;
    for (int i = 0; i < HELD_OUT; i++) {
        int label = draw_image(FIRST_HELD_OUT + i, a->pixels);
        *loss_sum += forward_image(a, label);
        right += is_right(a, label);
    }
    *counted = HELD_OUT;
    printf("accuracy %.1f %% of %d held-out images\n", 100.0 * right / HELD_OUT, HELD_OUT);
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void print_move(void *user, const hy_step_info *info) {
    (void)user;
    if (info->phase != HY_PREDICT) return;
    printf("step %3lld  loss %.3f  predicted %4.1f steps, %s\n", (long long)info->step, info->loss,
           info->predicted_steps, info->was_rejected ? "rejected" : "accepted");
}

static void initialise(float *w, int count, int inputs, int first) {
    for (int i = 0; i < count; i++) {
        double uniform = (double)(bits(-1, first + i) >> 11) * 0x1p-53;
        w[i] = (float)((2 * uniform - 1) * sqrt(6.0 / inputs));
    }
}

static hy_status configure(hy_config *config, const char *predictor) {
    const char *values[][2] = {{"steps", "600"},
                               {"lr", "0.01"},
                               {"lr_warmup_steps", "20"},
                               {"grad_accum_steps", "2"},
                               {"eval_every", "200"},
                               {"predictor", predictor},
                               {"out", "none"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hy_status status = hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER);
        if (status != HY_OK) return status;
    }
    return HY_OK;
}

#define PARAMETER(array, ...)                                                                      \
    {                                                                                              \
        .name = #array, .weights = weights.array, .grads = grads.array,                            \
        .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .shape = {                     \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

int main(int argc, char **argv) {
    static activations scratch;
    hy_parameter parameters[] = {PARAMETER(conv1, MAPS1, 3, 3),        PARAMETER(bias1, MAPS1),
                                 PARAMETER(conv2, MAPS2, MAPS1, 3, 3), PARAMETER(bias2, MAPS2),
                                 PARAMETER(linear, CLASSES, IN3),      PARAMETER(bias3, CLASSES)};
    hy_custom_model model = {
        .parameters = {.list = parameters, .count = sizeof parameters / sizeof parameters[0]},
        .user = &scratch,
        .forward = forward,
        .backward = backward,
        .evaluate = evaluate};
    hy_observer observer = {.on_step = print_move};
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_config *config = NULL;
    initialise(weights.conv1, MAPS1 * 9, 9, 0);
    initialise(weights.conv2, MAPS2 * MAPS1 * 9, MAPS1 * 9, 1000);
    initialise(weights.linear, CLASSES * IN3, IN3, 10000);
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(config, argc > 1 ? argv[1] : "outer");
    if (status == HY_OK) status = hy_trainer_create_custom(config, &model, &observer, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (status == HY_OK) {
        hy_trainer_summary(trainer, &summary);
        printf("held-out loss %.4f after %lld steps and %lld jumps, %.1f s\n", summary.val_loss,
               (long long)summary.steps, (long long)summary.moves, summary.seconds);
    } else {
        fprintf(stderr, "%s\n", hy_error_message());
    }
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status == HY_OK ? 0 : 1;
}
