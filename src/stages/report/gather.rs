//! From gathered evaluations to what a report says: rows, intervals, curves, costs, comparisons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::lineage::{differences, lineage, nearest, settings};
use super::records::{self, Answers};
use super::report::Config;
use super::{Context, Input, Kind};
use crate::eval::{self, Summary};
use crate::report::{Cell, Comparison, Cost, Data, Example, Failure, Paper, Row, Setting};
use crate::store::Artifact;
use crate::{Error, Result};

/// Metrics whose curves are shown.
const CURVES: [&str; 6] =
    ["reward", "rewards/accuracy/mean", "entropy", "aqn/sigma", "completions/mean_length", "kl"];

/// Settings that say nothing about the method: which file, which seed.
const IGNORED: [&str; 3] = ["seed", "pins", "spec"];

/// How many answers that changed are shown a row.
const EXAMPLES: usize = 1;

/// One finished evaluation with everything behind it.
struct Evaluation<'a> {
    input: &'a Input,
    artifact: &'a Artifact,
    summary: Summary,
    behind: Vec<Artifact>,
}

/// Builds the report's data from the inputs in `gather.*`.
pub(super) fn gather(context: &Context<'_>, config: &Config, pipeline: &str) -> Result<Data> {
    let mut data = Data {
        title: config.title.clone().unwrap_or_else(|| pipeline.to_owned()),
        pipeline: pipeline.to_owned(),
        qerl_version: env!("CARGO_PKG_VERSION").to_owned(),
        created: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        axis: config.rows.clone(),
        over: config.over.clone(),
        paper: config.paper.as_deref().map(Paper::table).transpose()?,
        ..Data::default()
    };
    let mut evaluations = Vec::new();
    for input in context.inputs.iter().filter(|i| i.slot.starts_with("gather")) {
        if !data.stages.contains(&input.stage) {
            data.stages.push(input.stage.clone());
        }
        match &input.artifact {
            Err(reason) => data.failures.push(Failure { instance: name(input), reason: reason.clone() }),
            Ok(artifact) => {
                context.cancel.check()?;
                let summary = read_summary(artifact)?;
                let behind = lineage(context.store, artifact)?;
                evaluations.push(Evaluation { input, artifact, summary, behind });
            }
        }
    }
    for evaluation in &evaluations {
        for set in &evaluation.summary.sets {
            if !data.datasets.contains(&set.name) {
                data.datasets.push(set.name.clone());
                data.settings.push(Setting {
                    dataset: set.name.clone(),
                    questions: set.questions,
                    samples: set.samples,
                    temperature: f64::from(evaluation.summary.temperature),
                    top_p: f64::from(evaluation.summary.top_p),
                    max_tokens: evaluation.summary.max_new_tokens,
                });
            }
        }
    }
    let labels = row_labels(&evaluations, config);
    data.baseline = config.baseline.clone().filter(|b| labels.contains(b));
    if let (Some(asked), None) = (&config.baseline, &data.baseline)
        && !labels.is_empty()
    {
        data.warnings.push(format!("the baseline {asked} has no finished evaluation: nothing is compared with it"));
    }
    for label in &labels {
        data.rows.push(row(&evaluations, config, label, &data.stages, &data.datasets)?);
    }
    explain_differences(&mut data, &evaluations, config);
    compare(&mut data, &evaluations, config)?;
    devices(&mut data, &evaluations);
    data.artifacts = evaluations.iter().map(|e| (name(e.input), e.artifact.meta.fingerprint.clone())).collect();
    Ok(data)
}

fn name(input: &Input) -> String {
    let point: Vec<String> = input.point.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
    if point.is_empty() { input.stage.clone() } else { format!("{}@{}", input.stage, point.join(",")) }
}

fn read_summary(artifact: &Artifact) -> Result<Summary> {
    let path = artifact.dir.join(eval::SUMMARY_FILE);
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    serde_json::from_str(&text).map_err(|e| {
        Error::input(format!("{} is not an evaluation's summary", path.display()))
            .caused_by(e)
            .hint("gather names eval stages only")
    })
}

/// The labels of the row axis in the order of the inputs; one row called after the pipeline where no input has it.
fn row_labels(evaluations: &[Evaluation<'_>], config: &Config) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for evaluation in evaluations {
        if let Some(label) = evaluation.input.point.get(&config.rows)
            && !labels.contains(label)
        {
            labels.push(label.clone());
        }
    }
    if labels.is_empty() && !evaluations.is_empty() {
        labels.push("run".to_owned());
    }
    labels
}

