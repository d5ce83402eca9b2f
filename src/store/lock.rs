//! Kernel locks with a name tag: a killed holder leaves nothing stale, a waiting one knows whom it waits for.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Store;
use crate::control::Cancel;
use crate::error::Kind;
use crate::{Error, Result};

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    /// The instance that is being made.
    pub what: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)
    }
}

/// A held lock; dropping it (or dying) gives it back.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

const POLL: Duration = Duration::from_millis(100);

impl Lock {
    /// The lock on `path` if nobody holds it.
    pub fn try_acquire(path: &Path, what: &str) -> Result<Option<Self>> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| Error::io("open the lock", path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => {
                return Err(Error::new(Kind::Storage, format!("cannot lock {}", path.display()))
                    .caused_by(e)
                    .hint("this file system has no locks: set QERL_HOME to a folder on a local disk"));
            }
        }
        let holder = Holder { pid: std::process::id(), host: super::host_name(), what: what.to_owned() };
        // The tag only helps people; a full disk must not stop the work here.
        if let Ok(tag) = serde_json::to_vec(&holder) {
            let _ = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).and_then(|_| file.write_all(&tag));
        }
        Ok(Some(Self { file }))
    }

    /// Waits for the lock; `waiting` hears once who holds it. Stops with `cancelled` when asked to.
    pub fn acquire(path: &Path, what: &str, cancel: &Cancel, waiting: impl FnOnce(Option<Holder>)) -> Result<Self> {
        if let Some(lock) = Self::try_acquire(path, what)? {
            return Ok(lock);
        }
        // A holder signs right after it got the lock: give it a moment to do so.
        let mut who = holder(path);
        for _ in 0..20 {
            if who.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            if let Some(lock) = Self::try_acquire(path, what)? {
                return Ok(lock);
            }
            who = holder(path);
        }
        waiting(who);
        loop {
            cancel.check()?;
            std::thread::sleep(POLL);
            if let Some(lock) = Self::try_acquire(path, what)? {
                return Ok(lock);
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing releases it in any case; an empty tag says that nobody holds it.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

/// Whether a process holds the lock on `path`; changes nothing.
pub fn is_held(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Whom a lock file names, if anyone.
pub(super) fn holder(path: &Path) -> Option<Holder> {
    let mut text = String::new();
    File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Store {
    /// Waits for the right to make `fingerprint`; `waiting` hears who has it.
    pub fn lock(
        &self,
        fingerprint: &str,
        what: &str,
        cancel: &Cancel,
        waiting: impl FnOnce(Option<Holder>),
    ) -> Result<Lock> {
        Lock::acquire(&self.lock_path(fingerprint), what, cancel, waiting)
    }

    /// The same without waiting.
    pub fn try_lock(&self, fingerprint: &str, what: &str) -> Result<Option<Lock>> {
        Lock::try_acquire(&self.lock_path(fingerprint), what)
    }

    pub(super) fn lock_path(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{name}.lock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_waits_and_learns_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = Lock::try_acquire(&path, "train").unwrap().unwrap();
        assert!(Lock::try_acquire(&path, "other").unwrap().is_none());
        let told = std::sync::Mutex::new(None);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                Lock::acquire(&path, "other", &Cancel::new(), |who| *told.lock().unwrap() = who).unwrap();
            });
            while told.lock().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(first);
            second.join().unwrap();
        });
        let who = told.into_inner().unwrap().unwrap();
        assert_eq!((who.pid, who.what.as_str()), (std::process::id(), "train"));
        assert_eq!(holder(&path), None);
    }

    #[test]
    fn waiting_ends_when_the_user_stops() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let _held = Lock::try_acquire(&path, "train").unwrap().unwrap();
        let cancel = Cancel::new();
        cancel.cancel();
        let error = Lock::acquire(&path, "other", &cancel, |_| {}).unwrap_err();
        assert_eq!(error.kind(), Kind::Cancelled);
    }
}
