//! What long work gets from its caller: a way to be stopped and a place to say how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// A flag that Ctrl-C (or a failing sibling) sets; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// `Err(cancelled)` once the flag is set: call it between units of work.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// Where long work reports; implementations draw bars on a terminal or print plain lines.
pub trait Progress: Send + Sync {
    /// The total of the work in `unit` (`steps`, `bytes`, `problems`, ...) is known or has changed.
    fn total(&self, total: u64, unit: &'static str);
    /// `done` units are finished; `note` is a short state such as `reward 0.41`.
    fn at(&self, done: u64, note: &str);
    /// One line for the user that must not be lost (a warning, a decision).
    fn say(&self, line: &str);
    /// The figures of a finished training step, under their names in metrics.jsonl.
    fn figures(&self, _figures: &serde_json::Map<String, serde_json::Value>) {}
}

/// Progress for callers who do not watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn total(&self, _: u64, _: &'static str) {}
    fn at(&self, _: u64, _: &str) {}
    fn say(&self, _: &str) {}
}
