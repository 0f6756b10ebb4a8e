/* attention_choice.cuh: which attention serves a shape where both can: our own tiles or cuDNN's.
 *
 * The options may say it. `auto` leaves it to the clock: each direction of a shape is timed when
 * its first call is prepared, the faster one is taken, and a checkpoint's table and the cache file
 * carry the choice, because it decides bits. Directions are chosen apart: both attentions write
 * and read the same lse, the natural logarithm of the sum of exponentials of scaled scores. */
#pragma once

#include <pthread.h>

#include "kernels/attention_choice.h"
#include "kernels/cuda/attention_cudnn.cuh"

typedef struct hy_attention_choices {
    char card[HY_ATTENTION_CARD]; /* in one word */
    pthread_mutex_t lock;         /* of made */
    hy_attention_entries made;    /* for the calls that were prepared */
    hy_attention_entries table;   /* of a checkpoint, those that hold here */
    hy_attention_entries cache;   /* of the file, all cards */
} hy_attention_choices;

hy_status hy_attention_choices_init(hy_cuda *cuda);
void hy_attention_choices_fini(hy_cuda *cuda);

/* Does cuDNN serve this call? `offer` is its plan, NULL where it has none. The answer for a shape
 * stays the same as long as the backend. */
bool hy_attention_choose(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer);
/* Was cuDNN chosen when a call of this shape was prepared? */
bool hy_attention_is_cudnn(const hy_cuda *cuda, const hy_op_call *call);
/* Does the checkpoint's table say so? */
bool hy_attention_was_cudnn(const hy_cuda *cuda, const hy_op_call *call);

/* attention_time.cu. Microseconds of our own attention and of cuDNN's on random numbers; false when
 * they cannot be timed, or differ in their results. */
bool hy_attention_time(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer,
                       float *own_us, float *cudnn_us);
