//! What tests compare with: seeded numbers and naive products in f64.

/// Uniform numbers in [-1, 1) from a seed.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    pub(super) fn next(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// `sum(a * b)` and `sum(|a * b|)`, the scale of its rounding error.
pub(super) fn dot64(pairs: impl Iterator<Item = (f32, f32)>) -> (f64, f64) {
    pairs.fold((0.0, 0.0), |(sum, size), (a, b)| {
        let product = f64::from(a) * f64::from(b);
        (sum + product, size + product.abs())
    })
}

/// Asserts that a chain of `k` f32 products is near its exact value.
#[track_caller]
pub(super) fn near(got: f32, (want, size): (f64, f64), k: usize, what: &str) {
    let bound = size * f64::from(f32::EPSILON) * (k as f64).sqrt().max(4.0) + 1e-30;
    assert!((f64::from(got) - want).abs() <= bound, "{what}: {got} instead of {want} (bound {bound:e})");
}
