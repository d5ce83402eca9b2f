//! Gradients of attention, from the log-sum-exp that the forward pass saved (Dao et al. 2022, algorithm 4): the
//! probabilities are computed again in blocks of 48 queries by 96 keys; nothing of size rows * rows is kept.

use super::super::isa::Isa;
use super::super::line::with_scratch;
use super::super::micro::{MR, NR, Start, tile};
use super::super::pool::{Parts, Pool};
use super::super::vector::{add, dot, probabilities_in_place};
use super::block::{pack_rows, with_bases};
use super::forward::Packed;
use super::{Cache, Heads, Span};

/// Queries of a block: four row panels.
const ROWS: usize = 4 * MR;
/// Keys of a block: three column panels, eight row panels.
const KEYS: usize = 96;

/// What the forward pass had and gave; shapes as in [`super::forward_packed`].
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub out: &'a [f32],
    pub log_sum_exp: &'a [f32],
}

/// Writes the gradients of q, k and v (all rows; 0 where no span reads them), given that of `out`. Shapes as those
/// of the values. Uses `2 * tokens * heads * dim` floats of scratch (twice that below 16 heads).
///
/// # Panics
/// Where a shape does not fit, or spans' own rows overlap.
#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub fn backward_packed(
    pool: &Pool,
    heads: Heads,
    spans: &[Span],
    saved: Saved<'_>,
    d_out: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    backward_packed_with(pool, Isa::best(), heads, spans, saved, d_out, dq, dk, dv);
}

#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub(super) fn backward_packed_with(
    pool: &Pool,
    isa: Isa,
    heads: Heads,
    spans: &[Span],
    saved: Saved<'_>,
    d_out: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    heads.check();
    let (dim, group) = (heads.dim, heads.group());
    let (width, kv_width) = (heads.heads * dim, heads.kv_heads * dim);
    let tokens = saved.q.len() / width;
    let wide = [saved.q.len(), saved.out.len(), d_out.len(), dq.len()];
    assert!(wide.iter().all(|&len| len == tokens * width), "queries and results are [tokens, heads * dim]");
    let narrow = [saved.k.len(), saved.v.len(), dk.len(), dv.len()];
    assert!(narrow.iter().all(|&len| len == tokens * kv_width), "keys and values are [tokens, kv_heads * dim]");
    assert_eq!(saved.log_sum_exp.len(), heads.heads * tokens, "log-sum-exp is [heads, tokens]");
    dq.fill(0.0);

    // Roles swapped in the second one: v by key panels for dP = dO V^T, k by value panels for dQ = dS K.
    let packed = Packed::new(pool, heads, spans, saved.k, saved.v);
    let swapped = Packed::new(pool, heads, spans, saved.v, saved.k);
    // Blocks of a head are dealt to this many tasks; fixed by the shape, so that sums have one order.
    let parts = 16usize.div_ceil(heads.heads);
    let each = tokens * dim;
    let mut sums = vec![0f32; heads.heads * parts * 2 * each];
    {
        let (dq, sums) = (Parts::new(dq), Parts::new(&mut sums));
        pool.for_each(heads.heads * parts, &|task| {
            let (head, part) = (task / parts, task % parts);
            // SAFETY: one part of the sums per task.
            let (dk, dv) = unsafe { sums.slice(task * 2 * each, 2 * each) }.split_at_mut(each);
            let mut number = 0;
            for span in spans {
                let keys = packed.segments(span);
                let values = swapped.segments(span);
                let keys: Vec<&Cache> = keys.iter().map(|s| &s[head / group]).collect();
                let values: Vec<&Cache> = values.iter().map(|s| &s[head / group]).collect();
                for row in (0..span.own.len()).step_by(ROWS) {
                    number += 1;
                    if number % parts != part {
                        continue;
                    }
                    let rows = (span.own.len() - row).min(ROWS);
                    let block = Block { isa, heads, head, span, row, rows, tokens, keys: &keys, values: &values };
                    // SAFETY: rows of different blocks are disjoint, and a block belongs to one task.
                    let mut d_query =
                        |r: usize| unsafe { dq.slice((span.own.start + row + r) * width + head * dim, dim) };
                    block.run(saved, d_out, &mut d_query, dk, dv);
                }
            }
        });
    }
    let (dk, dv) = (Parts::new(dk), Parts::new(dv));
    pool.for_each(tokens, &|token| {
        for kv in 0..heads.kv_heads {
            for (which, out) in [&dk, &dv].into_iter().enumerate() {
                // SAFETY: one task per token.
                let out = unsafe { out.slice(token * kv_width + kv * dim, dim) };
                out.fill(0.0);
                for task in kv * group * parts..(kv + 1) * group * parts {
                    add(&sums[(task * 2 + which) * each + token * dim..][..dim], out);
                }
            }
        }
    });
}

