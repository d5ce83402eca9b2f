//! One comparison, and how close it must be.

/// How far an engine may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of logits and log-probs: absolute, plus this share of the value.
    pub logits: f64,
    pub loss: f64,
    /// Of a gradient: this share of the largest entry of its tensor.
    pub gradients: f64,
    /// A greedy token may differ only where the two best logits are closer than this.
    pub gap: f64,
}

impl Tolerance {
    /// What holds between f32 implementations.
    pub const F32: Self = Self { logits: 1e-4, loss: 1e-5, gradients: 1e-4, gap: 1e-4 };
}

/// The outcome of one comparison.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    pub name: String,
    /// The largest error as a multiple of what is allowed.
    pub error: f64,
    pub passed: bool,
    /// What was compared, or why it could not be.
    pub detail: String,
}

impl Check {
    /// A comparison whose largest error is `error` times the allowed one.
    pub(super) fn new(name: impl Into<String>, error: f64, detail: impl Into<String>) -> Self {
        Self { name: name.into(), error, passed: error <= 1.0, detail: detail.into() }
    }

    /// Whatever kept a comparison from being made counts as failed.
    pub(super) fn failed(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), error: f64::INFINITY, passed: false, detail: why.into() }
    }
}

/// The largest `|ours - golden| / (tolerance * (1 + |golden|))`; infinite where lengths differ or a value is not finite.
pub(super) fn closeness(ours: &[f32], golden: &[f32], tolerance: f64) -> f64 {
    if ours.len() != golden.len() || golden.is_empty() {
        return f64::INFINITY;
    }
    let one = |(a, b): (&f32, &f32)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        let error = (a - b).abs() / (tolerance * (1.0 + b.abs()));
        if error.is_finite() { error } else { f64::INFINITY }
    };
    ours.iter().zip(golden).map(one).fold(0.0, f64::max)
}

/// The largest `|ours - golden|` as a share of `tolerance * max |golden|`.
pub(super) fn closeness_of_max(ours: &[f32], golden: &[f32], tolerance: f64) -> f64 {
    let top = golden.iter().fold(0f64, |top, x| top.max(f64::from(x.abs())));
    if ours.len() != golden.len() || golden.is_empty() {
        return f64::INFINITY;
    }
    let one = |(a, b): (&f32, &f32)| {
        let error = (f64::from(*a) - f64::from(*b)).abs() / (tolerance * top.max(f64::MIN_POSITIVE));
        if error.is_finite() { error } else { f64::INFINITY }
    };
    ours.iter().zip(golden).map(one).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_close_fails() {
        assert!(closeness(&[1.0, 2.0], &[1.0, 2.0001], 1e-4) < 1.0);
        assert!(closeness(&[1.0, 2.0], &[1.0, 2.1], 1e-4) > 1.0);
        assert_eq!(closeness(&[1.0], &[1.0, 2.0], 1e-4), f64::INFINITY);
        assert_eq!(closeness(&[f32::NAN], &[1.0], 1e-4), f64::INFINITY);
        assert_eq!(closeness(&[], &[], 1e-4), f64::INFINITY, "nothing compared is not success");
        assert!(closeness_of_max(&[100.0, 1e-3], &[100.0, 0.0], 1e-4) < 1.0);
        assert!(closeness_of_max(&[100.0, 0.1], &[100.0, 0.0], 1e-4) > 1.0);
        assert_eq!(closeness_of_max(&[f32::INFINITY], &[1.0], 1e-4), f64::INFINITY);
    }
}
