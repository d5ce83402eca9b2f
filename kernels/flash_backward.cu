// Gradients of packed causal attention on the matrix unit, for heads of 64 and 128 (attention_backward.cu serves the
// others). Scores are computed again from the forward pass's log-sum-exp, once for the queries' gradients and once for
// the keys' and values', so that nothing is added atomically and equal inputs give equal bits.
#include "flash.cuh"

// delta [tokens, heads] = sum over a head of d_out * out, both [tokens, heads * DIM]. A thread per eight columns.
template <int DIM> DEVICE void deltas(float *delta, const u16 *d_out, const u16 *out, i64 count) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.f;
    if (i < count * (DIM / 8)) {
        uint4 x = ((const uint4 *)d_out)[i], y = ((const uint4 *)out)[i];
        const u32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 4; j++) sum += bf16_low(a[j]) * bf16_low(b[j]) + bf16_high(a[j]) * bf16_high(b[j]);
    }
#pragma unroll
    for (int step = DIM / 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (i % (DIM / 8) == 0 && i < count * (DIM / 8)) delta[i / (DIM / 8)] = sum;
}

// dq [tokens, ldd]; d_out [tokens, ldo]; lse, delta [tokens, heads]. Grid (tokens / 64, heads), 4 warps of 16 queries.
// Dynamic shared memory: two stages of keys and values.
template <int DIM>
DEVICE void queries(u16 *dq, i64 ldd, const u16 *d_out, i64 ldo, const float *lse, const float *delta, const u16 *q,
                    const u16 *k, const u16 *v, i64 ld, const int4 *meta, int tokens, int heads, int group,
                    float scale) {
    using T = Tile<DIM>;
    extern __shared__ __align__(128) u8 memory[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * 64;
    Sight sight;
    sight.look(meta, first, tokens, lane);
    k += (i64)(head / group) * DIM, v += (i64)(head / group) * DIM;
    int row[2] = {first + warp * 16 + g, first + warp * 16 + g + 8};
    int4 span[2];
    const u16 *query[2], *slope[2];
    float total[2], mean[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool live = row[h] < tokens;
        span[h] = live ? meta[row[h]] : make_int4(0, 0, 1 << 30, 0);
        query[h] = live ? q + row[h] * ld + (i64)head * DIM : nullptr;
        slope[h] = live ? d_out + row[h] * ldo + (i64)head * DIM : nullptr;
        total[h] = live ? lse[(i64)row[h] * heads + head] * LOG2_E : 0.f;
        mean[h] = live ? delta[(i64)row[h] * heads + head] : 0.f;
    }
    u32 a[DIM / 16][4], d[DIM / 16][4];
    left_rows<DIM>(a, query[0], query[1], lane);
    left_rows<DIM>(d, slope[0], slope[1], lane);
    float sum[DIM / 8][4] = {};
    u32 tiles = smem_address(memory);
    float scale2 = scale * LOG2_E;
    auto fetch = [&](int key, int stage) {
        if (key < sight.last) {
            T::fetch(tiles + stage * 2 * T::BYTES, k, ld, key, tokens);
            T::fetch(tiles + (stage * 2 + 1) * T::BYTES, v, ld, key, tokens);
        }
        commit_copies();
    };
    int key = sight.next(0);
    fetch(key, 0);
    for (int stage = 0; key < sight.last; stage ^= 1) {
        int following = sight.next(key + 64);
        fetch(following, stage ^ 1);
        wait_copies_but_one();
        __syncthreads();
        u32 keys = tiles + stage * 2 * T::BYTES, values = keys + T::BYTES;
        bool whole = sight.whole(key);
#pragma unroll
        for (int from = 0; from < 64; from += 32) {
            float s[4][4] = {}, p[4][4] = {};
#pragma unroll
            for (int i = 0; i < DIM / 16; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    u32 b[4];
                    T::right(b, keys, from + 16 * j, i, lane);
                    mma(s[2 * j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
                    mma(s[2 * j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
                    T::right(b, values, from + 16 * j, i, lane);
                    mma(p[2 * j], d[i][0], d[i][1], d[i][2], d[i][3], b[0], b[1]);
                    mma(p[2 * j + 1], d[i][0], d[i][1], d[i][2], d[i][3], b[2], b[3]);
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int h = e >> 1;
                    bool seen = whole || sees(span[h], row[h], key + from + 8 * n + 2 * t + (e & 1));
                    float share = power2(s[n][e] * scale2 - total[h]);
                    s[n][e] = seen ? share * (p[n][e] - mean[h]) * scale : 0.f;
                }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 ds[4], b[4];
                sums_as_left(ds, s[2 * j], s[2 * j + 1]);
#pragma unroll
                for (int i = 0; i < DIM / 16; i++) {
                    T::right_rows(b, keys, from + 16 * j, i, lane);
                    mma(sum[2 * i], ds[0], ds[1], ds[2], ds[3], b[0], b[1]);
                    mma(sum[2 * i + 1], ds[0], ds[1], ds[2], ds[3], b[2], b[3]);
                }
            }
        }
        __syncthreads();
        key = following;
    }
    wait_copies();
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (row[h] < tokens) store_row<DIM>(dq + row[h] * ldd + (i64)head * DIM, sum, h, 1.f, lane);
}

// dk, dv [tokens, ldd]. Grid (tokens / 64, kv heads), 4 warps of 16 keys, which go over the queries that see them
// ([key, w) of meta), head after head of the group. Dynamic shared memory: keys, values, two stages of queries and
// slopes, and of their log-sum-exps and deltas.
template <int DIM>
DEVICE void keys(u16 *dk, u16 *dv, i64 ldd, const u16 *d_out, i64 ldo, const float *lse, const float *delta,
                 const u16 *q, const u16 *k, const u16 *v, i64 ld, const int4 *meta, int tokens, int heads, int group,
                 float scale) {
    using T = Tile<DIM>;
    extern __shared__ __align__(128) u8 memory[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int kv = blockIdx.y, first = blockIdx.x * 64;
    u32 key_tile = smem_address(memory), value_tile = key_tile + T::BYTES, tiles = value_tile + T::BYTES;
    float *numbers = (float *)(memory + 6 * T::BYTES);  // [stage][lse, delta][64]
    T::fetch(key_tile, k + (i64)kv * DIM, ld, first, tokens);
    T::fetch(value_tile, v + (i64)kv * DIM, ld, first, tokens);
    int last = 0;
    for (int i = first + lane; i < min(first + 64, tokens); i += 32) last = max(last, meta[i].w);
    last = __reduce_max_sync(~0u, last);
    int row[2] = {first + warp * 16 + g, first + warp * 16 + g + 8}, end[2];
#pragma unroll
    for (int h = 0; h < 2; h++) end[h] = row[h] < tokens ? meta[row[h]].w : 0;
    float sum_k[DIM / 8][4] = {}, sum_v[DIM / 8][4] = {};
    float scale2 = scale * LOG2_E;
    int per_head = (last - first + 63) / 64, steps = per_head * group;
    auto fetch = [&](int step, int stage) {
        if (step < steps) {
            int head = kv * group + step / per_head, query = first + step % per_head * 64;
            T::fetch(tiles + stage * 2 * T::BYTES, q + (i64)head * DIM, ld, query, tokens);
            T::fetch(tiles + (stage * 2 + 1) * T::BYTES, d_out + (i64)head * DIM, ldo, query, tokens);
            // What lies behind the last token is masked.
            int i = threadIdx.x & 63;
            if (query + i < tokens)
                copy_async_4(smem_address(numbers + stage * 128 + threadIdx.x),
                             (threadIdx.x < 64 ? lse : delta) + (i64)(query + i) * heads + head);
        }
        commit_copies();
    };
    fetch(0, 0);
    for (int step = 0; step < steps; step++) {
        int stage = step & 1, query = first + step % per_head * 64;
        fetch(step + 1, stage ^ 1);
        wait_copies_but_one();
        __syncthreads();
        u32 query_tile = tiles + stage * 2 * T::BYTES, slope_tile = query_tile + T::BYTES;
        const float *totals = numbers + stage * 128, *means = totals + 64;
#pragma unroll
        for (int from = 0; from < 64; from += 32) {
            float s[4][4] = {}, p[4][4] = {};
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                u32 a[4], d[4];
                T::left(a, key_tile, warp * 16, i, lane);
                T::left(d, value_tile, warp * 16, i, lane);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    u32 b[4];
                    T::right(b, query_tile, from + 16 * j, i, lane);
                    mma(s[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
                    mma(s[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                    T::right(b, slope_tile, from + 16 * j, i, lane);
                    mma(p[2 * j], d[0], d[1], d[2], d[3], b[0], b[1]);
                    mma(p[2 * j + 1], d[0], d[1], d[2], d[3], b[2], b[3]);
                }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int h = e >> 1, c = from + 8 * n + 2 * t + (e & 1);
                    bool seen = query + c >= row[h] && query + c < end[h];
                    float share = seen ? power2(s[n][e] * scale2 - totals[c] * LOG2_E) : 0.f;
                    s[n][e] = share;
                    p[n][e] = seen ? share * (p[n][e] - means[c]) * scale : 0.f;
                }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 shares[4], ds[4];
                sums_as_left(shares, s[2 * j], s[2 * j + 1]);
                sums_as_left(ds, p[2 * j], p[2 * j + 1]);
#pragma unroll
                for (int i = 0; i < DIM / 16; i++) {
                    u32 b[4];
                    T::right_rows(b, slope_tile, from + 16 * j, i, lane);
                    mma(sum_v[2 * i], shares[0], shares[1], shares[2], shares[3], b[0], b[1]);
                    mma(sum_v[2 * i + 1], shares[0], shares[1], shares[2], shares[3], b[2], b[3]);
                    T::right_rows(b, query_tile, from + 16 * j, i, lane);
                    mma(sum_k[2 * i], ds[0], ds[1], ds[2], ds[3], b[0], b[1]);
                    mma(sum_k[2 * i + 1], ds[0], ds[1], ds[2], ds[3], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
    wait_copies();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row[h] >= tokens) continue;
        store_row<DIM>(dk + row[h] * ldd + (i64)kv * DIM, sum_k, h, 1.f, lane);
        store_row<DIM>(dv + row[h] * ldd + (i64)kv * DIM, sum_v, h, 1.f, lane);
    }
}

#define BACKWARD(DIM)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        flash_delta_##DIM(float *delta, const u16 *d_out, const u16 *out, i64 count) {                                 \
        deltas<DIM>(delta, d_out, out, count);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        flash_backward_q_##DIM(u16 *dq, i64 ldd, const u16 *d_out, i64 ldo, const float *lse, const float *delta,      \
                               const u16 *q, const u16 *k, const u16 *v, i64 ld, const int4 *meta, int tokens,         \
                               int heads, int group, float scale) {                                                    \
        queries<DIM>(dq, ldd, d_out, ldo, lse, delta, q, k, v, ld, meta, tokens, heads, group, scale);                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        flash_backward_kv_##DIM(u16 *dk, u16 *dv, i64 ldd, const u16 *d_out, i64 ldo, const float *lse,                \
                                const float *delta, const u16 *q, const u16 *k, const u16 *v, i64 ld,                  \
                                const int4 *meta, int tokens, int heads, int group, float scale) {                     \
        keys<DIM>(dk, dv, ldd, d_out, ldo, lse, delta, q, k, v, ld, meta, tokens, heads, group, scale);                \
    }
BACKWARD(64)
BACKWARD(128)
