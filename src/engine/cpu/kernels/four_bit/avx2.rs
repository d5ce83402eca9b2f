//! AVX2: the codebook is two registers of 8, the highest bit of a code chooses between them.

use std::arch::x86_64::*;

use super::super::micro::NR;
use super::FourBit;

/// [`super::Source::fill`] of W^T.
///
/// # Safety
/// The CPU must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn fill(w: &FourBit, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
    let (blocks, groups) = (w.blocks(), w.groups());
    // SAFETY: 16 floats.
    let codebook = unsafe { [_mm256_loadu_ps(w.codebook.as_ptr()), _mm256_loadu_ps(w.codebook.as_ptr().add(8))] };
    let mut scales = [0f32; NR];
    for (i, out) in out.as_chunks_mut::<NR>().0[..kc].chunks_mut(8).enumerate() {
        let column = k0 + i * 8;
        if i == 0 || column.is_multiple_of(w.group) {
            let from = FourBit::scale_index(groups, strip * NR, column / w.group);
            for (i, scale) in scales.iter_mut().enumerate() {
                *scale = w.scales.get(from + i);
            }
        }
        let lines = &w.codes[(strip * blocks + column / 8) * 2..][..2];
        for quarter in 0..4 {
            let lanes = &lines[quarter / 2].0[quarter % 2 * 8..][..8];
            let scale = &scales[quarter * 8..][..8];
            // SAFETY: 8 words, 8 floats.
            let (mut words, scale) =
                unsafe { (_mm256_loadu_si256(lanes.as_ptr().cast()), _mm256_loadu_ps(scale.as_ptr())) };
            for out in &mut *out {
                // A permutation reads the low 3 bits of its index, a blend the sign bit.
                let low = _mm256_permutevar8x32_ps(codebook[0], words);
                let high = _mm256_permutevar8x32_ps(codebook[1], words);
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words));
                let weight = _mm256_mul_ps(_mm256_blendv_ps(low, high, upper), scale);
                // SAFETY: a quarter of a line of 32 floats.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(quarter * 8), weight) };
                words = _mm256_srli_epi32::<4>(words);
            }
        }
    }
}
