//! Reinforcement learning: everything between the engine's log-probs and their derivatives, and the loop around
//! it. The formulas are plain f64 functions of their inputs; the trainer knows token ids, text and a
//! [`crate::engine::Engine`], never pipelines or files other than its own checkpoints.

pub mod options;

pub use options::{
    Algorithm, Aqn, AqnForm, Clip, Correction, CorrectionKind, Decay, DynamicSampling, EarlyStop, KlEstimator, Loss,
    LrSchedule, NoiseScope, Normalization, OldLogProbs, OptimizerKind, Overlong, Ratio, RewardAggregation, RewardSpec,
};
