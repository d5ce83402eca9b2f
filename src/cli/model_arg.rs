//! MODEL on the command line: a folder, `bundled`, or the address of a pipeline's stage; with an adapter or without.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::hub::bundled;
use crate::stages::{Input, Kind, PolicyFiles, policy_files};
use crate::store::{Artifact, Handle, Location, Meta, Provenance, Store};
use crate::{Error, Result};

/// The model inside the binary; `./bundled` is a folder of that name.
const BUNDLED: &str = "bundled";

/// MODEL with its options, for commands that load it.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArg {
    /// A model's folder, `bundled`, or the ADDRESS of a pipeline's stage (PIPELINE:STAGE@AXIS=LABEL,...)
    model: String,
    /// A PEFT adapter's folder
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Which checkpoint of an ADDRESS: `last`, `best` or a step
    #[arg(long, value_name = "NAME", default_value = "last")]
    checkpoint: String,
}

impl ModelArg {
    /// Where model and adapter lie.
    pub fn files(&self) -> Result<PolicyFiles> {
        let store = Store::from_env()?;
        let policy = Policy::find(&store, &self.model, self.adapter.as_deref(), &self.checkpoint)?;
        policy.files(&store, &self.model, &self.checkpoint)
    }
}

/// The folder of the plain model that `model` names.
pub(super) fn plain_model(model: &str) -> Result<PathBuf> {
    let store = Store::from_env()?;
    let files = Policy::find(&store, model, None, "last")?.files(&store, model, "last")?;
    if files.adapter.is_some() {
        return Err(Error::usage(format!("{model} is a model with an adapter, but a plain model is needed here"))
            .hint("name the stage that made the base model"));
    }
    Ok(files.model)
}

/// `path` as it is seen from anywhere.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("find", path, e))
}

/// An input of a stage that is run by hand. `name` is what messages call it.
pub(super) fn input(slot: &str, name: &str, artifact: Artifact, checkpoint: &str, part: Option<&str>) -> Input {
    Input {
        slot: slot.to_owned(),
        stage: name.to_owned(),
        point: BTreeMap::new(),
        checkpoint: checkpoint.to_owned(),
        part: part.map(str::to_owned),
        artifact: Ok(artifact),
    }
}

fn only_last(checkpoint: &str) -> Result<()> {
    if checkpoint == "last" {
        return Ok(());
    }
    Err(Error::usage("--checkpoint goes with an address, not with a folder").hint("name the checkpoint's own folder"))
}

/// An artifact that is not in the store: a folder given by hand.
pub(super) fn artifact(dir: &Path, kind: Kind, handle: Handle) -> Artifact {
    let meta = Meta {
        fingerprint: "0".repeat(64),
        kind,
        version: kind.version(),
        backend: None,
        input_keys: BTreeMap::new(),
        digest: String::new(),
        handle,
        summary: serde_json::Value::Null,
        config: serde_json::Value::Null,
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
        declared: Vec::new(),
        provenance: Provenance { instance: dir.display().to_string(), ..Provenance::default() },
    };
    Artifact { dir: dir.to_owned(), meta }
}

/// What a MODEL argument names.
pub(super) struct Policy {
    pub artifact: Artifact,
    /// Folders given by hand; none for an address, whose fingerprint says it all.
    pub folders: Vec<PathBuf>,
}

impl Policy {
    pub fn find(store: &Store, model: &str, adapter: Option<&Path>, checkpoint: &str) -> Result<Self> {
        let path = Path::new(model);
        let found = if model == BUNDLED {
            only_last(checkpoint)?;
            Self::folder(bundled::unpacked(&store.root)?)
        } else if path.is_dir() {
            only_last(checkpoint)?;
            Self::folder(absolute(path)?)
        } else if !path.exists() && model.contains(':') {
            Self { artifact: store.resolve(model)?, folders: Vec::new() }
        } else {
            return Err(Error::missing(format!("{model} is not a model's folder")).hint(
                "name a folder with config.json and safetensors, `bundled`, or an address such as tiny:train@seed=1",
            ));
        };
        match adapter {
            None => Ok(found),
            Some(adapter) => found.with_adapter(store, adapter),
        }
    }

    /// Where model and adapter lie; `name` is what messages call it.
    pub fn files(&self, store: &Store, name: &str, checkpoint: &str) -> Result<PolicyFiles> {
        policy_files(store, &input("policy", name, self.artifact.clone(), checkpoint, None))
    }

    fn folder(path: PathBuf) -> Self {
        let at = Location::Local { path: path.clone() };
        Self { artifact: artifact(&path, Kind::Download, Handle::Model { at }), folders: vec![path] }
    }

    fn with_adapter(self, store: &Store, adapter: &Path) -> Result<Self> {
        let Handle::Model { at } = &self.artifact.meta.handle else {
            return Err(Error::usage("--adapter needs a plain model").hint("name the base model, or leave it out"));
        };
        if !adapter.join("adapter_config.json").is_file() {
            return Err(Error::missing(format!("{} holds no adapter", adapter.display()))
                .hint("name a folder with adapter_config.json and adapter_model.safetensors"));
        }
        let model = store.locate(&self.artifact, at)?;
        let adapter = absolute(adapter)?;
        let handle = Handle::Adapter {
            model: Location::Local { path: model.clone() },
            adapters: BTreeMap::from([("last".to_owned(), ".".to_owned())]),
        };
        Ok(Self { artifact: artifact(&adapter, Kind::Lora, handle), folders: vec![model, adapter] })
    }
}
