//! Two evaluations of the same questions: paired tests, and the questions whose verdict flipped.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Record;
use super::stats::{self, float};
use crate::math::Verdict;
use crate::{Error, Result};

/// A question that only one of two evaluations answers (by the majority of its completions).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    pub id: String,
    pub prompt: String,
    pub gold: String,
    /// Accuracy of each on this question.
    pub a: f64,
    pub b: f64,
    /// What the first completion of each says.
    pub answer_a: Option<String>,
    pub answer_b: Option<String>,
}

/// Two evaluations on one data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetComparison {
    pub data: String,
    /// Mean accuracy of each over the questions that both have.
    pub a: f64,
    pub b: f64,
    pub paired: stats::Paired,
    /// Questions that only one of the two has, or whose golds differ; left out.
    pub unmatched: usize,
    /// In the order of the first evaluation.
    pub flips: Vec<Flip>,
}

struct Question<'a> {
    first: &'a Record,
    right: usize,
    all: usize,
}

impl Question<'_> {
    fn accuracy(&self) -> f64 {
        float(self.right) / float(self.all)
    }

    fn answered(&self) -> bool {
        2 * self.right > self.all
    }
}

/// Questions of one evaluation: data set -> (ids in order, id -> question).
type Sets<'a> = BTreeMap<&'a str, (Vec<&'a str>, BTreeMap<&'a str, Question<'a>>)>;

fn sets(records: &[Record]) -> Sets<'_> {
    let mut out = Sets::new();
    for record in records {
        let (order, questions) = out.entry(&record.data).or_default();
        let question = questions.entry(&record.id).or_insert_with(|| {
            order.push(&record.id);
            Question { first: record, right: 0, all: 0 }
        });
        question.right += usize::from(record.verdict == Verdict::Correct);
        question.all += 1;
    }
    out
}

/// Compares question by question, on the data sets that both have.
///
/// # Errors
/// Without a single question in common.
pub fn compare(a: &[Record], b: &[Record], seed: u64) -> Result<Vec<SetComparison>> {
    let (a, b) = (sets(a), sets(b));
    let mut out = Vec::new();
    for (data, (order, of_a)) in &a {
        let Some((_, of_b)) = b.get(data) else { continue };
        let (mut left, mut right, mut flips) = (Vec::new(), Vec::new(), Vec::new());
        for id in order {
            let x = &of_a[id];
            let Some(y) = of_b.get(id).filter(|y| y.first.gold == x.first.gold) else { continue };
            left.push(x.accuracy());
            right.push(y.accuracy());
            if x.answered() != y.answered() {
                flips.push(Flip {
                    id: (*id).to_owned(),
                    prompt: x.first.prompt.clone(),
                    gold: x.first.gold.clone(),
                    a: x.accuracy(),
                    b: y.accuracy(),
                    answer_a: x.first.extracted.clone(),
                    answer_b: y.first.extracted.clone(),
                });
            }
        }
        if left.is_empty() {
            continue;
        }
        out.push(SetComparison {
            data: (*data).to_owned(),
            a: stats::mean(&left),
            b: stats::mean(&right),
            paired: stats::paired(&left, &right, seed)?,
            unmatched: of_a.len() + of_b.len() - 2 * left.len(),
            flips,
        });
    }
    if out.is_empty() {
        return Err(Error::input("the two evaluations have no question in common")
            .hint("compare evaluations of the same data sets"));
    }
    Ok(out)
}
