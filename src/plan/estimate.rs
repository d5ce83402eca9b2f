//! How much a run would fetch and store, as far as that is known beforehand.

use serde::Serialize;
use serde_json::Value;

use super::keys::{Surroundings, hub_request};
use super::lockfile::{LockedFile, Pin, Request};
use super::{Action, Entry};
use crate::Result;
use crate::hub::free_bytes;
use crate::hub::select::{Want, choose};
use crate::stages::Kind;
use crate::store::{Artifact, Store};

/// Bytes; `fetch` is exact for pinned revisions, `store` a rough upper figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    pub fetch_bytes: u64,
    /// Downloads whose size nobody knows yet (their revision is not pinned).
    pub fetch_unknown: usize,
    pub store_bytes: u64,
    /// Instances whose size could not be estimated.
    pub store_unknown: usize,
    pub free_store_bytes: u64,
    pub free_cache_bytes: u64,
}

/// Packed 4-bit projections with scales beside 16-bit embeddings, norms and head: at most this share of the 16-bit
/// model (NVFP4 takes 4.5 of 16 bits; a tied 0.5B model keeps 28% of its weights in 16 bits).
const QUANTIZED_SHARE: f64 = 0.55;
/// An adapter of rank 64 on every projection of a 1B model, with optimizer state, is below this share.
const ADAPTER_SHARE: f64 = 0.08;
/// Problems, records, reports.
const SMALL: u64 = 16 << 20;

pub(super) fn estimate(around: &Surroundings<'_>, entries: &[Entry], fetch: &[usize]) -> Result<Estimate> {
    let graph = around.graph;
    let mut out = Estimate {
        free_store_bytes: around.store.free_bytes()?,
        free_cache_bytes: around.store.hub_cache().and_then(|cache| free_bytes(&cache)).unwrap_or(0),
        ..Estimate::default()
    };
    for &index in fetch {
        let config = &graph.instances[index].config;
        let Some(request) = hub_request(config) else { continue };
        match around.lock.get(&request) {
            Some(pin) => out.fetch_bytes += missing_bytes(around.store, config, &request, pin),
            None => out.fetch_unknown += 1,
        }
    }
    // What the cache has lost of finished downloads is fetched again.
    for entry in entries.iter().filter(|e| e.kind == Kind::Download && matches!(e.action, Action::Cached(_))) {
        let config = &graph.instances[entry.index].config;
        let pinned = hub_request(config).and_then(|request| Some((around.lock.get(&request)?, request)));
        if let Some((pin, request)) = pinned {
            out.fetch_bytes += missing_bytes(around.store, config, &request, pin);
        }
    }
    // Bytes of the model (or data) that an instance holds or stands on, where known.
    let mut sizes: Vec<Option<u64>> = vec![None; graph.instances.len()];
    for entry in entries {
        let instance = &graph.instances[entry.index];
        let input = instance.inputs.iter().find_map(|edge| sizes.get(edge.from).copied().flatten());
        let last = last_size(around, &entry.name)?;
        let share = |s: f64| input.map(|bytes| (bytes as f64 * s) as u64);
        // (what this stage writes, what its consumers stand on)
        let (own, model) = match instance.kind {
            Kind::Download => {
                let pinned = hub_request(&instance.config).and_then(|r| around.lock.get(&r));
                let size = pinned.map(|pin| wanted_bytes(&instance.config, pin));
                (Some(0), size)
            }
            Kind::Quantize if instance.config.get("format").and_then(Value::as_str) == Some("bf16") => (Some(0), input),
            Kind::Quantize => (last.or(share(QUANTIZED_SHARE)), share(QUANTIZED_SHARE)),
            Kind::Lora => (last.or(share(ADAPTER_SHARE / 2.0)), input),
            Kind::Sft | Kind::Train => (last.or(share(3.0 * ADAPTER_SHARE)), input),
            Kind::Split => (last.or(input).or(Some(SMALL)), None),
            Kind::Eval | Kind::Report => (last.or(Some(SMALL)), None),
        };
        sizes[entry.index] = match &entry.action {
            Action::Cached(artifact) if instance.kind == Kind::Quantize => Some(bytes_of(artifact)).filter(|b| *b > 0),
            _ => None,
        }
        .or(model);
        if matches!(entry.action, Action::Run(_)) {
            match own {
                Some(bytes) => out.store_bytes += bytes,
                None => out.store_unknown += 1,
            }
        }
    }
    Ok(out)
}

/// The files of a pinned repository that this download takes; where the choice is an error, which the run will tell,
/// all of them.
fn wanted<'p>(config: &Value, pin: &'p Pin) -> Vec<&'p LockedFile> {
    let globs: Vec<String> = config
        .get("files")
        .and_then(Value::as_array)
        .map(|globs| globs.iter().filter_map(|g| g.as_str().map(str::to_owned)).collect())
        .unwrap_or_default();
    let want = Want {
        dataset: config.get("dataset").and_then(Value::as_bool).unwrap_or(false),
        globs: &globs,
        config: config.get("config").and_then(Value::as_str),
    };
    let paths: Vec<&str> = pin.files.iter().map(|file| file.path.as_str()).collect();
    match choose(&paths, &want) {
        Ok(chosen) => chosen.into_iter().filter_map(|i| pin.files.get(i)).collect(),
        Err(_) => pin.files.iter().collect(),
    }
}

fn wanted_bytes(config: &Value, pin: &Pin) -> u64 {
    wanted(config, pin).iter().map(|file| file.size).sum()
}

/// The part of it that the Hugging Face cache lacks.
fn missing_bytes(store: &Store, config: &Value, request: &Request, pin: &Pin) -> u64 {
    let snapshot = store.hub_snapshot(&request.repo, request.dataset, &pin.commit).ok();
    let there = |file: &LockedFile| {
        let path = snapshot.as_ref().map(|folder| folder.join(&file.path));
        path.and_then(|path| std::fs::metadata(path).ok()).is_some_and(|meta| meta.len() == file.size)
    };
    wanted(config, pin).into_iter().filter(|file| !there(file)).map(|file| file.size).sum()
}

/// What the same instance took the last time.
fn last_size(around: &Surroundings<'_>, name: &str) -> Result<Option<u64>> {
    let Some(fingerprint) = around.store.named(&around.graph.name, name)? else { return Ok(None) };
    Ok(around.store.peek(&fingerprint)?.map(|artifact| bytes_of(&artifact)))
}

fn bytes_of(artifact: &Artifact) -> u64 {
    artifact.meta.files.values().map(|file| file.size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_download_counts_the_files_that_it_takes() {
        let file = |path: &str, size| LockedFile { path: path.to_owned(), size, sha256: None, git: None };
        let files = vec![file("config.json", 1), file("m.safetensors", 10), file("m.bin", 100), file("a.py", 1000)];
        let pin = Pin { commit: "0".repeat(40), files };
        assert_eq!(wanted_bytes(&json!({}), &pin), 11);
        assert_eq!(wanted_bytes(&json!({"files": ["*.bin", "*.json"]}), &pin), 101);
    }
}
