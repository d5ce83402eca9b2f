//! The records of an evaluation, read back for paired comparisons.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Result;
use crate::eval::{Record, files};
use crate::math::Verdict;

/// Data set -> question id -> its samples.
pub(super) type Answers = BTreeMap<String, BTreeMap<String, Answer>>;

/// The samples of one question; the first one's text stands for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub gold: String,
    pub prompt: String,
    pub text: String,
    pub correct: usize,
    pub samples: usize,
}

impl Answer {
    /// Share of correct samples.
    pub fn share(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }
}

/// All answers of the evaluation under `dir`. Texts are shortened to what an example shows.
pub(super) fn answers(dir: &Path) -> Result<Answers> {
    let mut out = Answers::new();
    for record in files::read(dir)? {
        add(&mut out, record);
    }
    Ok(out)
}

fn add(out: &mut Answers, record: Record) {
    let answer = out.entry(record.data).or_default().entry(record.id).or_default();
    // The order of the rows must not decide which text is shown.
    if answer.samples == 0 || record.sample == 0 {
        answer.gold = record.gold;
        answer.prompt = shorten(&record.prompt);
        answer.text = shorten(&record.completion);
    }
    answer.samples += 1;
    answer.correct += usize::from(record.verdict == Verdict::Correct);
}

/// The head and the tail, where the answer stands.
fn shorten(text: &str) -> String {
    const HEAD: usize = 420;
    const TAIL: usize = 380;
    let count = text.chars().count();
    if count <= HEAD + TAIL {
        return text.to_owned();
    }
    let head: String = text.chars().take(HEAD).collect();
    let tail: String = text.chars().skip(count - TAIL).collect();
    format!("{head} […] {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_their_end() {
        let text = format!("{}{}", "é".repeat(2000), "the answer is 4");
        let short = shorten(&text);
        assert!(short.chars().count() < 810 && short.ends_with("the answer is 4") && short.starts_with('é'));
        assert_eq!(shorten("x"), "x");
    }
}
