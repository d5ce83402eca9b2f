//! AVX-512: a line of pairs becomes two columns by a shift and a mask.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::dense::transposed_16;
use super::super::line::Line;
use super::super::micro::{NR, Target};
use super::Bf16;

/// Rows that [`direct`] multiplies.
pub(super) const DIRECT_ROWS: usize = 8;

/// Bytes ahead of the pairs that are read now.
const AHEAD: usize = 2048;

/// The columns k and k + 1 of 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
fn columns(line: &Line) -> [__m512; 2] {
    // SAFETY: a line is 64 bytes, aligned.
    let words = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
    let high = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(high)]
}

/// [`super::Source::fill`] of W^T; `k0` is even.
///
/// # Safety
/// The CPU must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fill(w: &Bf16, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
    let lines = &w.pairs.as_chunks::<2>().0[strip * w.blocks() + k0 / 2..][..kc.div_ceil(2)];
    for (out, lines) in out.as_chunks_mut::<NR>().0[..kc].chunks_mut(2).zip(lines) {
        for (half, line) in lines.iter().enumerate() {
            for (out, column) in out.iter_mut().zip(columns(line)) {
                // SAFETY: a half of 32 floats.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(half * 16), column) };
            }
        }
    }
}

/// [`super::Source::direct`] of W^T.
///
/// # Safety
/// The CPU must have AVX-512F; the strips of the target must be writable by this call alone.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn direct(w: &Bf16, strips: Range<usize>, a: &[f32], m: usize, target: Target) {
    let mut strip = strips.start;
    while strip < strips.end {
        let left = strips.end - strip;
        // SAFETY: the caller's promises.
        unsafe {
            strip += match (m, left) {
                (1, 4..) => strips_of::<1, 4>(w, strip, a, target),
                (1, 2..) => strips_of::<1, 2>(w, strip, a, target),
                (1, _) => strips_of::<1, 1>(w, strip, a, target),
                (2, 2..) => strips_of::<2, 2>(w, strip, a, target),
                (2, _) => strips_of::<2, 1>(w, strip, a, target),
                (3, 2..) => strips_of::<3, 2>(w, strip, a, target),
                (3, _) => strips_of::<3, 1>(w, strip, a, target),
                (4, 2..) => strips_of::<4, 2>(w, strip, a, target),
                (4, _) => strips_of::<4, 1>(w, strip, a, target),
                (5, _) => strips_of::<5, 1>(w, strip, a, target),
                (6, _) => strips_of::<6, 1>(w, strip, a, target),
                (7, _) => strips_of::<7, 1>(w, strip, a, target),
                (8, _) => strips_of::<8, 1>(w, strip, a, target),
                _ => unreachable!("1 to {DIRECT_ROWS} rows"),
            };
        }
    }
}

/// `S` strips from `first` on, for `M` rows; gives `S`.
///
/// # Safety
/// As [`direct`].
#[target_feature(enable = "avx512f")]
unsafe fn strips_of<const M: usize, const S: usize>(w: &Bf16, first: usize, a: &[f32], target: Target) -> usize {
    let blocks = w.blocks();
    let a = &a.as_chunks::<M>().0[..w.k];
    let pairs: [&[[Line; 2]]; S] =
        std::array::from_fn(|s| &w.pairs.as_chunks::<2>().0[(first + s) * blocks..][..blocks]);
    let mut sums = [[[_mm512_setzero_ps(); 2]; S]; M];
    for (m, sums) in sums.iter_mut().enumerate() {
        for (s, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *sum = unsafe { target.begin(m, first + s) };
        }
    }
    let (even, last) = a.as_chunks::<2>();
    for (block, a) in even.iter().enumerate() {
        for s in 0..S {
            for half in 0..2 {
                let line = &pairs[s][block][half];
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast::<i8>().wrapping_add(AHEAD));
                let columns = columns(line);
                for m in 0..M {
                    sums[m][s][half] = _mm512_fmadd_ps(_mm512_set1_ps(a[0][m]), columns[0], sums[m][s][half]);
                    sums[m][s][half] = _mm512_fmadd_ps(_mm512_set1_ps(a[1][m]), columns[1], sums[m][s][half]);
                }
            }
        }
    }
    if let [a] = last {
        for s in 0..S {
            for half in 0..2 {
                let column = columns(&pairs[s][blocks - 1][half])[0];
                for m in 0..M {
                    sums[m][s][half] = _mm512_fmadd_ps(_mm512_set1_ps(a[m]), column, sums[m][s][half]);
                }
            }
        }
    }
    for (m, sums) in sums.iter().enumerate() {
        for (s, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { target.end(m, first + s, *sum) };
        }
    }
    S
}

/// [`super::Source::fill`] of W: rows `k0..k0 + kc` of W, columns `32 * strip..`; `k0` is a multiple of 16.
///
/// # Safety
/// The CPU must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fill_transposed(w: &Bf16, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
    let blocks = w.blocks();
    for (i, out) in out.as_chunks_mut::<NR>().0[..kc].chunks_mut(16).enumerate() {
        let row = k0 + i * 16;
        for side in 0..2 {
            let mut both = [_mm512_setzero_ps(); 16];
            let first = strip * 16 + side * 8;
            for (pair, both) in both.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                if first + pair < blocks {
                    *both = columns(&w.pairs[(row / NR * blocks + first + pair) * 2 + row % NR / 16]);
                }
            }
            for (out, row) in out.iter_mut().zip(transposed_16(both)) {
                // SAFETY: the first or second 16 floats of a line of 32.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(side * 16), row) };
            }
        }
    }
}
