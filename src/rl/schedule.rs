//! Values that depend on the optimizer step alone: AQN's sigma and the learning rate. A resumed run therefore
//! continues at the right stage by itself.

use super::options::{Aqn, AqnForm, Decay, LrSchedule};
use crate::{Error, Result};

impl Aqn {
    /// Rejects what cannot be computed.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::usage(format!("aqn: {what}")));
        if self.stages < 2 {
            return bad("stages must be at least 2, as the first one is clean");
        }
        let sigmas = [self.sigma_start, self.sigma_end];
        if sigmas.iter().chain(&self.values).any(|s| !s.is_finite() || *s < 0.0) {
            return bad("sigmas must be finite and not negative");
        }
        if self.decay == Decay::Exponential && self.sigma_start > 0.0 && self.sigma_end == 0.0 {
            return bad("exponential decay cannot end at 0; use sigma_end: 1e-6 or decay: linear");
        }
        if self.decay == Decay::List && self.values.len() != self.stages - 1 {
            return Err(Error::usage(format!(
                "aqn: decay list wants stages - 1 = {} values, got {}",
                self.stages - 1,
                self.values.len()
            )));
        }
        if self.decay != Decay::List && !self.values.is_empty() {
            return bad("values are only read with decay: list");
        }
        Ok(())
    }

    /// Sigma of the rollout before optimizer step `step` (1-based) of `total`.
    pub fn sigma(&self, step: u64, total: u64) -> f64 {
        if self.stages < 2 || total == 0 || self.sigma_start == 0.0 && self.decay != Decay::List {
            return 0.0;
        }
        match self.form {
            AqnForm::Code => {
                let interval = floor_div(step.min(total) as f64, total as f64 / self.stages as f64);
                if interval < 1.0 {
                    return 0.0;
                }
                // The last value also serves the step that ends the last interval.
                let k = (interval as usize - 1).min(self.stages - 2);
                self.stage_sigma(k, self.stages - 1)
            }
            AqnForm::Paper => {
                let per_stage = (total / self.stages as u64).max(1);
                let k = (step.max(1) - 1) / per_stage;
                let k = usize::try_from(k).unwrap_or(usize::MAX).min(self.stages - 1);
                if k == 0 { 0.0 } else { self.stage_sigma(k - 1, self.stages) }
            }
        }
    }

    /// The stages' sigmas in order, clean stage 0 left out.
    pub fn trend(&self) -> Vec<f64> {
        let count = match self.form {
            AqnForm::Code => self.stages.saturating_sub(1),
            AqnForm::Paper => self.stages,
        };
        (0..self.stages.saturating_sub(1)).map(|k| self.stage_sigma(k, count)).collect()
    }

    /// Sigma of noisy stage `k` (0-based), the decay being spread over `count` of them.
    fn stage_sigma(&self, k: usize, count: usize) -> f64 {
        let (start, end) = (self.sigma_start, self.sigma_end);
        if self.decay == Decay::List {
            return self.values.get(k).or(self.values.last()).copied().unwrap_or(0.0);
        }
        if count < 2 {
            return start;
        }
        let x = k as f64 / (count - 1) as f64;
        match self.decay {
            Decay::Exponential => start * (end / start).powf(x),
            Decay::Linear => start + (end - start) * x,
            Decay::Cosine => end + (start - end) * (1.0 + (std::f64::consts::PI * x).cos()) / 2.0,
            Decay::Logarithmic => start + (end - start) * ((k + 1) as f64).ln() / (count as f64).ln(),
            Decay::Constant | Decay::List => start,
        }
    }
}

/// Floor division of floats as Python does it (exact remainder first), because QeRL's stages are placed with it.
fn floor_div(a: f64, b: f64) -> f64 {
    let quotient = (a - a % b) / b;
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// Learning rate of optimizer step `step` (0-based) of `total`; with warm-up the first step runs at 0, as in
/// transformers' `get_cosine_schedule_with_warmup`.
pub fn learning_rate(schedule: LrSchedule, peak: f64, warmup: f64, step: u64, total: u64) -> f64 {
    let warmup_steps = (warmup * total as f64).ceil() as u64;
    if step < warmup_steps {
        return peak * (step as f64 / warmup_steps as f64);
    }
    let progress = (step - warmup_steps) as f64 / total.saturating_sub(warmup_steps).max(1) as f64;
    let factor = match schedule {
        LrSchedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        LrSchedule::Linear => 1.0 - progress,
        LrSchedule::Constant => 1.0,
    };
    peak * factor.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_of_zero_is_exactly_off() {
        let aqn = Aqn { sigma_start: 0.0, decay: Decay::Linear, ..Aqn::default() };
        assert!((1..=100).all(|step| aqn.sigma(step, 100) == 0.0));
    }

    #[test]
    fn more_stages_than_steps_never_divide_by_zero() {
        for form in [AqnForm::Code, AqnForm::Paper] {
            let aqn = Aqn { form, stages: 10, ..Aqn::default() };
            for step in 1..=3 {
                assert!(aqn.sigma(step, 3).is_finite());
            }
        }
    }

    #[test]
    fn a_list_holds_one_sigma_per_noisy_stage() {
        let aqn = Aqn { decay: Decay::List, stages: 3, values: vec![0.2, 0.1], ..Aqn::default() };
        aqn.validate().unwrap();
        assert_eq!([1, 3, 5, 6].map(|step| aqn.sigma(step, 6)), [0.0, 0.2, 0.1, 0.1]);
        assert!(Aqn { values: vec![0.2], ..aqn }.validate().is_err());
    }

    #[test]
    fn linear_falls_to_zero_and_constant_does_not() {
        assert_eq!(learning_rate(LrSchedule::Linear, 1.0, 0.0, 0, 4), 1.0);
        assert_eq!(learning_rate(LrSchedule::Linear, 1.0, 0.0, 4, 4), 0.0);
        assert_eq!(learning_rate(LrSchedule::Constant, 1.0, 0.5, 3, 4), 1.0);
        assert_eq!(learning_rate(LrSchedule::Constant, 1.0, 0.5, 1, 4), 0.5);
    }
}
