/* attention_cudnn.cuh: attention by cuDNN where a user asks for it or it is faster, in place of our own
 * tiles.
 *
 * cuDNN is found at run time and never needed. It serves what tiles serve, less documents and
 * windows; for what it does not serve there is no plan, and our own kernels run. Its results are
 * the same each time, and other bits than ours. */
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn.cuh"

typedef struct hy_cudnn_attention hy_cudnn_attention;

/* Opens cuDNN unless the options rule it out, and adds to the backend's detail who computes
 * attention. What is missing becomes its warning where cuDNN was asked for by name. */
void hy_cudnn_attention_init(hy_cuda *cuda);
void hy_cudnn_attention_fini(hy_cuda *cuda);

/* Sets call->plan where cuDNN is to serve the call (attention_choice.cuh). Where it was asked for by
 * name, the first call in 16 bits that it does not serve becomes the backend's warning. */
void hy_cudnn_attention_prepare(hy_cuda *cuda, hy_op_call *call);

/* The plan of a call; NULL: our own kernels run. A call that was not prepared finds the plan of its
 * shape, which is made when it is the first; under `auto` our own run until one was prepared. */
const hy_cudnn_attention *hy_cudnn_attention_of(const hy_cuda *cuda, const hy_op_call *call);
/* 0 when cuDNN does not serve it; backward never 0 when it does. Under `auto` it is asked for whoever
 * is chosen, so that plans do not depend on the clock. */
hy_cuda_op_workspace hy_cudnn_attention_workspace;
/* False when it does not serve it; otherwise *status is how it went. */
bool hy_cudnn_attention_runs(const hy_cuda_run *run, hy_status *status);
