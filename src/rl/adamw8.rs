//! Block-wise dynamic 8-bit optimizer states (Dettmers et al. 2022, as bitsandbytes keeps them).
//!
//! bitsandbytes dequantizes the moments, takes one AdamW step with them in f32 and stores them as codes again.
//! Passing the moments of any AdamW through [`round_state`] after each step is the same arithmetic.

use std::sync::OnceLock;

use crate::engine::OptimizerState;

/// Values that share one absolute maximum.
pub const BLOCK: usize = 256;
/// Smaller tensors stay in f32 (bitsandbytes' `min_8bit_size`).
pub const MIN_SIZE: usize = 4096;

/// bitsandbytes' `create_dynamic_map`: 256 values in -1..1 (signed) or 0..1, denser towards 0.
fn dynamic_map(signed: bool) -> Vec<f32> {
    const EXPONENT_BITS: i32 = 7;
    let mut map = Vec::with_capacity(256);
    for i in 0..EXPONENT_BITS {
        let items = if signed { 1usize << i } else { 1usize << (i + 1) };
        let scale = 10f64.powi(i - (EXPONENT_BITS - 1));
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

fn codebook(signed: bool) -> &'static [f32] {
    static SIGNED: OnceLock<Vec<f32>> = OnceLock::new();
    static UNSIGNED: OnceLock<Vec<f32>> = OnceLock::new();
    if signed { SIGNED.get_or_init(|| dynamic_map(true)) } else { UNSIGNED.get_or_init(|| dynamic_map(false)) }
}

/// Rounds each value to its block's nearest code.
pub fn round_blocks(values: &mut [f32], signed: bool) {
    let map = codebook(signed);
    for block in values.chunks_mut(BLOCK) {
        let max = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        if max == 0.0 || !max.is_finite() {
            continue;
        }
        for value in block {
            let x = *value / max;
            let above = map.partition_point(|&code| code < x).min(map.len() - 1);
            let below = above.saturating_sub(1);
            let code = if (map[above] - x).abs() < (x - map[below]).abs() { map[above] } else { map[below] };
            *value = code * max;
        }
    }
}

/// Rounds the moments of every tensor that bitsandbytes would keep in 8 bits.
pub fn round_state(state: &mut OptimizerState) {
    for tensor in state.tensors.iter_mut().filter(|t| t.data.len() >= MIN_SIZE) {
        round_blocks(&mut tensor.data, !tensor.name.ends_with(".v"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rl::random::normal;

    #[test]
    fn both_maps_have_256_distinct_codes() {
        for signed in [true, false] {
            let map = dynamic_map(signed);
            assert_eq!(map.len(), 256);
            assert!(map.windows(2).all(|w| w[0] < w[1]));
        }
    }

    #[test]
    fn rounding_is_stable_and_keeps_zero_and_the_maximum() {
        let mut values: Vec<f32> = (0..512).map(|i| normal(1, "m", 0, i) as f32 * 1e-3).collect();
        values[7] = 0.0;
        let max = values[..256].iter().fold(0f32, |m, v| m.max(v.abs()));
        let before = values.clone();
        round_blocks(&mut values, true);
        let once = values.clone();
        round_blocks(&mut values, true);
        let error: f32 = before.iter().zip(&once).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        let size: f32 = before.iter().map(|a| a * a).sum::<f32>().sqrt();
        assert!(error < 0.02 * size, "{error} of {size}");
        assert_eq!(once[7], 0.0);
        assert!(once[..256].iter().any(|v| v.abs() >= 0.99 * max));
        let again: f32 = values.iter().zip(&once).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(again <= 0.02 * max);
    }

    /// The same gradients through f32 AdamW and through rounded moments lead to nearly the same place.
    #[test]
    fn eight_bit_adamw_follows_f32_adamw() {
        let n = MIN_SIZE;
        let run = |eight_bit: bool| {
            let (mut m, mut v, mut w) = (vec![0f32; n], vec![0f32; n], vec![0f32; n]);
            for step in 1..=50u64 {
                for i in 0..n {
                    let g = 0.01 * (1.0 + (i % 7) as f32) + 0.02 * normal(5, "g", step, i as u64) as f32;
                    m[i] = 0.9 * m[i] + 0.1 * g;
                    v[i] = 0.99 * v[i] + 0.01 * g * g;
                    let (mh, vh) = (m[i] / (1.0 - 0.9f32.powi(step as i32)), v[i] / (1.0 - 0.99f32.powi(step as i32)));
                    w[i] -= 1e-3 * mh / (vh.sqrt() + 1e-8);
                }
                if eight_bit {
                    round_blocks(&mut m, true);
                    round_blocks(&mut v, false);
                }
            }
            w
        };
        let (exact, rounded) = (run(false), run(true));
        let dot: f64 = exact.iter().zip(&rounded).map(|(a, b)| f64::from(a * b)).sum();
        let norm = |w: &[f32]| w.iter().map(|a| f64::from(a * a)).sum::<f64>().sqrt();
        let cosine = dot / (norm(&exact) * norm(&rounded));
        assert!(cosine > 0.999, "{cosine}");
    }
}
