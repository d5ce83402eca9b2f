// Causal attention of packed tokens, any head size up to 256. Query i sees keys [x, y) (a shared prompt) and [z, i];
// (x, y, z, w) = meta[i], w: the first token that does not see key i. A warp per (token, head).
#include "act.cuh"

typedef long long i64;

// out [tokens, heads * dim] (ldo), lse [tokens, heads]; q, k, v [tokens, ld] start at their first head.
// Dynamic shared memory: 4 * dim floats.
extern "C" __global__ void __launch_bounds__(128)
    attention_forward(act *out, i64 ldo, float *lse, const act *q, const act *k, const act *v, i64 ld, const int4 *meta,
                      int tokens, int heads, int group, int dim, float scale) {
    extern __shared__ float shared[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    i64 token = (i64)blockIdx.x * 4 + warp;
    int head = blockIdx.y;
    if (token >= tokens) return;
    float *query = shared + warp * dim;
    const act *from = q + token * ld + (i64)head * dim;
    for (int d = lane; d < dim; d += 32) query[d] = widen(from[d]) * scale;
    __syncwarp();
    k += (i64)(head / group) * dim;
    v += (i64)(head / group) * dim;
    int4 span = meta[token];
    const float none = __int_as_float(0xff800000);
    float top = none, total = 0.f, sum[8] = {};
    for (int part = 0; part < 2; part++) {
        int start = part ? span.z : span.x, end = part ? (int)token + 1 : span.y;
        for (int base = start; base < end; base += 32) {
            int key = base + lane;
            float score = key < end ? dot(query, k + key * ld, dim) : none;
            float next = fmaxf(top, warp_max(score));
            float p = key < end ? __expf(score - next) : 0.f, keep = __expf(top - next);
            total = total * keep + warp_sum(p);
            top = next;
#pragma unroll
            for (int t = 0; t < 8; t++) sum[t] *= keep;
            int count = min(32, end - base);
            for (int j = 0; j < count; j++) {
                float share = __shfl_sync(0xffffffffu, p, j);
                const act *value = v + (i64)(base + j) * ld;
#pragma unroll
                for (int t = 0; t < 8; t++)
                    if (lane + 32 * t < dim) sum[t] += share * widen(value[lane + 32 * t]);
            }
        }
    }
    act *to = out + token * ldo + (i64)head * dim;
#pragma unroll
    for (int t = 0; t < 8; t++)
        if (lane + 32 * t < dim) narrow(sum[t] / total, to[lane + 32 * t]);
    if (lse && lane == 0) lse[token * heads + head] = top + logf(total);
}
