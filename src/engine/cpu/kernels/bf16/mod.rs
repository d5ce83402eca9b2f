//! Weights in bf16, in strips of 32 rows: `pairs[strip][k / 2][half]` is a cache line whose lane r holds columns
//! k (low 16 bits) and k + 1 (high) of row `32 strip + 16 half + r`.

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::isa::Isa;
use super::line::Line;
use super::micro::NR;
#[cfg(target_arch = "x86_64")]
use super::micro::Target;
use super::panel::Source;

#[derive(Clone, Debug)]
pub(super) struct Bf16 {
    pub k: usize,
    pub pairs: Vec<Line>,
}

impl Bf16 {
    /// From row-major bits `[n, k]`.
    pub(super) fn new(bits: &[u16], n: usize, k: usize) -> Self {
        let blocks = k.div_ceil(2);
        let mut pairs = vec![Line([0; 16]); n.div_ceil(NR) * blocks * 2];
        for (row, bits) in bits.chunks_exact(k.max(1)).enumerate().take(n) {
            for (block, pair) in bits.chunks(2).enumerate() {
                let word = u32::from(pair[0]) | pair.get(1).map_or(0, |&high| u32::from(high) << 16);
                pairs[(row / NR * blocks + block) * 2 + row % NR / 16].0[row % 16] = word;
            }
        }
        Self { k, pairs }
    }

    pub(super) fn blocks(&self) -> usize {
        self.k.div_ceil(2)
    }

    #[inline]
    fn get(&self, row: usize, column: usize) -> f32 {
        let word = self.pairs[(row / NR * self.blocks() + column / 2) * 2 + row % NR / 16].0[row % 16];
        f32::from_bits(if column.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 })
    }

    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        for (column, out) in out.iter_mut().enumerate() {
            *out = self.get(row, column);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.pairs.len() * size_of::<Line>()
    }
}

/// Reduces over k: B is W^T.
impl Source for Bf16 {
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            // SAFETY: the CPU has `isa`, since `Isa::all` lists only such.
            return unsafe { avx512::fill(self, strip, k0, kc, out) };
        }
        let _ = isa;
        let blocks = self.blocks();
        for (k, out) in out.as_chunks_mut::<NR>().0.iter_mut().enumerate().take(kc) {
            let column = k0 + k;
            let lines = &self.pairs[(strip * blocks + column / 2) * 2..][..2];
            for (out, line) in out.chunks_exact_mut(16).zip(lines) {
                for (out, &word) in out.iter_mut().zip(&line.0) {
                    *out = f32::from_bits(if column.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 });
                }
            }
        }
    }

    fn address(&self, strip: usize, k0: usize) -> *const Line {
        self.pairs.as_ptr().wrapping_add((strip * self.blocks() + k0 / 2) * 2)
    }

    #[cfg(target_arch = "x86_64")]
    fn direct_rows(&self, isa: Isa) -> usize {
        if isa == Isa::Avx512 { avx512::DIRECT_ROWS } else { 0 }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn direct(&self, _: Isa, strips: Range<usize>, a: &[f32], m: usize, target: Target) {
        // SAFETY: `direct_rows` is above 0 with AVX-512 only; the target by the caller.
        unsafe { avx512::direct(self, strips, a, m, target) }
    }
}

/// Reduces over n: B is W, strips run along k.
pub(super) struct Transposed<'a>(pub &'a Bf16);

impl Source for Transposed<'_> {
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        let weights = self.0;
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            // SAFETY: the CPU has `isa`, since `Isa::all` lists only such.
            return unsafe { avx512::fill_transposed(weights, strip, k0, kc, out) };
        }
        let _ = isa;
        let columns = strip * NR..(strip * NR + NR).min(weights.k);
        for (row, out) in (k0..k0 + kc).zip(out.as_chunks_mut::<NR>().0) {
            out[columns.len()..].fill(0.0);
            for (out, column) in out.iter_mut().zip(columns.clone()) {
                *out = weights.get(row, column);
            }
        }
    }
}
