/* matmul_rows_nf4.cu: the kernels of matmul_rows.cuh for nf4 weights. */
#include "kernels/cuda/matmul_rows.cuh"

hy_status hy_rows_by_nf4(const hy_cuda_run *run, const hy_rows_call *call) {
    return hy_rows_by_type<hy_rows_nf4>(run, call);
}
