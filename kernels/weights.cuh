// The one layout of a weight W [N, K] that every product reads, and how it becomes bf16 in matrix-unit order.
//
// W is cut into strips of 16 rows (N a multiple of 16) and blocks of 64 columns (K a multiple of 64):
// [N / 16][K / 64] blocks, each contiguous. Lane (g, t) = (lane / 4, lane % 4) of a warp owns, in a block, rows g and
// g + 8 and the 16 consecutive columns 16 t .. 16 t + 15: one scale group a row, and 32 consecutive bytes of x.
// Step j (0..3) of the four m16n8k16 products of a block takes columns 16 t + 4 j + {0, 1 | 2, 3} as the fragment's
// column pairs (2t, 2t + 1 | 2t + 8, 2t + 9): any order will do as long as x is taken in the same one.
//
// Bytes of a block:
//   e2m1 (NVFP4, MXFP4): codes [lane][j] u32 (512 bytes), scales [lane] u8 x 2, rows g and g + 8 (64).
//   nf4:                 codes [lane][j] u32 (512 bytes), absmax [row] f32 (64).
//   bf16:                [j][lane] of four pairs a0..a3 (2048 bytes).
// So a 4-bit block has 576 bytes, 0.5625 a weight.
//
// Scales of e2m1 are unsigned with 5 bits of exponent E and 3 of mantissa: 2^(E - 22) (1 + m / 8), E = 0..30; a group
// of scale zero has zero codes. e4m3 and (relative to the tensor's largest) e8m0 scales fit; signs go into the codes.
// The products are scaled by row_scale [N / 8] in f32 (1 / global scale, times E2M1_FACTOR).
#pragma once
#include "ptx.cuh"

enum Format { BF16 = 0, E2M1 = 1, NF4 = 2 };

template <int FORMAT> struct Block {
    static constexpr int BYTES = FORMAT == BF16 ? 2048 : 576;
};

// e2m1 codes become bf16 pairs by masks alone, 2^-126 too small: sign to bit 15, magnitude to bits 8..6 (0.5 is a
// subnormal, which the arithmetic honours). Where a pair's bits lie in the word, per half of 16 bits:
//   pair 0: 15 8 7 6; pair 1: 11 4 3 2 (left by 4); pair 2: 5 14 13 12 (rotated by 10, halves swap for the last three);
//   pair 3: 9 10 1 0 (left by 6, but 10 right by 2).
DEVICE void e2m1_pairs(u32 q, u32 (&a)[4]) {
    const u32 mask = 0x81c081c0u;
    a[0] = q & mask;
    a[1] = (q << 4) & mask;
    a[2] = rotate_left(q, 10) & mask;
    a[3] = and_or(q >> 2, 0x01000100u, (q << 6) & 0x80c080c0u);
}

// Scale byte `which` of `bytes`, times 2^119, twice: with the codes' 2^-126, values are 2^-7 of theirs.
template <int WHICH> DEVICE u32 e2m1_scale(u32 bytes) {
    return permute(bytes, 0, 0x4040u + 0x0101u * WHICH) * 16u + 0x70007000u;
}
// What row_scale must hold besides the global scale.
constexpr float E2M1_FACTOR = 128.0f;

// Levels of NF4 in bf16, as bytes: low halves and high halves of codes 0..7 and 8..15. Codes 0..7 are below zero or
// zero. -1, -.6962, -.5251, -.3949, -.2844, -.1848, -.0910, 0, .0796, .1609, .2461, .3379, .4407, .5626, .7230, 1.
struct Nf4Table {
    u32 low[4], high[4];
};
DEVICE Nf4Table nf4_table() {
    // bf16: bf80 bf32 bf06 beca be92 be3d bdba 0000 | 3da3 3e25 3e7c 3ead 3ee2 3f10 3f39 3f80
    Nf4Table t;
    t.low[0] = 0xca063280u, t.low[1] = 0x00ba3d92u, t.low[2] = 0xad7c25a3u, t.low[3] = 0x803910e2u;
    t.high[0] = 0xbebfbfbfu, t.high[1] = 0x00bdbebeu, t.high[2] = 0x3e3e3e3du, t.high[3] = 0x3f3f3f3eu;
    return t;
}
// Nibble 2 p + e of the word is element e of pair p.
DEVICE void nf4_pairs(u32 q, const Nf4Table &t, u32 (&a)[4]) {
    u32 index = q & 0x77777777u, upper = (q >> 3) & 0x11111111u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 mask = permute(0x0000ff00u, 0, upper);
        u32 low = permute(t.low[0], t.low[1], index) & ~mask | permute(t.low[2], t.low[3], index) & mask;
        u32 high = permute(t.high[0], t.high[1], index) & ~mask | permute(t.high[2], t.high[3], index) & mask;
        a[2 * i] = permute(low, high, 0x5140u);
        a[2 * i + 1] = permute(low, high, 0x7362u);
        index >>= 16, upper >>= 16;
    }
}
