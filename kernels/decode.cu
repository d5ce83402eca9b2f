// The paged cache of keys and values, and attention of one token per sequence over it.
//
// One layer's cache: keys [pages][kv_heads][size][dim], then values in the same layout. A sequence's position t lies in
// page table[t / size], slot t % size.
#include "act.cuh"

typedef long long i64;

// Writes k, v [rows, ld] of packed tokens: row r to slot slots[r] = page * size + place (none where below zero).
// A block per row.
extern "C" __global__ void cache_write(act *keys, act *values, const act *k, const act *v, i64 ld, const int *slots,
                                       int kv_heads, int size, int dim) {
    int slot = slots[blockIdx.x];
    if (slot < 0) return;
    i64 from = (i64)blockIdx.x * ld, page = slot / size, place = slot % size;
    for (int i = threadIdx.x; i < kv_heads * dim; i += blockDim.x) {
        i64 to = ((page * kv_heads + i / dim) * size + place) * dim + i % dim;
        keys[to] = k[from + i];
        values[to] = v[from + i];
    }
}

// A decode step's queries and keys, turned in place, and its keys and values into the cache: qkv [rows, ld] has `heads`
// queries, kv_heads keys and as many values of `dim`; row r feeds position positions[r] (below zero: an idle row) of the
// sequence with the pages tables[r]. cos, sin [position, dim / 2]. A block per (head, row), queries first.
extern "C" __global__ void turn_and_cache(act *qkv, i64 ld, const float *cosines, const float *sines, act *keys,
                                          act *values, const int *positions, const int *tables, int width, int size,
                                          int heads, int kv_heads, int dim) {
    chained();
    int head = blockIdx.x, half = dim / 2;
    i64 row = blockIdx.y;
    int at = positions[row];
    if (at < 0) return;
    act *p = qkv + row * ld + (i64)head * dim;
    i64 slot = 0;
    if (head >= heads) {
        int own = (head - heads) % kv_heads;
        slot = (((i64)tables[row * width + at / size] * kv_heads + own) * size + at % size) * dim;
    }
    for (int c = threadIdx.x; c < half; c += blockDim.x) {
        act low = p[c], high = p[c + half];
        if (head < heads + kv_heads) {
            float x = widen(low), y = widen(high), cosine = cosines[(i64)at * half + c], sine = sines[(i64)at * half + c];
            narrow(x * cosine - y * sine, low);
            narrow(y * cosine + x * sine, high);
            p[c] = low, p[c + half] = high;
        }
        if (head >= heads) {
            act *to = (head < heads + kv_heads ? keys : values) + slot;
            to[c] = low, to[c + half] = high;
        }
    }
}

// As in sample.cu.
struct Ask {
    unsigned long long seed;
    float temperature, top_p, min_p;
    int top_k, position, pad;
};
// After a step: every running row is one token further.
extern "C" __global__ void decode_advance(int *positions, Ask *asks, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && positions[row] >= 0) positions[row]++, asks[row].position++;
}

// Copies page pairs[2 b] to pairs[2 b + 1] in every layer's keys and values: `parts` arrays of `stride` elements, a page
// is `page` elements. Grid: (pairs, parts).
extern "C" __global__ void copy_pages(act *cache, const int *pairs, i64 stride, int page) {
    act *base = cache + (i64)blockIdx.y * stride;
    const act *from = base + (i64)pairs[2 * blockIdx.x] * page;
    act *to = base + (i64)pairs[2 * blockIdx.x + 1] * page;
    for (int i = threadIdx.x; i < page; i += blockDim.x) to[i] = from[i];
}

// out [rows, heads * dim]; q [rows, ld]. Positions 0 .. positions[row] are seen. A block of 8 warps per (head, row):
// each takes pages in turn, their sums are joined at the end. Dynamic shared memory: (dim + 8 * (dim + 2)) floats.
extern "C" __global__ void __launch_bounds__(256)
    decode_attention(act *out, const act *q, i64 ld, const act *keys, const act *values, const int *positions,
                     const int *tables, int width, int kv_heads, int group, int size, int dim, float scale) {
    chained();
    extern __shared__ float shared[];
    int head = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    i64 row = blockIdx.y;
    int count = positions[row] + 1;
    float *query = shared, *joined = shared + dim;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) query[d] = widen(q[row * ld + (i64)head * dim + d]) * scale;
    __syncthreads();
    const float none = __int_as_float(0xff800000);
    float top = none, total = 0.f, sum[8] = {};
    const int *table = tables + row * width;
    // A warp's piece is 32 keys, so that every lane has one.
    for (int base = warp * 32; base < count; base += 256) {
        int at = base + lane;
        float score = none;
        if (at < count) {
            i64 page = table[at / size];
            score = dot(query, keys + ((page * kv_heads + head / group) * size + at % size) * dim, dim);
        }
        float next = fmaxf(top, warp_max(score));
        float p = at < count ? __expf(score - next) : 0.f, keep = __expf(top - next);
        total = total * keep + warp_sum(p);
        top = next;
#pragma unroll
        for (int t = 0; t < 8; t++) sum[t] *= keep;
        int live = min(32, count - base);
        for (int j = 0; j < live; j++) {
            float share = __shfl_sync(0xffffffffu, p, j);
            i64 page = table[(base + j) / size];
            const act *value = values + ((page * kv_heads + head / group) * size + (base + j) % size) * dim;
#pragma unroll
            for (int t = 0; t < 8; t++)
                if (lane + 32 * t < dim) sum[t] += share * widen(value[lane + 32 * t]);
        }
    }
    float *mine = joined + warp * (dim + 2);
#pragma unroll
    for (int t = 0; t < 8; t++)
        if (lane + 32 * t < dim) mine[lane + 32 * t] = sum[t];
    if (lane == 0) mine[dim] = top, mine[dim + 1] = total;
    __syncthreads();
    float best = none;
    for (int w = 0; w < 8; w++) best = fmaxf(best, joined[w * (dim + 2) + dim]);
    for (int d = threadIdx.x; d < dim; d += blockDim.x) {
        float value = 0.f, mass = 0.f;
        for (int w = 0; w < 8; w++) {
            float *part = joined + w * (dim + 2);
            float keep = part[dim] == none ? 0.f : __expf(part[dim] - best);
            value += part[d] * keep;
            mass += part[dim + 1] * keep;
        }
        narrow(count > 0 ? value / mass : 0.f, out[row * (i64)gridDim.x * dim + (i64)head * dim + d]);
    }
}
