//! The order in which products read 4-bit weights (kernels/weights.cuh), on the CPU: the reference for the device's
//! `shuffle_*` kernels.
//!
//! W `[n, k]` is cut into strips of 16 rows and blocks of 64 columns, `[n / 16][k / 64]` blocks of [`BLOCK`] bytes: 32
//! lanes of four words of codes, then the scales. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 and columns
//! 16 t to 16 t + 15, which are one scale group.

use crate::quant::codes::E4M3;
use crate::{Error, Result};

/// Bytes of a block of 16 rows by 64 columns.
pub const BLOCK: usize = 576;

/// What a product's sums are multiplied by for e2m1 codes, besides the tensor's global scale: codes come out 2^126 too
/// small and scales 2^119 too large.
pub const E2M1_FACTOR: f32 = 128.0;

/// Which row of a matrix stands where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they come.
    Plain,
    /// The first half's rows (gate) and the second half's (up) by turns of eight, so that a thread's two rows are a
    /// gate and its up.
    Interleaved,
}

impl Order {
    /// The row of a matrix of `n` rows that half `half` of strip `strip` begins with.
    fn first_row(self, n: usize, strip: usize, half: usize) -> usize {
        match self {
            Self::Plain => strip * 16 + half * 8,
            Self::Interleaved => half * (n / 2) + strip * 8,
        }
    }
}

fn check(n: usize, k: usize, codes: usize) -> Result<()> {
    if !n.is_multiple_of(16) || !k.is_multiple_of(64) || n == 0 || k == 0 {
        return Err(Error::failed(format!("a matrix of {n} x {k} has no blocks of 16 x 64")));
    }
    if codes != n * k / 2 {
        return Err(Error::failed(format!("{codes} bytes are no codes of {n} x {k} weights")));
    }
    Ok(())
}

/// Calls `fill(block, lane, [row g, row g + 8], block column, t)` for every lane of every block.
fn each_lane(
    n: usize,
    k: usize,
    order: Order,
    mut fill: impl FnMut(&mut [u8], usize, [usize; 2], usize, usize),
) -> Vec<u8> {
    let columns = k / 64;
    let mut out = vec![0; n / 16 * columns * BLOCK];
    for (index, block) in out.chunks_exact_mut(BLOCK).enumerate() {
        let (strip, column) = (index / columns, index % columns);
        for lane in 0..32 {
            let rows = [0, 1].map(|half| order.first_row(n, strip, half) + lane / 4);
            fill(block, lane, rows, column, lane % 4);
        }
    }
    out
}