/// Up to 48 queries of one head.
struct Block<'a> {
    isa: Isa,
    heads: Heads,
    head: usize,
    span: &'a Span,
    /// First query within the span.
    row: usize,
    rows: usize,
    tokens: usize,
    /// Keys, values; and with the roles of the two swapped.
    keys: &'a [&'a Cache],
    values: &'a [&'a Cache],
}

impl Block<'_> {
    fn run<'d>(
        &self,
        saved: Saved<'_>,
        d_out: &[f32],
        d_query: &mut dyn FnMut(usize) -> &'d mut [f32],
        dk: &mut [f32],
        dv: &mut [f32],
    ) {
        let dim = self.heads.dim;
        let padded = dim.next_multiple_of(NR);
        let sizes = [ROWS * dim, ROWS * dim, ROWS * padded, ROWS * padded, ROWS * padded, ROWS * KEYS, ROWS * KEYS];
        with_scratch(sizes.iter().sum::<usize>() + MR * KEYS, |scratch| {
            let mut rest = scratch;
            let mut take = |len: usize| {
                let (part, more) = std::mem::take(&mut rest).split_at_mut(len);
                rest = more;
                part
            };
            let [query, d_result, query_panels, d_result_panels, d_queries, p, ds] = sizes.map(&mut take);
            let turned = take(MR * KEYS);
            self.load(saved.q, query, query_panels);
            self.load(d_out, d_result, d_result_panels);
            let (width, first) = (self.heads.heads * dim, self.span.own.start + self.row);
            let at = |r: usize| (first + r) * width + self.head * dim;
            let mut deltas = [0f32; ROWS];
            for (r, delta) in deltas.iter_mut().enumerate().take(self.rows) {
                *delta = dot(&d_out[at(r)..][..dim], &saved.out[at(r)..][..dim]);
            }
            let log_sum_exp = &saved.log_sum_exp[self.head * self.tokens + first..][..self.rows];

            d_queries.fill(0.0);
            let before = self.span.prefix.len() + self.row;
            let limit = before + self.rows;
            for (which, (cache, base)) in with_bases(self.keys, limit).enumerate() {
                let swapped = with_bases(self.values, limit).nth(which).map_or(cache, |(cache, _)| cache);
                let len = cache.len().min(limit - base);
                let token = if base < self.span.prefix.len() { self.span.prefix.start } else { self.span.own.start };
                for key in (0..len).step_by(KEYS) {
                    let cols = (len - key).min(KEYS);
                    self.scores(query, cache, key, cols, p);
                    self.scores(d_result, swapped, key, cols, ds);
                    for r in 0..self.rows {
                        let seen = (before + r + 1).saturating_sub(base + key).min(cols);
                        let (p, ds) = (&mut p[r * KEYS..][..cols], &mut ds[r * KEYS..][..cols]);
                        probabilities_in_place(&mut p[..seen], self.heads.scale, log_sum_exp[r]);
                        p[seen..].fill(0.0);
                        for (ds, &p) in ds.iter_mut().zip(p.iter()) {
                            *ds = if p == 0.0 { 0.0 } else { p * (*ds - deltas[r]) * self.heads.scale };
                        }
                    }
                    let to = (token + key) * dim;
                    self.add_transposed(p, d_result_panels, cols, &mut dv[to..]);
                    self.add_transposed(ds, query_panels, cols, &mut dk[to..]);
                    self.add_queries(ds, swapped, key, cols, turned, d_queries);
                }
            }
            for (r, d) in d_queries.chunks_exact(padded).enumerate().take(self.rows) {
                d_query(r).copy_from_slice(&d[..dim]);
            }
        });
    }

    /// The block's rows as left operand `[panel][dim][12]` and as right operand `[dim/32][rows][32]`.
    fn load(&self, x: &[f32], left: &mut [f32], right: &mut [f32]) {
        let dim = self.heads.dim;
        let at = |r: usize| {
            let token = self.span.own.start + self.row + r;
            &x[(token * self.heads.heads + self.head) * dim..][..dim]
        };
        for (panel, left) in left.chunks_exact_mut(MR * dim).enumerate() {
            let rows = panel * MR..((panel + 1) * MR).min(self.rows);
            if !rows.is_empty() {
                pack_rows(rows.map(at), left);
            }
        }
        right.fill(0.0);
        for r in 0..self.rows {
            for (strip, part) in at(r).chunks(NR).enumerate() {
                right[(strip * ROWS + r) * NR..][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// `out [48][96] = left K^T` for `cols` keys from `key` on.
    fn scores(&self, left: &[f32], cache: &Cache, key: usize, cols: usize, out: &mut [f32]) {
        let dim = self.heads.dim;
        for column in (0..cols).step_by(NR) {
            let panel = cache.key_panel((key + column) / NR);
            for row in (0..self.rows).step_by(MR) {
                let shape = [(self.rows - row).min(MR), (cols - column).min(NR), dim];
                // SAFETY: within `out`, whose rows are KEYS long: row < 48, column + cols <= 96.
                unsafe {
                    let c = out.as_mut_ptr().add(row * KEYS + column);
                    tile(self.isa, shape, &left[row * dim..], shape[0], panel, c, KEYS, Start::Zero, std::ptr::null());
                }
            }
        }
    }

    /// `out [keys][dim] += x^T right` with x `[48][96]` and right `[dim/32][48][32]`.
    fn add_transposed(&self, x: &[f32], right: &[f32], cols: usize, out: &mut [f32]) {
        let dim = self.heads.dim;
        assert!(out.len() >= cols * dim);
        for strip in 0..dim.div_ceil(NR) {
            for key in (0..cols).step_by(MR) {
                let shape = [(cols - key).min(MR), (dim - strip * NR).min(NR), self.rows];
                // SAFETY: rows key.. of `out`, whose length is asserted.
                unsafe {
                    let c = out.as_mut_ptr().add(key * dim + strip * NR);
                    tile(
                        self.isa,
                        shape,
                        &x[key..],
                        KEYS,
                        &right[strip * ROWS * NR..],
                        c,
                        dim,
                        Start::Old,
                        std::ptr::null(),
                    );
                }
            }
        }
    }

    /// `d_queries [48][padded dim] += ds K`.
    fn add_queries(
        &self,
        ds: &[f32],
        swapped: &Cache,
        key: usize,
        cols: usize,
        turned: &mut [f32],
        d_queries: &mut [f32],
    ) {
        let dim = self.heads.dim;
        let padded = dim.next_multiple_of(NR);
        for row in (0..self.rows).step_by(MR) {
            let rows = (self.rows - row).min(MR);
            pack_rows((row..row + rows).map(|r| &ds[r * KEYS..][..cols]), turned);
            for strip in 0..dim.div_ceil(NR) {
                let panel = &swapped.value_panel(strip)[key * NR..];
                let shape = [rows, (dim - strip * NR).min(NR), cols];
                // SAFETY: rows row.. of `d_queries`, each `padded` long.
                unsafe {
                    let c = d_queries.as_mut_ptr().add(row * padded + strip * NR);
                    tile(self.isa, shape, turned, rows, panel, c, padded, Start::Old, std::ptr::null());
                }
            }
        }
    }
}
