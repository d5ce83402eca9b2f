//! Attention of up to 12 queries over the keys that they see: the one kernel of prefill, decoding and training.

use super::super::isa::Isa;
use super::super::line::with_scratch;
use super::super::micro::{MR, NR, Start, tile};
use super::super::vector::exp_in_place;
use super::Cache;

/// Copies up to 12 rows of `dim` floats to `[dim][rows]`.
pub(super) fn pack_rows<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, out: &mut [f32]) {
    let count = rows.len();
    for (r, row) in rows.enumerate() {
        for (out, &value) in out.iter_mut().skip(r).step_by(count).zip(row) {
            *out = value;
        }
    }
}

/// Attends from the queries `[rows][dim]` (given one by one) to the `visible(r)` first keys of `segments` (at least
/// one; not falling in r), and hands `(r, result [dim], log-sum-exp of the scaled scores)` to `store`.
pub(super) fn attend<'a>(
    isa: Isa,
    queries: impl ExactSizeIterator<Item = &'a [f32]>,
    segments: &[&Cache],
    scale: f32,
    visible: impl Fn(usize) -> usize,
    mut store: impl FnMut(usize, &[f32], f32),
) {
    let rows = queries.len();
    let dim = segments[0].dim();
    assert!((1..=MR).contains(&rows) && segments.iter().all(|s| s.dim() == dim));
    let limit = visible(rows - 1);
    assert!(limit <= segments.iter().map(|s| s.len()).sum(), "keys that are not there");
    with_scratch(rows * (dim + 2 * limit + dim.next_multiple_of(NR)), |scratch| {
        let (query, scratch) = scratch.split_at_mut(rows * dim);
        let (scores, scratch) = scratch.split_at_mut(rows * limit);
        let (weights, result) = scratch.split_at_mut(rows * limit);
        pack_rows(queries, query);

        for (segment, base) in with_bases(segments, limit) {
            let len = segment.len().min(limit - base);
            for block in 0..len.div_ceil(NR) {
                let column = base + block * NR;
                let cols = (len - block * NR).min(NR);
                // SAFETY: columns [column, column + cols) of the rows of `scores`, inside by `limit`.
                unsafe {
                    let c = scores.as_mut_ptr().add(column);
                    tile(
                        isa,
                        [rows, cols, dim],
                        query,
                        rows,
                        segment.key_panel(block),
                        c,
                        limit,
                        Start::Zero,
                        std::ptr::null(),
                    );
                }
            }
        }

        let mut sums = [(0f32, 0f32); MR];
        for (r, row) in scores.chunks_exact_mut(limit).enumerate() {
            let (seen, hidden) = row.split_at_mut(visible(r));
            sums[r] = exp_in_place(seen, scale);
            hidden.fill(0.0);
            for (weight, &value) in weights.iter_mut().skip(r).step_by(rows).zip(row.iter()) {
                *weight = value;
            }
        }

        for strip in 0..dim.div_ceil(NR) {
            for (segment, base) in with_bases(segments, limit) {
                let len = segment.len().min(limit - base);
                let start = if base == 0 { Start::Zero } else { Start::Old };
                let cols = (dim - strip * NR).min(NR);
                // SAFETY: columns [32 strip, 32 strip + cols) of the rows of `result`, of padded dim floats each.
                unsafe {
                    let c = result.as_mut_ptr().add(strip * NR);
                    let (weights, values) = (&weights[base * rows..], segment.value_panel(strip));
                    tile(
                        isa,
                        [rows, cols, len],
                        weights,
                        rows,
                        values,
                        c,
                        dim.next_multiple_of(NR),
                        start,
                        std::ptr::null(),
                    );
                }
            }
        }
        for (r, result) in result.chunks_exact_mut(dim.next_multiple_of(NR)).enumerate() {
            let (max, sum) = sums[r];
            let inverse = 1.0 / sum;
            let result = &mut result[..dim];
            result.iter_mut().for_each(|x| *x *= inverse);
            store(r, result, max * scale + sum.ln());
        }
    });
}

/// The segments that begin below `limit` and are not empty, with the position of their first key.
pub(super) fn with_bases<'a>(segments: &'a [&Cache], limit: usize) -> impl Iterator<Item = (&'a Cache, usize)> {
    segments
        .iter()
        .scan(0, |base, segment| {
            let start = *base;
            *base += segment.len();
            Some((*segment, start))
        })
        .filter(move |(segment, base)| *base < limit && !segment.is_empty())
}
