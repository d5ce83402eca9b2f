//! Scales of 4-bit groups, in the bytes of the file.

/// One scale per (row, group), 32 rows of a strip beside each other: `[n/32][groups][32]`.
#[derive(Clone, Debug)]
pub(super) enum Scales {
    /// NVFP4: f32(e4m3) divided by, or multiplied with, a global scale.
    E4m3 { bytes: Vec<u8>, global: Global },
    /// MXFP4: 2^(byte - 127).
    E8m0 { bytes: Vec<u8> },
    /// NF4: absmax.
    F32 { values: Vec<f32> },
}

/// `q = s * multiplier; q + (s - q * divisor) * correction`: with `correction` 0 a product, else the correctly
/// rounded quotient `s / divisor` (Markstein 1990: `multiplier` is the rounded reciprocal).
#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub multiplier: f32,
    pub divisor: f32,
    pub correction: f32,
}

impl Global {
    pub(super) fn multiplier(multiplier: f32) -> Self {
        Self { multiplier, divisor: 1.0, correction: 0.0 }
    }

    pub(super) fn divisor(divisor: f32) -> Self {
        let multiplier = 1.0 / divisor;
        Self { multiplier, divisor, correction: multiplier }
    }

    /// Whether no step of the quotient can overflow or lose bits to underflow, for any E4M3 scale.
    pub(super) fn is_tame(self) -> bool {
        [self.multiplier, self.divisor].iter().all(|x| (2f32.powi(-64)..=2f32.powi(64)).contains(&x.abs()))
    }

    #[inline]
    pub(super) fn apply(self, scale: f32) -> f32 {
        if self.correction == 0.0 { scale * self.multiplier } else { scale / self.divisor }
    }
}

impl Scales {
    #[inline]
    pub(super) fn get(&self, index: usize) -> f32 {
        match self {
            Self::E4m3 { bytes, global } => global.apply(e4m3(bytes[index])),
            Self::E8m0 { bytes } => e8m0(bytes[index]),
            Self::F32 { values } => values[index],
        }
    }

    /// The same scales in f32.
    pub(super) fn widened(&self) -> Self {
        Self::F32 { values: (0..self.len()).map(|i| self.get(i)).collect() }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::E4m3 { bytes, .. } | Self::E8m0 { bytes } => bytes.len(),
            Self::F32 { values } => values.len(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::E4m3 { bytes, .. } | Self::E8m0 { bytes } => bytes.len(),
            Self::F32 { values } => values.len() * 4,
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Scales {
    /// The scales of a strip's 32 rows, the bits that [`Scales::get`] gives (except for the sign of 0).
    ///
    /// # Safety
    /// The CPU must have the features.
    ///
    /// # Panics
    /// Where the scales end before `index + 32`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    pub(super) unsafe fn strip_avx512(&self, index: usize) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::*;
        match self {
            Self::E4m3 { bytes, global } => {
                let bytes = &bytes[index..][..32];
                // SAFETY: 32 bytes.
                let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
                // As f16: sign, then the low 7 bits one place below the exponent's top bit. That is s / 256.
                let halves = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(bytes));
                let halves = _mm512_and_si512(halves, _mm512_set1_epi16(0xbfff_u16 as i16));
                let multiplier = _mm512_set1_ps(global.multiplier * 256.0);
                let divisor = _mm512_set1_ps(global.divisor / 256.0);
                let correction = _mm512_set1_ps(global.correction * 256.0);
                [_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64::<1>(halves)].map(|half| {
                    let scale = _mm512_cvtph_ps(half);
                    let quotient = _mm512_mul_ps(scale, multiplier);
                    let rest = _mm512_fnmadd_ps(quotient, divisor, scale);
                    _mm512_fmadd_ps(rest, correction, quotient)
                })
            }
            Self::E8m0 { bytes } => {
                let bytes = &bytes[index..][..32];
                [0, 16].map(|half| {
                    // SAFETY: 16 of the 32 bytes.
                    let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().add(half).cast()) };
                    let bits = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes));
                    _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x0040_0000)))
                })
            }
            Self::F32 { values } => {
                let values = &values[index..][..32];
                // SAFETY: 16 of the 32 floats.
                [0, 16].map(|half| unsafe { _mm512_loadu_ps(values.as_ptr().add(half)) })
            }
        }
    }
}

/// FP8 E4M3 to f32, exact; the NaN code gives 480 as the vector code does (loaders refuse it).
#[inline]
pub(super) fn e4m3(byte: u8) -> f32 {
    let sign = u32::from(byte & 0x80) << 24;
    let exponent = u32::from(byte >> 3 & 15);
    let mantissa = u32::from(byte & 7);
    let magnitude =
        if exponent == 0 { mantissa as f32 / 512.0 } else { f32::from_bits((exponent + 120) << 23 | mantissa << 20) };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// FP8 E8M0 to f32: 2^(byte - 127); 255 (NaN) gives infinity (loaders refuse it).
#[inline]
pub(super) fn e8m0(byte: u8) -> f32 {
    f32::from_bits((u32::from(byte) << 23).max(0x0040_0000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_scales() {
        assert_eq!(e4m3(0x20), 0.125);
        assert_eq!(e4m3(0x38), 1.0);
        assert_eq!(e4m3(0x7e), 448.0);
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert_eq!(e4m3(0xb8), -1.0);
        assert_eq!(e8m0(127), 1.0);
        assert_eq!(e8m0(0), 2f32.powi(-126) / 2.0);
        assert_eq!(e8m0(130), 8.0);
    }

    #[test]
    fn markstein_quotient_is_correctly_rounded() {
        let mut state = 7u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let divisor = f32::from_bits(0x4300_0000 + (state >> 6));
            let global = Global::divisor(divisor);
            for byte in 1..=0x7eu8 {
                let s = e4m3(byte);
                let q = s * global.multiplier;
                let corrected = (-q).mul_add(global.divisor, s).mul_add(global.correction, q);
                assert_eq!(corrected, s / divisor, "{s} / {divisor}");
            }
        }
    }
}
