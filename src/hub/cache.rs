//! The Hugging Face cache, shared with other tools:
//!
//! ```text
//! models--OWNER--NAME/blobs/DIGEST                  the bytes; DIGEST.incomplete while they arrive
//! models--OWNER--NAME/snapshots/COMMIT/PATH         a relative link to a blob
//! models--OWNER--NAME/refs/REVISION                 the commit that a branch or tag last stood for
//! .locks/models--OWNER--NAME/DIGEST.lock            flock while one of the tools writes the blob
//! ```

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::info::{BlobId, RemoteFile, Snapshot};
use super::{digest, names};
use crate::control::Cancel;
use crate::error::Kind;
use crate::{Error, Result};

/// A snapshot with more files than this is no model and no data set.
const MAX_FILES: usize = 1_000_000;

/// The cache at one folder; nothing is created before something is written.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn repo_name(repo: &str, dataset: bool) -> String {
        format!("{}--{}", if dataset { "datasets" } else { "models" }, repo.replace('/', "--"))
    }

    fn repo_dir(&self, repo: &str, dataset: bool) -> PathBuf {
        self.root.join(Self::repo_name(repo, dataset))
    }

    /// The folder of a commit's files, whether it is there or not. Names must have been checked.
    pub(super) fn snapshot_dir(&self, repo: &str, dataset: bool, commit: &str) -> PathBuf {
        self.repo_dir(repo, dataset).join("snapshots").join(commit)
    }

    /// The same for names from anywhere.
    ///
    /// # Errors
    /// Names that could leave the cache.
    pub fn checked_snapshot_dir(&self, repo: &str, dataset: bool, commit: &str) -> Result<PathBuf> {
        names::check_repo(repo)?;
        if !names::is_commit(commit) {
            return Err(Error::new(Kind::Integrity, format!("`{}` is not a commit", names::shown(commit)))
                .hint("the artifact or lock file that names it was not written by qerl: remove it"));
        }
        Ok(self.snapshot_dir(repo, dataset, commit))
    }

    pub(super) fn blob(&self, snapshot: &Snapshot, id: &BlobId) -> PathBuf {
        self.repo_dir(&snapshot.repo, snapshot.dataset).join("blobs").join(id.as_str())
    }

    /// Where a blob grows.
    pub(super) fn part(&self, snapshot: &Snapshot, id: &BlobId) -> PathBuf {
        self.repo_dir(&snapshot.repo, snapshot.dataset).join("blobs").join(format!("{}.incomplete", id.as_str()))
    }

    /// Whether the blob lies there in its full size.
    pub(super) fn has(&self, snapshot: &Snapshot, file: &RemoteFile) -> bool {
        is_file_of(&self.blob(snapshot, &file.id), file.size)
    }

    /// Bytes of the file that must still be fetched.
    pub(super) fn remaining(&self, snapshot: &Snapshot, file: &RemoteFile) -> u64 {
        if self.has(snapshot, file) {
            return 0;
        }
        let part = std::fs::metadata(self.part(snapshot, &file.id)).map_or(0, |meta| meta.len());
        file.size.saturating_sub(part)
    }

    /// Whether the snapshot's folder shows the file in its full size.
    pub(super) fn shows(&self, snapshot: &Snapshot, file: &RemoteFile) -> bool {
        let folder = self.snapshot_dir(&snapshot.repo, snapshot.dataset, &snapshot.commit);
        is_file_of(&folder.join(&file.path), file.size)
    }

    /// The only writer of a blob, among all tools that keep to the cache's layout. `waiting` is called once if
    /// another one has it.
    pub(super) fn lock(
        &self,
        snapshot: &Snapshot,
        id: &BlobId,
        cancel: &Cancel,
        mut waiting: impl FnMut(),
    ) -> Result<File> {
        let folder = self.root.join(".locks").join(Self::repo_name(&snapshot.repo, snapshot.dataset));
        create_dir(&folder)?;
        let path = folder.join(format!("{}.lock", id.as_str()));
        let open = || File::options().create(true).append(true).open(&path).map_err(|e| Error::io("open", &path, e));
        let mut said = false;
        loop {
            cancel.check()?;
            let file = open()?;
            match file.try_lock() {
                // Some tools remove the file when they are done: a lock on a removed one guards nothing.
                Ok(()) if is_same_file(&file, &path) => return Ok(file),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(Error::io("lock", &path, e)),
            }
            if !std::mem::replace(&mut said, true) {
                waiting();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Shows a blob in the snapshot's folder.
    pub(super) fn link(&self, snapshot: &Snapshot, file: &RemoteFile) -> Result<()> {
        let folder = self.snapshot_dir(&snapshot.repo, snapshot.dataset, &snapshot.commit);
        let pointer = folder.join(&file.path);
        // Two levels up from the commit's folder, and one for each folder of the path.
        let up = "../".repeat(2 + file.path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", file.id.as_str()));
        if std::fs::read_link(&pointer).is_ok_and(|old| old == target) {
            return Ok(());
        }
        let parent = pointer.parent().unwrap_or(&folder);
        create_dir(parent)?;
        let blob = self.blob(snapshot, &file.id);
        let made = tempfile::Builder::new().prefix(".tmp-").make_in(parent, |path| {
            let link = std::os::unix::fs::symlink(&target, path);
            // Disks without symbolic links.
            match link {
                Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                    std::fs::hard_link(&blob, path).or_else(|_| std::fs::copy(&blob, path).map(|_| ()))
                }
                other => other,
            }
        });
        let link = made.map_err(|e| Error::io("link", &pointer, e))?;
        link.into_temp_path().persist(&pointer).map_err(|e| Error::io("link", &pointer, e.error))
    }

    /// Remembers which commit a branch or tag stands for, so that it can be found offline.
    pub(super) fn set_ref(&self, repo: &str, dataset: bool, revision: &str, commit: &str) -> Result<()> {
        if names::is_commit(revision) {
            return Ok(());
        }
        let path = self.repo_dir(repo, dataset).join("refs").join(revision);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == commit) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.root);
        create_dir(parent)?;
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(parent)?;
            file.write_all(commit.as_bytes())?;
            let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            file.as_file().set_permissions(everyone)?;
            file.persist(&path).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(|e| Error::io("write", &path, e))
    }

    /// What the cache knows of a revision, without asking anybody.
    pub(super) fn snapshot(&self, repo: &str, dataset: bool, revision: &str) -> Result<Snapshot> {
        let missing = || {
            let kind = if dataset { "data set" } else { "model" };
            Error::missing(format!("{kind} `{repo}` at `{revision}` is not in the cache, and HF_HUB_OFFLINE is set"))
                .hint("unset HF_HUB_OFFLINE to fetch it, or copy it into the folder of HF_HOME")
        };
        let commit = if names::is_commit(revision) {
            revision.to_owned()
        } else {
            let path = self.repo_dir(repo, dataset).join("refs").join(revision);
            let text = std::fs::read_to_string(&path).map_err(|_| missing())?;
            text.trim().to_owned()
        };
        if !names::is_commit(&commit) {
            return Err(missing());
        }
        let folder = self.snapshot_dir(repo, dataset, &commit);
        let mut files = Vec::new();
        walk(&folder, "", &mut files)?;
        if files.is_empty() {
            return Err(missing());
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Snapshot { repo: repo.to_owned(), dataset, revision: revision.to_owned(), commit, files })
    }
}

