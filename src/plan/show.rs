//! A plan as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Action, Plan};
use crate::store::short;

/// `1.5 GB` (powers of ten).
pub fn bytes(n: u64) -> String {
    indicatif::DecimalBytes(n).to_string()
}

impl Plan {
    /// Lines for people.
    pub fn to_text(&self) -> String {
        let counts = self.counts();
        let mut out = format!(
            "plan of {} ({}): {} stages, {} cached, {} to run",
            self.pipeline,
            self.file.display(),
            self.entries.len(),
            counts.cached,
            counts.run
        );
        if counts.same > 0 {
            let _ = write!(out, ", {} equal to another", counts.same);
        }
        out.push('\n');
        let width = self.entries.iter().map(|e| e.name.chars().count()).max().unwrap_or(0).min(60);
        for entry in &self.entries {
            let (what, why) = match &entry.action {
                Action::Cached(artifact) => {
                    let device = &artifact.meta.provenance.device;
                    let made = if device.is_empty() { String::new() } else { format!(" made on {device}") };
                    ("cached", format!("{}{made}", short(&artifact.meta.fingerprint)))
                }
                Action::Run(reason) => ("run", reason.to_string()),
                Action::Same(other) => ("same", format!("same work as {other}")),
            };
            let _ = writeln!(out, "  {what:<7} {:<width$}  {why}", entry.name);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        if counts.run > 0 {
            let e = &self.estimate;
            let unknown = |n: usize, what: &str| match n {
                0 => String::new(),
                n => format!(" + {n} {what}"),
            };
            let _ = writeln!(
                out,
                "to fetch: {}{} (free in the Hugging Face cache: {})",
                bytes(e.fetch_bytes),
                unknown(e.fetch_unknown, "of unknown size (`qerl lock` resolves them)"),
                bytes(e.free_cache_bytes)
            );
            let _ = writeln!(
                out,
                "to store: about {}{} (free: {})",
                bytes(e.store_bytes),
                unknown(e.store_unknown, "of unknown size"),
                bytes(e.free_store_bytes)
            );
            if e.store_bytes > e.free_store_bytes {
                let _ = writeln!(out, "warning: that is more than the disk of the store has free");
            }
            if e.fetch_bytes > e.free_cache_bytes {
                let _ = writeln!(out, "warning: that is more than the disk of the Hugging Face cache has free");
            }
        }
        out
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let stages: Vec<Value> = self
            .entries
            .iter()
            .map(|entry| {
                let mut value =
                    json!({"name": entry.name, "kind": entry.kind.name(), "fingerprint": entry.fingerprint});
                let extra = match &entry.action {
                    Action::Cached(artifact) => json!({
                        "action": "cached", "path": artifact.dir, "device": artifact.meta.provenance.device,
                    }),
                    Action::Run(reason) => json!({"action": "run", "reason": reason, "message": reason.to_string()}),
                    Action::Same(other) => json!({"action": "same", "as": other}),
                };
                if let (Some(into), Value::Object(from)) = (value.as_object_mut(), extra) {
                    into.extend(from);
                }
                value
            })
            .collect();
        json!({
            "pipeline": self.pipeline,
            "file": self.file,
            "counts": self.counts(),
            "stages": stages,
            "notes": self.notes,
            "estimate": self.estimate,
        })
    }
}
