//! `download`: a model or data set from the hub, a folder, an earlier run, or the bundled model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the files come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `owner/name` on the hub, `file:PATH`, `run:PIPELINE:STAGE@AXIS=VALUE`, or `bundled` (the small model that
    /// comes with qerl).
    pub repo: String,
    /// Branch, tag or commit; resolved once and pinned in qerl.lock.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// A data set, not a model.
    #[serde(default)]
    pub dataset: bool,
    /// Only files that match one of these globs; all that a model or data set needs where empty.
    #[serde(default)]
    pub files: Vec<String>,
    /// Pinned by the plan: resolved commit and per-file sha256; never written by hand.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(skip)]
    pub pins: BTreeMap<String, String>,
}

fn main_branch() -> String {
    "main".to_owned()
}
