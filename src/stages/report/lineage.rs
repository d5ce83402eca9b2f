//! What stands behind an artifact, read back from provenance: the artifacts that it was made from, and every setting
//! that decided it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::stages::Kind;
use crate::store::{Artifact, Store, short};

/// Most artifacts that one walk visits: a chain of trainings is long, a cycle is impossible but not trusted.
const LIMIT: usize = 256;

/// Configuration fields that name an input's slot, or digests of files that other fields name.
const IGNORED: [&str; 4] = ["policy", "model", "source", "pins"];

/// An artifact and everything upstream of it that the store still holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Lineage {
    /// The artifact itself first, nearer ones before farther ones.
    pub all: Vec<Artifact>,
    /// How the policy of the evaluation came about: setting (`train.lr`, `quantize.format`) -> value.
    pub settings: BTreeMap<String, String>,
    /// Fingerprints that the store no longer gives.
    pub lost: BTreeSet<String>,
    /// Fingerprint of an input -> where in `all` it, or its equal of the same point, stands.
    links: BTreeMap<String, usize>,
}

/// Which instance of which pipeline a lineage belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub pipeline: &'a str,
    pub point: &'a BTreeMap<String, String>,
}

impl Place<'_> {
    /// The instance of this place's own point that made the same bytes as `found`. Equal inputs share one artifact
    /// further on (two trainings that changed nothing have one evaluation), which then names only one of them.
    fn own(&self, store: &Store, found: Artifact) -> Artifact {
        let Some((stage, labels)) = found.meta.provenance.instance.split_once('@') else { return found };
        let mut changed = false;
        let here = |label: &str| {
            let (axis, old) = label.split_once('=').unwrap_or((label, ""));
            let own = self.point.get(axis).map_or(old, String::as_str);
            changed |= own != old;
            format!("{axis}={own}")
        };
        let labels: Vec<String> = labels.split(',').map(here).collect();
        if !changed {
            return found;
        }
        let named = store.named(self.pipeline, &format!("{stage}@{}", labels.join(",")));
        let own = named.ok().flatten().and_then(|fingerprint| store.get(&fingerprint).ok().flatten());
        own.filter(|own| own.meta.kind == found.meta.kind && own.meta.digest == found.meta.digest).unwrap_or(found)
    }
}

impl Lineage {
    /// Walks up from `artifact`.
    pub fn of(store: &Store, artifact: &Artifact, place: Place<'_>) -> Self {
        let mut found = Self { all: vec![artifact.clone()], ..Self::default() };
        let mut at = 0;
        while at < found.all.len() && found.all.len() < LIMIT {
            for fingerprint in found.all[at].meta.inputs.values().cloned().collect::<Vec<_>>() {
                if found.links.contains_key(&fingerprint) {
                    continue;
                }
                match store.get(&fingerprint) {
                    Ok(Some(next)) => {
                        let next = place.own(store, next);
                        let known = found.all.iter().position(|a| a.meta.fingerprint == next.meta.fingerprint);
                        found.links.insert(fingerprint, known.unwrap_or(found.all.len()));
                        if known.is_none() {
                            found.all.push(next);
                        }
                    }
                    // Gone or damaged: the figures stand without it, but what it was cannot be told.
                    Ok(None) | Err(_) => {
                        found.lost.insert(short(&fingerprint).to_owned());
                    }
                }
            }
            at += 1;
        }
        let mut names = BTreeMap::new();
        let mut settings = BTreeMap::new();
        found.collect(artifact, None, &mut names, &mut settings, 0);
        found.settings = settings;
        found
    }

    /// The nearest artifact of `kind`.
    pub fn nearest(&self, kind: Kind) -> Option<&Artifact> {
        self.all.iter().find(|a| a.meta.kind == kind)
    }

