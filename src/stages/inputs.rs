//! How a running stage finds the files of its inputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Context, Input};
use crate::store::{Handle, Location, Store};
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
        model_location(self.input(slot)?)
    }

    /// Model and adapter folders of the input in `slot`, at the checkpoint that it asks for.
    pub fn policy(&self, slot: &str) -> Result<PolicyFiles> {
        policy_files(self.store, self.input(slot)?)
    }
}

fn model_location(input: &Input) -> Result<Location> {
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

/// Model and adapter folders of `input`, at the checkpoint that it asks for.
pub fn policy_files(store: &Store, input: &Input) -> Result<PolicyFiles> {
    let artifact = input.artifact.as_ref().map_err(|why| absent(input, why))?;
    // Paths inside an artifact may come from a remote: the store refuses those that lead out of it.
    let own = |path: &str| store.locate(artifact, &Location::Own { path: path.to_owned() });
    match &artifact.meta.handle {
        Handle::Model { at } => {
            let model = store.locate(artifact, at)?;
            let trainable_model = !is_quantized(&model)?;
            Ok(PolicyFiles { model, adapter: None, trainable_model })
        }
        Handle::Adapter { model, adapters } => Ok(PolicyFiles {
            model: store.locate(artifact, model)?,
            adapter: Some(own(pick(input, adapters)?)?),
            trainable_model: false,
        }),
        Handle::Models { checkpoints } => {
            Ok(PolicyFiles { model: own(pick(input, checkpoints)?)?, adapter: None, trainable_model: true })
        }
        other => Err(no_model(input, other)),
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

/// Whether config.json in `model`, or ModelOpt's file beside it, says that the weights are quantized.
fn is_quantized(model: &Path) -> Result<bool> {
    let path = model.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let config: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| Error::input(format!("{} is not valid JSON", path.display())).caused_by(e))?;
    let named = config.get("quantization_config").is_some_and(|q| !q.is_null());
    Ok(named || model.join("hf_quant_config.json").exists())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Artifact;

    fn input(dir: &Path, checkpoint: &str, handle: serde_json::Value) -> Input {
        let meta = json!({"fingerprint": "f0", "kind": "train", "digest": "", "handle": handle, "summary": null,
            "config": null, "inputs": {}, "files": {}, "declared": [], "provenance": {"qerl_version": "",
            "pipeline": "", "instance": "", "host": "", "device": "", "started": "", "wall_seconds": 0.0}});
        let artifact = Artifact { dir: dir.to_owned(), meta: serde_json::from_value(meta).unwrap() };
        Input {
            slot: "policy".to_owned(),
            stage: "s".to_owned(),
            point: BTreeMap::new(),
            checkpoint: checkpoint.to_owned(),
            part: None,
            artifact: Ok(artifact),
        }
    }

    #[test]
    fn an_input_resolves_to_the_folders_of_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        let at = |name: &str| {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            dir.path().join(name)
        };
        let (base, best, full) = (at("base"), at("best"), at("full"));
        std::fs::write(base.join("config.json"), r#"{"quantization_config": {"quant_method": "x"}}"#).unwrap();
        let local = json!({"local": {"path": base}});

        let model = input(dir.path(), "last", json!({"model": {"at": local}}));
        let want = PolicyFiles { model: base.clone(), adapter: None, trainable_model: false };
        assert_eq!(policy_files(&store, &model).unwrap(), want, "quantized weights are not trained");
        assert_eq!(model_location(&model).unwrap(), Location::Local { path: base.clone() });
        std::fs::write(base.join("config.json"), "{}").unwrap();
        assert!(policy_files(&store, &model).unwrap().trainable_model);

        let handle = json!({"adapter": {"model": local, "adapters": {"best": "best", "out": "../base"}}});
        let want = PolicyFiles { model: base, adapter: Some(best), trainable_model: false };
        assert_eq!(policy_files(&store, &input(dir.path(), "best", handle.clone())).unwrap(), want);
        let missing = policy_files(&store, &input(dir.path(), "last", handle.clone())).unwrap_err();
        assert!(missing.hint_text().unwrap().contains("best"), "{missing}");
        assert!(policy_files(&store, &input(dir.path(), "out", handle)).is_err(), "a path out of the artifact");

        let trained = input(dir.path(), "3", json!({"models": {"checkpoints": {"3": "full"}}}));
        let want = PolicyFiles { model: full, adapter: None, trainable_model: true };
        assert_eq!(policy_files(&store, &trained).unwrap(), want);
        let inside = Location::Artifact { fingerprint: "f0".to_owned(), path: "full".to_owned() };
        assert_eq!(model_location(&trained).unwrap(), inside, "another artifact must be able to find it");

        let mut failed = input(dir.path(), "last", json!("eval"));
        assert!(policy_files(&store, &failed).unwrap_err().to_string().contains("an evaluation"));
        failed.artifact = Err("it ran out of memory".to_owned());
        assert!(policy_files(&store, &failed).unwrap_err().to_string().contains("it ran out of memory"));
    }
}
