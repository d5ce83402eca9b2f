// Gradients of packed causal attention; see attention.cu for the layout. Nothing is added atomically: the same inputs
// give the same bits.
#include "act.cuh"

typedef long long i64;

// delta [tokens, heads] = sum over a head of d_out * out. A warp per (token, head), four a block.
extern "C" __global__ void attention_delta(float *delta, const act *d_out, const act *out, i64 ld, int tokens,
                                           int heads, int dim) {
    int lane = threadIdx.x & 31;
    i64 token = (i64)blockIdx.x * 4 + (threadIdx.x >> 5);
    if (token >= tokens) return;
    i64 at = token * ld + (i64)blockIdx.y * dim;
    float sum = 0.f;
    for (int d = lane; d < dim; d += 32) sum += widen(d_out[at + d]) * widen(out[at + d]);
    sum = warp_sum(sum);
    if (lane == 0) delta[token * heads + blockIdx.y] = sum;
}

// dq [tokens, ldd]. Dynamic shared memory: 8 * dim floats.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_q(act *dq, i64 ldd, const act *d_out, i64 ldo, const float *lse, const float *delta,
                         const act *q, const act *k, const act *v, i64 ld, const int4 *meta, int tokens, int heads,
                         int group, int dim, float scale) {
    extern __shared__ float shared[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    i64 token = (i64)blockIdx.x * 4 + warp;
    int head = blockIdx.y;
    if (token >= tokens) return;
    float *query = shared + warp * 2 * dim, *slope = query + dim;
    for (int d = lane; d < dim; d += 32) {
        query[d] = widen(q[token * ld + (i64)head * dim + d]);
        slope[d] = widen(d_out[token * ldo + (i64)head * dim + d]);
    }
    __syncwarp();
    k += (i64)(head / group) * dim;
    v += (i64)(head / group) * dim;
    int4 span = meta[token];
    float log_total = lse[token * heads + head], mean = delta[token * heads + head], sum[8] = {};
    for (int part = 0; part < 2; part++) {
        int start = part ? span.z : span.x, end = part ? (int)token + 1 : span.y;
        for (int base = start; base < end; base += 32) {
            int key = base + lane;
            float ds = 0.f;
            if (key < end) {
                float p = __expf(dot(query, k + key * ld, dim) * scale - log_total);
                ds = p * (dot(slope, v + key * ld, dim) - mean) * scale;
            }
            int count = min(32, end - base);
            for (int j = 0; j < count; j++) {
                float share = __shfl_sync(0xffffffffu, ds, j);
                const act *row = k + (i64)(base + j) * ld;
#pragma unroll
                for (int t = 0; t < 8; t++)
                    if (lane + 32 * t < dim) sum[t] += share * widen(row[lane + 32 * t]);
            }
        }
    }
    act *to = dq + token * ldd + (i64)head * dim;
#pragma unroll
    for (int t = 0; t < 8; t++)
        if (lane + 32 * t < dim) narrow(sum[t], to[lane + 32 * t]);
}

// dk, dv [tokens, ldd]: a warp per (key, kv head) goes over the queries that see it, head by head of its group.
// Dynamic shared memory: 8 * dim floats.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_kv(act *dk, act *dv, i64 ldd, const act *d_out, i64 ldo, const float *lse, const float *delta,
                          const act *q, const act *k, const act *v, i64 ld, const int4 *meta, int tokens, int heads,
                          int group, int dim, float scale) {
    extern __shared__ float shared[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    i64 token = (i64)blockIdx.x * 4 + warp;
    int kv = blockIdx.y;
    if (token >= tokens) return;
    float *key = shared + warp * 2 * dim, *value = key + dim;
    for (int d = lane; d < dim; d += 32) {
        key[d] = widen(k[token * ld + (i64)kv * dim + d]);
        value[d] = widen(v[token * ld + (i64)kv * dim + d]);
    }
    __syncwarp();
    int end = meta[token].w;
    float sum_k[8] = {}, sum_v[8] = {};
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        const act *queries = q + (i64)head * dim, *slopes = d_out + (i64)head * dim;
        for (int base = (int)token; base < end; base += 32) {
            int at = base + lane;
            float p = 0.f, ds = 0.f;
            if (at < end) {
                p = __expf(dot(key, queries + at * ld, dim) * scale - lse[(i64)at * heads + head]);
                ds = p * (dot(value, slopes + at * ldo, dim) - delta[(i64)at * heads + head]) * scale;
            }
            int count = min(32, end - base);
            for (int j = 0; j < count; j++) {
                float share_v = __shfl_sync(0xffffffffu, p, j), share_k = __shfl_sync(0xffffffffu, ds, j);
                const act *query = queries + (i64)(base + j) * ld, *slope = slopes + (i64)(base + j) * ldo;
#pragma unroll
                for (int t = 0; t < 8; t++)
                    if (lane + 32 * t < dim) {
                        sum_v[t] += share_v * widen(slope[lane + 32 * t]);
                        sum_k[t] += share_k * widen(query[lane + 32 * t]);
                    }
            }
        }
    }
    i64 to = token * ldd + (i64)kv * dim;
#pragma unroll
    for (int t = 0; t < 8; t++)
        if (lane + 32 * t < dim) {
            narrow(sum_k[t], dk[to + lane + 32 * t]);
            narrow(sum_v[t], dv[to + lane + 32 * t]);
        }
}
