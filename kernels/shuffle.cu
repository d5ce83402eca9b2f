// Weights from the order of files into the blocks of weights.cuh, and back to bf16 rows. Done once at load (and, for
// training, once a pass). Floor: the bytes read plus those written.
//
// A strip's first 8 rows come from `codes0`, its last 8 from `codes1`, `step` rows further from strip to strip: one
// matrix has codes1 = codes0 + 8 rows and step 16; gate and up, interleaved, have step 8 and a pointer each. A thread
// per (strip, block of 64 columns, lane); `strips` and `blocks` count them.
#include "weights.cuh"

typedef long long i64;

// The word that unpacks to codes c[half][16 columns], step j.
DEVICE u32 e2m1_word(const u8 (&c)[2][16], int j) {
    u32 q = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        u32 p0 = c[0][4 * j + e], p1 = c[1][4 * j + e], p2 = c[0][4 * j + 2 + e], p3 = c[1][4 * j + 2 + e];
        u32 own = 16 * e, other = 16 * (e ^ 1);
        q |= ((p0 >> 3) << 15 | (p0 & 7) << 6) << own;
        q |= ((p1 >> 3) << 11 | (p1 & 7) << 2) << own;
        q |= (p2 >> 3) << 5 << own | (p2 & 7) << 12 << other;
        q |= ((p3 >> 3) << 9 | (p3 >> 2 & 1) << 10 | (p3 & 3)) << own;
    }
    return q;
}

// e4m3 (sign dropped) as 5 bits of exponent and 3 of mantissa; not for zero.
DEVICE u32 scale_of_e4m3(u32 code) {
    u32 e = code >> 3 & 15, m = code & 7;
    if (e) return (e + 15) << 3 | m;
    // m 2^-9: the leading bit becomes the implicit one.
    int top = 31 - __clz(m);
    return (u32)(13 + top) << 3 | ((m << (3 - top)) & 7);
}

struct Place {
    i64 block, strip;
    int k, lane, g, t;
};
DEVICE bool place(Place &p, i64 strips, int blocks) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    p.lane = at & 31, p.block = at >> 5;
    p.strip = p.block / blocks, p.k = p.block % blocks;
    p.g = p.lane >> 2, p.t = p.lane & 3;
    return p.strip < strips;
}

// Codes [rows, 32 blocks] bytes (low nibble first), scales [rows, 4 blocks] e4m3 or [rows, 2 blocks] e8m0. `largest` is
// the largest e8m0 code of the tensor (or tensors), which stands for 2^8; ignored for e4m3.
DEVICE void shuffle_e2m1(u8 *out, const u8 *codes0, const u8 *codes1, const u8 *scales0, const u8 *scales1, int step,
                         i64 strips, int blocks, bool e8m0, int largest) {
    Place p;
    if (!place(p, strips, blocks)) return;
    u8 c[2][16];
    u32 bytes = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row = p.strip * step + p.g;
        const u8 *from = (h ? codes1 : codes0) + row * blocks * 32 + p.k * 32 + p.t * 8;
        const u8 *scale = h ? scales1 : scales0;
        u32 flip = 0, keep = 15, s;
        if (e8m0) {
            int below = largest - scale[row * blocks * 2 + p.k * 2 + (p.t >> 1)];
            if (below > 30) keep = 0, below = 30;
            s = (30 - below) << 3;
        } else {
            u32 code = scale[row * blocks * 4 + p.k * 4 + p.t];
            if (code & 128) flip = 8;
            if ((code & 127) == 0) keep = 0, code = 8;
            s = scale_of_e4m3(code & 127);
        }
        bytes |= s << (8 * h);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            c[h][2 * i] = (from[i] & 15 ^ flip) & keep;
            c[h][2 * i + 1] = (from[i] >> 4 ^ flip) & keep;
        }
    }
    u8 *to = out + p.block * 576;
    uint4 v = make_uint4(e2m1_word(c, 0), e2m1_word(c, 1), e2m1_word(c, 2), e2m1_word(c, 3));
    ((uint4 *)to)[p.lane] = v;
    ((u16 *)(to + 512))[p.lane] = (u16)bytes;
}

extern "C" __global__ void shuffle_nvfp4(u8 *out, const u8 *codes0, const u8 *codes1, const u8 *scales0,
                                         const u8 *scales1, int step, i64 strips, int blocks) {
    shuffle_e2m1(out, codes0, codes1, scales0, scales1, step, strips, blocks, false, 0);
}
extern "C" __global__ void shuffle_mxfp4(u8 *out, const u8 *codes0, const u8 *codes1, const u8 *scales0,
                                         const u8 *scales1, int step, i64 strips, int blocks, int largest) {
    shuffle_e2m1(out, codes0, codes1, scales0, scales1, step, strips, blocks, true, largest);
}

