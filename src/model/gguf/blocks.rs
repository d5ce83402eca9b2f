//! GGML's block formats: 32 weights with one or two f16 factors, or 256 with factors of factors (the K formats).

use half::{bf16, f16};

use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    /// (q - 8) * d
    Q4_0,
    /// q * d + m
    Q4_1,
    /// q * d
    Q8_0,
    /// 256 weights: 6-bit scales and minima per 32, (q * (d * scale)) - dmin * minimum
    Q4K,
    /// 256 weights: 8-bit scales per 16, (q - 32) * (d * scale)
    Q6K,
}

/// Names by GGML's number, for errors.
const NAMES: [(u32, &str); 14] = [
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (13, "Q5_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (23, "IQ4_XS"),
    (39, "MXFP4"),
];

const BLOCK: usize = 32;

/// Weights of a block of the K formats.
const SUPER: usize = 256;

impl Kind {
    pub fn parse(number: u32) -> Result<Self> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            other => {
                let name = NAMES.iter().find(|(number, _)| *number == other).map(|(_, name)| (*name).to_owned());
                let name = name.unwrap_or_else(|| format!("type {other}"));
                return Err(Error::input(format!("{name} is not imported"))
                    .hint("imported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K"));
            }
        })
    }

    /// Weights and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (BLOCK, 18),
            Self::Q4_1 => (BLOCK, 20),
            Self::Q8_0 => (BLOCK, 34),
            Self::Q4K => (SUPER, 144),
            Self::Q6K => (SUPER, 210),
        }
    }

    /// Bytes of a tensor; `None` where rows are no whole blocks or the size is beyond memory.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        let (weights, bytes) = self.block();
        let row = *shape.last()?;
        if !row.is_multiple_of(weights) {
            return None;
        }
        let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim))?;
        (count / weights).checked_mul(bytes)
    }

    /// The values, each step in f32.
    pub fn dequantize(self, data: &[u8]) -> Vec<f32> {
        let half = |bytes: &[u8], at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        let (_, size) = self.block();
        let mut out = Vec::with_capacity(data.len() / size * self.block().0);
        for block in data.chunks_exact(size) {
            match self {
                Self::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Self::F16 => out.push(half(block, 0)),
                Self::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
                Self::Q4_0 => {
                    let scale = half(block, 0);
                    out.extend(block[2..].iter().map(|q| (f32::from(q & 15) - 8.0) * scale));
                    out.extend(block[2..].iter().map(|q| (f32::from(q >> 4) - 8.0) * scale));
                }
                Self::Q4_1 => {
                    let (scale, least) = (half(block, 0), half(block, 2));
                    out.extend(block[4..].iter().map(|q| f32::from(q & 15) * scale + least));
                    out.extend(block[4..].iter().map(|q| f32::from(q >> 4) * scale + least));
                }
                Self::Q8_0 => {
                    let scale = half(block, 0);
                    out.extend(block[2..].iter().map(|q| f32::from(*q as i8) * scale));
                }
                Self::Q4K => {
                    let (scale, least) = (half(block, 0), half(block, 2));
                    for (pair, codes) in block[16..].chunks_exact(32).enumerate() {
                        for (side, shift) in [(0, 0), (1, 4)] {
                            let (factor, minimum) = six_bits(&block[4..16], 2 * pair + side);
                            let (factor, minimum) = (scale * factor, least * minimum);
                            out.extend(codes.iter().map(|q| factor * f32::from(q >> shift & 15) - minimum));
                        }
                    }
                }
                Self::Q6K => {
                    let scale = half(block, 208);
                    for part in 0..2 {
                        let low = &block[64 * part..64 * part + 64];
                        let high = &block[128 + 32 * part..160 + 32 * part];
                        for quarter in 0..4 {
                            for i in 0..32 {
                                let nibble = low[i + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
                                let code = nibble | (high[i] >> (2 * quarter) & 3) << 4;
                                let factor = block[192 + 8 * part + 2 * quarter + i / 16] as i8;
                                out.push(scale * f32::from(factor) * (f32::from(code) - 32.0));
                            }
                        }
                    }
                }
            }
        }
        out
    }
}

/// Scale and minimum of group `index` (of 8) out of Q4_K's 12 bytes: the last four groups' upper two bits lie in the
/// first eight bytes (ggml's get_scale_min_k4).
fn six_bits(bytes: &[u8], index: usize) -> (f32, f32) {
    let (scale, minimum) = match index {
        0..4 => (bytes[index] & 63, bytes[index + 4] & 63),
        _ => (bytes[index + 4] & 15 | bytes[index - 4] >> 6 << 4, bytes[index + 4] >> 4 | bytes[index] >> 6 << 4),
    };
    (f32::from(scale), f32::from(minimum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_decode_as_ggml_defines_them() {
        let two = f16::from_f32(2.0).to_le_bytes();
        let one = f16::from_f32(1.0).to_le_bytes();
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let q4_0 = Kind::Q4_0.dequantize(&[&two[..], &codes].concat());
        assert_eq!((q4_0[0], q4_0[15], q4_0[16], q4_0[31]), (-16.0, 14.0, 14.0, -16.0));
        let q4_1 = Kind::Q4_1.dequantize(&[&two[..], &one, &codes].concat());
        assert_eq!((q4_1[0], q4_1[15], q4_1[16], q4_1[31]), (1.0, 31.0, 31.0, 1.0));
        let bytes: Vec<u8> = (0..32).map(|i| (i as i8 - 16) as u8).collect();
        let q8_0 = Kind::Q8_0.dequantize(&[&two[..], &bytes].concat());
        assert_eq!((q8_0[0], q8_0[16], q8_0[31]), (-32.0, 0.0, 30.0));
        assert_eq!(Kind::Bf16.dequantize(&[0xc0, 0x3f]), [1.5]);
    }

    /// Expected values: `gguf.quants.dequantize` (gguf 0.19) on the same bytes.
    #[test]
    fn k_blocks_decode_as_the_gguf_package_does() {
        let bytes = |count: usize| -> Vec<u8> { (0..count).map(|i| ((i * 37 + 11) % 256) as u8).collect() };
        let places = [0, 1, 31, 32, 63, 64, 127, 128, 160, 200, 255];
        let check = |kind: Kind, block: &[u8], want: [f32; 11], sum: f64, weighted: f64| {
            let values = kind.dequantize(block);
            assert_eq!(places.map(|at| values[at]), want);
            assert_eq!(values.iter().map(|x| f64::from(*x)).sum::<f64>(), sum);
            let each = values.iter().enumerate();
            assert_eq!(each.map(|(i, x)| i as f64 * f64::from(*x)).sum::<f64>(), weighted);
        };
        let mut q4 = bytes(144);
        q4[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        q4[2..4].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
        let want = [157.75, -12.75, 80.25, 4.0, 20.0, 210.25, 40.5, 211.5, 262.5, 69.25, 24.25];
        check(Kind::Q4K, &q4, want, 27220.0, 3759200.0);
        let mut q6 = bytes(210);
        q6[208..].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        let want = [-715.5, 848.0, -48.0, 115.5, -290.0, -1520.0, 750.0, -175.5, 335.5, 544.5, -30.0];
        check(Kind::Q6K, &q6, want, 2306.0, 389904.0);
    }
}
