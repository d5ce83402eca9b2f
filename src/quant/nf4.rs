//! NF4 (Dettmers et al. 2023, QLoRA) as bitsandbytes stores it: blocks of 64 over the flattened tensor, absmax a
//! block, optionally quantized a second time in blocks of 256.

use std::sync::LazyLock;

use rayon::prelude::*;

use super::Source;

pub const BLOCK: usize = 64;
pub const NESTED_BLOCK: usize = 256;

/// The sixteen levels: quantiles of a normal distribution, scaled to [-1, 1] (bitsandbytes' own constants).
pub const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The 256-entry dynamic map of the second quantization, ascending. The bytes were copied from a checkpoint that
/// bitsandbytes 0.50.2 wrote (`nested_quant_map`, little-endian f32): computing the map anew drifts by one ulp.
pub static NESTED_LEVELS: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let bytes: &[u8; 1024] = include_bytes!("nested_map.f32");
    let mut map = [0.0; 256];
    for (value, bytes) in map.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*bytes);
    }
    map
});

/// Codes (two a byte, the first in the HIGH nibble) and the largest magnitude of each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    pub packed: Vec<u8>,
    pub absmax: Vec<f32>,
}

/// Block scales quantized once more: absmax = level * nested_absmax + offset.
#[derive(Clone, Debug, PartialEq)]
pub struct Nested {
    pub codes: Vec<u8>,
    pub absmax: Vec<f32>,
    pub offset: f32,
}

/// The number of midpoints below `x`.
fn code(x: f32) -> u8 {
    let mut code = 0;
    for pair in LEVELS.windows(2) {
        code += u8::from(x > (pair[0] + pair[1]) / 2.0);
    }
    code
}

/// Rounds finite weights to the nearest level.
pub fn quantize(source: Source<'_>) -> Packed {
    let len = source.len();
    let mut packed = vec![0; len.div_ceil(2)];
    let mut absmax = vec![0.0; len.div_ceil(BLOCK)];
    let blocks = packed.par_chunks_mut(BLOCK / 2).zip(absmax.par_iter_mut());
    blocks.with_min_len(64).enumerate().for_each(|(index, (packed, absmax))| {
        let start = index * BLOCK;
        let size = BLOCK.min(len - start);
        let mut block = [0.0; BLOCK];
        source.slice(start..start + size).widen(&mut block[..size]);
        *absmax = block[..size].iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
        let floor = absmax.max(1e-38);
        // A whole block multiplies by the reciprocal, a partial one divides: they can differ in the last bit.
        let reciprocal = 1.0 / floor;
        let scaled = |x: f32| if size == BLOCK { x * reciprocal } else { x / floor };
        for (byte, pair) in packed.iter_mut().zip(block[..size].chunks(2)) {
            let low = pair.get(1).map_or(PAD, |x| code(scaled(*x)));
            *byte = code(scaled(pair[0])) << 4 | low;
        }
    });
    Packed { packed, absmax }
}

/// The low nibble after the last of an odd number of weights: a zero.
const PAD: u8 = 7;

/// Writes the values of whole blocks (and a last partial one) from codes and block scales.
pub fn dequantize(packed: &[u8], absmax: &[f32], out: &mut [f32]) {
    for ((codes, &scale), values) in packed.chunks(BLOCK / 2).zip(absmax).zip(out.chunks_mut(BLOCK)) {
        for (index, value) in values.iter_mut().enumerate() {
            let byte = codes[index / 2];
            let code = if index % 2 == 0 { byte >> 4 } else { byte & 15 };
            *value = LEVELS[code as usize] * scale;
        }
    }
}

/// The block scales that [`quantize`] would give.
pub fn absmax(source: Source<'_>) -> Vec<f32> {
    let len = source.len();
    let block = |index: usize| {
        let mut block = [0.0; BLOCK];
        let (start, end) = (index * BLOCK, (index * BLOCK + BLOCK).min(len));
        source.slice(start..end).widen(&mut block[..end - start]);
        block.iter().fold(0.0f32, |amax, x| amax.max(x.abs()))
    };
    (0..len.div_ceil(BLOCK)).into_par_iter().with_min_len(64).map(block).collect()
}

