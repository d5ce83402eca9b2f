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
    /// Start from this adapter (a downloaded one in PEFT's format, or one that a lora, sft or train stage made) instead
    /// of a fresh one: rank, alpha and targets are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<StageRef>,
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

impl Config {
    /// # Errors
    /// Keys of a fresh adapter beside `init`.
    pub fn check(&self) -> Result<()> {
        let unread = [
            ("rank", self.rank != rank()),
            ("alpha", self.alpha != alpha()),
            ("targets", self.targets != targets()),
            ("seed", self.seed != 0),
        ];
        match unread.iter().find(|(_, set)| self.init.is_some() && *set) {
            Some((key, _)) => Err(Error::usage(format!("{key} would not be read: it is that of the adapter in init"))
                .hint(format!("leave {key} out"))),
            None => Ok(()),
        }
    }

    /// The adapter of `init` for `base`, with the base's norms where they shall be trained and it has none.
    fn continued(&self, context: &Context<'_>, slot: &str, base: &Checkpoint) -> Result<Adapter> {
        let input = context.input(slot)?;
        let artifact = input.artifact.as_ref().map_err(|why| Error::failed(format!("init is not there: {why}")))?;
        let dir = match &artifact.meta.handle {
            Handle::Files { at } => context.store.locate(artifact, at)?,
            _ => context.policy(slot)?.adapter.ok_or_else(|| {
                Error::usage(format!("init: stage {:?} gives a model, not an adapter", input.stage))
                    .hint("name a download of an adapter, or a lora, sft or train stage with one")
            })?,
        };
        let mut adapter = Adapter::read(&dir, &base.config).map_err(|e| e.within("init"))?;
        if self.train_norms && !adapter.norms {
            adapter = adapter.with_norms(base)?;
        }
        Ok(adapter)
    }
}

/// Writes the adapter. A fresh one changes nothing yet (B is zero).
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    config.check()?;
    let slot = &config.model.0;
    let policy = context.policy(slot)?;
    if policy.adapter.is_some() {
        return Err(Error::usage("lora takes a model, but this input has an adapter already")
            .hint("name the stage that gives the base model"));
    }
    let base = Checkpoint::open(&policy.model)?;
    let adapter = match &config.init {
        Some(init) => config.continued(context, &init.0, &base)?,
        None => {
            let targets: Vec<Projection> = config.targets.iter().map(|target| target.projection()).collect();
            Adapter::init(&base, config.rank, config.alpha, &targets, config.train_norms, config.seed)?
        }
    };
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
