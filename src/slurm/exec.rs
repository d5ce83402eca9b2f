//! Inside a job: one instance of a frozen plan, its inputs checked first; and the end of a run.

use std::collections::BTreeMap;

use super::frozen::Frozen;
use super::marker::{Marker, Stand};
use crate::control::Cancel;
use crate::error::Kind as Trouble;
use crate::hub::Hub;
use crate::plan::{self, dependencies};
use crate::run::{Executor, Listener, Only, Options, Outcome, dispatch, diverged, notify, publish};
use crate::stages::Kind;
use crate::store::Store;
use crate::{Error, Result};

/// Makes the instance `index` and writes down how that ended.
///
/// # Errors
/// Whatever stopped it.
pub fn exec(frozen: &Frozen, index: usize, hub: &Hub, listener: &dyn Listener, cancel: &Cancel) -> Result<()> {
    Marker::write(frozen, index, Stand::Running, None)?;
    let result = make(frozen, index, hub, listener, cancel);
    let (stand, why) = match &result {
        Ok(()) => (Stand::Done, None),
        Err((stand, error)) => (*stand, Some(error.to_string())),
    };
    Marker::write(frozen, index, stand, why.clone())?;
    if stand == Stand::Failed
        && let Some(error) = &why
    {
        let name = frozen.graph.instances[index].name();
        tell(frozen, serde_json::json!({"event": "failed", "name": name, "error": error}));
    }
    result.map_err(|(_, error)| error)
}

fn make(
    frozen: &Frozen,
    index: usize,
    hub: &Hub,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<(), (Stand, Error)> {
    let failed = |error| (Stand::Failed, error);
    let store = Store::open(&frozen.store).map_err(failed)?;
    let name = frozen.graph.instances[index].name();
    let mut reasons = BTreeMap::new();
    for input in dependencies(&frozen.graph.instances[index]) {
        if let Some(why) = reason(frozen, input) {
            reasons.insert(input, why);
        }
    }
    let root = reasons.values().next().cloned();
    let executor = Executor {
        graph: &frozen.graph,
        store: &store,
        hub,
        stages: &dispatch::Builtin,
        resolver: hub,
        listener,
        cancel: cancel.clone(),
        options: Options {
            plan: plan::Options { until: vec![name.clone()], versions: frozen.versions(), ..plan::Options::default() },
            threads: cpus(),
            recipe: Some(frozen.recipe.clone()),
            only: Some(Only { index, reasons }),
            ..Options::default()
        },
        lock_path: frozen.lock_path.clone(),
    };
    let summary = executor.run().map_err(failed)?;
    let outcome = summary.outcomes.into_iter().find(|(other, _, _)| *other == name).map(|(_, _, outcome)| outcome);
    match outcome {
        Some(Outcome::Ran(artifact) | Outcome::Cached(artifact)) => {
            for same in frozen.same.get(&index).into_iter().flatten() {
                let other = frozen.graph.instances[*same].name();
                store.set_name(&frozen.graph.name, &other, &artifact.meta.fingerprint).map_err(failed)?;
            }
            if let Some(why) = diverged(&artifact) {
                tell(frozen, serde_json::json!({"event": "diverged", "name": name, "error": why}));
            }
            Ok(())
        }
        Some(Outcome::Skipped(why)) => {
            let why = root.map_or_else(|| why.clone(), |root| format!("{why}: {root}"));
            Err((Stand::Skipped, Error::failed(why)))
        }
        Some(Outcome::Stopped) => Err((Stand::Stopped, Error::new(Trouble::Cancelled, "stopped on request"))),
        Some(Outcome::Failed(why)) => Err(failed(summary.error.unwrap_or_else(|| Error::failed(why)))),
        None => Err(failed(Error::failed(format!("{name} is not in the frozen plan")))),
    }
}

/// Why an instance has no artifact: what its job wrote or, where Slurm took the job back before it started, what
/// happened to those that it waited for.
fn reason(frozen: &Frozen, index: usize) -> Option<String> {
    let maker = frozen.maker(index);
    match Marker::read(frozen, maker) {
        Some(marker) => marker.why,
        None => frozen.waits_for(maker).into_iter().find_map(|input| reason(frozen, input)),
    }
}

/// The cores that Slurm gave to this job, where it says so.
fn cpus() -> Option<usize> {
    ["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"].iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// After everything: publishes finished reports and tells how it went.
///
/// # Errors
/// When a report cannot be copied.
pub fn finish(frozen: &Frozen, listener: &dyn Listener) -> Result<()> {
    let store = Store::open(&frozen.store)?;
    let planned = || frozen.tasks.iter().flat_map(|t| t.instances.iter().copied());
    let reports: Vec<usize> = planned().filter(|i| frozen.graph.instances[*i].kind == Kind::Report).collect();
    for index in &reports {
        if Marker::read(frozen, *index).is_none_or(|m| m.stand != Stand::Done) {
            continue;
        }
        let name = frozen.graph.instances[*index].name();
        let artifact = store.resolve(&format!("{}:{name}", frozen.graph.name))?;
        let place = if reports.len() == 1 { frozen.reports.clone() } else { frozen.reports.join(&name) };
        for path in publish(&artifact, &place)? {
            listener.hear(&crate::run::Event::Report { path });
        }
    }
    let done = planned().filter(|i| Marker::read(frozen, *i).is_some_and(|m| m.stand == Stand::Done)).count();
    let all = planned().count();
    let event = if done == all { "done" } else { "failed" };
    tell(frozen, serde_json::json!({"event": event, "done": done, "not_done": all - done}));
    Ok(())
}

fn tell(frozen: &Frozen, mut message: serde_json::Value) {
    message["pipeline"] = frozen.graph.name.clone().into();
    message["run"] = frozen.id.clone().into();
    if let Err(line) = notify::send(&frozen.notify, &message) {
        // The job's log is the only place left.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
    }
}
