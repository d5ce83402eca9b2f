//! Block-wise dynamic 8-bit optimizer states (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"), as
//! bitsandbytes keeps them: each 256 values share their largest magnitude as scale, and each value is a code of a
//! dynamic map (256 values, denser towards 0). A step dequantizes the moments, updates moments and weights in f32 and
//! stores the moments as codes again. As there, a first moment never changes its sign by rounding.
//!
//! One thing is not bitsandbytes': a second moment above zero is never rounded to zero. bitsandbytes does that to
//! entries whose gradient is below about 1/2500 of their block's largest; a first moment that survives is then divided
//! by epsilon alone where the next gradient is exactly 0, and on sparse gradients (tested on a table policy) the
//! weights explode.

use std::sync::OnceLock;

/// Values that share one scale.
pub const BLOCK: usize = 256;
/// Smaller tensors keep their moments in f32 (bitsandbytes' `min_8bit_size`).
pub const MIN_SIZE: usize = 4096;

/// Which of the two moments: their maps differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Mean of gradients: a map of -1..1.
    First,
    /// Mean of squared gradients: a map of 0..1.
    Second,
}

/// bitsandbytes' `create_dynamic_map`: for exponent i of 0..7, the middles of 2^i (signed) or 2^(i+1) equal parts of
/// 0.1..1, times 10^(i-6); 0 and 1.
fn dynamic_map(signed: bool) -> Vec<f32> {
    const EXPONENTS: i32 = 7;
    let mut map = Vec::with_capacity(256);
    for i in 0..EXPONENTS {
        let items = if signed { 1usize << i } else { 1usize << (i + 1) };
        let scale = 10f64.powi(i - (EXPONENTS - 1));
        let step = 0.9 / items as f64;
        for k in 0..items {
            let mean = 0.1 + step * (k as f64 + 0.5);
            map.push((scale * mean) as f32);
            if signed {
                map.push((-scale * mean) as f32);
            }
        }
    }
    map.push(0.0);
    map.push(1.0);
    map.sort_by(f32::total_cmp);
    map
}

/// The 256 values of a moment's codes, ascending.
pub fn map(which: Which) -> &'static [f32] {
    static FIRST: OnceLock<Vec<f32>> = OnceLock::new();
    static SECOND: OnceLock<Vec<f32>> = OnceLock::new();
    match which {
        Which::First => FIRST.get_or_init(|| dynamic_map(true)),
        Which::Second => SECOND.get_or_init(|| dynamic_map(false)),
    }
}

/// The code of 0.0, which fresh moments hold.
pub fn zero_code(which: Which) -> u8 {
    map(which).partition_point(|&value| value < 0.0) as u8
}

/// The code whose value is nearest to `x`, which lies within -1..1 (the lower one of two equally near).
fn nearest(which: Which, x: f32) -> u8 {
    let map = map(which);
    let above = map.partition_point(|&value| value < x).min(map.len() - 1);
    let below = above.saturating_sub(1);
    let code = if map[above] - x < x - map[below] { above } else { below };
    let code = match which {
        // The map holds no -1, so every negative code has one above it; no positive `x` is nearest to a negative one.
        Which::First if x < 0.0 && map[code] >= 0.0 => code - 1,
        Which::Second if x > 0.0 && map[code] == 0.0 => code + 1,
        _ => code,
    };
    code as u8
}

/// Stores one block of at most [`BLOCK`] values as codes; gives their scale. A block of zeros has scale 0.
pub fn quantize(which: Which, values: &[f32], codes: &mut [u8]) -> f32 {
    let scale = values.iter().fold(0f32, |max, v| max.max(v.abs()));
    if scale == 0.0 {
        codes.fill(zero_code(which));
        return 0.0;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = nearest(which, value / scale);
    }
    scale
}

/// The values of one block.
pub fn dequantize(which: Which, codes: &[u8], scale: f32, values: &mut [f32]) {
    let map = map(which);
    for (value, code) in values.iter_mut().zip(codes) {
        *value = map[usize::from(*code)] * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rl::random::normal;

    fn round(which: Which, values: &[f32]) -> Vec<f32> {
        let (mut codes, mut out) = (vec![0; values.len()], vec![0.0; values.len()]);
        let scale = quantize(which, values, &mut codes);
        dequantize(which, &codes, scale, &mut out);
        out
    }

    #[test]
    fn the_maps_are_those_of_bitsandbytes() {
        for which in [Which::First, Which::Second] {
            let map = map(which);
            assert_eq!(map.len(), 256);
            assert!(map.windows(2).all(|w| w[0] < w[1]));
            assert_eq!((map[usize::from(zero_code(which))], map[255]), (0.0, 1.0));
        }
        // By hand from create_dynamic_map: the ends, and the smallest values above 0.
        assert_eq!(zero_code(Which::First), 127);
        let (first, second) = (map(Which::First), map(Which::Second));
        for (got, want) in [
            (first[0], -(1.0 - 0.9 / 128.0)),
            (first[254], 1.0 - 0.9 / 128.0),
            (first[128], 5.5e-7),
            (second[254], 1.0 - 0.9 / 256.0),
            (second[1], 3.25e-7),
            (second[2], 7.75e-7),
        ] {
            assert!((f64::from(got) / want - 1.0f64).abs() < 1e-6, "{got} {want}");
        }
    }

    #[test]
    fn every_code_comes_back_and_values_go_to_the_nearest() {
        for which in [Which::First, Which::Second] {
            for (code, &value) in map(which).iter().enumerate() {
                assert_eq!(usize::from(nearest(which, value)), code);
            }
            let values: Vec<f32> = (0..10_000).map(|i| i as f32 / 10_000.0).collect();
            for x in values {
                let got = (map(which)[usize::from(nearest(which, x))] - x).abs();
                let best = map(which).iter().map(|v| (v - x).abs()).fold(f32::INFINITY, f32::min);
                assert!(got == best, "{x}: {got} {best}");
            }
        }
    }

    #[test]
    fn signs_and_what_is_above_zero_survive() {
        let first = round(Which::First, &[1.0, -1e-9, 1e-9, -1.0, 0.0]);
        let (least, most) = (map(Which::First)[126], map(Which::First)[0]);
        assert!(least < 0.0 && most < -0.99);
        assert_eq!(first, [1.0, least, 0.0, most, 0.0]);
        let second = round(Which::Second, &[2.0, 1e-12, 0.0]);
        assert_eq!(second, [2.0, 2.0 * map(Which::Second)[1], 0.0]);
        assert_eq!(round(Which::First, &[0.0; 3]), [0.0; 3]);
    }

    #[test]
    fn rounding_loses_little_of_a_block() {
        let values: Vec<f32> = (0..BLOCK).map(|i| normal(1, "m", 0, i as u64) as f32 * 1e-3).collect();
        let rounded = round(Which::First, &values);
        let error: f32 = values.iter().zip(&rounded).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        let size: f32 = values.iter().map(|a| a * a).sum::<f32>().sqrt();
        assert!(error < 0.02 * size, "{error} of {size}");
    }
}
