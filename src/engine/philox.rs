//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random numbers as a pure
//! function of a key and a counter, so that a sequence's draws depend on nothing else in the batch.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Keeps the streams of one key apart: the third word of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// One draw per sampled token.
    Tokens = 0,
    /// Noise on norm weights.
    Noise = 1,
}

/// The four words of one counter value.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Uniform in [0, 1) with 53 bits: draw number `index` of the stream.
pub fn uniform(seed: u64, stream: Stream, index: u64) -> f64 {
    let [lo, hi] = split(index);
    let words = philox([lo, hi, stream as u32, 0], split(seed));
    let bits = u64::from(words[0]) << 21 | u64::from(words[1]) >> 11;
    bits as f64 * 2f64.powi(-53)
}

/// Fills `out` with standard normal values (Box-Muller); `part` keeps several vectors of one seed apart.
pub fn normals(seed: u64, stream: Stream, part: u32, out: &mut [f32]) {
    for (block, chunk) in out.chunks_mut(4).enumerate() {
        let [lo, hi] = split(block as u64);
        debug_assert_eq!(hi, 0, "a norm has fewer than 2^34 entries");
        let words = philox([lo, part, stream as u32, hi], split(seed));
        // In (0, 1): the logarithm below stays finite.
        let u = words.map(|w| (f64::from(w) + 0.5) * 2f64.powi(-32));
        let mut values = [0f32; 4];
        for pair in 0..2 {
            let radius = (-2.0 * u[2 * pair].ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * u[2 * pair + 1]).sin_cos();
            values[2 * pair] = (radius * cos) as f32;
            values[2 * pair + 1] = (radius * sin) as f32;
        }
        chunk.copy_from_slice(&values[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers_hold() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normals_have_unit_moments_and_differ_by_part() {
        let mut a = vec![0.0; 40_001];
        let mut b = a.clone();
        normals(7, Stream::Noise, 0, &mut a);
        normals(7, Stream::Noise, 1, &mut b);
        let mean = a.iter().map(|&x| f64::from(x)).sum::<f64>() / a.len() as f64;
        let var = a.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / a.len() as f64;
        let cross = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>() / a.len() as f64;
        assert!(mean.abs() < 0.02 && (var - 1.0).abs() < 0.03 && cross.abs() < 0.02, "{mean} {var} {cross}");
    }

    #[test]
    fn uniforms_are_in_range_and_spread() {
        let draws: Vec<f64> = (0..10_000).map(|i| uniform(3, Stream::Tokens, i)).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.015, "{mean}");
    }
}
