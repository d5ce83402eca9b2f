//! Plan: a fingerprint per instance and whether it is cached or must run, with the reason. Executes nothing, asks
//! no network and creates nothing.

mod content;
mod estimate;
pub mod keys;
pub mod lockfile;
mod reason;
mod show;

pub use estimate::Estimate;
pub use reason::{Change, Reason, changes};
pub use show::bytes;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::pipeline::{Graph, Instance};
use crate::stages::Kind;
use crate::store::{Artifact, Key, Lookup, Meta, Store};
use crate::{Error, Result};
use keys::{Source, Surroundings};
use lockfile::{LockFile, Request};

/// Which instances, and what of the cache to believe.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only these stages or instances and what they need; everything where empty.
    pub until: Vec<String>,
    /// Stages, instances or `all`: run although they are cached.
    pub force: Vec<String>,
    pub versions: Versions,
}

/// What happens to finished work of an older implementation of its stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// Cheap work reruns; for work that took longer than [`LONG_SECONDS`] the user decides.
    #[default]
    Ask,
    KeepOld,
    Rerun,
}

/// Work that took longer is never redone without being asked.
pub const LONG_SECONDS: f64 = 60.0;

/// The state of one instance.
#[derive(Clone, Debug)]
pub struct Entry {
    pub index: usize,
    pub name: String,
    pub kind: Kind,
    /// Known once every input is.
    pub fingerprint: Option<String>,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Cached(Box<Artifact>),
    Run(Reason),
    /// The same work as the instance of this name: done once.
    Same(String),
}

/// Everything that a run would do.
#[derive(Clone, Debug)]
pub struct Plan {
    pub pipeline: String,
    pub file: std::path::PathBuf,
    /// In the graph's order, only selected instances.
    pub entries: Vec<Entry>,
    pub notes: Vec<String>,
    /// Finished work of older implementations that nobody decided on: name, what was made, version now.
    pub undecided: Vec<(String, Box<Meta>, u32)>,
    pub unresolved: Vec<Request>,
    pub estimate: Estimate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub cached: usize,
    pub run: usize,
    pub same: usize,
}

impl Plan {
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for entry in &self.entries {
            match entry.action {
                Action::Cached(_) => counts.cached += 1,
                Action::Run(_) => counts.run += 1,
                Action::Same(_) => counts.same += 1,
            }
        }
        counts
    }

    /// Refuses to go on where long work would be redone only because qerl got newer.
    pub fn check_versions(&self) -> Result<()> {
        let Some((name, old, to)) = self.undecided.first() else { return Ok(()) };
        let error = version_error(name, old, *to);
        Err(match self.undecided.len() - 1 {
            0 => error,
            n => error.within(format!("{} stages are affected; the first", n + 1)),
        })
    }
}

/// Asks the user to decide on finished work of an older implementation.
pub(crate) fn version_error(name: &str, old: &Meta, to: u32) -> Error {
    let (seconds, from) = (old.provenance.wall_seconds, old.version);
    Error::usage(format!(
        "`{name}` was finished in {seconds:.0} s by version {from} of its stage; this qerl has version {to}"
    ))
    .hint("choose: --keep-old uses the finished artifacts, --rerun makes them anew")
}

/// What the store has for a key.
#[derive(Clone, Debug)]
pub enum Found {
    /// Also an artifact of an older implementation that the options accept.
    Hit(Box<Artifact>),
    Not(Reason),
    /// Made by an older implementation and long work: the user must decide.
    Older(Box<Artifact>),
}

/// Looks `key` up, falling back to older implementations of the stage as the options say.
pub fn find(store: &Store, pipeline: &str, name: &str, key: &Key, versions: Versions) -> Result<Found> {
    let damaged = match store.lookup(&key.fingerprint())? {
        Lookup::Hit(artifact) => return Ok(Found::Hit(artifact)),
        Lookup::Bad(what) => Some(Reason::Damaged { what }),
        Lookup::Missing => None,
    };
    if damaged.is_none() {
        for version in (1..key.version).rev() {
            let older = Key { version, ..key.clone() };
            let Lookup::Hit(artifact) = store.lookup(&older.fingerprint())? else { continue };
            return Ok(match versions {
                Versions::KeepOld => Found::Hit(artifact),
                Versions::Ask if artifact.meta.provenance.wall_seconds > LONG_SECONDS => Found::Older(artifact),
                Versions::Ask | Versions::Rerun => Found::Not(Reason::Newer { from: version, to: key.version }),
            });
        }
    }
    let reason = match damaged {
        Some(reason) => reason,
        None => {
            let last = store.named(pipeline, name)?;
            let last = last.map(|f| store.peek(&f)).transpose()?.flatten();
            reason::compare(last.as_ref().map(|a| &a.meta), key)
        }
    };
    Ok(Found::Not(reason))
}

