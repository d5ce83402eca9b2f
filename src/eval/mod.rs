//! Evaluation: sampling records, pass@k, maj@k, intervals and paired tests. The stage and the command line lay on
//! models and data.

pub mod compare;
pub mod contamination;
pub mod files;
pub mod gsm8k;
pub mod record;
pub mod session;
pub mod shots;
pub mod stats;
pub mod summary;
pub mod table;

pub use compare::compare;
pub use record::{Generated, Record, Settings, summarise};
pub use summary::{Gsm8kScores, Interval, SetSummary, Summary};