/// An evaluation without the row axis counts for every row.
fn belongs(evaluation: &Evaluation<'_>, config: &Config, label: &str) -> bool {
    evaluation.input.point.get(&config.rows).is_none_or(|own| own == label)
}

fn row(
    evaluations: &[Evaluation<'_>],
    config: &Config,
    label: &str,
    stages: &[String],
    datasets: &[String],
) -> Result<Row> {
    let own: Vec<&Evaluation<'_>> = evaluations.iter().filter(|e| belongs(e, config, label)).collect();
    let mut row = Row { label: label.to_owned(), ..Row::default() };
    for stage in stages {
        for dataset in datasets {
            let sets: Vec<&eval::SetSummary> = own
                .iter()
                .filter(|e| e.input.stage == *stage)
                .filter_map(|e| e.summary.sets.iter().find(|s| s.name == *dataset))
                .collect();
            if let Some(cell) = cell(&sets) {
                row.cells.entry(stage.clone()).or_default().insert(dataset.clone(), cell);
            }
        }
    }
    let mut trainings: BTreeMap<&str, &Artifact> = BTreeMap::new();
    for evaluation in &own {
        if let Some(training) = nearest(&evaluation.behind, &[Kind::Train]) {
            trainings.insert(&training.meta.fingerprint, training);
        }
        if let Some(base) = nearest(&evaluation.behind, &[Kind::Quantize]) {
            row.cost.weight_bytes = base.meta.summary["bytes_after"].as_u64();
            row.cost.quantization_error = base.meta.summary["relative_frobenius"].as_f64().filter(|e| *e > 0.0);
        }
    }
    let runs = trainings.values().map(|a| metrics(&a.dir)).collect::<Result<Vec<_>>>()?;
    for metric in CURVES {
        let curve = mean_curve(&runs, metric);
        if !curve.is_empty() {
            row.curves.insert(metric.to_owned(), curve);
        }
    }
    row.cost.train_seconds = mean(trainings.values().map(|a| a.meta.provenance.wall_seconds));
    costs(&mut row.cost, &runs);
    Ok(row)
}

/// Mean over points; the interval is over questions for one point and over points for several.
fn cell(sets: &[&eval::SetSummary]) -> Option<Cell> {
    let first = sets.first()?;
    let accuracies: Vec<f64> = sets.iter().map(|s| s.accuracy).collect();
    let of = |get: fn(&eval::SetSummary) -> f64| mean(sets.iter().map(|s| get(s))).unwrap_or(0.0);
    let accuracy = of(|s| s.accuracy);
    let (low, high) = match sets {
        [only] => (only.interval[0], only.interval[1]),
        _ => {
            let half = eval::t_half_width(&accuracies);
            ((accuracy - half).max(0.0), (accuracy + half).min(1.0))
        }
    };
    Some(Cell {
        accuracy,
        low,
        high,
        questions: first.questions,
        samples: first.samples,
        points: sets.len(),
        truncated: of(|s| s.truncated),
        no_answer: of(|s| s.no_answer),
        mean_tokens: of(|s| s.mean_tokens),
    })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

type Metrics = Vec<serde_json::Map<String, Value>>;

/// metrics.jsonl of a training; absent after a restore without it: then there are no curves.
fn metrics(dir: &Path) -> Result<Metrics> {
    crate::rl::read_metrics(&dir.join("metrics.jsonl"))
}

fn mean_curve(runs: &[Metrics], metric: &str) -> Vec<(f64, f64)> {
    let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in runs.iter().flatten() {
        if let (Some(step), Some(value)) = (record.get("step").and_then(Value::as_u64), record.get(metric).and_then(Value::as_f64)) {
            steps.entry(step).or_default().push(value);
        }
    }
    steps.into_iter().filter_map(|(step, values)| Some((step as f64, mean(values.into_iter())?))).collect()
}

fn costs(cost: &mut Cost, runs: &[Metrics]) {
    let values = |metric: &str| {
        let values = runs.iter().flatten().filter_map(|r| r.get(metric).and_then(Value::as_f64));
        values.filter(|v| v.is_finite() && *v > 0.0).collect::<Vec<f64>>()
    };
    // Medians: the first steps pay for cold caches.
    let median = |metric: &str| {
        let mut values = values(metric);
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    cost.rollout_tokens_per_second = median("rollout/tok_s");
    cost.train_tokens_per_second = median("train/tok_s");
    cost.seconds_per_step = median("step_time");
    cost.peak_gib = values("memory/peak_gib").into_iter().reduce(f64::max);
    cost.steps = runs.iter().map(|r| r.len() as u64).max().filter(|n| *n > 0);
}

/// Fills each row's resolved differences from the baseline and warns where several factors change at once.
fn explain_differences(data: &mut Data, evaluations: &[Evaluation<'_>], config: &Config) {
    let Some(baseline) = data.baseline.clone() else { return };
    let of = |label: &str| {
        let mut all = BTreeMap::new();
        for evaluation in evaluations.iter().filter(|e| belongs(e, config, label)) {
            for (key, value) in settings(&evaluation.behind) {
                let ignored = IGNORED.iter().any(|part| key.split('.').any(|piece| piece == *part));
                if !ignored {
                    all.entry(key).or_insert(value);
                }
            }
        }
        all
    };
    let base = of(&baseline);
    for row in &mut data.rows {
        row.differences = differences(&base, &of(&row.label));
        let factors: BTreeSet<&str> =
            row.differences.iter().filter_map(|d| d.split(':').next()).map(factor).collect();
        if factors.len() > 1 {
            let factors: Vec<&str> = factors.into_iter().collect();
            data.warnings.push(format!(
                "{} differs from {baseline} in several factors at once ({}): a difference in accuracy has no single cause",
                row.label,
                factors.join(", ")
            ));
        }
    }
}

/// `train.aqn.sigma_start` -> `train.aqn`: the keys of one block are one factor.
fn factor(key: &str) -> &str {
    match key.match_indices('.').nth(1) {
        Some((at, _)) => &key[..at],
        None => key,
    }
}

/// Paired comparisons: every row's last stage against its own first one and against the baseline's last one.
fn compare(data: &mut Data, evaluations: &[Evaluation<'_>], config: &Config) -> Result<()> {
    let (Some(first), Some(last)) = (data.stages.first().cloned(), data.stages.last().cloned()) else {
        return Ok(());
    };
    let answers = |label: &str, stage: &str, dataset: &str| -> Result<Answers> {
        let mut all = Answers::default();
        for evaluation in evaluations.iter().filter(|e| e.input.stage == stage && belongs(e, config, label)) {
            all.extend(records::answers(&evaluation.artifact.dir, dataset)?);
        }
        Ok(all)
    };
    let labels: Vec<String> = data.rows.iter().map(|r| r.label.clone()).collect();
    for dataset in data.datasets.clone() {
        let baseline = match &data.baseline {
            Some(label) => Some((label.clone(), answers(label, &last, &dataset)?)),
            None => None,
        };
        for label in &labels {
            let after = answers(label, &last, &dataset)?;
            if first != last {
                let before = answers(label, &first, &dataset)?;
                let names = (format!("{label} {last}"), format!("{label} {first}"));
                data.comparisons.extend(comparison(&dataset, names, &after, &before));
                for (question, was, is) in after.gained(&before).take(EXAMPLES) {
                    data.examples.push(Example {
                        row: label.clone(),
                        dataset: dataset.clone(),
                        prompt: shorten(&question.prompt),
                        gold: shorten(&question.gold),
                        before: shorten(was),
                        after: shorten(is),
                    });
                }
            }
            if let Some((name, baseline)) = &baseline
                && name != label
            {
                let names = (format!("{label} {last}"), format!("{name} {last}"));
                data.comparisons.extend(comparison(&dataset, names, &after, baseline));
            }
        }
    }
    Ok(())
}

fn shorten(text: &str) -> String {
    const LIMIT: usize = 700;
    match text.char_indices().nth(LIMIT) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    }
}

fn comparison(dataset: &str, (a, b): (String, String), after: &Answers, before: &Answers) -> Option<Comparison> {
    let pairs = after.paired(before);
    if pairs.is_empty() {
        return None;
    }
    let test = eval::paired(&pairs);
    Some(Comparison {
        dataset: dataset.to_owned(),
        a,
        b,
        difference: test.difference,
        low: test.low,
        high: test.high,
        questions: pairs.len(),
        p_value: test.mcnemar_p,
    })
}

fn devices(data: &mut Data, evaluations: &[Evaluation<'_>]) {
    let mut devices = BTreeSet::new();
    for artifact in evaluations.iter().flat_map(|e| &e.behind) {
        if matches!(artifact.meta.kind, Kind::Train | Kind::Sft | Kind::Eval) {
            devices.insert(artifact.meta.provenance.device.clone());
        }
    }
    data.devices = devices.into_iter().filter(|d| !d.is_empty()).collect();
    if data.devices.len() > 1 {
        data.warnings.push("the rows were made on different devices: times and memory do not compare".to_owned());
    }
}
