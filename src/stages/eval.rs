//! `eval`: a policy on problem sets: pass@1 with intervals, pass@k, maj@k, every record kept.

mod answer;
mod run;
mod training;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::train::Builtin;
use super::{Context, DataRef, Output, StageRef};
use crate::Result;

pub use run::run_with;

/// Evaluates with this crate's own engine and prompts.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    run_with(context, config, &Builtin)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// A model (download, quantize) or an adapter (lora, sft, train).
    pub policy: StageRef,
    pub data: Vec<DataRef>,
    /// Completions per problem.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub samples: usize,
    /// 0 is greedy; then `samples` must be 1.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub temperature: f32,
    #[serde(default = "off")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: f32,
    #[serde(default)]
    pub top_k: usize,
    #[serde(default = "max_new_tokens")]
    #[schemars(range(min = 1))]
    pub max_new_tokens: usize,
    /// Only the first so many problems of each set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// pass@k and maj@k are printed for these k (each at most `samples`).
    #[serde(default)]
    pub k: Vec<usize>,
    #[serde(default)]
    pub seed: u64,
    /// Worked examples before each question; they come from `shots_data` and are never among the questions.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 64))]
    pub shots: usize,
    /// Where the examples come from, such as an entry under `data:` with `split: train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shots_data: Option<DataRef>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

fn one() -> usize {
    1
}

fn off() -> f32 {
    1.0
}

fn max_new_tokens() -> usize {
    1024
}
