//! A folder or file of this machine.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::files::walk;
use super::{Config, Context, Output};
use crate::model::gguf;
use crate::store::{Handle, Location};
use crate::{Error, Result};

/// Where `source` lies; relative paths start in the pipeline's folder.
pub(super) fn place(base_dir: &Path, source: &str) -> Result<PathBuf> {
    let path = base_dir.join(source);
    std::path::absolute(&path).map_err(|e| Error::io("find", &path, e))
}

pub(super) fn run(context: &Context<'_>, config: &Config, source: &str) -> Result<Output> {
    let path = place(&context.base_dir, source)?;
    let meta = std::fs::metadata(&path).map_err(|e| Error::io("read the source", &path, e))?;
    let files = walk(&path)?;
    if files.is_empty() {
        return Err(Error::input(format!("{} is empty", path.display())).hint("`file:` takes a folder with files"));
    }
    let mut bytes = 0;
    for file in &files {
        bytes += std::fs::metadata(&file.path).map_err(|e| Error::io("read", &file.path, e))?.len();
    }
    let summary = json!({"files": files.len(), "bytes": bytes});
    let at = Location::Local { path: path.clone() };
    if config.dataset {
        return Ok(Output { declared: Vec::new(), handle: Handle::Files { at }, summary });
    }
    let import = if meta.is_file() { Some(path.clone()) } else { gguf_in(&path, files.iter().map(|f| &*f.name))? };
    if let Some(file) = import {
        if !gguf::is_gguf(&file) {
            return Err(Error::input(format!("{} is not a GGUF file", file.display()))
                .hint("a model is a folder with config.json and safetensors, or one GGUF file"));
        }
        let declared = gguf::import(&file, &context.output, context.progress, context.cancel)?;
        let handle = Handle::Model { at: Location::Own { path: ".".to_owned() } };
        return Ok(Output { declared, handle, summary });
    }
    let has = |name: &str| files.iter().any(|file| file.name == name);
    // An adapter beside no model: for `lora: {init: ...}`.
    if !has("config.json") && has("adapter_config.json") {
        return Ok(Output { declared: Vec::new(), handle: Handle::Files { at }, summary });
    }
    if !has("config.json") {
        return Err(Error::input(format!("{} holds no config.json: it is no model", path.display()))
            .hint("name the folder that holds config.json; for a data set say `dataset: true`"));
    }
    if !files.iter().any(|file| !file.name.contains('/') && file.name.ends_with(".safetensors")) {
        return Err(Error::input(format!("{} holds no weights as safetensors", path.display()))
            .hint("convert them with `save_pretrained(..., safe_serialization=True)`"));
    }
    Ok(Output { declared: Vec::new(), handle: Handle::Model { at }, summary })
}

/// The one GGUF file of a folder without config.json.
fn gguf_in<'n>(folder: &Path, names: impl Iterator<Item = &'n str> + Clone) -> Result<Option<PathBuf>> {
    if names.clone().any(|name| name == "config.json") {
        return Ok(None);
    }
    let all: Vec<&str> =
        names.filter(|n| !n.contains('/') && n.ends_with(".gguf") && !n.starts_with("mmproj")).collect();
    match all.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(folder.join(one))),
        many => Err(Error::usage(format!("{} holds {} GGUF files", folder.display(), many.len()))
            .hint(format!("name one of them: {}", many.join(", ")))),
    }
}
