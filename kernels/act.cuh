// What the plain kernels share: the type of activations and sums over a block. No header is included, so that NVRTC
// and nvcc compile the same text.
//
// `act` is bf16 (bits in an unsigned short), or float in the check mode (ACT_F32).
#pragma once

typedef unsigned short bf16_bits;
#if ACT_F32
typedef float act;
#else
typedef bf16_bits act;
#endif

static __device__ __forceinline__ float widen(float x) { return x; }
static __device__ __forceinline__ float widen(bf16_bits x) { return __uint_as_float((unsigned)x << 16); }

static __device__ __forceinline__ bf16_bits bf16_round(float x) {
    unsigned short r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
static __device__ __forceinline__ void narrow(float x, float &y) { y = x; }
static __device__ __forceinline__ void narrow(float x, bf16_bits &y) { y = bf16_round(x); }

// First thing in a kernel of the decode step, whose launches overlap on sm_90 and newer: lets the next one start and waits
// until what the one before wrote is there. Without effect in an ordinary launch.
static __device__ __forceinline__ void chained() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Eight values that lie side by side, 16 bytes aligned.
static __device__ __forceinline__ void load8(const float *p, float (&x)[8]) {
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
static __device__ __forceinline__ void load8(const bf16_bits *p, float (&x)[8]) {
    uint4 a = *(const uint4 *)p;
    const unsigned w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = __uint_as_float(w[i] << 16), x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
}
static __device__ __forceinline__ void store8(const float (&x)[8], float *p) {
    ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
static __device__ __forceinline__ void store8(const float (&x)[8], bf16_bits *p) {
    unsigned w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = bf16_round(x[2 * i]) | (unsigned)bf16_round(x[2 * i + 1]) << 16;
    *(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
}
static __device__ __forceinline__ bool aligned16(const void *p) { return (unsigned long long)p % 16 == 0; }

// Sum of d values, q in shared memory or registers of floats, k in memory; d counts by 8 where the rows are aligned.
static __device__ __forceinline__ float dot(const float *q, const float *k, int dim) {
    float sum = 0.f;
    if (dim % 4 == 0) {
        const float4 *v = (const float4 *)k;
        for (int i = 0; i < dim / 4; i++) {
            float4 x = v[i];
            const float *p = q + 4 * i;
            sum += p[0] * x.x + p[1] * x.y + p[2] * x.z + p[3] * x.w;
        }
        return sum;
    }
    for (int i = 0; i < dim; i++) sum += q[i] * k[i];
    return sum;
}
static __device__ __forceinline__ float dot(const float *q, const bf16_bits *k, int dim) {
    float sum = 0.f;
    if (dim % 8 == 0) {
        const uint4 *v = (const uint4 *)k;
        for (int i = 0; i < dim / 8; i++) {
            uint4 x = v[i];
            const unsigned w[4] = {x.x, x.y, x.z, x.w};
            const float *p = q + 8 * i;
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum += p[2 * j] * __uint_as_float(w[j] << 16) + p[2 * j + 1] * __uint_as_float(w[j] & 0xffff0000u);
        }
        return sum;
    }
    for (int i = 0; i < dim; i++) sum += q[i] * widen(k[i]);
    return sum;
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

// Over a block of whole warps; every thread gets the result. The order of additions is fixed.
static __device__ float block_sum(float x) {
    __shared__ float part[33];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < warps ? part[lane] : 0.f);
        if (lane == 0) part[32] = x;
    }
    __syncthreads();
    return part[32];
}
static __device__ float block_max(float x) {
    __shared__ float part[33];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_max(lane < warps ? part[lane] : __int_as_float(0xff800000));
        if (lane == 0) part[32] = x;
    }
    __syncthreads();
    return part[32];
}
