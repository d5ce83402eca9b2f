//! The product driver: packs the left operand once, then each task fills panels `[kc][32]` of the right operand
//! (dequantizing them on the way, so that they stay in the first-level cache) and runs the microkernel over its rows.

use std::ops::Range;

use super::isa::Isa;
use super::line::with_scratch;
use super::micro::{MR, NR, Start, Target, tile};
use super::pool::{Parts, Pool};

/// The most reduced indices of one panel: 256 * 32 floats are 32 KiB.
pub(super) const KC: usize = 256;

/// A right operand `[k, n]` that can write out panels of itself.
pub(super) trait Source: Sync {
    /// Writes the elements `[k0, k0 + kc)` x `[32 * strip, 32 * strip + 32)` to `out` `[kc][32]`; columns beyond n
    /// become 0. `k0` is a multiple of 64; `kc` is at most [`KC`].
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]);

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
    pub source: &'a dyn Source,
    pub n: usize,
    pub c: &'a mut [f32],
    pub ldc: usize,
}

/// The rows of part `i` when `rows` are cut into `parts` almost equal parts.
pub(super) fn cut(rows: usize, parts: usize, i: usize) -> Range<usize> {
    let (each, more) = (rows / parts, rows % parts);
    let start = i * each + i.min(more);
    start..start + each + usize::from(i < more)
}

/// `C (+)= A B` for each output, all with the same A `[m, k]`.
pub(super) fn products(
    pool: &Pool,
    isa: Isa,
    [m, k]: [usize; 2],
    left: Left<'_>,
    outputs: &mut [Output<'_>],
    start: Start,
) {
    for output in outputs.iter() {
        assert!(m == 0 || output.n == 0 || output.c.len() >= (m - 1) * output.ldc + output.n, "result too short");
        assert!(output.ldc >= output.n, "row stride below the row's length");
    }
    let (lines, wide) = if left.transposed { (k, m) } else { (m, k) };
    assert!(lines == 0 || wide == 0 || left.data.len() >= (lines - 1) * left.stride + wide, "left operand too short");
    assert!(left.stride >= wide || lines <= 1, "row stride below the row's length");
    if m == 0 {
        return;
    }
    let panels = m.div_ceil(MR);
    with_scratch(m * k, |packed| {
        let parts = Parts::new(packed);
        let pack_task = |i: usize| {
            let rows = cut(m, panels, i);
            // SAFETY: the rows of different panels are disjoint parts of the scratch.
            let out = unsafe { parts.slice(rows.start * k, rows.len() * k) };
            pack(left, rows, k, out);
        };
        if m * k < 32 * 1024 {
            (0..panels).for_each(pack_task)
        } else {
            pool.for_each(panels, &pack_task)
        }
        let packed = &*packed;

        let direct = outputs.iter().all(|output| m <= output.source.direct_rows(isa));
        let outputs: Vec<Job> = outputs
            .iter_mut()
            .map(|o| Job { source: o.source, target: Target { c: o.c.as_mut_ptr(), ldc: o.ldc, n: o.n, start } })
            .collect();
        if direct {
            direct_products(pool, isa, [m, k], packed, &outputs);
        } else {
            panel_products(pool, isa, [m, k], packed, &outputs);
        }
    });
}

/// An output of which tasks write different parts.
struct Job<'a> {
    source: &'a dyn Source,
    target: Target,
}

// SAFETY: the target's memory is borrowed by `products` for all of its tasks, which write disjoint parts.
unsafe impl Sync for Job<'_> {}

/// Few rows: each task multiplies some strips straight from the packed weights.
fn direct_products(pool: &Pool, isa: Isa, [m, k]: [usize; 2], packed: &[f32], outputs: &[Job<'_>]) {
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
        let &Job { source, target } = &outputs[o];
        // SAFETY: C's length is asserted by `products`; the strips of tasks are disjoint.
        unsafe { source.direct(isa, strips.clone(), packed, m, target) };
    });
}

/// Each task fills the panels of one strip and runs the microkernel over some rows.
fn panel_products(pool: &Pool, isa: Isa, [m, k]: [usize; 2], packed: &[f32], outputs: &[Job<'_>]) {
    let panels = m.div_ceil(MR);
    let strips: Vec<(usize, usize)> = outputs
        .iter()
        .enumerate()
        .flat_map(|(o, output)| (0..output.target.n.div_ceil(NR)).map(move |strip| (o, strip)))
        .collect();
    if strips.is_empty() {
        return;
    }
    // Few strips: cut the rows too, so that every thread has work. Many rows: keep A's chunk in the cache.
    let cuts = (4 * pool.threads()).div_ceil(strips.len()).max(panels.div_ceil(96)).clamp(1, panels);
    let chunks = k.div_ceil(KC).max(1);
    let chunk = k.div_ceil(chunks).next_multiple_of(64);
    pool.for_each(strips.len() * cuts, &|task| {
        let (o, strip) = strips[task / cuts];
        let &Job { source, target: Target { c, ldc, n, start } } = &outputs[o];
        let cols = (n - strip * NR).min(NR);
        with_scratch(KC * NR, |panel| {
            let mut k0 = 0;
            loop {
                let kc = chunk.min(k - k0);
                source.fill(isa, strip, k0, kc, &mut panel[..kc * NR]);
                let start = if k0 == 0 { start } else { Start::Old };
                for i in cut(panels, cuts, task % cuts) {
                    let rows = cut(m, panels, i);
                    let mr = rows.len();
                    let a = &packed[rows.start * k + k0 * mr..rows.end * k];
                    // SAFETY: C's length is asserted by `products`; the strips and row cuts of tasks are disjoint.
                    unsafe {
                        let c = c.add(rows.start * ldc + strip * NR);
                        tile(isa, [mr, cols, kc], a, mr, panel, c, ldc, start);
                    }
                }
                k0 += kc;
                if k0 >= k {
                    break;
                }
            }
        });
    });
}

/// Rows of A as `[k][rows]`.
pub(super) fn pack(left: Left<'_>, rows: Range<usize>, k: usize, out: &mut [f32]) {
    let mr = rows.len();
    if left.transposed {
        for (kk, out) in out.chunks_exact_mut(mr).enumerate().take(k) {
            let line = &left.data[kk * left.stride + rows.start..][..mr];
            for (out, &value) in out.iter_mut().zip(line) {
                *out = value * left.alpha;
            }
        }
    } else {
        // Blocks of 16 along k: one cache line of each row at a time.
        for k0 in (0..k).step_by(16) {
            let width = (k - k0).min(16);
            for (r, row) in rows.clone().enumerate() {
                let line = &left.data[row * left.stride + k0..][..width];
                for (j, &value) in line.iter().enumerate() {
                    out[(k0 + j) * mr + r] = value * left.alpha;
                }
            }
        }
    }
}
