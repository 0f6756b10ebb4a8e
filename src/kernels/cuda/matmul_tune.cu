/* matmul_tune.cu: times algorithms of a matmul and keeps the fastest; measures the card.
 *
 * Operands are random numbers in scratch memory that lives for one tuning only, so the memory is
 * free again when the arenas are allocated. The library's guesses are screened first, slow ones
 * after one run. The thorough level then wanders among neighbours of the best (matmul_search.cu)
 * and demands of each that it gives the best guess's numbers. The best few are timed again in
 * turns, which evens out the drift of clocks, and the earlier one wins unless a later one is
 * clearly faster. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/matmul.cuh"

enum { MOST_GUESSES = 32, FAST_GUESSES = 8, FINALISTS = 3, MOST_SAMPLES = 5 };
enum { MOST_TRIED = 1024, PARENTS = 4 };

/* A sample repeats short matmuls to this length, against the grain of the clock. */
#define SAMPLE_MICROSECONDS 100.0f
/* Time for one algorithm in the first round, and in the last; a long matmul is run once and
 * twice. */
#define SCREEN_MICROSECONDS 3000.0f
#define FINAL_MICROSECONDS 6000.0f
/* An algorithm slower than this times the best so far gets no second run. */
#define HOPELESS 1.25f
/* A later guess must be faster than this times an earlier one to beat it. */
#define CLEARLY 0.995f

/* How long the thorough level looks for more. */
#define SEARCH_SECONDS 1.5

typedef struct bench {
    hy_cuda *cuda;
    hy_matmul_plan plan; /* with the algorithm being timed */
    hy_matmul_args args;
    void *expected;      /* what the best guess gives; null where nothing is searched */
    unsigned *differing; /* elements that differ from it */
    void *memory;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} bench;

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Hands out `count` elements of the scratch block, or only counts while there is none. */
static void *take(const bench *b, size_t *used, hy_dtype dtype, int64_t count) {
    size_t at = *used;
    *used += round_up((size_t)count * hy_dtype_size(dtype));
    return b->memory ? (char *)b->memory + at : NULL;
}

/* Lays the operands out; returns the bytes. c is d itself: the same traffic, no copy. */
static size_t lay_out(bench *b, bool is_searching) {
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
    b->differing = (unsigned *)take(b, &used, HY_F32, 1);
    if (is_searching) b->expected = take(b, &used, k->out, k->M * k->N);
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

/* False: the scratch cannot be allocated. */
static bool open_bench(bench *b, hy_cuda *cuda, const hy_matmul_plan *plan, hy_tune tune) {
    *b = (bench){};
    b->cuda = cuda;
    b->plan = *plan;
    size_t bytes = lay_out(b, tune == HY_TUNE_MAX);
    if (cudaMalloc(&b->memory, bytes) != cudaSuccess) b->memory = NULL;
    if (!b->memory || cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&b->begin) != cudaSuccess || cudaEventCreate(&b->end) != cudaSuccess) {
        close_bench(b);
        return false;
    }
    lay_out(b, tune == HY_TUNE_MAX);
    fill(b);
    return true;
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* Microseconds of one matmul, averaged over `repeats`; negative: it does not run. */
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
    return x[(n - 1) / 2];
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
    int samples = clamp(SCREEN_MICROSECONDS / once, 1, MOST_SAMPLES);
    if (once < 0 || samples == 1 || (best > 0 && once > HOPELESS * best)) return once;
    return time_samples(b, once, samples);
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
    int rounds = clamp(FINAL_MICROSECONDS / screened[finalists[0]], 2, MOST_SAMPLES);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            choose(b, &guesses[finalists[i]]);
            float time_now = time_samples(b, screened[finalists[i]], 1);
            times[i][round] = time_now > 0 ? time_now : INFINITY;
        }
    }
    *time = median(times[0], rounds);
    for (int i = 1; i < count; i++) {
        float t = median(times[i], rounds);
        if (t < CLEARLY * *time) {
            *time = t;
            winner = i;
        }
    }
    return finalists[winner];
}

/* ---- wandering ------------------------------------------------------------------------------- */

