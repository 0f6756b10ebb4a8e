/* gpu_rows.cu: times the batch-invariant matmuls of decoding.
 *
 *   make build/bench/gpu_rows && build/bench/gpu_rows [--rows 1,16,64] [--models 7b,1.5b,8b-nf4]
 *       [--steps]
 *
 * Each figure is the mean over calls of a replayed graph, as decoding runs them, with weights that
 * are not in the card's cache. Every result is compared, bit by bit, with that of its rows alone.
 *
 * --steps  only all matmuls of a step one after another: no other op could make it faster */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/matmul_rows.cuh"

typedef __nv_bfloat16 real;

/* ---- errors ---------------------------------------------------------------------------------- */

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "gpu_rows: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
hy_status hy_cuda_check(const hy_cuda *, cudaError_t error, const char *what) {
    check(error, what);
    return HY_OK;
}

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct matrix {
    const char *name;
    int N, K;
    bool is_nf4;
} matrix;
typedef struct model {
    const char *name;
    int layers;
    matrix of_layer[4], head;
} model;

static const model MODELS[] = {
    {"7b",
     28,
     {{"qkv", 4608, 3584}, {"o", 3584, 3584}, {"gate-up", 37888, 3584}, {"down", 3584, 18944}},
     {"head", 152064, 3584}},
    {"1.5b",
     28,
     {{"qkv", 2048, 1536}, {"o", 1536, 1536}, {"gate-up", 17920, 1536}, {"down", 1536, 8960}},
     {"head", 151936, 1536}},
    {"8b-nf4",
     36,
     {{"qkv", 6144, 4096, true},
      {"o", 4096, 4096, true},
      {"gate-up", 24576, 4096, true},
      {"down", 4096, 12288, true}},
     {"head", 151936, 4096}},
};

static size_t bytes_of(const matrix &m) { return (size_t)m.N * m.K * 2 / (m.is_nf4 ? 4 : 1); }

/* ---- the card -------------------------------------------------------------------------------- */

typedef struct bench {
    hy_cuda cuda;
    cudaStream_t stream;
    cudaEvent_t events[2];
    char *weights, *scales;
    size_t weight_bytes;
    real *tokens, *out, *alone;
    unsigned *differences;
} bench;

enum { MOST_ROWS = 64, MOST_N = 152064, MOST_K = 18944 };

/* Small numbers, different for each place. */
static __global__ void fill_real(real *to, size_t count, float size) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        x = (x ^ x >> 15) * 2246822519u, x ^= x >> 13;
        to[i] = __float2bfloat16_rn(size * ((x >> 8) * 0x1p-23f - 1.0f));
    }
}
/* Pairs of scale and offset, then bytes of scales. */
static __global__ void fill_scales(char *to, size_t pairs, size_t bytes) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < bytes;
         i += (size_t)gridDim.x * blockDim.x) {
        if (i < pairs) ((float2 *)to)[i] = make_float2(0.02f, 0.03f);
        to[pairs * 8 + i] = (char)(i * 2654435761u >> 24);
    }
}
static __global__ void count_differences(const uint16_t *x, const uint16_t *y, size_t count,
                                         unsigned *differences) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        if (x[i] != y[i]) atomicAdd(differences, 1);
    }
}

static const char *op_name(hy_op_kind) { return "matmul"; }

static void open_bench(bench *b, size_t weight_bytes) {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, 0), "the card");
    b->cuda.card.capability = b->cuda.card.code = 10 * p.major + p.minor;
    b->cuda.card.multiprocessors = p.multiProcessorCount;
    b->cuda.card.shared_bytes = p.sharedMemPerBlockOptin;
    b->cuda.host.op_name = op_name;
    check(cudaStreamCreate(&b->stream), "a stream");
    for (int i = 0; i < 2; i++) check(cudaEventCreate(&b->events[i]), "an event");
    b->weight_bytes = weight_bytes;
    size_t blocks = (size_t)24576 * 4096 / HY_NF4_BLOCK;
    check(cudaMalloc(&b->weights, weight_bytes), "weights");
    check(cudaMalloc(&b->scales, blocks * 2), "scales");
    check(cudaMalloc(&b->tokens, sizeof(real) * MOST_ROWS * MOST_K), "tokens");
    check(cudaMalloc(&b->out, sizeof(real) * MOST_ROWS * MOST_N), "results");
    check(cudaMalloc(&b->alone, sizeof(real) * MOST_ROWS * MOST_N), "results");
    check(cudaMalloc(&b->differences, sizeof(unsigned)), "a count");
    fill_real<<<2048, 256>>>((real *)b->weights, weight_bytes / 2, 0.05f);
    fill_real<<<2048, 256>>>(b->tokens, (size_t)MOST_ROWS * MOST_K, 1.0f);
    fill_scales<<<2048, 256>>>(b->scales, blocks / 256, blocks);
    check(cudaDeviceSynchronize(), "filling");
    printf("%s: %d multiprocessors, %zu bytes of shared memory\n", p.name, p.multiProcessorCount,
           p.sharedMemPerBlockOptin);
}

static hy_rows_call call_of(const bench *b, const matrix &m, int rows, size_t at) {
    hy_rows_call c = {};
    c.M = rows, c.N = m.N, c.K = m.K;
    c.a = b->tokens, c.b = b->weights + at, c.d = b->out;
    c.in = c.out = HY_BF16;
    c.alpha = 1;
    c.has_fours = m.N % HY_QUAD == 0;
    if (m.is_nf4) {
        size_t blocks = (size_t)m.N * m.K / HY_NF4_BLOCK;
        c.nf4 = {(const uint8_t *)c.b, NULL, (const float2 *)b->scales, NULL, 8};
        c.nf4.scales = (const uint8_t *)(c.nf4.pairs + blocks / 256);
    }
    return c;
}