/// Files of a snapshot's folder; what a link's blob is called is its digest, others are hashed.
fn walk(folder: &Path, prefix: &str, files: &mut Vec<RemoteFile>) -> Result<()> {
    let items = match std::fs::read_dir(folder) {
        Ok(items) => items,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("read", folder, e)),
    };
    for item in items {
        let item = item.map_err(|e| Error::io("read", folder, e))?;
        let (path, name) = (item.path(), item.file_name());
        let Some(name) = name.to_str().filter(|name| !name.starts_with(".tmp-")) else { continue };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let kind = item.file_type().map_err(|e| Error::io("read", &path, e))?;
        if kind.is_dir() {
            walk(&path, &name, files)?;
            continue;
        }
        // A link whose blob was removed is a file that is not there.
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        if !meta.is_file() || names::check_path(&name).is_err() {
            continue;
        }
        let target = std::fs::read_link(&path).ok();
        let blob = target.as_deref().and_then(Path::file_name).and_then(|n| n.to_str()).map(str::to_owned);
        let id = match blob {
            Some(id) if id.len() == 64 => BlobId::Sha256(id),
            Some(id) => BlobId::Git(id),
            None => BlobId::Sha256(String::new()),
        };
        let id = if id.is_valid() { id } else { BlobId::Sha256(digest::sha256_file(&path, &Cancel::new(), |_| ())?.1) };
        files.push(RemoteFile { path: name, size: meta.len(), id });
        if files.len() > MAX_FILES {
            return Err(Error::input(format!("{} holds more than {MAX_FILES} files", folder.display())));
        }
    }
    Ok(())
}

