/* matmul_rows_e4m3.cu: the kernels of matmul_rows.cuh for fp8 weights. */
#include "kernels/cuda/matmul_rows.cuh"

hy_status hy_rows_by_e4m3(const hy_cuda_run *run, const hy_rows_call *call) {
    return hy_rows_by_type<hy_rows_e4m3>(run, call);
}
