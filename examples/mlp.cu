/* mlp.cu: a small network with its own bf16 kernels; its weights are on the card only while in use.
 *
 * It learns which of ten hidden directions a point is closest to. Each layer is a unit: the library
 * keeps its weights and the sums of its gradients in pinned memory, and this program holds a unit
 * while its kernels run. Adam's state is on the card; in Predict it moves to pinned memory and
 * returns before it is needed. `mlp none` trains without prediction.
 *   nvcc -arch=native mlp.cu $(pkg-config --cflags --libs hybrid) -o mlp */
#include <cuda_bf16.h>
#include <stdio.h>
#include <string.h>

#include "hybrid.h"

#define IN 64
#define HIDDEN 512
#define CLASSES 10
#define BATCH 256
#define HELD_OUT (INT64_C(1) << 40) /* samples that are not used in training */

typedef __nv_bfloat16 bf16;

/* ---- memory on the card ---------------------------------------------------------------------- */

typedef struct network {
    bf16 *w1, *b1, *w2, *b2; /* (HIDDEN, IN), (HIDDEN), (CLASSES, HIDDEN), (CLASSES) */
} network;

static network weights;                            /* of units that are held */
static network grads;                              /* of one micro-batch */
static float *points, *hidden, *d_logits, *losses; /* (BATCH, ...) */
static int *labels;
static cudaStream_t stream;

static void *on_card(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess) return NULL;
    cudaMemset(p, 0, bytes);
    return p;
}

/* ---- kernels: one thread per number ---------------------------------------------------------- */

/* Uniform between -1 and 1, from two numbers (splitmix64). */
__device__ static float uniform(int64_t sample, int position) {
    uint64_t z = ((uint64_t)sample * 4096 + (uint64_t)position + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (float)((double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1);
}

__global__ static void initialise(bf16 *w, int count, int64_t seed, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) w[i] = __float2bfloat16(scale * uniform(seed, i % 4096 + i / 4096 * 7));
}

__global__ static void draw(float *x, int *label, int64_t first) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float best = -1e9f;
    if (row >= BATCH) return;
    for (int j = 0; j < IN; j++) x[row * IN + j] = uniform(first + row, j);
    for (int c = 0; c < CLASSES; c++) {
        float dot = 0;
        for (int j = 0; j < IN; j++) dot += x[row * IN + j] * uniform(-1 - c, j);
        if (dot > best) label[row] = c;
        if (dot > best) best = dot;
    }
}

__global__ static void forward_hidden(float *h, const float *x, network w) {
    int row = blockIdx.x, i = threadIdx.x;
    float sum = __bfloat162float(w.b1[i]);
    for (int j = 0; j < IN; j++) sum += __bfloat162float(w.w1[i * IN + j]) * x[row * IN + j];
    h[row * HIDDEN + i] = sum > 0 ? sum : 0;
}

/* The loss of a row, and the gradient of its logits. */
__global__ static void forward_loss(float *loss, float *d, const float *h, const int *label,
                                    network w) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float logit[CLASSES], most = -1e9f, sum = 0;
    if (row >= BATCH) return;
    for (int c = 0; c < CLASSES; c++) {
        logit[c] = __bfloat162float(w.b2[c]);
        for (int i = 0; i < HIDDEN; i++) {
            logit[c] += __bfloat162float(w.w2[c * HIDDEN + i]) * h[row * HIDDEN + i];
        }
        most = fmaxf(most, logit[c]);
    }
    for (int c = 0; c < CLASSES; c++) sum += expf(logit[c] - most);
    loss[row] = logf(sum) + most - logit[label[row]];
    for (int c = 0; c < CLASSES; c++) {
        d[row * CLASSES + c] = expf(logit[c] - most) / sum - (c == label[row]);
    }
}

__global__ static void backward_second(network g, const float *d, const float *h, float scale) {
    int c = blockIdx.x, i = threadIdx.x;
    float sum = 0, bias = 0;
    for (int row = 0; row < BATCH; row++) {
        sum += d[row * CLASSES + c] * h[row * HIDDEN + i];
        bias += d[row * CLASSES + c];
    }
    g.w2[c * HIDDEN + i] = __float2bfloat16(scale * sum);
    if (i == 0) g.b2[c] = __float2bfloat16(scale * bias);
}

