// Attention of one new token a sequence over the paged cache of decode.cu, split over the sequence; bf16 only.
//
// One layer's cache: keys [pages][kv_heads][size][DIM], values alike; position p of a sequence lies in page
// table[p / size], slot p % size; size is a multiple of 16. A sequence sees positions 0 .. positions[row].
// Floor: the bytes of keys and values, each read once (those of a shared prompt once a group).
//
// Tokens below shared[row] (whole pages that several sequences have in common) are left to flash_decode_shared, which
// serves up to 64 / group sequences at once; the rest is cut into `splits` parts by flash_decode. Each part leaves its
// unscaled sum, its maximum and its mass in `partial` [row][head][slots][DIM + 2], and flash_decode_join adds them in
// order. Slots: `splits` own ones, then `shared_splits`.
#include "ptx.cuh"

typedef long long i64;

struct FlashArgs {
    u16 *out;           // [rows, heads * DIM]
    const u16 *q;       // [rows, ld]
    const u16 *keys, *values;
    const int *positions;   // [rows]; below zero: an idle row
    const int *tables;      // [rows, width]
    const int *shared;      // [rows] tokens left to the shared kernel, or null
    const int *members;     // [items][16] rows that share, -1 after the last; or null
    float *partial;
    i64 ld;
    int width, kv_heads, group, size, splits, shared_splits;
    float scale;            // of scores, times log2(e)
};

constexpr float NONE = -1e30f;  // the maximum of nothing: finite, so that differences stay numbers

// 16 rows of queries against 16 keys after 16 keys.
template <int DIM> struct Flash {
    static constexpr int STEPS = DIM / 16, TILE = 16 * DIM * 2;  // bytes of 16 keys or values
    u32 q[STEPS][4];
    float sum[DIM / 8][4], top[2], mass[2];

    __device__ __forceinline__ void start(const u16 *row0, const u16 *row1, int lane) {
        int t = lane & 3;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            q[s][0] = row0 ? *(const u32 *)(row0 + s * 16 + 2 * t) : 0;
            q[s][1] = row1 ? *(const u32 *)(row1 + s * 16 + 2 * t) : 0;
            q[s][2] = row0 ? *(const u32 *)(row0 + s * 16 + 2 * t + 8) : 0;
            q[s][3] = row1 ? *(const u32 *)(row1 + s * 16 + 2 * t + 8) : 0;
        }
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        top[0] = top[1] = NONE, mass[0] = mass[1] = 0.0f;
    }

    // Where 16 bytes `c` of row `r` of a tile lie: pieces are swizzled, so that 8 rows of one piece meet all banks.
    static __device__ __forceinline__ u32 at(int r, int c) { return r * DIM * 2 + ((c ^ (r & 7)) << 4); }

    // Copies pieces begin, begin + 32, ... of 16 rows of keys and of values; rows from `live` on become zeros, since what
    // lies there may be no number.
    static __device__ __forceinline__ void fetch(u32 tile, const u16 *k, const u16 *v, int begin, int end, int live) {
#pragma unroll
        for (int i = begin; i < end; i += 32) {
            int r = i / (DIM / 8), c = i % (DIM / 8), bytes = r < live ? 16 : 0;
            copy_async_16_or_zero(tile + at(r, c), k + r * DIM + c * 8, bytes);
            copy_async_16_or_zero(tile + TILE + at(r, c), v + r * DIM + c * 8, bytes);
        }
    }

    // Keys and values of `tile`, of which the first `live` count.
    __device__ __forceinline__ void step(u32 tile, int live, float scale, int lane) {
        float s[2][4] = {};
        int r = lane & 7, quarter = lane >> 3;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 b[4];  // keys 0-7: columns 0-7, 8-15; keys 8-15: the same
            ldmatrix(b, tile + at(r + (quarter >> 1) * 8, 2 * i + (quarter & 1)));
            mma(s[0], q[i][0], q[i][1], q[i][2], q[i][3], b[0], b[1]);
            mma(s[1], q[i][0], q[i][1], q[i][2], q[i][3], b[2], b[3]);
        }
        int t = lane & 3;
        float next[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = n * 8 + 2 * t + (e & 1) < live ? s[n][e] * scale : NONE;
                next[e >> 1] = fmaxf(next[e >> 1], s[n][e]);
            }
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], 1));
            next[h] = fmaxf(next[h], __shfl_xor_sync(~0u, next[h], 2));
            keep[h] = power2(top[h] - next[h]);
            top[h] = next[h];
            mass[h] *= keep[h];
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                // Against NONE itself the difference is zero: what does not count must not.
                s[n][e] = n * 8 + 2 * t + (e & 1) < live ? power2(s[n][e] - top[e >> 1]) : 0.0f;
                mass[e >> 1] += s[n][e];
            }
        u32 p[4] = {bf16_pair(s[0][0], s[0][1]), bf16_pair(s[0][2], s[0][3]), bf16_pair(s[1][0], s[1][1]),
                    bf16_pair(s[1][2], s[1][3])};
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            u32 b[4];  // columns 0-7: keys 0-7, 8-15; columns 8-15: the same
            ldmatrix_transposed(b, tile + TILE + at(r + (quarter & 1) * 8, 2 * i + (quarter >> 1)));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float(&c)[4] = sum[2 * i + h];
                c[0] *= keep[0], c[1] *= keep[0], c[2] *= keep[1], c[3] *= keep[1];
                mma(c, p[0], p[1], p[2], p[3], b[2 * h], b[2 * h + 1]);
            }
        }
    }

    __device__ __forceinline__ void end() {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mass[h] += __shfl_xor_sync(~0u, mass[h], 1);
            mass[h] += __shfl_xor_sync(~0u, mass[h], 2);
        }
    }
};