/// Double quantization of the block scales, each to its nearest level (ties to the lower).
///
/// bitsandbytes' CPU search now and then misses the nearest level close to zero; its CUDA kernels and this do not.
pub fn nest(absmax: &[f32]) -> Nested {
    let offset = if absmax.is_empty() { 0.0 } else { sum_like_torch(absmax) / absmax.len() as f32 };
    let mut codes = Vec::with_capacity(absmax.len());
    let mut nested = Vec::with_capacity(absmax.len().div_ceil(NESTED_BLOCK));
    for block in absmax.chunks(NESTED_BLOCK) {
        let amax = block.iter().fold(0.0f32, |amax, x| amax.max((x - offset).abs()));
        nested.push(amax);
        for x in block {
            codes.push(if amax == 0.0 { 0 } else { nested_code((x - offset) / amax) });
        }
    }
    Nested { codes, absmax: nested, offset }
}

fn nested_code(x: f32) -> u8 {
    let levels = &*NESTED_LEVELS;
    let right = levels.partition_point(|level| *level < x).min(255);
    let left = right.saturating_sub(1);
    let nearest = if (x - levels[left]).abs() <= (x - levels[right]).abs() { left } else { right };
    nearest as u8
}

/// The block scales behind a double quantization, each step in f32. A code without a nested scale gives NaN, which
/// the caller has ruled out by comparing lengths.
pub fn unnest(codes: &[u8], levels: &[f32; 256], absmax: &[f32], offset: f32) -> Vec<f32> {
    let scale = |index: usize| absmax.get(index / NESTED_BLOCK).copied().unwrap_or(f32::NAN);
    codes.iter().enumerate().map(|(i, &code)| levels[code as usize] * scale(i) + offset).collect()
}

/// Sums in the order of PyTorch's CPU kernel (vectors of 8, four side by side, cascades of 16), because the mean's
/// last bit is part of the format's bytes.
fn sum_like_torch(values: &[f32]) -> f32 {
    const LANES: usize = 8;
    const SIDE: usize = 4;
    const LEVELS: usize = 4;
    type Row = [[f32; LANES]; SIDE];
    let add = |into: &mut [f32; LANES], x: &[f32]| into.iter_mut().zip(x).for_each(|(a, x)| *a += x);

    let (vectors, tail) = values.as_chunks::<LANES>();
    let (rows, rest) = vectors.as_chunks::<SIDE>();
    let log = if rows.len() > 1 { (rows.len() - 1).ilog2() + 1 } else { 0 };
    let power = (log / LEVELS as u32).max(4);
    let step = 1usize << power;
    let mut sums: [Row; LEVELS] = [[[0.0; LANES]; SIDE]; LEVELS];
    let mut done = 0;
    for chunk in rows.chunks(step) {
        for row in chunk {
            for (sum, vector) in sums[0].iter_mut().zip(row) {
                add(sum, vector);
            }
        }
        done += chunk.len();
        if chunk.len() < step {
            break;
        }
        for level in 1..LEVELS {
            let below = std::mem::take(&mut sums[level - 1]);
            for (sum, vector) in sums[level].iter_mut().zip(&below) {
                add(sum, vector);
            }
            if done & ((step - 1) << (level as u32 * power)) != 0 {
                break;
            }
        }
    }
    let [mut total, higher @ ..] = sums;
    for level in &higher {
        for (sum, vector) in total.iter_mut().zip(level) {
            add(sum, vector);
        }
    }
    let [first, others @ ..] = &mut total;
    rest.iter().for_each(|vector| add(first, vector));
    others.iter().for_each(|vector| add(first, vector));
    let tail = tail.iter().fold(0.0, |sum, x| sum + x);
    first.iter().fold(tail, |sum, x| sum + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nested_levels_ascend_from_minus_one_to_one() {
        assert!(NESTED_LEVELS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!((NESTED_LEVELS[127], NESTED_LEVELS[255]), (0.0, 1.0));
    }

    #[test]
    fn a_zero_block_is_code_seven_and_gives_zeros() {
        let quantized = quantize(Source::F32(&[0.0; 64]));
        assert_eq!(quantized.packed, [0x77; 32]);
        let mut out = [1.0; 64];
        dequantize(&quantized.packed, &quantized.absmax, &mut out);
        assert_eq!(out, [0.0; 64]);
    }

    #[test]
    fn the_first_weight_lies_in_the_high_nibble() {
        let mut weights = [0.0; 64];
        (weights[0], weights[1]) = (1.0, -1.0);
        assert_eq!(quantize(Source::F32(&weights)).packed[0], 0xf0);
    }

    #[test]
    fn a_sum_in_torchs_order_is_still_a_sum() {
        for len in [0, 1, 7, 8, 31, 32, 33, 64, 511, 512, 513, 10_000] {
            let values: Vec<f32> = (0..len).map(|i| (i % 17) as f32).collect();
            assert_eq!(sum_like_torch(&values), values.iter().sum::<f32>(), "{len} small integers add up exactly");
        }
    }
}
