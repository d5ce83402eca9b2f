// C [m, n] = beta C + alpha A B for any layout of A, B and mix of types: the product that is right for every shape.
// Entry (i, j) of A lies at a[i * row + j * column]; B and C likewise (C's columns are 1 apart). f32 sums.
// Tiles of 64 x 64 x 16, 256 threads, 4 x 4 outputs a thread.
#include "act.cuh"

typedef long long i64;

template <class A, class B, class C>
static __device__ void product(C *c, i64 ldc, const A *a, i64 a_row, i64 a_column, const B *b, i64 b_row, i64 b_column,
                               int m, int n, int k, float alpha, float beta) {
    __shared__ float left[16][65], right[16][65];
    int row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            // Neighbouring threads take neighbouring memory.
            int r = a_column == 1 ? i / 16 : i % 64, kk = a_column == 1 ? i % 16 : i / 64;
            bool in = row0 + r < m && k0 + kk < k;
            left[kk][r] = in ? widen(a[(i64)(row0 + r) * a_row + (i64)(k0 + kk) * a_column]) : 0.f;
            int s = b_row == 1 ? i / 16 : i % 64, kb = b_row == 1 ? i % 16 : i / 64;
            in = column0 + s < n && k0 + kb < k;
            right[kb][s] = in ? widen(b[(i64)(k0 + kb) * b_row + (i64)(column0 + s) * b_column]) : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < 16; kk++) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = left[kk][ty + 16 * i], y[i] = right[kk][tx + 16 * i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row0 + ty + 16 * i, s = column0 + tx + 16 * j;
            if (r >= m || s >= n) continue;
            C *out = c + (i64)r * ldc + s;
            float value = alpha * sum[i][j];
            if (beta != 0.f) value += beta * widen(*out);
            narrow(value, *out);
        }
}

#define GEMM(name, A, B, C)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) name(C *c, i64 ldc, const A *a, i64 a_row, i64 a_column,         \
                                                           const B *b, i64 b_row, i64 b_column, int m, int n, int k,   \
                                                           float alpha, float beta) {                                  \
        product(c, ldc, a, a_row, a_column, b, b_row, b_column, m, n, k, alpha, beta);                                 \
    }
GEMM(gemm_aaa, act, act, act)
GEMM(gemm_aaf, act, act, float)
GEMM(gemm_afa, act, float, act)
GEMM(gemm_aff, act, float, float)
GEMM(gemm_faa, float, act, act)
GEMM(gemm_faf, float, act, float)
GEMM(gemm_ffa, float, float, act)
GEMM(gemm_fff, float, float, float)
