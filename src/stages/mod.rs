//! The stages: each file holds one kind's typed configuration and what it does.
//!
//! A stage reads its inputs through [`Context`], fills `context.output` and returns an [`Output`]. It knows
//! nothing of the command line, of fingerprints or of other instances.

pub mod download;
pub mod eval;
mod inputs;
pub mod lora;
mod material;
pub mod quantize;
pub mod report;
pub mod sft;
pub mod split;
pub mod train;

pub use inputs::{PolicyFiles, policy_files};

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::{Cancel, Progress};
use crate::store::Handle;

/// A field that names another stage. In a pipeline file: an id, or `{stage, at: {variant: L}, checkpoint: last}`.
/// In a resolved configuration: the slot (`model`, `policy`, `gather.0`) under which [`Context`] holds the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("x-qerl" = "stage"))]
pub struct StageRef(pub String);

/// A field that names a data set: an entry under `data:`, a built-in, or `NAME.holdout`. The name stays in the
/// resolved configuration; the input's slot is the field's path (`data`, `data.0`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("x-qerl" = "data"))]
pub struct DataRef(pub String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Download,
    Split,
    Quantize,
    Lora,
    Sft,
    Train,
    Eval,
    Report,
}

impl Kind {
    pub const ALL: [Self; 8] =
        [Self::Download, Self::Split, Self::Quantize, Self::Lora, Self::Sft, Self::Train, Self::Eval, Self::Report];

    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Split => "split",
            Self::Quantize => "quantize",
            Self::Lora => "lora",
            Self::Sft => "sft",
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Report => "report",
        }
    }

    /// Raised whenever the same configuration and inputs would give other outputs.
    pub fn version(self) -> u32 {
        match self {
            Self::Report => 3,
            _ => 1,
        }
    }

    /// The configuration's JSON Schema; the only definition of its keys, types and defaults.
    pub fn schema(self) -> schemars::Schema {
        match self {
            Self::Download => schemars::schema_for!(download::Config),
            Self::Split => schemars::schema_for!(split::Config),
            Self::Quantize => schemars::schema_for!(quantize::Config),
            Self::Lora => schemars::schema_for!(lora::Config),
            Self::Sft => schemars::schema_for!(sft::Config),
            Self::Train => schemars::schema_for!(train::Config),
            Self::Eval => schemars::schema_for!(eval::Config),
            Self::Report => schemars::schema_for!(report::Config),
        }
    }
}

/// One resolved input of a running stage.
#[derive(Clone, Debug)]
pub struct Input {
    /// `model`, `policy`, `data`, `data.0`, `gather.3`, ...
    pub slot: String,
    /// Stage id and axis values of the producing instance, for display.
    pub stage: String,
    pub point: BTreeMap<String, String>,
    /// Asked for by `checkpoint:`; `last` where nothing was said.
    pub checkpoint: String,
    /// For data: `train`, `holdout` or `all`.
    pub part: Option<String>,
    /// `Err` holds why the instance failed or was skipped; only `report` sees those.
    pub artifact: Result<crate::store::Artifact, String>,
}

/// What a stage gets to run with.
pub struct Context<'a> {
    pub inputs: Vec<Input>,
    /// An empty folder; what is left in it becomes the artifact.
    pub output: PathBuf,
    /// Kept across interrupted runs of the same fingerprint: checkpoints live here.
    pub work: PathBuf,
    pub store: &'a crate::store::Store,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// CPU threads this stage may use.
    pub threads: usize,
    /// The folder of the pipeline file: relative paths in it start here.
    pub base_dir: PathBuf,
    pub hub: &'a crate::hub::Hub,
}

/// What a stage returns.
#[derive(Clone, Debug)]
pub struct Output {
    /// Files (relative to `output`) that the output digest covers: not metrics, timings or logs.
    pub declared: Vec<String>,
    pub handle: Handle,
    /// A few figures for people and reports (accuracy, bytes, errors).
    pub summary: serde_json::Value,
}