DEVICE void wait_copies_but_two() { asm volatile("cp.async.wait_group 2;" ::: "memory"); }

// Grid (splits, kv_heads, rows), 4 warps that take every fourth 16 tokens of the part. group <= 16.
// Dynamic shared memory: 4 warps x 4 stages x 2 tiles.
template <int DIM> DEVICE void own(const FlashArgs &a) {
    using F = Flash<DIM>;
    extern __shared__ __align__(128) u8 memory[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
    let_next_kernel_start();
    wait_for_previous_kernel();
    int end = a.positions[row] + 1, begin = a.shared ? a.shared[row] : 0;
    if (end <= 0) return;
    int share = ((max(end - begin, 0) + a.splits - 1) / a.splits + 15) / 16 * 16;
    begin += split * share, end = min(end, begin + share);
    const int *table = a.tables + (i64)row * a.width;
    const u16 *query = a.q + row * a.ld + (i64)head * a.group * DIM;
    F f;
    f.start(g < a.group ? query + g * DIM : nullptr, g + 8 < a.group ? query + (g + 8) * DIM : nullptr, lane);
    u32 tiles = smem_address(memory) + warp * 8 * F::TILE;
    auto fetch = [&](int token, int stage) {
        if (token < end) {
            i64 at = (((i64)table[token / a.size] * a.kv_heads + head) * a.size + token % a.size) * DIM;
            F::fetch(tiles + stage * 2 * F::TILE, a.keys + at, a.values + at, lane, 2 * DIM, end - token);
        }
        commit_copies();
    };
    int token = begin + warp * 16;
    for (int i = 0; i < 3; i++) fetch(token + 64 * i, i);
    for (int i = 0; token < end; i++, token += 64) {
        wait_copies_but_two();
        __syncwarp();
        f.step(tiles + (i & 3) * 2 * F::TILE, min(16, end - token), a.scale, lane);
        __syncwarp();
        fetch(token + 192, (i + 3) & 3);
    }
    f.end();
    wait_copies();
    __syncthreads();
    // Warps' sums meet in shared memory: [warp][16 rows][DIM + 2].
    constexpr int LINE = DIM + 2;
    float *sums = (float *)memory;
    float *mine = sums + warp * 16 * LINE;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        *(float2 *)(mine + g * LINE + 8 * i + 2 * t) = make_float2(f.sum[i][0], f.sum[i][1]);
        *(float2 *)(mine + (g + 8) * LINE + 8 * i + 2 * t) = make_float2(f.sum[i][2], f.sum[i][3]);
    }
    if (t == 0) {
        *(float2 *)(mine + g * LINE + DIM) = make_float2(f.top[0], f.mass[0]);
        *(float2 *)(mine + (g + 8) * LINE + DIM) = make_float2(f.top[1], f.mass[1]);
    }
    __syncthreads();
    int slots = a.splits + a.shared_splits;
    for (int r = warp; r < a.group; r += 4) {
        float top = NONE, mass = 0.0f, keep[4];
#pragma unroll
        for (int w = 0; w < 4; w++) top = fmaxf(top, sums[(w * 16 + r) * LINE + DIM]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            keep[w] = power2(sums[(w * 16 + r) * LINE + DIM] - top);
            mass += keep[w] * sums[(w * 16 + r) * LINE + DIM + 1];
        }
        float *to = a.partial + (((i64)row * a.kv_heads + head) * a.group + r) * slots * LINE + (i64)split * LINE;
        for (int d = lane; d < DIM; d += 32) {
            float v = 0.0f;
#pragma unroll
            for (int w = 0; w < 4; w++) v += keep[w] * sums[(w * 16 + r) * LINE + d];
            to[d] = v;
        }
        if (lane == 0) to[DIM] = top, to[DIM + 1] = mass;
    }
}

