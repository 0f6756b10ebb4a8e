/* matmul_tune.cu: times algorithms of a matmul and keeps the fastest; measures the card.
 *
 * Operands are random numbers in scratch memory that exists only for one tuning, so the memory is
 * free again when the arenas are allocated. The library's suggestions are screened first, slow ones
 * after one run. The thorough level then walks among neighbours of the best (matmul_search.cu) and
 * requires that each gives the same numbers as the best suggestion. The best few are timed again
 * alternately, which evens out clock drift, and the earlier one wins unless a later one is clearly
 * faster. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/timing.cuh"

enum { MOST_GUESSES = 32, FAST_GUESSES = 8, FINALISTS = 3, MOST_SAMPLES = 5 };
enum { MOST_TRIED = 1024, PARENTS = 4 };

/* A sample repeats short matmuls for this long, because the clock is coarse. */
#define SAMPLE_MICROSECONDS 100.0f
/* Time for one algorithm in the first round, and in the last; a long matmul runs once or twice. */
#define SCREEN_MICROSECONDS 3000.0f
#define FINAL_MICROSECONDS 6000.0f
/* An algorithm slower than this times the best so far gets no second run. */
#define HOPELESS 1.25f
/* A later suggestion must be faster than this times an earlier one to win. */
#define CLEARLY 0.995f

/* The duration of the thorough search. */
#define SEARCH_SECONDS 1.5

typedef struct bench {
    hy_cuda *cuda;
    hy_timing timing;
    hy_matmul_plan plan; /* with the algorithm that is being timed */
    hy_matmul_args args;
    void *expected;      /* result of the best suggestion; NULL if nothing is searched */
    unsigned *differing; /* elements that differ from it */
} bench;

/* ---- scratch --------------------------------------------------------------------------------- */

static void *take(bench *b, hy_dtype dtype, int64_t count) {
    return hy_timing_take(&b->timing, (size_t)count * hy_dtype_size(dtype));
}

static int64_t matrices_of(const hy_matmul_key *k) { return k->batch > 0 ? k->batch : 1; }
static int64_t results_of(const hy_matmul_key *k) { return matrices_of(k) * k->M * k->N; }

/* Lays out the operands. c is d itself: the same traffic, no copy. */
static void lay_out(bench *b, bool is_searching) {
    const hy_matmul_key *k = &b->plan.key;
    hy_matmul_args *args = &b->args;
    args->batch = matrices_of(k);
    args->a = take(b, k->in, args->batch * k->M * k->K);
    args->b = take(b, k->in_b, args->batch * k->K * k->N);
    args->a_scale = (const float *)take(b, HY_F32, 1);
    args->b_scale = (const float *)take(b, HY_F32, 1);
    args->d = take(b, k->out, results_of(k));
    if (k->has_bias) args->bias = take(b, k->bias, k->N);
    if (k->gelu == HY_GELU_KEEP) args->act = take(b, k->out, k->M * k->N);
    if (k->gelu == HY_GELU_BACK) args->pre = take(b, k->out, k->M * k->N);
    args->workspace_bytes = hy_matmul_most_bytes(b->cuda) + b->plan.bias_bytes;
    args->workspace = take(b, HY_BF16, (int64_t)(args->workspace_bytes + 1) / 2);
    b->differing = (unsigned *)take(b, HY_F32, 1);
    if (is_searching) b->expected = take(b, k->out, results_of(k));
    args->c = args->d;
    args->alpha = 1.0f;
    args->beta = k->has_c ? 1.0f : 0.0f;
}

static void fill_scale(const bench *b, const float *scale) {
    static const float one = 1;
    cudaMemcpyAsync((void *)scale, &one, sizeof one, cudaMemcpyHostToDevice, b->timing.stream);
}

