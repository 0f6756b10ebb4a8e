/* matmul.cuh: shared by the files of the matmul.
 *
 * A matmul is identified by its key: shape, types, what is fused into it and how well its pointers
 * are aligned. Each key has one plan: descriptors of cuBLASLt and an algorithm, made once and kept
 * as long as the backend. matmul.cu runs plans, matmul_plan.cu makes them, matmul_tune.cu times
 * algorithms, matmul_search.cu finds more of them, matmul_cache.cu stores them as text,
 * matmul_plain.cu is our own matmul for cases that the library does not support. A plan that has
 * run keeps its algorithm: another one would give other bits. */
#pragma once

#include <cublasLt.h>

#include "kernels/cuda/cuda.cuh"

/* The activation after the product. */
typedef enum hy_matmul_gelu {
    HY_GELU_NONE,
    HY_GELU_ONLY, /* d = gelu(product + bias) */
    HY_GELU_KEEP, /* d = product + bias, act = gelu(d) */
    HY_GELU_BACK  /* d = gelu'(pre) * product */
} hy_matmul_gelu;

typedef struct hy_matmul_key {
    int64_t M, N, K;
    bool trans_a, trans_b;
    hy_dtype in, in_b, out; /* types of a, of b, and of d and all tensors with its shape */
    bool has_bias, has_c;
    hy_dtype bias; /* its type; `out` if there is none */
    hy_matmul_gelu gelu;
    /* bytes that all pointers are multiples of: 16, 8, 4, 2; 1: bias is not aligned */
    int32_t alignment;
    bool is_tf32;
    bool is_fast;  /* fp8: fewer bits in sums */
    bool is_lean;  /* uses no workspace: less aligned, or the call brings too little */
    int32_t batch; /* 0: a single one; otherwise the most in one launch */
} hy_matmul_key;

/* The origin of an algorithm; higher ones take precedence. */
typedef enum hy_matmul_level {
    HY_LEVEL_GUESS = HY_TUNE_OFF, /* the library's first suggestion */
    HY_LEVEL_FAST = HY_TUNE_FAST,
    HY_LEVEL_MAX = HY_TUNE_MAX,
    HY_LEVEL_TABLE /* a checkpoint's table */
} hy_matmul_level;

typedef struct hy_matmul_plan {
    struct hy_matmul_plan *next;
    hy_matmul_key key;
    bool is_plain; /* the library does not support it: our own matmul runs */
    bool is_apart; /* gelu's backward is not fused: our own kernel after the matmul is faster */
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t left, right, result; /* b, a, d: see matmul_plan.cu */
    cublasLtMatmulAlgo_t algorithm;
    size_t algorithm_bytes; /* workspace of the algorithm */
    size_t bias_bytes;      /* before it: the bias in the type that the library needs */
    hy_matmul_level level;
    float microseconds; /* measured; 0: not timed */
    bool is_prepared;   /* the choice is final */
} hy_matmul_plan;

/* An algorithm as stored in text. */
typedef struct hy_matmul_entry {
    char scope[96]; /* the card and library it is valid for */
    char key[96];
    hy_matmul_level level;
    float microseconds;
    bool is_apart;
    cublasLtMatmulAlgo_t algorithm;
} hy_matmul_entry;

typedef struct hy_matmul_entries {
    hy_matmul_entry *items;
    int count, capacity;
} hy_matmul_entries;

typedef struct hy_matmul_plans {
    cublasLtHandle_t handle;
    char library[40]; /* "cuBLASLt 13.1.0" */
    hy_matmul_plan *first;
    int tuned;               /* matmuls timed so far */
    char scope[96];          /* this card and library */
    hy_matmul_entries cache; /* from the file, all scopes */
    hy_matmul_entries table; /* from a checkpoint, this scope */
    bool is_cache_old;       /* the file lacks an entry */
} hy_matmul_plans;

/* The pointers of one matmul; NULL if the key does not have them. */
typedef struct hy_matmul_args {
    const void *a, *b, *bias, *c, *pre;
    const float *a_scale, *b_scale; /* of fp8, on the device */
    void *d, *act;
    void *workspace;
    size_t workspace_bytes;
    float alpha, beta;
    int64_t batch; /* number of matrices, if the key has a batch */
} hy_matmul_args;

/* ---- matmul_plan.cu -------------------------------------------------------------------------- */

hy_matmul_key hy_matmul_key_of(const hy_cuda *cuda, const hy_op_call *call);
bool hy_matmul_key_equal(const hy_matmul_key *a, const hy_matmul_key *b);
/* The plan of a key, created if missing: with the algorithm of the table or the cache, otherwise
 * the library's first suggestion, otherwise plain. */
