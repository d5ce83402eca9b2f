//! Evaluation: sampling records, pass@k, maj@k, intervals and paired tests. Pure figures; files are the stage's.

pub mod contamination;
pub mod summary;

pub use summary::{Gsm8kScores, Interval, SetSummary, Summary};
