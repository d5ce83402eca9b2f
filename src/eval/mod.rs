//! Evaluation: sampling records, pass@k, maj@k, intervals and paired tests. Pure figures; files are the stage's.

pub mod contamination;
pub mod files;
pub mod gsm8k;
pub mod record;
pub mod session;
pub mod stats;
pub mod summary;

pub use record::{Generated, Record, Settings, compare, summarise};
pub use summary::{Gsm8kScores, Interval, SetSummary, Summary};
