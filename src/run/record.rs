//! The record of a run, `.qerl/runs/<id>/`: run.json (what it was and how every instance ended), events.jsonl (what
//! happened, written as it happens) and kept/ (metrics of stages that failed).
//!
//! A record only tells; nothing is decided by it. So a disk that cannot take it stops no run.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::events::{Event, Listener};
use super::{Outcome, Summary};
use crate::pipeline::Graph;
use crate::stages::Kind;
use crate::store::{Lock, Store, file_name, is_held, remove_tree, write_atomic};
use crate::{Error, Result};

/// What was changed and chosen from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overrides {
    pub sets: Vec<String>,
    pub only: Vec<String>,
    pub profile: Option<String>,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Done,
    Failed,
    Stopped,
    /// It says that it is running, but its process is gone.
    Killed,
}

impl RunState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
        }
    }
}

/// How an instance ended in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceRecord {
    pub name: String,
    pub kind: Kind,
    /// `ran`, `cached`, `failed`, `skipped` or `stopped`.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// As the pipeline file gives it: secrets stay symbolic.
    pub config: Value,
}

/// run.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub id: String,
    pub pipeline: String,
    /// The pipeline file's name.
    pub file: String,
    pub overrides: Overrides,
    pub qerl_version: String,
    pub host: String,
    pub pid: u32,
    /// RFC 3339.
    pub started: String,
    pub state: RunState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In the graph's order; empty while it runs.
    pub instances: Vec<InstanceRecord>,
}

const RUN: &str = "run.json";
const EVENTS: &str = "events.jsonl";
const LOCK: &str = "lock";
const KEPT: &str = "kept";
/// Larger files of a failed stage are checkpoints, which stay in its work folder.
const MAX_KEPT: u64 = 64 << 20;

fn folder(store: &Store) -> PathBuf {
    store.root.join("runs")
}

/// Passes events on and writes them down.
pub(super) struct Journal<'a> {
    listener: &'a dyn Listener,
    store: &'a Store,
    state: Mutex<State>,
}

struct State {
    /// None where the record cannot be written.
    open: Option<Open>,
    /// Instance -> the fingerprint under which it started.
    started: HashMap<String, String>,
}

struct Open {
    dir: PathBuf,
    events: File,
    record: RunRecord,
    _lock: Lock,
}

