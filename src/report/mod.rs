//! Report: gathered evaluations and training curves -> one self-contained HTML file and one Markdown file.
//!
//! [`Data`] is what a report says, without any layout; `view` turns it into tables and plots, `render` puts these into
//! the templates, `paper` holds the published figures, `svg` draws.

mod graph;
mod heat;
mod layers;
mod live;
mod markup;
mod paper;
mod parallel;
mod phases;
mod plots;
mod render;
mod svg;
pub mod tables;
#[cfg(test)]
mod tests;
mod verdict;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use graph::{Graph, Node};
pub use live::{LivePart, live};
pub use paper::{Paper, TABLES as PAPER_TABLES, Trained, method as paper_method};
pub use plots::curve_metrics;
pub use render::{TEMPLATE_FILES, Templates, html, markdown};

/// Everything a report shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Data {
    pub title: String,
    pub pipeline: String,
    /// Name of the pipeline file, for the command that makes it all again.
    pub file: Option<String>,
    /// That command's further arguments, quoted for a shell; empty where there were none.
    pub arguments: String,
    pub qerl_version: String,
    /// When the first and the last artifact behind the figures were begun (RFC 3339).
    pub measured: Option<(String, String)>,
    /// Devices that training and evaluation ran on; more than one is flagged.
    pub devices: Vec<String>,
    /// The axis whose values are the rows.
    pub axis: String,
    pub over: Option<String>,
    /// The values of `over` that finished somewhere.
    pub over_labels: Vec<String>,
    pub baseline: Option<String>,
    /// Data sets in the order of the evaluations.
    pub datasets: Vec<String>,
    /// Gathered stage ids in the order of the file (`before`, `after`).
    pub stages: Vec<String>,
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
    pub settings: Vec<Setting>,
    /// Resolved settings that all rows share: path and value.
    pub shared: Vec<(String, String)>,
    pub failures: Vec<Failure>,
    pub warnings: Vec<String>,
    pub paper: Option<Paper>,
    pub examples: Vec<Example>,
    /// Rows from the highest to the lowest, per data set.
    pub ranking: Vec<Rank>,
    /// The questions whose verdict training changed, per row and data set.
    pub flips: Vec<Flips>,
    /// The stages behind the figures.
    pub graph: Graph,
    /// Every evaluation by itself, for the tables beside the report.
    #[serde(skip)]
    pub evaluations: Vec<PointFigure>,
    /// Every artifact behind the figures.
    pub provenance: Vec<Made>,
}

/// One evaluation of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PointFigure {
    pub row: String,
    pub stage: String,
    /// `seed=1,variant=x`; empty where there are no axes.
    pub point: String,
    pub dataset: String,
    pub questions: usize,
    pub samples: usize,
    pub accuracy: f64,
    pub low: f64,
    pub high: f64,
    pub truncated: f64,
    pub no_answer: f64,
    pub mean_tokens: f64,
    /// (question, correct samples, samples).
    pub answers: Vec<(String, usize, usize)>,
}

/// A row's place on one data set at the last stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rank {
    pub dataset: String,
    pub row: String,
    pub accuracy: f64,
    /// Accuracy at each point of the `over` axis: label and value.
    pub per_point: Vec<(String, f64)>,
    /// First row minus this one, paired, with its 95% interval; absent for the first and without common questions.
    pub behind: Option<(f64, f64, f64)>,
    /// The first row's lead exceeds the noise of the questions and, with several points, that of the points.
    pub told_apart: bool,
}

/// Questions whose every sample changed its verdict between the first and the last stage, at the first point.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flips {
    pub row: String,
    pub dataset: String,
    pub gained: Vec<String>,
    pub lost: Vec<String>,
}

/// One variant.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub label: String,
    /// Axis -> label, without the axis averaged over.
    pub point: BTreeMap<String, String>,
    /// The format of the base model's weights, where a stage of this pipeline decided it.
    pub format: Option<String>,
    /// The row that this one is compared with.
    pub baseline: Option<String>,
    /// Resolved differences from the baseline: `train.lr: 5e-6 -> 1e-5`.
    pub differences: Vec<String>,
    /// stage -> data set -> figures.
    pub cells: BTreeMap<String, BTreeMap<String, Cell>>,
    /// stage -> the paper's name for what was evaluated there (`NVFP4 LoRA+AQN`), where it has one.
    pub methods: BTreeMap<String, String>,
    /// Metric name -> its course over the steps.
    pub curves: BTreeMap<String, Vec<Point>>,
    pub cost: Cost,
    /// Error of the quantization, one per quantized tensor in the order of the model; empty for bf16.
    pub layer_errors: Vec<LayerError>,
    /// Gathered points of this row that failed or were skipped.
    pub failed: usize,
}

