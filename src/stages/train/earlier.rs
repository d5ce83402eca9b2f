//! Raising `stop_at`: a run that ends before the horizon of its schedules leaves its state in the artifact, and a later
//! one that differs in `stop_at` alone goes on from there.

use std::path::Path;

use serde_json::Value;

use crate::stages::Kind;
use crate::store::{Artifact, Key, Store};
use crate::{Error, Result};

/// Folder of the state inside the artifact; no declared output.
const FOLDER: &str = "state";

/// The last step of a run with this configuration.
fn end(config: &Value) -> Option<u64> {
    config.get("stop_at").filter(|v| !v.is_null()).or_else(|| config.get("steps"))?.as_u64()
}

/// The artifact with the longest trajectory among those that differ from `key` in a smaller `stop_at` alone.
///
/// # Errors
/// Where the store cannot be read.
pub fn find(store: &Store, key: &Key) -> Result<Option<Artifact>> {
    let Some(wanted) = end(&key.config).filter(|_| key.kind == Kind::Train) else { return Ok(None) };
    let shorter = |artifact: &Artifact| {
        let stop_at = artifact.meta.config.get("stop_at")?;
        let end = stop_at.as_u64().filter(|end| *end < wanted)?;
        let mut same = key.clone();
        same.config.as_object_mut()?.insert("stop_at".to_owned(), stop_at.clone());
        (same.fingerprint() == artifact.meta.fingerprint && artifact.dir.join(FOLDER).is_dir()).then_some(end)
    };
    let artifacts = store.list()?.0.into_iter().filter(|artifact| artifact.meta.kind == Kind::Train);
    Ok(artifacts.filter_map(|a| Some((shorter(&a)?, a))).max_by_key(|(end, _)| *end).map(|(_, artifact)| artifact))
}

/// Puts the state of an earlier run into the work folder of the one that goes on.
///
/// # Errors
/// What copying gives.
pub fn take_over(artifact: &Artifact, work: &Path) -> Result<()> {
    copy(&artifact.dir.join(FOLDER), work)
}

/// Leaves the work folder's state in the artifact that is being made.
pub(super) fn leave(work: &Path, output: &Path) -> Result<()> {
    let state = output.join(FOLDER);
    copy(&work.join("checkpoints"), &state.join("checkpoints"))?;
    let metrics = "metrics.jsonl";
    std::fs::copy(work.join(metrics), state.join(metrics)).map_err(|e| Error::io("write", state.join(metrics), e))?;
    Ok(())
}

/// Copies a tree. Nothing in it is ever written in place, so a second name for a file does where the disk allows it;
/// metrics.jsonl, which is appended to, is copied.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(|e| Error::io("create", to, e))?;
    let mut items = Vec::new();
    for item in std::fs::read_dir(from).map_err(|e| Error::io("read", from, e))? {
        items.push(item.map_err(|e| Error::io("read", from, e))?);
    }
    // Files before folders: a checkpoint that is there whole has the parameters kept before it beside it.
    items.sort_by_key(|item| (item.path().is_dir(), item.file_name()));
    for item in items {
        let (source, target) = (item.path(), to.join(item.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
            continue;
        }
        let grows = source.extension().is_some_and(|end| end == "jsonl");
        if grows || std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target).map_err(|e| Error::io("write", &target, e))?;
        }
    }
    Ok(())
}
