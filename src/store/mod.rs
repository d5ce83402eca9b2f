//! Content-addressed artifacts: `.qerl/store/<fingerprint>`, written beside, fsynced, renamed; locked; with provenance.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where something lies that an artifact hands on. Never an absolute path inside a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    /// `path` inside the artifact that holds this value (`.` is its folder).
    Own { path: String },
    /// `path` inside another artifact of the store.
    Artifact { fingerprint: String, path: String },
    /// A snapshot in the Hugging Face cache: `commit` is the resolved revision.
    Hub { repo: String, dataset: bool, commit: String },
    /// A folder or file outside (a `file:` source, the bundled model's unpacked folder).
    Local { path: PathBuf },
}

/// What an artifact offers to later stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handle {
    /// A Hugging Face model folder: config.json, safetensors, tokenizer files.
    Model { at: Location },
    /// A model with a PEFT adapter; `adapters` maps a checkpoint's name (`last`, `best`, a step number; `init`
    /// for a fresh adapter, which also stands under `last`) to its folder inside this artifact.
    Adapter { model: Location, adapters: BTreeMap<String, String> },
    /// Full-parameter training: checkpoint name -> a model folder inside this artifact.
    Models { checkpoints: BTreeMap<String, String> },
    /// Raw files of a data set.
    Files { at: Location },
    /// Normalised problems as `data::Problem` JSON lines: part (`train`, `holdout`, `all`) -> file.
    Problems { parts: BTreeMap<String, String> },
    /// An evaluation: summary.json and records.parquet.
    Eval,
    /// Report files inside this artifact: kind (`html`, `md`) -> file.
    Report { files: BTreeMap<String, String> },
}

/// A finished artifact.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub dir: PathBuf,
    pub meta: Meta,
}

/// artifact.json, written last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    pub fingerprint: String,
    pub kind: crate::stages::Kind,
    /// blake3 over the declared outputs: names, sizes and bytes.
    pub digest: String,
    pub handle: Handle,
    pub summary: serde_json::Value,
    /// The configuration as fingerprinted.
    pub config: serde_json::Value,
    /// Slot -> fingerprint of the artifact that was read.
    pub inputs: BTreeMap<String, String>,
    /// Every file: path -> size and blake3.
    pub files: BTreeMap<String, FileEntry>,
    pub declared: Vec<String>,
    pub provenance: Provenance,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub size: u64,
    pub blake3: String,
}

/// Who made it, where, when and how long it took. Never part of a fingerprint or digest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Provenance {
    pub qerl_version: String,
    pub pipeline: String,
    /// `train@variant=nvfp4-aqn`.
    pub instance: String,
    pub host: String,
    /// `cpu (model name, threads)` or the GPU's name.
    pub device: String,
    /// RFC 3339.
    pub started: String,
    pub wall_seconds: f64,
}

/// The store at one root (`.qerl` beside the pipeline's working directory, or `QERL_HOME`).
#[derive(Clone, Debug)]
pub struct Store {
    pub root: PathBuf,
}
