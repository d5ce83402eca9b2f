//! The pipeline language: YAML with byte spans -> includes, profiles, variants, sweeps -> stage instances.
//!
//! The last product is [`Graph`]: every instance with its resolved configuration and the instances it reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::stages::Kind;

/// The whole experiment, expanded: instances in a topological order (inputs come first).
#[derive(Clone, Debug)]
pub struct Graph {
    pub name: String,
    /// The pipeline file.
    pub file: PathBuf,
    pub instances: Vec<Instance>,
    /// Axis name -> its labels in order.
    pub axes: BTreeMap<String, Vec<String>>,
    /// What the user should know: dropped instances, equal variants, ...
    pub notes: Vec<String>,
}

/// One stage at one point of the axes it uses.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The stage's id (`train`); implicit data stages are called `data.NAME.download` and `data.NAME`.
    pub stage: String,
    pub kind: Kind,
    /// Axis -> label, only the axes this stage depends on.
    pub point: BTreeMap<String, String>,
    /// The typed configuration with every default filled in, as `stages::KIND::Config` decodes it. Stage
    /// references hold their slot's name.
    pub config: serde_json::Value,
    pub inputs: Vec<Edge>,
    /// Indices of instances that must come first without handing on data.
    pub needs: Vec<usize>,
    pub resources: Resources,
}

impl Instance {
    /// `train@seed=1,variant=nvfp4-aqn`, or just `train`.
    pub fn name(&self) -> String {
        if self.point.is_empty() {
            return self.stage.clone();
        }
        let point: Vec<String> = self.point.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        format!("{}@{}", self.stage, point.join(","))
    }
}

/// An input of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The path of the field in the configuration: `model`, `policy`, `data.0`, `gather.2`.
    pub slot: String,
    /// Index into [`Graph::instances`].
    pub from: usize,
    /// `last`, `best` or a step number.
    pub checkpoint: String,
    /// For data: `train`, `holdout` or `all`.
    pub part: Option<String>,
}

/// What a scheduler must set aside. Never part of a fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    pub gpus: u32,
    pub cpus: u32,
    /// `16GiB` and the like.
    pub memory: Option<String>,
    /// `HH:MM:SS` or minutes, for a cluster's scheduler.
    pub time: Option<String>,
    pub partition: Option<String>,
}
