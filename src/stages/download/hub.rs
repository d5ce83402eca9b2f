//! A repository of the hub.

use serde_json::json;

use super::{Config, Context, Output};
use crate::hub::select::{Want, choose};
use crate::hub::{Manifest, ManifestFile, RemoteFile, Snapshot};
use crate::model::gguf;
use crate::store::{Handle, Location};
use crate::{Error, Result};

pub(super) fn run(context: &Context<'_>, config: &Config, repo: &str) -> Result<Output> {
    let snapshot = match config.pins.is_empty() {
        true => context.hub.resolve(repo, config.dataset, &config.revision, context.cancel)?,
        false => pinned(config, repo)?,
    };
    let paths: Vec<&str> = snapshot.files.iter().map(|file| file.path.as_str()).collect();
    let want = Want { dataset: config.dataset, globs: &config.files, config: config.config.as_deref() };
    if config.config.is_some() && !config.dataset {
        return Err(
            Error::usage("`config` names a configuration of a data set").hint("say `dataset: true`, or drop it")
        );
    }
    let chosen = choose(&paths, &want).map_err(|e| e.within(format!("`{repo}`")))?;
    let files: Vec<&RemoteFile> = chosen.iter().map(|i| &snapshot.files[*i]).collect();
    // An adapter beside no model: for `lora: {init: ...}`.
    let holds = |name: &str| files.iter().any(|file| file.path == name);
    let adapter = !config.dataset && holds("adapter_config.json") && !holds("config.json");
    let import = if config.dataset { None } else { gguf_of(&files)? };
    if !config.dataset && !adapter && import.is_none() {
        check_model(&files, repo)?;
    }
    let folder = context.hub.fetch(&snapshot, &files, context.progress, context.cancel)?;
    if let Some(asked) = config.asked.as_deref().or(Some(&config.revision)) {
        context.hub.remember(&snapshot, asked);
    }
    let bytes: u64 = files.iter().map(|file| file.size).sum();
    let summary = json!({"repo": repo, "commit": snapshot.commit, "files": files.len(), "bytes": bytes});
    if let Some(file) = import {
        let path = folder.join(&file.path);
        let declared = gguf::import(&path, &context.output, context.progress, context.cancel)?;
        let handle = Handle::Model { at: Location::Own { path: ".".to_owned() } };
        return Ok(Output { declared, handle, summary });
    }
    Manifest::new(&snapshot, &files).write(&context.output)?;
    let at = Location::Hub { repo: repo.to_owned(), dataset: config.dataset, commit: snapshot.commit.clone() };
    let handle = if config.dataset || adapter { Handle::Files { at } } else { Handle::Model { at } };
    Ok(Output { declared: vec![Manifest::FILE.to_owned()], handle, summary })
}

/// The commit and files that qerl.lock pins: nobody is asked again.
fn pinned(config: &Config, repo: &str) -> Result<Snapshot> {
    let files = config.pins.iter().map(|(path, pin)| {
        let mut parts = pin.split(':');
        let (kind, digest, size) = (parts.next(), parts.next(), parts.next().and_then(|s| s.parse().ok()));
        let digest = digest.map(str::to_owned);
        let (sha256, git) = match kind {
            Some("sha256") => (digest, None),
            Some("git") => (None, digest),
            _ => (None, None),
        };
        let size = size.ok_or_else(|| {
            Error::input(format!("the pin of `{path}` in `{repo}` is malformed"))
                .hint("delete qerl.lock to pin every revision anew")
        })?;
        Ok(ManifestFile { path: path.clone(), size, sha256, git })
    });
    let files = files.collect::<Result<Vec<_>>>()?;
    Manifest { repo: repo.to_owned(), dataset: config.dataset, commit: config.revision.clone(), files }.snapshot()
}

/// The GGUF file to import, where the weights come as one.
fn gguf_of<'f>(files: &[&'f RemoteFile]) -> Result<Option<&'f RemoteFile>> {
    let all: Vec<&RemoteFile> = files.iter().filter(|file| file.path.ends_with(".gguf")).copied().collect();
    match all.as_slice() {
        [] => Ok(None),
        _ if files.iter().any(|file| file.path.ends_with(".safetensors")) => Ok(None),
        [one] => Ok(Some(one)),
        many => {
            let names: Vec<&str> = many.iter().map(|file| file.path.as_str()).collect();
            Err(Error::usage(format!("`files` matches {} GGUF files", many.len()))
                .hint(format!("name one: {}", names.join(", "))))
        }
    }
}

/// With globs of its own, a download can leave out what makes a model.
fn check_model(files: &[&RemoteFile], repo: &str) -> Result<()> {
    let has = |end: &str| files.iter().any(|file| file.path.ends_with(end));
    let lacks = match (files.iter().any(|file| file.path == "config.json"), has(".safetensors")) {
        (false, _) => "config.json",
        (_, false) => "the weights (*.safetensors)",
        _ => return Ok(()),
    };
    Err(Error::usage(format!("`files` leaves out {lacks} of the model `{repo}`"))
        .hint("leave `files` out to take all that a model needs"))
}
