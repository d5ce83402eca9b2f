//! `download`: a model or data set from the hub, a folder, an earlier run, or the bundled model.
//!
//! Files of the hub stay in the Hugging Face cache and those of a folder where they are; the artifact says which.
//! Only what must be made (the import of a GGUF file) or comes out of the binary is written into it.

mod earlier;
mod files;
mod hub;
mod local;

pub use files::{RawFile, raw_files};

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Context, Output};
use crate::control::{Cancel, Progress};
use crate::hub::{Hub, Manifest, ensure_present};
use crate::store::{Artifact, Handle, Location};
use crate::{Error, Result};

/// Where the files come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `owner/name` on the hub, `file:PATH`, `run:PIPELINE:STAGE@AXIS=VALUE`, or `bundled` (the small model that
    /// comes with qerl).
    pub repo: String,
    /// Branch, tag or commit; resolved once and pinned in qerl.lock.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// A data set, not a model.
    #[serde(default)]
    pub dataset: bool,
    /// Of a data set on the hub: only the files of this configuration (a folder such as `main`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Only files that match one of these globs; all that a model or data set needs where empty.
    #[serde(default)]
    pub files: Vec<String>,
    /// Pinned by the plan, never written by hand: file -> `sha256:DIGEST:SIZE` or `git:DIGEST:SIZE`; for other
    /// sources the artifact or a digest of the content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(skip)]
    pub pins: BTreeMap<String, String>,
    /// The revision as the pipeline names it, where `revision` holds its commit; set by the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub asked: Option<String>,
}

fn main_branch() -> String {
    "main".to_owned()
}

/// The kinds of `repo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// `owner/name`.
    Hub(&'a str),
    /// A path; relative ones start in the pipeline's folder.
    File(&'a str),
    /// `PIPELINE:STAGE@AXIS=VALUE`.
    Run(&'a str),
    Bundled,
}

impl<'a> Source<'a> {
    pub fn parse(repo: &'a str) -> Self {
        if repo == "bundled" {
            Self::Bundled
        } else if let Some(path) = repo.strip_prefix("file:") {
            Self::File(path)
        } else if let Some(address) = repo.strip_prefix("run:") {
            Self::Run(address)
        } else {
            Self::Hub(repo)
        }
    }
}

/// Does the download.
///
/// # Errors
/// What the source answers; options that the source has no use for.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let source = Source::parse(&config.repo);
    if !matches!(source, Source::Hub(_)) {
        check_options(config)?;
    }
    match source {
        Source::Hub(repo) => hub::run(context, config, repo),
        Source::File(path) => local::run(context, config, path),
        Source::Run(address) => earlier::run(context, config, address),
        Source::Bundled if config.dataset => Err(Error::usage("`bundled` is a model, not a data set")
            .hint("the bundled data sets are called `arith` and `sums`: name them where data is asked for")),
        Source::Bundled => {
            let names = crate::hub::bundled::write(&context.output)?;
            let bytes: usize = crate::hub::bundled::FILES.iter().map(|file| file.bytes.len()).sum();
            let handle = Handle::Model { at: Location::Own { path: ".".to_owned() } };
            Ok(Output { summary: json!({"files": names.len(), "bytes": bytes}), declared: names, handle })
        }
    }
}

/// Options of the hub beside another source would be without effect.
///
/// # Errors
/// When there are any.
pub fn check_options(config: &Config) -> Result<()> {
    let unused = [
        ("revision", config.revision != main_branch()),
        ("files", !config.files.is_empty()),
        ("config", config.config.is_some()),
    ];
    match unused.iter().find(|(_, set)| *set) {
        Some((key, _)) => Err(Error::usage(format!("`{key}` has no meaning with `repo: {}`", config.repo))
            .hint(format!("leave `{key}` out: it chooses among what a repository of the hub holds"))),
        None => Ok(()),
    }
}

/// Makes a finished download of `repo` usable again: fetches what the Hugging Face cache has lost of it. `false` where
/// it must run again, which is cheap: its `file:` source has the same content but lies elsewhere now.
///
/// # Errors
/// As [`run`].
pub fn refresh(
    hub: &Hub,
    base_dir: &Path,
    repo: &str,
    artifact: &Artifact,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<bool> {
    let (Handle::Model { at } | Handle::Files { at }) = &artifact.meta.handle else { return Ok(true) };
    match (at, Source::parse(repo)) {
        (Location::Hub { .. }, _) => {
            ensure_present(hub, &Manifest::read(&artifact.dir)?, progress, cancel)?;
            Ok(true)
        }
        (Location::Local { path }, Source::File(source)) => Ok(*path == local::place(base_dir, source)?),
        _ => Ok(true),
    }
}