/// What rounding did to one tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerError {
    /// `model.layers.0.self_attn.q_proj`.
    pub layer: String,
    /// |W - Q(W)| / |W| (Frobenius).
    pub relative_frobenius: f64,
}

/// A metric at one step, over the points of the `over` axis. NaN is a gap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub step: f64,
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// One accuracy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// Mean pass@1 over the points, 0..1.
    pub accuracy: f64,
    /// 95% interval: over questions for one point; over points (Student's t) for several, but never narrower than
    /// that over questions.
    pub low: f64,
    pub high: f64,
    pub questions: usize,
    pub samples: usize,
    /// Points (seeds) behind the mean.
    pub points: usize,
    /// Sample standard deviation over the points, where there are several.
    pub deviation: Option<f64>,
    pub truncated: f64,
    pub no_answer: f64,
    pub mean_tokens: f64,
    /// k -> mean pass@k and maj@k over the points.
    pub pass_at: BTreeMap<usize, f64>,
    pub maj_at: BTreeMap<usize, f64>,
    /// Better than every other row in a paired test (its interval excludes 0).
    pub best: bool,
}

/// What a variant costs. Rates are medians over steps, times means over points.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Bytes of the base model's weights in its format.
    pub weight_bytes: Option<u64>,
    /// Relative Frobenius error of the quantization.
    pub quantization_error: Option<f64>,
    /// Highest memory/peak_gib.
    pub peak_gib: Option<f64>,
    pub rollout_tokens_per_second: Option<f64>,
    pub train_tokens_per_second: Option<f64>,
    pub seconds_per_step: Option<f64>,
    /// Wall time of the training stage.
    pub train_seconds: Option<f64>,
    /// Wall time of everything behind the row, each artifact once.
    pub all_seconds: Option<f64>,
    pub steps: Option<u64>,
    /// Mean seconds of a step, by phase: they add up to the mean step. Empty where the trainings did not record them.
    pub step_phases: Vec<(&'static str, f64)>,
    /// Kind of stage -> wall time of everything of that kind behind the row.
    pub phases: BTreeMap<&'static str, f64>,
}

/// A row at a gathered stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    pub row: String,
    pub stage: String,
}

/// Why two evaluations are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The same row before training.
    #[default]
    Start,
    /// The baseline's last stage.
    Baseline,
    /// A row from which exactly one factor differs.
    Factor,
}

/// Two evaluations on the same questions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    pub dataset: String,
    pub a: Side,
    pub b: Side,
    pub against: Against,
    /// What differs between the two, as `train.aqn`.
    pub factors: Vec<String>,
    /// accuracy(a) - accuracy(b) with a paired 95% bootstrap interval over questions.
    pub difference: f64,
    pub low: f64,
    pub high: f64,
    pub questions: usize,
    /// Questions that only a answers, and only b (by majority).
    pub gained: usize,
    pub lost: usize,
    pub p_value: f64,
    /// McNemar's exact test (one completion a question) rather than the paired bootstrap.
    pub exact: bool,
    /// The difference at each point of the `over` axis that both have, where there are several.
    pub per_point: Vec<f64>,
}

/// How a data set was evaluated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub dataset: String,
    pub stages: Vec<String>,
    pub questions: usize,
    pub samples: usize,
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: usize,
    pub max_tokens: usize,
    pub seeds: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    pub instance: String,
    pub reason: String,
}

/// A question with what was answered before and after training: one whose verdict changed, or the first of its data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    pub row: String,
    pub dataset: String,
    pub id: String,
    pub prompt: String,
    pub gold: String,
    pub before: String,
    pub after: String,
    /// Right before and after training.
    pub was_right: bool,
    pub is_right: bool,
}

/// Who made an artifact, where and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Made {
    /// `train@seed=1,variant=nvfp4-aqn`.
    pub instance: String,
    pub kind: &'static str,
    pub fingerprint: String,
    pub seed: Option<u64>,
    pub qerl_version: String,
    pub backend: Option<String>,
    pub host: String,
    pub device: String,
    pub started: String,
    pub wall_seconds: f64,
}
