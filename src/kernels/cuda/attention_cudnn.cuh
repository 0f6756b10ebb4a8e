/* attention_cudnn.cuh: attention by cuDNN, if the user requests it or it is faster than our own
 * tiles.
 *
 * cuDNN is found at run time and never required. It supports the calls that tiles support, except
 * documents and windows; for other calls there is no plan, and our own kernels run. Its results are
 * reproducible, but the bits differ from ours. */
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn.cuh"

typedef struct hy_cudnn_attention hy_cudnn_attention;

/* Opens cuDNN unless the options exclude it, and adds to the backend's detail which kernels compute
 * attention. If cuDNN was requested by name and something is missing, that becomes the backend's
 * warning. */
void hy_cudnn_attention_init(hy_cuda *cuda);
void hy_cudnn_attention_fini(hy_cuda *cuda);

/* Sets call->plan if cuDNN is used for the call (attention_choice.cuh). If it was requested by
 * name, the first 16-bit call that it does not support becomes the backend's warning. */
void hy_cudnn_attention_prepare(hy_cuda *cuda, hy_op_call *call);

/* The plan of a call; NULL: our own kernels run. A call that was not prepared uses the plan of its
 * shape, which is created if necessary; under `auto` our own kernels run until one was prepared. */
const hy_cudnn_attention *hy_cudnn_attention_of(const hy_cuda *cuda, const hy_op_call *call);
/* 0 if cuDNN does not support the call; never 0 in the backward pass if it does. Under `auto` it is
 * requested whatever is chosen, so that plans do not depend on timings. */
hy_cuda_op_workspace hy_cudnn_attention_workspace;
/* False: cuDNN does not support the call; otherwise *status is the result. */
bool hy_cudnn_attention_runs(const hy_cuda_run *run, hy_status *status);
