// What every product y = x W^T takes, and how its result leaves: shared by gemm_small.cu and gemm_wide.cu.
#pragma once
#include "weights.cuh"

// Passed by value; the same fields in Rust (repr(C)).
struct GemmArgs {
    const u8 *w;             // blocks of weights.cuh
    const float *row_scale;  // [N / 8], in the order of the shuffled rows; null without weights (lora.cu)
    const u16 *x;            // bf16, 16-byte aligned: the image of lora.cu (few tokens), or [m, ldx] (many)
    void *y;                 // [m, ldy] bf16, or f32 with OUT_F32
    const u16 *residual;     // [m, ldy] bf16 or null: added before rounding; may be y itself
    // By segment of rows (projections whose weights lie under one another): bias [rows of it] f32 or null, and LoRA's B
    // [rows of it, rank] bf16 or null.
    const float *bias[3];
    const u16 *lora_b[3];
    const u16 *lora_t;       // [m, ldt] bf16: (alpha / rank) x A^T, `rank` columns a segment, side by side; or null
    float *partial;          // scratch: blocks of the grid x tile rows x tile columns
    u32 *flags;              // one a block of the grid, all zero before and after every launch
    int m, n, k;             // n: rows of W, a multiple of 16; k a multiple of 64
    int ldx, ldy, ldt;
    int rank;                // a multiple of 16
    int segment1, segment2;  // first row of the second and third segment (n where there is none)
    int mode;                // of OUT_F32, SILU
    int granule;             // k blocks of 64 that stay together when the work is cut
};

enum Mode {
    OUT_F32 = 1,
    // Rows of W come as strips of 8 gate rows and the same 8 up rows: y [m, n / 2] = silu(gate) * up.
    SILU = 2,
};

// The row of W (of bias, of lora_b) that half `half` (0, 1) of strip `strip` begins with.
DEVICE int first_row(const GemmArgs &args, int strip, int half) {
    if (args.mode & SILU) return half * (args.n / 2) + strip * 8;
    return strip * 16 + half * 8;
}

// The segment of a row, and the segment's first row.
struct Segment {
    int index, start;
    DEVICE Segment of(const GemmArgs &args, int row) {
        if (row >= args.segment2) return Segment{2, args.segment2};
        if (row >= args.segment1) return Segment{1, args.segment1};
        return Segment{0, 0};
    }
};

// Adds t B^T to c[8 tokens each][16 rows of W], of one strip and the tokens from `token0` on. B is read once, and what is
// read for the tokens does not depend on each other: all of it is on its way at a time.
template <int MT> DEVICE void add_lora(const GemmArgs &args, int strip, int token0, int lane, float (&c)[MT][4]) {
    int g = lane >> 2, t = lane & 3;
    int row0 = first_row(args, strip, 0), row1 = first_row(args, strip, 1);
    Segment s0 = Segment::of(args, row0), s1 = Segment::of(args, row1);
    const u16 *own0 = args.lora_b[s0.index], *own1 = args.lora_b[s1.index];
    const u32 *b0 = (const u32 *)(own0 + (size_t)(row0 - s0.start + g) * args.rank) + t;
    const u32 *b1 = (const u32 *)(own1 + (size_t)(row1 - s1.start + g) * args.rank) + t;
    const u32 *x = (const u32 *)args.lora_t + t;
    for (int k = 0; k < args.rank / 2; k += 8) {
        u32 w0 = own0 ? b0[k] : 0, w2 = own0 ? b0[k + 4] : 0, w1 = own1 ? b1[k] : 0, w3 = own1 ? b1[k + 4] : 0;
        u32 x0[MT][2], x1[MT][2];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            size_t at = (size_t)min(token0 + i * 8 + g, args.m - 1) * (args.ldt / 2) + k;
            const u32 *p = x + at + s0.index * (args.rank / 2), *q = x + at + s1.index * (args.rank / 2);
            x0[i][0] = p[0], x0[i][1] = p[4], x1[i][0] = q[0], x1[i][1] = q[4];
        }
#pragma unroll
        for (int i = 0; i < MT; i++) {
            if (s0.index == s1.index) {
                mma(c[i], w0, w1, w2, w3, x0[i][0], x0[i][1]);
            } else {
                mma(c[i], w0, 0, w2, 0, x0[i][0], x0[i][1]);
                mma(c[i], 0, w1, 0, w3, x1[i][0], x1[i][1]);
            }
        }
    }
}

