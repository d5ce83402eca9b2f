//! What differs between two recorded runs: configurations, figures, and the questions whose verdict flipped.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::record::{InstanceRecord, RunRecord};
use crate::Result;
use crate::eval::compare::SetComparison;
use crate::eval::{compare, files};
use crate::plan::{Change, changes};
use crate::stages::Kind;
use crate::store::{Artifact, Store};

/// Seed of the bootstrap behind paired tests.
const SEED: u64 = 0;

/// A figure that two runs have different values of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its path in the summary: `accuracy`, `sets.0.accuracy`.
    pub name: String,
    pub a: Option<f64>,
    pub b: Option<f64>,
}

/// One instance in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub name: String,
    pub kind: Kind,
    /// `ran`, `cached`, `failed`, ... in each.
    pub outcomes: [String; 2],
    /// Whether both are the same artifact.
    pub same: bool,
    pub config: Vec<Change>,
    pub figures: Vec<Figure>,
    /// For evaluations: paired tests and flipped questions.
    pub sets: Vec<SetComparison>,
    /// Why figures or questions could not be compared.
    pub missing: Option<String>,
}

/// Two runs.
#[derive(Clone, Debug, Serialize)]
pub struct RunDiff {
    pub a: String,
    pub b: String,
    /// Command-line overrides that only one has.
    pub overrides: Vec<Change>,
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
    /// Instances that are the same artifact in both.
    pub same: usize,
    pub differences: Vec<Difference>,
}

/// Compares instance by instance, by name.
///
/// # Errors
/// When the store cannot be read.
pub fn diff(store: &Store, a: &RunRecord, b: &RunRecord) -> Result<RunDiff> {
    let names = |run: &RunRecord| run.instances.iter().map(|i| i.name.clone()).collect::<BTreeSet<_>>();
    let (in_a, in_b) = (names(a), names(b));
    let of_b: BTreeMap<&str, &InstanceRecord> = b.instances.iter().map(|i| (i.name.as_str(), i)).collect();
    let mut out = RunDiff {
        a: a.id.clone(),
        b: b.id.clone(),
        overrides: overrides(a, b),
        only_a: in_a.difference(&in_b).cloned().collect(),
        only_b: in_b.difference(&in_a).cloned().collect(),
        same: 0,
        differences: Vec::new(),
    };
    for x in &a.instances {
        let Some(y) = of_b.get(x.name.as_str()) else { continue };
        let difference = instance(store, x, y)?;
        if difference.same && difference.config.is_empty() {
            out.same += 1;
        } else {
            out.differences.push(difference);
        }
    }
    Ok(out)
}

fn overrides(a: &RunRecord, b: &RunRecord) -> Vec<Change> {
    let json = |run: &RunRecord| serde_json::to_value(&run.overrides).unwrap_or_default();
    changes(&json(a), &json(b))
}

fn instance(store: &Store, a: &InstanceRecord, b: &InstanceRecord) -> Result<Difference> {
    let mut out = Difference {
        name: a.name.clone(),
        kind: b.kind,
        outcomes: [a.outcome.clone(), b.outcome.clone()],
        same: a.fingerprint.is_some() && a.fingerprint == b.fingerprint && is_done(a) && is_done(b),
        config: changes(&a.config, &b.config),
        figures: Vec::new(),
        sets: Vec::new(),
        missing: None,
    };
    if out.same || !is_done(a) || !is_done(b) {
        return Ok(out);
    }
    let (Some(of_a), Some(of_b)) = (artifact(store, a)?, artifact(store, b)?) else {
        out.missing = Some("an artifact is no longer in the store".to_owned());
        return Ok(out);
    };
    out.figures = figures(&of_a.meta.summary, &of_b.meta.summary);
    if a.kind == Kind::Eval && b.kind == Kind::Eval {
        let both = files::read(&of_a.dir).and_then(|x| compare(&x, &files::read(&of_b.dir)?, SEED));
        match both {
            Ok(sets) => out.sets = sets,
            Err(error) => out.missing = Some(error.to_string()),
        }
    }
    Ok(out)
}

