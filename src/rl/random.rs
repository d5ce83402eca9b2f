//! Randomness without state: every draw is a hash of (seed, purpose, step, index), so a resumed run draws what an
//! uninterrupted one would have drawn.

/// A 64-bit value that depends on nothing but its arguments.
pub fn key(seed: u64, purpose: &str, step: u64, index: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&(purpose.len() as u64).to_le_bytes());
    hasher.update(purpose.as_bytes());
    hasher.update(&step.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    let hash = hasher.finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// A permutation of 0..n for one epoch.
pub fn permutation(seed: u64, epoch: u64, n: usize) -> Vec<usize> {
    let mut order: Vec<(u64, usize)> = (0..n).map(|i| (key(seed, "order", epoch, i as u64), i)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, i)| i).collect()
}

/// A standard normal value (Box-Muller).
pub fn normal(seed: u64, purpose: &str, step: u64, index: u64) -> f64 {
    let bits = key(seed, purpose, step, index);
    // 32 bits each; + 0.5 keeps the logarithm's argument above 0.
    let u = ((bits >> 32) as f64 + 0.5) / 4_294_967_296.0;
    let v = ((bits & 0xffff_ffff) as f64 + 0.5) / 4_294_967_296.0;
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_sees_every_problem_once_in_another_order() {
        let (a, b) = (permutation(1, 0, 50), permutation(1, 1, 50));
        assert_ne!(a, b);
        for mut order in [a, b] {
            order.sort_unstable();
            assert_eq!(order, (0..50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let values: Vec<f64> = (0..4000).map(|i| normal(3, "test", 0, i)).collect();
        let mean = values.iter().sum::<f64>() / 4000.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 3999.0;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.08, "{mean} {variance}");
    }
}
