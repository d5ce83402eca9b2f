//! How completions are drawn, for commands that generate.

use crate::engine::Sampling;
use crate::{Error, Result};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct SamplingArgs {
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new_tokens: usize,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// 0 is off
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Keep tokens of at least this share of the best one's probability; 0 is off
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl SamplingArgs {
    /// The settings, once they make sense.
    pub fn check(&self) -> Result<Sampling> {
        let wrong = |what: String| Err(Error::usage(what));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong(format!("--temperature {} is not a number from 0 up", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong(format!("--top-p {} is not above 0 and at most 1", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong(format!("--min-p {} is not between 0 and 1", self.min_p));
        }
        if self.max_new_tokens == 0 {
            return wrong("--max-new-tokens 0 generates nothing".to_owned());
        }
        Ok(Sampling { temperature: self.temperature, top_p: self.top_p, top_k: self.top_k, min_p: self.min_p })
    }

    /// Whether every sample of a prompt is the same.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}
