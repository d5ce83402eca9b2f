//! Slurm: one job per stage, an array where a stage has several points, each running `qerl exec-stage`.
//!
//! What is to be done is frozen to disk first, so that editing the pipeline changes no job that waits. Jobs write how
//! they ended themselves: that outranks what the queue says.

mod exec;
mod frozen;
mod marker;
mod submit;
mod watch;

pub use exec::{exec, finish};
pub use frozen::{Frozen, Task, freeze};
pub use marker::{Marker, Stand};
pub use submit::{JobOptions, Jobs, cancel, submit};
pub use watch::{Status, Watched, status, watch};

use std::path::PathBuf;

use crate::store::Store;
use crate::{Error, Result};

/// The folder of a submitted run.
pub fn folder(store: &Store, id: &str) -> PathBuf {
    store.root.join("slurm").join(id)
}

/// The submitted run that `name` means: an id, the beginning of one, or `last`.
///
/// # Errors
/// When there is none, or several.
pub fn find(store: &Store, name: &str) -> Result<Frozen> {
    let place = store.root.join("slurm");
    let mut ids: Vec<String> = std::fs::read_dir(&place)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join(frozen::FILE).exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    ids.sort();
    let hint = format!("submitted runs: {}", ids.iter().rev().take(5).cloned().collect::<Vec<_>>().join(", "));
    if name == "last" {
        let last = ids.pop().ok_or_else(|| Error::missing("nothing was submitted from this store"))?;
        return Frozen::read(&folder(store, &last));
    }
    let mut hits = ids.iter().filter(|id| !name.is_empty() && id.starts_with(name));
    match (hits.next(), hits.next()) {
        (Some(id), None) => Frozen::read(&folder(store, id)),
        (Some(_), Some(_)) => {
            Err(Error::usage(format!("several runs begin with `{name}`")).hint("give more of the id"))
        }
        _ => Err(Error::missing(format!("there is no submitted run `{name}`")).hint(hint)),
    }
}