__global__ static void backward_first(network g, network w, const float *d, const float *h,
                                      const float *x, float scale) {
    int i = blockIdx.x, j = threadIdx.x;
    float sum = 0, bias = 0;
    for (int row = 0; row < BATCH; row++) {
        float back = 0;
        for (int c = 0; c < CLASSES; c++) {
            back += d[row * CLASSES + c] * __bfloat162float(w.w2[c * HIDDEN + i]);
        }
        if (h[row * HIDDEN + i] == 0) back = 0;
        sum += back * x[row * IN + j];
        bias += back;
    }
    g.w1[i * IN + j] = __float2bfloat16(scale * sum);
    if (j == 0) g.b1[i] = __float2bfloat16(scale * bias);
}

/* ---- a pass over one micro-batch ------------------------------------------------------------- */

/* Unit 0 is the first layer, unit 1 the second. */
static hy_status hold(hy_loop *loop, int32_t unit) {
    void *at[2];
    hy_status status = hy_loop_hold(loop, unit, at);
    if (status != HY_OK) return status;
    *(unit ? &weights.w2 : &weights.w1) = (bf16 *)at[0];
    *(unit ? &weights.b2 : &weights.b1) = (bf16 *)at[1];
    return HY_OK;
}

static hy_status add_gradients(hy_loop *loop, int32_t unit) {
    void *const at[2][2] = {{grads.w1, grads.b1}, {grads.w2, grads.b2}};
    return hy_loop_add_gradients(loop, unit, BATCH, at[unit]);
}

/* The gradients of the first layer need weights of the second, so that one is held until then. */
static hy_status backward(hy_loop *loop) {
    float scale = 1.0f / BATCH;
    hy_status status;
    backward_second<<<CLASSES, HIDDEN, 0, stream>>>(grads, d_logits, hidden, scale);
    if ((status = add_gradients(loop, 1)) != HY_OK) return status;
    backward_first<<<HIDDEN, IN, 0, stream>>>(grads, weights, d_logits, hidden, points, scale);
    return add_gradients(loop, 0);
}

