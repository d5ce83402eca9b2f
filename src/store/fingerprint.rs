//! Fingerprints: blake3 over canonical JSON of everything that decides what a stage makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::stages::Kind;

/// Raised when the layout of [`Key`] changes; every fingerprint changes with it.
pub const KEY_SCHEMA: u32 = 2;

/// What decides a stage's outputs. Never: paths, times, threads, device numbers, resources, names.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub kind: Kind,
    pub version: u32,
    /// `cpu` or `cuda` for sft, train and eval.
    pub backend: Option<String>,
    /// Typed configuration; secrets stay symbolic.
    pub config: Value,
    pub inputs: BTreeMap<String, InputKey>,
    /// Configuration field that names a file of the pipeline's folder -> blake3 of its bytes.
    pub files: BTreeMap<String, String>,
}

/// What of an input goes into a fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputKey {
    /// The input's output digest; `failed: WHY` for an instance that a report shows as failed.
    pub digest: String,
    pub checkpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// Only for gathered inputs: a report prints where its rows come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub point: BTreeMap<String, String>,
}

impl Key {
    /// 64 lower-case hex digits.
    pub fn fingerprint(&self) -> String {
        let value = serde_json::json!({
            "key_schema": KEY_SCHEMA,
            "kind": self.kind.name(),
            "version": self.version,
            "backend": self.backend,
            "config": self.config,
            "inputs": self.inputs,
            "files": self.files,
        });
        blake3::hash(canonical(&value).as_bytes()).to_hex().to_string()
    }
}

/// JSON with sorted keys, no spaces, one spelling per number (`1`, `1.0` and `1e0` are equal) and no null members
/// (an absent option and a null one are equal).
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(&mut out, value);
    out
}

fn write_canonical(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().filter(|(_, v)| !v.is_null()).collect();
            out.push('{');
            for (i, (key, value)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                write_canonical(out, value);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(out, item);
            }
            out.push(']');
        }
        Value::Number(number) => write_number(out, number),
        other => out.push_str(&other.to_string()),
    }
}

fn write_number(out: &mut String, number: &Number) {
    /// Every integer up to here is an f64 of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !number.is_f64() {
        out.push_str(&number.to_string());
        return;
    }
    let value = number.as_f64().unwrap_or(0.0);
    // Writing into a String cannot fail.
    let _ = if value.fract() == 0.0 && value.abs() < EXACT {
        write!(out, "{}", value as i64)
    } else {
        write!(out, "{value:e}")
    };
}

/// Whether `text` has the form of a fingerprint.
pub fn is_fingerprint(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The first twelve digits, for people.
pub fn short(fingerprint: &str) -> &str {
    fingerprint.get(..12).unwrap_or(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(config: Value) -> Key {
        Key {
            kind: Kind::Train,
            version: 1,
            backend: Some("cpu".to_owned()),
            config,
            inputs: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn canonical_json_has_one_spelling() {
        let text = r#"{"b": 1.0, "a": [1e-5, 0.00001, -0.0, 18446744073709551615, true], "n": null, "s": "\u00e9\n"}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(canonical(&value), "{\"a\":[1e-5,1e-5,0,18446744073709551615,true],\"b\":1,\"s\":\"é\\n\"}");
    }

    #[test]
    fn order_and_number_spelling_do_not_matter_but_values_do() {
        let a = key(json!({"lr": 1e-5, "steps": 2})).fingerprint();
        assert_eq!(a, key(json!({"steps": 2.0, "lr": 0.00001, "limit": null})).fingerprint());
        assert_ne!(a, key(json!({"lr": 1e-5, "steps": 3})).fingerprint());
        assert_ne!(a, key(json!({"lr": 1e-5, "steps": "2"})).fingerprint());
        assert!(is_fingerprint(&a));
    }

    #[test]
    fn everything_in_the_key_matters() {
        let base = key(json!({}));
        let mut others = vec![];
        others.push(Key { version: 2, ..base.clone() });
        others.push(Key { backend: Some("cuda".to_owned()), ..base.clone() });
        others.push(Key { kind: Kind::Eval, ..base.clone() });
        let input = InputKey { digest: "d".to_owned(), checkpoint: "last".to_owned(), ..InputKey::default() };
        for input in [
            input.clone(),
            InputKey { checkpoint: "10".to_owned(), ..input.clone() },
            InputKey { part: Some("train".to_owned()), ..input.clone() },
            InputKey { stage: Some("before".to_owned()), ..input.clone() },
            InputKey { point: BTreeMap::from([("seed".to_owned(), "1".to_owned())]), ..input },
        ] {
            others.push(Key { inputs: BTreeMap::from([("policy".to_owned(), input)]), ..base.clone() });
        }
        others.push(Key { files: BTreeMap::from([("t".to_owned(), "x".to_owned())]), ..base.clone() });
        let mut all: Vec<String> = others.iter().map(Key::fingerprint).collect();
        all.push(base.fingerprint());
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
