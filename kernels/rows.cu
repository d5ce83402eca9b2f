// Element-wise and row-wise parts of a block. The residual stream is f32, everything else `act`.
#include "act.cuh"

typedef long long i64;
#define EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

// x [tokens, width] = rows of table (bf16 where `narrow_table`, else f32). A block per token.
extern "C" __global__ void embed(float *x, const void *table, const int *tokens, int width, int narrow_table) {
    i64 from = (i64)tokens[blockIdx.x] * width, to = (i64)blockIdx.x * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        x[to + c] = narrow_table ? widen(((const bf16_bits *)table)[from + c]) : ((const float *)table)[from + c];
}

// y = x / rms(x) * w, inverses[row] = 1 / rms. A block per row. With `delta`: x += delta first, written back.
extern "C" __global__ void row_norm(act *y, float *inverses, float *x, const act *delta, const float *w, int width,
                                float eps) {
    chained();
    i64 at = (i64)blockIdx.x * width;
    float sum = 0.f;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        float v = x[at + c];
        if (delta) x[at + c] = v += widen(delta[at + c]);
        sum += v * v;
    }
    float inverse = 1.f / sqrtf(block_sum(sum) / width + eps);
    if (threadIdx.x == 0) inverses[blockIdx.x] = inverse;
    for (int c = threadIdx.x; c < width; c += blockDim.x) narrow(x[at + c] * inverse * w[c], y[at + c]);
}

// The same on each head: x [rows, ld] has `heads` heads of `width` in front. A block of one warp per (head, row).
// `raw` [rows, heads, width] receives what x was; x is replaced.
extern "C" __global__ void head_norm(act *x, i64 ld, act *raw, float *inverses, const float *w, int width, float eps) {
    chained();
    int head = blockIdx.x;
    i64 row = blockIdx.y;
    act *p = x + row * ld + (i64)head * width;
    i64 at = row * gridDim.x + head;
    float sum = 0.f;
    for (int c = threadIdx.x; c < width; c += 32) {
        float v = widen(p[c]);
        sum += v * v;
    }
    float inverse = 1.f / sqrtf(warp_sum(sum) / width + eps);
    if (inverses && threadIdx.x == 0) inverses[at] = inverse;
    for (int c = threadIdx.x; c < width; c += 32) {
        act v = p[c];
        if (raw) raw[at * width + c] = v;
        narrow(widen(v) * inverse * w[c], p[c]);
    }
}

// d += gradient of x, given dy of y = norm(x). A block per row.
extern "C" __global__ void norm_backward(float *d, const act *dy, const float *x, const float *w, const float *inverses,
                                         int width) {
    i64 at = (i64)blockIdx.x * width;
    float inverse = inverses[blockIdx.x], sum = 0.f;
    for (int c = threadIdx.x; c < width; c += blockDim.x) sum += widen(dy[at + c]) * w[c] * x[at + c] * inverse;
    float mean = block_sum(sum) / width;
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        d[at + c] += inverse * (widen(dy[at + c]) * w[c] - x[at + c] * inverse * mean);
}

// Replaces dy (in place, as head_norm lies in memory) by the gradient of the raw head.
extern "C" __global__ void head_norm_backward(act *dy, i64 ld, const act *raw, const float *w, const float *inverses,
                                              int width) {
    i64 row = blockIdx.y, at = row * gridDim.x + blockIdx.x;
    act *p = dy + row * ld + (i64)blockIdx.x * width;
    const act *x = raw + at * width;
    float inverse = inverses[at], sum = 0.f;
    for (int c = threadIdx.x; c < width; c += 32) sum += widen(p[c]) * w[c] * widen(x[c]) * inverse;
    float mean = warp_sum(sum) / width;
    for (int c = threadIdx.x; c < width; c += 32)
        narrow(inverse * (widen(p[c]) * w[c] - widen(x[c]) * inverse * mean), p[c]);
}

