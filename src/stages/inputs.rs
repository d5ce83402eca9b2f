//! How a running stage finds the files of its inputs.

use std::path::{Path, PathBuf};

use super::{Context, Input};
use crate::store::{Artifact, Handle, Location, Store};
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

    /// Model and adapter folders of the input in `slot`, at the checkpoint that it asks for.
    pub fn policy(&self, slot: &str) -> Result<PolicyFiles> {
        let input = self.input(slot)?;
        let artifact = input
            .artifact
            .as_ref()
            .map_err(|why| Error::failed(format!("input {slot:?} (stage {:?}) is not there: {why}", input.stage)))?;
        let pick = |what: &str, all: &std::collections::BTreeMap<String, String>| -> Result<PathBuf> {
            let path = all.get(&input.checkpoint).ok_or_else(|| {
                let have: Vec<&str> = all.keys().map(String::as_str).collect();
                Error::missing(format!("stage {:?} has no {what} {:?}", input.stage, input.checkpoint))
                    .hint(format!("it has: {}", have.join(", ")))
            })?;
            Ok(artifact.dir.join(path))
        };
        match &artifact.meta.handle {
            Handle::Model { at } => {
                let model = locate(self.store, artifact, at)?;
                let trainable_model = !is_quantized(&model)?;
                Ok(PolicyFiles { model, adapter: None, trainable_model })
            }
            Handle::Adapter { model, adapters } => Ok(PolicyFiles {
                model: locate(self.store, artifact, model)?,
                adapter: Some(pick("checkpoint", adapters)?),
                trainable_model: false,
            }),
            Handle::Models { checkpoints } => {
                Ok(PolicyFiles { model: pick("checkpoint", checkpoints)?, adapter: None, trainable_model: true })
            }
            other => Err(Error::usage(format!(
                "stage {:?} gives {}, but a model or an adapter is needed here",
                input.stage,
                offer(other)
            ))
            .hint("name a download, quantize, lora, sft or train stage")),
        }
    }
}

/// Stands in for `Store::locate` until that is merged.
fn locate(store: &Store, artifact: &Artifact, at: &Location) -> Result<PathBuf> {
    Ok(match at {
        Location::Own { path } => artifact.dir.join(path),
        Location::Artifact { fingerprint, path } => store.root.join("store").join(fingerprint).join(path),
        Location::Local { path } => path.clone(),
        Location::Hub { repo, dataset, commit } => {
            let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
            let cache = var("HF_HUB_CACHE")
                .or_else(|| Some(var("HF_HOME")?.join("hub")))
                .or_else(|| Some(var("HOME")?.join(".cache/huggingface/hub")))
                .ok_or_else(|| Error::missing("no Hugging Face cache").hint("set HF_HOME"))?;
            let kind = if *dataset { "datasets" } else { "models" };
            cache.join(format!("{kind}--{}", repo.replace('/', "--"))).join("snapshots").join(commit)
        }
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
