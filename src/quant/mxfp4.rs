//! MXFP4: e2m1 codes in groups of 32 with a power-of-two scale (e8m0), as compressed-tensors
//! (`mxfp4-pack-quantized`) rounds it.

use rayon::prelude::*;

use super::codes::{E2M1, e2m1_encode, e8m0_decode};
use super::nvfp4::Packed;
use super::{Source, check_shape};
use crate::Result;

pub const GROUP: usize = 32;

/// The e8m0 code for a group whose largest magnitude is `amax`: floor(log2(amax)) - 2, one more from 1.75 of that
/// power on (there 6 would be passed by more than half a step).
fn scale_code(amax: f32) -> u8 {
    let bits = amax.to_bits();
    let exponent = (bits >> 23) as i32; // Biased by 127; 0 for subnormals, which end at the lowest scale.
    let up = i32::from(bits & 0x7f_ffff >= 0x60_0000);
    (exponent - 2 + up).clamp(0, 254) as u8
}

/// Codes `[rows, cols / 2]` (low nibble first) and e8m0 scales `[rows, cols / 32]` of finite weights
/// `[rows, cols]`; `cols` must be a multiple of 32.
pub fn quantize(source: Source<'_>, cols: usize) -> Result<Packed> {
    check_shape(source.len(), cols, GROUP)?;
    let mut packed = vec![0; source.len() / 2];
    let mut scales = vec![0; source.len() / GROUP];
    let rows = packed.par_chunks_mut(cols / 2).zip(scales.par_chunks_mut(cols / GROUP));
    rows.enumerate().for_each(|(row, (packed, scales))| {
        let mut group = [0.0; GROUP];
        for (index, (codes, scale)) in packed.chunks_exact_mut(GROUP / 2).zip(scales).enumerate() {
            let start = row * cols + index * GROUP;
            source.slice(start..start + GROUP).widen(&mut group);
            *scale = scale_code(group.iter().fold(0.0f32, |amax, x| amax.max(x.abs())));
            let step = e8m0_decode(*scale);
            for (code, pair) in codes.iter_mut().zip(group.as_chunks::<2>().0) {
                let [low, high] = pair.map(|x| e2m1_encode((x / step).clamp(-6.0, 6.0)));
                *code = low | high << 4;
            }
        }
    });
    Ok(Packed { packed, scales })
}

/// Writes the f32 values of whole groups; lengths must agree (2 values a byte, 32 a scale).
pub fn dequantize(packed: &[u8], scales: &[u8], out: &mut [f32]) {
    let groups = packed.chunks_exact(GROUP / 2).zip(scales).zip(out.chunks_exact_mut(GROUP));
    for ((codes, &scale), values) in groups {
        let step = e8m0_decode(scale);
        for (&code, pair) in codes.iter().zip(values.as_chunks_mut::<2>().0) {
            *pair = [E2M1[(code & 15) as usize] * step, E2M1[(code >> 4) as usize] * step];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_power_of_two_two_below_and_rounds_up_from_seven_quarters() {
        assert_eq!(scale_code(1.0), 125);
        assert_eq!(scale_code(1.74), 125);
        assert_eq!(scale_code(1.75), 126);
        assert_eq!(scale_code(6.0), 127);
        assert_eq!(scale_code(7.0), 128);
        assert_eq!(scale_code(0.0), 0);
        assert_eq!(scale_code(f32::MAX), 253);
    }

    #[test]
    fn a_group_of_zeros_stays_zero() {
        let quantized = quantize(Source::F32(&[0.0; 32]), 32).unwrap();
        let mut out = [1.0; 32];
        dequantize(&quantized.packed, &quantized.scales, &mut out);
        assert_eq!(out, [0.0; 32]);
    }
}
