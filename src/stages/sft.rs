//! `sft`: supervised steps on a data set's own solutions, full-parameter or on an adapter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DataRef, StageRef};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// A model (every parameter is trained) or an adapter; absent with `architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<StageRef>,
    pub data: DataRef,
    pub steps: u64,
    #[serde(default = "batch")]
    #[schemars(range(min = 1))]
    pub batch: usize,
    pub lr: f64,
    #[serde(default)]
    pub seed: u64,
}

fn batch() -> usize {
    32
}
