// Log-probs and entropies from rows of f32 logits, and their gradients. A block per row.
#include "act.cuh"

typedef long long i64;

// stats[row] = (log-sum-exp, entropy in nats, log-prob of the target, 0) of softmax(logits * inverse_temperature).
extern "C" __global__ void score(float4 *stats, const float *logits, const int *targets, int vocab,
                                 float inverse_temperature) {
    const float *row = logits + (i64)blockIdx.x * vocab;
    float top = __int_as_float(0xff800000);
    for (int c = threadIdx.x; c < vocab; c += blockDim.x) top = fmaxf(top, row[c] * inverse_temperature);
    top = block_max(top);
    float sum = 0.f, weighted = 0.f;
    for (int c = threadIdx.x; c < vocab; c += blockDim.x) {
        float z = row[c] * inverse_temperature - top, e = expf(z);
        sum += e;
        weighted += e == 0.f ? 0.f : z * e;
    }
    sum = block_sum(sum);
    weighted = block_sum(weighted);
    if (threadIdx.x == 0) {
        float log_total = logf(sum);
        float log_prob = row[targets[blockIdx.x]] * inverse_temperature - top - log_total;
        stats[blockIdx.x] = make_float4(top + log_total, log_total - weighted / sum, log_prob, 0.f);
    }
}

// d [rows, vocab]: gradient of the logits, given slopes[row] = (d log-prob, d entropy).
extern "C" __global__ void score_backward(act *d, const float *logits, const float4 *stats, const int *targets,
                                          const float2 *slopes, int vocab, float inverse_temperature) {
    const float *row = logits + (i64)blockIdx.x * vocab;
    act *out = d + (i64)blockIdx.x * vocab;
    float4 s = stats[blockIdx.x];
    float2 slope = slopes[blockIdx.x];
    int target = targets[blockIdx.x];
    for (int c = threadIdx.x; c < vocab; c += blockDim.x) {
        float log_p = row[c] * inverse_temperature - s.x, p = expf(log_p);
        float g = -slope.x * p - (p == 0.f ? 0.f : slope.y * p * (log_p + s.y));
        if (c == target) g += slope.x;
        narrow(g * inverse_temperature, out[c]);
    }
}
