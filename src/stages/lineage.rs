//! What stands behind an artifact: the stages whose outputs it was made from, read back from provenance.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Result;
use crate::stages::Kind;
use crate::store::{Artifact, Store};

/// Most artifacts that one walk visits: a chain of trainings is long, a cycle is impossible but not trusted.
const LIMIT: usize = 256;

/// `artifact` and everything upstream of it that the store still holds, nearest first.
pub(super) fn lineage(store: &Store, artifact: &Artifact) -> Result<Vec<Artifact>> {
    let mut seen = BTreeSet::from([artifact.meta.fingerprint.clone()]);
    let mut found = vec![artifact.clone()];
    let mut at = 0;
    while at < found.len() && found.len() < LIMIT {
        let inputs: Vec<String> = found[at].meta.inputs.values().cloned().collect();
        for fingerprint in inputs {
            if seen.insert(fingerprint.clone())
                && let Some(next) = store.get(&fingerprint)?
            {
                found.push(next);
            }
        }
        at += 1;
    }
    Ok(found)
}

/// The nearest artifact of one of `kinds`.
pub(super) fn nearest<'a>(lineage: &'a [Artifact], kinds: &[Kind]) -> Option<&'a Artifact> {
    lineage.iter().find(|a| kinds.contains(&a.meta.kind))
}

/// Every resolved setting behind an artifact: `train.lr` -> value, by stage id.
pub(super) fn settings(lineage: &[Artifact]) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    for artifact in lineage {
        // Where two stages of one kind stand behind each other the nearest one's settings count.
        if matches!(artifact.meta.kind, Kind::Quantize | Kind::Lora | Kind::Sft | Kind::Train | Kind::Download) {
            let instance = &artifact.meta.provenance.instance;
            let stage = instance.split('@').next().unwrap_or(instance);
            flatten(stage, &artifact.meta.config, &mut out);
        }
    }
    out
}

fn flatten(path: &str, value: &Value, out: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                flatten(&format!("{path}.{key}"), value, out);
            }
        }
        value => {
            out.entry(path.to_owned()).or_insert_with(|| value.clone());
        }
    }
}

/// `train.lr: 5e-6 -> 1e-5` for every setting of `other` that is not as in `baseline`.
pub(super) fn differences(baseline: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>) -> Vec<String> {
    let keys: BTreeSet<&String> = baseline.keys().chain(other.keys()).collect();
    let text = |value: Option<&Value>| value.map_or_else(|| "off".to_owned(), plain);
    keys.into_iter()
        .filter(|key| baseline.get(*key) != other.get(*key))
        .map(|key| format!("{key}: {} -> {}", text(baseline.get(key)), text(other.get(key))))
        .collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(n) => match n.as_f64() {
            Some(f) if f != 0.0 && (f.abs() < 1e-2 || f.abs() >= 1e6) => format!("{f:e}"),
            _ => n.to_string(),
        },
        Value::Null => "off".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_setting_and_both_values() {
        let map = |pairs: &[(&str, Value)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let a: BTreeMap<String, Value> = map(&[("base.format", "bf16".into()), ("train.lr", 5e-6.into())]);
        let b = map(&[("base.format", "nvfp4".into()), ("train.lr", 5e-6.into()), ("train.aqn.stages", 10.into())]);
        assert_eq!(differences(&a, &b), ["base.format: bf16 -> nvfp4", "train.aqn.stages: off -> 10"]);
        assert_eq!(plain(&5e-6.into()), "5e-6");
        assert_eq!(differences(&a, &a), Vec::<String>::new());
    }

    #[test]
    fn nested_settings_are_flattened_and_the_nearest_stage_wins() {
        let mut out = BTreeMap::new();
        flatten("train", &serde_json::json!({"aqn": {"stages": 3}, "lr": 1.0}), &mut out);
        flatten("train", &serde_json::json!({"lr": 2.0}), &mut out);
        assert_eq!(out["train.aqn.stages"], 3);
        assert_eq!(out["train.lr"], 1.0);
    }
}
