//! Reinforcement learning: everything between the engine's log-probs and their derivatives, and the loop around
//! it. The formulas are plain f64 functions of their inputs; the trainer knows token ids, text and a
//! [`crate::engine::Engine`], never pipelines or files other than its own checkpoints.

pub mod advantage;
pub mod checkpoint;
pub mod language;
pub mod loss;
pub mod metrics;
pub mod options;
pub mod random;
pub mod rewards;
pub mod rollout;
pub mod schedule;
pub mod select;
pub mod settings;
mod step;
pub mod supervised;
pub mod tensorboard;
pub mod trainer;

pub use options::{
    Algorithm, Aqn, AqnForm, Clip, Correction, CorrectionKind, Decay, DynamicSampling, EarlyStop, KlEstimator, Loss,
    LrSchedule, NoiseScope, Normalization, OldLogProbs, OptimizerKind, Overlong, Ratio, RewardAggregation, RewardSpec,
};
