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

// y = norm(x) = x / rms(x) * w, inverses[row] = 1 / rms. With `delta`: of out = x + delta, which is written.
static __device__ void norm(act *y, float *inverses, float *out, const float *x, const act *delta, const float *w,
                            int width, float eps) {
    i64 at = (i64)blockIdx.x * width;
    x += at, y += at;
    if (delta) out += at, delta += at;
    const float *from = delta ? out : x;
    float sum = 0.f;
    if (width % 8 == 0) {
        for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
            float v[8], more[8];
            load8(x + c, v);
            if (delta) {
                load8(delta + c, more);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] += more[i];
                store8(v, out + c);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[i] * v[i];
        }
    } else {
        for (int c = threadIdx.x; c < width; c += blockDim.x) {
            float v = x[c];
            if (delta) out[c] = v += widen(delta[c]);
            sum += v * v;
        }
    }
    float inverse = 1.f / sqrtf(block_sum(sum) / width + eps);
    if (threadIdx.x == 0) inverses[blockIdx.x] = inverse;
    // Every thread reads again what it has written itself.
    if (width % 8 == 0) {
        for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
            float v[8], weight[8];
            load8(from + c, v), load8(w + c, weight);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = v[i] * inverse * weight[i];
            store8(v, y + c);
        }
    } else {
        for (int c = threadIdx.x; c < width; c += blockDim.x) narrow(from[c] * inverse * w[c], y[c]);
    }
}
// In place: with `delta`, x += delta first. A block per row.
extern "C" __global__ void row_norm(act *y, float *inverses, float *x, const act *delta, const float *w, int width,
                                    float eps) {
    chained();
    norm(y, inverses, x, x, delta, w, width, eps);
}
// out = x + delta, y = norm(out). A block per row.
extern "C" __global__ void add_norm(act *y, float *inverses, float *out, const float *x, const act *delta,
                                    const float *w, int width, float eps) {
    norm(y, inverses, out, x, delta, w, width, eps);
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

// d += gradient of x, given dy of y = norm(x); `rounded`, where it is given, receives d. A block per row.
extern "C" __global__ void norm_backward(float *d, act *rounded, const act *dy, const float *x, const float *w,
                                         const float *inverses, int width) {
    i64 at = (i64)blockIdx.x * width;
    d += at, dy += at, x += at;
    if (rounded) rounded += at;
    float inverse = inverses[blockIdx.x], sum = 0.f;
    if (width % 8 == 0) {
        float slope[8], value[8], weight[8];
        for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
            load8(dy + c, slope), load8(x + c, value), load8(w + c, weight);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += slope[i] * weight[i] * value[i] * inverse;
        }
        float mean = block_sum(sum) / width;
        for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) {
            float all[8];
            load8(dy + c, slope), load8(x + c, value), load8(w + c, weight), load8(d + c, all);
#pragma unroll
            for (int i = 0; i < 8; i++) all[i] += inverse * (slope[i] * weight[i] - value[i] * inverse * mean);
            store8(all, d + c);
            if (rounded) store8(all, rounded + c);
        }
        return;
    }
    for (int c = threadIdx.x; c < width; c += blockDim.x) sum += widen(dy[c]) * w[c] * x[c] * inverse;
    float mean = block_sum(sum) / width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        d[c] += inverse * (widen(dy[c]) * w[c] - x[c] * inverse * mean);
        if (rounded) narrow(d[c], rounded[c]);
    }
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
    if (half % 8 == 0 && ld % 8 == 0 && aligned16(x)) {
        // Fewer than 2^32 pieces of eight fit any memory.
        unsigned pieces = half / 8, all = heads * pieces;
        EACH(i, (i64)rows * all) {
            unsigned row = (unsigned)i / all, rest = (unsigned)i - row * all, head = rest / pieces;
            int c = (rest - head * pieces) * 8;
            i64 at = (i64)max(positions[row], 0) * half + c;
            act *p = x + row * ld + (i64)head * 2 * half + c;
            float low[8], high[8], cosine[8], sine[8], a[8], b[8];
            load8(p, low), load8(p + half, high), load8(cosines + at, cosine), load8(sines + at, sine);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float s = sine[j] * sign;
                a[j] = low[j] * cosine[j] - high[j] * s;
                b[j] = high[j] * cosine[j] + low[j] * s;
            }
            store8(a, p), store8(b, p + half);
        }
        return;
    }
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

