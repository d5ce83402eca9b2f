//! The register-blocked microkernel: `C[mr, cols] (+)= A B` with A `[kc][a_step]` (rows beside each other) and B one
//! panel `[kc][32]`. All dense work ends here. Each output is one chain over k (see the chain rule in mod.rs).

use super::isa::{Isa, multiply_add};
use super::line::Line;

/// Columns of a panel of B.
pub(super) const NR: usize = 32;
/// The most rows of a tile: 12 rows of two AVX-512 registers leave 8 registers for B and the broadcast.
pub(super) const MR: usize = 12;

/// What a tile starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Zero,
    /// The values that C has.
    Old,
}

/// Where a product without panels goes: C `[m, n]` with row stride `ldc`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub c: *mut f32,
    pub ldc: usize,
    pub n: usize,
    pub start: Start,
}

#[cfg(target_arch = "x86_64")]
impl Target {
    /// The masks of the columns of a strip that exist, and the first of them in row `row`.
    fn strip(self, row: usize, strip: usize) -> ([u16; 2], *mut f32) {
        let cols = (self.n - strip * NR).min(NR);
        let mask = u32::MAX >> (NR - cols);
        ([mask as u16, (mask >> 16) as u16], self.c.wrapping_add(row * self.ldc + strip * NR))
    }

    /// What the chains of a strip's row start from.
    ///
    /// # Safety
    /// The strip's columns in that row must be readable; the CPU must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) unsafe fn begin(self, row: usize, strip: usize) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{_mm512_maskz_loadu_ps, _mm512_setzero_ps};
        if self.start == Start::Zero {
            return [_mm512_setzero_ps(); 2];
        }
        let (masks, c) = self.strip(row, strip);
        // SAFETY: masked lanes are not read; the others by the caller's promise.
        unsafe { [_mm512_maskz_loadu_ps(masks[0], c), _mm512_maskz_loadu_ps(masks[1], c.wrapping_add(16))] }
    }

    /// Stores the sums of a strip's row.
    ///
    /// # Safety
    /// The strip's columns in that row must be writable; the CPU must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) unsafe fn end(self, row: usize, strip: usize, sums: [std::arch::x86_64::__m512; 2]) {
        use std::arch::x86_64::_mm512_mask_storeu_ps;
        let (masks, c) = self.strip(row, strip);
        // SAFETY: masked lanes are not written; the others by the caller's promise.
        unsafe {
            _mm512_mask_storeu_ps(c, masks[0], sums[0]);
            _mm512_mask_storeu_ps(c.wrapping_add(16), masks[1], sums[1]);
        }
    }
}

/// `C (+)= A B`: C is `[mr, cols]` with row stride `ldc`; A's element (row r, index k) is `a[k * a_step + r]`;
/// B's element (index k, column j) is `b[k * 32 + j]`, and all 32 columns of it are readable. Unless `ahead` is null,
/// one line per k is fetched from there on for the work after this tile.
///
/// # Safety
/// `c` must point to a region of `(mr - 1) * ldc + cols` floats that this call may write exclusively.
///
/// # Panics
/// Where a length, `mr` (1 to 12) or `cols` (1 to 32) does not fit.
#[expect(clippy::too_many_arguments, reason = "a microkernel; its callers are in this module tree")]
pub(super) unsafe fn tile(
    isa: Isa,
    [mr, cols, kc]: [usize; 3],
    a: &[f32],
    a_step: usize,
    b: &[f32],
    c: *mut f32,
    ldc: usize,
    start: Start,
    ahead: *const Line,
) {
    assert!((1..=MR).contains(&mr) && (1..=NR).contains(&cols), "tile of {mr} x {cols}");
    assert!(kc == 0 || (a.len() >= (kc - 1) * a_step + mr && b.len() >= kc * NR), "operands of a tile too short");
    debug_assert!(mr == 1 || ldc >= cols);
    // Only AVX-512 code fetches ahead.
    let _ = ahead;
    // SAFETY: lengths by the assertions, C by the caller; the CPU has `isa`, since `Isa::all` lists only such.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::tile_avx512([mr, cols, kc], a.as_ptr(), a_step, b.as_ptr(), c, ldc, start, ahead),
            _ if cols < NR => {
                let mut full = [0f32; MR * NR];
                if start == Start::Old {
                    for r in 0..mr {
                        std::ptr::copy_nonoverlapping(c.add(r * ldc), full.as_mut_ptr().add(r * NR), cols);
                    }
                }
                full_tile(isa, [mr, kc], a, a_step, b, full.as_mut_ptr(), NR, start);
                for r in 0..mr {
                    std::ptr::copy_nonoverlapping(full.as_ptr().add(r * NR), c.add(r * ldc), cols);
                }
            }
            _ => full_tile(isa, [mr, kc], a, a_step, b, c, ldc, start),
        }
    }
}

