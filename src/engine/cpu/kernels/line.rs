//! A cache line of 16 lanes, so that packed weights and panels lie aligned in a plain `Vec`.

/// 16 u32 lanes, 64 bytes, aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; 16]);

/// 16 f32 lanes, 64 bytes, aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Floats(pub [f32; 16]);

impl Floats {
    pub(super) const ZERO: Self = Self([0.0; 16]);
}

/// The lanes of `lines`, flat.
pub(super) fn flat(lines: &[Floats]) -> &[f32] {
    // SAFETY: `Floats` is repr(C) around [f32; 16] with size 64 and no padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 16) }
}

/// The lanes of `lines`, flat.
pub(super) fn flat_mut(lines: &mut [Floats]) -> &mut [f32] {
    // SAFETY: as in `flat`.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

/// Runs `f` with `len` aligned floats of unspecified content, kept by the thread for the next call.
pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    use std::cell::RefCell;
    thread_local! {
        // The free ones: calls nest.
        static SCRATCH: RefCell<Vec<Vec<Floats>>> = const { RefCell::new(Vec::new()) };
    }
    let mut lines = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    let wanted = len.div_ceil(16);
    if lines.len() < wanted {
        lines.resize(wanted, Floats::ZERO);
    }
    let result = f(&mut flat_mut(&mut lines)[..len]);
    SCRATCH.with_borrow_mut(|free| free.push(lines));
    result
}
