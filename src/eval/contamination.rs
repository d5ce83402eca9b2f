//! Overlap of training problems with evaluation problems: normalised exact text and shared 13-grams of words.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Words in a row that count as an overlap (Brown et al. 2020, appendix C).
pub const NGRAM: usize = 13;

/// How many evaluation problems the training set has seen, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contamination {
    pub checked: usize,
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

/// Index of a training set; 16 bytes per 13-gram.
#[derive(Clone, Debug, Default)]
pub struct Index {
    exact: HashSet<u128>,
    ngrams: HashSet<u128>,
}

impl Index {
    pub fn add(&mut self, problem: &str) {
        let words = words(problem);
        self.exact.insert(digest(&words));
        self.ngrams.extend(words.windows(NGRAM).map(digest));
    }

    pub fn new<'a>(problems: impl IntoIterator<Item = &'a str>) -> Self {
        let mut index = Self::default();
        problems.into_iter().for_each(|p| index.add(p));
        index
    }

    /// Checks evaluation problems against the index.
    pub fn check<'a>(&self, problems: impl IntoIterator<Item = &'a str>) -> Contamination {
        let mut found = Contamination::default();
        for (row, problem) in problems.into_iter().enumerate() {
            let words = words(problem);
            let exact = !words.is_empty() && self.exact.contains(&digest(&words));
            let ngram = words.windows(NGRAM).any(|w| self.ngrams.contains(&digest(w)));
            found.checked += 1;
            found.exact += usize::from(exact);
            found.ngram += usize::from(exact || ngram);
            if exact || ngram {
                found.rows.push(row);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_rewrapped_copies_and_shared_passages_only() {
        let train = [
            "If x + y = 7, what is x?",
            "A farmer has three red hens and five white geese and sells two of them at the market on Monday.",
        ];
        let index = Index::new(train);
        let found = index.check([
            "if  $x+y=7$ what is X",
            "Bob says: a farmer has three red hens and five white geese and sells two of them. Why?",
            "A farmer has three red hens and five cows.",
        ]);
        assert_eq!(found, Contamination { checked: 3, exact: 1, ngram: 2, rows: vec![0, 1] });
    }
}
