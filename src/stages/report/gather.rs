//! From gathered evaluations to what a report says.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::compare;
use super::cost;
use super::lineage::{Lineage, Place, Settings, differences, factors, joined, shared};
use super::records::{self, Answers};
use super::{Config, provenance};
use crate::eval::{SetSummary, Summary, files, stats};
use crate::report::{Cell, Data, Failure, Paper, PointFigure, Row, Setting, Trained, paper_method};
use crate::stages::{Context, Input, Kind};
use crate::store::Artifact;
use crate::{Error, Result};

/// Share of completions above which a warning is given.
const MANY: f64 = 0.1;

/// Fewer points of the `over` axis say little about the spread.
const FEW_POINTS: usize = 3;

/// One finished evaluation with everything behind it.
pub(super) struct Evaluation<'a> {
    pub input: &'a Input,
    pub artifact: &'a Artifact,
    pub summary: Summary,
    pub answers: Answers,
    pub lineage: Lineage,
}

/// The points that one row stands for: axis -> label, without the `over` axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowPoint {
    pub label: String,
    pub point: BTreeMap<String, String>,
}

/// Everything gathered, row by row.
pub(super) struct Gathered<'a> {
    pub config: &'a Config,
    pub stages: Vec<String>,
    pub evaluations: Vec<Evaluation<'a>>,
    pub rows: Vec<RowPoint>,
    /// Of each row, at the last stage; empty where that failed.
    pub settings: Vec<Settings>,
    /// Of each row: the row that it is compared with.
    pub baselines: Vec<Option<usize>>,
}

impl<'a> Gathered<'a> {
    /// A row's evaluations of `stage`; one that lacks an axis of the rows counts for each of them. Equal artifacts
    /// count once: they are no further evidence.
    pub fn of(&self, row: usize, stage: &str) -> Vec<&Evaluation<'a>> {
        let mut seen = BTreeSet::new();
        let own = self.evaluations.iter().filter(|e| e.input.stage == stage && belongs(e.input, &self.rows[row]));
        own.filter(|e| seen.insert(e.artifact.meta.fingerprint.as_str())).collect()
    }

    /// A row's evaluations of the last stage, or of the last one that it finished.
    fn latest(&self, row: usize) -> Vec<&Evaluation<'a>> {
        self.stages.iter().rev().map(|stage| self.of(row, stage)).find(|found| !found.is_empty()).unwrap_or_default()
    }
}

fn belongs(input: &Input, row: &RowPoint) -> bool {
    row.point.iter().all(|(axis, label)| input.point.get(axis).is_none_or(|own| own == label))
}

/// Builds the report's data from the inputs in `gather.*`.
pub(super) fn gather(context: &Context<'_>, config: &Config) -> Result<Data> {
    let inputs: Vec<&Input> = context.inputs.iter().filter(|i| i.slot.starts_with("gather")).collect();
    let origin = config.pipeline.clone().unwrap_or_default();
    let mut data = Data {
        title: config.title.clone().unwrap_or_else(|| origin.name.clone()),
        pipeline: origin.name,
        file: Some(origin.file).filter(|f| !f.is_empty()).map(|f| shell_word(&f)),
        arguments: origin.arguments.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" "),
        qerl_version: env!("CARGO_PKG_VERSION").to_owned(),
        axis: config.rows.clone(),
        over: config.over.clone(),
        paper: config.paper.as_deref().map(Paper::table).transpose()?,
        ..Data::default()
    };
    let mut evaluations = Vec::new();
    for &input in &inputs {
        if !data.stages.contains(&input.stage) {
            data.stages.push(input.stage.clone());
        }
        match &input.artifact {
            Err(reason) => data.failures.push(Failure { instance: name(input), reason: reason.clone() }),
            Ok(artifact) => {
                context.cancel.check()?;
                evaluations.push(Evaluation {
                    input,
                    artifact,
                    summary: summary(artifact)?,
                    answers: records::answers(&artifact.dir)?,
                    lineage: Lineage::of(
                        context.store,
                        artifact,
                        Place { pipeline: &data.pipeline, point: &input.point },
                    ),
                });
            }
        }
    }
    let rows = row_points(&inputs, config);
    let mut gathered = Gathered {
        config,
        stages: data.stages.clone(),
        evaluations,
        baselines: baselines(&rows, config),
        settings: Vec::new(),
        rows,
    };
    let last = gathered.stages.last().cloned().unwrap_or_default();
    gathered.settings =
        (0..gathered.rows.len()).map(|row| joined(gathered.of(row, &last).iter().map(|e| &e.lineage))).collect();
    datasets(&mut data, &gathered);
    if let Some(over) = &config.over {
        let mut labels: Vec<&String> = gathered.evaluations.iter().filter_map(|e| e.input.point.get(over)).collect();
        labels.dedup();
        for label in labels {
            if !data.over_labels.contains(label) {
                data.over_labels.push(label.clone());
            }
        }
    }
    for row in 0..gathered.rows.len() {
        data.rows.push(fill_row(&gathered, row, &inputs, &data)?);
    }
    data.evaluations = point_figures(&gathered);
    baseline(&mut data, &gathered);
    compare(&mut data, &gathered)?;
    provenance::fill(&mut data, &gathered);
    warn(&mut data, &gathered);
    Ok(data)
}

