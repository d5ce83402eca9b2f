//! What happens during a run, for whoever shows it.

use serde::Serialize;

use crate::control::Progress;

/// One thing that happened. As JSON: `{"event": "started", ...}`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The first event of every run.
    Planned {
        pipeline: String,
        stages: usize,
        cached: usize,
        run: usize,
        same: usize,
    },
    /// A revision was pinned in qerl.lock.
    Pinned {
        request: String,
        commit: String,
    },
    Started {
        name: String,
        kind: &'static str,
        fingerprint: String,
        reason: String,
        threads: usize,
    },
    Progress {
        name: String,
        done: u64,
        total: Option<u64>,
        unit: &'static str,
        note: String,
    },
    Said {
        name: Option<String>,
        line: String,
    },
    /// The figures of a training step.
    Metrics {
        name: String,
        figures: serde_json::Map<String, serde_json::Value>,
    },
    /// Another process makes the same artifact.
    Waiting {
        name: String,
        holder: String,
    },
    Cached {
        name: String,
        fingerprint: String,
    },
    Finished {
        name: String,
        fingerprint: String,
        seconds: f64,
        bytes: u64,
    },
    Failed {
        name: String,
        error: String,
        hint: Option<String>,
    },
    Skipped {
        name: String,
        why: String,
    },
    /// Stopped on request; its checkpoint is kept.
    Stopped {
        name: String,
    },
    /// How the run ended; only the places of reports follow.
    Summary {
        ran: usize,
        cached: usize,
        failed: usize,
        skipped: usize,
        stopped: usize,
        seconds: f64,
    },
    /// Where a finished report can be read.
    Report {
        path: std::path::PathBuf,
    },
}

/// Hears events from several threads at once.
pub trait Listener: Sync {
    fn hear(&self, event: &Event);
}

/// For those who do not listen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deaf;

impl Listener for Deaf {
    fn hear(&self, _: &Event) {}
}

/// A stage's progress, passed on under its name with secrets blacked out.
pub(super) struct JobProgress<'a> {
    pub name: String,
    pub listener: &'a dyn Listener,
    pub secrets: Vec<String>,
    pub state: std::sync::Mutex<(Option<u64>, &'static str)>,
}

impl JobProgress<'_> {
    fn state(&self) -> std::sync::MutexGuard<'_, (Option<u64>, &'static str)> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Progress for JobProgress<'_> {
    fn total(&self, total: u64, unit: &'static str) {
        *self.state() = (Some(total), unit);
    }

    fn at(&self, done: u64, note: &str) {
        let (total, unit) = *self.state();
        let note = scrub(note, &self.secrets);
        self.listener.hear(&Event::Progress { name: self.name.clone(), done, total, unit, note });
    }

    fn say(&self, line: &str) {
        let line = scrub(line, &self.secrets);
        self.listener.hear(&Event::Said { name: Some(self.name.clone()), line });
    }

    // Numbers under fixed names and those of rewards: nothing that could hold a secret.
    fn figures(&self, figures: &serde_json::Map<String, serde_json::Value>) {
        self.listener.hear(&Event::Metrics { name: self.name.clone(), figures: figures.clone() });
    }
}

/// `text` without the values of secrets.
pub(super) fn scrub(text: &str, secrets: &[String]) -> String {
    // Values of one or two characters would black out half of every text and protect nothing.
    secrets.iter().filter(|s| s.len() > 2).fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}