// Codes [rows, 32 blocks] bytes (HIGH nibble first), absmax [rows, blocks].
extern "C" __global__ void shuffle_nf4(u8 *out, const u8 *codes0, const u8 *codes1, const float *absmax0,
                                       const float *absmax1, int step, i64 strips, int blocks) {
    Place p;
    if (!place(p, strips, blocks)) return;
    i64 row = p.strip * step + p.g;
    u8 *to = out + p.block * 576;
    u32 q[4] = {0, 0, 0, 0};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u8 *from = (h ? codes1 : codes0) + row * blocks * 32 + p.k * 32 + p.t * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // Columns 2 i, 2 i + 1 are step i / 2, pair half + 2 (i % 2), elements 0 and 1: nibbles 2 pair + element.
            int pair = h + 2 * (i & 1);
            q[i >> 1] |= (u32)(from[i] >> 4) << (8 * pair) | (u32)(from[i] & 15) << (8 * pair + 4);
        }
        if (p.t == 0) ((float *)(to + 512))[8 * h + p.g] = (h ? absmax1 : absmax0)[row * blocks + p.k];
    }
    ((uint4 *)to)[p.lane] = make_uint4(q[0], q[1], q[2], q[3]);
}

// Rows of bf16 [rows, 64 blocks].
extern "C" __global__ void shuffle_bf16(u8 *out, const u16 *w0, const u16 *w1, int step, i64 strips, int blocks) {
    Place p;
    if (!place(p, strips, blocks)) return;
    i64 from = (p.strip * step + p.g) * blocks * 32 + p.k * 32 + p.t * 8;
    const u32 *a = (const u32 *)w0 + from, *b = (const u32 *)w1 + from;
    uint4 *to = (uint4 *)(out + p.block * 2048) + p.lane;
#pragma unroll
    for (int j = 0; j < 4; j++) to[32 * j] = make_uint4(a[2 * j], b[2 * j], a[2 * j + 1], b[2 * j + 1]);
}

// Back: bf16 rows, written like shuffle_bf16 reads them; values are those that products use, times row_scale.
template <int FORMAT>
DEVICE void unshuffle(u16 *w0, u16 *w1, const u8 *in, const float *row_scale, int step, i64 strips, int blocks) {
    Place p;
    if (!place(p, strips, blocks)) return;
    i64 to = (p.strip * step + p.g) * blocks * 32 + p.k * 32 + p.t * 8;
    // A lane's 16 columns of a row are 32 consecutive bytes: stored whole.
    u32 v[2][8];
    const u8 *block = in + p.block * Block<FORMAT>::BYTES;
    float scale[2] = {row_scale[2 * p.strip], row_scale[2 * p.strip + 1]};
    uint4 codes = make_uint4(0, 0, 0, 0);
    if (FORMAT != BF16) codes = ((const uint4 *)block)[p.lane];
    u32 q[4] = {codes.x, codes.y, codes.z, codes.w}, a[4], s[2] = {0, 0};
    if (FORMAT == E2M1) {
        u32 bytes = ((const u16 *)(block + 512))[p.lane];
        s[0] = e2m1_scale<0>(bytes), s[1] = e2m1_scale<1>(bytes);
    }
    if (FORMAT == NF4) {
        scale[0] *= ((const float *)(block + 512))[p.g], scale[1] *= ((const float *)(block + 512))[8 + p.g];
    }
    const Nf4Table table = nf4_table();
    const float levels[16] = {-1.0f,          -0.6961928f,  -0.52507305f, -0.3949175f,  -0.28444138f, -0.18477343f,
                              -0.091050036f,  0.0f,         0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
                              0.44070983f,    0.562617f,    0.72295684f,  1.0f};
    (void)table;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (FORMAT == BF16) {
            uint4 v = ((const uint4 *)block)[32 * j + p.lane];
            a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
        } else if (FORMAT == E2M1) {
            e2m1_pairs(q[j], a);
#pragma unroll
            for (int r = 0; r < 4; r++) a[r] = bf16_mul(a[r], s[r & 1]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float low, high;
            if (FORMAT == NF4)
                low = levels[q[j] >> (8 * r) & 15], high = levels[q[j] >> (8 * r + 4) & 15];
            else
                low = bf16_low(a[r]), high = bf16_high(a[r]);
            v[r & 1][2 * j + (r >> 1)] = bf16_pair(low * scale[r & 1], high * scale[r & 1]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 *out = (uint4 *)((u32 *)(h ? w1 : w0) + to);
        out[0] = make_uint4(v[h][0], v[h][1], v[h][2], v[h][3]), out[1] = make_uint4(v[h][4], v[h][5], v[h][6], v[h][7]);
    }
}

#define UNSHUFFLE(name, format)                                                                                       \
    extern "C" __global__ void name(u16 *w0, u16 *w1, const u8 *in, const float *row_scale, int step, i64 strips,      \
                                    int blocks) {                                                                     \
        unshuffle<format>(w0, w1, in, row_scale, step, strips, blocks);                                               \
    }
UNSHUFFLE(unshuffle_e2m1, E2M1)
UNSHUFFLE(unshuffle_nf4, NF4)
UNSHUFFLE(unshuffle_bf16, BF16)
