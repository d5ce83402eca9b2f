// Types and PTX in inline functions: no header is needed, so NVRTC and nvcc compile the same text.
//
// sm_80 has neither bulk copies nor programmatic launches: there the same functions use cp.async or do nothing, and
// the mbarrier protocol above them stays as it is.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QERL_SM90 1
#else
#define QERL_SM90 0
#endif

// wgmma exists on sm_90a alone (not on sm_100 or sm_120).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QERL_WGMMA 1
#else
#define QERL_WGMMA 0
#endif

#define DEVICE static __device__ __forceinline__

DEVICE u32 smem_address(const void *p) {
    u32 a;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
    return a;
}

// ---- bfloat16 ----

DEVICE float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEVICE float bf16_widen(u16 x) { return __uint_as_float((u32)x << 16); }

// Both rounded to nearest even; `low` lands in the lower half.
DEVICE u32 bf16_pair(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

DEVICE u16 bf16_round(float x) { return (u16)bf16_pair(x, 0.0f); }

// Products of pairs. fma with -0 keeps the sign of zero and exists from sm_80 on.
DEVICE u32 bf16_mul(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

// ---- bits ----

DEVICE u32 permute(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

DEVICE u32 rotate_left(u32 x, u32 by) {
    u32 d;
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(d) : "r"(x), "r"(by));
    return d;
}

// (a & mask) | b in one operation.
DEVICE u32 and_or(u32 a, u32 mask, u32 b) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(b));
    return d;
}

// ---- memory ----

DEVICE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Read from the second-level cache, where other blocks of the same launch have written.
DEVICE float4 load_l2_f4(const float *p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

DEVICE void store_l2_f4(float *p, float4 v) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

DEVICE u32 load_acquire(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

DEVICE void store_release(u32 *p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

DEVICE void copy_async_16(u32 shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// `bytes` 16 or 0: zeros instead.
DEVICE void copy_async_16_or_zero(u32 shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

DEVICE void copy_async_4(u32 shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

// What was asked for since the last call is one group; waits are for all groups, or for all but the newest.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
DEVICE void wait_copies_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// ---- barriers in shared memory ----

DEVICE void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

DEVICE void barrier_fence() {
#if QERL_SM90
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    __threadfence_block();
#endif
}

DEVICE void barrier_arrive(u32 bar) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(bar) : "memory");
}

DEVICE void barrier_expect(u32 bar, u32 bytes) {
#if QERL_SM90
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(bar), "r"(bytes) : "memory");
#else
    (void)bar, (void)bytes;
#endif
}

// Arrives (counted in the barrier's own number) once this thread's copies so far have landed.
DEVICE void barrier_arrive_copies(u32 bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

DEVICE bool barrier_done(u32 bar, u32 parity) {
    u32 done;
#if QERL_SM90
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
#endif
    return done != 0;
}

DEVICE void barrier_wait(u32 bar, u32 parity) {
    while (!barrier_done(bar, parity)) {
    }
}

// `count` threads of the block meet at hardware barrier `id` (1 to 15; 0 is __syncthreads).
DEVICE void meet(int id, int count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }

// One thread copies `bytes` (a multiple of 16) and the barrier counts them. sm_90 and newer.
DEVICE void copy_bulk(u32 shared, const void *global, u32 bytes, u32 bar) {
#if QERL_SM90
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(bar)
                 : "memory");
#else
    (void)shared, (void)global, (void)bytes, (void)bar;
#endif
}

// ---- programmatic dependent launch (no effect unless the launch asks for it) ----

// Before it, only what no earlier kernel of the stream writes may be read; every kernel of a chain must call it.
DEVICE void wait_for_previous_kernel() {
#if QERL_SM90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void let_next_kernel_start() {
#if QERL_SM90
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- matrix unit ----

// c[16, 8] += a[16, 16] * b[16, 8], bf16 into f32. With g = lane / 4 and t = lane % 4:
// a0 (g, 2t) a1 (g + 8, 2t) a2 (g, 2t + 8) a3 (g + 8, 2t + 8), b0 (2t, g) b1 (2t + 8, g), pairs along the reduced
// index; c0, c1 (g, 2t and 2t + 1), c2, c3 (g + 8, same).
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 bf16: lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
DEVICE void ldmatrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
DEVICE float power2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
