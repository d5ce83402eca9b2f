//! `lora`: a fresh, seeded adapter beside a base model (Hu et al. 2021), in PEFT's format.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Context, Output, StageRef};
use crate::model::{Adapter, Checkpoint, Projection};
use crate::store::Handle;
use crate::{Error, Result};

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

impl Target {
    pub fn projection(self) -> Projection {
        match self {
            Self::Q => Projection::Q,
            Self::K => Projection::K,
            Self::V => Projection::V,
            Self::O => Projection::O,
            Self::Gate => Projection::Gate,
            Self::Up => Projection::Up,
            Self::Down => Projection::Down,
        }
    }
}

/// Where the adapter lies inside the artifact.
const FOLDER: &str = "adapter";

/// Writes a fresh adapter: it changes nothing yet (B is zero).
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let slot = &config.model.0;
    let policy = context.policy(slot)?;
    if policy.adapter.is_some() {
        return Err(Error::usage("lora takes a model, but this input has an adapter already")
            .hint("name the stage that gives the base model"));
    }
    let base = Checkpoint::open(&policy.model)?;
    let targets: Vec<Projection> = config.targets.iter().map(|target| target.projection()).collect();
    let adapter = Adapter::init(&base, config.rank, config.alpha, &targets, config.train_norms, config.seed)?;
    let dir = context.output.join(FOLDER);
    std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
    let files = adapter.write(&dir)?;
    let parameters: usize = adapter.tensors.iter().map(|tensor| tensor.data.len()).sum();
    let adapters = ["init", "last"].map(|name| (name.to_owned(), FOLDER.to_owned()));
    Ok(Output {
        declared: files.into_iter().map(|file| format!("{FOLDER}/{file}")).collect(),
        handle: Handle::Adapter { model: context.model_location(slot)?, adapters: adapters.into() },
        summary: serde_json::json!({
            "rank": adapter.rank,
            "alpha": adapter.alpha,
            "parameters": parameters,
            "train_norms": adapter.norms,
        }),
    })
}