/* The best algorithms so far, with their times. */
typedef struct ranking {
    cublasLtMatmulHeuristicResult_t items[MOST_GUESSES];
    float times[MOST_GUESSES];
    int count;
} ranking;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fastest(const ranking *r, int after) {
    int order[PARENTS] = {0};
    for (int place = 0; place <= after; place++) {
        int best = -1;
        for (int i = 0; i < r->count; i++) {
            bool is_taken = r->times[i] <= 0;
            for (int j = 0; j < place; j++) is_taken |= order[j] == i;
            if (!is_taken && (best < 0 || r->times[i] < r->times[best])) best = i;
        }
        if (best < 0) return order[0];
        order[place] = best;
    }
    return order[after];
}

/* Puts an algorithm at the end, or in the place of the slowest. */
static void enter(ranking *r, const cublasLtMatmulHeuristicResult_t *item, float time) {
    int at = r->count;
    if (r->count < MOST_GUESSES) {
        r->count++;
    } else {
        for (int i = at = 0; i < r->count; i++) {
            if (r->times[i] <= 0 || r->times[i] > r->times[at]) at = i;
        }
        if (r->times[at] > 0 && r->times[at] < time) return;
    }
    r->items[at] = *item;
    r->times[at] = time;
}

static const void *result_of(const bench *b) { return b->args.act ? b->args.act : b->args.d; }

/* Runs the chosen algorithm on fresh operands. */
static bool run_afresh(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    if (k->has_c) hy_matmul_fill(b->args.d, k->out, k->M * k->N, 3, b->stream);
    return hy_matmul_launch(b->cuda, &b->plan, &b->args, b->stream) == HY_OK;
}

static bool keep_expected(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    size_t bytes = (size_t)(k->M * k->N) * hy_dtype_size(k->out);
    return run_afresh(b) && cudaMemcpyAsync(b->expected, result_of(b), bytes,
                                            cudaMemcpyDeviceToDevice, b->stream) == cudaSuccess;
}

/* The sums of K products of numbers below one, in another order and rounded elsewhere. */
static bool gives_expected(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    unsigned differing = 1;
    float slack = 2e-3f * sqrtf((float)k->K);
    cudaMemsetAsync(b->differing, 0, sizeof differing, b->stream);
    if (!run_afresh(b)) return false;
    hy_matmul_compare(result_of(b), b->expected, k->out, k->M * k->N, slack, b->differing,
                      b->stream);
    cudaMemcpyAsync(&differing, b->differing, sizeof differing, cudaMemcpyDeviceToHost, b->stream);
    return cudaStreamSynchronize(b->stream) == cudaSuccess && differing == 0;
}

static bool is_known(const cublasLtMatmulAlgo_t *tried, int count,
                     const cublasLtMatmulAlgo_t *one) {
    for (int i = 0; i < count; i++) {
        if (memcmp(&tried[i], one, sizeof *one) == 0) return true;
    }
    return false;
}

/* Looks around the best few until time is up; half of the steps start from the best. */
static void wander(bench *b, ranking *r) {
    cublasLtMatmulAlgo_t *tried = (cublasLtMatmulAlgo_t *)malloc(MOST_TRIED * sizeof *tried);
    double end = now() + SEARCH_SECONDS;
    uint32_t state = 0x2545F491u;
    int count = 0;
    choose(b, &r->items[fastest(r, 0)]);
    if (!tried || !keep_expected(b)) end = 0;
    while (now() < end && count < MOST_TRIED) {
        cublasLtMatmulHeuristicResult_t next = {};
        int parent = count % 2 == 0 ? 0 : count / 2 % PARENTS;
        if (!hy_matmul_vary(b->cuda, &b->plan, &r->items[fastest(r, parent)].algo, &state, &next)) {
            break;
        }
        bool is_new = !is_known(tried, count, &next.algo);
        tried[count++] = next.algo;
        if (!is_new) continue;
        float best = r->times[fastest(r, 0)], time = screen(b, &next, best);
        if (time > 0 && time < HOPELESS * best && gives_expected(b)) enter(r, &next, time);
    }
    free(tried);
}