/// A word that a POSIX shell reads as `text`.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn name(input: &Input) -> String {
    let point: Vec<String> = input.point.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
    if point.is_empty() { input.stage.clone() } else { format!("{}@{}", input.stage, point.join(",")) }
}

fn summary(artifact: &Artifact) -> Result<Summary> {
    if artifact.meta.kind != Kind::Eval {
        return Err(Error::usage(format!("a report gathers evaluations, not a `{}` stage", artifact.meta.kind.name()))
            .hint("name `eval` stages in `gather`; what stands behind them is found by itself"));
    }
    files::read_summary(&artifact.dir)
}

/// The combinations of all axes but `over`, failed ones included, in the order of the inputs. A point that lacks an
/// axis which others have is no row of its own.
fn row_points(inputs: &[&Input], config: &Config) -> Vec<RowPoint> {
    let mut points: Vec<BTreeMap<String, String>> = Vec::new();
    for input in inputs {
        let mut point = input.point.clone();
        if let Some(over) = &config.over {
            point.remove(over);
        }
        if !points.contains(&point) {
            points.push(point);
        }
    }
    let within = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
        a.len() < b.len() && a.iter().all(|(axis, label)| b.get(axis) == Some(label))
    };
    let whole: Vec<_> = points.iter().filter(|a| !points.iter().any(|b| within(a, b))).cloned().collect();
    let label = |point: &BTreeMap<String, String>| {
        let mut parts: Vec<String> = point.get(&config.rows).cloned().into_iter().collect();
        parts.extend(point.iter().filter(|(axis, _)| **axis != config.rows).map(|(a, l)| format!("{a}={l}")));
        if parts.is_empty() { "run".to_owned() } else { parts.join(", ") }
    };
    whole.into_iter().map(|point| RowPoint { label: label(&point), point }).collect()
}

/// Of each row the one at the baseline's label that is equal in every other axis.
fn baselines(rows: &[RowPoint], config: &Config) -> Vec<Option<usize>> {
    let Some(baseline) = &config.baseline else { return vec![None; rows.len()] };
    rows.iter()
        .map(|row| {
            let mut point = row.point.clone();
            point.insert(config.rows.clone(), baseline.clone());
            rows.iter().position(|other| other.point == point)
        })
        .collect()
}

/// Data sets in the order of the evaluations, and how each was evaluated.
fn datasets(data: &mut Data, gathered: &Gathered<'_>) {
    for evaluation in &gathered.evaluations {
        for set in &evaluation.summary.sets {
            if !data.datasets.contains(&set.data) {
                data.datasets.push(set.data.clone());
            }
            let new = Setting {
                dataset: set.data.clone(),
                stages: vec![evaluation.input.stage.clone()],
                questions: set.n,
                samples: set.samples,
                temperature: f64::from(set.temperature),
                top_p: f64::from(set.top_p),
                top_k: set.top_k,
                max_tokens: set.max_new_tokens,
                seeds: vec![set.seed],
            };
            let same = |old: &&mut Setting| {
                Setting { stages: Vec::new(), seeds: Vec::new(), ..(**old).clone() }
                    == Setting { stages: Vec::new(), seeds: Vec::new(), ..new.clone() }
            };
            match data.settings.iter_mut().find(same) {
                Some(old) => {
                    for stage in new.stages {
                        if !old.stages.contains(&stage) {
                            old.stages.push(stage);
                        }
                    }
                    old.seeds.extend(new.seeds);
                    old.seeds.sort_unstable();
                    old.seeds.dedup();
                }
                None => data.settings.push(new),
            }
        }
    }
    data.settings.sort_by_key(|s| data.datasets.iter().position(|d| *d == s.dataset));
}

