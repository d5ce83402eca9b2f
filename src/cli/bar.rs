//! Progress of a single step on standard error.

use indicatif::{ProgressBar, ProgressStyle};

use crate::control::Progress;

/// A bar (hidden where standard error is no terminal); lines stay above it.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}% eta {eta} {msg}");
        Self(ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }
}

impl Progress for Bar {
    fn total(&self, total: u64, _: &'static str) {
        self.0.set_length(total);
    }

    fn at(&self, done: u64, note: &str) {
        self.0.set_position(done);
        self.0.set_message(note.to_owned());
    }

    fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
