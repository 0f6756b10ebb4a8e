/* cpu.h: shared by the files of the CPU backend.
 *
 * An op is one function over a hy_cpu_run. It divides its work into tasks by the shapes alone and
 * passes them to hy_cpu_for_each. Each sum is computed inside one task, or over the results of
 * tasks in order, so any number of threads gives the same bits. Ops allocate nothing: scratch
 * memory comes from the call's workspace; the op's workspace function returned its size. */
#pragma once

#include "base/error.h"
#include "kernels/clones.h"
#include "kernels/cpu/blas.h"
#include "kernels/ops.h"

/* Work on `n` rows or elements of a call, from `at` on. */
typedef void (*hy_cpu_work)(const hy_op_call *call, int64_t at, int64_t n);

/* The execution of one op. */
typedef struct hy_cpu_run {
    const hy_op_call *call;
    const hy_blas *blas;
    int threads;
    const struct hy_cpu_cut *cut; /* parallel.c */
} hy_cpu_run;

/* Runs task(run, i, worker) for i in [0, tasks); worker is below run->threads, and tasks of one
 * worker never overlap in time. */
typedef void (*hy_cpu_task)(const hy_cpu_run *run, int64_t task, int worker);
void hy_cpu_for_each(const hy_cpu_run *run, int64_t tasks, hy_cpu_task task);
void hy_cpu_team_end(void); /* call it before a thread that ran ops ends */

/* For work without scratch memory: tasks of `each` rows, or of `each` elements, processed in runs
 * of at most HY_CPU_RUN (rows.h). Return HY_OK. */
hy_status hy_cpu_for_rows(const hy_cpu_run *run, int64_t rows, int64_t each, hy_cpu_work work);
hy_status hy_cpu_for_elements(const hy_cpu_run *run, int64_t count, int64_t each, hy_cpu_work work);

/* An op of the table: its function, and the workspace it needs with `threads` threads. */
typedef hy_status hy_cpu_op_run(const hy_cpu_run *run);
typedef size_t hy_cpu_op_workspace(const hy_op_call *call, int threads);
typedef struct hy_cpu_op {
    hy_cpu_op_run *run;
    hy_cpu_op_workspace *workspace; /* NULL: none */
} hy_cpu_op;

/* Checks that every document begins at or before its token; doc_starts may be NULL
 * (attention.c). */
hy_status hy_check_doc_starts(const hy_op_call *call, const int32_t *doc_starts, int64_t rows,
                              int64_t seq);
/* Checks that sequences that are not idle have slots below `count` (conv.c). */
hy_status hy_check_slots(const hy_op_call *call, const hy_tensor *first, const hy_tensor *slots,
                         int64_t count);

hy_cpu_op_run hy_cpu_matmul, hy_cpu_matmul_rows, hy_cpu_bias_grad, hy_cpu_norm, hy_cpu_norm_bwd,
    hy_cpu_head_norm, hy_cpu_head_norm_bwd, hy_cpu_rope, hy_cpu_attention, hy_cpu_attention_bwd,
    hy_cpu_attention_cached, hy_cpu_conv, hy_cpu_conv_bwd, hy_cpu_conv_cached, hy_cpu_delta,
    hy_cpu_delta_bwd, hy_cpu_delta_cached, hy_cpu_gate, hy_cpu_gate_bwd, hy_cpu_gelu,
    hy_cpu_gelu_bwd, hy_cpu_swiglu, hy_cpu_swiglu_bwd, hy_cpu_embed, hy_cpu_embed_bwd,
    hy_cpu_cross_entropy, hy_cpu_preference, hy_cpu_policy, hy_cpu_sample, hy_cpu_reduce,
    hy_cpu_clip, hy_cpu_update, hy_cpu_adafactor, hy_cpu_muon_blend, hy_cpu_to_unit, hy_cpu_cast,
    hy_cpu_fill, hy_cpu_combine, hy_cpu_diff_dot, hy_cpu_quantize, hy_cpu_wrap, hy_cpu_largest,
    hy_cpu_to_fp8, hy_cpu_spread, hy_cpu_collect, hy_cpu_dropout, hy_cpu_add_parts;
hy_cpu_op_run hy_cpu_route, hy_cpu_route_bwd, hy_cpu_sort_experts, hy_cpu_grouped, hy_cpu_sum_rows;

/* After an op: computes the largest magnitude of its result if requested (fp8.c). */
hy_cpu_op_run hy_cpu_largest_of;

hy_cpu_op_workspace hy_cpu_matmul_workspace, hy_cpu_matmul_rows_workspace, hy_cpu_sample_workspace,
    hy_cpu_bias_grad_workspace, hy_cpu_norm_workspace, hy_cpu_norm_bwd_workspace,
    hy_cpu_head_norm_bwd_workspace, hy_cpu_attention_workspace, hy_cpu_attention_bwd_workspace,
    hy_cpu_attention_cached_workspace, hy_cpu_conv_bwd_workspace, hy_cpu_delta_workspace,
    hy_cpu_delta_bwd_workspace, hy_cpu_delta_cached_workspace, hy_cpu_gate_bwd_workspace,
    hy_cpu_embed_bwd_workspace, hy_cpu_reduce_workspace, hy_cpu_diff_dot_workspace,
    hy_cpu_adafactor_workspace, hy_cpu_to_unit_workspace;
hy_cpu_op_workspace hy_cpu_route_workspace, hy_cpu_grouped_workspace;

/* ---- workspace ------------------------------------------------------------------------------- */

/* Parts of a workspace begin at multiples of this, so threads never share a cache line. */
#define HY_CPU_ALIGNMENT 256

static inline size_t hy_cpu_aligned(size_t bytes) {
    return (bytes + HY_CPU_ALIGNMENT - 1) / HY_CPU_ALIGNMENT * HY_CPU_ALIGNMENT;
}

/* Divides a workspace into parts. With base NULL it only counts, so the same code computes the
 * size. */
typedef struct hy_cpu_workspace {
    char *base;
    size_t used;
} hy_cpu_workspace;

static inline void *hy_cpu_take(hy_cpu_workspace *p, size_t bytes) {
    void *part = p->base ? p->base + p->used : NULL;
    p->used += hy_cpu_aligned(bytes);
    return part;
}

static inline int64_t hy_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t hy_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t hy_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