/// Makes the plan.
///
/// # Errors
/// Unknown stages in the options, an unreadable store or `file:` source.
pub fn plan(around: &Surroundings<'_>, options: &Options) -> Result<Plan> {
    let graph = around.graph;
    let selected = select(graph, &options.until)?;
    let forced = forced(graph, &options.force)?;
    let mut entries: Vec<Entry> = Vec::new();
    // Per instance: its artifact, or a token that stands for what it will be.
    let mut states: Vec<Option<Result<Box<Artifact>, String>>> = vec![None; graph.instances.len()];
    let mut tokens: BTreeMap<String, usize> = BTreeMap::new();
    let (mut unresolved, mut undecided) = (BTreeSet::new(), Vec::new());
    let mut fetch = Vec::new();
    for (index, instance) in graph.instances.iter().enumerate().filter(|(i, _)| selected.contains(i)) {
        let name = instance.name();
        let sources: Vec<Source<'_>> = instance
            .inputs
            .iter()
            .map(|edge| match states.get(edge.from).and_then(Option::as_ref) {
                Some(Ok(artifact)) => Source::Done(artifact),
                Some(Err(token)) => Source::Pending(token),
                None => Source::Failed("not in the plan"),
            })
            .collect();
        let keyed = keys::keyed(around, instance, &sources)?;
        let token = keyed.key.fingerprint();
        let pending = instance.inputs.iter().find(|e| matches!(states.get(e.from), Some(Some(Err(_)))));
        let known = pending.is_none() && keyed.unresolved.is_none();
        let action = if let Some(&first) = tokens.get(&token) {
            // Instances of equal keys share the state of the first.
            match &states[first] {
                Some(Ok(artifact)) => Action::Cached(artifact.clone()),
                _ => Action::Same(graph.instances[first].name()),
            }
        } else if let Some(request) = &keyed.unresolved {
            unresolved.insert(request.clone());
            Action::Run(Reason::Unresolved { request: request.to_string() })
        } else if forced.contains(&index) {
            Action::Run(Reason::Forced)
        } else if let Some(edge) = pending {
            Action::Run(Reason::InputRuns { name: graph.instances[edge.from].name() })
        } else {
            match find(around.store, &graph.name, &name, &keyed.key, options.versions)? {
                Found::Hit(artifact) => Action::Cached(artifact),
                Found::Not(reason) => Action::Run(reason),
                Found::Older(old) => {
                    let (from, to) = (old.meta.version, keyed.key.version);
                    undecided.push((name.clone(), Box::new(old.meta), to));
                    Action::Run(Reason::Newer { from, to })
                }
            }
        };
        states[index] = Some(match &action {
            Action::Cached(artifact) => Ok(artifact.clone()),
            Action::Run(_) | Action::Same(_) => Err(token.clone()),
        });
        tokens.entry(token.clone()).or_insert(index);
        if matches!(action, Action::Run(_)) && instance.kind == Kind::Download {
            fetch.push(index);
        }
        let fingerprint = known.then_some(token);
        entries.push(Entry { index, name, kind: instance.kind, fingerprint, action });
    }
    let unresolved: Vec<Request> = unresolved.into_iter().collect();
    let estimate = estimate::estimate(around, &entries, &fetch)?;
    Ok(Plan {
        pipeline: graph.name.clone(),
        file: graph.file.clone(),
        entries,
        notes: graph.notes.clone(),
        undecided,
        unresolved,
        estimate,
    })
}

/// Indices of the instances that `until` names and of everything they need; all where it is empty.
pub fn select(graph: &Graph, until: &[String]) -> Result<BTreeSet<usize>> {
    if until.is_empty() {
        return Ok((0..graph.instances.len()).collect());
    }
    let mut queue: Vec<usize> = matching(graph, until, "--until")?.into_iter().collect();
    let mut selected = BTreeSet::new();
    while let Some(index) = queue.pop() {
        if selected.insert(index)
            && let Some(instance) = graph.instances.get(index)
        {
            queue.extend(dependencies(instance));
        }
    }
    Ok(selected)
}

/// Indices of the instances that `force` names.
pub fn forced(graph: &Graph, force: &[String]) -> Result<BTreeSet<usize>> {
    if force.iter().any(|name| name == "all") {
        return Ok((0..graph.instances.len()).collect());
    }
    matching(graph, force, "--force")
}

/// What must be finished before `instance` starts.
pub fn dependencies(instance: &Instance) -> impl Iterator<Item = usize> + '_ {
    instance.inputs.iter().map(|edge| edge.from).chain(instance.needs.iter().copied())
}

fn matching(graph: &Graph, names: &[String], option: &str) -> Result<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for name in names {
        let before = found.len();
        let hits = |i: &Instance| i.stage == *name || i.name() == *name;
        found.extend(graph.instances.iter().enumerate().filter(|(_, i)| hits(i)).map(|(index, _)| index));
        if found.len() == before && !graph.instances.iter().any(hits) {
            let stages: BTreeSet<&str> = graph.instances.iter().map(|i| i.stage.as_str()).collect();
            let best = stages
                .iter()
                .map(|s| (strsim::jaro_winkler(name, s), *s))
                .filter(|(score, _)| *score > 0.75)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let hint = match best {
                Some((_, stage)) => format!("did you mean `{stage}`?"),
                None => format!("stages: {}", stages.into_iter().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::usage(format!("{option}: there is no stage `{name}`")).hint(hint));
        }
    }
    Ok(found)
}

/// Reads the lock beside the graph's file.
pub fn read_lock(graph: &Graph) -> Result<LockFile> {
    LockFile::read(&LockFile::path_beside(&graph.file))
}
