//! What an earlier run made.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::{Config, Context, Output};
use crate::hub::Manifest;
use crate::store::{Artifact, Handle, Location};
use crate::{Error, Result};

pub(super) fn run(context: &Context<'_>, config: &Config, address: &str) -> Result<Output> {
    let artifact = match config.pins.get("artifact") {
        // Between plan and run another one may have got that address: the plan's counts.
        Some(fingerprint) => context.store.get(fingerprint)?.ok_or_else(|| {
            Error::missing(format!("the artifact of `{address}` is gone")).hint("run that pipeline again")
        })?,
        None => context.store.resolve(address)?,
    };
    let handle = match (&artifact.meta.handle, config.dataset) {
        (Handle::Model { at }, false) => Handle::Model { at: outside(&artifact, at) },
        (Handle::Files { at }, true) => Handle::Files { at: outside(&artifact, at) },
        // Checkpoints are named by their folders in the artifact, so they become part of this one as well.
        (Handle::Adapter { model, adapters }, false) => {
            Handle::Adapter { model: outside(&artifact, model), adapters: take(context, &artifact, adapters)? }
        }
        (Handle::Models { checkpoints }, false) => {
            Handle::Models { checkpoints: take(context, &artifact, checkpoints)? }
        }
        (Handle::Problems { parts }, true) => Handle::Problems { parts: take(context, &artifact, parts)? },
        (_, true) => return Err(wrong(address, "no data set")),
        (_, false) => return Err(wrong(address, "no model and no adapter")),
    };
    // By it files that leave the Hugging Face cache are fetched again.
    let refers =
        matches!(&handle, Handle::Model { at: Location::Hub { .. } } | Handle::Files { at: Location::Hub { .. } });
    if refers && artifact.dir.join(Manifest::FILE).is_file() {
        Manifest::read(&artifact.dir)?.write(&context.output)?;
    }
    let mut declared = Vec::new();
    for item in std::fs::read_dir(&context.output).map_err(|e| Error::io("read", &context.output, e))? {
        let item = item.map_err(|e| Error::io("read", &context.output, e))?;
        declared.push(item.file_name().to_string_lossy().into_owned());
    }
    declared.sort();
    Ok(Output { declared, handle, summary: json!({"from": address}) })
}

fn wrong(address: &str, what: &str) -> Error {
    Error::usage(format!("`{address}` offers {what}")).hint("`dataset: true` asks for data, without it for a model")
}

/// A location as another artifact can hold it.
fn outside(artifact: &Artifact, at: &Location) -> Location {
    match at {
        Location::Own { path } => {
            Location::Artifact { fingerprint: artifact.meta.fingerprint.clone(), path: path.clone() }
        }
        other => other.clone(),
    }
}

/// Links the named files or folders of `artifact` (name -> path) into the output, under the same paths.
fn take(
    context: &Context<'_>,
    artifact: &Artifact,
    paths: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    for path in paths.values() {
        // Refuses paths that lead out of the artifact.
        let from = context.store.locate(artifact, &Location::Own { path: path.clone() })?;
        let to = context.output.join(path);
        // Two checkpoints (`last` and `20`) may be one folder.
        if to.exists() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
        }
        link_tree(context, &from, &to)?;
    }
    Ok(paths.clone())
}

/// Artifacts never change, so a second name for a file costs nothing; another disk gets a copy.
fn link_tree(context: &Context<'_>, from: &Path, to: &Path) -> Result<()> {
    context.cancel.check()?;
    if from.is_dir() {
        std::fs::create_dir_all(to).map_err(|e| Error::io("create", to, e))?;
        for item in std::fs::read_dir(from).map_err(|e| Error::io("read", from, e))? {
            let item = item.map_err(|e| Error::io("read", from, e))?;
            // A folder that is the artifact itself holds its description.
            if item.file_name() != "artifact.json" {
                link_tree(context, &item.path(), &to.join(item.file_name()))?;
            }
        }
        return Ok(());
    }
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).map_err(|e| Error::io("write", to, e))?;
    }
    Ok(())
}
