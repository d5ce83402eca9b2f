//! From an instance and what its inputs became to the key of its fingerprint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::lockfile::{LockFile, Request};
use crate::pipeline::{Edge, Graph, Instance};
use crate::stages::Kind;
use crate::stages::download::Source as DownloadSource;
use crate::store::{Artifact, InputKey, Key, Store};
use crate::{Error, Result};

/// What a key needs besides the instance.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    pub graph: &'a Graph,
    pub store: &'a Store,
    pub lock: &'a LockFile,
    /// The pipeline file's folder.
    pub base_dir: PathBuf,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
}

/// The folder in which relative paths of a pipeline start.
pub fn base_dir(graph: &Graph) -> PathBuf {
    match graph.file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// What became of an input.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Done(&'a Artifact),
    /// Why there is none (only a report goes on with these).
    Failed(&'a str),
    /// Not made yet: a token that stands for its digest while planning.
    Pending(&'a str),
}

/// A key and the configuration that the stage gets (the key's own has no paths and no pins by hand).
#[derive(Clone, Debug)]
pub struct Keyed {
    pub key: Key,
    pub config: Value,
    /// A hub revision that nobody has resolved yet; the key then is only a token.
    pub unresolved: Option<Request>,
}

/// Builds the key of `instance`; `sources` stand in the order of `instance.inputs`.
///
/// # Errors
/// When a file that the configuration names cannot be read, or a `run:` address has no artifact.
pub fn keyed(around: &Surroundings<'_>, instance: &Instance, sources: &[Source<'_>]) -> Result<Keyed> {
    let mut config = instance.config.clone();
    let mut key_config = instance.config.clone();
    let mut unresolved = None;
    if instance.kind == Kind::Download {
        unresolved = pin(around, &mut config, &mut key_config)?;
    }
    if instance.kind == Kind::Report {
        // It prints whose it is.
        let file = around.graph.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut origin = serde_json::json!({ "name": around.graph.name, "file": file });
        set(&mut key_config, "pipeline", origin.clone());
        // Arguments that change no input change no figure: the report at hand, with the arguments it was made by, holds.
        if let Some(arguments) = instance.config.get("pipeline").and_then(|asked| asked.get("arguments")) {
            set(&mut origin, "arguments", arguments.clone());
        }
        set(&mut config, "pipeline", origin);
    }
    if matches!(instance.kind, Kind::Sft | Kind::Train)
        && let Value::Object(map) = &mut key_config
    {
        // Resuming is exact, so where one could have resumed changes no byte.
        map.remove("checkpoint_every");
    }
    let mut inputs = BTreeMap::new();
    for (slot, edge, source) in slots(&instance.inputs, sources) {
        // A report prints which stage and point a row came from; nothing else may depend on names.
        let producer = (instance.kind == Kind::Report).then(|| around.graph.instances.get(edge.from)).flatten();
        inputs.insert(
            slot,
            InputKey {
                digest: match source {
                    Source::Done(artifact) => artifact.meta.digest.clone(),
                    Source::Failed(why) => format!("failed: {why}"),
                    Source::Pending(token) => format!("pending: {token}"),
                },
                checkpoint: edge.checkpoint.clone(),
                part: edge.part.clone(),
                stage: producer.map(|p| p.stage.clone()),
                point: producer.map(|p| p.point.clone()).unwrap_or_default(),
            },
        );
    }
    let backend = matches!(instance.kind, Kind::Sft | Kind::Train | Kind::Eval).then(|| around.backend.to_owned());
    let files = named_files(instance.kind, &instance.config, &around.base_dir)?;
    let key = Key { kind: instance.kind, version: instance.kind.version(), backend, config: key_config, inputs, files };
    Ok(Keyed { key, config, unresolved })
}

/// Slot names made unique: a gathered stage has one edge per point.
pub fn slots<'a, T: Copy>(edges: &'a [Edge], values: &'a [T]) -> Vec<(String, &'a Edge, T)> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let named = edges.iter().zip(values).map(|(edge, value)| {
        let n = seen.entry(&edge.slot).or_default();
        *n += 1;
        let slot = if *n == 1 { edge.slot.clone() } else { format!("{}#{n}", edge.slot) };
        (slot, edge, *value)
    });
    named.collect()
}

