//! Loops over rows, dealt to threads in pieces that are worth a task.

use super::kernels::{Parts, Pool, vector};

/// Floats that make up one task.
const PIECE: usize = 1 << 14;

/// Calls `f` once per row of `width` floats; a row's result must not depend on how rows are dealt.
pub(super) fn each(pool: &Pool, rows: usize, width: usize, f: &(dyn Fn(usize) + Sync)) {
    let per_task = (PIECE / width.max(1)).max(1);
    pool.for_each(rows.div_ceil(per_task), &|task| {
        for row in task * per_task..rows.min((task + 1) * per_task) {
            f(row);
        }
    });
}

/// RMS norm of each row of `x` `[rows, weight.len()]`; `inverses` `[rows]` receives what the backward pass needs.
pub(super) fn norm(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], inverses: &mut [f32]) {
    let width = weight.len();
    let rows = x.len() / width;
    let (out, inverses) = (Parts::new(out), Parts::new(inverses));
    each(pool, rows, width, &|row| {
        // SAFETY: one row per call.
        let (out, inverse) = unsafe { (out.slice(row * width, width), inverses.slice(row, 1)) };
        inverse[0] = vector::rms_norm(&x[row * width..][..width], weight, eps, out);
    });
}

/// Adds to `dx` the gradient of `x`, given that of the normed rows, and to `d_weight` that of the weight.
pub(super) fn norm_backward(
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    inverses: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    d_weight: Option<&mut [f32]>,
) {
    let width = weight.len();
    let rows = x.len() / width;
    let parts = Parts::new(dx);
    each(pool, rows, width, &|r| {
        let at = r * width..(r + 1) * width;
        // SAFETY: one row per call.
        let dx = unsafe { parts.slice(r * width, width) };
        vector::rms_norm_backward(&x[at.clone()], weight, inverses[r], &dy[at], dx, None);
    });
    // In row order, so that the sum does not depend on threads.
    if let Some(d_weight) = d_weight {
        for r in 0..rows {
            let (x, dy) = (&x[r * width..][..width], &dy[r * width..][..width]);
            for ((d, x), dy) in d_weight.iter_mut().zip(x).zip(dy) {
                *d += x * inverses[r] * dy;
            }
        }
    }
}

/// `out = silu(gate) * up`, elementwise.
pub(super) fn silu_mul(pool: &Pool, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let len = out.len();
    let parts = Parts::new(out);
    pool.for_each(len.div_ceil(PIECE), &|task| {
        let at = task * PIECE..len.min((task + 1) * PIECE);
        // SAFETY: one piece per task.
        let out = unsafe { parts.slice(at.start, at.len()) };
        vector::silu_mul(&gate[at.clone()], &up[at], out);
    });
}

/// Replaces `gate` and `up` with their gradients, given that of [`silu_mul`]'s result.
pub(super) fn silu_mul_backward(pool: &Pool, gate: &mut [f32], up: &mut [f32], d_out: &[f32]) {
    let len = d_out.len();
    let (gates, ups) = (Parts::new(gate), Parts::new(up));
    pool.for_each(len.div_ceil(PIECE), &|task| {
        let at = task * PIECE..len.min((task + 1) * PIECE);
        // SAFETY: one piece per task.
        let (gate, up) = unsafe { (gates.slice(at.start, at.len()), ups.slice(at.start, at.len())) };
        vector::silu_mul_backward(gate, up, &d_out[at]);
    });
}

/// `y += x`, elementwise.
pub(super) fn add(pool: &Pool, x: &[f32], y: &mut [f32]) {
    let len = y.len();
    let parts = Parts::new(y);
    pool.for_each(len.div_ceil(PIECE), &|task| {
        let at = task * PIECE..len.min((task + 1) * PIECE);
        // SAFETY: one piece per task.
        vector::add(&x[at.clone()], unsafe { parts.slice(at.start, at.len()) });
    });
}
