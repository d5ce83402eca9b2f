//! `sft`: supervised steps on a data set's own solutions, full-parameter or on an adapter.

mod run;
mod scratch;
mod tokenizer;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DataRef, StageRef};
use crate::rl::LrSchedule;
pub use run::run_with;

/// A small Qwen2 model made from nothing, with a word-level tokenizer made from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    #[schemars(range(min = 8, max = 65_536))]
    pub hidden_size: usize,
    #[schemars(range(min = 1, max = 1024))]
    pub layers: usize,
    #[schemars(range(min = 1, max = 1024))]
    pub heads: usize,
    #[schemars(range(min = 1, max = 1024))]
    pub kv_heads: usize,
    #[serde(default = "head_dim")]
    #[schemars(range(min = 2, max = 1024))]
    pub head_dim: usize,
    #[schemars(range(min = 8, max = 262_144))]
    pub intermediate: usize,
    #[serde(default = "yes")]
    pub tie_embeddings: bool,
    /// Longest sequence in tokens.
    #[serde(default = "max_position")]
    #[schemars(range(min = 16))]
    pub max_position: usize,
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    /// The vocabulary is filled up to a multiple of this.
    #[serde(default = "vocab_multiple")]
    #[schemars(range(min = 1, max = 4096))]
    pub vocab_multiple: usize,
    /// Standard deviation of the initial weights.
    #[serde(default = "init_std")]
    pub init_std: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// A model (every parameter is trained) or an adapter; absent with `architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<StageRef>,
    /// Make a new model instead of training one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Problems with reference solutions.
    pub data: DataRef,
    /// Optimizer steps.
    #[schemars(range(min = 1))]
    pub steps: u64,
    /// Rows of an optimizer step.
    #[serde(default = "batch")]
    #[schemars(range(min = 1, max = 65_536))]
    pub batch: usize,
    /// Tokens (prompt and completion) that are forwarded at once; changes memory and speed, never the result.
    #[serde(default = "micro_batch_tokens")]
    #[schemars(range(min = 1))]
    pub micro_batch_tokens: usize,
    /// Peak learning rate.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    #[serde(default)]
    pub lr_schedule: LrSchedule,
    /// Share of `steps` over which the learning rate rises from 0.
    #[serde(default = "warmup")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup: f64,
    #[serde(default = "weight_decay")]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// 0 is off.
    #[serde(default = "max_grad_norm")]
    #[schemars(range(min = 0.0))]
    pub max_grad_norm: f64,
    /// The prompt's tokens count in the loss too.
    #[serde(default)]
    pub train_prompt: bool,
    /// Rows longer than this are left out.
    #[serde(default = "max_tokens")]
    #[schemars(range(min = 2))]
    pub max_tokens: usize,
    #[serde(default)]
    pub seed: u64,
    /// Optimizer steps between checkpoints to resume from.
    #[serde(default = "checkpoint_every")]
    #[schemars(range(min = 1))]
    pub checkpoint_every: u64,
}

/// Trains with qerl's own engine.
pub fn run(context: &super::Context<'_>, config: &Config) -> crate::Result<super::Output> {
    run_with(context, config, &super::train::Builtin)
}

fn yes() -> bool {
    true
}

fn head_dim() -> usize {
    64
}

fn max_position() -> usize {
    1024
}

fn rope_theta() -> f64 {
    10_000.0
}

fn vocab_multiple() -> usize {
    128
}

fn init_std() -> f64 {
    0.02
}

fn batch() -> usize {
    32
}

fn micro_batch_tokens() -> usize {
    8192
}

fn warmup() -> f64 {
    0.05
}

fn weight_decay() -> f64 {
    0.01
}

fn betas() -> [f64; 2] {
    [0.9, 0.99]
}

fn max_grad_norm() -> f64 {
    1.0
}

fn max_tokens() -> usize {
    2048
}

fn checkpoint_every() -> u64 {
    200
}