fn put_word(block: &mut [u8], lane: usize, step: usize, word: u32) {
    let at = lane * 16 + step * 4;
    block[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// The word from which `e2m1_pairs` takes four pairs of bf16: pair p is row `p % 2`, columns 2 (p / 2) and one more.
fn e2m1_word(codes: [[u8; 4]; 2]) -> u32 {
    let mut word = 0;
    for e in 0..2 {
        let [p0, p1, p2, p3] = [codes[0][e], codes[1][e], codes[0][2 + e], codes[1][2 + e]].map(u32::from);
        let (own, other) = (16 * e, 16 * (1 - e));
        word |= ((p0 >> 3) << 15 | (p0 & 7) << 6) << own;
        word |= ((p1 >> 3) << 11 | (p1 & 7) << 2) << own;
        word |= ((p2 >> 3) << 5) << own | ((p2 & 7) << 12) << other;
        word |= ((p3 >> 3) << 9 | (p3 >> 2 & 1) << 10 | p3 & 3) << own;
    }
    word
}

/// The magnitude of an e4m3 code, not zero, as 5 bits of exponent (2^(E - 22)) and 3 of mantissa.
fn scale_of_e4m3(code: u8) -> u8 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    if exponent > 0 {
        return (exponent + 15) << 3 | mantissa;
    }
    let top = mantissa.ilog2() as u8;
    (13 + top) << 3 | (mantissa << (3 - top)) & 7
}

fn e2m1(
    codes: &[u8],
    [n, k]: [usize; 2],
    order: Order,
    // The scale's byte, what the code's sign is flipped by, and which of its bits stay.
    scale: impl Fn(usize, usize) -> (u8, u8, u8),
) -> Vec<u8> {
    each_lane(n, k, order, |block, lane, rows, column, t| {
        let mut values = [[0; 16]; 2];
        for (half, row) in rows.into_iter().enumerate() {
            let first = row * k + column * 64 + t * 16;
            let (byte, flip, keep) = scale(row, first);
            block[512 + lane * 2 + half] = byte;
            for (i, value) in values[half].iter_mut().enumerate() {
                let pair = codes[(first + i) / 2];
                *value = ((if i % 2 == 0 { pair & 15 } else { pair >> 4 }) ^ flip) & keep;
            }
        }
        for step in 0..4 {
            let four = [0, 1].map(|half| [0, 1, 2, 3].map(|i| values[half][4 * step + i]));
            put_word(block, lane, step, e2m1_word(four));
        }
    })
}

/// NVFP4: codes `[n, k / 2]` (low nibble first) and e4m3 scales `[n, k / 16]`.
///
/// # Errors
/// Where n is no multiple of 16 or k none of 64, lengths disagree, or a scale is not a number.
pub fn nvfp4(codes: &[u8], scales: &[u8], [n, k]: [usize; 2], order: Order) -> Result<Vec<u8>> {
    check(n, k, codes.len())?;
    if scales.len() != n * k / 16 || scales.iter().any(|&s| E4M3[s as usize].is_nan()) {
        return Err(Error::failed(format!("the scales do not fit {n} x {k} weights")));
    }
    Ok(e2m1(codes, [n, k], order, |_, first| match scales[first / 16] {
        0 | 128 => (8, 0, 0),
        code => (scale_of_e4m3(code & 127), if code & 128 != 0 { 8 } else { 0 }, 15),
    }))
}

/// MXFP4: codes `[n, k / 2]` and e8m0 scales `[n, k / 32]`. Gives the blocks and what sums are multiplied by. Groups
/// 2^31 below the largest scale become zero.
///
/// # Errors
/// As [`nvfp4`].
pub fn mxfp4(codes: &[u8], scales: &[u8], [n, k]: [usize; 2], order: Order) -> Result<(Vec<u8>, f32)> {
    check(n, k, codes.len())?;
    let largest = scales.iter().copied().max().unwrap_or(0);
    if scales.len() != n * k / 32 || largest == 255 {
        return Err(Error::failed(format!("the scales do not fit {n} x {k} weights")));
    }
    let blocks = e2m1(codes, [n, k], order, |_, first| match largest - scales[first / 32] {
        below @ 0..=30 => ((30 - below) << 3, 0, 15),
        _ => (0, 0, 0),
    });
    // The largest stands for 2^8.
    Ok((blocks, E2M1_FACTOR * (f32::from(largest) - 127.0 - 8.0).exp2()))
}

/// NF4: codes `[n, k / 2]` (high nibble first) and absmax `[n, k / 64]`.
///
/// # Errors
/// Where n is no multiple of 16 or k none of 64, or lengths disagree.
pub fn nf4(codes: &[u8], absmax: &[f32], [n, k]: [usize; 2], order: Order) -> Result<Vec<u8>> {
    check(n, k, codes.len())?;
    if absmax.len() != n * k / 64 {
        return Err(Error::failed(format!("the scales do not fit {n} x {k} weights")));
    }
    Ok(each_lane(n, k, order, |block, lane, rows, column, t| {
        for step in 0..4 {
            let mut word = 0;
            for (half, row) in rows.into_iter().enumerate() {
                for i in 0..4 {
                    let at = row * k + column * 64 + t * 16 + 4 * step + i;
                    let code = if i % 2 == 0 { codes[at / 2] >> 4 } else { codes[at / 2] & 15 };
                    // Nibble 2 p + e: pair p is row half, columns 2 (p / 2) and e.
                    word |= u32::from(code) << (4 * (2 * (half + 2 * (i / 2)) + i % 2));
                }
            }
            put_word(block, lane, step, word);
        }
        for (half, row) in rows.into_iter().enumerate() {
            let at = 512 + (8 * half + lane / 4) * 4;
            block[at..at + 4].copy_from_slice(&absmax[row * (k / 64) + column].to_le_bytes());
        }
    }))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::quant;
    use crate::quant::nf4::LEVELS;
    use crate::quant::nvfp4::Global;

    const N: usize = 48;
    const K: usize = 128;

    fn bytes(seed: u32, len: usize) -> Vec<u8> {
        (0..len as u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed).wrapping_mul(0x9e37_79b1) >> 13) as u8)
            .collect()
    }

    /// What the kernels' masks and products make of the blocks, in the kernels' own order of operations, by (row,
    /// column) of the shuffled matrix. Scales and codes are multiplied in bf16.
    fn unpack_e2m1(blocks: &[u8], k: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; blocks.len() / BLOCK * 1024];
        for (index, block) in blocks.chunks_exact(BLOCK).enumerate() {
            let (strip, column) = (index / (k / 64), index % (k / 64));
            for lane in 0..32 {
                let scale = [0, 1].map(|h| u32::from(block[512 + 2 * lane + h]) * 16 + 0x7000);
                for step in 0..4 {
                    let at = lane * 16 + step * 4;
                    let q = u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
                    let mask = 0x81c0_81c0;
                    let pairs = [
                        q & mask,
                        (q << 4) & mask,
                        q.rotate_left(10) & mask,
                        (q >> 2) & 0x0100_0100 | (q << 6) & 0x80c0_80c0,
                    ];
                    for (p, pair) in pairs.into_iter().enumerate() {
                        for e in 0..2 {
                            let code = bf16::from_bits((pair >> (16 * e)) as u16);
                            let scale = bf16::from_bits(scale[p % 2] as u16);
                            let value = bf16::from_f32(code.to_f32() * scale.to_f32());
                            let row = strip * 16 + p % 2 * 8 + lane / 4;
                            let col = column * 64 + lane % 4 * 16 + step * 4 + p / 2 * 2 + e;
                            out[row * k + col] = value.to_f32();
                        }
                    }
                }
            }
        }
        out
    }

    fn source_row(order: Order, row: usize) -> usize {
        order.first_row(N, row / 16, row % 16 / 8) + row % 8
    }

    #[test]
    fn nvfp4_unpacks_to_what_the_format_means() {
        let codes = bytes(1, N * K / 2);
        // Every code that is a number, of both signs, zeros among them.
        let scales: Vec<u8> =
            (0..N * K / 16).map(|i| (i * 37 % 256) as u8).map(|s| if s & 127 == 127 { 3 } else { s }).collect();
        let mut plain = vec![0.0; N * K];
        quant::nvfp4::dequantize(&codes, &scales, Global::Multiplier(1.0), &mut plain);
        for order in [Order::Plain, Order::Interleaved] {
            let values = unpack_e2m1(&nvfp4(&codes, &scales, [N, K], order).unwrap(), K);
            for (i, value) in values.into_iter().enumerate() {
                let expected = plain[source_row(order, i / K) * K + i % K];
                assert_eq!(value * E2M1_FACTOR, expected, "{order:?}: row {}, column {}", i / K, i % K);
            }
        }
    }

    #[test]
    fn mxfp4_unpacks_to_what_the_format_means() {
        let codes = bytes(2, N * K / 2);
        let scales: Vec<u8> = (0..N * K / 32).map(|i| 100 + (i * 7 % 31) as u8).collect();
        let mut plain = vec![0.0; N * K];
        quant::mxfp4::dequantize(&codes, &scales, &mut plain);
        let (blocks, factor) = mxfp4(&codes, &scales, [N, K], Order::Plain).unwrap();
        for (value, expected) in unpack_e2m1(&blocks, K).into_iter().zip(plain) {
            assert_eq!(value * factor, expected);
        }
    }

    #[test]
    fn nf4_keeps_every_code_and_scale() {
        let codes = bytes(3, N * K / 2);
        let absmax: Vec<f32> = (0..N * K / 64).map(|i| 0.01 + i as f32).collect();
        let mut plain = vec![0.0; N * K];
        quant::nf4::dequantize(&codes, &absmax, &mut plain);
        let blocks = nf4(&codes, &absmax, [N, K], Order::Interleaved).unwrap();
        for (index, block) in blocks.chunks_exact(BLOCK).enumerate() {
            let (strip, column) = (index / (K / 64), index % (K / 64));
            for lane in 0..32 {
                for step in 0..4 {
                    let at = lane * 16 + step * 4;
                    let word = u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
                    for nibble in 0..8 {
                        let (pair, e) = (nibble / 2, nibble % 2);
                        let at = 512 + (pair % 2 * 8 + lane / 4) * 4;
                        let scale = f32::from_le_bytes(block[at..at + 4].try_into().unwrap());
                        let row = source_row(Order::Interleaved, strip * 16 + pair % 2 * 8 + lane / 4);
                        let col = column * 64 + lane % 4 * 16 + step * 4 + pair / 2 * 2 + e;
                        let value = LEVELS[(word >> (4 * nibble) & 15) as usize] * scale;
                        assert_eq!(value, plain[row * K + col]);
                    }
                }
            }
        }
    }

    #[test]
    fn all_sixteen_codes_survive_a_word() {
        for code in 0..16u8 {
            let word = e2m1_word([[code, code ^ 5, code, code ^ 9], [code ^ 3, code, code ^ 15, code]]);
            let codes = [code, code ^ 5, code, code ^ 9, code ^ 3, code, code ^ 15, code];
            let ones: u32 = codes.iter().map(|c| c.count_ones()).sum();
            assert_eq!(word.count_ones(), ones);
        }
    }

    #[test]
    fn shapes_without_blocks_are_refused() {
        assert!(nvfp4(&[0; 16 * 32], &[0; 16 * 4], [16, 64], Order::Plain).is_ok());
        assert!(nvfp4(&[0; 24 * 32], &[0; 24 * 4], [24, 64], Order::Plain).is_err());
        assert!(nf4(&[0; 16 * 16], &[0.0; 8], [16, 32], Order::Plain).is_err());
        assert!(nvfp4(&[0; 16 * 32], &[127; 16 * 4], [16, 64], Order::Plain).is_err());
    }
}
