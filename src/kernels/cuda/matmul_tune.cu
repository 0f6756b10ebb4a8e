/* matmul_tune.cu: times algorithms of a product and keeps the fastest; measures the card.
 *
 * Operands are random numbers in scratch memory that lives for one tuning only, so the memory is free
 * again when the arenas are allocated. All guesses are screened first, slow ones after one run; the
 * best few are then timed again in turns, which evens out the drift of clocks, and the earlier guess
 * wins unless a later one is clearly faster. */
#include <stdlib.h>

#include "kernels/cuda/matmul.cuh"

enum { MOST_GUESSES = 64, FAST_GUESSES = 8, FINALISTS = 3, MOST_SAMPLES = 5, LEAST_SAMPLES = 3 };

/* A sample repeats short products to this length, against the grain of the clock. */
#define SAMPLE_MICROSECONDS 100.0f
/* Time for one algorithm in the first round, if that allows the least number of samples. */
#define SCREEN_MICROSECONDS 5000.0f
/* An algorithm slower than this times the best so far gets no second run. */
#define HOPELESS 1.25f
/* A later guess must be faster than this times an earlier one to beat it. */
#define CLEARLY 0.995f

typedef struct bench {
    hy_cuda *cuda;
    hy_matmul_plan plan; /* with the algorithm being timed */
    hy_matmul_args args;
    void *memory;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} bench;

/* ---- scratch ------------------------------------------------------------------------------------------ */

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Hands out `count` elements of the scratch block, or only counts while there is none. */
static void *take(const bench *b, size_t *used, hy_dtype dtype, int64_t count) {
    size_t at = *used;
    *used += round_up((size_t)count * hy_matmul_element(dtype));
    return b->memory ? (char *)b->memory + at : NULL;
}

/* Lays the operands out; returns the bytes. c is d itself: the same traffic, no copy. */
static size_t lay_out(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    hy_matmul_args *args = &b->args;
    size_t used = 0;
    args->a = take(b, &used, k->in, k->M * k->K);
    args->b = take(b, &used, k->in, k->K * k->N);
    args->d = take(b, &used, k->out, k->M * k->N);
    if (k->has_bias) args->bias = take(b, &used, k->bias, k->N);
    if (k->gelu == HY_GELU_KEEP) args->act = take(b, &used, k->out, k->M * k->N);
    if (k->gelu == HY_GELU_BACK) args->pre = take(b, &used, k->out, k->M * k->N);
    args->workspace_bytes = hy_matmul_most_bytes(b->cuda) + b->plan.bias_bytes;
    args->workspace = take(b, &used, HY_BF16, (int64_t)(args->workspace_bytes + 1) / 2);
    args->c = args->d;
    args->alpha = 1.0f;
    args->beta = k->has_c ? 1.0f : 0.0f;
    return used;
}

static void fill(const bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    const hy_matmul_args *args = &b->args;
    hy_matmul_fill((void *)args->a, k->in, k->M * k->K, 1, b->stream);
    hy_matmul_fill((void *)args->b, k->in, k->K * k->N, 2, b->stream);
    hy_matmul_fill(args->d, k->out, k->M * k->N, 3, b->stream);
    if (args->bias) hy_matmul_fill((void *)args->bias, k->bias, k->N, 4, b->stream);
    if (args->pre) hy_matmul_fill((void *)args->pre, k->out, k->M * k->N, 5, b->stream);
}

static void close_bench(bench *b) {
    if (b->begin) cudaEventDestroy(b->begin);
    if (b->end) cudaEventDestroy(b->end);
    if (b->stream) cudaStreamDestroy(b->stream);
    if (b->memory) cudaFree(b->memory);
    cudaGetLastError(); /* a refused allocation is no error of the next launch */
}

/* False: the scratch cannot be had. */
static bool open_bench(bench *b, hy_cuda *cuda, const hy_matmul_plan *plan) {
    *b = (bench){};
    b->cuda = cuda;
    b->plan = *plan;
    size_t bytes = lay_out(b);
    if (cudaMalloc(&b->memory, bytes) != cudaSuccess) b->memory = NULL;
    if (!b->memory || cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&b->begin) != cudaSuccess || cudaEventCreate(&b->end) != cudaSuccess) {
        close_bench(b);
        return false;
    }
    lay_out(b);
    fill(b);
    return true;
}

