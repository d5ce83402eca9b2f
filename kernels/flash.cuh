// Tiles of 64 packed tokens in shared memory and the matrix unit's operands out of them, for training's attention.
// bf16; blocks of 128 threads.
#pragma once
#include "ptx.cuh"

typedef long long i64;

constexpr float NONE = -1e30f;  // the maximum of nothing: finite, so that differences stay numbers
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

template <int DIM> struct Tile {
    static constexpr int ROWS = 64, BYTES = ROWS * DIM * 2, PIECES = DIM / 8;

    // Where 16 bytes `c` of row `r` lie: pieces are swizzled, so that 8 rows of one piece meet all banks.
    static __device__ __forceinline__ u32 at(int r, int c) { return r * DIM * 2 + ((c ^ (r & 7)) << 4); }

    // The block copies rows first .. first + 64 of `from` [tokens, ld]; those behind the last token become zeros.
    static __device__ __forceinline__ void fetch(u32 tile, const u16 *from, i64 ld, int first, int tokens) {
#pragma unroll
        for (int i = threadIdx.x; i < ROWS * PIECES; i += 128) {
            int r = i / PIECES, c = i % PIECES;
            bool live = first + r < tokens;
            copy_async_16_or_zero(tile + at(r, c), from + (live ? (i64)(first + r) * ld : 0) + c * 8, live ? 16 : 0);
        }
    }

    // a [16, 16]: rows row .., columns 16 s .. .
    static __device__ __forceinline__ void left(u32 (&a)[4], u32 tile, int row, int s, int lane) {
        int r = lane & 7, quarter = lane >> 3;
        ldmatrix(a, tile + at(row + r + (quarter & 1) * 8, 2 * s + (quarter >> 1)));
    }
    // Two b [16, 8] whose reduced index is the column (16 s ..): rows row .. and row + 8 .. .
    static __device__ __forceinline__ void right(u32 (&b)[4], u32 tile, int row, int s, int lane) {
        int r = lane & 7, quarter = lane >> 3;
        ldmatrix(b, tile + at(row + r + (quarter >> 1) * 8, 2 * s + (quarter & 1)));
    }
    // Two b [16, 8] whose reduced index is the row (row ..): columns 16 s .. and 16 s + 8 .. .
    static __device__ __forceinline__ void right_rows(u32 (&b)[4], u32 tile, int row, int s, int lane) {
        int r = lane & 7, quarter = lane >> 3;
        ldmatrix_transposed(b, tile + at(row + r + (quarter & 1) * 8, 2 * s + (quarter >> 1)));
    }
};

// Rows row0 and row1 (null: zeros) as the left operand, for all of DIM.
template <int DIM>
DEVICE void left_rows(u32 (&a)[DIM / 16][4], const u16 *row0, const u16 *row1, int lane) {
    int t = lane & 3;
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
        a[s][0] = row0 ? *(const u32 *)(row0 + s * 16 + 2 * t) : 0;
        a[s][1] = row1 ? *(const u32 *)(row1 + s * 16 + 2 * t) : 0;
        a[s][2] = row0 ? *(const u32 *)(row0 + s * 16 + 2 * t + 8) : 0;
        a[s][3] = row1 ? *(const u32 *)(row1 + s * 16 + 2 * t + 8) : 0;
    }
}

// Sums [16, 16] (two fragments side by side) rounded to a left operand.
DEVICE void sums_as_left(u32 (&a)[4], const float (&low)[4], const float (&high)[4]) {
    a[0] = bf16_pair(low[0], low[1]), a[1] = bf16_pair(low[2], low[3]);
    a[2] = bf16_pair(high[0], high[1]), a[3] = bf16_pair(high[2], high[3]);
}

// Row `half` of the fragments (0: g, 1: g + 8), times `factor`, to memory.
template <int DIM> DEVICE void store_row(u16 *to, const float (&sum)[DIM / 8][4], int half, float factor, int lane) {
    int t = lane & 3;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        *(u32 *)(to + 8 * i + 2 * t) = bf16_pair(sum[i][2 * half] * factor, sum[i][2 * half + 1] * factor);
}

// What the 64 queries from `first` on see: query i sees keys [x, y) and [z, i] of meta[i]. Tiles of keys that none of
// them sees are passed over; where all see everything, nothing needs to be masked.
struct Sight {
    int prefix, prefix_end, own, last;             // any query's
    int prefix_all, prefix_all_end, own_all, own_end;  // every query's

    __device__ __forceinline__ void look(const int4 *meta, int first, int tokens, int lane) {
        const int far = 1 << 30;
        prefix = far, prefix_end = 0, own = far, prefix_all = 0, prefix_all_end = far, own_all = 0;
        last = min(first + 64, tokens), own_end = first + 1;
        for (int i = first + lane; i < last; i += 32) {
            int4 s = meta[i];
            bool some = s.x < s.y;
            if (some) prefix = min(prefix, s.x), prefix_end = max(prefix_end, s.y);
            prefix_all = max(prefix_all, s.x), prefix_all_end = min(prefix_all_end, some ? s.y : 0);
            own = min(own, s.z), own_all = max(own_all, s.z);
        }
        prefix = __reduce_min_sync(~0u, prefix), prefix_end = __reduce_max_sync(~0u, prefix_end);
        own = __reduce_min_sync(~0u, own), own_all = __reduce_max_sync(~0u, own_all);
        prefix_all = __reduce_max_sync(~0u, prefix_all), prefix_all_end = __reduce_min_sync(~0u, prefix_all_end);
    }
    // The first tile at or behind `key` (a multiple of 64) that any query sees; `last` or more: none.
    __device__ __forceinline__ int next(int key) const {
        bool seen = key + 64 > own || (key < prefix_end && key + 64 > prefix);
        return seen ? key : (key < prefix ? min(prefix, own) : own) & ~63;
    }
    __device__ __forceinline__ bool whole(int key) const {
        return (key >= own_all && key + 64 <= own_end) || (key >= prefix_all && key + 64 <= prefix_all_end);
    }
};

DEVICE bool sees(int4 span, int query, int key) {
    return (key >= span.x && key < span.y) || (key >= span.z && key <= query);
}
