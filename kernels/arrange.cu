// x [m, ldx] bf16 into the image that gemm_small.cuh reads: [k / 64][m][72], 64 columns and 8 that nobody reads (they put
// the tokens' pieces into different banks). Floor: the bytes of x twice; in practice the latency of one short kernel.
// A thread per 8 columns; grid: ceil(m k / 8 / 256) blocks of 256.
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(256) arrange(u16 *image, const u16 *x, int m, int k, int ldx) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * (k / 8)) return;
    int row = i / (k / 8), piece = i - row * (k / 8), block = piece >> 3;
    uint4 v = *(const uint4 *)(x + (size_t)row * ldx + piece * 8);
    *(uint4 *)(image + ((size_t)block * m + row) * 72 + (piece & 7) * 8) = v;
}
