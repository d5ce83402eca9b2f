//! `split`: raw rows -> normalised problems in parts `train`, `holdout` and `all`. Made for each entry under
//! `data:`; can also stand in a pipeline by itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StageRef;
use crate::data::{DataSpec, Holdout};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Raw files; absent for generated sets (`arith`, `sums`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<StageRef>,
    pub spec: DataSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdout: Option<Holdout>,
}
