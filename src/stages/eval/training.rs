//! What a policy was trained on, found through the provenance of its artifact.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::Result;
use crate::stages::{Context, Kind, material};
use crate::store::Artifact;

/// Most artifacts that one walk visits: a chain of trainings is long, a cycle is impossible but not trusted.
const LIMIT: usize = 256;

/// Training sets behind a policy.
#[derive(Debug, Default)]
pub struct Training {
    /// Files of problems.
    pub files: Vec<PathBuf>,
    /// Artifacts that are no longer in the store: what lies behind them is unknown.
    pub unknown: usize,
}

/// Walks from the policy in `slot` over everything that it was made from.
pub fn training(context: &Context<'_>, slot: &str) -> Result<Training> {
    let mut out = Training::default();
    let Ok(policy) = &context.input(slot)?.artifact else { return Ok(out) };
    let mut seen = BTreeSet::from([policy.meta.fingerprint.clone()]);
    let mut queue: Vec<Artifact> = vec![policy.clone()];
    while let Some(artifact) = queue.pop() {
        for (slot, fingerprint) in &artifact.meta.inputs {
            // Sets that were only evaluated on in between are not trained on.
            let is_data = matches!(artifact.meta.kind, Kind::Train | Kind::Sft) && slot == "data";
            if slot == "eval_data" || seen.len() >= LIMIT || !(is_data || seen.insert(fingerprint.clone())) {
                continue;
            }
            // A damaged entry is as good as none here.
            let Ok(Some(behind)) = context.store.get(fingerprint) else {
                out.unknown += 1;
                continue;
            };
            if is_data {
                let part = artifact.meta.input_keys.get(slot).and_then(|key| key.part.as_deref()).unwrap_or("train");
                let file = material::file(&behind, part)?;
                if !out.files.contains(&file) {
                    out.files.push(file);
                }
            } else {
                queue.push(behind);
            }
        }
    }
    Ok(out)
}
