//! `quantize`: projections of a model to a 4-bit format, layer by layer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StageRef;
use crate::quant::Format;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub model: StageRef,
    pub format: Format,
    /// q, k, v and gate, up share a global scale, as fused kernels elsewhere assume (NVFP4 only).
    #[serde(default = "yes")]
    pub fuse: bool,
}

fn yes() -> bool {
    true
}
