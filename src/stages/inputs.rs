//! How a running stage finds the files of its inputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Context, Input};
use crate::store::{Handle, Location};
use crate::{Error, Result};

/// Where the parts of a policy lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFiles {
    /// The model's folder.
    pub model: PathBuf,
    /// The PEFT adapter's folder, where the input has one.
    pub adapter: Option<PathBuf>,
    /// A model without an adapter whose weights are not quantized: every parameter can be trained.
    pub trainable_model: bool,
}

impl Context<'_> {
    /// The input in `slot` (`model`, `policy`, `data.0`, ...).
    pub fn input(&self, slot: &str) -> Result<&Input> {
        self.inputs.iter().find(|input| input.slot == slot).ok_or_else(|| {
            let have: Vec<&str> = self.inputs.iter().map(|input| input.slot.as_str()).collect();
            Error::failed(format!("this stage has no input {slot:?} (it has: {})", have.join(", ")))
        })
    }

    /// The folder of the model in `slot`; an adapter gives its base model's.
    pub fn model_dir(&self, slot: &str) -> Result<PathBuf> {
        Ok(self.policy(slot)?.model)
    }

    /// Where the model in `slot` lies, as another artifact can keep it.
    pub fn model_location(&self, slot: &str) -> Result<Location> {
        let input = self.input(slot)?;
        let artifact = input.artifact.as_ref().map_err(|why| absent(input, why))?;
        let inside =
            |path: &str| Location::Artifact { fingerprint: artifact.meta.fingerprint.clone(), path: path.to_owned() };
        match &artifact.meta.handle {
            Handle::Model { at: Location::Own { path } } | Handle::Adapter { model: Location::Own { path }, .. } => {
                Ok(inside(path))
            }
            Handle::Model { at } | Handle::Adapter { model: at, .. } => Ok(at.clone()),
            Handle::Models { checkpoints } => Ok(inside(pick(input, checkpoints)?)),
            other => Err(no_model(input, other)),
        }
    }

    /// Model and adapter folders of the input in `slot`, at the checkpoint that it asks for.
    pub fn policy(&self, slot: &str) -> Result<PolicyFiles> {
        let input = self.input(slot)?;
        let artifact = input.artifact.as_ref().map_err(|why| absent(input, why))?;
        match &artifact.meta.handle {
            Handle::Model { at } => {
                let model = self.store.locate(artifact, at)?;
                let trainable_model = !is_quantized(&model)?;
                Ok(PolicyFiles { model, adapter: None, trainable_model })
            }
            Handle::Adapter { model, adapters } => Ok(PolicyFiles {
                model: self.store.locate(artifact, model)?,
                adapter: Some(artifact.dir.join(pick(input, adapters)?)),
                trainable_model: false,
            }),
            Handle::Models { checkpoints } => {
                let model = artifact.dir.join(pick(input, checkpoints)?);
                Ok(PolicyFiles { model, adapter: None, trainable_model: true })
            }
            other => Err(no_model(input, other)),
        }
    }
}

fn absent(input: &Input, why: &str) -> Error {
    Error::failed(format!("input {:?} (stage {:?}) is not there: {why}", input.slot, input.stage))
}

fn no_model(input: &Input, handle: &Handle) -> Error {
    let what = offer(handle);
    Error::usage(format!("stage {:?} gives {what}, but a model or an adapter is needed here", input.stage))
        .hint("name a download, quantize, lora, sft or train stage")
}

/// The folder of the checkpoint that the input asks for.
fn pick<'a>(input: &Input, all: &'a BTreeMap<String, String>) -> Result<&'a str> {
    all.get(&input.checkpoint).map(String::as_str).ok_or_else(|| {
        let have: Vec<&str> = all.keys().map(String::as_str).collect();
        Error::missing(format!("stage {:?} has no checkpoint {:?}", input.stage, input.checkpoint))
            .hint(format!("it has: {}", have.join(", ")))
    })
}

/// Whether config.json in `model` says that the weights are quantized.
fn is_quantized(model: &Path) -> Result<bool> {
    let path = model.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let config: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| Error::input(format!("{} is not valid JSON", path.display())).caused_by(e))?;
    Ok(config.get("quantization_config").is_some_and(|q| !q.is_null()))
}

fn offer(handle: &Handle) -> &'static str {
    match handle {
        Handle::Model { .. } => "a model",
        Handle::Adapter { .. } => "an adapter",
        Handle::Models { .. } => "trained models",
        Handle::Files { .. } => "raw files",
        Handle::Problems { .. } => "problems",
        Handle::Eval => "an evaluation",
        Handle::Report { .. } => "a report",
    }
}