hy_status hy_matmul_plan_find(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan **out);
/* A plan outside the list. */
hy_status hy_matmul_plan_make(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan *plan);
/* The same matmul with gelu's backward as a separate kernel; false: the library does not support
 * it. */
bool hy_matmul_plan_apart(const hy_cuda *cuda, const hy_matmul_plan *fused, hy_matmul_plan *out);
/* The type of the bias that the library needs. */
hy_dtype hy_matmul_bias_type(const hy_matmul_key *key);
/* The library's suggestions, best first: at most `most`; returns how many. */
int hy_matmul_guess(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    cublasLtMatmulHeuristicResult_t *out, int most);
/* Whether this algorithm of the library can be used for the plan, and its workspace. */
bool hy_matmul_fits(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *algorithm, size_t *bytes);
size_t hy_matmul_plan_bytes(const hy_matmul_plan *plan);
size_t hy_matmul_most_bytes(const hy_cuda *cuda); /* workspace an algorithm may take */
hy_status hy_matmul_check(const hy_cuda *cuda, cublasStatus_t status, const char *what);
/* Launches the matmul. */
hy_status hy_matmul_launch(const hy_cuda *cuda, const hy_matmul_plan *plan,
                           const hy_matmul_args *args, cudaStream_t stream);

/* ---- matmul_tune.cu -------------------------------------------------------------------------- */

/* Times the library's suggestions on random numbers and stores the fastest in the plan. If scratch
 * memory cannot be allocated, the plan does not change. */
hy_status hy_matmul_tune(hy_cuda *cuda, hy_matmul_plan *plan, hy_tune tune);
/* The median of n times, which are sorted; the lower of two in the middle. */
float hy_matmul_median(float *x, int n);

/* ---- matmul_search.cu ------------------------------------------------------------------------ */

/* Another algorithm, a step or two away from `from`; false: none that fits was found. The caller
 * owns the state of the random numbers. */
bool hy_matmul_vary(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *from, uint32_t *state,
                    cublasLtMatmulHeuristicResult_t *out);

/* ---- matmul_cache.cu ------------------------------------------------------------------------- */

void hy_matmul_cache_read(hy_cuda *cuda);
void hy_matmul_cache_write(hy_cuda *cuda); /* if something was added; failure is not an error */
void hy_matmul_cache_add(hy_cuda *cuda, const hy_matmul_plan *plan);
/* Adds a timed choice of attention for a shape. */
void hy_matmul_cache_add_attention(hy_cuda *cuda, const struct hy_attention_entry *choice);
void hy_matmul_cache_free(hy_cuda *cuda);
/* The stored entry for a key: from the table, otherwise from the cache if it is of this level or a
 * higher one; NULL: none. */
const hy_matmul_entry *hy_matmul_recall(const hy_cuda *cuda, const hy_matmul_key *key);
void hy_matmul_key_text(const hy_matmul_key *key, char *out, size_t size);

/* ---- matmul_plain.cu ------------------------------------------------------------------------- */

void hy_matmul_plain(const hy_matmul_key *key, const hy_matmul_args *args, cudaStream_t stream);
/* out = bias in another type, N elements. */
void hy_matmul_convert_bias(const void *bias, hy_dtype from, void *out, hy_dtype to, int64_t N,
                            cudaStream_t stream);
/* Adds to *differing the number of elements of x and y further apart than 1 % of both and
 * `slack`. */
void hy_matmul_compare(const void *x, const void *y, hy_dtype dtype, int64_t count, float slack,
                       unsigned *differing, cudaStream_t stream);
/* Random numbers in [-1, 1); for fp8, with a scale of 1. */
void hy_matmul_fill(void *out, hy_dtype dtype, int64_t count, uint32_t seed, cudaStream_t stream);

/* ---- matmul_rows.cu -------------------------------------------------------------------------- */

/* Batch-invariant matmuls: without a plan, a cast and workspace. */
hy_status hy_cuda_matmul_rows_supports(const hy_cuda *cuda, const hy_op_call *call);
hy_status hy_cuda_matmul_rows(const hy_cuda_run *run);

/* Seconds of a prepared matmul as timed; 0: it was not. */
double hy_cuda_matmul_seconds(const hy_op_call *call);

/* ---- for backend.cu -------------------------------------------------------------------------- */

/* The algorithms in use and the choices of attention, as text, allocated with malloc. */
hy_status hy_cuda_matmul_table(hy_backend *b, char **text);
/* The choices in this text take precedence over cache and tuning in all later plans; lines of
 * another card or library, and damaged ones, are ignored. */
hy_status hy_cuda_load_matmul_table(hy_backend *b, const char *text);
