//! A linear map's weight as it lies on disk, in any format.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::quant::nvfp4::Global;
use crate::quant::{Source, mxfp4, nf4, nvfp4};

/// A multiple of every format's group.
pub const BLOCK: usize = 64;

/// `[outputs, inputs]`, row-major; borrowed from the mapped file where its layout allows it.
#[derive(Clone, Debug)]
pub struct Weight<'a> {
    pub shape: [usize; 2],
    pub values: Values<'a>,
}

#[derive(Clone, Debug)]
pub enum Values<'a> {
    Bf16(Cow<'a, [bf16]>),
    F16(Cow<'a, [f16]>),
    F32(Cow<'a, [f32]>),
    /// e2m1 codes `[rows, cols / 2]` (low nibble first), e4m3 scales `[rows, cols / 16]`.
    Nvfp4 {
        packed: Cow<'a, [u8]>,
        scales: Cow<'a, [u8]>,
        global: Global,
    },
    /// e2m1 codes `[rows, cols / 2]` (low nibble first), e8m0 scales `[rows, cols / 32]`.
    Mxfp4 {
        packed: Cow<'a, [u8]>,
        scales: Cow<'a, [u8]>,
    },
    /// Codes over the flattened tensor (HIGH nibble first) and one f32 scale per 64 weights; a double
    /// quantization of the scales is undone already.
    Nf4 {
        codes: Cow<'a, [u8]>,
        absmax: Cow<'a, [f32]>,
    },
}

impl Weight<'_> {
    /// Number of weights.
    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of codes and scales in memory.
    pub fn bytes(&self) -> usize {
        match &self.values {
            Values::Bf16(x) => x.len() * 2,
            Values::F16(x) => x.len() * 2,
            Values::F32(x) => x.len() * 4,
            Values::Nvfp4 { packed, scales, .. } => packed.len() + scales.len() + 4,
            Values::Mxfp4 { packed, scales } => packed.len() + scales.len(),
            Values::Nf4 { codes, absmax } => codes.len() + absmax.len() * 4,
        }
    }

    /// The values in f32, exactly as the format defines them: `[outputs, inputs]`.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.dequantize_from(0, &mut out);
        out
    }

    /// Fills `out` with the values from flat index `start` on. `start` must be a multiple of [`BLOCK`], and the end
    /// one too or the tensor's own end.
    pub fn dequantize_from(&self, start: usize, out: &mut [f32]) {
        let end = start + out.len();
        assert!(start.is_multiple_of(BLOCK) && end <= self.len(), "{start}..{end} is no run of whole blocks");
        match &self.values {
            Values::Bf16(x) => Source::Bf16(&x[start..end]).widen(out),
            Values::F16(x) => Source::F16(&x[start..end]).widen(out),
            Values::F32(x) => out.copy_from_slice(&x[start..end]),
            Values::Nvfp4 { packed, scales, global } => {
                nvfp4::dequantize(&packed[start / 2..end / 2], &scales[start / nvfp4::GROUP..], *global, out);
            }
            Values::Mxfp4 { packed, scales } => {
                mxfp4::dequantize(&packed[start / 2..end / 2], &scales[start / mxfp4::GROUP..], out);
            }
            Values::Nf4 { codes, absmax } => nf4::dequantize(&codes[start / 2..], &absmax[start / nf4::BLOCK..], out),
        }
    }

    /// The stored floats, `None` where the weight is quantized.
    pub fn source(&self) -> Option<Source<'_>> {
        match &self.values {
            Values::Bf16(x) => Some(Source::Bf16(x)),
            Values::F16(x) => Some(Source::F16(x)),
            Values::F32(x) => Some(Source::F32(x)),
            _ => None,
        }
    }
}