    /// A setting by its path.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    fn get(&self, fingerprint: &str) -> Option<&Artifact> {
        self.all.get(*self.links.get(fingerprint)?)
    }

    /// Settings of `artifact` under `prefix` (its kind where absent; a kind's second stage on the way is `train#2`),
    /// then those of its inputs, but for the problems of an evaluation: these decide no policy.
    fn collect(
        &self,
        artifact: &Artifact,
        prefix: Option<&str>,
        names: &mut BTreeMap<Kind, usize>,
        out: &mut BTreeMap<String, String>,
        depth: usize,
    ) {
        if depth > LIMIT {
            return;
        }
        let kind = artifact.meta.kind;
        let name = prefix.map_or_else(
            || {
                let n = names.entry(kind).or_default();
                *n += 1;
                if *n == 1 { kind.name().to_owned() } else { format!("{}#{n}", kind.name()) }
            },
            str::to_owned,
        );
        if let (Value::Object(config), true) = (&artifact.meta.config, kind != Kind::Eval) {
            for (key, value) in config.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str())) {
                flatten(&format!("{name}.{key}"), value, out);
            }
        }
        let trains = matches!(kind, Kind::Train | Kind::Sft);
        for (slot, fingerprint) in &artifact.meta.inputs {
            let Some(next) = self.get(fingerprint) else { continue };
            match slot.as_str() {
                "eval_data" | "shots_data" => {}
                slot if kind == Kind::Eval && slot.starts_with("data") => {}
                "data" if trains => self.collect(next, Some(&format!("{name}.data")), names, out, depth + 1),
                _ if prefix.is_some() => {
                    self.collect(next, Some(&format!("{name}.source")), names, out, depth + 1);
                }
                _ => self.collect(next, None, names, out, depth + 1),
            }
        }
    }
}

fn flatten(path: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                flatten(&format!("{path}.{key}"), value, out);
            }
        }
        Value::Null => {}
        value => {
            out.entry(path.to_owned()).or_insert_with(|| plain(value));
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(n) => match n.as_f64() {
            Some(f) if f != 0.0 && (f.abs() < 1e-2 || f.abs() >= 1e6) => format!("{f:e}"),
            Some(f) => f.to_string(),
            None => n.to_string(),
        },
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        value => value.to_string(),
    }
}

/// The settings of one row: setting -> the values that it has over the row's points.
pub(super) type Settings = BTreeMap<String, BTreeSet<String>>;

/// Joins the settings of a row's points.
pub(super) fn joined<'a>(points: impl IntoIterator<Item = &'a Lineage>) -> Settings {
    let mut out = Settings::new();
    for (key, value) in points.into_iter().flat_map(|l| &l.settings) {
        out.entry(key.clone()).or_default().insert(value.clone());
    }
    out
}

/// Settings that differ. One that varies over the points of both rows (a seed) and has a value in common does not:
/// a row may lack points that failed.
fn differing<'a>(a: &'a Settings, b: &'a Settings) -> BTreeSet<&'a String> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let same = |key: &String| match (a.get(key), b.get(key)) {
        (Some(a), Some(b)) => a == b || ((a.len() > 1 || b.len() > 1) && !a.is_disjoint(b)),
        _ => false,
    };
    keys.into_iter().filter(|key| !same(key)).collect()
}

/// `train.aqn.sigma_start` -> `train.aqn`: the keys of one block are one factor.
fn factor(key: &str) -> &str {
    match key.match_indices('.').nth(1) {
        Some((at, _)) => &key[..at],
        None => key,
    }
}

/// The factors in which two rows differ.
pub(super) fn factors(a: &Settings, b: &Settings) -> Vec<String> {
    let mut all: Vec<String> = differing(a, b).into_iter().map(|key| factor(key).to_owned()).collect();
    all.dedup();
    all
}

fn values(settings: &Settings, key: &str) -> String {
    settings.get(key).map_or_else(|| "off".to_owned(), |v| v.iter().cloned().collect::<Vec<_>>().join(", "))
}

