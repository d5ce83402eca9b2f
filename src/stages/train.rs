//! `train`: GRPO or DAPO with Adaptive Quantization Noise.

pub mod earlier;
pub(super) mod finish;
mod parts;
mod resolve;
mod run;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::inputs::PolicyFiles;
use super::{DataRef, StageRef};
use crate::rl::{
    Algorithm, Aqn, Clip, Correction, DynamicSampling, EarlyStop, KlEstimator, Loss, LrSchedule, Normalization,
    OldLogProbs, OptimizerKind, Overlong, Ratio, RewardAggregation, RewardSpec,
};
pub use parts::{Builtin, Parts};
pub use run::run_with;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// An adapter (lora, sft, an earlier train), or an unquantized model: then every parameter is trained.
    pub policy: StageRef,
    /// The problems to train on; a hold-out of the set is never among them.
    pub data: DataRef,
    /// Sets the defaults of loss, clip, beta, dynamic_sampling and overlong.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// The schedules' horizon in optimizer steps.
    #[schemars(range(min = 1))]
    pub steps: u64,
    /// The last optimizer step of this run, `steps` where absent; raising it goes on where the shorter run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub stop_at: Option<u64>,
    /// Prompts of one rollout; with group_size completions each they are the batch of an optimizer step.
    #[serde(default = "eight")]
    #[schemars(range(min = 1, max = 65_536))]
    pub prompts_per_step: usize,
    /// Completions per prompt (G).
    #[serde(default = "eight")]
    #[schemars(range(min = 2, max = 4096))]
    pub group_size: usize,
    /// Optimizer steps on each rollout (mu in GRPO, num_iterations in TRL).
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub updates_per_rollout: u64,
    /// Tokens (prompt and completion) that are forwarded at once; changes memory and speed, never the result.
    #[serde(default = "micro_batch_tokens")]
    #[schemars(range(min = 1))]
    pub micro_batch_tokens: usize,
    /// Longest completion in tokens.
    #[serde(default = "max_completion")]
    #[schemars(range(min = 1))]
    pub max_completion: usize,
    /// Divides the logits, when sampling and when training.
    #[serde(default = "unit")]
    #[schemars(range(min = 0.001, max = 10.0))]
    pub temperature: f64,
    /// Sampling keeps the smallest set of tokens with this mass; 1 is off.
    #[serde(default = "unit")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: f64,
    /// Sampling keeps this many tokens; 0 is off.
    #[serde(default)]
    pub top_k: usize,

    /// Aggregation of the token losses. Preset grpo: grpo; dapo: dapo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The importance ratio per token, or per sequence (GSPO).
    #[serde(default)]
    pub ratio: Ratio,
    /// Normalisation of the advantages: group where absent, none with loss dr_grpo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<Normalization>,
    /// Order of weighting and normalising several rewards.
    #[serde(default)]
    pub reward_aggregation: RewardAggregation,
    /// Clip range of the importance ratio.
    #[serde(default)]
    pub clip: Clip,
    /// Weight of the KL term to the reference (adapter off). Preset grpo: 0.04; dapo: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub beta: Option<f64>,
    /// Estimator of the KL term.
    #[serde(default)]
    pub kl: KlEstimator,
    /// Multiply the KL term by the importance ratio (TRL's use_bias_correction_kl).
    #[serde(default)]
    pub kl_bias_correction: bool,
    /// Correct the mismatch of sampler and trainer (TIS, MIS); off where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
    /// Leave out rows with a negative advantage whose mean (sampler - policy) log-prob exceeds this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub off_policy_mask: Option<f64>,
    /// Cap the unclipped ratio at this (verl's clip_ratio_c, TRL's delta), for instance 3; off where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0))]
    pub dual_clip: Option<f64>,
    /// Use CISPO with the ratio (as a constant weight) capped at this; off where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub cispo: Option<f64>,
    /// Train only on this share of tokens, those of the highest entropy (Wang et al. 2025); 1 is all.
    #[serde(default = "unit")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub entropy_quantile: f64,
    /// Weight of a bonus on the mean token entropy.
    #[serde(default)]
    pub entropy_bonus: f64,
    /// Completions cut at max_completion take no part in the loss.
    #[serde(default)]
    pub mask_truncated: bool,
    /// Soft punishment of completions near max_completion.
    #[serde(default)]
    pub overlong: Overlong,
    /// Replace groups without signal by further prompts.
    #[serde(default)]
    pub dynamic_sampling: DynamicSampling,
    /// Whose log-probs are the old ones.
    #[serde(default)]
    pub old_log_probs: OldLogProbs,

    /// Reward name -> weight, or an external program. Built-in: accuracy, correctness, soft_format, strict_format,
    /// think_format, int, xml_count, tag_count, length, repetition, gsm8k, dapo.
    #[serde(default = "rewards")]
    pub rewards: BTreeMap<String, RewardSpec>,
    /// A control experiment: deal the rewards of each group to its completions at random (seeded). What is learned all
    /// the same does not come from the rewards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shuffle_rewards: bool,
    /// Adaptive Quantization Noise; off where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aqn: Option<Aqn>,

    /// How the moments are kept.
    #[serde(default)]
    pub optimizer: OptimizerKind,
    /// Peak learning rate.
    #[serde(default = "lr")]
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// The learning rate over `steps`.
    #[serde(default)]
    pub lr_schedule: LrSchedule,
    /// Share of `steps` over which the learning rate rises from 0.
    #[serde(default = "warmup")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup: f64,
    /// Decoupled weight decay; never on norms and biases.
    #[serde(default = "weight_decay")]
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// AdamW's moment decays.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Gradients are scaled to at most this joint L2 norm; 0 is off.
    #[serde(default = "max_grad_norm")]
    #[schemars(range(min = 0.0))]
    pub max_grad_norm: f64,

    /// Of the order of the data, of sampling and of the noise.
    #[serde(default)]
    pub seed: u64,
    /// Optimizer steps between checkpoints to resume from.
    #[serde(default = "checkpoint_every")]
    #[schemars(range(min = 1))]
    pub checkpoint_every: u64,
    /// Steps between checkpoints that are kept in the artifact under their step number; 0 keeps none.
    #[serde(default)]
    pub keep_every: u64,
    /// Steps between evaluations on eval_data; 0 is off. The best one's adapter is kept as `best`.
    #[serde(default)]
    pub eval_every: u64,
    /// Problems for the evaluation while training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_data: Option<DataRef>,
    /// The first so many problems of eval_data, each answered greedily once.
    #[serde(default = "eval_limit")]
    #[schemars(range(min = 1))]
    pub eval_limit: usize,
    /// When to give up on a run that has diverged.
    #[serde(default)]
    pub early_stop: EarlyStop,
}

/// Trains with qerl's own engine.
pub fn run(context: &super::Context<'_>, config: &Config) -> crate::Result<super::Output> {
    run_with(context, config, &Builtin)
}

fn one() -> u64 {
    1
}

fn eight() -> usize {
    8
}

fn unit() -> f64 {
    1.0
}

fn micro_batch_tokens() -> usize {
    8192
}

fn max_completion() -> usize {
    1024
}

fn rewards() -> BTreeMap<String, RewardSpec> {
    BTreeMap::from([("accuracy".to_owned(), RewardSpec::Weight(1.0))])
}

fn lr() -> f64 {
    1e-5
}

fn warmup() -> f64 {
    0.1
}

fn weight_decay() -> f64 {
    0.1
}

fn betas() -> [f64; 2] {
    [0.9, 0.99]
}

fn max_grad_norm() -> f64 {
    0.2
}

fn checkpoint_every() -> u64 {
    20
}

fn eval_limit() -> usize {
    64
}