/// # Safety
/// As [`tile`], with 32 columns and checked lengths.
#[expect(clippy::too_many_arguments, reason = "as `tile`")]
unsafe fn full_tile(
    isa: Isa,
    [mr, kc]: [usize; 2],
    a: &[f32],
    a_step: usize,
    b: &[f32],
    c: *mut f32,
    ldc: usize,
    start: Start,
) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 {
        // SAFETY: the caller's promises.
        unsafe { x86::tile_avx2([mr, kc], a.as_ptr(), a_step, b.as_ptr(), c, ldc, start) };
        return;
    }
    let _ = isa;
    for r in 0..mr {
        // SAFETY: row r of C is writable by the caller's promise.
        let row = unsafe { &mut *c.add(r * ldc).cast::<[f32; NR]>() };
        let mut sums = if start == Start::Old { *row } else { [0.0; NR] };
        for (k, panel) in b.as_chunks::<NR>().0.iter().take(kc).enumerate() {
            let value = a[k * a_step + r];
            for (sum, &weight) in sums.iter_mut().zip(panel) {
                *sum = multiply_add(value, weight, *sum);
            }
        }
        *row = sums;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Line, NR, Start};
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`super::tile`]; the CPU must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[expect(clippy::too_many_arguments, reason = "as `tile`")]
    pub(super) unsafe fn tile_avx512(
        [mr, cols, kc]: [usize; 3],
        a: *const f32,
        a_step: usize,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        start: Start,
        ahead: *const Line,
    ) {
        macro_rules! rows {
            ($($rows:literal)*) => {
                match mr {
                    // SAFETY: the caller's promises.
                    $($rows => unsafe { rows_avx512::<$rows>([cols, kc], a, a_step, b, c, ldc, start, ahead) },)*
                    _ => unreachable!("tiles have 1 to 12 rows"),
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11 12);
    }

    /// # Safety
    /// As [`super::tile`]; the CPU must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[expect(clippy::too_many_arguments, reason = "as `tile`")]
    unsafe fn rows_avx512<const ROWS: usize>(
        [cols, kc]: [usize; 2],
        a: *const f32,
        a_step: usize,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        start: Start,
        ahead: *const Line,
    ) {
        let mask = u32::MAX >> (32 - cols);
        let masks = [mask as u16, (mask >> 16) as u16];
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        // SAFETY: masked lanes are not touched; the others lie in C by the caller's promise, A and B likewise.
        unsafe {
            if start == Start::Old {
                for (r, sum) in sums.iter_mut().enumerate() {
                    for half in 0..2 {
                        sum[half] = _mm512_maskz_loadu_ps(masks[half], c.wrapping_add(r * ldc + half * 16));
                    }
                }
            }
            // The panel itself is in the cache: fetching it costs nothing.
            let (mut a, mut b, mut ahead) = (a, b, if ahead.is_null() { b.cast() } else { ahead });
            for _ in 0..kc {
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                ahead = ahead.wrapping_add(1);
                let low = _mm512_loadu_ps(b);
                let high = _mm512_loadu_ps(b.add(16));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let value = _mm512_set1_ps(*a.add(r));
                    sum[0] = _mm512_fmadd_ps(value, low, sum[0]);
                    sum[1] = _mm512_fmadd_ps(value, high, sum[1]);
                }
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(32 * a_step).cast());
                a = a.wrapping_add(a_step);
                b = b.add(NR);
            }
            for (r, sum) in sums.iter().enumerate() {
                for half in 0..2 {
                    _mm512_mask_storeu_ps(c.wrapping_add(r * ldc + half * 16), masks[half], sum[half]);
                }
            }
        }
    }

    /// All 32 columns.
    ///
    /// # Safety
    /// As [`super::tile`]; the CPU must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile_avx2(
        [mr, kc]: [usize; 2],
        a: *const f32,
        a_step: usize,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        start: Start,
    ) {
        let mut row = 0;
        while row < mr {
            let rows = (mr - row).min(6);
            for column in [0, 16] {
                // SAFETY: a part of the tile, the caller's promises.
                unsafe {
                    let (a, b, c) = (a.add(row), b.add(column), c.add(row * ldc + column));
                    match rows {
                        1 => rows_avx2::<1>(kc, a, a_step, b, c, ldc, start),
                        2 => rows_avx2::<2>(kc, a, a_step, b, c, ldc, start),
                        3 => rows_avx2::<3>(kc, a, a_step, b, c, ldc, start),
                        4 => rows_avx2::<4>(kc, a, a_step, b, c, ldc, start),
                        5 => rows_avx2::<5>(kc, a, a_step, b, c, ldc, start),
                        _ => rows_avx2::<6>(kc, a, a_step, b, c, ldc, start),
                    }
                }
            }
            row += rows;
        }
    }

    /// # Safety
    /// As [`super::tile`], 16 columns; the CPU must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows_avx2<const ROWS: usize>(
        kc: usize,
        a: *const f32,
        a_step: usize,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        start: Start,
    ) {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        // SAFETY: the caller's promises.
        unsafe {
            if start == Start::Old {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = [_mm256_loadu_ps(c.add(r * ldc)), _mm256_loadu_ps(c.add(r * ldc + 8))];
                }
            }
            for k in 0..kc {
                let low = _mm256_loadu_ps(b.add(k * NR));
                let high = _mm256_loadu_ps(b.add(k * NR + 8));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let value = _mm256_broadcast_ss(&*a.add(k * a_step + r));
                    sum[0] = _mm256_fmadd_ps(value, low, sum[0]);
                    sum[1] = _mm256_fmadd_ps(value, high, sum[1]);
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(c.add(r * ldc), sum[0]);
                _mm256_storeu_ps(c.add(r * ldc + 8), sum[1]);
            }
        }
    }
}
