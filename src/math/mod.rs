//! The grader: extraction of an answer from a completion, exact values, equivalence by type.

/// What the grader says of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Correct,
    Wrong,
    /// No answer could be extracted.
    NoAnswer,
    /// The gold itself is empty or cannot be read; never rewarded.
    GoldUnparseable,
}

/// A verdict with what it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grade {
    pub verdict: Verdict,
    /// The extracted answer, as text.
    pub extracted: Option<String>,
}
