//! Curves and costs of a row, from the trainings and quantizations behind it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::eval::stats;
use crate::report::{Cost, LayerError, Point};
use crate::rl::metrics;
use crate::stages::Kind;
use crate::store::Artifact;
use crate::{Error, Result};

type Records = Vec<Map<String, Value>>;

/// Cost and curves: `latest` are the lineages of the row's last evaluations, `all` those of every one.
pub(super) fn read(latest: &[Vec<Artifact>], all: &[Vec<Artifact>]) -> Result<(Cost, BTreeMap<String, Vec<Point>>)> {
    let nearest = |kind: Kind| {
        let found = latest.iter().filter_map(move |lineage| lineage.iter().find(|a| a.meta.kind == kind));
        found.map(|a| (a.meta.fingerprint.as_str(), a)).collect::<BTreeMap<&str, &Artifact>>()
    };
    let mut cost = Cost::default();
    if let Some(base) = nearest(Kind::Quantize).values().next() {
        cost.weight_bytes = base.meta.summary["bytes_after"].as_u64();
        cost.quantization_error = base.meta.summary["relative_frobenius"].as_f64().filter(|e| *e > 0.0);
    }
    let trainings = nearest(Kind::Train);
    let runs = trainings.values().map(|a| read_metrics(&a.dir)).collect::<Result<Vec<_>>>()?;
    let seconds: Vec<f64> = trainings.values().map(|a| a.meta.provenance.wall_seconds).collect();
    cost.train_seconds = (!seconds.is_empty()).then(|| stats::mean(&seconds));
    let every: BTreeMap<&str, f64> =
        all.iter().flatten().map(|a| (a.meta.fingerprint.as_str(), a.meta.provenance.wall_seconds)).collect();
    cost.all_seconds = (!every.is_empty()).then(|| every.values().sum());
    let mut seen = BTreeMap::new();
    for artifact in all.iter().flatten() {
        if seen.insert(artifact.meta.fingerprint.as_str(), ()).is_none() {
            *cost.phases.entry(artifact.meta.kind.name()).or_default() += artifact.meta.provenance.wall_seconds;
        }
    }
    rates(&mut cost, &runs);
    let mut curves = BTreeMap::new();
    for metric in crate::report::curve_metrics() {
        let curve = curve(&runs, metric);
        if curve.iter().any(|p| p.mean.is_finite()) {
            curves.insert(metric.to_owned(), curve);
        }
    }
    Ok((cost, curves))
}

/// errors.json of the quantization nearest to the row's last evaluations; none for bf16, or where it left none.
pub(super) fn layer_errors(latest: &[Vec<Artifact>]) -> Result<Vec<LayerError>> {
    #[derive(serde::Deserialize)]
    struct Errors {
        layers: Vec<LayerError>,
    }
    let found = latest.iter().find_map(|lineage| lineage.iter().find(|a| a.meta.kind == Kind::Quantize));
    let Some(path) = found.map(|a| a.dir.join("errors.json")).filter(|p| p.is_file()) else { return Ok(Vec::new()) };
    let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let errors: Errors = serde_json::from_slice(&text)
        .map_err(|e| Error::input(format!("{} is not a list of errors", path.display())).caused_by(e))?;
    Ok(errors.layers)
}

/// A training that left no metrics (restored without its undeclared files) has no curves.
fn read_metrics(dir: &Path) -> Result<Records> {
    let path = dir.join("metrics.jsonl");
    if path.is_file() { metrics::read(&path) } else { Ok(Records::new()) }
}

/// Mean, lowest and highest value of `metric` over the runs at every step that has it; NaN where it was not finite.
fn curve(runs: &[Records], metric: &str) -> Vec<Point> {
    let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in runs.iter().flatten() {
        if let (Some(step), Some(value)) = (record.get("step").and_then(Value::as_u64), record.get(metric)) {
            steps.entry(step).or_default().extend(value.as_f64());
        }
    }
    let point = |(step, values): (u64, Vec<f64>)| {
        let step = step as f64;
        if values.is_empty() {
            return Point { step, mean: f64::NAN, low: f64::NAN, high: f64::NAN };
        }
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Point { step, mean: stats::mean(&values), low, high }
    };
    steps.into_iter().map(point).collect()
}

