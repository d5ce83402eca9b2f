//! The choices an experiment makes, as they are written in a pipeline file. Each key's default stands here and
//! nowhere else; presets are resolved in [`crate::stages::train::Config::settings`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A named set of defaults; each of them can be overridden by its own key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Shao et al. 2024: loss `grpo`, clip 0.2/0.2, beta 0.04, no dynamic sampling, no overlong punishment.
    Grpo,
    /// Yu et al. 2025: loss `dapo` (token mean), clip 0.2/0.28, beta 0, dynamic sampling, soft overlong punishment.
    #[default]
    Dapo,
}

/// How the per-token losses of an optimizer step become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Mean over rows of each row's token mean.
    Grpo,
    /// Token sum over the tokens of the batch.
    Bnpo,
    /// Token sum over rows * max_completion (Liu et al. 2025, unbiased by length).
    DrGrpo,
    /// Token sum over the tokens of the whole optimizer step.
    Dapo,
}

/// What the importance ratio is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// exp(logp - old) of each token.
    #[default]
    Token,
    /// exp(mean over the row of logp - old): GSPO (Zheng et al. 2025).
    Sequence,
}

/// What a reward is divided by after its group's mean is taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// The group's standard deviation (ddof 1) + 1e-4.
    Group,
    /// The whole batch's standard deviation (ddof 1) + 1e-4.
    Batch,
    /// Nothing (Dr. GRPO).
    None,
}

/// In which order several rewards are weighted, summed and normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardAggregation {
    /// Weighted sum, then `advantage`.
    #[default]
    SumThenNormalize,
    /// Each reward normalised in its group, weighted sum, then normalised over the batch.
    NormalizeThenSum,
}

/// Bounds of the importance ratio: clip(ratio, 1 - low, 1 + high).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Clip {
    /// Both presets: 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub low: Option<f64>,
    /// Preset grpo: 0.2; dapo: 0.28 (clip-higher).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub high: Option<f64>,
}

/// Estimator of KL(policy || reference) per token (Schulman 2020), d = reference - policy log-prob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// -d: unbiased, high variance, can be negative.
    K1,
    /// d^2 / 2.
    K2,
    /// exp(d) - d - 1: unbiased, never negative.
    #[default]
    K3,
}

/// How log-probs that differ between sampler and trainer are corrected: weight exp(old - sampler).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionKind {
    /// Per token, truncated at `max` (TIS).
    TokenTruncate,
    /// Per token, zero outside min..max (MIS).
    TokenMask,
    /// Per row (sum of log differences), truncated at `max`.
    SequenceTruncate,
    /// Per row, zero outside min..max.
    SequenceMask,
}

/// Correction of the mismatch between the rollout's log-probs and the trainer's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    pub kind: CorrectionKind,
    /// Upper bound of the weight.
    #[serde(default = "correction_max")]
    #[schemars(range(min = 0.0))]
    pub max: f64,
    /// Lower bound of the weight for the masking kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub min: Option<f64>,
}

fn correction_max() -> f64 {
    2.0
}

/// Soft overlong punishment (DAPO, equation 13): 0 up to max_completion - cache, then linearly down to -factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Overlong {
    /// Tokens before max_completion over which the punishment grows; a fifth of max_completion where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cache: Option<usize>,
    /// The punishment at max_completion; 0 is off. Preset grpo: 0; dapo: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub factor: Option<f64>,
}

/// Groups whose accuracy does not vary teach nothing: they are replaced by further prompts, whole groups only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicSampling {
    /// Preset grpo: false; dapo: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Further rollouts per step at most; what varies by then is trained on.
    #[schemars(range(min = 0, max = 1000))]
    pub max_refills: usize,
}

impl Default for DynamicSampling {
    fn default() -> Self {
        Self { enabled: None, max_refills: 4 }
    }
}

/// Whose log-probs are `old` in the importance ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldLogProbs {
    /// The trainer scores the completions before the first update (as QeRL's code does).
    #[default]
    Recompute,
    /// The sampler's own (with rollout-only AQN: those of the noisy policy, as in the paper's algorithm 1).
    Sampler,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OptimizerKind {
    /// AdamW with f32 moments.
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    /// AdamW whose moments are kept as block-wise (256) dynamic 8-bit codes between steps (Dettmers et al. 2022).
    #[serde(rename = "adamw_8bit")]
    AdamW8bit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Linear warm-up, then half a cosine down to 0 at `steps`.
    #[default]
    Cosine,
    /// Linear warm-up, then linearly down to 0 at `steps`.
    Linear,
    /// Linear warm-up, then constant.
    Constant,
}

/// How sigma falls from the first noisy stage to the last; x runs from 0 to 1 over the noisy stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// s0 * (s1/s0)^x (QeRL, equation 8).
    #[default]
    Exponential,
    /// s0 + (s1 - s0) x.
    Linear,
    /// s1 + (s0 - s1)(1 + cos(pi x)) / 2.
    Cosine,
    /// s0 + (s1 - s0) ln(k) / ln(K), k = 1..K.
    Logarithmic,
    /// s0 in every noisy stage; `sigma_end` has no part in it.
    Constant,
    /// The sigmas under `values`, one per noisy stage; `sigma_start` and `sigma_end` have no part in it.
    List,
}

/// Which of the two published schedules places the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AqnForm {
    /// QeRL's code: stage 0 is clean, the last stage has sigma_end.
    #[default]
    Code,
    /// The paper's algorithm 1: 0-based step, exponent over stages - 1; never quite reaches sigma_end.
    Paper,
}

/// Which log-probs see the noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoiseScope {
    /// Sampling only; training runs on the clean norms.
    #[default]
    Rollout,
    /// Sampling and training: the same noise until the next rollout.
    RolloutAndTrain,
}

/// Adaptive Quantization Noise: Gaussian noise on the two block norms of every layer, fresh per rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Aqn {
    pub decay: Decay,
    /// Sigma of the first noisy stage; 0 is exactly off.
    #[schemars(range(min = 0.0))]
    pub sigma_start: f64,
    /// Sigma of the last stage.
    #[schemars(range(min = 0.0))]
    pub sigma_end: f64,
    /// Stages of equal length over `steps`; the first one is clean.
    #[schemars(range(min = 2, max = 100_000))]
    pub stages: usize,
    pub form: AqnForm,
    pub apply_to: NoiseScope,
    /// For `decay: list`: stages - 1 sigmas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
}

impl Default for Aqn {
    fn default() -> Self {
        Self {
            decay: Decay::Exponential,
            sigma_start: 1e-2,
            sigma_end: 5e-4,
            stages: 10,
            form: AqnForm::Code,
            apply_to: NoiseScope::Rollout,
            values: Vec::new(),
        }
    }
}

/// Training that has gone wrong ends with its last good checkpoint and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStop {
    /// Steps in a row that must look bad before training ends.
    #[schemars(range(min = 1))]
    pub patience: u64,
    /// Bad above this mean KL to the reference (needs beta > 0); not watched where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_kl: Option<f64>,
    /// Bad below this mean token entropy in nats; not watched where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_entropy: Option<f64>,
}

impl Default for EarlyStop {
    fn default() -> Self {
        Self { patience: 3, max_kl: None, min_entropy: None }
    }
}