static void fill(const bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    const hy_matmul_args *args = &b->args;
    hy_matmul_fill((void *)args->a, k->in, args->batch * k->M * k->K, 1, b->timing.stream);
    hy_matmul_fill((void *)args->b, k->in_b, args->batch * k->K * k->N, 2, b->timing.stream);
    if (hy_is_fp8(k->in)) fill_scale(b, args->a_scale);
    if (hy_is_fp8(k->in)) fill_scale(b, args->b_scale);
    hy_matmul_fill(args->d, k->out, results_of(k), 3, b->timing.stream);
    if (args->bias) hy_matmul_fill((void *)args->bias, k->bias, k->N, 4, b->timing.stream);
    if (args->pre) hy_matmul_fill((void *)args->pre, k->out, k->M * k->N, 5, b->timing.stream);
}

/* False: the scratch memory cannot be allocated. */
static bool open_bench(bench *b, hy_cuda *cuda, const hy_matmul_plan *plan, hy_tune tune) {
    *b = (bench){};
    b->cuda = cuda;
    b->plan = *plan;
    lay_out(b, tune == HY_TUNE_MAX);
    if (!hy_timing_open(&b->timing)) return false;
    lay_out(b, tune == HY_TUNE_MAX);
    fill(b);
    return true;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static float time_once(bench *b, int repeats) {
    return hy_time_runs(&b->timing, repeats, [&] {
        return hy_matmul_launch(b->cuda, &b->plan, &b->args, b->timing.stream);
    });
}

float hy_matmul_median(float *x, int n) {
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && x[j] < x[j - 1]; j--) {
            float other = x[j];
            x[j] = x[j - 1];
            x[j - 1] = other;
        }
    }
    return x[(n - 1) / 2];
}

static float time_samples(bench *b, float about, int samples) {
    float times[MOST_SAMPLES];
    int repeats = hy_clamp(SAMPLE_MICROSECONDS / about, 1, 20);
    for (int i = 0; i < samples; i++) {
        times[i] = time_once(b, repeats);
        if (times[i] < 0) return -1.0f;
    }
    return hy_matmul_median(times, samples);
}

static void choose(bench *b, const cublasLtMatmulHeuristicResult_t *guess) {
    b->plan.algorithm = guess->algo;
    b->plan.algorithm_bytes = guess->workspaceSize;
}

/* Median time of a suggestion, or a single time for a hopeless one; negative: it does not run. */
static float screen(bench *b, const cublasLtMatmulHeuristicResult_t *guess, float best) {
    choose(b, guess);
    float first = time_once(b, 1); /* loads the kernel */
    if (first < 0) return first;
    float once = time_once(b, 1);
    int samples = hy_clamp(SCREEN_MICROSECONDS / once, 1, MOST_SAMPLES);
    if (once < 0 || samples == 1 || (best > 0 && once > HOPELESS * best)) return once;
    return time_samples(b, once, samples);
}

/* ---- ranking --------------------------------------------------------------------------------- */

/* The best algorithms so far, fastest first. */
typedef struct ranked {
    cublasLtMatmulHeuristicResult_t item;
    float time;
    int number; /* in the order of arrival */
} ranked;

typedef struct ranking {
    ranked items[MOST_GUESSES];
    int count, entered;
} ranking;

/* Inserts an algorithm; if the ranking is full, the slowest is dropped. */
static void enter(ranking *r, const cublasLtMatmulHeuristicResult_t *item, float time) {
    int at = r->count < MOST_GUESSES ? r->count++ : MOST_GUESSES;
    for (; at > 0 && r->items[at - 1].time > time; at--) {
        if (at < MOST_GUESSES) r->items[at] = r->items[at - 1];
    }
    if (at < MOST_GUESSES) r->items[at] = {*item, time, r->entered++};
}

/* Times the fastest few alternately, in the order of arrival; returns the winner. */
static const ranked *final_of(bench *b, ranking *r, float *time) {
    float times[FINALISTS][MOST_SAMPLES];
    ranked *finalists = r->items;
    int count = r->count < FINALISTS ? r->count : FINALISTS, winner = 0;
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && finalists[j].number < finalists[j - 1].number; j--) {
            ranked other = finalists[j];
            finalists[j] = finalists[j - 1];
            finalists[j - 1] = other;
        }
    }
    int rounds = hy_clamp(FINAL_MICROSECONDS / finalists[0].time, 2, MOST_SAMPLES);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            choose(b, &finalists[i].item);
            float time_now = time_samples(b, finalists[i].time, 1);
            times[i][round] = time_now > 0 ? time_now : INFINITY;
        }
    }
    *time = hy_matmul_median(times[0], rounds);
    for (int i = 1; i < count; i++) {
        float t = hy_matmul_median(times[i], rounds);
        if (t < CLEARLY * *time) {
            *time = t;
            winner = i;
        }
    }
    return &finalists[winner];
}

