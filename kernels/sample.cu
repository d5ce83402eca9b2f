// Draws tokens as src/engine/sampling.rs defines them: the same arithmetic in the same order, so that equal logits give
// equal tokens. Rows with top-k, top-p or min-p are drawn by `sample_filtered`.
#include "act.cuh"

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

// How a row is drawn; `position` counts the completion's tokens.
struct Ask {
    u64 seed;
    float temperature, top_p, min_p;
    int top_k, position, pad;
};
struct Draw {
    int token; // -1: the logits are not finite
    float log_prob;
};

static __device__ void philox(u32 (&c)[4], u32 k0, u32 k1) {
    for (int round = 0; round < 10; round++) {
        if (round) k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        u32 h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
        u32 h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
        c[0] = h1 ^ c[1] ^ k0, c[1] = l1, c[2] = h0 ^ c[3] ^ k1, c[3] = l0;
    }
}

// In [0, 1) with 53 bits.
static __device__ double uniform(u64 seed, u64 index) {
    u32 c[4] = {(u32)index, (u32)(index >> 32), 0, 0};
    philox(c, (u32)seed, (u32)(seed >> 32));
    u64 bits = (u64)c[0] << 21 | (u64)c[1] >> 11;
    return (double)bits * 1.1102230246251565e-16;
}

// e^x for x <= 0, in the order of operations of sampling.rs (no fused multiply-add).
static __device__ float exponential(float x) {
    const float shift = 12582912.f;
    bool gone = x <= -87.f;
    x = gone ? 0.f : x;
    float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), shift);
    float n = __fadd_rn(shifted, -shift);
    float r = __fadd_rn(__fadd_rn(x, -__fmul_rn(n, 0.6933594f)), -__fmul_rn(n, -2.1219444e-4f));
    float poly = 1.9875691e-4f;
    poly = __fadd_rn(__fmul_rn(poly, r), 1.3981999e-3f);
    poly = __fadd_rn(__fmul_rn(poly, r), 8.333452e-3f);
    poly = __fadd_rn(__fmul_rn(poly, r), 4.1665796e-2f);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.6666665e-1f);
    poly = __fadd_rn(__fmul_rn(poly, r), 0.5f);
    float value = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(poly, r), r), r), 1.f);
    float scale = __int_as_float((__float_as_int(shifted) - __float_as_int(shift) + 127) << 23);
    return gone ? 0.f : __fmul_rn(value, scale);
}

static __device__ int block_min(int x) {
    __shared__ int part[33];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int i = 16; i; i >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, i));
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = lane < warps ? part[lane] : 0x7fffffff;
        for (int i = 16; i; i >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, i));
        if (lane == 0) part[32] = x;
    }
    __syncthreads();
    return part[32];
}

// Sums of 128 exponentials each, in order, and their sums so far; thread 0 adds, so nothing depends on the number of
// threads. Then the block of 128 in which the target lies is looked for by all at once.
struct Sums {
    double *each, *so_far;
    int blocks;
};

// Overwrites logits [rows, vocab] by exp((logit - max) / temperature). Dynamic shared memory: two doubles per 128 tokens.
// A block of 1024 per row. `next` [rows]: the drawn tokens once more, as the next step's input.
extern "C" __global__ void __launch_bounds__(1024) sample(Draw *draws, int *next, float *logits, const Ask *asks, int vocab) {
    extern __shared__ double memory[];
    __shared__ float piece[128];
    __shared__ double whole;
    Sums sums = {memory, memory + (vocab + 127) / 128, (vocab + 127) / 128};
    float *p = logits + (i64)blockIdx.x * vocab;
    Ask ask = asks[blockIdx.x];
    float top = __int_as_float(0xff800000);
    int best = 0x7fffffff;
#pragma unroll 8
    for (int c = threadIdx.x; c < vocab; c += 1024) {
        float x = p[c];
        if (x > top) top = x, best = c;
    }
    float own = top;
    top = block_max(top);
    best = block_min(own == top ? best : 0x7fffffff);
    bool greedy = ask.temperature <= 0.f;
    float inverse = greedy ? 1.f : __fdiv_rn(1.f, ask.temperature);
#pragma unroll 8
    for (int c = threadIdx.x; c < vocab; c += 1024) p[c] = exponential(__fmul_rn(__fadd_rn(p[c], -top), inverse));
    __syncthreads();
    for (int b = threadIdx.x; b < sums.blocks; b += 1024) {
        double sum = 0.;
        const float *from = p + b * 128;
        int count = min(vocab - b * 128, 128);
#pragma unroll 16
        for (int c = 0; c < count; c++) sum += (double)from[c];
        sums.each[b] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.;
#pragma unroll 8
        for (int b = 0; b < sums.blocks; b++) sums.so_far[b] = total += sums.each[b];
        whole = total;
    }
    __syncthreads();
    double total = whole;
    bool finite = total - total == 0. && top - top == 0.f;
    bool drawn = finite && !greedy;
    double target = drawn ? uniform(ask.seed, (u64)(u32)ask.position) * total : 0.;
    int first = 0x7fffffff;
    for (int b = threadIdx.x; b < sums.blocks; b += 1024)
        if (sums.so_far[b] > target) {
            first = b;
            break;
        }
    first = block_min(first);
    // The tokens of that block, so that thread 0 does not wait for each.
    if (first < sums.blocks && threadIdx.x < 128 && first * 128 + threadIdx.x < vocab)
        piece[threadIdx.x] = p[first * 128 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x) return;
    int token = best;
    if (drawn) {
        double mass = first > 0 && first < sums.blocks ? sums.so_far[first - 1] : 0.;
        int last = 0;
        bool found = false;
        for (int b = first; b < sums.blocks && !found; b++) {
            if (mass + sums.each[b] <= target) {
                mass += sums.each[b];
                continue;
            }
            int end = min(vocab, (b + 1) * 128);
            for (int c = b * 128; c < end; c++) {
                float x = b == first ? piece[c - b * 128] : p[c];
                if (x > 0.f) {
                    last = c;
                    mass += (double)x;
                    if (mass > target) {
                        found = true;
                        break;
                    }
                }
            }
        }
        // Rounding put the target at the very end: the last token with any mass.
        if (!found && p[last] == 0.f)
            for (int c = vocab - 1; c >= 0; c--)
                if (p[c] > 0.f) {
                    last = c;
                    break;
                }
        token = last;
    }
    Draw draw;
    draw.token = finite ? token : -1;
    draw.log_prob = finite ? (float)(log((double)p[token]) - log(total)) : 0.f;
    draws[blockIdx.x] = draw;
    if (next) next[blockIdx.x] = finite ? token : 0;
}
