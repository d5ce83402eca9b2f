//! The product driver: packs the left operand once, then each task fills panels `[kc][32]` of the right operand
//! (dequantizing them on the way, so that they stay in the first-level cache) and runs the microkernel over its rows.

use std::ops::Range;

use super::isa::Isa;
use super::line::{Line, with_scratch};
use super::micro::{MR, NR, Start, Target, tile};
use super::pool::{Parts, Pool};

/// The most reduced indices of one panel: 192 * 32 floats are 24 KiB, half of a first-level cache.
pub(super) const KC: usize = 192;
/// The most reduced indices that a task goes through before all rows have seen them, a multiple of [`KC`].
const DEEP: usize = 8 * KC;
/// Floats of A that a task works on: 1 MiB, half of a second-level cache.
const BLOCK: usize = 256 * 1024;

/// A right operand `[k, n]` that can write out panels of itself.
pub(super) trait Source: Sync {
    /// Writes the elements `[k0, k0 + kc)` x `[32 * strip, 32 * strip + 32)` to `out` `[kc][32]`; columns beyond n
    /// become 0. `k0` is a multiple of 64; `kc` is 1 to [`KC`].
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]);

    /// Where the packed elements from (`strip`, `k0`) on lie, to be fetched ahead; null where that brings nothing.
    fn address(&self, _strip: usize, _k0: usize) -> *const Line {
        std::ptr::null()
    }

    /// Up to how many rows of A [`Source::direct`] multiplies; 0 where there is no such code.
    fn direct_rows(&self, _: Isa) -> usize {
        0
    }

    /// The columns of these strips of `C (+)= A B` without a panel: A `[k][m]`, m from 1 to [`Source::direct_rows`].
    ///
    /// # Safety
    /// C's columns of these strips must be writable by this call alone.
    unsafe fn direct(&self, isa: Isa, _: Range<usize>, _: &[f32], _: usize, _: Target) {
        unreachable!("no direct product with {isa:?}");
    }
}

impl<S: Source> Source for &S {
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        (**self).fill(isa, strip, k0, kc, out);
    }

    fn address(&self, strip: usize, k0: usize) -> *const Line {
        (**self).address(strip, k0)
    }

    fn direct_rows(&self, isa: Isa) -> usize {
        (**self).direct_rows(isa)
    }

    unsafe fn direct(&self, isa: Isa, strips: Range<usize>, a: &[f32], m: usize, target: Target) {
        // SAFETY: the caller's promise.
        unsafe { (**self).direct(isa, strips, a, m, target) }
    }
}

/// A left operand `[m, k]`, multiplied with `alpha` when packed.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    /// Between rows of `data`, which is `[m, k]`, or `[k, m]` where transposed.
    pub stride: usize,
    pub transposed: bool,
    pub alpha: f32,
}

/// One product of a call: C `[m, n]` with row stride `ldc`.
pub(super) struct Output<'a> {
    /// Which of the call's left operands.
    pub left: usize,
    pub source: &'a dyn Source,
    pub n: usize,
    pub c: &'a mut [f32],
    pub ldc: usize,
    pub start: Start,
}

/// The rows of part `i` when `rows` are cut into `parts` almost equal parts.
pub(super) fn cut(rows: usize, parts: usize, i: usize) -> Range<usize> {
    let (each, more) = (rows / parts, rows % parts);
    let start = i * each + i.min(more);
    start..start + each + usize::from(i < more)
}

/// `C (+)= A B` for each output, in one job; all A are `[m, k]`.
pub(super) fn products(pool: &Pool, isa: Isa, [m, k]: [usize; 2], lefts: &[Left<'_>], outputs: &mut [Output<'_>]) {
    for output in outputs.iter() {
        assert!(m == 0 || output.n == 0 || output.c.len() >= (m - 1) * output.ldc + output.n, "result too short");
        assert!(output.ldc >= output.n, "row stride below the row's length");
        assert!(output.left < lefts.len(), "no such left operand");
    }
    for left in lefts {
        let (lines, wide) = if left.transposed { (k, m) } else { (m, k) };
        let long = lines == 0 || wide == 0 || left.data.len() >= (lines - 1) * left.stride + wide;
        assert!(long, "left operand too short");
        assert!(left.stride >= wide || lines <= 1, "row stride below the row's length");
    }
    if m == 0 {
        return;
    }
    with_scratch(lefts.len() * m * k, |packed| {
        for (i, &left) in lefts.iter().enumerate() {
            pack(pool, isa, [m, k], left, &mut packed[i * m * k..][..m * k]);
        }
        let packed = &*packed;
        let direct = m <= outputs.iter().map(|output| output.source.direct_rows(isa)).max().unwrap_or(0);
        let outputs: Vec<Job> = outputs
            .iter_mut()
            .map(|o| Job {
                packed: &packed[o.left * m * k..][..m * k],
                source: o.source,
                target: Target { c: o.c.as_mut_ptr(), ldc: o.ldc, n: o.n, start: o.start },
            })
            .collect();
        if direct {
            direct_products(pool, isa, [m, k], &outputs);
        } else {
            panel_products(pool, isa, [m, k], &outputs);
        }
    });
}