/* ---- the random walk ------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const void *result_of(const bench *b) { return b->args.act ? b->args.act : b->args.d; }

/* Runs the chosen algorithm on fresh operands. */
static bool run_afresh(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    if (k->has_c) hy_matmul_fill(b->args.d, k->out, results_of(k), 3, b->timing.stream);
    return hy_matmul_launch(b->cuda, &b->plan, &b->args, b->timing.stream) == HY_OK;
}

static bool keep_expected(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    size_t bytes = (size_t)results_of(k) * hy_dtype_size(k->out);
    return run_afresh(b) &&
           cudaMemcpyAsync(b->expected, result_of(b), bytes, cudaMemcpyDeviceToDevice,
                           b->timing.stream) == cudaSuccess;
}

/* The tolerance for sums of K products of numbers below one, in another order and rounded
 * elsewhere: a share of the spread of such sums, larger if the hardware sums with fewer bits than
 * fp32. */
static float slack_of(const hy_matmul_key *key) {
    float share = !hy_is_fp8(key->in) ? 2e-3f : key->is_fast ? 2e-2f : 5e-3f;
    return share * sqrtf((float)key->K);
}

static bool gives_expected(bench *b) {
    const hy_matmul_key *k = &b->plan.key;
    unsigned differing = 1;
    cudaMemsetAsync(b->differing, 0, sizeof differing, b->timing.stream);
    if (!run_afresh(b)) return false;
    hy_matmul_compare(result_of(b), b->expected, k->out, results_of(k), slack_of(k), b->differing,
                      b->timing.stream);
    cudaMemcpyAsync(&differing, b->differing, sizeof differing, cudaMemcpyDeviceToHost,
                    b->timing.stream);
    return cudaStreamSynchronize(b->timing.stream) == cudaSuccess && differing == 0;
}

/* Walks around the best few until time is up; half of the steps start from the best. */
static void wander(bench *b, ranking *r) {
    cublasLtMatmulAlgo_t *tried = (cublasLtMatmulAlgo_t *)malloc(MOST_TRIED * sizeof *tried);
    double end = now() + SEARCH_SECONDS;
    uint32_t state = 0x2545F491u;
    int count = 0;
    choose(b, &r->items[0].item);
    if (!tried || !keep_expected(b)) end = 0;
    while (now() < end && count < MOST_TRIED) {
        cublasLtMatmulHeuristicResult_t next = {};
        int parent = count % 2 == 0 ? 0 : count / 2 % PARENTS, i = 0;
        if (parent >= r->count) parent = 0;
        if (!hy_matmul_vary(b->cuda, &b->plan, &r->items[parent].item.algo, &state, &next)) break;
        while (i < count && memcmp(&tried[i], &next.algo, sizeof next.algo) != 0) i++;
        bool is_new = i == count;
        tried[count++] = next.algo;
        if (!is_new) continue;
        float best = r->items[0].time, time = screen(b, &next, best);
        if (time > 0 && time < HOPELESS * best && gives_expected(b)) enter(r, &next, time);
    }
    free(tried);
}

static void find_fastest(bench *b, hy_matmul_plan *plan, hy_tune tune) {
    cublasLtMatmulHeuristicResult_t guesses[FAST_GUESSES];
    ranking r = {};
    int count = hy_matmul_guess(b->cuda, plan, guesses, FAST_GUESSES);
    for (int i = 0; i < count; i++) {
        float time = screen(b, &guesses[i], r.count > 0 ? r.items[0].time : 0);
        if (time > 0) enter(&r, &guesses[i], time);
    }
    if (r.count == 0) return;
    if (tune == HY_TUNE_MAX) wander(b, &r);
    const ranked *winner = final_of(b, &r, &plan->microseconds);
    plan->algorithm = winner->item.algo;
    plan->algorithm_bytes = winner->item.workspaceSize;
    plan->level = (hy_matmul_level)tune;
}

