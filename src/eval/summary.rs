//! `summary.json`: what an evaluation found, per data set; reports and `--compare` read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole of `summary.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// In the order of the stage's `data`.
    pub sets: Vec<SetSummary>,
}

/// One data set. Shares are in 0..=1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetSummary {
    /// The data set's name in the pipeline (`gsm8k`, `math.holdout`).
    pub data: String,
    /// Questions.
    pub n: usize,
    /// Completions per question.
    pub samples: usize,
    /// pass@1: mean over questions of (correct completions / completions).
    pub accuracy: f64,
    pub interval: Interval,
    /// Standard error of `accuracy`, clustered by question.
    pub standard_error: f64,
    /// k -> unbiased pass@k (Chen et al. 2021).
    pub pass_at: BTreeMap<usize, f64>,
    /// k -> accuracy of the majority vote among the first k completions.
    pub maj_at: BTreeMap<usize, f64>,
    /// Share of completions that hit `max_new_tokens`.
    pub truncated: f64,
    /// Share of completions without an extractable answer.
    pub no_answer: f64,
    /// Questions whose gold is empty or unreadable: counted as wrong.
    pub gold_unparseable: usize,
    pub mean_tokens: f64,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub max_new_tokens: usize,
    pub seed: u64,
    /// lm-eval's scores, for sets whose golds come from GSM8K.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gsm8k: Option<Gsm8kScores>,
    /// Overlap with the training data, where that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contamination: Option<super::contamination::Contamination>,
}

/// A 95% interval and how it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// `wilson` (one completion per question) or `bootstrap` (over questions, fixed seed).
    pub method: String,
}

/// lm-evaluation-harness's exact-match scores, so that numbers can be set beside published ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gsm8kScores {
    pub strict: f64,
    pub flexible: f64,
}
