// t [m, R] = scale x [m, K] A [R, K]^T for an adapter's A matrices under one another: bf16, f32 sums, natural order.
//
// Floor: the bytes of A (R K 2) and of x; in practice the latency of one short kernel.
// Grid (R / 16, ceil(m / 8)), 16 warps that share K in blocks of 64 and meet in shared memory. K a multiple of 64, R of
// 16. A lane's 16 columns of a block are consecutive (as in weights.cuh): loads of 16 bytes straight into fragments.
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(512)
    lora_down(u16 *out, const u16 *a, const u16 *x, int m, int r, int k, int ldx, float scale) {
    __shared__ float4 sums[16][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int row0 = blockIdx.x * 16, token0 = blockIdx.y * 8;
    const uint4 *a0 = (const uint4 *)(a + (size_t)(row0 + g) * k + t * 16);
    const uint4 *a1 = (const uint4 *)(a + (size_t)(row0 + 8 + g) * k + t * 16);
    const uint4 *b = (const uint4 *)(x + (size_t)min(token0 + g, m - 1) * ldx + t * 16);
    float c[2][4] = {};
    let_next_kernel_start();
    wait_for_previous_kernel();
#pragma unroll 4
    for (int i = warp; i < k / 64; i += 16) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 u = a0[i * 8 + h], v = a1[i * 8 + h], y = b[i * 8 + h];
            mma(c[h], u.x, v.x, u.y, v.y, y.x, y.y);
            mma(c[h], u.z, v.z, u.w, v.w, y.z, y.w);
        }
    }
    sums[warp][lane] = make_float4(c[0][0] + c[1][0], c[0][1] + c[1][1], c[0][2] + c[1][2], c[0][3] + c[1][3]);
    __syncthreads();
    if (threadIdx.x >= 128) return;
    // A thread an output: of lane l and element e.
    int l = threadIdx.x & 31, e = threadIdx.x >> 5;
    float v = 0.0f;
#pragma unroll
    for (int w = 0; w < 16; w++) v += ((const float *)&sums[w][l])[e];
    int token = token0 + 2 * (l & 3) + (e & 1), row = row0 + (l >> 2) + 8 * (e >> 1);
    if (token < m) out[(size_t)token * r + row] = bf16_round(v * scale);
}
