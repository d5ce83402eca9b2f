//! Keys and values of one kv head, in panels for the microkernel.

use super::super::line::{Floats, flat, flat_mut};
use super::super::micro::NR;

/// A growing store of keys and values of one kv head (of one layer and sequence). Keys lie as `[len/32][dim][32]`,
/// values as `[dim/32][len][32]`.
#[derive(Clone, Debug)]
pub struct Cache {
    dim: usize,
    len: usize,
    keys: Vec<Floats>,
    /// One per 32 features.
    values: Vec<Vec<Floats>>,
}

impl Cache {
    pub fn new(dim: usize) -> Self {
        Self { dim, len: 0, keys: Vec::new(), values: vec![Vec::new(); dim.div_ceil(NR)] }
    }

    /// Makes room for `more` positions beyond the present ones.
    pub fn reserve(&mut self, more: usize) {
        let len = self.len + more;
        let lines = len.div_ceil(NR) * self.dim * NR / 16;
        self.keys.reserve_exact(lines.saturating_sub(self.keys.len()));
        for strip in &mut self.values {
            strip.reserve_exact((len * NR / 16).saturating_sub(strip.len()));
        }
    }

    /// Positions stored.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Features of a key, and of a value.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Forgets all positions, keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
        self.keys.clear();
        self.values.iter_mut().for_each(Vec::clear);
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.iter().map(Vec::capacity).sum::<usize>()) * size_of::<Floats>()
    }

    /// Appends one position; `key` and `value` are `[dim]`.
    pub fn push(&mut self, key: &[f32], value: &[f32]) {
        assert!(key.len() == self.dim && value.len() == self.dim, "key and value are [dim]");
        let (block, lane) = (self.len / NR, self.len % NR);
        if lane == 0 {
            self.keys.resize((block + 1) * self.dim * NR / 16, Floats::ZERO);
        }
        let keys = &mut flat_mut(&mut self.keys)[block * self.dim * NR..];
        for (line, &key) in keys.chunks_exact_mut(NR).zip(key) {
            line[lane] = key;
        }
        for (strip, value) in self.values.iter_mut().zip(value.chunks(NR)) {
            for half in 0..NR / 16 {
                let mut line = Floats::ZERO;
                let part = &value[(half * 16).min(value.len())..((half + 1) * 16).min(value.len())];
                line.0[..part.len()].copy_from_slice(part);
                strip.push(line);
            }
        }
        self.len += 1;
    }

    /// Appends `rows` positions: row r's key is `keys[r * stride..][..dim]`, its value likewise.
    pub fn extend(&mut self, keys: &[f32], values: &[f32], stride: usize, rows: usize) {
        self.reserve(rows);
        for row in 0..rows {
            self.push(&keys[row * stride..][..self.dim], &values[row * stride..][..self.dim]);
        }
    }

    /// The panel `[dim][32]` of the keys `32 * block..`.
    pub(super) fn key_panel(&self, block: usize) -> &[f32] {
        &flat(&self.keys)[block * self.dim * NR..][..self.dim * NR]
    }

    /// Values as `[positions][32]`, features `32 * strip..`.
    pub(super) fn value_panel(&self, strip: usize) -> &[f32] {
        flat(&self.values[strip])
    }
}
