//! Causal attention with grouped query heads in f32: `softmax(scale * q K^T) V`.
//!
//! Queries and results are `[rows, heads * dim]`, keys and values `[rows, kv_heads * dim]`; query head h reads kv head
//! `h / (heads / kv_heads)`. Keys and values are packed into [`Cache`]s, which prefill, decoding and training share.
//! A query's result depends on itself and its keys only, bit for bit: decoding it alone gives what a whole sequence
//! gives, and a prefix kept apart gives what one piece gives.

mod backward;
mod block;
mod cache;
mod decode;
mod forward;

pub use backward::{Saved, backward_packed};
pub use cache::Cache;
pub use decode::{Sequence, decode};
pub use forward::{forward, forward_packed};

use std::ops::Range;

/// The shape that all of a model's attention has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    /// Of the scores, commonly `1 / sqrt(dim)`; positive.
    pub scale: f32,
}

impl Heads {
    fn check(self) {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "heads {self:?}");
        assert!(self.dim > 0 && self.scale > 0.0, "heads {self:?}");
    }

    /// Query heads of a kv head.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// A sequence, or the rest of one, among packed tokens: the tokens `own` attend to all of `prefix` and, causally,
/// to each other. Completions of one prompt name its rows as their prefix, so that it is computed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub prefix: Range<usize>,
    pub own: Range<usize>,
}

impl Span {
    /// A whole sequence.
    pub fn whole(own: Range<usize>) -> Self {
        Self { prefix: 0..0, own }
    }
}

#[cfg(test)]
mod tests;