/* ---- timing ------------------------------------------------------------------------------------------- */

/* Microseconds of one product, averaged over `repeats`; negative: it does not run. */
static float time_once(bench *b, int repeats) {
    float milliseconds = -1.0f;
    cudaEventRecord(b->begin, b->stream);
    for (int i = 0; i < repeats; i++) {
        if (hy_matmul_launch(b->cuda, &b->plan, &b->args, b->stream) != HY_OK) return -1.0f;
    }
    cudaEventRecord(b->end, b->stream);
    if (cudaEventSynchronize(b->end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, b->begin, b->end) != cudaSuccess) {
        return -1.0f;
    }
    return milliseconds * 1e3f / (float)repeats;
}

static float median(float *x, int n) {
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && x[j] < x[j - 1]; j--) {
            float other = x[j];
            x[j] = x[j - 1];
            x[j - 1] = other;
        }
    }
    return x[n / 2];
}

static int clamp(float x, int least, int most) {
    return x < (float)least ? least : x > (float)most ? most : (int)x;
}

static float time_samples(bench *b, float about, int samples) {
    float times[MOST_SAMPLES];
    int repeats = clamp(SAMPLE_MICROSECONDS / about, 1, 20);
    for (int i = 0; i < samples; i++) {
        times[i] = time_once(b, repeats);
        if (times[i] < 0) return -1.0f;
    }
    return median(times, samples);
}

static void choose(bench *b, const cublasLtMatmulHeuristicResult_t *guess) {
    b->plan.algorithm = guess->algo;
    b->plan.algorithm_bytes = guess->workspaceSize;
}

/* Median time of a guess, or less than that for one without hope; negative: it does not run. */
static float screen(bench *b, const cublasLtMatmulHeuristicResult_t *guess, float best) {
    choose(b, guess);
    float first = time_once(b, 1); /* loads the kernel */
    if (first < 0) return first;
    float once = time_once(b, 1);
    if (once < 0 || (best > 0 && once > HOPELESS * best)) return once;
    return time_samples(b, once, clamp(SCREEN_MICROSECONDS / once, LEAST_SAMPLES, MOST_SAMPLES));
}

/* The fastest few, in the order of the guesses. */
static int pick_finalists(const float *times, int count, int finalists[FINALISTS]) {
    int picked = 0;
    for (int i = 0; i < count; i++) {
        int faster = 0;
        for (int j = 0; j < count; j++) {
            faster += times[j] > 0 && (times[j] < times[i] || (times[j] == times[i] && j < i));
        }
        if (times[i] > 0 && faster < FINALISTS) finalists[picked++] = i;
    }
    return picked;
}

/* Times the finalists in turns; returns the winner's place in `guesses`. */
static int final_of(bench *b, const cublasLtMatmulHeuristicResult_t *guesses, const float *screened,
                    const int *finalists, int count, float *time) {
    float times[FINALISTS][MOST_SAMPLES];
    int winner = 0;
    for (int round = 0; round < MOST_SAMPLES; round++) {
        for (int i = 0; i < count; i++) {
            choose(b, &guesses[finalists[i]]);
            times[i][round] = time_samples(b, screened[finalists[i]], 1);
        }
    }
    *time = median(times[0], MOST_SAMPLES);
    for (int i = 1; i < count; i++) {
        float t = median(times[i], MOST_SAMPLES);
        if (t < CLEARLY * *time) {
            *time = t;
            winner = i;
        }
    }
    return finalists[winner];
}

