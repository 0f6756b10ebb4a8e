/* matmul_rows_int8.cu: the kernels of matmul_rows.cuh for int8 weights. */
#include "kernels/cuda/matmul_rows.cuh"

hy_status hy_rows_by_int8(const hy_cuda_run *run, const hy_rows_call *call) {
    return hy_rows_by_type<hy_rows_int8>(run, call);
}
