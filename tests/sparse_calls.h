/* sparse_calls.h: calls of block-sparse attention, of random numbers. Both backends are tested with
 * these cases. */
#ifndef HY_TESTS_SPARSE_CALLS_H
#define HY_TESTS_SPARSE_CALLS_H

#include "decode_calls.h"
#include "head_calls.h"

typedef struct sparse_case {
    heads_case heads;
    int32_t local, global;
    int32_t document; /* mean tokens */
} sparse_case;

/* Lengths beside multiples of blocks and tiles, documents of fewer and of more tokens than all blocks
 * that are seen, gaps of one block and of nearly all, grouped heads. */
static const sparse_case sparse_cases[] = {
    {{1, 300, 2, 1, 16, 0, false}, 1, 0, 0},  {{1, 701, 4, 2, 24, 0, false}, 2, 1, 0},
    {{2, 333, 3, 3, 40, 0, true}, 1, 1, 150}, {{1, 513, 2, 1, 64, 0, true}, 2, 2, 300},
    {{1, 450, 2, 2, 128, 0, false}, 3, 0, 0}, {{1, 257, 2, 1, 256, 0, false}, 1, 1, 0},
    {{1, 1300, 1, 1, 32, 0, false}, 2, 9, 0}, {{2, 640, 4, 1, 80, 0, true}, 1, 2, 400},
    {{1, 385, 1, 1, 96, 0, true}, 1, 0, 100},
};
enum { SPARSE_CASES = sizeof sparse_cases / sizeof sparse_cases[0] };

static inline void set_sparse(const sparse_case *c) {
    heads_with.sparse_local = c->local;
    heads_with.sparse_global = c->global;
    heads_with.document = c->document;
}

/* Forward and backward against the reference, by a runner of both. `variant`: 0 plain, then those of
 * set_attention_options. */
static inline void check_sparse(const sparse_case *c, int mixture, int variant,
                                void (*run_both)(trial *)) {
    set_sparse(c);
    if (variant > 0) set_attention_options(variant - 1);
    trial f = attention_trial(&c->heads, mixture), b = attention_bwd_trial(&c->heads, mixture);
    run_both(&f);
    run_both(&b);
    trial_check(&f, HY_ATTENTION_OUT, 1);
    trial_check(&f, HY_ATTENTION_LSE, 1);
    trial_check(&b, HY_ATTENTION_BWD_DQKV, rounding_of_out(&b, HY_ATTENTION_BWD_DQKV));
    check_sink_gradient(&b);
    trial_end(&f);
    trial_end(&b);
    clear_options();
}

/* Two calls that differ in their attributes write the same bits to tensor `at`. */
static inline void check_same_bits(const hy_op_call *one, const hy_op_call *other, int at,
                                   call_runner run) {
    hy_op_call calls[] = {*one, *other};
    for (int i = 0; i < 2; i++) {
        calls[i].t[at] = copy_tensor(&calls[i].t[at]);
        run(&calls[i]);
    }
    ck_assert_mem_eq(calls[0].t[at].data, calls[1].t[at].data, hy_tensor_bytes(&one->t[at]));
    for (int i = 0; i < 2; i++) free(calls[i].t[at].data);
}

/* Blocks that cover the sequence are full attention; one block alone is a document of 64 tokens. */
static inline void check_sparse_is_another(const heads_case *h, int mixture, call_runner run) {
    trial f = attention_trial(h, mixture), b = attention_bwd_trial(h, mixture);
    hy_op_call all = f.call, all_back = b.call;
    int32_t blocks = (h->T + 63) / 64;
    for (int32_t global = 0; global < blocks; global += blocks - 1) {
        all.attr.heads.sparse_local = all_back.attr.heads.sparse_local = blocks - global;
        all.attr.heads.sparse_global = all_back.attr.heads.sparse_global = global;
        check_same_bits(&f.call, &all, HY_ATTENTION_OUT, run);
        check_same_bits(&b.call, &all_back, HY_ATTENTION_BWD_DQKV, run);
    }
    trial_end(&f);
    trial_end(&b);
}

static const blocks_case sparse_blocks_cases[] = {
    {{5, 1, 4, 2, 64, 0, false}, 16, 900},    {{3, 1, 6, 1, 128, 0, false}, 64, 700},
    {{2, 7, 4, 4, 40, 0, false}, 256, 600},   {{2, 140, 6, 2, 24, 0, false}, 32, 500},
    {{2, 40, 8, 1, 256, 0, false}, 8, 450},   {{4, 1, 16, 1, 80, 0, false}, 16, 300},
    {{1, 200, 4, 2, 128, 0, false}, 16, 700},
};
enum { SPARSE_BLOCKS_CASES = sizeof sparse_blocks_cases / sizeof sparse_blocks_cases[0] };

/* Patterns for them: local, global. */
static const int32_t sparse_patterns[][2] = {{1, 0}, {2, 1}, {3, 2}, {1, 5}};
enum { SPARSE_PATTERNS = sizeof sparse_patterns / sizeof sparse_patterns[0] };

static inline trial sparse_blocks_trial(const blocks_case *k, int mixture, int pattern) {
    heads_with.sparse_local = sparse_patterns[pattern][0];
    heads_with.sparse_global = sparse_patterns[pattern][1];
    trial t = blocks_trial(k, mixture);
    clear_options();
    return t;
}

#endif