static __device__ __forceinline__ float silu_mul_of(float gate, float up) { return gate / (1.f + expf(-gate)) * up; }

// out [rows, width] = silu(gate) * up, both in x [rows, 2 * width]: gate first.
extern "C" __global__ void silu_mul(act *out, const act *x, int rows, int width) {
    chained();
    if (width % 8 == 0) {
        unsigned pieces = width / 8;
        EACH(i, (i64)rows * pieces) {
            unsigned row = (unsigned)i / pieces, c = ((unsigned)i - row * pieces) * 8;
            const act *p = x + (i64)row * 2 * width + c;
            float gate[8], up[8];
            load8(p, gate), load8(p + width, up);
#pragma unroll
            for (int j = 0; j < 8; j++) gate[j] = silu_mul_of(gate[j], up[j]);
            store8(gate, out + (i64)row * width + c);
        }
        return;
    }
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 row = i / width, at = row * 2 * width + i % width;
        narrow(silu_mul_of(widen(x[at]), widen(x[at + width])), out[i]);
    }
}

static __device__ __forceinline__ void silu_mul_slopes(float &gate, float &up, float dy) {
    float sigmoid = 1.f / (1.f + expf(-gate)), silu = gate * sigmoid;
    gate = dy * up * (sigmoid + silu * (1.f - sigmoid));
    up = dy * silu;
}
// Replaces gate and up in x by their gradients.
extern "C" __global__ void silu_mul_backward(act *x, const act *d, int rows, int width) {
    if (width % 8 == 0) {
        unsigned pieces = width / 8;
        EACH(i, (i64)rows * pieces) {
            unsigned row = (unsigned)i / pieces, c = ((unsigned)i - row * pieces) * 8;
            act *p = x + (i64)row * 2 * width + c;
            float gate[8], up[8], dy[8];
            load8(p, gate), load8(p + width, up), load8(d + (i64)row * width + c, dy);
#pragma unroll
            for (int j = 0; j < 8; j++) silu_mul_slopes(gate[j], up[j], dy[j]);
            store8(gate, p), store8(up, p + width);
        }
        return;
    }
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 row = i / width, at = row * 2 * width + i % width;
        float gate = widen(x[at]), up = widen(x[at + width]);
        silu_mul_slopes(gate, up, widen(d[i]));
        narrow(gate, x[at]);
        narrow(up, x[at + width]);
    }
}

// out = x + y. Whole arrays, so they are aligned.
extern "C" __global__ void add_act(float *out, const float *x, const act *y, i64 n) {
    EACH(i, n / 8) {
        float a[8], b[8];
        load8(x + 8 * i, a), load8(y + 8 * i, b);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] += b[j];
        store8(a, out + 8 * i);
    }
    i64 i = n / 8 * 8 + threadIdx.x;
    if (blockIdx.x == 0 && i < n) out[i] = x[i] + widen(y[i]);
}
// y [rows, ld] += bias [width].
extern "C" __global__ void add_bias(act *y, i64 ld, const float *bias, int rows, int width) {
    if (width % 8 == 0 && ld % 8 == 0 && aligned16(y) && aligned16(bias)) {
        unsigned pieces = width / 8;
        EACH(i, (i64)rows * pieces) {
            unsigned row = (unsigned)i / pieces, c = ((unsigned)i - row * pieces) * 8;
            float a[8], b[8];
            load8(y + row * ld + c, a), load8(bias + c, b);
#pragma unroll
            for (int j = 0; j < 8; j++) a[j] += b[j];
            store8(a, y + row * ld + c);
        }
        return;
    }
    i64 n = (i64)rows * width;
    EACH(i, n) {
        i64 at = i / width * ld + i % width;
        narrow(widen(y[at]) + bias[i % width], y[at]);
    }
}
// Whole arrays, so they are aligned.
extern "C" __global__ void to_act(act *y, const float *x, i64 n) {
    EACH(i, n / 8) {
        float a[8];
        load8(x + 8 * i, a);
        store8(a, y + 8 * i);
    }
    i64 i = n / 8 * 8 + threadIdx.x;
    if (blockIdx.x == 0 && i < n) narrow(x[i], y[i]);
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
