//! How submitted jobs stand: their own markers first, then the queue.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::frozen::Frozen;
use super::marker::{Marker, Stand};
use super::submit::{Jobs, run};
use crate::Result;
use crate::control::Cancel;

/// Where one instance stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    pub name: String,
    /// Slurm's name of its job: `12` or `12_3`.
    pub job: String,
    /// `pending`, `running`, `done`, `failed`, `skipped`, `stopped` or `lost`.
    pub state: String,
    /// Why it waits, or how it failed.
    pub why: String,
    /// How often it was started.
    pub starts: u32,
}

impl Status {
    pub fn is_over(&self) -> bool {
        !matches!(self.state.as_str(), "pending" | "running")
    }
}

/// How a watched run ended.
#[derive(Clone, Debug)]
pub struct Watched {
    pub statuses: Vec<Status>,
    /// The user stopped looking; the jobs go on.
    pub left: bool,
}

const POLL: Duration = Duration::from_secs(2);

/// `(array job, task) -> (state, reason)` of what the queue holds of these jobs.
fn queue(jobs: &Jobs) -> Result<BTreeMap<(String, String), (String, String)>> {
    let known: BTreeSet<&str> = jobs.all().collect();
    let text = run(Command::new("squeue").args(["--me", "--noheader", "--array", "--format=%F|%K|%T|%r"]))?;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.trim().splitn(4, '|').map(str::to_owned);
        let (Some(job), Some(task), Some(state)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if known.contains(job.as_str()) {
            found.insert((job, task), (state, parts.next().unwrap_or_default()));
        }
    }
    Ok(found)
}

/// Every instance of a submitted run, in the order of its stages.
///
/// # Errors
/// When the queue cannot be asked.
pub fn status(frozen: &Frozen) -> Result<Vec<Status>> {
    let jobs = Jobs::read(frozen)?;
    // The queue before the markers: a job that ends in between has written its marker.
    let queue = queue(&jobs)?;
    let mut stands: BTreeMap<usize, Status> = BTreeMap::new();
    let mut order = Vec::new();
    for task in &frozen.tasks {
        let id = jobs.stages.get(&task.stage).cloned().unwrap_or_default();
        for (place, &index) in task.instances.iter().enumerate() {
            let (number, job) = match task.instances.len() {
                1 => ("N/A".to_owned(), id.clone()),
                _ => (place.to_string(), format!("{id}_{place}")),
            };
            let queued = queue.get(&(id.clone(), number));
            let marker = Marker::read(frozen, index);
            let (state, why) = stand(frozen, index, marker.as_ref(), queued, &stands);
            let name = frozen.graph.instances[index].name();
            let starts = marker.map_or(0, |m| m.starts);
            stands.insert(index, Status { name, job, state: state.to_owned(), why, starts });
            order.push(index);
        }
    }
    Ok(order.into_iter().filter_map(|index| stands.remove(&index)).collect())
}

fn stand(
    frozen: &Frozen,
    index: usize,
    marker: Option<&Marker>,
    queued: Option<&(String, String)>,
    before: &BTreeMap<usize, Status>,
) -> (&'static str, String) {
    let why = marker.and_then(|m| m.why.clone()).unwrap_or_default();
    match (marker.map(|m| m.stand), queued) {
        (Some(Stand::Done), _) => ("done", why),
        (Some(Stand::Failed), _) => ("failed", why),
        (Some(Stand::Skipped), _) => ("skipped", why),
        // Stopped and still there: it was requeued and goes on from its checkpoint.
        (_, Some((state, reason))) if state == "PENDING" => ("pending", reason.clone()),
        (Some(Stand::Running), Some(_)) => ("running", why),
        (Some(Stand::Stopped), Some(_)) => ("running", "stopping".to_owned()),
        (Some(Stand::Stopped), None) => ("stopped", why),
        (Some(Stand::Running), None) => ("lost", "its job ended without a word: out of memory or time?".to_owned()),
        (None, Some((state, reason))) => (if state == "RUNNING" { "running" } else { "pending" }, reason.clone()),
        (None, None) => {
            let bad = |i: &usize| before.get(i).filter(|s| s.is_over() && s.state != "done");
            match frozen.waits_for(index).iter().find_map(bad) {
                Some(input) => ("skipped", format!("{} {}", input.name, ended(&input.state))),
                None => ("lost", "its job left the queue before it started: cancelled?".to_owned()),
            }
        }
    }
}

fn ended(state: &str) -> &'static str {
    match state {
        "failed" => "failed",
        "skipped" => "was skipped",
        "stopped" => "was stopped",
        _ => "was lost",
    }
}

/// Looks until everything is over or `cancel` is set; `changed` hears every change.
///
/// # Errors
/// When the queue cannot be asked several times in a row.
pub fn watch(frozen: &Frozen, cancel: &Cancel, mut changed: impl FnMut(&Status)) -> Result<Watched> {
    let mut known: Vec<Status> = Vec::new();
    let (mut failures, mut lost) = (0, 0);
    loop {
        match status(frozen) {
            Ok(statuses) => {
                failures = 0;
                for status in &statuses {
                    if !known.iter().any(|k| k.name == status.name && k.state == status.state) {
                        changed(status);
                    }
                }
                known = statuses;
            }
            // A busy controller is no reason to give up.
            Err(error) => {
                failures += 1;
                if failures > 30 {
                    return Err(error);
                }
            }
        }
        let over = !known.is_empty() && known.iter().all(Status::is_over);
        // A marker may come a moment after the queue forgot the job.
        lost = if over && known.iter().any(|s| s.state == "lost") { lost + 1 } else { 0 };
        if failures == 0 && over && (lost == 0 || lost > 3) {
            return Ok(Watched { statuses: known, left: false });
        }
        for _ in 0..20 {
            if cancel.is_cancelled() {
                return Ok(Watched { statuses: known, left: true });
            }
            std::thread::sleep(POLL / 20);
        }
    }
}
