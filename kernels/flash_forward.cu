// Causal attention of packed tokens on the matrix unit, for heads of 64 and 128 (attention.cu serves the others): the
// order of computation of FlashAttention-2 (Dao 2023). bf16, f32 sums.
#include "flash.cuh"

// out [tokens, heads * DIM] (ldo), lse [tokens, heads]; q, k, v [tokens, ld] start at their first head; meta as in
// attention.cu. Grid (tokens / 64, heads), 4 warps of 16 queries. Dynamic shared memory: two stages of keys and values.
template <int DIM>
DEVICE void attend(u16 *out, i64 ldo, float *lse, const u16 *q, const u16 *k, const u16 *v, i64 ld, const int4 *meta,
                   int tokens, int heads, int group, float scale) {
    using T = Tile<DIM>;
    extern __shared__ __align__(128) u8 memory[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    // The last queries see most keys: they start first.
    int head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * 64;
    Sight sight;
    sight.look(meta, first, tokens, lane);
    k += (i64)(head / group) * DIM, v += (i64)(head / group) * DIM;
    int row[2] = {first + warp * 16 + g, first + warp * 16 + g + 8};
    int4 span[2];
    const u16 *query[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool live = row[h] < tokens;
        span[h] = live ? meta[row[h]] : make_int4(0, 0, 1 << 30, 0);
        query[h] = live ? q + row[h] * ld + (i64)head * DIM : nullptr;
    }
    u32 a[DIM / 16][4];
    left_rows<DIM>(a, query[0], query[1], lane);
    float sum[DIM / 8][4] = {}, top[2] = {NONE, NONE}, mass[2] = {};
    u32 tiles = smem_address(memory);
    scale *= LOG2_E;
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
        float s[8][4] = {};
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 b[4];
                T::right(b, keys, 16 * j, i, lane);
                mma(s[2 * j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
                mma(s[2 * j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
            }
        bool whole = sight.whole(key);
        float next[2] = {top[0], top[1]}, keep[2];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int h = e >> 1;
                bool seen = whole || sees(span[h], row[h], key + 8 * n + 2 * t + (e & 1));
                s[n][e] = seen ? s[n][e] * scale : 2 * NONE;
                next[h] = fmaxf(next[h], s[n][e]);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], 1));
            next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], 2));
            keep[h] = power2(top[h] - next[h]);
            top[h] = next[h];
            mass[h] *= keep[h];
        }
        // What is not seen lies a whole NONE below any maximum, NONE itself included: its power is zero.
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = power2(s[n][e] - top[e >> 1]);
                mass[e >> 1] += s[n][e];
            }
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            sum[i][0] *= keep[0], sum[i][1] *= keep[0], sum[i][2] *= keep[1], sum[i][3] *= keep[1];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 p[4], b[4];
            sums_as_left(p, s[2 * j], s[2 * j + 1]);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                T::right_rows(b, values, 16 * j, i, lane);
                mma(sum[2 * i], p[0], p[1], p[2], p[3], b[0], b[1]);
                mma(sum[2 * i + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
            }
        }
        __syncthreads();
        key = following;
    }
    wait_copies();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mass[h] += __shfl_xor_sync(~0u, mass[h], 1);
        mass[h] += __shfl_xor_sync(~0u, mass[h], 2);
        if (row[h] >= tokens) continue;
        store_row<DIM>(out + row[h] * ldo + (i64)head * DIM, sum, h, 1.f / mass[h], lane);
        if (t == 0) lse[(i64)row[h] * heads + head] = top[h] * LN_2 + logf(mass[h]);
    }
}

#define ATTEND(name, DIM)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        name(u16 *out, i64 ldo, float *lse, const u16 *q, const u16 *k, const u16 *v, i64 ld, const int4 *meta,        \
             int tokens, int heads, int group, float scale) {                                                          \
        attend<DIM>(out, ldo, lse, q, k, v, ld, meta, tokens, heads, group, scale);                                    \
    }
ATTEND(flash_forward_64, 64)
ATTEND(flash_forward_128, 128)
