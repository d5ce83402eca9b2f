//! The choices an experiment makes, as they are written in a pipeline file. Each key's default stands here and
//! nowhere else; presets are resolved in [`crate::stages::train::Config::settings`].

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// A reward's weight, or an external program that computes it.
#[derive(Clone, Debug, PartialEq)]
pub enum RewardSpec {
    /// A built-in reward by its name, scaled by this.
    Weight(f64),
    /// A program that answers JSON lines; see docs/training.md for the protocol.
    Program {
        /// Program and arguments, never a shell; a relative path starts at the pipeline's folder.
        command: Vec<String>,
        weight: f64,
        /// Seconds per completion; a later answer counts as an abstention.
        timeout: f64,
    },
}

impl RewardSpec {
    pub fn weight(&self) -> f64 {
        match self {
            Self::Weight(weight) | Self::Program { weight, .. } => *weight,
        }
    }
}

const PROGRAM_WEIGHT: f64 = 1.0;
const PROGRAM_TIMEOUT: f64 = 10.0;

impl Serialize for RewardSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Weight(weight) => serializer.serialize_f64(*weight),
            Self::Program { command, weight, timeout } => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("command", command)?;
                map.serialize_entry("weight", weight)?;
                map.serialize_entry("timeout", timeout)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RewardSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RewardSpec;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a weight, or {command: [...], weight, timeout}")
            }

            fn visit_f64<E: de::Error>(self, weight: f64) -> Result<RewardSpec, E> {
                if weight.is_finite() { Ok(RewardSpec::Weight(weight)) } else { Err(E::custom("weight is not finite")) }
            }

            fn visit_u64<E: de::Error>(self, weight: u64) -> Result<RewardSpec, E> {
                self.visit_f64(weight as f64)
            }

            fn visit_i64<E: de::Error>(self, weight: i64) -> Result<RewardSpec, E> {
                self.visit_f64(weight as f64)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RewardSpec, A::Error> {
                let (mut command, mut weight, mut timeout) = (None::<Vec<String>>, PROGRAM_WEIGHT, PROGRAM_TIMEOUT);
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    match key.as_ref() {
                        "command" => command = Some(map.next_value()?),
                        "weight" => weight = map.next_value()?,
                        "timeout" => timeout = map.next_value()?,
                        other => return Err(de::Error::unknown_field(other, &["command", "weight", "timeout"])),
                    }
                }
                let command = command.ok_or_else(|| de::Error::missing_field("command"))?;
                if command.is_empty() || command[0].is_empty() {
                    return Err(de::Error::custom("command names no program"));
                }
                let fits = timeout > 0.0 && timeout <= 86_400.0 && weight.is_finite();
                if !fits {
                    return Err(de::Error::custom("timeout must be within 0..86400 seconds and weight finite"));
                }
                Ok(RewardSpec::Program { command, weight, timeout })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for RewardSpec {
    fn schema_name() -> Cow<'static, str> {
        "RewardSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A built-in reward's weight, or an external program that computes the reward.",
            "anyOf": [
                {"type": "number"},
                {
                    "type": "object",
                    "properties": {
                        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                        "weight": {"type": "number", "default": PROGRAM_WEIGHT},
                        "timeout": {"type": "number", "default": PROGRAM_TIMEOUT, "exclusiveMinimum": 0.0, "maximum": 86400.0},
                    },
                    "required": ["command"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}