fn is_file_of(path: &Path, size: u64) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == size)
}

fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

pub(super) fn create_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| {
        let error = Error::io("create", path, e);
        if error.hint_text().is_some() { error } else { error.hint("set HF_HOME to a folder that can be written") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(files: Vec<RemoteFile>) -> Snapshot {
        Snapshot { repo: "a/b".into(), dataset: false, revision: "refs/pr/1".into(), commit: "0f".repeat(20), files }
    }

    #[test]
    fn links_are_relative_and_a_snapshot_is_found_again_offline() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("hub"));
        let file = RemoteFile { path: "w/x/m.bin".into(), size: 3, id: BlobId::Sha256("2d".repeat(32)) };
        let want = snapshot(vec![file.clone()]);
        assert_eq!(cache.remaining(&want, &file), 3);
        let blob = cache.blob(&want, &file.id);
        create_dir(blob.parent().unwrap()).unwrap();
        std::fs::write(cache.part(&want, &file.id), "a").unwrap();
        assert_eq!(cache.remaining(&want, &file), 2);
        std::fs::write(&blob, "abc").unwrap();
        assert_eq!(cache.remaining(&want, &file), 0);
        for _ in 0..2 {
            cache.link(&want, &file).unwrap();
        }
        cache.set_ref("a/b", false, &want.revision, &want.commit).unwrap();
        // A cache that was moved still works, and is found by its ref or its commit.
        std::fs::rename(dir.path().join("hub"), dir.path().join("moved")).unwrap();
        let moved = Cache::new(dir.path().join("moved"));
        assert!(moved.shows(&want, &file));
        assert_eq!(moved.snapshot("a/b", false, "refs/pr/1").unwrap(), want);
        assert_eq!(moved.snapshot("a/b", false, &want.commit).unwrap().files, want.files);
        for (dataset, revision) in [(true, "refs/pr/1"), (false, "main")] {
            assert_eq!(moved.snapshot("a/b", dataset, revision).unwrap_err().kind(), Kind::Missing);
        }
        std::fs::remove_file(moved.blob(&want, &file.id)).unwrap();
        assert!(!moved.shows(&want, &file) && moved.snapshot("a/b", false, &want.commit).is_err());
    }

    #[test]
    fn one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_path_buf());
        let (want, id) = (snapshot(Vec::new()), BlobId::Git("1e".repeat(20)));
        let held = cache.lock(&want, &id, &Cancel::new(), || panic!("nobody has it")).unwrap();
        let cancel = Cancel::new();
        let second = cache.lock(&want, &id, &cancel, || cancel.cancel());
        assert_eq!(second.unwrap_err().kind(), Kind::Cancelled);
        drop(held);
        cache.lock(&want, &id, &Cancel::new(), || panic!("it is free again")).unwrap();
    }
}
