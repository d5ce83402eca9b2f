//! Files of a pinned commit, brought into the cache: several at once, resumed, verified.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::blob::Blob;
use super::info::{RemoteFile, Snapshot};
use super::{Hub, space};
use crate::control::{Cancel, Progress};
use crate::error::Kind;
use crate::{Error, Result};

/// What the threads of one download share.
pub(super) struct Shared<'a> {
    pub hub: &'a Hub,
    pub snapshot: &'a Snapshot,
    pub progress: &'a dyn Progress,
    /// Set on the user's request and after a failure.
    pub stop: Cancel,
    /// Bytes verified or arrived.
    pub done: AtomicU64,
}

pub(super) fn fetch(
    hub: &Hub,
    snapshot: &Snapshot,
    files: &[&RemoteFile],
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<PathBuf> {
    // Files of equal content share a blob.
    let blobs: BTreeMap<&str, &RemoteFile> = files.iter().map(|file| (file.id.as_str(), *file)).collect();
    let blobs: Vec<&RemoteFile> = blobs.into_values().collect();
    if hub.config().offline {
        check_offline(hub, snapshot, &blobs)?;
    }
    space::check(hub.cache().root(), hub.missing_bytes(snapshot, &blobs))?;
    progress.total(blobs.iter().map(|file| file.size).sum(), "bytes");
    let shared = Shared { hub, snapshot, progress, stop: Cancel::new(), done: AtomicU64::new(0) };
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let (alive, over) = channel::<()>();
    std::thread::scope(|scope| {
        for _ in 0..hub.config().parallel.max(1).min(blobs.len()) {
            let alive = alive.clone();
            let (shared, blobs, next, finished, failure) = (&shared, &blobs, &next, &finished, &failure);
            scope.spawn(move || {
                let _alive = alive;
                while let Some(file) = blobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match Blob::new(shared, file).bring() {
                        Ok(()) => {
                            finished.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            // The first failure counts; those of the others follow from it.
                            let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert(error);
                            shared.stop.cancel();
                            return;
                        }
                    }
                }
            });
        }
        drop(alive);
        // Until the last thread has dropped its end.
        while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(Duration::from_millis(100)) {
            if cancel.is_cancelled() {
                shared.stop.cancel();
            }
            let note = format!("{}/{} files", finished.load(Ordering::Relaxed), blobs.len());
            progress.at(shared.done.load(Ordering::Relaxed), &note);
        }
    });
    cancel.check()?;
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    for file in files {
        hub.cache().link(snapshot, file)?;
    }
    progress.at(shared.done.load(Ordering::Relaxed), &format!("{} files", files.len()));
    Ok(hub.snapshot_dir(&snapshot.repo, snapshot.dataset, &snapshot.commit))
}

/// Offline nothing can be fetched: says what is missing before anything is read.
fn check_offline(hub: &Hub, snapshot: &Snapshot, blobs: &[&RemoteFile]) -> Result<()> {
    let missing: Vec<&RemoteFile> = blobs.iter().filter(|file| !hub.cache().has(snapshot, file)).copied().collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let bytes = missing.iter().map(|file| file.size).sum();
    Err(Error::new(
        Kind::Network,
        format!(
            "{} files of `{}` ({}; the first is `{}`) are not in the cache, and HF_HUB_OFFLINE is set",
            missing.len(),
            snapshot.repo,
            space::human(bytes),
            first.path
        ),
    )
    .hint("unset HF_HUB_OFFLINE to fetch them"))
}
