//! `lora`: a fresh, seeded adapter beside a base model (Hu et al. 2021), in PEFT's format.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StageRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Target {
    #[serde(rename = "q_proj")]
    Q,
    #[serde(rename = "k_proj")]
    K,
    #[serde(rename = "v_proj")]
    V,
    #[serde(rename = "o_proj")]
    O,
    #[serde(rename = "gate_proj")]
    Gate,
    #[serde(rename = "up_proj")]
    Up,
    #[serde(rename = "down_proj")]
    Down,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub model: StageRef,
    #[serde(default = "rank")]
    #[schemars(range(min = 1, max = 1024))]
    pub rank: usize,
    /// The adapter is scaled by alpha / rank.
    #[serde(default = "alpha")]
    pub alpha: f64,
    #[serde(default = "targets")]
    pub targets: Vec<Target>,
    /// Train the two block norms of every layer too (kept as PEFT's modules_to_save).
    #[serde(default)]
    pub train_norms: bool,
    #[serde(default)]
    pub seed: u64,
}

fn rank() -> usize {
    16
}

fn alpha() -> f64 {
    16.0
}

fn targets() -> Vec<Target> {
    use Target::{Down, Gate, K, O, Q, Up, V};
    vec![Q, K, V, O, Gate, Up, Down]
}
