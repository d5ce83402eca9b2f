//! qerl.lock beside the pipeline: which commit a revision stood for when it was first used, and its files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::store::write_atomic;
use crate::{Error, Result};

/// Repository -> requested revision -> pin. Written as sorted JSON, so that equal pins are equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockFile {
    version: u32,
    #[serde(default)]
    models: BTreeMap<String, BTreeMap<String, Pin>>,
    #[serde(default)]
    datasets: BTreeMap<String, BTreeMap<String, Pin>>,
}

/// A commit and the files that it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    pub commit: String,
    /// In order of their paths.
    pub files: Vec<LockedFile>,
}

/// A file as the hub described it: large ones by sha256, small ones by git's blob id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedFile {
    pub path: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<String>,
}

/// What a download asks the hub for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub repo: String,
    pub dataset: bool,
    pub revision: String,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}@{}", if self.dataset { "dataset " } else { "" }, self.repo, self.revision)
    }
}

const VERSION: u32 = 1;

impl LockFile {
    /// `qerl.lock` in the folder of the pipeline file.
    pub fn path_beside(pipeline: &Path) -> PathBuf {
        pipeline.with_file_name("qerl.lock")
    }

    /// Empty where there is no file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self { version: VERSION, ..Self::default() }),
            Err(e) => return Err(Error::io("read", path, e)),
        };
        let bad = |what: String| {
            Error::input(format!("{}: {what}", path.display()))
                .hint("restore qerl.lock from version control, or delete it to pin every revision anew")
        };
        let lock: Self = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if lock.version != VERSION {
            return Err(bad(format!("version {} is not known to this qerl (it writes {VERSION})", lock.version)));
        }
        for (request, pin) in lock.pins() {
            if pin.commit.len() < 40 || !pin.commit.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad(format!("`{}` of {request} is not a commit", pin.commit)));
            }
        }
        Ok(lock)
    }

    /// Writes it where it differs from what is there.
    pub fn write(&self, path: &Path) -> Result<()> {
        let lock = Self { version: VERSION, ..self.clone() };
        let mut text = serde_json::to_string_pretty(&lock)
            .map_err(|e| Error::failed("cannot write the lock file").caused_by(e))?;
        text.push('\n');
        if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        write_atomic(path, text.as_bytes())
    }

    pub fn get(&self, request: &Request) -> Option<&Pin> {
        let side = if request.dataset { &self.datasets } else { &self.models };
        side.get(&request.repo)?.get(&request.revision)
    }

    pub fn set(&mut self, request: &Request, mut pin: Pin) {
        pin.files.sort_by(|a, b| a.path.cmp(&b.path));
        let side = if request.dataset { &mut self.datasets } else { &mut self.models };
        side.entry(request.repo.clone()).or_default().insert(request.revision.clone(), pin);
    }

    /// Every pin, sorted: models first.
    pub fn pins(&self) -> impl Iterator<Item = (Request, &Pin)> {
        let side = |dataset: bool, map| {
            let map: &BTreeMap<String, BTreeMap<String, Pin>> = map;
            map.iter().flat_map(move |(repo, revisions)| {
                revisions.iter().map(move |(revision, pin)| {
                    (Request { repo: repo.clone(), dataset, revision: revision.clone() }, pin)
                })
            })
        };
        side(false, &self.models).chain(side(true, &self.datasets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(commit: &str) -> Pin {
        let file = |path: &str| LockedFile { path: path.to_owned(), size: 3, sha256: None, git: None };
        Pin { commit: commit.repeat(40), files: vec![file("b"), file("a")] }
    }

    fn request(repo: &str) -> Request {
        Request { repo: repo.to_owned(), dataset: repo.starts_with('d'), revision: "main".to_owned() }
    }

    #[test]
    fn what_is_written_is_read_and_bytes_do_not_depend_on_order() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let repos = ["d/x", "m/a", "m/b"];
        for (path, order) in [(&one, [0, 1, 2]), (&two, [2, 0, 1])] {
            let mut lock = LockFile::read(path).unwrap();
            for i in order {
                lock.set(&request(repos[i]), pin(&i.to_string()));
            }
            lock.write(path).unwrap();
        }
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        let lock = LockFile::read(&one).unwrap();
        assert_eq!(lock.get(&request("m/a")).unwrap().files[0].path, "a");
        assert!(lock.get(&Request { dataset: true, ..request("m/a") }).is_none());
        assert_eq!(lock.pins().count(), 3);
    }

    #[test]
    fn a_broken_lock_is_an_error_not_a_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qerl.lock");
        for text in [
            "",
            "{",
            r#"{"version": 9}"#,
            r#"{"version": 1, "models": {"a/b": {"main": {"commit": "../..", "files": []}}}}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(LockFile::read(&path).unwrap_err().hint_text().is_some(), "{text}");
        }
    }
}
