//! One comparison, and how close it must be.

/// How far an engine may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of logits and log-probs: absolute, plus this share of the value.
    pub logits: f64,
    pub loss: f64,
    /// Of a gradient: this share of the largest entry of its tensor; with `by_norm`, what the cosine of all gradients
    /// together may be below one.
    pub gradients: f64,
    /// A greedy token may differ only where the two best logits are closer than this.
    pub gap: f64,
    /// Compare whole tensors: logits by the relative L2 norm of the error, log-probs by their mean error, gradients by
    /// 1 - cosine; each entry by itself otherwise.
    pub by_norm: bool,
}

impl Tolerance {
    /// What holds between f32 implementations.
    pub const F32: Self = Self { logits: 1e-4, loss: 1e-5, gradients: 1e-4, gap: 1e-4, by_norm: false };
    /// What holds between bf16 activations and f32 ones.
    pub const BF16: Self = Self { logits: 2e-2, loss: 1e-2, gradients: 1e-3, gap: 0.25, by_norm: true };

    /// The error of logits or log-probs as a multiple of what is allowed.
    pub(super) fn of_logits(&self, ours: &[f32], golden: &[f32]) -> f64 {
        if !self.by_norm {
            return closeness(ours, golden, self.logits);
        }
        relative_norm(ours, golden) / self.logits
    }

    /// The same of log-probs or entropies. With `by_norm` their mean absolute error counts, against 0.03: they may all
    /// be near zero, and bf16 libraries are 0.016 to 0.035 from themselves.
    pub(super) fn of_log_probs(&self, ours: &[f32], golden: &[f32]) -> f64 {
        if !self.by_norm {
            return closeness(ours, golden, self.logits);
        }
        if ours.len() != golden.len() || golden.is_empty() {
            return f64::INFINITY;
        }
        let sum: f64 = ours.iter().zip(golden).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).sum();
        let error = sum / golden.len() as f64 / 0.03;
        if error.is_finite() { error } else { f64::INFINITY }
    }

    /// The same of one tensor's gradient. With `by_norm` a single tensor may be five times as far off as all together:
    /// where what tokens contribute nearly cancels, rounding weighs more.
    pub(super) fn of_gradients(&self, ours: &[f32], golden: &[f32]) -> f64 {
        if !self.by_norm {
            return closeness_of_max(ours, golden, self.gradients);
        }
        self.of_cosine(ours, golden) / 5.0
    }

    /// The same of all gradients together, which is what an update follows; 0 without `by_norm`, where every entry is
    /// compared.
    pub(super) fn of_all_gradients(&self, ours: &[f32], golden: &[f32]) -> f64 {
        if self.by_norm { self.of_cosine(ours, golden) } else { 0.0 }
    }

    fn of_cosine(&self, ours: &[f32], golden: &[f32]) -> f64 {
        let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let (a, b) = (norm(ours), norm(golden));
        if ours.len() == golden.len() && a == 0.0 && b == 0.0 && !golden.is_empty() {
            return 0.0;
        }
        let dot: f64 = ours.iter().zip(golden).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        let error = (1.0 - dot / (a * b)) / self.gradients;
        if ours.len() == golden.len() && error.is_finite() { error } else { f64::INFINITY }
    }
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

/// The norm of the error over that of the golden values.
fn relative_norm(ours: &[f32], golden: &[f32]) -> f64 {
    if ours.len() != golden.len() || golden.is_empty() {
        return f64::INFINITY;
    }
    let error: f64 = ours.iter().zip(golden).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    let size: f64 = golden.iter().map(|&b| f64::from(b).powi(2)).sum();
    let error = (error / size).sqrt();
    if error.is_finite() { error } else { f64::INFINITY }
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
        assert!(Tolerance::BF16.of_logits(&[1.0, 2.01], &[1.0, 2.0]) < 1.0);
        assert!(Tolerance::BF16.of_logits(&[1.0, 2.1], &[1.0, 2.0]) > 1.0);
        assert!(Tolerance::BF16.of_log_probs(&[-0.01, -2.0], &[-0.03, -2.02]) < 1.0);
        assert!(Tolerance::BF16.of_log_probs(&[-0.01, -2.0], &[-0.03, -2.2]) > 1.0);
        assert!(Tolerance::BF16.of_gradients(&[1.0, 2.01], &[1.0, 2.0]) < 1.0);
        assert!(Tolerance::BF16.of_gradients(&[1.0, 2.0, 0.2], &[1.0, 2.0, 0.0]) < 1.0);
        assert!(Tolerance::BF16.of_gradients(&[1.0, 2.0, 0.4], &[1.0, 2.0, 0.0]) > 1.0);
        assert!(Tolerance::BF16.of_all_gradients(&[1.0, 2.0, 0.2], &[1.0, 2.0, 0.0]) > 1.0);
        assert_eq!(Tolerance::BF16.of_gradients(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert!(closeness_of_max(&[100.0, 1e-3], &[100.0, 0.0], 1e-4) < 1.0);
        assert!(closeness_of_max(&[100.0, 0.1], &[100.0, 0.0], 1e-4) > 1.0);
        assert_eq!(closeness_of_max(&[f32::INFINITY], &[1.0], 1e-4), f64::INFINITY);
    }
}