/// An output of which tasks write different parts.
struct Job<'a> {
    /// The left operand.
    packed: &'a [f32],
    source: &'a dyn Source,
    target: Target,
}

// SAFETY: the target's memory is borrowed by `products` for all of its tasks, which write disjoint parts.
unsafe impl Sync for Job<'_> {}

/// Few rows: each task multiplies some strips straight from the packed weights (those of sources without such code,
/// LoRA's A beside the base's weight, through a panel).
fn direct_products(pool: &Pool, isa: Isa, [m, k]: [usize; 2], outputs: &[Job<'_>]) {
    let strips: usize = outputs.iter().map(|o| o.target.n.div_ceil(NR)).sum();
    // A few tasks per thread even out what the system takes away from one; small ones cost more than they bring.
    let each = strips.div_ceil(4 * pool.threads()).clamp(1, (64 * 1024 / k.max(1)).clamp(1, 64));
    let tasks: Vec<(usize, Range<usize>)> = outputs
        .iter()
        .enumerate()
        .flat_map(|(o, output)| {
            let strips = output.target.n.div_ceil(NR);
            (0..strips).step_by(each).map(move |from| (o, from..(from + each).min(strips)))
        })
        .collect();
    pool.for_each(tasks.len(), &|task| {
        let (o, ref strips) = tasks[task];
        let &Job { packed, source, target } = &outputs[o];
        if m <= source.direct_rows(isa) {
            // SAFETY: C's length is asserted by `products`; the strips of tasks are disjoint.
            unsafe { source.direct(isa, strips.clone(), packed, m, target) };
        } else {
            for strip in strips.clone() {
                // SAFETY: as above.
                unsafe { strip_product(isa, [m, k], &outputs[o], strip, 0..m.div_ceil(MR), 0..k) };
            }
        }
    });
}

/// Each task fills the panels of one strip and runs the microkernel over a block of rows.
fn panel_products(pool: &Pool, isa: Isa, [m, k]: [usize; 2], outputs: &[Job<'_>]) {
    let panels = m.div_ceil(MR);
    let strips: Vec<(usize, usize)> = outputs
        .iter()
        .enumerate()
        .flat_map(|(o, output)| (0..output.target.n.div_ceil(NR)).map(move |strip| (o, strip)))
        .collect();
    if strips.is_empty() {
        return;
    }
    let deep = k.clamp(1, DEEP);
    // Row blocks of A that stay in the second-level cache; more of them where strips are too few for all threads.
    let cuts = panels.div_ceil((BLOCK / (MR * deep)).max(1)).max((4 * pool.threads()).div_ceil(strips.len()));
    let cuts = cuts.clamp(1, panels);
    // A task's strips follow each other in memory, so that the next one can be fetched ahead.
    let each = (strips.len() * cuts / (8 * pool.threads())).clamp(1, 8);
    let groups = strips.len().div_ceil(each);
    let mut from = 0;
    loop {
        let to = (from + DEEP).min(k);
        pool.for_each(groups * cuts, &|task| {
            // Tasks that follow each other share the rows.
            let group = task % groups * each;
            let block = cut(panels, cuts, task / groups);
            for &(o, strip) in &strips[group..(group + each).min(strips.len())] {
                // SAFETY: C's length is asserted by `products`; the strips and row blocks of tasks are disjoint.
                unsafe { strip_product(isa, [m, k], &outputs[o], strip, block.clone(), from..to) };
            }
        });
        from = to;
        if from >= k {
            break;
        }
    }
}

/// `C (+)= A B` for one strip, a range of row panels and a range of k.
///
/// # Safety
/// The strip of C must be writable in these rows by this call alone.
unsafe fn strip_product(
    isa: Isa,
    [m, k]: [usize; 2],
    &Job { packed, source, target }: &Job<'_>,
    strip: usize,
    block: Range<usize>,
    ks: Range<usize>,
) {
    let Target { c, ldc, n, start } = target;
    let panels = m.div_ceil(MR);
    let cols = (n - strip * NR).min(NR);
    let chunk = ks.len().div_ceil(ks.len().div_ceil(KC).max(1)).next_multiple_of(64);
    with_scratch(KC * NR, |panel| {
        let mut k0 = ks.start;
        loop {
            let kc = chunk.min(ks.end - k0);
            if kc > 0 {
                source.fill(isa, strip, k0, kc, &mut panel[..kc * NR]);
            }
            let start = if k0 == 0 { start } else { Start::Old };
            let mut ahead = source.address(strip, k0 + kc);
            for i in block.clone() {
                let rows = cut(m, panels, i);
                let mr = rows.len();
                let a = &packed[rows.start * k + k0 * mr..rows.end * k];
                let c = c.wrapping_add(rows.start * ldc + strip * NR);
                if i + 1 < block.end {
                    prefetch(c.wrapping_add(mr * ldc), ldc, mr);
                }
                // SAFETY: the caller's promise.
                unsafe { tile(isa, [mr, cols, kc], a, mr, panel, c, ldc, start, ahead) };
                // A tile fetches a line per k, which is as much as a chunk of any format has.
                ahead = std::ptr::null();
            }
            k0 += kc;
            if k0 >= ks.end {
                break;
            }
        }
    });
}

/// Fetches `rows` rows of 32 floats: those that the next tile adds to.
#[inline]
fn prefetch(c: *const f32, ldc: usize, rows: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for row in 0..rows {
            let line = c.wrapping_add(row * ldc);
            // SAFETY: a prefetch touches no memory, wherever it points.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(line.cast());
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(16).cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (c, ldc, rows);
}

/// Packs A `[m, k]`: panel after panel of up to 12 rows, each `[k][rows]`.
fn pack(pool: &Pool, isa: Isa, [m, k]: [usize; 2], left: Left<'_>, out: &mut [f32]) {
    let panels = m.div_ceil(MR);
    let out = Parts::new(out);
    // Pieces of 64 indices along k, of all rows where A is transposed: its lines are read from end to end.
    let (tasks, rows_of) = if left.transposed { (k.div_ceil(64), panels) } else { (panels, 1) };
    let task = |task: usize| {
        let (first, ks) = if left.transposed { (0, task * 64..(task * 64 + 64).min(k)) } else { (task, 0..k) };
        for panel in first..first + rows_of {
            let rows = cut(m, panels, panel);
            let mr = rows.len();
            // SAFETY: different tasks have different rows, or different ks.
            let out = unsafe { out.slice(rows.start * k + ks.start * mr, ks.len() * mr) };
            if left.transposed {
                pack_columns(left, rows, ks.clone(), out);
            } else {
                pack_rows(isa, left, rows, k, out);
            }
        }
    };
    if m * k < 32 * 1024 { (0..tasks).for_each(task) } else { pool.for_each(tasks, &task) }
}

/// `[ks][rows]` of A given as `[k, m]`.
fn pack_columns(left: Left<'_>, rows: Range<usize>, ks: Range<usize>, out: &mut [f32]) {
    for (k, out) in ks.zip(out.chunks_exact_mut(rows.len())) {
        let line = &left.data[k * left.stride + rows.start..][..rows.len()];
        for (out, &value) in out.iter_mut().zip(line) {
            *out = value * left.alpha;
        }
    }
}

/// `[k][rows]` of A given as `[m, k]`.
fn pack_rows(isa: Isa, left: Left<'_>, rows: Range<usize>, k: usize, out: &mut [f32]) {
    let mr = rows.len();
    if mr == 1 {
        for (out, &value) in out.iter_mut().zip(&left.data[rows.start * left.stride..][..k]) {
            *out = value * left.alpha;
        }
        return;
    }
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        done = k / 16 * 16;
        let lines = &left.data[rows.start * left.stride..][..(mr - 1) * left.stride + k];
        // SAFETY: the CPU has `isa`; `mr` lines of k floats, `k * mr` floats of `out`.
        unsafe { pack_rows_avx512(lines, left.stride, mr, done, left.alpha, &mut out[..k * mr]) };
    }
    let _ = isa;
    // Blocks of 16 along k: one cache line of each row at a time.
    for k0 in (done..k).step_by(16) {
        let width = (k - k0).min(16);
        for (r, row) in rows.clone().enumerate() {
            let line = &left.data[row * left.stride + k0..][..width];
            for (j, &value) in line.iter().enumerate() {
                out[(k0 + j) * mr + r] = value * left.alpha;
            }
        }
    }
}

/// # Safety
/// The CPU must have AVX-512F; `data` holds `rows` (1 to 16) lines of `k` floats `stride` apart, `out` `k * rows`
/// floats; k is a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn pack_rows_avx512(data: &[f32], stride: usize, rows: usize, k: usize, alpha: f32, out: &mut [f32]) {
    use std::arch::x86_64::*;
    debug_assert!((1..=16).contains(&rows) && k.is_multiple_of(16) && out.len() >= k * rows);
    let mask = u16::MAX >> (16 - rows);
    let alpha = _mm512_set1_ps(alpha);
    for k0 in (0..k).step_by(16) {
        let mut lines = [_mm512_setzero_ps(); 16];
        for (r, line) in lines.iter_mut().enumerate().take(rows) {
            // SAFETY: 16 floats of line r, by the caller's promise.
            *line = _mm512_mul_ps(unsafe { _mm512_loadu_ps(data.as_ptr().add(r * stride + k0)) }, alpha);
        }
        for (j, column) in super::dense::transposed_16(lines).into_iter().enumerate() {
            // SAFETY: `rows` floats of `out`.
            unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr().add((k0 + j) * rows), mask, column) };
        }
    }
}
