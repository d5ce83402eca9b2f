//! `train`: GRPO or DAPO with Adaptive Quantization Noise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DataRef, StageRef};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// An adapter (lora, sft, an earlier train), or an unquantized model: then every parameter is trained.
    pub policy: StageRef,
    pub data: DataRef,
    /// The schedules' horizon in optimizer steps.
    pub steps: u64,
}