// Column sums over rows [chunk * step, ...): partial [chunks, width]; columns on x, chunks on y.
template <class X> static __device__ void weight_sums(float *partial, const act *dy, const X *x, const float *inverses,
                                                      int rows, int width, int step) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= width) return;
    int from = blockIdx.y * step, to = min(rows, from + step);
    float sum = 0.f;
    for (i64 r = from; r < to; r++) sum += widen(dy[r * width + c]) * widen(x[r * width + c]) * inverses[r];
    partial[(i64)blockIdx.y * width + c] = sum;
}
extern "C" __global__ void norm_weight_sums(float *partial, const act *dy, const float *x, const float *inverses,
                                            int rows, int width, int step) {
    weight_sums(partial, dy, x, inverses, rows, width, step);
}
// Heads: dy [rows, ld], raw and inverses [rows, heads]; `rows` here counts rows, all heads are summed.
extern "C" __global__ void head_norm_weight_sums(float *partial, const act *dy, i64 ld, const act *raw,
                                                 const float *inverses, int rows, int heads, int width, int step) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= width) return;
    int from = blockIdx.y * step, to = min(rows, from + step);
    float sum = 0.f;
    for (i64 r = from; r < to; r++)
        for (int h = 0; h < heads; h++) {
            i64 at = r * heads + h;
            sum += widen(dy[r * ld + (i64)h * width + c]) * widen(raw[at * width + c]) * inverses[at];
        }
    partial[(i64)blockIdx.y * width + c] = sum;
}
// Of a matrix x [rows, ld] itself: the gradient of a bias.
extern "C" __global__ void column_sums(float *partial, const act *x, i64 ld, int rows, int width, int step) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= width) return;
    int from = blockIdx.y * step, to = min(rows, from + step);
    float sum = 0.f;
    for (i64 r = from; r < to; r++) sum += widen(x[r * ld + c]);
    partial[(i64)blockIdx.y * width + c] = sum;
}
// out [width] += the sum over chunks, in order.
extern "C" __global__ void add_partial(float *out, const float *partial, int chunks, int width) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= width) return;
    float sum = 0.f;
    for (int i = 0; i < chunks; i++) sum += partial[(i64)i * width + c];
    out[c] += sum;
}

// Turns heads of x [rows, ld] in place (rotary embeddings, half-split layout); sign -1 undoes it.
// cos, sin [position, half]. `heads` counts the heads from x's start on.
extern "C" __global__ void rope(act *x, i64 ld, const float *cosines, const float *sines, const int *positions,
                                int rows, int heads, int half, float sign) {
    i64 n = (i64)rows * heads * half;
    EACH(i, n) {
        int c = i % half, head = i / half % heads;
        i64 row = i / ((i64)half * heads), at = (i64)max(positions[row], 0) * half + c;
        act *p = x + row * ld + (i64)head * 2 * half;
        float low = widen(p[c]), high = widen(p[c + half]), cosine = cosines[at], sine = sines[at] * sign;
        narrow(low * cosine - high * sine, p[c]);
        narrow(high * cosine + low * sine, p[c + half]);
    }
}

// out [rows, width] = silu(gate) * up, both in x [rows, 2 * width]: gate first.
extern "C" __global__ void silu_mul(act *out, const act *x, int rows, int width) {
    chained();
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 row = i / width, at = row * 2 * width + i % width;
        float gate = widen(x[at]), up = widen(x[at + width]);
        narrow(gate / (1.f + expf(-gate)) * up, out[i]);
    }
}
// Replaces gate and up in x by their gradients.
extern "C" __global__ void silu_mul_backward(act *x, const act *d, int rows, int width) {
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 row = i / width, at = row * 2 * width + i % width;
        float gate = widen(x[at]), up = widen(x[at + width]), dy = widen(d[i]);
        float sigmoid = 1.f / (1.f + expf(-gate)), silu = gate * sigmoid;
        narrow(dy * up * (sigmoid + silu * (1.f - sigmoid)), x[at]);
        narrow(dy * silu, x[at + width]);
    }
}

// x += y.
extern "C" __global__ void add_act(float *x, const act *y, i64 n) {
    EACH(i, n) x[i] += widen(y[i]);
}
// y [rows, ld] += bias [width].
extern "C" __global__ void add_bias(act *y, i64 ld, const float *bias, int rows, int width) {
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 at = i / width * ld + i % width;
        narrow(widen(y[at]) + bias[i % width], y[at]);
    }
}
extern "C" __global__ void to_act(act *y, const float *x, i64 n) {
    EACH(i, n) narrow(x[i], y[i]);
}
// y += noise * sigma at the same places.
extern "C" __global__ void add_floats(float *y, const float *x, i64 n) {
    EACH(i, n) y[i] += x[i];
}

// out [count, width] = rows `at` of x. A block per row.
extern "C" __global__ void gather(act *out, const act *x, const int *at, int width) {
    i64 from = (i64)at[blockIdx.x] * width, to = (i64)blockIdx.x * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) out[to + c] = x[from + c];
}
// Row t of out [tokens, width] = the sum of rows list[offsets[t] .. offsets[t + 1]] of d, in order. A block per row.
extern "C" __global__ void scatter(act *out, const act *d, const int *offsets, const int *list, int width) {
    int from = offsets[blockIdx.x], to = offsets[blockIdx.x + 1];
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0.f;
        for (int i = from; i < to; i++) sum += widen(d[(i64)list[i] * width + c]);
        narrow(sum, out[(i64)blockIdx.x * width + c]);
    }
}
// Row rows[b] of `gradient` += the sum of rows list[offsets[b] .. offsets[b + 1]] of d, in order. A block per row.
extern "C" __global__ void embedding_backward(float *gradient, const float *d, const int *rows, const int *offsets,
                                              const int *list, int width) {
    int from = offsets[blockIdx.x], to = offsets[blockIdx.x + 1];
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0.f;
        for (int i = from; i < to; i++) sum += d[(i64)list[i] * width + c];
        gradient[(i64)rows[blockIdx.x] * width + c] += sum;
    }
}