/// Every evaluation of every row by itself.
fn point_figures(gathered: &Gathered<'_>) -> Vec<PointFigure> {
    let mut out = Vec::new();
    for (index, row) in gathered.rows.iter().enumerate() {
        for (stage, evaluation) in
            gathered.stages.iter().flat_map(|s| gathered.of(index, s).into_iter().map(move |e| (s, e)))
        {
            let point: Vec<String> = evaluation.input.point.iter().map(|(a, l)| format!("{a}={l}")).collect();
            for set in &evaluation.summary.sets {
                let answers = evaluation.answers.get(&set.data).into_iter().flatten();
                out.push(PointFigure {
                    row: row.label.clone(),
                    stage: stage.clone(),
                    point: point.join(","),
                    dataset: set.data.clone(),
                    questions: set.n,
                    samples: set.samples,
                    accuracy: set.accuracy,
                    low: set.interval.low,
                    high: set.interval.high,
                    truncated: set.truncated,
                    no_answer: set.no_answer,
                    mean_tokens: set.mean_tokens,
                    answers: answers.map(|(id, a)| (id.clone(), a.correct, a.samples)).collect(),
                });
            }
        }
    }
    out
}

fn fill_row(gathered: &Gathered<'_>, index: usize, inputs: &[&Input], data: &Data) -> Result<Row> {
    let RowPoint { label, point } = gathered.rows[index].clone();
    let mut row = Row { label, point, ..Row::default() };
    row.failed = inputs.iter().filter(|i| i.artifact.is_err() && belongs(i, &gathered.rows[index])).count();
    for stage in &gathered.stages {
        let own = gathered.of(index, stage);
        for dataset in &data.datasets {
            let sets: Vec<&SetSummary> =
                own.iter().filter_map(|e| e.summary.sets.iter().find(|s| s.data == *dataset)).collect();
            if let Some(cell) = cell(&sets) {
                row.cells.entry(stage.clone()).or_default().insert(dataset.clone(), cell);
            }
        }
        if let Some(evaluation) = own.first()
            && let Some(method) = method(&evaluation.lineage)
        {
            row.methods.insert(stage.clone(), method);
        }
    }
    let all: Vec<&Evaluation<'_>> = gathered.stages.iter().flat_map(|stage| gathered.of(index, stage)).collect();
    let latest = gathered.latest(index);
    row.format = latest.iter().find_map(|e| e.lineage.setting("quantize.format").map(str::to_owned));
    let lineages =
        |evaluations: &[&Evaluation<'_>]| evaluations.iter().map(|e| e.lineage.all.clone()).collect::<Vec<_>>();
    row.layer_errors = cost::layer_errors(&lineages(&latest))?;
    (row.cost, row.curves) = cost::read(&lineages(&latest), &lineages(&all))?;
    Ok(row)
}

/// The paper's name for the policy of an evaluation, where its format is known.
fn method(lineage: &Lineage) -> Option<String> {
    let format = lineage.setting("quantize.format")?;
    let trained = lineage.nearest(Kind::Train).map(|_| {
        if lineage.settings.keys().any(|key| key.starts_with("lora.")) { Trained::Adapter } else { Trained::Full }
    });
    let noise = trained.is_some() && lineage.settings.keys().any(|key| key.starts_with("train.aqn."));
    Some(paper_method(format, trained, noise))
}

/// Mean over points; the interval is over questions for one point, and the wider of those over questions and over
/// points for several.
fn cell(sets: &[&SetSummary]) -> Option<Cell> {
    let first = sets.first()?;
    let of = |get: fn(&SetSummary) -> f64| stats::mean(&sets.iter().map(|s| get(s)).collect::<Vec<_>>());
    let accuracies: Vec<f64> = sets.iter().map(|s| s.accuracy).collect();
    let accuracy = stats::mean(&accuracies);
    let (mut low, mut high) = (of(|s| s.interval.low), of(|s| s.interval.high));
    if sets.len() > 1 {
        let half = stats::t_half_width(&accuracies);
        low = low.min((accuracy - half).max(0.0));
        high = high.max((accuracy + half).min(1.0));
    }
    let means = |get: fn(&SetSummary) -> &BTreeMap<usize, f64>| {
        let of_k = |k: &usize| {
            let values: Option<Vec<f64>> = sets.iter().map(|s| get(s).get(k).copied()).collect();
            Some((*k, stats::mean(&values?)))
        };
        get(first).keys().filter_map(of_k).collect()
    };
    Some(Cell {
        accuracy,
        low,
        high,
        questions: first.n,
        samples: first.samples,
        points: sets.len(),
        deviation: (sets.len() > 1).then(|| stats::deviation(&accuracies)),
        truncated: of(|s| s.truncated),
        no_answer: of(|s| s.no_answer),
        mean_tokens: of(|s| s.mean_tokens),
        pass_at: means(|s| &s.pass_at),
        maj_at: means(|s| &s.maj_at),
        best: false,
    })
}

/// Each row's resolved differences from its baseline, what all rows share, and warnings where several factors differ.
fn baseline(data: &mut Data, gathered: &Gathered<'_>) {
    let known: Vec<&Settings> = gathered.settings.iter().filter(|s| !s.is_empty()).collect();
    data.shared = shared(&known);
    data.baseline = gathered.config.baseline.clone().filter(|_| gathered.baselines.iter().any(Option::is_some));
    if let (Some(asked), None) = (&gathered.config.baseline, &data.baseline) {
        data.warnings.push(format!("the baseline {asked} is not among the rows: nothing is compared with it"));
    }
    let mut several: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
    for (index, row) in data.rows.iter_mut().enumerate() {
        let Some(base) = gathered.baselines[index] else { continue };
        let label = &gathered.rows[base].label;
        row.baseline = Some(label.clone());
        let (own, theirs) = (&gathered.settings[index], &gathered.settings[base]);
        if base == index || own.is_empty() || theirs.is_empty() {
            continue;
        }
        row.differences = differences(theirs, own);
        let factors = factors(theirs, own);
        if factors.len() > 1 {
            match several.iter_mut().find(|(base, list, _)| base == label && *list == factors) {
                Some((_, _, rows)) => rows.push(row.label.clone()),
                None => several.push((label.clone(), factors, vec![row.label.clone()])),
            }
        }
    }
    for (base, factors, rows) in several {
        let verb = if rows.len() == 1 { "differs" } else { "differ" };
        data.warnings.push(format!(
            "{} {verb} from {base} in {} factors at once ({}): a difference in accuracy has no single cause",
            rows.join(", "),
            factors.len(),
            factors.join(", ")
        ));
    }
}

/// What a reader must know before believing the figures.
fn warn(data: &mut Data, gathered: &Gathered<'_>) {
    let mut out = Vec::new();
    if !data.failures.is_empty() {
        let (failed, all) = (data.failures.len(), data.failures.len() + gathered.evaluations.len());
        out.push(format!(
            "{failed} of {all} gathered points failed: the rows that they belong to rest on fewer points"
        ));
    }
    if let (Some(over), Some(last)) = (&data.over, data.stages.last()) {
        let cells = data.rows.iter().filter_map(|r| r.cells.get(last)).flat_map(BTreeMap::values);
        if let Some(fewest) = cells.map(|c| c.points).min().filter(|n| *n < FEW_POINTS) {
            let points = if fewest == 1 { "point" } else { "points" };
            out.push(format!(
                "as few as {fewest} {points} of {over} behind a row: the spread over {over} is hardly known"
            ));
        }
    }
    for dataset in &data.datasets {
        let forms = data.settings.iter().filter(|s| s.dataset == *dataset).count();
        if forms > 1 {
            out.push(format!("{dataset} was evaluated in {forms} different ways: accuracies do not compare"));
        }
        let Some(last) = data.stages.last() else { continue };
        for row in &data.rows {
            let Some(cell) = row.cells.get(last).and_then(|c| c.get(dataset)) else { continue };
            for (share, what) in [(cell.truncated, "cut at the token limit"), (cell.no_answer, "without an answer")] {
                if share > MANY {
                    let share = share * 100.0;
                    out.push(format!("{} {last}: {share:.0}% of the completions on {dataset} are {what}", row.label));
                }
            }
        }
        let sets = || gathered.evaluations.iter().flat_map(|e| &e.summary.sets).filter(|s| s.data == *dataset);
        if let Some(n) = sets().map(|s| s.gold_unparseable).max().filter(|n| *n > 0) {
            out.push(format!("{n} questions of {dataset} have a gold answer that cannot be read and count as wrong"));
        }
        let seen = sets().filter_map(|s| s.contamination.as_ref()).max_by_key(|c| (c.exact, c.ngram));
        if let Some(c) = seen.filter(|c| c.ngram > 0 || c.exact > 0) {
            out.push(format!(
                "{} of {} questions of {dataset} are in the training data word for word, {} share 13 words in a row",
                c.exact, c.checked, c.ngram
            ));
        }
    }
    data.warnings.extend(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Interval;

    fn input(stage: &str, point: &[(&str, &str)]) -> Input {
        Input {
            slot: "gather.0".into(),
            stage: stage.into(),
            point: point.iter().map(|(a, l)| ((*a).to_owned(), (*l).to_owned())).collect(),
            checkpoint: "last".into(),
            part: None,
            artifact: Err("x".into()),
        }
    }

    fn config(rows: &str, over: Option<&str>, baseline: Option<&str>) -> Config {
        let config = serde_json::json!({"gather": [], "rows": rows, "over": over, "baseline": baseline});
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn every_axis_but_the_one_averaged_over_makes_rows() {
        let inputs = [
            input("before", &[("variant", "a")]),
            input("after", &[("lr", "1"), ("seed", "1"), ("variant", "a")]),
            input("after", &[("lr", "1"), ("seed", "2"), ("variant", "a")]),
            input("after", &[("lr", "2"), ("seed", "1"), ("variant", "a")]),
            input("after", &[("lr", "2"), ("seed", "1"), ("variant", "b")]),
        ];
        let inputs: Vec<&Input> = inputs.iter().collect();
        let config = config("variant", Some("seed"), Some("a"));
        let rows = row_points(&inputs, &config);
        let labels: Vec<&str> = rows.iter().map(|r| r.label.as_str()).collect();
        assert_eq!(labels, ["a, lr=1", "a, lr=2", "b, lr=2"]);
        assert_eq!(baselines(&rows, &config), [Some(0), Some(1), Some(1)]);
        assert!(belongs(inputs[0], &rows[1]) && !belongs(inputs[0], &rows[2]));
        assert!(!belongs(inputs[1], &rows[1]));
    }

    #[test]
    fn a_pipeline_without_axes_has_one_row() {
        let input = input("after", &[]);
        assert_eq!(row_points(&[&input], &config("variant", None, None))[0].label, "run");
    }

    #[test]
    fn an_interval_over_seeds_is_students_but_never_narrower_than_over_questions() {
        let set = |accuracy: f64| SetSummary {
            accuracy,
            interval: Interval { low: accuracy - 0.05, high: accuracy + 0.05, method: "wilson".into() },
            ..SetSummary::default()
        };
        let (a, b, c) = (set(0.5), set(0.6), set(0.7));
        let one = cell(&[&a]).unwrap();
        assert_eq!((one.low, one.high, one.deviation), (0.45, 0.55, None));
        let three = cell(&[&a, &b, &c]).unwrap();
        assert!((three.accuracy - 0.6).abs() < 1e-12 && (three.high - 0.848_413_7).abs() < 1e-6);
        assert!((three.deviation.unwrap() - 0.1).abs() < 1e-12);
        let same = cell(&[&a, &a]).unwrap();
        assert!((same.low - 0.45).abs() < 1e-12 && (same.high - 0.55).abs() < 1e-12);
    }
}
