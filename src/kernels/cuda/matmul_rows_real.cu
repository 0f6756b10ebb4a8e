/* matmul_rows_real.cu: the kernels of matmul_rows.cuh for weights of a's own type. */
#include "kernels/cuda/matmul_rows.cuh"

hy_status hy_rows_by_real(const hy_cuda_run *run, const hy_rows_call *call) {
    return hy_rows_by_type<hy_rows_real>(run, call);
}