impl<'a> Journal<'a> {
    pub fn begin(store: &'a Store, graph: &Graph, overrides: &Overrides, listener: &'a dyn Listener) -> Self {
        let open = match Open::new(store, graph, overrides) {
            Ok(open) => Some(open),
            Err(error) => {
                let line = format!("this run leaves no record: {error}");
                listener.hear(&Event::Said { name: None, line });
                None
            }
        };
        Self { listener, store, state: Mutex::new(State { open, started: HashMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes how the run ended.
    pub fn end(&self, graph: &Graph, result: &Result<Summary>) {
        let mut state = self.state();
        let State { open: Some(open), started } = &mut *state else { return };
        let record = &mut open.record;
        let error = match result {
            Ok(summary) => {
                record.seconds = Some(summary.seconds);
                record.instances = instances(graph, summary, started);
                summary.error.as_ref()
            }
            Err(error) => Some(error),
        };
        record.error = error.map(ToString::to_string);
        record.state = match error {
            None => RunState::Done,
            Some(error) if error.kind() == crate::error::Kind::Cancelled => RunState::Stopped,
            Some(_) => RunState::Failed,
        };
        if let Err(error) = write(&open.dir, record) {
            let line = format!("the record of this run is not complete: {error}");
            self.listener.hear(&Event::Said { name: None, line });
        }
    }
}

impl Listener for Journal<'_> {
    fn hear(&self, event: &Event) {
        self.listener.hear(event);
        if matches!(event, Event::Progress { .. }) {
            return;
        }
        let mut state = self.state();
        if let Event::Started { name, fingerprint, .. } = event {
            state.started.insert(name.clone(), fingerprint.clone());
        }
        let failed = match event {
            Event::Failed { name, .. } => state.started.get(name).map(|f| (name, self.store.work(f))),
            _ => None,
        };
        let Some(open) = &mut state.open else { return };
        // Whoever reads it later counts what is there; a full disk is told by the stage that hits it.
        if let Ok(mut line) = serde_json::to_vec(event) {
            line.push(b'\n');
            let _ = open.events.write_all(&line);
        }
        if let Some((name, work)) = failed {
            let _ = keep(&work, &open.dir.join(KEPT).join(file_name(name)));
        }
    }
}

impl Open {
    fn new(store: &Store, graph: &Graph, overrides: &Overrides) -> Result<Self> {
        let now = jiff::Timestamp::now();
        let runs = folder(store);
        std::fs::create_dir_all(&runs).map_err(|e| Error::io("create", &runs, e))?;
        let day: String = now.to_string().chars().filter(char::is_ascii_digit).take(14).collect();
        let mut n = 0u32;
        // The clock may stand still or go back: the folder decides whose id it is.
        let (id, dir) = loop {
            let salt =
                blake3::hash(format!("{now} {} {} {n}", std::process::id(), crate::store::host_name()).as_bytes());
            let id = format!("{}-{}-{}", &day[..8], &day[8..], &salt.to_hex()[..4]);
            let dir = runs.join(&id);
            match std::fs::create_dir(&dir) {
                Ok(()) => break (id, dir),
                Err(e) if e.kind() == ErrorKind::AlreadyExists && n < 10_000 => n += 1,
                Err(e) => return Err(Error::io("create", &dir, e)),
            }
        };
        let lock = Lock::try_acquire(&dir.join(LOCK), "run")?
            .ok_or_else(|| Error::failed(format!("{} is locked by another process", dir.display())))?;
        let path = dir.join(EVENTS);
        let events =
            OpenOptions::new().create(true).append(true).open(&path).map_err(|e| Error::io("create", &path, e))?;
        let record = RunRecord {
            id,
            pipeline: graph.name.clone(),
            file: graph.file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            overrides: overrides.clone(),
            qerl_version: env!("CARGO_PKG_VERSION").to_owned(),
            host: crate::store::host_name(),
            pid: std::process::id(),
            started: now.to_string(),
            state: RunState::Running,
            seconds: None,
            error: None,
            instances: Vec::new(),
        };
        write(&dir, &record)?;
        Ok(Self { dir, events, record, _lock: lock })
    }
}

fn write(dir: &Path, record: &RunRecord) -> Result<()> {
    let text = serde_json::to_vec_pretty(record)
        .map_err(|e| Error::failed("cannot write the record of a run").caused_by(e))?;
    write_atomic(&dir.join(RUN), &text)
}

fn instances(graph: &Graph, summary: &Summary, started: &HashMap<String, String>) -> Vec<InstanceRecord> {
    let by_name: HashMap<String, &Value> = graph.instances.iter().map(|i| (i.name(), &i.config)).collect();
    let rows = summary.outcomes.iter().map(|(name, kind, outcome)| {
        let (outcome, fingerprint, why) = match outcome {
            Outcome::Ran(artifact) => ("ran", Some(artifact.meta.fingerprint.clone()), None),
            Outcome::Cached(artifact) => ("cached", Some(artifact.meta.fingerprint.clone()), None),
            Outcome::Failed(why) => ("failed", started.get(name).cloned(), Some(why.clone())),
            Outcome::Skipped(why) => ("skipped", None, Some(why.clone())),
            Outcome::Stopped => ("stopped", started.get(name).cloned(), None),
        };
        InstanceRecord {
            name: name.clone(),
            kind: *kind,
            outcome: outcome.to_owned(),
            fingerprint,
            why,
            config: by_name.get(name).map_or(Value::Null, |config| (*config).clone()),
        }
    });
    rows.collect()
}

/// Copies the small text files that a failed stage left in its work folder.
fn keep(work: &Path, to: &Path) -> std::io::Result<()> {
    for item in std::fs::read_dir(work)? {
        let item = item?;
        let path = item.path();
        let wanted =
            path.extension().is_some_and(|e| ["jsonl", "json", "log", "txt", "md", "html"].iter().any(|w| e == *w));
        let meta = item.metadata()?;
        if wanted && meta.is_file() && meta.len() <= MAX_KEPT {
            std::fs::create_dir_all(to)?;
            std::fs::copy(&path, to.join(item.file_name()))?;
        }
    }
    Ok(())
}

/// Every readable record, oldest first.
///
/// # Errors
/// When the folder of records cannot be read.
pub fn runs(store: &Store) -> Result<Vec<RunRecord>> {
    let place = folder(store);
    let entries = match std::fs::read_dir(&place) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("read", &place, e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("read", &place, e))?;
        let Ok(text) = std::fs::read(entry.path().join(RUN)) else { continue };
        let Ok(mut record) = serde_json::from_slice::<RunRecord>(&text) else { continue };
        // The folder's name is what finds it again.
        record.id = entry.file_name().to_string_lossy().into_owned();
        if record.state == RunState::Running && !is_held(&entry.path().join(LOCK)) {
            record.state = RunState::Killed;
        }
        found.push(record);
    }
    found.sort_by(|a, b| (&a.started, &a.id).cmp(&(&b.started, &b.id)));
    Ok(found)
}

/// The run that `name` means: an id, the beginning of one, `last`, or `last~N` for the N-th before it.
pub fn find_run(store: &Store, name: &str) -> Result<RunRecord> {
    let mut all = runs(store)?;
    let hint = "`qerl runs ls` lists them; `last` and `last~1` are the newest ones";
    if let Some(back) = name.strip_prefix("last") {
        let back = match back.strip_prefix('~') {
            None if back.is_empty() => Some(0),
            None => None,
            Some(n) => n.parse::<usize>().ok(),
        };
        let back = back.ok_or_else(|| Error::usage(format!("`{name}` is no run")).hint(hint))?;
        let at = all.len().checked_sub(back + 1);
        return match at {
            Some(at) => Ok(all.swap_remove(at)),
            None => Err(Error::missing(format!("there are {} recorded runs", all.len())).hint(hint)),
        };
    }
    let mut hits = all.into_iter().filter(|run| !name.is_empty() && run.id.starts_with(name));
    match (hits.next(), hits.next()) {
        (Some(run), None) => Ok(run),
        (Some(_), Some(_)) => {
            Err(Error::usage(format!("several runs begin with `{name}`")).hint("give more of the id"))
        }
        _ => Err(Error::missing(format!("there is no run `{name}`")).hint(hint)),
    }
}

/// Removes the record of a run that is over (never an artifact).
pub fn remove_run(store: &Store, record: &RunRecord) -> Result<()> {
    if record.state == RunState::Running {
        return Err(Error::failed(format!(
            "the run {} is going on (process {} on {})",
            record.id, record.pid, record.host
        ))
        .hint("stop it first"));
    }
    remove_tree(&folder(store).join(&record.id))
}

/// Where a run's files lie.
pub fn run_folder(store: &Store, record: &RunRecord) -> PathBuf {
    folder(store).join(&record.id)
}

/// Fingerprints that runs which go on right now have read or made.
pub fn in_use(store: &Store) -> Result<std::collections::BTreeSet<String>> {
    let mut found = std::collections::BTreeSet::new();
    for run in runs(store)?.iter().filter(|run| run.state == RunState::Running) {
        let text = std::fs::read_to_string(run_folder(store, run).join(EVENTS)).unwrap_or_default();
        for line in text.lines() {
            let event: Option<Value> = serde_json::from_str(line).ok();
            let fingerprint = event.as_ref().and_then(|e| e.get("fingerprint")).and_then(Value::as_str);
            found.extend(fingerprint.map(str::to_owned));
        }
    }
    Ok(found)
}
