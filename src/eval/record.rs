//! One graded completion, and the summary of many.

use std::collections::BTreeMap;

use super::gsm8k;
use super::stats::{self, float};
use super::summary::{Gsm8kScores, Interval, SetSummary};
use crate::data::Problem;
use crate::math::{self, Gold, Verdict};
use crate::{Error, Result};

/// A row of `records.parquet`.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    pub data: String,
    /// The problem's id within its set.
    pub id: String,
    /// The problem's text, before any template.
    pub prompt: String,
    /// 0..samples.
    pub sample: usize,
    pub gold: String,
    pub completion: String,
    pub extracted: Option<String>,
    pub verdict: Verdict,
    /// Generated tokens.
    pub tokens: usize,
    /// Ended by `max_new_tokens` or the context, not by an EOS token.
    pub truncated: bool,
}

impl Record {
    /// Grades a completion; `gold` is the problem's answer, read once for all of its completions.
    pub fn graded(data: &str, problem: &Problem, sample: usize, gold: &Gold, completion: Generated) -> Self {
        let grade = gold.grade(&completion.text);
        Self {
            data: data.to_owned(),
            id: problem.id.clone(),
            prompt: problem.prompt.clone(),
            sample,
            gold: problem.answer.clone(),
            completion: completion.text,
            extracted: grade.extracted,
            verdict: grade.verdict,
            tokens: completion.tokens,
            truncated: completion.truncated,
        }
    }
}

/// What a model said, before it is graded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    pub text: String,
    pub tokens: usize,
    pub truncated: bool,
}

/// How the completions were drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub samples: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub max_new_tokens: usize,
    pub seed: u64,
    /// The k of pass@k and maj@k.
    pub k: Vec<usize>,
}

/// Completions of one question, in sample order.
struct Question<'a> {
    records: Vec<&'a Record>,
}

/// Figures of one data set.
///
/// # Errors
/// A k above the number of completions, or questions with different numbers of them.
pub fn summarise(data: &str, records: &[Record], settings: &Settings, is_gsm8k: bool) -> Result<SetSummary> {
    let questions = by_question(records);
    if let Some(odd) = questions.values().find(|q| q.records.len() != settings.samples) {
        return Err(Error::failed(format!(
            "question {} of {data} has {} completions instead of {}",
            odd.records[0].id,
            odd.records.len(),
            settings.samples
        )));
    }
    let n = questions.len();
    let right = |q: &Question<'_>| q.records.iter().filter(|r| r.verdict == Verdict::Correct).count();
    let shares: Vec<f64> = questions.values().map(|q| float(right(q)) / float(settings.samples)).collect();
    let accuracy = stats::mean(&shares);
    let interval = if settings.samples == 1 {
        let (low, high) = stats::wilson(questions.values().map(right).sum(), n);
        Interval { low, high, method: "wilson".to_owned() }
    } else {
        let (low, high) = stats::bootstrap(&shares, settings.seed);
        Interval { low, high, method: "bootstrap".to_owned() }
    };
    let mut pass_at = BTreeMap::new();
    let mut maj_at = BTreeMap::new();
    for &k in &settings.k {
        let mut passes = Vec::with_capacity(n);
        let mut votes = Vec::with_capacity(n);
        for question in questions.values() {
            passes.push(stats::pass_at(settings.samples, right(question), k)?);
            votes.push(f64::from(u8::from(vote(&question.records[..k]))));
        }
        pass_at.insert(k, stats::mean(&passes));
        maj_at.insert(k, stats::mean(&votes));
    }
    let share = |test: &dyn Fn(&Record) -> bool| {
        if records.is_empty() { 0.0 } else { float(records.iter().filter(|r| test(r)).count()) / float(records.len()) }
    };
    let gsm8k = is_gsm8k.then(|| Gsm8kScores {
        strict: share(&|r| gsm8k::matches(&r.gold, gsm8k::strict(&r.completion))),
        flexible: share(&|r| gsm8k::matches(&r.gold, gsm8k::flexible(&r.completion))),
    });
    let tokens: Vec<f64> = records.iter().map(|r| float(r.tokens)).collect();
    Ok(SetSummary {
        data: data.to_owned(),
        n,
        samples: settings.samples,
        accuracy,
        interval,
        standard_error: stats::clustered_error(&shares),
        pass_at,
        maj_at,
        truncated: share(&|r| r.truncated),
        no_answer: share(&|r| r.verdict == Verdict::NoAnswer),
        gold_unparseable: questions.values().filter(|q| q.records[0].verdict == Verdict::GoldUnparseable).count(),
        mean_tokens: stats::mean(&tokens),
        temperature: settings.temperature,
        top_p: settings.top_p,
        top_k: settings.top_k,
        max_new_tokens: settings.max_new_tokens,
        seed: settings.seed,
        gsm8k,
        contamination: None,
    })
}

/// Questions in the order of their first record.
fn by_question(records: &[Record]) -> BTreeMap<usize, Question<'_>> {
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    let mut out: BTreeMap<usize, Question<'_>> = BTreeMap::new();
    for (row, record) in records.iter().enumerate() {
        let at = *first.entry(&record.id).or_insert(row);
        out.entry(at).or_insert_with(|| Question { records: Vec::new() }).records.push(record);
    }
    for question in out.values_mut() {
        question.records.sort_by_key(|r| r.sample);
    }
    out
}

/// Is the answer that most of these completions share correct?
fn vote(records: &[&Record]) -> bool {
    let classes: Vec<Option<String>> =
        records.iter().map(|r| r.extracted.as_deref().map(math::answer_class)).collect();
    let Some(winner) = stats::majority(classes.iter().map(Option::as_deref)) else { return false };
    // Equal classes have equal verdicts, but for equalities that only the grader's probes see: the first decides.
    records
        .iter()
        .zip(&classes)
        .find(|(_, class)| class.as_deref() == Some(winner))
        .is_some_and(|(record, _)| record.verdict == Verdict::Correct)
}
