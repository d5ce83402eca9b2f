// y [m, N] = x [m, K] W [N, K]^T for few tokens (m <= 8 MT), weights in the layout of weights.cuh.
//
// Floor: the bytes of W (0.5625 N K for 4-bit weights, 2 N K for bf16), read once.
//
// W is the matrix unit's 16-row operand, tokens are its 8 columns. A tile is 128 rows of W; 8 / S x WK consumer warps
// hold S strips of 16 rows each and share the k blocks of a stage WK ways; one more warp keeps NST stages of KS blocks
// coming, weights before the wait for the previous kernel (they depend on nothing). Tiles are cut by stream-K, sums of
// other blocks are added in order of k: the result depends on the grid but not on timing.
#pragma once
#include "gemm_args.cuh"

template <int FORMAT, int MT, int S, int WK, int KS, int NST> struct SmallGemm {
    static constexpr int ROWS = 128, STRIPS = 8, BLOCK = Block<FORMAT>::BYTES;
    static constexpr int WARPS = STRIPS / S * WK, THREADS = WARPS * 32 + 32;
    static constexpr int X_ROW = KS * 128 + 16;  // 16 bytes more: rows g begin in different banks
    static constexpr int W_BYTES = 2 * KS * BLOCK, STAGE = W_BYTES + MT * 8 * X_ROW;
    static constexpr int SUM_BYTES = WK > 1 ? ROWS * MT * 8 * 4 : 0;
    static constexpr int SMEM = 256 + NST * STAGE + SUM_BYTES;

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
        int k_blocks = args.k / 64, row_blocks = (args.n + 63) / 64;
        int blocks = min(2, row_blocks - tile * 2);
        const u8 *w = args.w + ((size_t)tile * 2 * k_blocks + from) * BLOCK;
#if QERL_SM90
        if (lane == 0) {
            barrier_expect(full, (blocks * BLOCK + args.m * 128) * count);
            for (int b = 0; b < blocks; b++)
                copy_bulk(stage + b * KS * BLOCK, w + (size_t)b * k_blocks * BLOCK, count * BLOCK, full);
        }
#else
        for (int b = 0; b < blocks; b++)
            for (int i = lane * 16; i < count * BLOCK; i += 512)
                copy_async_16(stage + b * KS * BLOCK + i, w + (size_t)b * k_blocks * BLOCK + i);
#endif
    }

    DEVICE void produce_x(const GemmArgs &args, u32 stage, u32 full, int from, int count, int lane) {
        u32 to = stage + W_BYTES;
        const u16 *x = args.x + from * 64;
#if QERL_SM90
        for (int row = lane; row < args.m; row += 32)
            copy_bulk(to + row * X_ROW, x + (size_t)row * args.ldx, count * 128, full);
#else
        for (int i = lane; i < args.m * count * 8; i += 32) {
            int row = i / (count * 8), c = i - row * count * 8;
            copy_async_16(to + row * X_ROW + c * 16, x + (size_t)row * args.ldx + c * 8);
        }
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
            // The expected bytes are armed by lane 0 before any lane's copy can count.
            __syncwarp();
            produce_x(args, stages + slot * STAGE, full + 8 * slot, from, count, lane);
        }
    }

    DEVICE void block_products(const GemmArgs &args, u32 w, u32 scales, u32 x, int lane, const Nf4Table &table, float (&c)[S][MT][4]) {
        int g = lane >> 2, t = lane & 3;
        u32 b[MT][8];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            // Columns beyond m repeat the last token; nobody reads them.
            int row = min(i * 8 + g, args.m - 1);
            u32 at = x + row * X_ROW + t * 32;
            uint4 low = load_shared_16(at), high = load_shared_16(at + 16);
            b[i][0] = low.x, b[i][1] = low.y, b[i][2] = low.z, b[i][3] = low.w;
            b[i][4] = high.x, b[i][5] = high.y, b[i][6] = high.z, b[i][7] = high.w;
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
            if (FORMAT == BF16) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint4 a = load_shared_16(w + s * 2048 + j * 512 + lane * 16);
#pragma unroll
                    for (int i = 0; i < MT; i++) mma(c[s][i], a.x, a.y, a.z, a.w, b[i][2 * j], b[i][2 * j + 1]);
                }
                continue;
            }
            uint4 codes = load_shared_16(w + s * 512 + lane * 16);
            u32 q[4] = {codes.x, codes.y, codes.z, codes.w}, a[4];
            if (FORMAT == E2M1) {
                u32 bytes = load_shared_2(scales + s * 64 + lane * 2);
                u32 s0 = e2m1_scale<0>(bytes), s1 = e2m1_scale<1>(bytes);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    e2m1_pairs(q[j], a);
                    a[0] = bf16_mul(a[0], s0), a[1] = bf16_mul(a[1], s1);
                    a[2] = bf16_mul(a[2], s0), a[3] = bf16_mul(a[3], s1);
#pragma unroll
                    for (int i = 0; i < MT; i++) mma(c[s][i], a[0], a[1], a[2], a[3], b[i][2 * j], b[i][2 * j + 1]);
                }
            } else {
                // One absmax a row for the whole block: it scales the sum, in f32.
                u32 at = scales + s * 64 + g * 4;
                float s0 = load_shared_f32(at), s1 = load_shared_f32(at + 32);
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
                    c[s][i][0] += sum[i][0] * s0, c[s][i][1] += sum[i][1] * s0;
                    c[s][i][2] += sum[i][2] * s1, c[s][i][3] += sum[i][3] * s1;
                }
            }
        }
    }

    DEVICE void run(const GemmArgs &args) {
        extern __shared__ __align__(128) u8 shared[];
        u32 base = smem_address(shared), full = base, empty = base + 8 * NST, stages = base + 256;
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        int tiles = (args.n + ROWS - 1) / ROWS;
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
        wait_for_previous_kernel();

        const Nf4Table table = nf4_table();
        int strip0 = warp % (STRIPS / S) * S, part = warp / (STRIPS / S);
        u32 w_offset = strip0 / 4 * KS * BLOCK + strip0 % 4 * (FORMAT == BF16 ? 2048 : 512);
        u32 scale_offset = strip0 / 4 * KS * BLOCK + 2048 + strip0 % 4 * 64;
        Cursor cursor;
        cursor.start(args, cut, blockIdx.x);
        int i = 0;
        while (cursor.piece()) {
            float c[S][MT][4];
#pragma unroll
            for (int s = 0; s < S; s++)
#pragma unroll
                for (int t = 0; t < MT; t++) c[s][t][0] = c[s][t][1] = c[s][t][2] = c[s][t][3] = 0.0f;
            bool first = cursor.block == 0, last = cursor.stop == cursor.k_blocks;
            bool mine = cursor.tile * STRIPS + strip0 < args.n / 16;
            while (cursor.block < cursor.stop) {
                int count = min(KS, cursor.stop - cursor.block), slot = i % NST;
                barrier_wait(full + 8 * slot, i / NST & 1);
                u32 stage = stages + slot * STAGE;
                if (mine) {
#pragma unroll
                    for (int step = 0; step < KS; step += WK) {
                        int k = step + part;
                        if (k < count)
                            block_products(args, stage + w_offset + k * BLOCK, stage + scale_offset + k * BLOCK,
                                           stage + W_BYTES + k * 128, lane, table, c);
                    }
                }
                __syncwarp();
                if (lane == 0) barrier_arrive(empty + 8 * slot);
                cursor.block += count;
                i++;
            }
            finish(args, cut, base + 256 + NST * STAGE, cursor.tile, first, last, strip0, part, lane, c);
        }
    }

    // Adds the sums of the WK parts (in order), then those of other blocks, and stores.
    DEVICE void finish(const GemmArgs &args, const Cut &cut, u32 sums, int tile, bool first, bool last, int strip0, int part,
                       int lane, float (&c)[S][MT][4]) {
        if (WK > 1) {
            u32 at = sums + (strip0 * MT * 32 + lane) * 16;
#pragma unroll
            for (int p = WK - 1; p > 0; p--) {
                if (part == p) {
#pragma unroll
                    for (int s = 0; s < S; s++)
#pragma unroll
                        for (int t = 0; t < MT; t++)
                            store_shared_f4(at + (s * MT + t) * 512, make_float4(c[s][t][0], c[s][t][1], c[s][t][2], c[s][t][3]));
                }
                meet(1, WARPS * 32);
                if (part == p - 1) {
#pragma unroll
                    for (int s = 0; s < S; s++)
#pragma unroll
                        for (int t = 0; t < MT; t++) {
                            float4 v = load_shared_f4(at + (s * MT + t) * 512);
                            c[s][t][0] += v.x, c[s][t][1] += v.y, c[s][t][2] += v.z, c[s][t][3] += v.w;
                        }
                }
                // The next part writes where this one has read only itself, so no second meeting is needed, except that
                // the last reader must be done before the next piece's first writer.
                if (p == 1) meet(1, WARPS * 32);
            }
            if (part != 0) return;
        }
        constexpr int OWNERS = STRIPS / S * 32;
        constexpr size_t SLOT = (size_t)STRIPS * MT * 128;
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
            int strip = tile * STRIPS + strip0 + s;
            if (strip * 16 >= args.n) break;
#pragma unroll
            for (int t = 0; t < MT; t++)
                if (t * 8 < args.m) finish_strip(args, strip, t * 8, lane, c[s][t]);
        }
    }
};

#define SMALL_GEMM(name, format, mt, s, wk, ks, nst)                                                                  \
    extern "C" __global__ void __launch_bounds__(SmallGemm<format, mt, s, wk, ks, nst>::THREADS, 1)                   \
        name(const __grid_constant__ GemmArgs args) {                                                                 \
        SmallGemm<format, mt, s, wk, ks, nst>::run(args);                                                             \
    }