static void find_fastest(bench *b, hy_matmul_plan *plan, hy_tune tune) {
    ranking r = {};
    int finalists[FINALISTS];
    float best = 0;
    r.count = hy_matmul_guess(b->cuda, plan, r.items, FAST_GUESSES);
    for (int i = 0; i < r.count; i++) {
        r.times[i] = screen(b, &r.items[i], best);
        if (r.times[i] > 0 && (best == 0 || r.times[i] < best)) best = r.times[i];
    }
    if (tune == HY_TUNE_MAX && best > 0) wander(b, &r);
    int picked = pick_finalists(r.times, r.count, finalists);
    if (picked == 0) return;
    int winner = final_of(b, r.items, r.times, finalists, picked, &plan->microseconds);
    plan->algorithm = r.items[winner].algo;
    plan->algorithm_bytes = r.items[winner].workspaceSize;
    plan->level = (hy_matmul_level)tune;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static void report_progress(const hy_cuda *cuda, const hy_matmul_key *key) {
    static const char *const gelu[] = {"", " + gelu", " + gelu", " + gelu backward"};
    char what[128];
    if (!cuda->options.on_tuning) return;
    snprintf(what, sizeof what, "%lld x %lld x %lld %s%s%s%s%s", (long long)key->M,
             (long long)key->N, (long long)key->K, hy_dtype_name(key->in),
             key->out != key->in ? " -> fp32" : "", key->has_bias ? " + bias" : "",
             key->has_c ? " + residual" : "", gelu[key->gelu]);
    cuda->options.on_tuning(cuda->options.user, what, cuda->plans->tuned, 0);
}

hy_status hy_matmul_tune(hy_cuda *cuda, hy_matmul_plan *plan, hy_tune tune) {
    bench b;
    if (plan->is_plain) return HY_OK;
    bool is_open = open_bench(&b, cuda, plan, tune);
    if (!is_open && tune == HY_TUNE_MAX) { /* what is searched needs more scratch */
        tune = HY_TUNE_FAST;
        is_open = open_bench(&b, cuda, plan, tune);
    }
    if (!is_open) return HY_OK;
    report_progress(cuda, &plan->key);
    find_fastest(&b, plan, tune);
    cudaError_t error = cudaStreamSynchronize(b.stream);
    close_bench(&b);
    cuda->plans->tuned++;
    return hy_cuda_check(cuda, error, "timing matmuls");
}

/* ---- the card's rate ------------------------------------------------------------------------- */

static hy_matmul_key square_key(const hy_cuda *cuda, int64_t side) {
    hy_matmul_key key = {};
    key.M = key.N = key.K = side;
    key.trans_b = true; /* as a layer's forward matmul with weights (out, in) */
    key.in = key.out = key.bias = cuda->card.capability >= 80 ? HY_BF16 : HY_F16;
    key.alignment = 16;
    return key;
}

/* Operations per second of a square matmul; 0: it cannot be timed. */
static hy_status measure_side(hy_cuda *cuda, int64_t side, hy_tune tune, double *flops) {
    hy_matmul_plan plan;
    bench b;
    *flops = 0;
    hy_matmul_key key = square_key(cuda, side);
    HY_TRY(hy_matmul_plan_make(cuda, &key, &plan));
    if (plan.is_plain || !open_bench(&b, cuda, &plan, tune)) return HY_OK;
    if (tune != HY_TUNE_OFF) find_fastest(&b, &plan, tune);
    b.plan = plan;
    float best = 0;
    for (int i = 0; i <= MOST_SAMPLES; i++) {
        float time = time_once(&b, 1);
        if (i > 0 && time > 0 && (best == 0 || time < best)) best = time; /* the first warms up */
    }
    cudaError_t error = cudaStreamSynchronize(b.stream);
    close_bench(&b);
    if (best > 0) *flops = 2.0 * (double)(side * side * side) / ((double)best * 1e-6);
    return hy_cuda_check(cuda, error, "measuring the rate of matmuls");
}

/* The largest square that memory and 0.2 seconds allow: about 50 matmuls are timed. */
hy_status hy_cuda_matmul_measure(hy_cuda *cuda, double *flops) {
    double rough;
    *flops = 0;
    HY_TRY(measure_side(cuda, 2048, HY_TUNE_OFF, &rough));
    for (int64_t side = 8192; side >= 2048 && *flops == 0; side /= 2) {
        double seconds = rough > 0 ? 50 * 2.0 * (double)(side * side * side) / rough : 0;
        if (seconds < 0.2 || side == 2048) {
            HY_TRY(measure_side(cuda, side, HY_TUNE_FAST, flops));
        }
    }
    return HY_OK;
}
