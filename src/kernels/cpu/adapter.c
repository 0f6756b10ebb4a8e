/* adapter.c: ops of low-rank adapters other than matmuls: block-diagonal layout, and dropout. */
#include "base/rng.h"
#include "kernels/cpu/rows.h"

#define ROWS_PER_TASK 256
#define ELEMENTS_PER_TASK (64 * 1024)
#define WORDS 4 /* random numbers per counter */

/* ---- block-diagonal layout ------------------------------------------------------------------- */

static void put(const hy_tensor *t, int64_t at, int64_t n, const float *values) {
    hy_cpu_narrow(t->dtype, values, hy_element(t, at), n);
}

/* In runs, because a row may be longer than a buffer. */
static void spread_row(const hy_op_call *call, int64_t m) {
    const hy_tensor *b = &call->t[HY_SPREAD_B], *full = &call->t[HY_SPREAD_FULL];
    int64_t rank = hy_tensor_width(b), width = hy_tensor_width(full), column;
    int64_t row = hy_spread_row(&call->attr.spread, m, rank, &column);
    float zeros[HY_CPU_RUN] = {0}, buffer[HY_CPU_RUN];
    for (int64_t at = 0; at < width; at += HY_CPU_RUN) {
        put(full, m * width + at, hy_min64(HY_CPU_RUN, width - at), zeros);
    }
    for (int64_t at = 0; at < rank && row >= 0; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, rank - at);
        put(full, m * width + column + at, n, hy_read(b, row * rank + at, n, buffer));
    }
}

static void collect_row(const hy_op_call *call, int64_t m) {
    const hy_tensor *full = &call->t[HY_COLLECT_FULL], *b = &call->t[HY_COLLECT_B];
    int64_t rank = hy_tensor_width(b), width = hy_tensor_width(full), column;
    int64_t row = hy_spread_row(&call->attr.spread, m, rank, &column);
    float one[HY_CPU_RUN], other[HY_CPU_RUN], sum[HY_CPU_RUN];
    for (int64_t at = 0; at < rank && row >= 0; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, rank - at);
        const float *x = hy_read(full, m * width + column + at, n, one);
        if (call->attr.accumulate) {
            hy_cpu_add(x, hy_read(b, row * rank + at, n, other), sum, n);
            x = sum;
        }
        put(b, row * rank + at, n, x);
    }
}

static void spread_rows(const hy_op_call *call, int64_t begin, int64_t count) {
    for (int64_t m = begin; m < begin + count; m++) spread_row(call, m);
}

static void collect_rows(const hy_op_call *call, int64_t begin, int64_t count) {
    for (int64_t m = begin; m < begin + count; m++) collect_row(call, m);
}

hy_status hy_cpu_spread(const hy_cpu_run *run) {
    hy_cpu_for_rows(run, hy_tensor_height(&run->call->t[HY_SPREAD_FULL]), ROWS_PER_TASK,
                    spread_rows);
    return HY_OK;
}

hy_status hy_cpu_collect(const hy_cpu_run *run) {
    hy_cpu_for_rows(run, hy_tensor_height(&run->call->t[HY_COLLECT_FULL]), ROWS_PER_TASK,
                    collect_rows);
    return HY_OK;
}

/* ---- dropout --------------------------------------------------------------------------------- */

static uint64_t seed_of(const hy_op_call *call) {
    const uint32_t *word = call->t[HY_DROPOUT_SEED].data;
    return word ? (uint64_t)word[1] << 32 | word[0] : 0;
}

/* Runs begin at multiples of four. */
static void dropout_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *y = &call->t[HY_DROPOUT_Y];
    float rate = call->attr.dropout.rate, scale = 1 / (1 - rate);
    float in[HY_CPU_RUN], out[HY_CPU_RUN], before[HY_CPU_RUN];
    const float *x = hy_read(&call->t[HY_DROPOUT_X], at, n, in);
    uint64_t seed = seed_of(call);
    for (int64_t i = 0; i < n; i += WORDS) {
        uint32_t word[WORDS] = {0};
        uint64_t index = call->attr.dropout.first + (uint64_t)(at + i) / WORDS;
        if (rate > 0) hy_philox(seed, HY_RNG_DROPOUT, index, word);
        for (int64_t k = i; k < n && k < i + WORDS; k++) {
            bool is_dropped = (float)word[k - i] * 0x1p-32f < rate;
            out[k] = is_dropped ? 0 : scale * x[k];
        }
    }
    const hy_tensor *c = &call->t[HY_DROPOUT_C];
    if (hy_tensor_is_given(c)) hy_cpu_add(out, hy_read(c, at, n, before), out, n);
    put(y, at, n, out);
}

hy_status hy_cpu_dropout(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_DROPOUT_X]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, dropout_elements);
}