/// Fills a download's pins. The key keeps what decides the content and drops where it lay.
fn pin(around: &Surroundings<'_>, config: &mut Value, key_config: &mut Value) -> Result<Option<Request>> {
    let repo = config.get("repo").and_then(Value::as_str).unwrap_or_default().to_owned();
    match DownloadSource::parse(&repo) {
        DownloadSource::File(path) => {
            let path = around.base_dir.join(path);
            set(key_config, "repo", "file:".into());
            set(key_config, "pins", pins([("content", super::content::digest(around.store, &path)?)]));
            return Ok(None);
        }
        DownloadSource::Run(address) => {
            let artifact = around.store.resolve(address).map_err(|e| e.within(format!("download of `{repo}`")))?;
            set(key_config, "repo", "run:".into());
            set(key_config, "pins", pins([("artifact", artifact.meta.digest.clone())]));
            set(config, "pins", pins([("artifact", artifact.meta.fingerprint)]));
            return Ok(None);
        }
        // Another qerl may bundle another model.
        DownloadSource::Bundled => {
            set(key_config, "pins", pins([("content", crate::hub::bundled::digest().to_owned())]));
            return Ok(None);
        }
        DownloadSource::Hub(_) => {}
    }
    let Some(request) = hub_request(config) else { return Ok(None) };
    let Some(pin) = around.lock.get(&request) else { return Ok(Some(request)) };
    // `main` and the commit that it stands for are the same download.
    set(key_config, "revision", pin.commit.clone().into());
    set(config, "revision", pin.commit.clone().into());
    set(config, "asked", request.revision.clone().into());
    let digests = pin.files.iter().filter_map(|file| {
        let digest = file.sha256.as_ref().map(|d| format!("sha256:{d}:{}", file.size));
        Some((file.path.as_str(), digest.or_else(|| file.git.as_ref().map(|d| format!("git:{d}:{}", file.size)))?))
    });
    set(config, "pins", pins(digests));
    Ok(None)
}

/// What a download's configuration asks the hub for; nothing for local sources and the bundled model.
pub fn hub_request(config: &Value) -> Option<Request> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let repo = text("repo")?;
    let DownloadSource::Hub(_) = DownloadSource::parse(repo) else { return None };
    Some(Request {
        repo: repo.to_owned(),
        dataset: config.get("dataset").and_then(Value::as_bool).unwrap_or(false),
        revision: text("revision").unwrap_or("main").to_owned(),
    })
}

fn set(config: &mut Value, key: &str, value: Value) {
    if let Value::Object(map) = config {
        map.insert(key.to_owned(), value);
    }
}

fn pins<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Value {
    Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), Value::String(v))).collect::<Map<_, _>>())
}

/// Files of the pipeline's folder that a configuration names: their bytes count, not their path.
fn named_files(kind: Kind, config: &Value, base_dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    if kind == Kind::Split
        && let Some(template) = config.pointer("/spec/template").and_then(Value::as_str)
    {
        let path = base_dir.join(template);
        if path.is_file() {
            files.insert("spec.template".to_owned(), crate::store::hash_file(&path)?);
        }
    }
    if let (Kind::Report, Some(folder)) = (kind, config.get("templates").and_then(Value::as_str)) {
        for name in crate::report::TEMPLATE_FILES {
            let path = base_dir.join(folder).join(name);
            if path.is_file() {
                files.insert(format!("templates.{name}"), crate::store::hash_file(&path)?);
            }
        }
    }
    if kind == Kind::Train {
        for (reward, spec) in config.get("rewards").and_then(Value::as_object).into_iter().flatten() {
            let words = spec.get("command").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            for (i, word) in words.enumerate() {
                // A program without a separator is looked for in PATH, not in this folder.
                let path = base_dir.join(word);
                if (i > 0 || Path::new(word).components().count() > 1) && path.is_file() {
                    files.insert(format!("rewards.{reward}.command.{i}"), crate::store::hash_file(&path)?);
                }
            }
        }
    }
    Ok(files)
}

/// `${secrets.NAME}` replaced by the environment's value, for the stage's eyes only. Gives the values too, so that
/// they can be kept out of everything that is shown or stored.
pub fn reveal_secrets(config: &Value) -> Result<(Value, Vec<String>)> {
    let mut values = Vec::new();
    let revealed = reveal(config, &mut values)?;
    Ok((revealed, values))
}

fn reveal(value: &Value, values: &mut Vec<String>) -> Result<Value> {
    Ok(match value {
        Value::String(text) => Value::String(reveal_text(text, values)?),
        Value::Array(items) => Value::Array(items.iter().map(|v| reveal(v, values)).collect::<Result<_>>()?),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(k, v)| Ok((k.clone(), reveal(v, values)?))).collect::<Result<Map<_, _>>>()?)
        }
        other => other.clone(),
    })
}

fn reveal_text(text: &str, values: &mut Vec<String>) -> Result<String> {
    const OPEN: &str = "${secrets.";
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let Some(length) = rest[start..].find('}') else { break };
        let name = &rest[start + OPEN.len()..start + length];
        let value = std::env::var(name).map_err(|_| {
            Error::usage(format!("the secret `{name}` is not set"))
                .hint(format!("set the environment variable {name} before running"))
        })?;
        out.push_str(&rest[..start]);
        out.push_str(&value);
        values.push(value);
        rest = &rest[start + length + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_programs_bytes_are_in_the_key_and_its_path_lookup_is_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("reward.py"), "one").unwrap();
        std::fs::write(dir.path().join("python3"), "not the one that runs").unwrap();
        let config = serde_json::json!({"rewards": {"accuracy": 1.0,
            "mine": {"command": ["python3", "reward.py", "--mode", "x"], "weight": 0.5, "timeout": 10.0}}});
        let files = || named_files(Kind::Train, &config, dir.path()).unwrap();
        let before = files();
        assert_eq!(before.keys().collect::<Vec<_>>(), ["rewards.mine.command.1"]);
        std::fs::write(dir.path().join("reward.py"), "two").unwrap();
        assert_ne!(files(), before);
        assert!(named_files(Kind::Eval, &config, dir.path()).unwrap().is_empty());
    }
}
