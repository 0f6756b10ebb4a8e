/* parts_checks.h: what must hold of the sum over ranks on every backend: the bits of a plain
 * loop. */
#ifndef HY_TESTS_PARTS_CHECKS_H
#define HY_TESTS_PARTS_CHECKS_H

#include "kernel_rig.h"

typedef struct parts_case {
    hy_dtype dtype, out;
    int32_t count, rank;
    int64_t n, stride;
    bool accumulate, in_place; /* out is own */
} parts_case;

/* Numbers of many magnitudes: in another order their sum is another. */
static inline void parts_numbers(trial *t, int at, hy_dtype dtype, int64_t count) {
    trial_tensor(t, at, dtype, 0, count);
    for (int64_t i = 0; i < count; i++) {
        double x = ldexp(roll_normal(&t->dice), (int)roll(&t->dice, -8, 8));
        trial_put(t, at, i,
                  i % 97 == 5 ? -0.0 : x); /* a sum that begins with 0 would lose this sign */
    }
}

static inline trial parts_trial(const parts_case *c) {
    trial t = trial_begin(HY_OP_ADD_PARTS, (uint64_t)(c->n * 100 + c->count * 10 + c->rank));
    t.call.attr.accumulate = c->accumulate;
    t.call.attr.add_parts.count = c->count;
    t.call.attr.add_parts.rank = c->rank;
    t.call.attr.add_parts.stride = c->stride;
    parts_numbers(&t, HY_ADD_PARTS_OWN, c->dtype, c->n);
    if (c->count > 1) parts_numbers(&t, HY_ADD_PARTS_PARTS, c->dtype, (c->count - 1) * c->stride);
    if (!c->in_place) parts_numbers(&t, HY_ADD_PARTS_OUT, c->out, c->n);
    return t;
}

/* Element i of the result before it is rounded. */
static inline float parts_sum(const parts_case *c, const hy_op_call *call, const hy_tensor *out,
                              int64_t i) {
    float sum = 0;
    for (int32_t rank = 0, part = 0; rank < c->count; rank++) {
        double x = rank == c->rank ? real_at(&call->t[HY_ADD_PARTS_OWN], i)
                                   : real_at(&call->t[HY_ADD_PARTS_PARTS], part++ * c->stride + i);
        sum = rank == 0 ? (float)x : sum + (float)x;
    }
    return c->accumulate ? (float)real_at(out, i) + sum : sum;
}

static inline void check_parts(call_runner run, const parts_case *c) {
    trial t = parts_trial(c);
    hy_op_call call = t.call;
    if (c->in_place) call.t[HY_ADD_PARTS_OUT] = call.t[HY_ADD_PARTS_OWN];
    const hy_tensor *out = &call.t[HY_ADD_PARTS_OUT];
    hy_tensor expected = copy_tensor(out);
    for (int64_t i = 0; i < c->n; i++) {
        put_real(&expected, i, (double)parts_sum(c, &call, out, i));
    }
    run(&call);
    for (int64_t i = 0; i < c->n; i++) {
        double found = real_at(out, i), right = real_at(&expected, i);
        if (found == right && signbit(found) == signbit(right)) continue;
        ck_abort_msg("%s to %s, rank %d of %d, stride %lld%s%s: element %lld of %lld is %.9g, "
                     "expected %.9g",
                     hy_dtype_name(c->dtype), hy_dtype_name(c->out), c->rank, c->count,
                     (long long)c->stride, c->accumulate ? ", added" : "",
                     c->in_place ? ", in place" : "", (long long)i, (long long)c->n, found, right);
    }
    free(expected.data);
    trial_end(&t);
}

/* Own and parts of one type: all ranks of 1 to 5, n elements, a stride of n and `gap` more. */
static inline void check_all_parts(call_runner run, hy_dtype dtype, int64_t n, int64_t gap) {
    for (int32_t count = 1; count <= 5; count++) {
        for (int32_t rank = 0; rank < count; rank++) {
            for (int way = 0; way < 6; way++) {
                parts_case c = {.dtype = dtype,
                                .out = way / 2 == 1 ? HY_F32 : dtype,
                                .count = count,
                                .rank = rank,
                                .n = n,
                                .stride = n + gap,
                                .accumulate = way % 2,
                                .in_place = way / 2 == 2};
                check_parts(run, &c);
            }
        }
    }
}

#endif
