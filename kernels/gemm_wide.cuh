// y [m, N] = x [m, K] W [N, K]^T for many tokens on Hopper, weights in the layout of weights.cuh.
//
// Floor: the larger of the bytes of W and x over the bandwidth and 2 m N K operations over the matrix unit's rate.
//
// W goes from shared memory through registers (where it becomes bf16) into wgmma as its 64-row operand, so it never
// returns to shared memory; x is the other operand, put into the columns' order of weights.cuh on its way in by
// copies of 4 bytes. A tile is 256 rows of W by TN tokens: two warpgroups of 2 x 64 rows, and a warpgroup that keeps
// NST stages of 64 columns coming. While one 64-row half is multiplied, the other is unpacked. Tiles go through tokens
// first and are cut by stream-K as in gemm_small.cuh.
#pragma once
#include "gemm_args.cuh"
#include "wgmma.cuh"

#if QERL_WGMMA
template <int FORMAT, int TN, int NST> struct WideGemm {
    static constexpr int ROWS = 256, THREADS = 384, BLOCK = Block<FORMAT>::BYTES;
    static constexpr int W_BYTES = 16 * BLOCK, STAGE = W_BYTES + TN * 128;
    static constexpr int SMEM = 1024 + 1024 + NST * STAGE;  // barriers, alignment, stages
    static constexpr int LAG = 2;                            // stages whose copies are still on their way

    struct Piece {
        int row_tile, token0, block, stop;
        bool first, last;
        int tile;
    };
    struct Cursor {
        int at, end, per_tile;
        __device__ __forceinline__ bool next(const GemmArgs &args, Piece &p) {
            if (at >= end) return false;
            p.tile = at / per_tile;
            int first = at - p.tile * per_tile, last = min(per_tile, first + end - at);
            at += last - first;
            p.block = first * args.granule, p.stop = min(last * args.granule, args.k / 64);
            p.first = first == 0, p.last = last == per_tile;
            int token_tiles = (args.m + TN - 1) / TN;
            p.row_tile = p.tile / token_tiles, p.token0 = p.tile % token_tiles * TN;
            return true;
        }
    };

    // By the first warp: a strip a lane.
    DEVICE void weights(const GemmArgs &args, const Piece &p, int k, u32 stage, u32 full, int lane) {
        int k_blocks = args.k / 64, count = min(16, args.n / 16 - p.row_tile * 16);
        const u8 *w = args.w + ((size_t)p.row_tile * 16 * k_blocks + k) * BLOCK;
        if (lane == 0) barrier_expect(full, count * BLOCK);
        if (lane < count) copy_bulk(stage + lane * BLOCK, w + (size_t)lane * k_blocks * BLOCK, BLOCK, full);
    }

    DEVICE void produce(const GemmArgs &args, Cursor cursor, u32 full, u32 empty, u32 stages, int thread) {
        int warp = thread >> 5, lane = thread & 31;
        // Lane l writes word l of a row of 64 columns: step j = l / 8, pair h = l / 4 % 2, owner t = l % 4.
        int source = 8 * (lane & 3) + 2 * (lane >> 3) + (lane >> 2 & 1);
        u32 to0 = warp * 128 + (((lane >> 2) ^ warp) << 4) + (lane & 3) * 4;
        u32 to1 = (warp + 4) * 128 + (((lane >> 2) ^ (warp + 4)) << 4) + (lane & 3) * 4;
        Piece p;
        int n = 0;
        if (warp == 0) {
            Cursor ahead = cursor;
            while (n < NST && ahead.next(args, p))
                for (int k = p.block; k < p.stop && n < NST; k++, n++) weights(args, p, k, stages + n * STAGE, full + 8 * n, lane);
        }
        wait_for_previous_kernel();
        int i = 0;
        while (cursor.next(args, p))
            for (int k = p.block; k < p.stop; k++, i++) {
                int slot = i % NST;
                u32 stage = stages + slot * STAGE;
                barrier_wait(empty + 8 * slot, (i / NST & 1) ^ 1);
                if (warp == 0 && i >= n) weights(args, p, k, stage, full + 8 * slot, lane);
                // Rows 8 r + warp and 8 r + 4 + warp; those beyond m stay as they were and nobody reads their sums.
                const u16 *x = args.x + (size_t)(p.token0 + warp) * args.ldx + k * 64 + 2 * source;
                u32 to = stage + W_BYTES;
                int left = args.m - p.token0 - warp;
#pragma unroll 2
                for (int r = 0; r < TN / 8; r++) {
                    if (left > 0) copy_async_4(to + to0, x);
                    if (left > 4) copy_async_4(to + to1, x + 4 * (size_t)args.ldx);
                    x += 8 * (size_t)args.ldx, to += 1024, left -= 8;
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                // What wgmma reads must be fenced by the thread that wrote it, so stages are handed over LAG later.
                if (i >= LAG) {
                    asm volatile("cp.async.wait_group %0;" ::"n"(LAG) : "memory");
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    barrier_arrive(full + 8 * ((i - LAG) % NST));
                }
            }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int j = max(i - LAG, 0); j < i; j++) barrier_arrive(full + 8 * (j % NST));
    }

    // One strip's codes as four steps of A.
    DEVICE void unpack(const u8 *strip, int lane, const Nf4Table &table, u32 (&a)[4][4]) {
        if (FORMAT == BF16) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint4 v = *(const uint4 *)(strip + j * 512 + lane * 16);
                a[j][0] = v.x, a[j][1] = v.y, a[j][2] = v.z, a[j][3] = v.w;
            }
            return;
        }
        uint4 codes = *(const uint4 *)(strip + lane * 16);
        u32 q[4] = {codes.x, codes.y, codes.z, codes.w}, s0, s1;
        if (FORMAT == E2M1) {
            u32 bytes = *(const u16 *)(strip + 512 + lane * 2);
            s0 = e2m1_scale<0>(bytes), s1 = e2m1_scale<1>(bytes);
        } else {
            const float *absmax = (const float *)(strip + 512) + (lane >> 2);
            s0 = bf16_pair(absmax[0], absmax[0]), s1 = bf16_pair(absmax[8], absmax[8]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (FORMAT == E2M1)
                e2m1_pairs(q[j], a[j]);
            else
                nf4_pairs(q[j], table, a[j]);
            a[j][0] = bf16_mul(a[j][0], s0), a[j][1] = bf16_mul(a[j][1], s1);
            a[j][2] = bf16_mul(a[j][2], s0), a[j][3] = bf16_mul(a[j][3], s1);
        }
    }

    DEVICE void multiply(float (&c)[TN / 8][4], const u32 (&a)[4][4], u64 b) {
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) Wgmma<TN>::go(c, a[j], b + 2 * j);
        wgmma_commit();
    }

    DEVICE void zero(float (&c)[TN / 8][4]) {
#pragma unroll
        for (int i = 0; i < TN / 8; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
    }

    DEVICE void consume(const GemmArgs &args, const Cut &cut, Cursor cursor, u32 full, u32 empty, const u8 *shared,
                        u32 stages, int group, int warp, int lane) {
        const Nf4Table table = nf4_table();
        float c0[TN / 8][4], c1[TN / 8][4];
        u32 a0[4][4], a1[4][4];
        Piece p;
        int i = 0;
        while (cursor.next(args, p)) {
            zero(c0), zero(c1);
            for (int k = p.block; k < p.stop; k++, i++) {
                int slot = i % NST;
                const u8 *strip = shared + slot * STAGE + (group * 8 + warp) * BLOCK;
                u64 b = wgmma_descriptor(stages + slot * STAGE + W_BYTES);
                barrier_wait(full + 8 * slot, i / NST & 1);
                wgmma_wait<1>();
                unpack(strip, lane, table, a0);
                multiply(c0, a0, b);
                wgmma_wait<1>();
                // The stage before is through.
                if (k > p.block && lane == 0) barrier_arrive(empty + 8 * ((i - 1) % NST));
                unpack(strip + 4 * BLOCK, lane, table, a1);
                multiply(c1, a1, b);
            }
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(empty + 8 * ((i - 1) % NST));
            finish(args, cut, p, group, warp, lane, c0, c1);
        }
    }

    DEVICE void finish(const GemmArgs &args, const Cut &cut, const Piece &p, int group, int warp, int lane,
                       float (&c0)[TN / 8][4], float (&c1)[TN / 8][4]) {
        constexpr size_t SLOT = (size_t)ROWS * TN, HALF = (size_t)TN * 16;
        // Sums lie as [half][token / 8] of 16 bytes a lane, 16 rows by TN a warp and half.
        size_t mine = (size_t)(group * 4 + warp) * 2 * HALF + lane * 4;
        if (!p.first) {
            float *to = args.partial + blockIdx.x * SLOT + mine;
#pragma unroll
            for (int t = 0; t < TN / 8; t++) {
                store_l2_f4(to + t * 128, make_float4(c0[t][0], c0[t][1], c0[t][2], c0[t][3]));
                store_l2_f4(to + HALF + t * 128, make_float4(c1[t][0], c1[t][1], c1[t][2], c1[t][3]));
            }
            __threadfence();
            meet(1, 256);
            if (threadIdx.x == 0) store_release(args.flags + blockIdx.x, 1);
            return;
        }
        if (!p.last) {
            int tile_end = (p.tile + 1) * cut.per_tile;
            for (int other = blockIdx.x + 1; other < cut.grid && cut.begin(other) < tile_end; other++) {
                if (lane == 0)
                    while (load_acquire(args.flags + other) == 0) {
                    }
                __syncwarp();
                const float *from = args.partial + other * SLOT + mine;
#pragma unroll
                for (int t = 0; t < TN / 8; t++) {
                    float4 v = load_l2_f4(from + t * 128), u = load_l2_f4(from + HALF + t * 128);
                    c0[t][0] += v.x, c0[t][1] += v.y, c0[t][2] += v.z, c0[t][3] += v.w;
                    c1[t][0] += u.x, c1[t][1] += u.y, c1[t][2] += u.z, c1[t][3] += u.w;
                }
            }
            meet(1, 256);
            if (threadIdx.x == 0)
                for (int other = blockIdx.x + 1; other < cut.grid && cut.begin(other) < tile_end; other++)
                    args.flags[other] = 0;
        }
        int strip0 = p.row_tile * 16 + group * 8 + warp, strip1 = strip0 + 4;
        RowEnds ends0{}, ends1{};
        if (strip0 * 16 < args.n) ends0 = RowEnds::of(args, strip0, lane);
        if (strip1 * 16 < args.n) ends1 = RowEnds::of(args, strip1, lane);
#pragma unroll
        for (int t = 0; t < TN / 8; t++) {
            int token = p.token0 + t * 8;
            if (token < args.m && strip0 * 16 < args.n) finish_strip(args, ends0, strip0, token, lane, c0[t]);
            if (token < args.m && strip1 * 16 < args.n) finish_strip(args, ends1, strip1, token, lane, c1[t]);
        }
    }

    DEVICE void run(const GemmArgs &args) {
        extern __shared__ __align__(1024) u8 shared[];
        u32 base = (smem_address(shared) + 1023) & ~1023u, full = base, empty = base + 8 * NST, stages = base + 1024;
        int tiles = (args.n + ROWS - 1) / ROWS * ((args.m + TN - 1) / TN);
        Cut cut = Cut::of(args, tiles, gridDim.x);
        Cursor cursor{cut.begin(blockIdx.x), cut.begin(blockIdx.x + 1), cut.per_tile};
        if (threadIdx.x == 0) {
            for (int i = 0; i < NST; i++) {
                barrier_init(full + 8 * i, 129);  // the copying threads and the one that expects bytes
                barrier_init(empty + 8 * i, 8);
            }
            barrier_fence();
        }
        __syncthreads();
        let_next_kernel_start();
        if (threadIdx.x >= 256) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            produce(args, cursor, full, empty, stages, threadIdx.x - 256);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            wait_for_previous_kernel();
            consume(args, cut, cursor, full, empty, shared + (stages - smem_address(shared)), stages, threadIdx.x >> 7, threadIdx.x >> 5 & 3, threadIdx.x & 31);
        }
    }
};
#define WIDE_GEMM(name, format, tn, nst)                                                                              \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ GemmArgs args) {                \
        WideGemm<format, tn, nst>::run(args);                                                                         \
    }
#else
#define WIDE_GEMM(name, format, tn, nst)
#endif
