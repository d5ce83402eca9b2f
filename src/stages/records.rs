//! The records of an evaluation, read back for paired comparisons.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Result;
use crate::eval;

/// What a question was.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Question {
    pub prompt: String,
    pub gold: String,
}

/// Question id -> its samples' verdicts, with the first sample's text.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(BTreeMap<String, Answer>);

#[derive(Clone, Debug, Default)]
struct Answer {
    question: Question,
    correct: usize,
    samples: usize,
    text: String,
}

impl Answers {
    /// Puts the samples of further points (seeds) to each question's.
    pub fn extend(&mut self, other: Self) {
        for (id, answer) in other.0 {
            let own = self.0.entry(id).or_default();
            if own.samples == 0 {
                *own = answer;
            } else {
                own.correct += answer.correct;
                own.samples += answer.samples;
            }
        }
    }

    /// Per question that both have: the share of correct samples in each.
    pub fn paired(&self, other: &Self) -> Vec<(f64, f64)> {
        let share = |a: &Answer| a.correct as f64 / a.samples.max(1) as f64;
        self.0.iter().filter_map(|(id, a)| Some((share(a), share(other.0.get(id)?)))).collect()
    }

    /// Questions answered here and not at all in `before`: (question, text before, text here).
    pub fn gained<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Question, &'a str, &'a str)> {
        self.0.iter().filter_map(|(id, a)| {
            let b = before.0.get(id)?;
            let gained = a.correct == a.samples && a.samples > 0 && b.correct == 0;
            gained.then_some((&a.question, b.text.as_str(), a.text.as_str()))
        })
    }
}

/// The answers of one data set in the evaluation under `dir`.
pub(super) fn answers(dir: &Path, dataset: &str) -> Result<Answers> {
    let mut out = Answers::default();
    for record in eval::read_records(dir, dataset)? {
        let answer = out.0.entry(record.question.clone()).or_default();
        if answer.samples == 0 {
            answer.question = Question { prompt: record.prompt, gold: record.gold };
            answer.text = record.completion;
        }
        answer.samples += 1;
        answer.correct += usize::from(record.correct);
    }
    Ok(out)
}
