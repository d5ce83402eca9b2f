//! Attention of one new token per sequence.

use super::super::isa::Isa;
use super::super::micro::MR;
use super::super::pool::{Parts, Pool};
use super::block::attend;
use super::{Cache, Heads};

/// What a sequence attends to: a cache per kv head, in two pieces. Samples of one prompt share the first.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// `[kv_heads]`, or empty.
    pub prefix: &'a [Cache],
    /// `[kv_heads]`, or empty; holds the new token's key and value already, where it is not empty.
    pub own: &'a [Cache],
}

/// `out = attention(q)`: row s of `q` and `out` (`[sequences, heads * dim]`) sees all keys of sequence s.
///
/// # Panics
/// Where a shape does not fit, or a sequence has no keys.
pub fn decode(pool: &Pool, heads: Heads, q: &[f32], sequences: &[Sequence<'_>], out: &mut [f32]) {
    decode_with(pool, Isa::best(), heads, q, sequences, out);
}

pub(super) fn decode_with(pool: &Pool, isa: Isa, heads: Heads, q: &[f32], sequences: &[Sequence<'_>], out: &mut [f32]) {
    heads.check();
    let (dim, group) = (heads.dim, heads.group());
    let width = heads.heads * dim;
    assert!(q.len() == sequences.len() * width && out.len() == q.len(), "q and out are [sequences, heads * dim]");
    for sequence in sequences {
        for part in [sequence.prefix, sequence.own] {
            assert!(part.is_empty() || part.len() == heads.kv_heads, "one cache per kv head");
            assert!(part.iter().all(|cache| cache.dim() == dim && cache.len() == part[0].len()), "caches of one shape");
        }
    }
    let out = Parts::new(out);
    pool.for_each(sequences.len() * heads.kv_heads, &|task| {
        let (s, kv) = (task / heads.kv_heads, task % heads.kv_heads);
        let sequence = &sequences[s];
        let segments: Vec<&Cache> = sequence.prefix.get(kv).into_iter().chain(sequence.own.get(kv)).collect();
        let len: usize = segments.iter().map(|segment| segment.len()).sum();
        assert!(len > 0, "a sequence without keys");
        for first in (kv * group..(kv + 1) * group).step_by(MR) {
            let last = (first + MR).min((kv + 1) * group);
            let queries = q[s * width + first * dim..s * width + last * dim].chunks_exact(dim);
            attend(
                isa,
                queries,
                &segments,
                heads.scale,
                |_| len,
                |r, result, _| {
                    // SAFETY: each (sequence, head) is written by one task.
                    unsafe { out.slice(s * width + (first + r) * dim, dim) }.copy_from_slice(result);
                },
            );
        }
    });
}