// Grid (shared_splits, kv_heads, items), 4 warps: 16 of the members' heads each, all tokens of the part.
// Dynamic shared memory: 4 stages x 2 tiles.
template <int DIM> DEVICE void shared_part(const FlashArgs &a) {
    using F = Flash<DIM>;
    extern __shared__ __align__(128) u8 memory[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int split = blockIdx.x, head = blockIdx.y;
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int *members = a.members + blockIdx.z * 16;
    int first = members[0];
    if (first < 0) return;
    int total = a.shared[first];
    int share = ((total + a.shared_splits - 1) / a.shared_splits + 15) / 16 * 16;
    int begin = split * share, end = min(total, begin + share);
    const int *table = a.tables + (i64)first * a.width;
    // Line i of the 64: member i / group, its head i % group.
    int line[2], row[2];
    const u16 *query[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        line[h] = warp * 16 + g + 8 * h;
        int m = line[h] / a.group;
        row[h] = m < 16 && m < 64 / a.group ? members[m] : -1;
        // A member after the last is -1, and so are all that follow.
        query[h] = row[h] < 0 ? nullptr : a.q + row[h] * a.ld + (i64)(head * a.group + line[h] % a.group) * DIM;
    }
    F f;
    f.start(query[0], query[1], lane);
    u32 tiles = smem_address(memory);
    auto fetch = [&](int token, int stage) {
        // A warp takes 4 of the 16 rows.
        if (token < end) {
            i64 at = (((i64)table[token / a.size] * a.kv_heads + head) * a.size + token % a.size) * DIM;
            F::fetch(tiles + stage * 2 * F::TILE, a.keys + at, a.values + at, lane + warp * (DIM / 2), (warp + 1) * (DIM / 2),
                     end - token);
        }
        commit_copies();
    };
    int token = begin;
    for (int i = 0; i < 3; i++) fetch(token + 16 * i, i);
    for (int i = 0; token < end; i++, token += 16) {
        wait_copies_but_two();
        __syncthreads();
        // Stage i + 3 is the one that everybody finished before this meeting.
        fetch(token + 48, (i + 3) & 3);
        f.step(tiles + (i & 3) * 2 * F::TILE, min(16, end - token), a.scale, lane);
    }
    f.end();
    constexpr int LINE = DIM + 2;
    int slots = a.splits + a.shared_splits;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row[h] < 0) continue;
        float *to = a.partial + (((i64)row[h] * a.kv_heads + head) * a.group + line[h] % a.group) * slots * LINE +
                    (i64)(a.splits + split) * LINE;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            *(float2 *)(to + 8 * i + 2 * t) = make_float2(f.sum[i][2 * h], f.sum[i][2 * h + 1]);
        if (t == 0) *(float2 *)(to + DIM) = make_float2(f.top[h], f.mass[h]);
    }
}

// Grid (heads, rows), DIM / 2 threads.
template <int DIM> DEVICE void join(const FlashArgs &a) {
    constexpr int LINE = DIM + 2;
    let_next_kernel_start();
    wait_for_previous_kernel();
    int head = blockIdx.x, row = blockIdx.y, d = threadIdx.x * 2;
    int slots = a.splits + a.shared_splits;
    u32 *out = (u32 *)(a.out + ((i64)row * gridDim.x + head) * DIM + d);
    if (a.positions[row] < 0) {
        *out = 0;
        return;
    }
    // A row that shares nothing has no shared parts: nobody wrote them.
    if (a.shared == nullptr || a.shared[row] <= 0) slots = a.splits;
    const float *from = a.partial + ((i64)row * gridDim.x + head) * (a.splits + a.shared_splits) * LINE;
    float top = NONE, mass = 0.0f, x = 0.0f, y = 0.0f;
    for (int s = 0; s < slots; s++) top = fmaxf(top, from[s * LINE + DIM]);
    for (int s = 0; s < slots; s++) {
        float keep = power2(from[s * LINE + DIM] - top);
        float2 v = *(const float2 *)(from + s * LINE + d);
        x += keep * v.x, y += keep * v.y, mass += keep * from[s * LINE + DIM + 1];
    }
    float scale = 1.0f / mass;
    *out = bf16_pair(x * scale, y * scale);
}

#define FLASH(dim)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) flash_decode_##dim(const __grid_constant__ FlashArgs a) {       \
        own<dim>(a);                                                                                                  \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128) flash_decode_shared_##dim(const __grid_constant__ FlashArgs a) { \
        shared_part<dim>(a);                                                                                          \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(dim / 2) flash_decode_join_##dim(const __grid_constant__ FlashArgs a) { \
        join<dim>(a);                                                                                                 \
    }
FLASH(64)
FLASH(128)
