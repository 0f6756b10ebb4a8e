/* attention_choice.cuh: the choice between our own tiles and cuDNN for a shape that both support.
 *
 * The options may decide. With `auto`, each direction of a shape is timed when its first call is
 * prepared, and the faster one is used. The table of a checkpoint and the cache file store the
 * choice, because it decides bits. Directions are chosen independently: both implementations write
 * and read the same lse, the natural logarithm of the sum of exponentials of scaled scores. */
#pragma once

#include <pthread.h>

#include "kernels/attention_choice.h"
#include "kernels/cuda/attention_cudnn.cuh"

typedef struct hy_attention_choices {
    char card[HY_ATTENTION_CARD]; /* as one word */
    pthread_mutex_t lock;         /* for made */
    hy_attention_entries made;    /* for prepared calls */
    hy_attention_entries table;   /* from a checkpoint, entries that are valid here */
    hy_attention_entries cache;   /* from the file, for all cards */
} hy_attention_choices;

hy_status hy_attention_choices_init(hy_cuda *cuda);
void hy_attention_choices_fini(hy_cuda *cuda);

/* Whether cuDNN is used for this call. `offer` is its plan; NULL: it has none. The result for a
 * shape stays the same as long as the backend exists. */
bool hy_attention_choose(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer);
/* Whether cuDNN was chosen when a call of this shape was prepared. */
bool hy_attention_is_cudnn(const hy_cuda *cuda, const hy_op_call *call);
/* Whether the table of the checkpoint chose cuDNN. */
bool hy_attention_was_cudnn(const hy_cuda *cuda, const hy_op_call *call);

/* attention_time.cu. Microseconds of our own attention and of cuDNN's on random numbers; false if
 * they cannot be timed, or if their results differ. */
bool hy_attention_time(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer,
                       float *own_us, float *cudnn_us);