static void find_fastest(bench *b, hy_matmul_plan *plan, hy_tune tune) {
    cublasLtMatmulHeuristicResult_t guesses[MOST_GUESSES];
    float times[MOST_GUESSES], best = 0;
    int finalists[FINALISTS];
    int most = tune == HY_TUNE_MAX ? MOST_GUESSES : FAST_GUESSES;
    int count = hy_matmul_guess(b->cuda, plan, guesses, most);
    for (int i = 0; i < count; i++) {
        times[i] = screen(b, &guesses[i], best);
        if (times[i] > 0 && (best == 0 || times[i] < best)) best = times[i];
    }
    int picked = pick_finalists(times, count, finalists);
    if (picked == 0) return;
    int winner = final_of(b, guesses, times, finalists, picked, &plan->microseconds);
    plan->algorithm = guesses[winner].algo;
    plan->algorithm_bytes = guesses[winner].workspaceSize;
    plan->level = (hy_matmul_level)tune;
}

/* ---- tuning ------------------------------------------------------------------------------------------- */

static void tell(const hy_cuda *cuda, const hy_matmul_key *key) {
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    static const char *const gelu[] = {"", " + gelu", " + gelu", " + gelu backward"};
    char what[128];
    if (!cuda->options.on_tuning) return;
    snprintf(what, sizeof what, "%lld x %lld x %lld %s%s%s%s%s", (long long)key->M,
             (long long)key->N, (long long)key->K, types[key->in],
             key->out != key->in ? " -> fp32" : "", key->has_bias ? " + bias" : "",
             key->has_c ? " + residual" : "", gelu[key->gelu]);
    cuda->options.on_tuning(cuda->options.user, what, cuda->plans->tuned, 0);
}

hy_status hy_matmul_tune(hy_cuda *cuda, hy_matmul_plan *plan, hy_tune tune) {
    bench b;
    if (plan->is_plain || !open_bench(&b, cuda, plan)) return HY_OK;
    tell(cuda, &plan->key);
    find_fastest(&b, plan, tune);
    cudaError_t error = cudaStreamSynchronize(b.stream);
    close_bench(&b);
    cuda->plans->tuned++;
    return hy_cuda_check(cuda, error, "timing products");
}

/* ---- the card's rate ---------------------------------------------------------------------------------- */

static hy_matmul_key square_key(const hy_cuda *cuda, int64_t side) {
    hy_matmul_key key = {};
    key.M = key.N = key.K = side;
    key.trans_b = true; /* as a layer's forward product with weights (out, in) */
    key.in = key.out = key.bias = cuda->card.capability >= 80 ? HY_BF16 : HY_F16;
    key.alignment = 16;
    return key;
}

/* Operations per second of a square product; 0: it cannot be timed. */
static hy_status measure_side(hy_cuda *cuda, int64_t side, hy_tune tune, double *flops) {
    hy_matmul_plan plan;
    bench b;
    *flops = 0;
    hy_matmul_key key = square_key(cuda, side);
    HY_CUDA_TRY(hy_matmul_plan_make(cuda, &key, &plan));
    if (plan.is_plain || !open_bench(&b, cuda, &plan)) return HY_OK;
    if (tune != HY_TUNE_OFF) {
        find_fastest(&b, &plan, tune);
    } else if (time_once(&b, 1) > 0) {
        plan.microseconds = time_samples(&b, SAMPLE_MICROSECONDS, LEAST_SAMPLES);
    }
    cudaError_t error = cudaStreamSynchronize(b.stream);
    close_bench(&b);
    if (plan.microseconds > 0)
        *flops = 2.0 * (double)(side * side * side) / (plan.microseconds * 1e-6);
    return hy_cuda_check(cuda, error, "measuring the rate of products");
}

/* The largest square that memory and 0.2 seconds allow: about 50 products are timed. */
hy_status hy_cuda_matmul_measure(hy_cuda *cuda, double *flops) {
    double rough;
    *flops = 0;
    HY_CUDA_TRY(measure_side(cuda, 2048, HY_TUNE_OFF, &rough));
    for (int64_t side = 8192; side >= 2048 && *flops == 0; side /= 2) {
        double seconds = rough > 0 ? 50 * 2.0 * (double)(side * side * side) / rough : 0;
        if (seconds < 0.2 || side == 2048) {
            HY_CUDA_TRY(measure_side(cuda, side, HY_TUNE_FAST, flops));
        }
    }
    return HY_OK;
}
