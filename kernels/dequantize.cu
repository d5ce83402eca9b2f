// Packed weights to `act`, by the formats' definitions (src/quant), each step in f32 and rounded once.
#include "act.cuh"

typedef long long i64;
typedef unsigned char u8;
#define EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

static __device__ __forceinline__ float e2m1(int code) {
    int magnitude = code & 7;
    float x = magnitude < 2 ? 0.5f * magnitude : __int_as_float(((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22);
    return code & 8 ? -x : x;
}
static __device__ __forceinline__ float e4m3(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float x = exponent ? __int_as_float((exponent + 120) << 23 | mantissa << 20) : mantissa * (1.f / 512.f);
    return code & 128 ? -x : x;
}

// codes [n / 2] bytes over the flattened matrix (low nibble first), one e4m3 scale per 16: e2m1 * (e4m3 / global), or
// e2m1 * (e4m3 * global) where `multiplies`. A thread per 8 weights; `groups8` = n / 8.
extern "C" __global__ void dequantize_nvfp4(act *out, const unsigned *codes, const u8 *scales, float global,
                                            int multiplies, i64 groups8) {
    EACH(i, groups8) {
        float scale = e4m3(scales[i / 2]);
        scale = multiplies ? scale * global : __fdiv_rn(scale, global);
        unsigned q = codes[i];
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = e2m1(q >> 4 * j & 15) * scale;
        store8(x, out + 8 * i);
    }
}
// One e8m0 scale per 32.
extern "C" __global__ void dequantize_mxfp4(act *out, const unsigned *codes, const u8 *scales, i64 groups8) {
    EACH(i, groups8) {
        int exponent = scales[i / 4];
        float scale = exponent ? __int_as_float(exponent << 23) : __int_as_float(1 << 22);
        unsigned q = codes[i];
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = e2m1(q >> 4 * j & 15) * scale;
        store8(x, out + 8 * i);
    }
}

static __device__ const float NF4[16] = {-1.0f,        -0.6961928f,  -0.52507305f, -0.3949175f,
                                         -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
                                         0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
                                         0.44070983f,  0.562617f,    0.72295684f,  1.0f};
// HIGH nibble first, one f32 absmax per 64 of the flattened matrix of n weights.
extern "C" __global__ void dequantize_nf4(act *out, const u8 *codes, const float *absmax, i64 n) {
    EACH(i, n) narrow(NF4[codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * absmax[i / 64], out[i]);
}
