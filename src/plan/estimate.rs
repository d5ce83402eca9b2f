//! How much a run would fetch and store, as far as that is known beforehand.

use serde::Serialize;
use serde_json::Value;

use super::keys::{Surroundings, hub_request};
use super::{Action, Entry};
use crate::Result;
use crate::stages::Kind;
use crate::store::{Artifact, free_bytes, hub_cache};

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
        free_cache_bytes: hub_cache().and_then(|cache| free_bytes(&cache)).unwrap_or(0),
        ..Estimate::default()
    };
    for &index in fetch {
        let config = &graph.instances[index].config;
        let Some(request) = hub_request(config) else { continue };
        match around.lock.get(&request) {
            Some(pin) => out.fetch_bytes += wanted_bytes(config, pin)?,
            None => out.fetch_unknown += 1,
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
                let size = pinned.map(|pin| wanted_bytes(&instance.config, pin)).transpose()?;
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

/// The bytes of a pinned repository that this download takes.
fn wanted_bytes(config: &Value, pin: &super::lockfile::Pin) -> Result<u64> {
    let _ = config;
    Ok(pin.files.iter().map(|file| file.size).sum())
}

/// What the same instance took the last time.
fn last_size(around: &Surroundings<'_>, name: &str) -> Result<Option<u64>> {
    let Some(fingerprint) = around.store.named(&around.graph.name, name)? else { return Ok(None) };
    Ok(around.store.peek(&fingerprint)?.map(|artifact| bytes_of(&artifact)))
}

fn bytes_of(artifact: &Artifact) -> u64 {
    artifact.meta.files.values().map(|file| file.size).sum()
}