static void launch(const bench *b, const matrix &m, const hy_rows_call &c) {
    hy_op_call call = {};
    call.kind = HY_OP_MATMUL;
    hy_cuda_run run = {&call, (hy_cuda *)&b->cuda, b->stream};
    (m.is_nf4 ? hy_rows_choose<hy_rows_nf4, real> : hy_rows_choose<hy_rows_real, real>)(&run, c);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Results of each row alone, as bits to compare with. */
static void run_alone(const bench *b, const matrix &m, int rows) {
    for (int row = 0; row < rows; row++) {
        hy_rows_call c = call_of(b, m, 1, 0);
        c.a = b->tokens + (size_t)row * m.K, c.d = b->alone + (size_t)row * m.N;
        launch(b, m, c);
    }
}

static unsigned differences(const bench *b, const matrix &m, int rows) {
    unsigned count = 0;
    size_t all = (size_t)rows * m.N;
    check(cudaMemsetAsync(b->out, 0xff, all * 2, b->stream), "clearing");
    check(cudaMemsetAsync(b->differences, 0, sizeof count, b->stream), "clearing");
    launch(b, m, call_of(b, m, rows, 0));
    count_differences<<<1024, 256, 0, b->stream>>>((const uint16_t *)b->out,
                                                   (const uint16_t *)b->alone, all, b->differences);
    check(cudaMemcpyAsync(&count, b->differences, sizeof count, cudaMemcpyDeviceToHost, b->stream),
          "comparing");
    check(cudaStreamSynchronize(b->stream), m.name);
    return count;
}

/* Microseconds of a replay of what f enqueues: the least of some. */
template <typename F> static double replay(const bench *b, F f) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double best = INFINITY;
    check(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capturing");
    f();
    check(cudaStreamEndCapture(b->stream, &graph), "capturing");
    check(cudaGraphInstantiate(&exec, graph, 0), "capturing");
    for (int i = 0; i < 6; i++) {
        float ms;
        check(cudaEventRecord(b->events[0], b->stream), "timing");
        check(cudaGraphLaunch(exec, b->stream), "replaying");
        check(cudaEventRecord(b->events[1], b->stream), "timing");
        check(cudaStreamSynchronize(b->stream), "replaying");
        check(cudaEventElapsedTime(&ms, b->events[0], b->events[1]), "timing");
        if (i > 0) best = std::min(best, 1e3 * ms);
    }
    check(cudaGraphExecDestroy(exec), "ending");
    check(cudaGraphDestroy(graph), "ending");
    return best;
}

static double time_matrix(const bench *b, const matrix &m, int rows) {
    size_t bytes = bytes_of(m), copies = std::min(b->weight_bytes / bytes, (size_t)64);
    int calls = (int)std::max((size_t)8, std::min((size_t)64, ((size_t)4 << 30) / bytes));
    return replay(b,
                  [&] {
                      for (int i = 0; i < calls; i++)
                          launch(b, m, call_of(b, m, rows, i % copies * bytes));
                  }) /
           calls;
}

static void show(const bench *b, const matrix &m, int rows) {
    run_alone(b, m, rows);
    unsigned wrong = differences(b, m, rows);
    double us = time_matrix(b, m, rows);
    printf("  %-8s %6d x %5d, %2d rows  %8.2f us  %4.0f GB/s%s\n", m.name, m.N, m.K, rows, us,
           bytes_of(m) / us * 1e-3, wrong ? "  OTHER BITS" : "");
    fflush(stdout);
}

/* All matmuls of a step. */
static void time_step(const bench *b, const model &m, int rows) {
    size_t bytes = 0, all = bytes_of(m.head);
    for (const matrix &one : m.of_layer) all += m.layers * bytes_of(one);
    double us = replay(b, [&] {
        size_t at = 0;
        auto next = [&](const matrix &one) {
            if (at + bytes_of(one) > b->weight_bytes) at = 0;
            launch(b, one, call_of(b, one, rows, at));
            at += bytes_of(one), bytes += bytes_of(one);
        };
        for (int layer = 0; layer < m.layers; layer++) {
            for (const matrix &one : m.of_layer) next(one);
        }
        next(m.head);
    });
    printf("%s, %d rows, all matmuls of a step: %.0f us, %.0f GB/s; at most %.0f tokens/s\n",
           m.name, rows, us, all / us * 1e-3, rows / us * 1e6);
    fflush(stdout);
}

static const char *option(int argc, char **argv, const char *name, const char *fallback) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name)) return i + 1 < argc ? argv[i + 1] : "";
    }
    return fallback;
}
static bool lists(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(list, word); at; at = strstr(at + 1, word)) {
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0)) return true;
    }
    return false;
}

int main(int argc, char **argv) {
    static bench b;
    const char *models = option(argc, argv, "--models", "7b,1.5b,8b-nf4");
    std::vector<int> rows;
    char *end;
    for (const char *at = option(argc, argv, "--rows", "1,16,64"); *at; at = *end ? end + 1 : end) {
        rows.push_back((int)strtol(at, &end, 10));
        if (rows.back() < 1 || rows.back() > MOST_ROWS || (*end && *end != ',')) {
            fprintf(stderr, "gpu_rows: --rows: expected numbers from 1 to %d\n", MOST_ROWS);
            return 2;
        }
    }
    open_bench(&b, (size_t)4 << 30);
    for (const model &m : MODELS) {
        if (!lists(models, m.name)) continue;
        for (int count : rows) {
            if (!option(argc, argv, "--steps", NULL)) {
                for (const matrix &one : m.of_layer) show(&b, one, count);
                show(&b, m.head, count);
            }
            time_step(&b, m, count);
        }
    }
    return 0;
}
