//! Pinning: revisions that a run needs are resolved once, before any download, and written to qerl.lock.

use std::collections::BTreeSet;
use std::path::Path;

use super::events::{Event, Listener};
use crate::Result;
use crate::control::Cancel;
use crate::pipeline::Graph;
use crate::plan::keys::hub_request;
use crate::plan::lockfile::{LockFile, Pin, Request};
use crate::stages::Kind;
use crate::store::{Lock, Store};

/// Who knows which commit a revision stands for.
pub trait Resolver: Sync {
    fn resolve(&self, request: &Request, cancel: &Cancel) -> Result<Pin>;
}

/// Whether pins that exist are asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    Missing,
    All,
    Repo(String),
}

/// What the downloads among `selected` ask the hub for.
pub fn requests(graph: &Graph, selected: &BTreeSet<usize>) -> BTreeSet<Request> {
    let chosen = graph.instances.iter().enumerate().filter(|(index, _)| selected.contains(index));
    chosen.filter(|(_, i)| i.kind == Kind::Download).filter_map(|(_, i)| hub_request(&i.config)).collect()
}

/// Resolves what is missing (or to be updated) and writes the lock; gives the lock and what changed in it.
///
/// # Errors
/// What the hub answers, under the name of the request; what was resolved before stays written.
pub fn pin(
    wanted: &BTreeSet<Request>,
    path: &Path,
    update: &Update,
    store: &Store,
    resolver: &dyn Resolver,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<(LockFile, Vec<Request>)> {
    let stale = |lock: &LockFile, request: &Request| match update {
        Update::Missing => lock.get(request).is_none(),
        Update::All => true,
        Update::Repo(repo) => lock.get(request).is_none() || request.repo == *repo,
    };
    let lock = LockFile::read(path)?;
    if !wanted.iter().any(|request| stale(&lock, request)) {
        return Ok((lock, Vec::new()));
    }
    // Two runs that pin in one file at once must not lose each other's pins.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let name = blake3::hash(absolute.as_os_str().as_encoded_bytes()).to_hex();
    let _held = Lock::acquire(
        &store.root.join("locks").join(format!("pins-{}.lock", &name[..24])),
        "pinning revisions",
        cancel,
        |holder| {
            if let Some(holder) = holder {
                listener.hear(&Event::Said { name: None, line: format!("waiting for {holder}, which pins revisions") });
            }
        },
    )?;
    let mut lock = LockFile::read(path)?;
    let mut changed = Vec::new();
    for request in wanted.iter().filter(|r| stale(&lock, r)).cloned().collect::<Vec<_>>() {
        cancel.check()?;
        let pin = resolver.resolve(&request, cancel).map_err(|e| e.within(format!("resolving {request}")))?;
        if lock.get(&request) != Some(&pin) {
            listener.hear(&Event::Pinned { request: request.to_string(), commit: pin.commit.clone() });
            lock.set(&request, pin);
            lock.write(path)?;
            changed.push(request);
        }
    }
    Ok((lock, changed))
}
