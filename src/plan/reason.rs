//! Why an instance runs.

use serde::Serialize;
use serde_json::Value;

use crate::store::{Key, Meta};

/// How many further changes a line names.
const SHOWN: usize = 2;

/// A key whose value is another one now; `(unset)` stands for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub key: String,
    pub from: String,
    pub to: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} changed from {} to {}", self.key, self.from, self.to)
    }
}

/// Every leaf in which two configurations differ.
pub fn changes(old: &Value, new: &Value) -> Vec<Change> {
    let mut out = Vec::new();
    differences("", old, new, &mut out);
    out
}

/// The reason that `plan` and `run` print.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Reason {
    NeverRun,
    /// It has run with the same key, but its artifact is gone.
    Gone,
    Config {
        key: String,
        from: String,
        to: String,
        /// What else changed.
        others: Vec<Change>,
    },
    InputChanged {
        slot: String,
    },
    InputRuns {
        name: String,
    },
    Forced,
    Unresolved {
        request: String,
    },
    Newer {
        from: u32,
        to: u32,
    },
    Damaged {
        what: String,
    },
    FileChanged {
        field: String,
    },
    /// A `file:` source of the same content at another place.
    Moved,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NeverRun => f.write_str("never run"),
            Self::Gone => f.write_str("its artifact is gone"),
            Self::Config { key, from, to, others } => {
                write!(f, "{key} changed from {from} to {to}")?;
                for change in others.iter().take(SHOWN) {
                    write!(f, ", {change}")?;
                }
                match others.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, " (and {more} more)"),
                }
            }
            Self::InputChanged { slot } => write!(f, "input {slot} changed"),
            Self::InputRuns { name } => write!(f, "input {name} will run"),
            Self::Forced => f.write_str("forced"),
            Self::Unresolved { request } => write!(f, "revision unresolved: {request}"),
            Self::Newer { from, to } => write!(f, "the stage's implementation is newer ({from} -> {to})"),
            Self::Damaged { what } => write!(f, "the stored artifact is damaged: {what}"),
            Self::Moved => f.write_str("its source lies elsewhere now"),
            Self::FileChanged { field } => write!(f, "the file named by {field} changed"),
        }
    }
}

/// Compares with the artifact that the same instance had last.
pub fn compare(old: Option<&Meta>, new: &Key) -> Reason {
    let Some(old) = old else { return Reason::NeverRun };
    let mut all = changes(&old.config, &new.config);
    if !all.is_empty() {
        let Change { key, from, to } = all.remove(0);
        return Reason::Config { key, from, to, others: all };
    }
    for (slot, input) in &new.inputs {
        if old.input_keys.get(slot) != Some(input) {
            return Reason::InputChanged { slot: slot.clone() };
        }
    }
    if let Some(slot) = old.input_keys.keys().find(|slot| !new.inputs.contains_key(*slot)) {
        return Reason::InputChanged { slot: slot.clone() };
    }
    if old.backend != new.backend {
        let name = |b: &Option<String>| b.clone().unwrap_or_else(|| "any".to_owned());
        return Reason::Config {
            key: "device".to_owned(),
            from: name(&old.backend),
            to: name(&new.backend),
            others: Vec::new(),
        };
    }
    if old.version != new.version {
        return Reason::Newer { from: old.version, to: new.version };
    }
    match new.files.keys().next() {
        Some(field) if old.fingerprint != new.fingerprint() => Reason::FileChanged { field: field.clone() },
        _ => Reason::Gone,
    }
}

/// A change for every leaf that differs, in the order of the new configuration.
fn differences(path: &str, old: &Value, new: &Value, out: &mut Vec<Change>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in b {
                differences(&join(key), a.get(key).unwrap_or(&Value::Null), value, out);
            }
            for (key, value) in a.iter().filter(|(key, _)| !b.contains_key(*key)) {
                differences(&join(key), value, &Value::Null, out);
            }
        }
        _ if crate::store::canonical(old) == crate::store::canonical(new) => {}
        _ => out.push(Change { key: path.to_owned(), from: show(old), to: show(new) }),
    }
}

fn show(value: &Value) -> String {
    let text = match value {
        Value::Null => return "(unset)".to_owned(),
        Value::Number(n) => crate::store::canonical(&Value::Number(n.clone())),
        other => other.to_string(),
    };
    if text.chars().count() > 60 { format!("{}...", text.chars().take(57).collect::<String>()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn leaves_that_differ_are_named_by_their_path() {
        let old = json!({"lr": 1e-5, "aqn": {"stages": 10}, "k": [1, 2], "same": 1.0, "gone": "x"});
        let new = json!({"lr": 2e-5, "aqn": {"stages": 10, "decay": "linear"}, "k": [1], "same": 1, "none": null});
        let all = changes(&old, &new);
        let text: Vec<String> = all.iter().map(|c| format!("{}: {} -> {}", c.key, c.from, c.to)).collect();
        assert_eq!(
            text,
            ["lr: 1e-5 -> 2e-5", "aqn.decay: (unset) -> \"linear\"", "k: [1,2] -> [1]", "gone: \"x\" -> (unset)"]
        );
        let mut others = all;
        let first = others.remove(0);
        let reason = Reason::Config { key: first.key, from: first.from, to: first.to, others };
        assert_eq!(
            reason.to_string(),
            "lr changed from 1e-5 to 2e-5, aqn.decay changed from (unset) to \"linear\", k changed from [1,2] to [1] (and 1 more)"
        );
    }
}
