// Random contents for measurements: a hash of seed and index.
#include "act.cuh"

typedef long long i64;
typedef unsigned int u32;
#define EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

static __device__ u32 hash(i64 i, int seed) {
    u32 x = (u32)i ^ (u32)(i >> 32) * 0x9E3779B9u ^ (u32)seed * 0x85EBCA6Bu;
    x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu, x ^= x >> 16;
    return x;
}
static __device__ float between(u32 x, float low, float high) { return low + (high - low) * (x >> 8) * (1.f / 16777216.f); }

extern "C" __global__ void fill_bits(u32 *out, i64 n, int seed) {
    EACH(i, n) out[i] = hash(i, seed);
}
// low .. low + count - 1.
extern "C" __global__ void fill_bytes(unsigned char *out, i64 n, int low, int count, int seed) {
    EACH(i, n) out[i] = low + hash(i, seed) % count;
}
extern "C" __global__ void fill_act(act *out, i64 n, float low, float high, int seed) {
    EACH(i, n) narrow(between(hash(i, seed), low, high), out[i]);
}
extern "C" __global__ void fill_floats(float *out, i64 n, float low, float high, int seed) {
    EACH(i, n) out[i] = between(hash(i, seed), low, high);
}