DEVICE void store_value(const GemmArgs &args, int token, int row, float v) {
    size_t at = (size_t)token * args.ldy + row;
    if (args.residual) v += bf16_widen(args.residual[at]);
    if (args.mode & OUT_F32)
        ((float *)args.y)[at] = v;
    else
        ((u16 *)args.y)[at] = bf16_round(v);
}

// What a lane needs of its two rows at the end; asked for early, since it comes from far.
struct RowEnds {
    float scale0, scale1, bias0, bias1;
    DEVICE RowEnds of(const GemmArgs &args, int strip, int lane) {
        RowEnds e;
        e.scale0 = e.scale1 = 0.0f;
        if (args.row_scale) e.scale0 = args.row_scale[2 * strip], e.scale1 = args.row_scale[2 * strip + 1];
        int row0 = first_row(args, strip, 0) + (lane >> 2), row1 = first_row(args, strip, 1) + (lane >> 2);
        Segment s0 = Segment::of(args, row0), s1 = Segment::of(args, row1);
        row0 -= s0.start, row1 -= s1.start;
        const float *bias0 = args.bias[s0.index], *bias1 = args.bias[s1.index];
        e.bias0 = bias0 ? bias0[row0] : 0.0f, e.bias1 = bias1 ? bias1[row1] : 0.0f;
        if (args.lora_t && lane % 4 == 0) {
            const u16 *own0 = args.lora_b[s0.index], *own1 = args.lora_b[s1.index];
            if (own0) prefetch_l2(own0 + (size_t)row0 * args.rank);
            if (own1) prefetch_l2(own1 + (size_t)row1 * args.rank);
        }
        return e;
    }
};

// Scales, adds adapter, bias and residual, and stores c (fragments of m16n8k16: rows of W by 8 tokens each).
template <int MT>
DEVICE void finish_strip(const GemmArgs &args, const RowEnds &ends, int strip, int token0, int lane, const float (&c)[MT][4]) {
    int g = lane >> 2, t = lane & 3;
    float l[MT][4] = {};
    if (args.lora_t) add_lora<MT>(args, strip, token0, lane, l);
    int row0 = first_row(args, strip, 0) + g, row1 = first_row(args, strip, 1) + g;
#pragma unroll
    for (int i = 0; i < MT; i++) {
        float v[4];
        v[0] = c[i][0] * ends.scale0 + ends.bias0 + l[i][0], v[1] = c[i][1] * ends.scale0 + ends.bias0 + l[i][1];
        v[2] = c[i][2] * ends.scale1 + ends.bias1 + l[i][2], v[3] = c[i][3] * ends.scale1 + ends.bias1 + l[i][3];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int token = token0 + i * 8 + 2 * t + e;
            if (token >= args.m) continue;
            if (args.mode & SILU) {
                store_value(args, token, row0, v[e] / (1.0f + __expf(-v[e])) * v[2 + e]);
            } else {
                store_value(args, token, row0, v[e]);
                store_value(args, token, row1, v[2 + e]);
            }
        }
    }
}

// How the work is cut: all tiles' k blocks in one line, tile after tile, shared out evenly (stream-K, Osama et al.
// 2023). A block of the grid gets at most one piece that does not begin its tile (its first); it leaves that sum in
// `partial` for the owner, the block that has the tile's beginning.
struct Cut {
    int per_tile, grid, share, rest;
    DEVICE Cut of(const GemmArgs &args, int tiles, int grid) {
        Cut cut;
        cut.per_tile = (args.k / 64 + args.granule - 1) / args.granule;
        cut.grid = grid;
        cut.share = tiles * cut.per_tile / grid, cut.rest = tiles * cut.per_tile - cut.share * grid;
        return cut;
    }
    __device__ __forceinline__ int begin(int block) const { return block * share + min(block, rest); }
};