/* If the fused backward of gelu is slow, uses the matmul and our own kernel, one after the
 * other. */
static void try_apart(bench *b, hy_matmul_plan *plan, hy_tune tune) {
    hy_matmul_plan apart;
    if (plan->key.gelu != HY_GELU_BACK || plan->microseconds <= 0) return;
    if (!hy_matmul_plan_apart(b->cuda, plan, &apart)) return;
    apart.microseconds = 0;
    b->plan = apart;
    find_fastest(b, &apart, tune);
    bool is_faster = apart.microseconds > 0 && apart.microseconds < CLEARLY * plan->microseconds;
    if (is_faster) *plan = apart;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static void report_progress(const hy_cuda *cuda, const hy_matmul_key *key) {
    static const char *const gelu[] = {"", " + gelu", " + gelu", " + gelu backward"};
    char what[128];
    if (!cuda->options.on_tuning) return;
    bool is_other = key->out != key->in, is_mixed = key->in_b != key->in;
    snprintf(what, sizeof what, "%lld x %lld x %lld %s%s%s%s%s%s%s%s", (long long)key->M,
             (long long)key->N, (long long)key->K, hy_dtype_name(key->in), is_mixed ? " by " : "",
             is_mixed ? hy_dtype_name(key->in_b) : "", is_other ? " -> " : "",
             is_other ? hy_dtype_name(key->out) : "", key->has_bias ? " + bias" : "",
             key->has_c ? " + residual" : "", gelu[key->gelu]);
    cuda->options.on_tuning(cuda->options.user, what, cuda->plans->tuned, 0);
}

hy_status hy_matmul_tune(hy_cuda *cuda, hy_matmul_plan *plan, hy_tune tune) {
    bench b;
    if (plan->is_plain) return HY_OK;
    bool is_open = open_bench(&b, cuda, plan, tune);
    if (!is_open && tune == HY_TUNE_MAX) { /* a search needs more scratch memory */
        tune = HY_TUNE_FAST;
        is_open = open_bench(&b, cuda, plan, tune);
    }
    if (!is_open) return HY_OK;
    report_progress(cuda, &plan->key);
    find_fastest(&b, plan, tune);
    try_apart(&b, plan, tune);
    cudaError_t error = cudaStreamSynchronize(b.timing.stream);
    hy_timing_close(&b.timing);
    cuda->plans->tuned++;
    return hy_cuda_check(cuda, error, "timing matmuls");
}

/* ---- the card's rate ------------------------------------------------------------------------- */

/* An idle card needs this long under load until its clock is as high as in a run. */
#define WARM_SECONDS 0.05

/* Operations per second of a square matmul; 0: it cannot be timed. */
static hy_status measure_side(hy_cuda *cuda, int64_t side, hy_tune tune, double *flops) {
    hy_matmul_plan plan;
    bench b;
    *flops = 0;
    hy_matmul_key key = {};
    key.M = key.N = key.K = side;
    key.trans_b = true; /* like a layer's forward matmul with weights (out, in) */
    key.in = key.in_b = key.out = key.bias = cuda->card.capability >= 80 ? HY_BF16 : HY_F16;
    key.alignment = 16;
    HY_TRY(hy_matmul_plan_make(cuda, &key, &plan));
    if (plan.is_plain || !open_bench(&b, cuda, &plan, tune)) return HY_OK;
    if (tune != HY_TUNE_OFF) find_fastest(&b, &plan, tune);
    b.plan = plan;
    float best = 0;
    double end = now() + (tune == HY_TUNE_OFF ? WARM_SECONDS : 0);
    while (now() < end && time_once(&b, 20) > 0) {}
    for (int i = 0; i <= MOST_SAMPLES; i++) {
        float time = time_once(&b, 1);
        /* the first run is a warm-up */
        if (i > 0 && time > 0 && (best == 0 || time < best)) best = time;
    }
    cudaError_t error = cudaStreamSynchronize(b.timing.stream);
    hy_timing_close(&b.timing);
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