static hy_status pass(hy_loop *loop, int64_t batch, bool wants_gradients, double *loss) {
    float each[BATCH];
    hy_status status;
    draw<<<1, BATCH, 0, stream>>>(points, labels, batch * BATCH);
    if ((status = hold(loop, 0)) != HY_OK) return status;
    forward_hidden<<<BATCH, HIDDEN, 0, stream>>>(hidden, points, weights);
    if ((status = hy_loop_release(loop, 0)) != HY_OK) return status;
    if ((status = hold(loop, 1)) != HY_OK) return status;
    forward_loss<<<1, BATCH, 0, stream>>>(losses, d_logits, hidden, labels, weights);
    if (wants_gradients && (status = backward(loop)) != HY_OK) return status;
    if ((status = hy_loop_release(loop, 1)) != HY_OK) return status;
    cudaMemcpyAsync(each, losses, sizeof each, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    *loss = 0;
    for (int i = 0; i < BATCH; i++) *loss += each[i] / BATCH;
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* The held-out loss is one of the questions, because units can be held until the run is over. */
static hy_status train(hy_loop *loop, double *held_out) {
    hy_loop_step step;
    hy_status status;
    while ((status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        bool is_held_out = step.todo == HY_DO_EVALUATE;
        double loss;
        status = pass(loop, is_held_out ? HELD_OUT / BATCH : step.batch,
                      step.todo == HY_DO_GRADIENTS, &loss);
        if (status == HY_OK && is_held_out) *held_out = loss;
        if (status == HY_OK) status = hy_loop_answer(loop, loss, BATCH);
        if (status != HY_OK) break;
    }
    return status;
}

static void print_step(void *user, const hy_step_info *info) {
    (void)user;
    if (info->phase == HY_PREDICT) {
        printf("step %3lld  predicted %4.1f steps, %s; %.1f KiB of state offloaded\n",
               (long long)info->step, info->predicted_steps,
               info->was_rejected ? "rejected" : "accepted", (double)info->bytes_moved / 2048);
    }
}

static hy_status configure(hy_config *config, const char *predictor) {
    const char *values[][2] = {{"steps", "600"},
                               {"lr", "0.003"},
                               {"device", "cuda"},
                               {"predictor", predictor},
                               {"weights_place", "pinned"},
                               {"master_place", "pinned"},
                               {"grads_place", "pinned"},
                               {"offload_strategy", "pinned"},
                               {"lookahead", "2"},
                               {"lr_warmup_steps", "30"},
                               {"predict_from", "0.3"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hy_status status = hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER);
        if (status != HY_OK) return status;
    }
    return HY_OK;
}

static hy_parameter parameter(const char *name, bf16 **g, int64_t rows, int64_t columns) {
    hy_parameter p = {};
    *g = (bf16 *)on_card((size_t)(rows * (columns ? columns : 1)) * sizeof(bf16));
    p.name = name;
    p.ndim = columns ? 2 : 1;
    p.shape[0] = rows;
    p.shape[1] = columns;
    return p;
}

static hy_status make_network(hy_parameter list[4]) {
    list[0] = parameter("w1", &grads.w1, HIDDEN, IN);
    list[1] = parameter("b1", &grads.b1, HIDDEN, 0);
    list[2] = parameter("w2", &grads.w2, CLASSES, HIDDEN);
    list[3] = parameter("b2", &grads.b2, CLASSES, 0);
    points = (float *)on_card(BATCH * IN * sizeof(float));
    hidden = (float *)on_card(BATCH * HIDDEN * sizeof(float));
    d_logits = (float *)on_card(BATCH * CLASSES * sizeof(float));
    losses = (float *)on_card(BATCH * sizeof(float));
    labels = (int *)on_card(BATCH * sizeof(int));
    cudaStreamCreate(&stream);
    return cudaStreamSynchronize(stream) == cudaSuccess ? HY_OK : HY_ERR_DEVICE;
}

/* Draws the first weights of a parameter in the memory of its gradients; scale 0: zeros. */
static hy_status write_weights(hy_loop *loop, int32_t parameter, bf16 *at, int count, float scale) {
    static bf16 numbers[HIDDEN * IN];
    initialise<<<(count + 255) / 256, 256, 0, stream>>>(at, count, (int64_t)1 << (20 + parameter),
                                                        scale);
    cudaMemcpyAsync(numbers, at, count * sizeof(bf16), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return hy_loop_write_weights(loop, parameter, 0, count, numbers);
}

static hy_status initialise_all(hy_loop *loop) {
    hy_status status = write_weights(loop, 0, grads.w1, HIDDEN * IN, 0.2f);
    if (status == HY_OK) status = write_weights(loop, 1, grads.b1, HIDDEN, 0);
    if (status == HY_OK) status = write_weights(loop, 2, grads.w2, CLASSES * HIDDEN, 0.05f);
    return status == HY_OK ? write_weights(loop, 3, grads.b2, CLASSES, 0) : status;
}

int main(int argc, char **argv) {
    static const int32_t unit_of[4] = {0, 0, 1, 1};
    hy_parameter list[4];
    hy_loop_options options = {};
    hy_observer observer = {};
    hy_config *config = NULL;
    hy_loop *loop = NULL;
    double held_out = 0;
    hy_status status = make_network(list);
    if (status != HY_OK) {
        fprintf(stderr, "%s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    options.parameters.list = list;
    options.parameters.count = 4;
    options.parameters.dtype = options.parameters.grad_dtype = HY_BF16;
    options.parameters.stream = stream;
    options.unit_of = unit_of;
    options.can_evaluate = true;
    observer.on_step = print_step;
    status = hy_config_create(&config);
    if (status == HY_OK) status = configure(config, argc > 1 ? argv[1] : "outer");
    if (status == HY_OK) status = hy_loop_create(config, &options, &observer, &loop);
    if (status == HY_OK) status = initialise_all(loop);
    if (status == HY_OK) status = train(loop, &held_out);
    if (status == HY_OK) {
        printf("held-out loss %.4f\n", held_out);
    } else {
        fprintf(stderr, "%s\n", hy_error_message());
    }
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    return status == HY_OK ? 0 : 1;
}
