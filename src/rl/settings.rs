//! A run's settings with every preset resolved, as the trainer reads them.

use super::advantage::{EPSILON, Scaling};
use super::loss::LossSpec;
use super::options::{Aqn, EarlyStop, LrSchedule, NoiseScope, OldLogProbs, OptimizerKind};
use super::schedule::learning_rate;
use crate::Result;
use crate::engine::{AdamW, Engine, Moments, Sampling};

/// AdamW and its schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSettings {
    pub kind: OptimizerKind,
    pub lr: f64,
    pub lr_schedule: LrSchedule,
    /// Share of `horizon`.
    pub warmup: f64,
    pub weight_decay: f64,
    pub betas: [f64; 2],
    pub max_grad_norm: f64,
    /// Steps over which the schedule runs.
    pub horizon: u64,
}

/// AdamW's epsilon, as everywhere.
const ADAMW_EPSILON: f32 = 1e-8;

impl OptimizerSettings {
    /// The learning rate of the optimizer step that follows `step` finished ones.
    pub fn learning_rate(&self, step: u64) -> f64 {
        learning_rate(self.lr_schedule, self.lr, self.warmup, step, self.horizon)
    }

    /// One optimizer step after `step` finished ones; gives the gradients' norm before clipping.
    pub fn apply(&self, engine: &mut dyn Engine, step: u64) -> Result<f64> {
        engine.apply(&AdamW {
            lr: self.learning_rate(step) as f32,
            betas: (self.betas[0] as f32, self.betas[1] as f32),
            eps: ADAMW_EPSILON,
            weight_decay: self.weight_decay as f32,
            max_grad_norm: self.max_grad_norm as f32,
            moments: match self.kind {
                OptimizerKind::AdamW => Moments::F32,
                OptimizerKind::AdamW8bit => Moments::Blockwise8,
            },
        })
    }
}

/// What [`super::trainer::Trainer`] runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Optimizer steps over which the schedules run.
    pub steps: u64,
    /// The last optimizer step of this run, at most `steps`.
    pub stop_at: u64,
    pub prompts_per_step: usize,
    pub group_size: usize,
    pub updates_per_rollout: u64,
    pub micro_batch_tokens: usize,
    pub max_completion: usize,
    pub sampling: Sampling,
    pub loss: LossSpec,
    pub scaling: Scaling,
    pub mask_truncated: bool,
    /// Tokens and factor of the soft overlong punishment; factor 0 is off.
    pub overlong_cache: usize,
    pub overlong_factor: f64,
    /// Share of tokens, by entropy, that are trained on; 1 is all.
    pub entropy_quantile: f64,
    /// Refills per step; `None` keeps every group.
    pub max_refills: Option<usize>,
    pub old_log_probs: OldLogProbs,
    /// Rewards are dealt to the completions of their group at random: a control.
    pub shuffle_rewards: bool,
    pub aqn: Option<Aqn>,
    pub optimizer: OptimizerSettings,
    pub seed: u64,
    pub checkpoint_every: u64,
    /// 0 keeps none.
    pub keep_every: u64,
    /// 0 is off.
    pub eval_every: u64,
    pub early_stop: EarlyStop,
}

impl Settings {
    /// Sigma of the rollout before the optimizer step that follows `step` finished ones.
    pub fn sigma(&self, step: u64) -> f64 {
        self.aqn.as_ref().map_or(0.0, |aqn| aqn.sigma(step + 1, self.steps))
    }

    pub fn trains_noisy(&self) -> bool {
        self.aqn.as_ref().is_some_and(|aqn| aqn.apply_to == NoiseScope::RolloutAndTrain)
    }
}

/// TRL's epsilon with the given normalisation.
pub fn scaling(
    normalization: super::options::Normalization,
    aggregation: super::options::RewardAggregation,
) -> Scaling {
    Scaling { normalization, aggregation, epsilon: EPSILON }
}
