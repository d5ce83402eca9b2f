//! NVFP4: e2m1 codes in groups of 16, an e4m3 scale each, one global f32 scale a tensor. The rounding steps are
//! those of compressed-tensors (`nvfp4-pack-quantized`), bit for bit.

use rayon::prelude::*;

use super::codes::{E2M1, E4M3, e2m1_encode, e4m3_encode};
use super::{Source, check_shape};
use crate::Result;

pub const GROUP: usize = 16;

/// The largest e4m3 times the largest e2m1.
const RANGE: f32 = 448.0 * 6.0;

/// A tensor's global scale, and how it enters a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Global {
    /// compressed-tensors: value = e2m1 * (e4m3 / divisor).
    Divisor(f32),
    /// ModelOpt: value = e2m1 * (e4m3 * multiplier).
    Multiplier(f32),
}

impl Global {
    /// The scale of a group: f32(e4m3) divided or multiplied, in f32.
    pub fn group(self, scale: u8) -> f32 {
        match self {
            Self::Divisor(divisor) => E4M3[scale as usize] / divisor,
            Self::Multiplier(multiplier) => E4M3[scale as usize] * multiplier,
        }
    }

    /// What every e4m3 scale is multiplied by (rounded once where the file holds a divisor).
    pub fn multiplier(self) -> f32 {
        match self {
            Self::Divisor(divisor) => 1.0 / divisor,
            Self::Multiplier(multiplier) => multiplier,
        }
    }

    /// Finite and above zero.
    pub fn is_usable(self) -> bool {
        let (Self::Divisor(x) | Self::Multiplier(x)) = self;
        x.is_finite() && x > 0.0
    }
}

/// The global scale (a divisor) of a tensor, or of tensors that share one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GlobalScale {
    pub divisor: f32,
    /// The source is f16 and the scale does not fit f16: it was computed in f32, where compressed-tensors falls
    /// back to 1 and loses most of the precision.
    pub widened: bool,
}

/// From the largest magnitude `amax`, rounded as the type of `source` asks for.
pub fn global_scale(amax: f32, source: Source<'_>) -> GlobalScale {
    let reciprocal = source.round(1.0 / amax.max(source.tiny()));
    let divisor = source.round(RANGE * reciprocal);
    if divisor.is_finite() {
        return GlobalScale { divisor, widened: false };
    }
    if let Source::F16(_) = source
        && amax > 0.0
    {
        return GlobalScale { divisor: RANGE * (1.0 / amax), widened: true };
    }
    GlobalScale { divisor: 1.0, widened: false }
}

/// Codes `[rows, cols / 2]` (low nibble first) and e4m3 scales `[rows, cols / 16]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    pub packed: Vec<u8>,
    pub scales: Vec<u8>,
}

/// Rounds finite weights `[rows, cols]` to nearest; `cols` must be a multiple of 16.
pub fn quantize(source: Source<'_>, cols: usize, divisor: f32) -> Result<Packed> {
    check_shape(source.len(), cols, GROUP)?;
    let mut packed = vec![0; source.len() / 2];
    let mut scales = vec![0; source.len() / GROUP];
    let rows = packed.par_chunks_mut(cols / 2).zip(scales.par_chunks_mut(cols / GROUP));
    rows.enumerate().for_each(|(row, (packed, scales))| {
        let mut group = [0.0; GROUP];
        for (index, (codes, scale)) in packed.chunks_exact_mut(GROUP / 2).zip(scales).enumerate() {
            let start = row * cols + index * GROUP;
            source.slice(start..start + GROUP).widen(&mut group);
            let amax = group.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
            *scale = match e4m3_encode((divisor * source.round(amax / 6.0)).min(448.0)) {
                0 => 0x20, // 0.125, so that nothing ever divides by zero.
                code => code,
            };
            let step = E4M3[*scale as usize] / divisor;
            for (code, pair) in codes.iter_mut().zip(group.as_chunks::<2>().0) {
                let [low, high] = pair.map(|x| e2m1_encode((x / step).clamp(-6.0, 6.0)));
                *code = low | high << 4;
            }
        }
    });
    Ok(Packed { packed, scales })
}

/// Writes the f32 values of whole groups, each step in f32; lengths must agree (2 values a byte, 16 a scale).
pub fn dequantize(packed: &[u8], scales: &[u8], global: Global, out: &mut [f32]) {
    let groups = packed.chunks_exact(GROUP / 2).zip(scales).zip(out.chunks_exact_mut(GROUP));
    for ((codes, &scale), values) in groups {
        let step = global.group(scale);
        for (&code, pair) in codes.iter().zip(values.as_chunks_mut::<2>().0) {
            *pair = [E2M1[(code & 15) as usize] * step, E2M1[(code >> 4) as usize] * step];
        }
    }
}
