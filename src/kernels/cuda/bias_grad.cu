/* bias_grad.cu: the gradient of a bias: column sums of dy (columns.cuh). */
#include "kernels/cuda/columns.cuh"

size_t hy_cuda_bias_grad_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *dy = &call->t[HY_BIAS_GRAD_DY];
    int64_t C = hy_width(dy);
    int pack = dy->dtype == HY_F32 ? 4 : 8, width = C % pack != 0 ? 1 : pack;
    /* If dy is not aligned, it is read element by element: room for either. */
    size_t packed = hy_column_bytes(cuda, hy_height(dy), C / width, width);
    size_t single = hy_column_bytes(cuda, hy_height(dy), C, 1);
    return packed > single ? packed : single;
}

hy_status hy_cuda_bias_grad(const hy_cuda_run *run) {
    const hy_tensor *dy = &run->call->t[HY_BIAS_GRAD_DY], *db = &run->call->t[HY_BIAS_GRAD_DBIAS];
    hy_by_chunks(hy_width(dy), {dy}, [&](auto access) {
        using A = decltype(access);
        hy_matrix_source<A> source = {A::of(dy), hy_width(dy)};
        hy_column_sums(run, source, hy_height(dy), db, (float *)run->call->workspace.data);
    });
    return hy_cuda_launched(run);
}
