//! Weights of 4-bit codes with a scale per group, in strips of 32 rows.
//!
//! `codes[strip][k / 8][half]` is a cache line: lane r holds the 8 codes `k..k + 8` of row `32 strip + 16 half + r`,
//! lowest nibble first. `scales[strip][k / group][32]`. A weight is `codebook[code] * scale`, rounded once; rows and
//! columns beyond the matrix have code 0 and are never part of a result.

#[cfg(target_arch = "x86_64")]
mod avx2;
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
use super::scale::Scales;

/// The values of e2m1 codes: sign in the highest bit.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values of NF4 codes (Dettmers et al. 2023, appendix E; bitsandbytes' f32 constants).
#[expect(clippy::excessive_precision, reason = "bitsandbytes' literals")]
pub(super) const NF4: [f32; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

#[derive(Clone, Debug)]
pub(super) struct FourBit {
    pub k: usize,
    pub codes: Vec<Line>,
    pub scales: Scales,
    pub codebook: [f32; 16],
    /// Columns that share a scale: 8, 16, 32 or 64.
    pub group: usize,
}

impl FourBit {
    /// Packs `code(row, column)`. `scales` is laid out as the header says.
    pub(super) fn new(
        [n, k]: [usize; 2],
        group: usize,
        codebook: [f32; 16],
        scales: Scales,
        code: impl Fn(usize, usize) -> u8,
    ) -> Self {
        assert!(matches!(group, 8 | 16 | 32 | 64));
        let blocks = k.div_ceil(8);
        let mut codes = vec![Line([0; 16]); n.div_ceil(NR) * blocks * 2];
        for row in 0..n {
            let (strip, lane) = (row / NR, row % NR);
            for block in 0..blocks {
                let columns = block * 8..(block * 8 + 8).min(k);
                let word = columns.rev().fold(0u32, |word, column| word << 4 | u32::from(code(row, column) & 15));
                codes[(strip * blocks + block) * 2 + lane / 16].0[lane % 16] = word;
            }
        }
        Self { k, codes, scales, codebook, group }
    }

    /// Where the scale of (`row`, `group`) lies among `groups` groups per row.
    pub(super) fn scale_index(groups: usize, row: usize, group: usize) -> usize {
        (row / NR * groups + group) * NR + row % NR
    }

    pub(super) fn blocks(&self) -> usize {
        self.k.div_ceil(8)
    }

    pub(super) fn groups(&self) -> usize {
        self.k.div_ceil(self.group)
    }

    fn code(&self, row: usize, column: usize) -> usize {
        let line = (row / NR * self.blocks() + column / 8) * 2 + row % NR / 16;
        (self.codes[line].0[row % 16] >> (column % 8 * 4) & 15) as usize
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        self.scales.get(Self::scale_index(self.groups(), row, column / self.group))
    }

    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        for (column, out) in out.iter_mut().enumerate() {
            *out = self.codebook[self.code(row, column)] * self.scale(row, column);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.codes.len() * size_of::<Line>() + self.scales.bytes()
    }
}

/// Reduces over k: B is W^T.
impl Source for FourBit {
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        match isa {
            // SAFETY: the CPU has `isa`, since `Isa::all` lists only such.
            Isa::Avx512 => return unsafe { avx512::fill(self, strip, k0, kc, out) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2::fill(self, strip, k0, kc, out) },
            Isa::Portable => {}
        }
        let _ = isa;
        let (blocks, groups) = (self.blocks(), self.groups());
        let mut scales = [0f32; NR];
        for block in k0 / 8..(k0 + kc).div_ceil(8) {
            if (block * 8).is_multiple_of(self.group) || block == k0 / 8 {
                let from = Self::scale_index(groups, strip * NR, block * 8 / self.group);
                for (i, scale) in scales.iter_mut().enumerate() {
                    *scale = self.scales.get(from + i);
                }
            }
            for half in 0..2 {
                let words = &self.codes[(strip * blocks + block) * 2 + half].0;
                for column in block * 8..(block * 8 + 8).min(k0 + kc) {
                    let out = &mut out[(column - k0) * NR + half * 16..][..16];
                    for ((out, word), scale) in out.iter_mut().zip(words).zip(&scales[half * 16..]) {
                        *out = self.codebook[(word >> (column % 8 * 4) & 15) as usize] * scale;
                    }
                }
            }
        }
    }

    fn address(&self, strip: usize, k0: usize) -> *const Line {
        self.codes.as_ptr().wrapping_add((strip * self.blocks() + k0 / 8) * 2)
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
pub(super) struct Transposed<'a>(pub &'a FourBit);

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
                *out = weights.codebook[weights.code(row, column)] * weights.scale(row, column);
            }
        }
    }
}
