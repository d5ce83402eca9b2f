// What a product of few tokens needs before it and, where its kernel does not add the adapter itself, after it.
// bf16, f32 sums, natural order unless said otherwise.
#include "gemm_args.cuh"

// x [m, ldx] into the image that gemm_small.cuh reads: [k / 64][m][72], 64 columns and 8 that nobody reads (they put the
// tokens' pieces into different banks). Thread i moves 8 columns.
DEVICE void arrange(u16 *image, const u16 *x, int m, int k, int ldx, int i) {
    if (i >= m * (k / 8)) return;
    int row = i / (k / 8), piece = i - row * (k / 8), block = piece >> 3;
    uint4 v = *(const uint4 *)(x + (size_t)row * ldx + piece * 8);
    *(uint4 *)(image + ((size_t)block * m + row) * 72 + (piece & 7) * 8) = v;
}

// t [m, r] = scale x [m, k] A [r, k]^T for an adapter's A matrices under one another: rows row0 to row0 + 15 of A,
// tokens token0 to token0 + 7. 16 warps share k in blocks of 64 and meet in shared memory. k a multiple of 64, r of 16. A
// lane's 16 columns of a block are consecutive (as in weights.cuh): loads of 16 bytes straight into fragments.
DEVICE void down(u16 *out, const u16 *a, const u16 *x, int m, int r, int k, int ldx, float scale, int row0, int token0) {
    __shared__ float4 sums[16][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint4 *a0 = (const uint4 *)(a + (size_t)(row0 + g) * k + t * 16);
    const uint4 *a1 = (const uint4 *)(a + (size_t)(row0 + 8 + g) * k + t * 16);
    const uint4 *b = (const uint4 *)(x + (size_t)min(token0 + g, m - 1) * ldx + t * 16);
    float c[2][4] = {};
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

// Both of one x, by different blocks of 512 threads: first r / 16 x ceil(m / 8) for t (none where r is 0), then
// ceil(m k / 8 / 512) for the image (none where it is null). Floor: the bytes of A and of x; in practice the latency of
// one short kernel.
extern "C" __global__ void __launch_bounds__(512) product_inputs(u16 *image, u16 *t, const u16 *a, const u16 *x, int m,
                                                                  int r, int k, int ldx, float scale) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    int columns = r / 16, downs = columns * ((m + 7) / 8), block = blockIdx.x;
    if (block < downs)
        down(t, a, x, m, r, k, ldx, scale, block % columns * 16, block / columns * 8);
    else
        arrange(image, x, m, k, ldx, (block - downs) * 512 + threadIdx.x);
}

// y [m, n] += bias + t B^T, after a product that could not add them. A warp per 16 rows of W and 8 tokens; grid
// (ceil(n / 64), ceil(m / 8)). The arguments are those of the product without its weights; `residual` is y.
extern "C" __global__ void __launch_bounds__(128) lora_up(const __grid_constant__ GemmArgs args) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    int strip = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (strip * 16 >= args.n) return;
    const float none[1][4] = {};
    finish_strip<1>(args, RowEnds::of(args, strip, lane), strip, blockIdx.y * 8, lane, none);
}
