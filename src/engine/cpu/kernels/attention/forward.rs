//! Attention of many tokens of a sequence.

use super::super::isa::Isa;
use super::super::micro::MR;
use super::super::pool::{Parts, Pool};
use super::block::attend;
use super::{Cache, Heads, Span};

/// `out = attention(q)` for the last `rows` positions of a sequence, whose keys are in `segments`, one behind the
/// other (each a cache per kv head): row i sees the keys up to its own. `q` and `out` are `[rows, heads * dim]`.
/// `log_sum_exp` `[heads, rows]`, or empty where it is not wanted, receives that of the scaled scores.
///
/// # Panics
/// Where a shape does not fit.
pub fn forward(pool: &Pool, heads: Heads, q: &[f32], segments: &[&[Cache]], out: &mut [f32], log_sum_exp: &mut [f32]) {
    heads.check();
    let rows = q.len() / (heads.heads * heads.dim);
    let job = Job { first: 0, rows, segments: segments.to_vec() };
    run(pool, Isa::best(), heads, q, &[job], out, log_sum_exp);
}

/// `out = attention(q, k, v)` for packed sequences, or trees of a prompt and its completions. `q` and `out` are
/// `[tokens, heads * dim]`, `k` and `v` `[tokens, kv_heads * dim]`, `log_sum_exp` is `[heads, tokens]`. Rows that
/// are in no span's `own` are left as they are.
///
/// # Panics
/// Where a shape does not fit, or spans' own rows overlap.
#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub fn forward_packed(
    pool: &Pool,
    heads: Heads,
    spans: &[Span],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    log_sum_exp: &mut [f32],
) {
    forward_packed_with(pool, Isa::best(), heads, spans, q, k, v, out, log_sum_exp);
}

#[expect(clippy::too_many_arguments, reason = "the operands of attention")]
pub(super) fn forward_packed_with(
    pool: &Pool,
    isa: Isa,
    heads: Heads,
    spans: &[Span],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    log_sum_exp: &mut [f32],
) {
    heads.check();
    let packed = Packed::new(pool, heads, spans, k, v);
    let jobs: Vec<_> = spans
        .iter()
        .map(|span| Job { first: span.own.start, rows: span.own.len(), segments: packed.segments(span) })
        .collect();
    run(pool, isa, heads, q, &jobs, out, log_sum_exp);
}

/// `rows` queries from row `first` on, the last positions of `segments`.
struct Job<'a> {
    first: usize,
    rows: usize,
    segments: Vec<&'a [Cache]>,
}

fn run(pool: &Pool, isa: Isa, heads: Heads, q: &[f32], jobs: &[Job<'_>], out: &mut [f32], log_sum_exp: &mut [f32]) {
    let dim = heads.dim;
    let width = heads.heads * dim;
    let tokens = q.len() / width;
    assert!(q.len() == tokens * width && out.len() == q.len(), "q and out are [rows, heads * dim]");
    assert!(log_sum_exp.is_empty() || log_sum_exp.len() == heads.heads * tokens, "log-sum-exp is [heads, rows]");
    for job in jobs {
        assert!(job.first + job.rows <= tokens, "rows beyond the queries");
        for segment in &job.segments {
            assert_eq!(segment.len(), heads.kv_heads, "one cache per kv head");
            assert!(segment.iter().all(|c| c.dim() == dim && c.len() == segment[0].len()), "caches of one shape");
        }
        let len: usize = job.segments.iter().map(|segment| segment[0].len()).sum();
        assert!(len >= job.rows, "the rows' own keys are missing");
    }
    // The longest blocks first, so that no thread is left alone with one at the end.
    let blocks: Vec<(usize, usize)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(j, job)| (0..job.rows.div_ceil(MR)).rev().map(move |block| (j, block * MR)))
        .collect();
    let wanted = !log_sum_exp.is_empty();
    let (out, log_sum_exp) = (Parts::new(out), Parts::new(log_sum_exp));
    pool.for_each(blocks.len() * heads.heads, &|task| {
        let ((j, row), head) = (blocks[task / heads.heads], task % heads.heads);
        let job = &jobs[j];
        let segments: Vec<&Cache> = job.segments.iter().map(|segment| &segment[head / heads.group()]).collect();
        let len: usize = segments.iter().map(|segment| segment.len()).sum();
        let rows = (job.rows - row).min(MR);
        let queries = (0..rows).map(|r| &q[(job.first + row + r) * width + head * dim..][..dim]);
        let visible = |r: usize| len - job.rows + row + r + 1;
        attend(isa, queries, &segments, heads.scale, visible, |r, result, lse| {
            let token = job.first + row + r;
            // SAFETY: each (row, head) is written by one task, since the rows of jobs are disjoint.
            unsafe {
                out.slice(token * width + head * dim, dim).copy_from_slice(result);
                if wanted {
                    log_sum_exp.slice(head * tokens + token, 1)[0] = lse;
                }
            }
        });
    });
}

/// Caches of all ranges that some spans name.
pub(super) struct Packed {
    ranges: Vec<std::ops::Range<usize>>,
    /// `[ranges][kv_heads]`
    caches: Vec<Vec<Cache>>,
}

impl Packed {
    /// Packs `k` and `v`, `[tokens, kv_heads * dim]`.
    pub(super) fn new(pool: &Pool, heads: Heads, spans: &[Span], k: &[f32], v: &[f32]) -> Self {
        let (dim, width) = (heads.dim, heads.kv_heads * heads.dim);
        assert!(k.len() == v.len() && k.len().is_multiple_of(width), "k and v are [tokens, kv_heads * dim]");
        let mut own: Vec<_> = spans.iter().map(|span| span.own.clone()).filter(|range| !range.is_empty()).collect();
        own.sort_by_key(|range| range.start);
        assert!(own.windows(2).all(|pair| pair[0].end <= pair[1].start), "spans share rows");
        let mut ranges = own;
        ranges.extend(spans.iter().map(|span| span.prefix.clone()).filter(|range| !range.is_empty()));
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup();
        let mut caches = vec![vec![Cache::new(dim); heads.kv_heads]; ranges.len()];
        {
            let mut cells: Vec<&mut Cache> = caches.iter_mut().flatten().collect();
            let parts = Parts::new(&mut cells);
            pool.for_each(ranges.len() * heads.kv_heads, &|task| {
                let (range, kv) = (&ranges[task / heads.kv_heads], task % heads.kv_heads);
                let from = range.start * width + kv * dim..range.end * width;
                // SAFETY: one task per cache.
                let cache = unsafe { &mut parts.slice(task, 1)[0] };
                cache.extend(&k[from.clone()], &v[from], width, range.len());
            });
        }
        Self { ranges, caches }
    }

    /// Prefix and own caches of a span, without empty ones.
    pub(super) fn segments(&self, span: &Span) -> Vec<&[Cache]> {
        [&span.prefix, &span.own]
            .into_iter()
            .filter_map(|range| self.ranges.iter().position(|r| r == range))
            .map(|i| self.caches[i].as_slice())
            .collect()
    }
}