/// `train.lr: 5e-6 -> 1e-5` for every setting of `other` that is not as in `baseline`; a block that one of them lacks
/// (`train.aqn`) is one entry.
pub(super) fn differences(baseline: &Settings, other: &Settings) -> Vec<String> {
    let keys = differing(baseline, other);
    let mut out = Vec::new();
    for name in factors(baseline, other) {
        let within = |settings: &Settings| -> Vec<String> {
            let inner = |key: &String| key.strip_prefix(&name).and_then(|k| k.strip_prefix('.')).map(str::to_owned);
            let own = settings.keys().filter(|key| factor(key) == name);
            own.filter_map(|key| Some(format!("{} {}", inner(key)?, values(settings, key)))).collect()
        };
        let (before, after) = (within(baseline), within(other));
        let block = |list: &[String]| if list.is_empty() { "off".to_owned() } else { list.join(", ") };
        if before.len().max(after.len()) > 0 && before.len().min(after.len()) == 0 {
            out.push(format!("{name}: {} -> {}", block(&before), block(&after)));
            continue;
        }
        for key in keys.iter().filter(|key| factor(key) == name) {
            out.push(format!("{key}: {} -> {}", values(baseline, key), values(other, key)));
        }
    }
    out
}

/// Settings that every row has, with equal values.
pub(super) fn shared(rows: &[&Settings]) -> Vec<(String, String)> {
    let Some((first, rest)) = rows.split_first() else { return Vec::new() };
    let common = first.iter().filter(|(key, value)| rest.iter().all(|row| row.get(*key) == Some(*value)));
    common.map(|(key, _)| (key.clone(), values(first, key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &[&str])]) -> Settings {
        let set = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect();
        pairs.iter().map(|(k, v)| ((*k).to_owned(), set(v))).collect()
    }

    #[test]
    fn differences_name_the_setting_and_both_values() {
        let a = settings(&[("quantize.format", &["bf16"]), ("train.lr", &["5e-6"]), ("train.seed", &["1", "2"])]);
        let b = settings(&[
            ("quantize.format", &["nvfp4"]),
            ("train.lr", &["5e-6"]),
            ("train.aqn.sigma_start", &["1e-2"]),
            ("train.aqn.stages", &["10"]),
            ("train.seed", &["1"]),
        ]);
        assert_eq!(
            differences(&a, &b),
            ["quantize.format: bf16 -> nvfp4", "train.aqn: off -> sigma_start 1e-2, stages 10"]
        );
        assert_eq!(factors(&a, &b), ["quantize.format", "train.aqn"]);
        assert_eq!(differences(&b, &a)[1], "train.aqn: sigma_start 1e-2, stages 10 -> off");
        assert_eq!(differences(&a, &a), Vec::<String>::new());
        let other = settings(&[("train.aqn.sigma_start", &["5e-2"]), ("train.aqn.stages", &["10"])]);
        let one = settings(&[("train.aqn.sigma_start", &["1e-2"]), ("train.aqn.stages", &["10"])]);
        assert_eq!(differences(&one, &other), ["train.aqn.sigma_start: 1e-2 -> 5e-2"]);
        // Seeds that have nothing in common may well be the cause.
        let seeds = |s: &[&str]| settings(&[("train.seed", s)]);
        assert_eq!(differences(&seeds(&["1"]), &seeds(&["2"])), ["train.seed: 1 -> 2"]);
    }

    #[test]
    fn shared_settings_are_those_of_all_rows() {
        let a = settings(&[("train.lr", &["1"]), ("train.steps", &["40"]), ("x.y", &["1"])]);
        let b = settings(&[("train.lr", &["2"]), ("train.steps", &["40"])]);
        assert_eq!(shared(&[&a, &b]), [("train.steps".to_owned(), "40".to_owned())]);
    }

    #[test]
    fn values_are_written_as_people_write_them() {
        let mut out = BTreeMap::new();
        flatten(
            "train",
            &serde_json::json!({"aqn": null, "lr": 5e-6, "betas": [0.9, 0.99], "n": 3, "on": true}),
            &mut out,
        );
        let got: Vec<(&str, &str)> = out.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(got, [("train.betas", "0.9 0.99"), ("train.lr", "5e-6"), ("train.n", "3"), ("train.on", "true")]);
    }
}
