/* matmul.cuh: what the files of the matmul share.
 *
 * A matmul is known by its key: shape, types, what is fused into it and how well its pointers
 * are aligned. Each key has one plan: descriptors of cuBLASLt and an algorithm, made once and
 * kept as long as the backend. matmul.cu runs plans, matmul_plan.cu makes them, matmul_tune.cu
 * times algorithms, matmul_search.cu finds more of them, matmul_cache.cu keeps them as text,
 * matmul_plain.cu is a matmul of our own for what the library does not serve. A plan that has
 * run keeps its algorithm: another one would give other bits. */
#pragma once

#include <cublasLt.h>

#include "kernels/cuda/cuda.cuh"

/* What is done to the product besides adding. */
typedef enum hy_matmul_gelu {
    HY_GELU_NONE,
    HY_GELU_ONLY, /* d = gelu(product + bias) */
    HY_GELU_KEEP, /* d = product + bias, act = gelu(d) */
    HY_GELU_BACK  /* d = gelu'(pre) * product */
} hy_matmul_gelu;

typedef struct hy_matmul_key {
    int64_t M, N, K;
    bool trans_a, trans_b;
    hy_dtype in, in_b, out; /* types of a, of b, and of d and all that has its shape */
    bool has_bias, has_c;
    hy_dtype bias; /* its type; out when there is none */
    hy_matmul_gelu gelu;
    int32_t alignment; /* bytes that all pointers are multiples of: 16, 8, 4, 2; 1: bias is odd */
    bool is_tf32;
    bool is_fast;  /* fp8: fewer bits in sums */
    bool is_lean;  /* does without workspace: less aligned, or the call brings too little */
    int32_t batch; /* 0: a single one; else the most that one launch makes */
} hy_matmul_key;

/* Where an algorithm came from; the higher, the more it counts. */
typedef enum hy_matmul_level {
    HY_LEVEL_GUESS = HY_TUNE_OFF, /* the library's first guess */
    HY_LEVEL_FAST = HY_TUNE_FAST,
    HY_LEVEL_MAX = HY_TUNE_MAX,
    HY_LEVEL_TABLE /* a checkpoint's table */
} hy_matmul_level;

typedef struct hy_matmul_plan {
    struct hy_matmul_plan *next;
    hy_matmul_key key;
    bool is_plain; /* the library has nothing: our own matmul runs */
    bool is_apart; /* gelu's backward is not fused: a kernel of ours behind the matmul is faster */
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t left, right, result; /* b, a, d: see matmul_plan.cu */
    cublasLtMatmulAlgo_t algorithm;
    size_t algorithm_bytes; /* workspace of the algorithm */
    size_t bias_bytes;      /* in front of it: the bias in the type that the library takes */
    hy_matmul_level level;
    float microseconds; /* as timed; 0: not timed */
    bool is_prepared;   /* its choice is made */
} hy_matmul_plan;

/* An algorithm as text keeps it. */
typedef struct hy_matmul_entry {
    char scope[96]; /* card and library it belongs to */
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
    hy_matmul_entries cache; /* of the file, all scopes */
    hy_matmul_entries table; /* of a checkpoint, this scope */
    bool is_cache_old;       /* the file lacks something */
} hy_matmul_plans;

/* Pointers of one matmul; null where the key has none. */
typedef struct hy_matmul_args {
    const void *a, *b, *bias, *c, *pre;
    const float *a_scale, *b_scale; /* of fp8, on the device */
    void *d, *act;
    void *workspace;
    size_t workspace_bytes;
    float alpha, beta;
    int64_t batch; /* matrices, where the key has a batch */
} hy_matmul_args;

/* ---- matmul_plan.cu -------------------------------------------------------------------------- */

hy_matmul_key hy_matmul_key_of(const hy_cuda *cuda, const hy_op_call *call);
bool hy_matmul_key_equal(const hy_matmul_key *a, const hy_matmul_key *b);
/* The plan of a key, made if it is missing: with the table's or the cache's algorithm, else the
 * library's first guess, else plain. */
hy_status hy_matmul_plan_find(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan **out);
/* A plan outside the list. */
hy_status hy_matmul_plan_make(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan *plan);
/* The same matmul with gelu's backward apart; false: the library does not serve it. */
bool hy_matmul_plan_apart(const hy_cuda *cuda, const hy_matmul_plan *fused, hy_matmul_plan *out);
/* The type that the library takes the bias in. */
hy_dtype hy_matmul_bias_type(const hy_matmul_key *key);
/* The library's guesses, best first: at most `most`; returns how many. */
int hy_matmul_guess(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    cublasLtMatmulHeuristicResult_t *out, int most);
/* Is this an algorithm of the library that can serve the plan, and with how much workspace? */
bool hy_matmul_fits(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *algorithm, size_t *bytes);
size_t hy_matmul_plan_bytes(const hy_matmul_plan *plan);
size_t hy_matmul_most_bytes(const hy_cuda *cuda); /* workspace an algorithm may take */
hy_status hy_matmul_check(const hy_cuda *cuda, cublasStatus_t status, const char *what);
/* Launches the matmul. */
hy_status hy_matmul_launch(const hy_cuda *cuda, const hy_matmul_plan *plan,
                           const hy_matmul_args *args, cudaStream_t stream);

/* ---- matmul_tune.cu -------------------------------------------------------------------------- */

/* Times the library's guesses on random numbers and leaves the fastest in the plan. Where scratch
 * memory cannot be allocated the plan stays as it is. */
hy_status hy_matmul_tune(hy_cuda *cuda, hy_matmul_plan *plan, hy_tune tune);
/* Of n times, which are sorted; the lower one of two in the middle. */
float hy_matmul_median(float *x, int n);

/* ---- matmul_search.cu ------------------------------------------------------------------------ */

/* Another algorithm, a step or two away from `from`; false: none that fits came up. The state of
 * the random numbers is the caller's. */
bool hy_matmul_vary(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *from, uint32_t *state,
                    cublasLtMatmulHeuristicResult_t *out);

/* ---- matmul_cache.cu ------------------------------------------------------------------------- */

void hy_matmul_cache_read(hy_cuda *cuda);
void hy_matmul_cache_write(hy_cuda *cuda); /* where something was added; failing is no error */
void hy_matmul_cache_add(hy_cuda *cuda, const hy_matmul_plan *plan);
/* A timed choice of whose attention serves a shape. */
void hy_matmul_cache_add_attention(hy_cuda *cuda, const struct hy_attention_entry *choice);
void hy_matmul_cache_free(hy_cuda *cuda);
/* What text keeps for a key: the table's entry, else the cache's if it is of this level or a higher
 * one; NULL: nothing. */
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
/* Random numbers in [-1, 1), as codes for a scale of 1 where the type is fp8. */
void hy_matmul_fill(void *out, hy_dtype dtype, int64_t count, uint32_t seed, cudaStream_t stream);

/* Seconds of a prepared matmul as it was timed; 0: it was not. */
double hy_cuda_matmul_seconds(const hy_op_call *call);

/* ---- for backend.cu -------------------------------------------------------------------------- */

/* The algorithms in use and whose attention serves which shape, as text, allocated with malloc. */
hy_status hy_cuda_matmul_table(hy_backend *b, char **text);
/* Such a text's choices win over cache and tuning in all plans made from now on; lines of
 * another card or library, and damaged ones, are passed over. */
hy_status hy_cuda_load_matmul_table(hy_backend *b, const char *text);
