//! AVX-512: 16 codes become weights by one shift, one permutation of the codebook and one multiplication.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::dense::transposed_16;
use super::super::line::Line;
use super::super::micro::{NR, Target};
use super::FourBit;

/// Rows that [`direct`] multiplies; the sums of more would leave too few registers for decoding.
pub(super) const DIRECT_ROWS: usize = 8;

/// Bytes ahead of the code that is read now; a strip follows the other, so this is never wasted but at the end.
const AHEAD: usize = 2048;

/// # Safety
/// The CPU must have AVX-512F.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load(line: &Line) -> __m512i {
    // SAFETY: a line is 64 bytes.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

/// The weights of code `at` (0 to 7) of each lane; a permutation reads the low 4 bits of its index only.
#[target_feature(enable = "avx512f")]
#[inline]
fn weight(words: __m512i, at: usize, codebook: __m512, scale: __m512) -> __m512 {
    let index = _mm512_srlv_epi32(words, _mm512_set1_epi32(4 * at as i32));
    _mm512_mul_ps(_mm512_permutexvar_ps(index, codebook), scale)
}

/// [`super::Source::fill`] of W^T.
///
/// # Safety
/// The CPU must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn fill(w: &FourBit, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
    let (blocks, groups) = (w.blocks(), w.groups());
    // SAFETY: 16 floats.
    let codebook = unsafe { _mm512_loadu_ps(w.codebook.as_ptr()) };
    let codes = &w.codes[strip * blocks * 2..][..blocks * 2];
    let out = &mut out.as_chunks_mut::<NR>().0[..kc];
    let mut scales = [_mm512_setzero_ps(); 2];
    for (i, out) in out.chunks_mut(8).enumerate() {
        let column = k0 + i * 8;
        if i == 0 || column.is_multiple_of(w.group) {
            // SAFETY: the features are there.
            scales = unsafe { w.scales.strip_avx512(FourBit::scale_index(groups, strip * NR, column / w.group)) };
        }
        // SAFETY: 32 floats in each row of `out`.
        unsafe {
            let words = [load(&codes[column / 8 * 2]), load(&codes[column / 8 * 2 + 1])];
            if let Ok(out) = <&mut [[f32; NR]; 8]>::try_from(&mut *out) {
                for (at, out) in out.iter_mut().enumerate() {
                    for half in 0..2 {
                        let weight = weight(words[half], at, codebook, scales[half]);
                        _mm512_storeu_ps(out.as_mut_ptr().add(half * 16), weight);
                    }
                }
            } else {
                for (at, out) in out.iter_mut().enumerate() {
                    for half in 0..2 {
                        let weight = weight(words[half], at, codebook, scales[half]);
                        _mm512_storeu_ps(out.as_mut_ptr().add(half * 16), weight);
                    }
                }
            }
        }
    }
}

/// [`super::Source::direct`] of W^T.
///
/// # Safety
/// The CPU must have the features; the strips of the target must be writable by this call alone.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn direct(w: &FourBit, strips: Range<usize>, a: &[f32], m: usize, target: Target) {
    let mut strip = strips.start;
    while strip < strips.end {
        let two = strips.end - strip >= 2;
        // SAFETY: the caller's promises.
        unsafe {
            strip += match (m, two) {
                (1, true) => strips_of::<1, 2>(w, strip, a, target),
                (1, false) => strips_of::<1, 1>(w, strip, a, target),
                (2, true) => strips_of::<2, 2>(w, strip, a, target),
                (2, false) => strips_of::<2, 1>(w, strip, a, target),
                (3, _) => strips_of::<3, 1>(w, strip, a, target),
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn strips_of<const M: usize, const S: usize>(w: &FourBit, first: usize, a: &[f32], target: Target) -> usize {
    let (blocks, groups) = (w.blocks(), w.groups());
    let a = &a.as_chunks::<M>().0[..w.k];
    // SAFETY: 16 floats.
    let codebook = unsafe { _mm512_loadu_ps(w.codebook.as_ptr()) };
    let codes: [&[Line]; S] = std::array::from_fn(|s| &w.codes[(first + s) * blocks * 2..][..blocks * 2]);
    let mut sums = [[[_mm512_setzero_ps(); 2]; S]; M];
    for (m, sums) in sums.iter_mut().enumerate() {
        for (s, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *sum = unsafe { target.begin(m, first + s) };
        }
    }
    let mut scales = [[_mm512_setzero_ps(); 2]; S];
    for (block, a) in a.chunks(8).enumerate() {
        if (block * 8).is_multiple_of(w.group) {
            for (s, scales) in scales.iter_mut().enumerate() {
                let index = FourBit::scale_index(groups, (first + s) * NR, block * 8 / w.group);
                // SAFETY: the features are there.
                *scales = unsafe { w.scales.strip_avx512(index) };
            }
        }
        let mut words = [[_mm512_setzero_si512(); 2]; S];
        for (words, codes) in words.iter_mut().zip(&codes) {
            for (half, words) in words.iter_mut().enumerate() {
                let line = &codes[block * 2 + half];
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast::<i8>().wrapping_add(AHEAD));
                // SAFETY: the features are there.
                *words = unsafe { load(line) };
            }
        }
        if let Ok(a) = <&[[f32; M]; 8]>::try_from(a) {
            for (at, a) in a.iter().enumerate() {
                add_products(&mut sums, a, at, &words, codebook, &scales);
            }
        } else {
            for (at, a) in a.iter().enumerate() {
                add_products(&mut sums, a, at, &words, codebook, &scales);
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

/// `sums += a * weights` for code `at` of each word.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_products<const M: usize, const S: usize>(
    sums: &mut [[[__m512; 2]; S]; M],
    a: &[f32; M],
    at: usize,
    words: &[[__m512i; 2]; S],
    codebook: __m512,
    scales: &[[__m512; 2]; S],
) {
    for s in 0..S {
        for half in 0..2 {
            let weight = weight(words[s][half], at, codebook, scales[s][half]);
            for m in 0..M {
                sums[m][s][half] = _mm512_fmadd_ps(_mm512_set1_ps(a[m]), weight, sums[m][s][half]);
            }
        }
    }
}

/// [`super::Source::fill`] of W: rows `k0..k0 + kc` of W, columns `32 * strip..`.
///
/// # Safety
/// The CPU must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn fill_transposed(w: &FourBit, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
    let (blocks, groups) = (w.blocks(), w.groups());
    // SAFETY: 16 floats.
    let codebook = unsafe { _mm512_loadu_ps(w.codebook.as_ptr()) };
    let zero = _mm512_setzero_ps();
    // 16 rows by 16 columns at a time: two lines of codes.
    for (i, out) in out.as_chunks_mut::<NR>().0[..kc].chunks_mut(16).enumerate() {
        let row = k0 + i * 16;
        let half = row % NR / 16;
        for side in 0..2 {
            let mut columns = [zero; 16];
            for part in 0..2 {
                let block = strip * 4 + side * 2 + part;
                if block >= blocks {
                    continue;
                }
                let index = FourBit::scale_index(groups, row / NR * NR, block * 8 / w.group);
                // SAFETY: the features are there.
                let (scale, words) = unsafe {
                    (w.scales.strip_avx512(index)[half], load(&w.codes[(row / NR * blocks + block) * 2 + half]))
                };
                for at in 0..8.min(w.k - block * 8) {
                    columns[part * 8 + at] = weight(words, at, codebook, scale);
                }
            }
            let rows = transposed_16(columns);
            for (out, row) in out.iter_mut().zip(rows) {
                // SAFETY: the second or first 16 floats of a line of 32.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(side * 16), row) };
            }
        }
    }
}
