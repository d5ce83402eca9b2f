//! Reinforcement learning: everything between the engine's log-probs and their derivatives, and the loop around
//! it. The formulas are plain f64 functions of their inputs; the trainer knows token ids, text and a
//! [`crate::engine::Engine`], never pipelines or files other than its own checkpoints.

pub mod adamw8;
pub mod advantage;
pub mod loss;
pub mod options;
pub mod random;
pub mod rewards;
pub mod schedule;
pub mod select;

pub use options::{
    Algorithm, Aqn, AqnForm, Clip, Correction, CorrectionKind, Decay, DynamicSampling, EarlyStop, KlEstimator, Loss,
    LrSchedule, NoiseScope, Normalization, OldLogProbs, OptimizerKind, Overlong, Ratio, RewardAggregation, RewardSpec,
};
