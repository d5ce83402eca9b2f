//! Overlap of training problems with evaluation problems: equal texts (as a hold-out is made: layout does not count,
//! operators do) and shared 13-grams of words.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::data::normalise;

/// Words in a row that count as an overlap (Brown et al. 2020, appendix C).
pub const NGRAM: usize = 13;

/// How many evaluation problems the training set holds, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contamination {
    /// Evaluation problems.
    pub checked: usize,
    /// Training problems that they were compared with.
    pub trained: usize,
    /// Problems whose normalised text is also a training problem.
    pub exact: usize,
    /// Problems that share at least one 13-gram with a training problem (exact ones included).
    pub ngram: usize,
    /// Row numbers (from 0) of all of these.
    pub rows: Vec<usize>,
}

/// Lower-cased words: letters and digits only, everything else separates.
pub fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

fn digest(words: &[String]) -> u128 {
    let mut hash = blake3::Hasher::new();
    for word in words {
        hash.update(word.as_bytes());
        hash.update(b" ");
    }
    let bytes = hash.finalize();
    let mut half = [0; 16];
    half.copy_from_slice(&bytes.as_bytes()[..16]);
    u128::from_le_bytes(half)
}

/// The evaluation problems; training problems are shown to it one by one, so that a training set of any size passes.
#[derive(Clone, Debug, Default)]
pub struct Index {
    checked: usize,
    trained: usize,
    exact: HashMap<[u8; 16], Vec<usize>>,
    ngrams: HashMap<u128, Vec<usize>>,
    exact_rows: BTreeSet<usize>,
    rows: BTreeSet<usize>,
}

impl Index {
    pub fn new<'a>(evaluation: impl IntoIterator<Item = &'a str>) -> Self {
        let mut index = Self::default();
        for (row, problem) in evaluation.into_iter().enumerate() {
            index.checked += 1;
            let words = words(problem);
            if words.is_empty() {
                continue;
            }
            index.exact.entry(normalise::key(problem)).or_default().push(row);
            for gram in words.windows(NGRAM) {
                let rows = index.ngrams.entry(digest(gram)).or_default();
                if rows.last() != Some(&row) {
                    rows.push(row);
                }
            }
        }
        index
    }

    /// Compares with one training problem.
    pub fn see(&mut self, training: &str) {
        self.trained += 1;
        let words = words(training);
        if let Some(rows) = self.exact.get(&normalise::key(training)) {
            self.exact_rows.extend(rows);
            self.rows.extend(rows);
        }
        for gram in words.windows(NGRAM) {
            if let Some(rows) = self.ngrams.get(&digest(gram)) {
                self.rows.extend(rows);
            }
        }
    }

    pub fn found(&self) -> Contamination {
        Contamination {
            checked: self.checked,
            trained: self.trained,
            exact: self.exact_rows.len(),
            ngram: self.rows.len(),
            rows: self.rows.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_rewrapped_copies_and_shared_passages_only() {
        let mut index = Index::new([
            "if  $x+y=7$ what is X",
            "Bob says: a farmer has three red hens and five white geese and sells two of them. Why?",
            "A farmer has three red hens and five cows.",
            "",
            "If x - y = 7, what is x?",
        ]);
        for training in [
            "If x + y = 7, what is x?",
            "A farmer has three red hens and five white geese and sells two of them at the market on Monday.",
            "?!",
        ] {
            index.see(training);
        }
        assert_eq!(
            index.found(),
            Contamination { checked: 5, trained: 3, exact: 1, ngram: 2, rows: vec![0, 1] },
            "fewer words in common, nothing, and another operator are clean"
        );
    }
}
