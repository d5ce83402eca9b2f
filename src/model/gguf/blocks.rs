//! GGML's block formats: 32 weights with one or two f16 factors.

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
}

/// Names by GGML's number, for errors.
const NAMES: [(u32, &str); 16] = [
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
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

impl Kind {
    pub fn parse(number: u32) -> Result<Self> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            other => {
                let name = NAMES.iter().find(|(number, _)| *number == other).map(|(_, name)| (*name).to_owned());
                let name = name.unwrap_or_else(|| format!("type {other}"));
                return Err(Error::input(format!("{name} is not imported"))
                    .hint("imported are F32, F16, BF16, Q8_0, Q4_0 and Q4_1"));
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
            }
        }
        out
    }
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
}