fn is_done(instance: &InstanceRecord) -> bool {
    matches!(instance.outcome.as_str(), "ran" | "cached")
}

fn artifact(store: &Store, instance: &InstanceRecord) -> Result<Option<Artifact>> {
    instance.fingerprint.as_deref().map_or(Ok(None), |fingerprint| store.peek(fingerprint))
}

/// Numbers of two summaries that differ. Times and rates always do and say nothing about the result.
fn figures(a: &Value, b: &Value) -> Vec<Figure> {
    let (mut of_a, mut of_b) = (BTreeMap::new(), BTreeMap::new());
    numbers("", a, &mut of_a);
    numbers("", b, &mut of_b);
    let names: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    let get = |map: &BTreeMap<String, f64>, name: &str| map.get(name).copied();
    let rows = names.into_iter().map(|n| Figure { name: n.clone(), a: get(&of_a, n), b: get(&of_b, n) });
    rows.filter(|figure| figure.a != figure.b && !is_speed(&figure.name)).collect()
}

fn is_speed(name: &str) -> bool {
    let last = name.rsplit(['.', '/']).next().unwrap_or(name);
    ["_s", "seconds", "bytes_peak", "peak_bytes", "per_second"].iter().any(|end| last.ends_with(end))
}

fn numbers(path: &str, value: &Value, out: &mut BTreeMap<String, f64>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                out.insert(path.to_owned(), number);
            }
        }
        Value::Object(map) => map.iter().for_each(|(key, value)| numbers(&join(key), value, out)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| numbers(&join(&i.to_string()), v, out)),
        _ => {}
    }
}

impl RunDiff {
    pub fn is_empty(&self) -> bool {
        self.only_a.is_empty() && self.only_b.is_empty() && self.differences.is_empty()
    }

    /// Lines for people.
    pub fn to_text(&self) -> String {
        let mut out = format!("A {}   B {}\n", self.a, self.b);
        let mut line = |text: String| {
            out += &text;
            out.push('\n');
        };
        for change in &self.overrides {
            line(format!("  {change}"));
        }
        for (names, run) in [(&self.only_a, "A"), (&self.only_b, "B")] {
            for name in names {
                line(format!("only in {run}: {name}"));
            }
        }
        for d in &self.differences {
            let [a, b] = &d.outcomes;
            line(if a == b { d.name.clone() } else { format!("{} ({a} in A, {b} in B)", d.name) });
            for change in &d.config {
                line(format!("  {change}"));
            }
            if d.config.is_empty() && d.missing.is_none() {
                line("  the same configuration on other inputs".to_owned());
            }
            for figure in &d.figures {
                let show = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x}"));
                let by = match (figure.a, figure.b) {
                    (Some(a), Some(b)) => format!("  ({:+.4})", b - a),
                    _ => String::new(),
                };
                line(format!("  {}: {} -> {}{by}", figure.name, show(figure.a), show(figure.b)));
            }
            if let Some(why) = &d.missing {
                line(format!("  not compared: {why}"));
            }
            if !d.sets.is_empty() {
                let table = crate::eval::table::comparison(&d.sets);
                table.lines().for_each(|text| line(format!("  {text}")));
            }
        }
        line(match self.is_empty() {
            true => format!("no differences in {} instances", self.same),
            false => format!("{} instances are the same", self.same),
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_that_differ_are_named_by_their_path() {
        let a = json!({"sets": [{"data": "x", "accuracy": 0.25, "n": 8}], "gone": 1, "text": "a", "train/tok_s": 1});
        let b = json!({"sets": [{"data": "x", "accuracy": 0.5, "n": 8}], "text": "b", "train/tok_s": 2});
        let found = figures(&a, &b);
        let want = [
            Figure { name: "gone".to_owned(), a: Some(1.0), b: None },
            Figure { name: "sets.0.accuracy".to_owned(), a: Some(0.25), b: Some(0.5) },
        ];
        assert_eq!(found, want);
    }
}