/// Means, because they add up. Steps of trainings that recorded no phases are left out.
fn phases(runs: &[Records]) -> Vec<(&'static str, f64)> {
    let get = |r: &Map<String, Value>, key: &str| r.get(key).and_then(Value::as_f64);
    let step = |r| Some((get(r, "time/rollout")?, get(r, "time/update")?, get(r, "step_time")?));
    let steps: Vec<(f64, f64, f64)> = runs.iter().flatten().filter_map(step).collect();
    if steps.is_empty() {
        return Vec::new();
    }
    let mean = |value: fn(&(f64, f64, f64)) -> f64| stats::mean(&steps.iter().map(value).collect::<Vec<_>>());
    vec![
        ("rollout and rewards", mean(|s| s.0)),
        ("update", mean(|s| s.1)),
        ("rest", mean(|s| (s.2 - s.0 - s.1).max(0.0))),
    ]
}

/// Medians, because the first steps pay for cold caches.
fn rates(cost: &mut Cost, runs: &[Records]) {
    let values = |metric: &str| {
        let values = runs.iter().flatten().filter_map(|r| r.get(metric).and_then(Value::as_f64));
        values.filter(|v| *v > 0.0).collect::<Vec<f64>>()
    };
    let median = |metric: &str| {
        let mut values = values(metric);
        values.sort_by(f64::total_cmp);
        let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
        Some(f64::midpoint(*low, *high))
    };
    cost.rollout_tokens_per_second = median("rollout/tok_s");
    cost.train_tokens_per_second = median("train/tok_s");
    cost.seconds_per_step = median("step_time");
    cost.peak_gib = values("memory/peak_gib").into_iter().reduce(f64::max);
    cost.step_phases = phases(runs);
    cost.steps = runs.iter().map(|r| r.len() as u64).max().filter(|n| *n > 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(values: &[Value]) -> Records {
        let line = |(i, v): (usize, &Value)| serde_json::json!({"step": i + 1, "reward": v, "rollout/tok_s": v});
        values.iter().enumerate().filter_map(|pair| line(pair).as_object().cloned()).collect()
    }

    #[test]
    fn a_curve_is_the_mean_over_runs_with_its_range_and_gaps() {
        let runs = [run(&[1.0.into(), Value::Null, 3.0.into()]), run(&[2.0.into(), Value::Null])];
        let curve = curve(&runs, "reward");
        assert_eq!(curve[0], Point { step: 1.0, mean: 1.5, low: 1.0, high: 2.0 });
        assert!(curve[1].mean.is_nan());
        assert_eq!(curve[2], Point { step: 3.0, mean: 3.0, low: 3.0, high: 3.0 });
    }

    #[test]
    fn rates_are_medians_of_what_was_measured() {
        let mut cost = Cost::default();
        rates(&mut cost, &[run(&[900.0.into(), 10.0.into(), 30.0.into()]), run(&[20.0.into()])]);
        assert_eq!(cost.rollout_tokens_per_second, Some(25.0));
        assert_eq!((cost.train_tokens_per_second, cost.steps), (None, Some(3)));
    }

    #[test]
    fn phases_are_means_that_add_up_to_the_step() {
        let step = |a: f64, b: f64, all: f64| {
            let line = serde_json::json!({"step": 1, "time/rollout": a, "time/update": b, "step_time": all});
            line.as_object().cloned().unwrap_or_default()
        };
        let got = phases(&[vec![step(2.0, 1.0, 3.5), step(0.0, 1.0, 1.0)], run(&[1.0.into()])]);
        assert_eq!(got, [("rollout and rewards", 1.0), ("update", 1.0), ("rest", 0.25)]);
        assert_eq!(phases(&[run(&[1.0.into()])]), []);
    }
}
