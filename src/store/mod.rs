//! Content-addressed artifacts: `.qerl/store/<fingerprint>`, written beside, fsynced, renamed; locked; with provenance.
//!
//! ```text
//! .qerl/store/<fingerprint>/   one finished artifact; artifact.json was written last
//! .qerl/store/.tmp-<fingerprint>-<pid>-<n>/   one that is being written (swept under its lock)
//! .qerl/locks/                 kernel locks; the holder's pid and host are inside
//! .qerl/work/<fingerprint>/    checkpoints of unfinished work
//! .qerl/names/<pipeline>/      instance name -> the fingerprint it last had
//! .qerl/stamps/                size and mtime under which a file was last hashed
//! .qerl/quarantine/            entries found damaged
//! ```

mod draft;
mod fingerprint;
mod lock;
mod names;
mod shared;
mod sweep;
mod verify;

pub use crate::hub::free_bytes;
pub use draft::{Draft, Finished, write_atomic};
pub use fingerprint::{InputKey, KEY_SCHEMA, Key, canonical, is_fingerprint, short};
pub use lock::{Holder, Lock, is_held};
pub use names::{Address, file_name, parse_address};
pub use sweep::{Removed, disk_usage, remove_tree};
pub use verify::{Lookup, hash_file};

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Kind as Trouble;
use crate::{Error, Result};

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
    /// Raised by the stage when the same configuration and inputs would give other outputs.
    #[serde(default)]
    pub version: u32,
    /// `cpu` or `cuda` where the result depends on it (sft, train, eval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Slot -> what of that input went into the fingerprint.
    #[serde(default)]
    pub input_keys: BTreeMap<String, InputKey>,
    /// blake3 over the declared outputs (names, sizes and bytes) and over what the handle refers to outside.
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
    /// The Hugging Face cache that artifacts refer to; what the environment says where absent.
    hub_cache: Option<PathBuf>,
}

impl Store {
    /// The store at `root`; nothing is created before something is written.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        match std::fs::metadata(&root) {
            Ok(meta) if !meta.is_dir() => {
                Err(Error::new(Trouble::Storage, format!("{} is not a folder", root.display()))
                    .hint("the store needs a folder: move that file, or set QERL_HOME to another place"))
            }
            Ok(_) => Ok(Self { root, hub_cache: None }),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Self { root, hub_cache: None }),
            Err(e) => Err(unreadable(&root, e)),
        }
    }

    /// `QERL_STORE` (a store that a Unix group shares), `QERL_HOME`, or `.qerl` in the current directory. Always an
    /// absolute path.
    ///
    /// # Errors
    /// When there is something else than a folder, or a shared store cannot be made.
    pub fn from_env() -> Result<Self> {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(root) = named("QERL_STORE") {
            let root = std::path::absolute(&root).map_err(|e| Error::io("find", &root, e))?;
            shared::prepare(&root)?;
            return Self::open(root);
        }
        let root = named("QERL_HOME").unwrap_or_else(|| PathBuf::from(".qerl"));
        let root = std::path::absolute(&root).map_err(|e| Error::io("find", &root, e))?;
        Self::open(root)
    }

    /// The same store with the Hugging Face cache at `folder`, wherever the environment says that it is.
    #[must_use]
    pub fn with_hub_cache(self, folder: impl Into<PathBuf>) -> Self {
        Self { hub_cache: Some(folder.into()), ..self }
    }

    /// The Hugging Face cache that artifacts refer to.
    ///
    /// # Errors
    /// When the environment names no folder for it.
    pub fn hub_cache(&self) -> Result<PathBuf> {
        self.hub_cache.clone().map_or_else(crate::hub::cache_folder, Ok)
    }

    /// The folder of a commit in the Hugging Face cache, whether it is there or not; refuses names that would leave it.
    pub fn hub_snapshot(&self, repo: &str, dataset: bool, commit: &str) -> Result<PathBuf> {
        crate::hub::Cache::new(self.hub_cache()?).checked_snapshot_dir(repo, dataset, commit)
    }

    /// The artifact, its sizes checked (and its bytes where a file changed since it was last hashed). `None` when
    /// there is none; an error of kind `Integrity` when there is one that is damaged.
    pub fn get(&self, fingerprint: &str) -> Result<Option<Artifact>> {
        match self.lookup(fingerprint)? {
            Lookup::Hit(artifact) => Ok(Some(*artifact)),
            Lookup::Missing => Ok(None),
            Lookup::Bad(why) => Err(Error::new(
                Trouble::Integrity,
                format!("the stored artifact {} is damaged: {why}", short(fingerprint)),
            )
            .hint("run the pipeline again: the damaged entry is set aside and the stage runs anew")),
        }
    }

    /// Where `location`, found in `artifact`'s handle, lies on this machine.
    pub fn locate(&self, artifact: &Artifact, location: &Location) -> Result<PathBuf> {
        let path = match location {
            Location::Own { path } => join_inside(&artifact.dir, path)?,
            Location::Artifact { fingerprint, path } => join_inside(&self.entry(fingerprint)?, path)?,
            Location::Hub { repo, dataset, commit } => self.hub_snapshot(repo, *dataset, commit)?,
            Location::Local { path } => path.clone(),
        };
        match std::fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let what = match location {
                    Location::Own { .. } => "a part of the artifact",
                    Location::Artifact { .. } => "the artifact that this one refers to",
                    Location::Hub { .. } => "the snapshot in the Hugging Face cache",
                    Location::Local { .. } => "the local source",
                };
                Err(Error::missing(format!("{what} is gone: {}", path.display()))
                    .hint("run the pipeline again: what is missing is fetched or made anew"))
            }
            Err(e) => Err(Error::io("read", &path, e)),
        }
    }

    /// The folder of an entry, whether it exists or not.
    pub fn entry(&self, fingerprint: &str) -> Result<PathBuf> {
        if !is_fingerprint(fingerprint) {
            return Err(Error::new(Trouble::Integrity, format!("`{fingerprint}` is not a fingerprint"))
                .hint("the artifact that names it was tampered with or written by another program; remove it"));
        }
        Ok(self.entries().join(fingerprint))
    }

    /// Where checkpoints of unfinished work with this fingerprint lie.
    pub fn work(&self, fingerprint: &str) -> PathBuf {
        self.root.join("work").join(fingerprint)
    }

    fn entries(&self) -> PathBuf {
        self.root.join("store")
    }
}

/// `path` inside `dir`; refuses everything that would leave it.
fn join_inside(dir: &Path, path: &str) -> Result<PathBuf> {
    let relative = Path::new(path);
    if relative.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::new(Trouble::Integrity, format!("`{path}` points outside of its artifact")));
    }
    let mut full = dir.to_path_buf();
    full.extend(relative.components().filter(|c| matches!(c, Component::Normal(_))));
    Ok(full)
}

/// The other artifact of the store that this one cannot live without.
fn reference_fingerprint(artifact: &Artifact) -> Option<&str> {
    match draft::reference(&artifact.meta.handle) {
        Some(Location::Artifact { fingerprint, .. }) => Some(fingerprint),
        _ => None,
    }
}

fn unreadable(path: &Path, e: std::io::Error) -> Error {
    let hint = format!("qerl cannot read its store: check the permissions of {}, or set QERL_HOME", path.display());
    Error::new(Trouble::Storage, format!("cannot read the store at {}", path.display())).caused_by(e).hint(hint)
}

/// The name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
