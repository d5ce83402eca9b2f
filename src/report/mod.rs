//! Report: gathered evaluations and training curves -> one self-contained HTML file and one Markdown file.
//!
//! [`Data`] is what a report says, without any layout; `render` turns it into the two files, `paper` holds the
//! published figures, `svg` the plots.

mod paper;
mod render;
mod svg;

use std::collections::BTreeMap;

use serde::Serialize;

pub use paper::{Paper, TABLES as PAPER_TABLES};
pub use render::{html, markdown};

/// Everything a report shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Data {
    pub title: String,
    pub pipeline: String,
    pub qerl_version: String,
    /// RFC 3339.
    pub created: String,
    /// Devices that training and evaluation ran on; more than one is flagged.
    pub devices: Vec<String>,
    /// The axis whose values are the rows.
    pub axis: String,
    pub over: Option<String>,
    pub baseline: Option<String>,
    /// Data sets in the order of the evaluations.
    pub datasets: Vec<String>,
    /// Gathered stage ids in the order of the file (`before`, `after`).
    pub stages: Vec<String>,
    pub rows: Vec<Row>,
    /// Paired comparisons of the last gathered stage against the baseline's, and of each row against its start.
    pub comparisons: Vec<Comparison>,
    /// Data set -> how it was evaluated (n, samples, temperature, ...), one line.
    pub settings: Vec<Setting>,
    pub failures: Vec<Failure>,
    pub warnings: Vec<String>,
    pub paper: Option<Paper>,
    pub examples: Vec<Example>,
    /// Artifact fingerprints behind the figures: instance name -> fingerprint.
    pub artifacts: Vec<(String, String)>,
}

/// One variant.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub label: String,
    /// Resolved differences from the baseline: `train.lr: 5e-6 -> 1e-5`.
    pub differences: Vec<String>,
    /// stage -> data set -> figures.
    pub cells: BTreeMap<String, BTreeMap<String, Cell>>,
    /// Metric name -> (step, mean over the `over` axis).
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
    pub cost: Cost,
}

/// One accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// Mean pass@1 over the points, 0..1.
    pub accuracy: f64,
    /// 95% interval: over questions for one point, over points (t distribution) for several.
    pub low: f64,
    pub high: f64,
    pub questions: usize,
    pub samples: usize,
    /// Points (seeds) behind the mean.
    pub points: usize,
    pub truncated: f64,
    pub no_answer: f64,
    pub mean_tokens: f64,
}

/// What a variant costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
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
    pub train_seconds: Option<f64>,
    pub steps: Option<u64>,
}

/// Two evaluations on the same questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub dataset: String,
    /// `nvfp4-aqn after` and `bf16-lora after`.
    pub a: String,
    pub b: String,
    /// accuracy(a) - accuracy(b) with a paired bootstrap interval over questions.
    pub difference: f64,
    pub low: f64,
    pub high: f64,
    pub questions: usize,
    /// McNemar's exact test; absent with several samples a question.
    pub p_value: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub dataset: String,
    pub questions: usize,
    pub samples: usize,
    pub temperature: f64,
    pub top_p: f64,
    pub max_tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    pub instance: String,
    pub reason: String,
}

/// A problem that one variant got right after training and not before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    pub row: String,
    pub dataset: String,
    pub prompt: String,
    pub gold: String,
    pub before: String,
    pub after: String,
}
