// y [m, N] = x [m, K] W [N, K]^T for few tokens (m <= 8 MT), weights in the layout of weights.cuh.
//
// Floor: the bytes of W (0.5625 N K for 4-bit weights, 2 N K for bf16), read once.
//
// W is the matrix unit's 16-row operand, tokens are its 8 columns. A tile is T strips of 16 rows of W; T / S x WK
// consumer warps hold S strips each and share the k blocks of a stage WK ways; one more warp keeps NST stages of KS
// blocks coming, weights before the wait for the previous kernel (they depend on nothing). The work is cut by Cut: with
// a grid and a granule that cut between tiles nobody waits for anybody; otherwise sums of other blocks are added in
// order of k, so the result depends on the grid but never on timing.
//
// A bulk copy costs the copy engine some 50 ns whatever its size (2026-12-01, H200: time went with their number), so x
// comes as the image [K / 64][m][144 bytes] of lora.cu, one copy a stage.
#pragma once
#include "gemm_args.cuh"

template <int FORMAT, int MT, int T, int S, int WK, int KS, int NST> struct SmallGemm {
    static constexpr int BLOCK = Block<FORMAT>::BYTES, GROUPS = T / S;
    static constexpr int WARPS = GROUPS * WK, THREADS = WARPS * 32 + 32;
    static constexpr int X_ROW = 144;  // bytes of a token's 64 columns in the image of x (lora.cu)
    static constexpr int W_BYTES = T * KS * BLOCK, STAGE = W_BYTES + KS * MT * 8 * X_ROW;
    static constexpr int SUMS = (WK - 1) * T * MT * 512;
    static constexpr int SMEM = 256 + NST * STAGE + 2 * SUMS;

    // The pieces of this block, stage by stage.
    struct Cursor {
        int at, end, per_tile, granule, k_blocks;
        int tile, block, stop;  // the current piece: blocks block..stop of tile
        __device__ __forceinline__ void start(const GemmArgs &args, const Cut &cut, int id) {
            at = cut.begin(id), end = cut.begin(id + 1), per_tile = cut.per_tile, granule = args.granule;
            k_blocks = args.k / 64;
            tile = 0, block = 0, stop = 0;
        }
        // Moves on to the next piece; false at the end.
        __device__ __forceinline__ bool piece() {
            if (at >= end) return false;
            tile = at / per_tile;
            int first = at - tile * per_tile;
            int last = min(per_tile, first + end - at);
            at += last - first;
            block = first * granule, stop = min(last * granule, k_blocks);
            return true;
        }
        // The next stage: KS blocks or what is left of the piece.
        __device__ __forceinline__ bool stage(int &from, int &count) {
            if (block >= stop && !piece()) return false;
            from = block, count = min(KS, stop - block);
            block += count;
            return true;
        }
    };

    DEVICE void produce_weights(const GemmArgs &args, u32 stage, u32 full, int tile, int from, int count, int lane) {
        int k_blocks = args.k / 64, strips = min(T, args.n / 16 - tile * T);
        const u8 *w = args.w + ((size_t)tile * T * k_blocks + from) * BLOCK;
#if QERL_SM90
        if (lane == 0) barrier_expect(full, (strips * BLOCK + args.m * X_ROW) * count);
        __syncwarp();
        if (lane < strips) copy_bulk(stage + lane * KS * BLOCK, w + (size_t)lane * k_blocks * BLOCK, count * BLOCK, full);
#else
        for (int s = 0; s < strips; s++)
            for (int i = lane * 16; i < count * BLOCK; i += 512)
                copy_async_16(stage + s * KS * BLOCK + i, w + (size_t)s * k_blocks * BLOCK + i);
#endif
    }

    DEVICE void produce_x(const GemmArgs &args, u32 stage, u32 full, int from, int count, int lane) {
        const u8 *x = (const u8 *)args.x + (size_t)from * args.m * X_ROW;
        int bytes = count * args.m * X_ROW;
#if QERL_SM90
        if (lane == 0) copy_bulk(stage + W_BYTES, x, bytes, full);
#else
        for (int i = lane * 16; i < bytes; i += 512) copy_async_16(stage + W_BYTES + i, x + i);
        barrier_arrive_copies(full);
#endif
    }

    DEVICE void produce(const GemmArgs &args, const Cut &cut, u32 stages, u32 full, u32 empty, int lane) {
        Cursor ahead, cursor;
        int from, count, n = 0;
        ahead.start(args, cut, blockIdx.x);
        cursor = ahead;
#if QERL_SM90
        while (n < NST && ahead.stage(from, count)) {
            produce_weights(args, stages + n * STAGE, full + 8 * n, ahead.tile, from, count, lane);
            n++;
        }
#endif
        wait_for_previous_kernel();
        for (int i = 0; cursor.stage(from, count); i++) {
            int slot = i % NST;
            if (i >= n) {
                barrier_wait(empty + 8 * slot, (i / NST & 1) ^ 1);
                produce_weights(args, stages + slot * STAGE, full + 8 * slot, cursor.tile, from, count, lane);
            }
            produce_x(args, stages + slot * STAGE, full + 8 * slot, from, count, lane);
        }
    }

    // One block of 64 columns: x for all tokens, then strip after strip. `c` has CHAINS sums a fragment, so that products
    // that follow each other need not wait for each other.
    static constexpr int CHAINS = S * MT == 1 && FORMAT != NF4 ? 4 : S * MT == 2 && FORMAT != NF4 ? 2 : 1;
    DEVICE void block_products(const GemmArgs &args, const u8 *w, const u8 *x, int lane, const Nf4Table &table,
                               float (&c)[CHAINS][S][MT][4]) {
        int g = lane >> 2, t = lane & 3;
        u32 b[MT][8];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            // Columns beyond m repeat the last token; nobody reads them.
            const u8 *at = x + min(i * 8 + g, args.m - 1) * X_ROW + t * 32;
            uint4 low = *(const uint4 *)at, high = *(const uint4 *)(at + 16);
            b[i][0] = low.x, b[i][1] = low.y, b[i][2] = low.z, b[i][3] = low.w;
            b[i][4] = high.x, b[i][5] = high.y, b[i][6] = high.z, b[i][7] = high.w;
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
            const u8 *strip = w + s * KS * BLOCK;
            if (FORMAT == BF16) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint4 a = *(const uint4 *)(strip + j * 512 + lane * 16);
#pragma unroll
                    for (int i = 0; i < MT; i++) mma(c[j % CHAINS][s][i], a.x, a.y, a.z, a.w, b[i][2 * j], b[i][2 * j + 1]);
                }
                continue;
            }
            uint4 codes = *(const uint4 *)(strip + lane * 16);
            u32 q[4] = {codes.x, codes.y, codes.z, codes.w}, a[4];
            if (FORMAT == E2M1) {
                u32 bytes = *(const u16 *)(strip + 512 + lane * 2);
                u32 s0 = e2m1_scale<0>(bytes), s1 = e2m1_scale<1>(bytes);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    e2m1_pairs(q[j], a);
                    a[0] = bf16_mul(a[0], s0), a[1] = bf16_mul(a[1], s1);
                    a[2] = bf16_mul(a[2], s0), a[3] = bf16_mul(a[3], s1);
#pragma unroll
                    for (int i = 0; i < MT; i++)
                        mma(c[j % CHAINS][s][i], a[0], a[1], a[2], a[3], b[i][2 * j], b[i][2 * j + 1]);
                }
            } else {
                // One absmax a row for the whole block: it scales the sum, in f32.
                float s0 = *(const float *)(strip + 512 + g * 4), s1 = *(const float *)(strip + 544 + g * 4);
                float sum[MT][4];
#pragma unroll
                for (int i = 0; i < MT; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    nf4_pairs(q[j], table, a);
#pragma unroll
                    for (int i = 0; i < MT; i++) mma(sum[i], a[0], a[1], a[2], a[3], b[i][2 * j], b[i][2 * j + 1]);
                }
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    c[0][s][i][0] += sum[i][0] * s0, c[0][s][i][1] += sum[i][1] * s0;
                    c[0][s][i][2] += sum[i][2] * s1, c[0][s][i][3] += sum[i][3] * s1;
                }
            }
        }
    }

    DEVICE void run(const GemmArgs &args) {
        extern __shared__ __align__(128) u8 shared[];
        u32 base = smem_address(shared), full = base, empty = base + 8 * NST, stages = base + 256;
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        int tiles = (args.n + T * 16 - 1) / (T * 16);
        Cut cut = Cut::of(args, tiles, gridDim.x);
        if (threadIdx.x == 0) {
            for (int i = 0; i < NST; i++) {
                barrier_init(full + 8 * i, QERL_SM90 ? 1 : 32);
                barrier_init(empty + 8 * i, WARPS);
            }
            barrier_fence();
        }
        __syncthreads();
        let_next_kernel_start();
        if (warp == WARPS) {
            produce(args, cut, stages, full, empty, lane);
            return;
        }

        const Nf4Table table = nf4_table();
        int strip0 = warp % GROUPS * S, part = warp / GROUPS;
        Cursor cursor;
        cursor.start(args, cut, blockIdx.x);
        int i = 0, pieces = 0;
        while (cursor.piece()) {
            float c[CHAINS][S][MT][4];
#pragma unroll
            for (int h = 0; h < CHAINS; h++)
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int t = 0; t < MT; t++) c[h][s][t][0] = c[h][s][t][1] = c[h][s][t][2] = c[h][s][t][3] = 0.0f;
            bool first = cursor.block == 0, last = cursor.stop == cursor.k_blocks;
            int strip = cursor.tile * T + strip0;
            RowEnds ends[S];
#pragma unroll
            for (int s = 0; s < S; s++) {
                ends[s] = RowEnds{0, 0, 0, 0};
                if (part == 0 && first && (strip + s) * 16 < args.n) ends[s] = RowEnds::of(args, strip + s, lane);
            }
            if (i == 0) wait_for_previous_kernel();
            while (cursor.block < cursor.stop) {
                int count = min(KS, cursor.stop - cursor.block), slot = i % NST;
                barrier_wait(full + 8 * slot, i / NST & 1);
                const u8 *stage = shared + 256 + slot * STAGE;
                const u8 *w = stage + (strip0 * KS + part) * BLOCK, *x = stage + W_BYTES + part * args.m * X_ROW;
                if (count == KS) {
#pragma unroll
                    for (int k = 0; k < KS / WK; k++)
                        block_products(args, w + k * WK * BLOCK, x + k * WK * args.m * X_ROW, lane, table, c);
                } else {
#pragma unroll 1
                    for (int k = 0; k * WK + part < count; k++)
                        block_products(args, w + k * WK * BLOCK, x + k * WK * args.m * X_ROW, lane, table, c);
                }
                __syncwarp();
                if (lane == 0) barrier_arrive(empty + 8 * slot);
                cursor.block += count;
                i++;
            }
#pragma unroll
            for (int h = 1; h < CHAINS; h++)
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int t = 0; t < MT; t++)
#pragma unroll
                        for (int e = 0; e < 4; e++) c[0][s][t][e] += c[h][s][t][e];
            u8 *sums = shared + 256 + NST * STAGE + (pieces++ & 1) * SUMS;
            finish(args, cut, sums, cursor.tile, first, last, strip0, part, lane, ends, c[0]);
        }
    }

    // Adds the sums of the WK parts (in order), then those of other blocks, and stores. Two buffers for the parts' sums
    // take turns, so one meeting a piece is enough.
    DEVICE void finish(const GemmArgs &args, const Cut &cut, u8 *sums, int tile, bool first, bool last, int strip0, int part,
                       int lane, const RowEnds (&ends)[S], float (&c)[S][MT][4]) {
        if (WK > 1) {
            float4 *at = (float4 *)(sums + strip0 * MT * 512) + lane;
            constexpr int PART = T * MT * 32;
            if (part > 0) {
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int t = 0; t < MT; t++)
                        at[(part - 1) * PART + (s * MT + t) * 32] = make_float4(c[s][t][0], c[s][t][1], c[s][t][2], c[s][t][3]);
            }
            meet(1, WARPS * 32);
            if (part != 0) return;
#pragma unroll
            for (int p = 0; p < WK - 1; p++)
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int t = 0; t < MT; t++) {
                        float4 v = at[p * PART + (s * MT + t) * 32];
                        c[s][t][0] += v.x, c[s][t][1] += v.y, c[s][t][2] += v.z, c[s][t][3] += v.w;
                    }
        }
        constexpr int OWNERS = GROUPS * 32;
        constexpr size_t SLOT = (size_t)T * MT * 128;
        size_t mine = (size_t)(strip0 * MT * 32 + lane) * 4;
        if (!first) {
            float *to = args.partial + blockIdx.x * SLOT + mine;
#pragma unroll
            for (int s = 0; s < S; s++)
#pragma unroll
                for (int t = 0; t < MT; t++)
                    store_l2_f4(to + (s * MT + t) * 128, make_float4(c[s][t][0], c[s][t][1], c[s][t][2], c[s][t][3]));
            __threadfence();
            meet(2, OWNERS);
            if (threadIdx.x == 0) store_release(args.flags + blockIdx.x, 1);
            return;
        }
        if (!last) {
            int tile_end = (tile + 1) * cut.per_tile;
            for (int other = blockIdx.x + 1; other < cut.grid && cut.begin(other) < tile_end; other++) {
                if (lane == 0)
                    while (load_acquire(args.flags + other) == 0) {
                    }
                __syncwarp();
                const float *from = args.partial + other * SLOT + mine;
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int t = 0; t < MT; t++) {
                        float4 v = load_l2_f4(from + (s * MT + t) * 128);
                        c[s][t][0] += v.x, c[s][t][1] += v.y, c[s][t][2] += v.z, c[s][t][3] += v.w;
                    }
            }
            meet(2, OWNERS);
            // Everyone has seen the flags: down again for the next launch.
            if (threadIdx.x == 0)
                for (int other = blockIdx.x + 1; other < cut.grid && cut.begin(other) < tile_end; other++)
                    args.flags[other] = 0;
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
            int strip = tile * T + strip0 + s;
            if (strip * 16 >= args.n) break;
            finish_strip<MT>(args, ends[s], strip, 0, lane, c[s]);
        }
    }
};

// name, format, tokens / 8, strips a tile, strips a warp, warps along k, k blocks a stage (a multiple of it), stages
#define SMALL_GEMM(name, format, mt, t, s, wk, ks, nst)                                                               \
    extern "C" __global__ void __launch_bounds__(SmallGemm<format, mt, t, s, wk, ks, nst>::THREADS, 1)                \
        name(const __grid_constant__ GemmArgs args) {                                                                 \
        SmallGemm<format, mt, t, s, wk, ks, nst>::run(args);                                                          \
    }
