//! Random choices as a function of a name and a seed, the same on every machine and in every version.

/// SplitMix64 (Steele, Lea & Flood 2014).
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(name: &str, seed: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"qerl generate");
        hash.update(&seed.to_le_bytes());
        hash.update(name.as_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash.finalize().as_bytes()[..8]);
        Self(u64::from_le_bytes(bytes))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Within 0..n; the bias of the multiplication is below 2^-32 for the small `n` used here.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// Within low..=high.
    pub(super) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u32) as usize]
    }
}
