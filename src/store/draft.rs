//! An artifact while it is being written: a temp dir that becomes an entry by one rename.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Artifact, FileEntry, Handle, Key, Location, Lock, Meta, Provenance, Store, hash_file, short};
use crate::{Error, Result};

/// Dropping it without [`Draft::commit`] removes what was written.
#[derive(Debug)]
pub struct Draft<'a> {
    store: &'a Store,
    fingerprint: String,
    dir: PathBuf,
    committed: bool,
}

/// What a finished stage adds to its files.
#[derive(Clone, Debug)]
pub struct Finished {
    pub declared: Vec<String>,
    pub handle: Handle,
    pub summary: serde_json::Value,
    /// Slot -> fingerprint.
    pub inputs: BTreeMap<String, String>,
    pub provenance: Provenance,
}

pub(super) const DRAFT_PREFIX: &str = ".tmp-";

impl Store {
    /// A fresh folder for `fingerprint`, whose lock the caller holds. Left-overs of killed writers are removed.
    pub fn begin(&self, fingerprint: &str, _held: &Lock) -> Result<Draft<'_>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        self.entry(fingerprint)?;
        self.remove_drafts(fingerprint)?;
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = self.entries().join(format!("{DRAFT_PREFIX}{fingerprint}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        Ok(Draft { store: self, fingerprint: fingerprint.to_owned(), dir, committed: false })
    }
}

impl Draft<'_> {
    /// The stage writes here.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Hashes and syncs every file, writes artifact.json last, and renames the folder into place.
    pub fn commit(mut self, key: &Key, finished: Finished) -> Result<Artifact> {
        let mut files = BTreeMap::new();
        collect(&self.dir, "", &mut files)?;
        if files.contains_key("artifact.json") {
            return Err(Error::failed("a stage may not write artifact.json: that name is the store's"));
        }
        let declared = expand_declared(&finished.declared, &files)?;
        let digest = self.digest(&declared, &files, &finished.handle)?;
        let meta = Meta {
            fingerprint: self.fingerprint.clone(),
            kind: key.kind,
            version: key.version,
            backend: key.backend.clone(),
            input_keys: key.inputs.clone(),
            digest,
            handle: finished.handle,
            summary: finished.summary,
            config: key.config.clone(),
            inputs: finished.inputs,
            files,
            declared,
            provenance: finished.provenance,
        };
        let text = serde_json::to_vec_pretty(&meta)
            .map_err(|e| Error::failed("cannot write the artifact's description").caused_by(e))?;
        write_synced(&self.dir.join("artifact.json"), &text)?;
        sync(&self.dir)?;
        let entry = self.store.entry(&self.fingerprint)?;
        replace(&self.dir, &entry)?;
        self.committed = true;
        sync(&self.store.entries())?;
        self.store.stamp(&entry, &meta);
        Ok(Artifact { dir: entry, meta })
    }

    fn digest(&self, declared: &[String], files: &BTreeMap<String, FileEntry>, handle: &Handle) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        let mut field = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for name in declared {
            let entry = &files[name];
            field(name);
            field(&entry.size.to_string());
            field(&entry.blake3);
        }
        // A reference (a base model under an adapter, bf16 weights left in the hub's cache) is content too: two
        // artifacts with equal files on different bases are not equal.
        match reference(handle) {
            None | Some(Location::Own { .. }) => {}
            Some(Location::Artifact { fingerprint, path }) => {
                let other = self.store.peek(fingerprint)?.ok_or_else(|| {
                    Error::missing(format!("the artifact {} that the output refers to is gone", short(fingerprint)))
                        .hint("run again: it is made anew")
                })?;
                for text in ["artifact", &other.meta.digest, path] {
                    field(text);
                }
            }
            Some(Location::Hub { repo, dataset, commit }) => {
                for text in ["hub", repo, &dataset.to_string(), commit] {
                    field(text);
                }
            }
            // Its path must not count; its content is in the fingerprint.
            Some(Location::Local { .. }) => {
                for text in ["local", &self.fingerprint] {
                    field(text);
                }
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.committed {
            // What cannot be removed now is swept by the next holder of the lock.
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// The one place outside that a handle refers to.
pub(super) fn reference(handle: &Handle) -> Option<&Location> {
    match handle {
        Handle::Model { at } | Handle::Files { at } => Some(at),
        Handle::Adapter { model, .. } => Some(model),
        Handle::Models { .. } | Handle::Problems { .. } | Handle::Eval | Handle::Report { .. } => None,
    }
}

/// Every plain file below `dir`, synced and hashed, by its path with `/`.
fn collect(dir: &Path, prefix: &str, files: &mut BTreeMap<String, FileEntry>) -> Result<()> {
    for item in std::fs::read_dir(dir).map_err(|e| Error::io("read", dir, e))? {
        let item = item.map_err(|e| Error::io("read", dir, e))?;
        let path = item.path();
        let name = item.file_name();
        let name = name.to_str().ok_or_else(|| Error::failed(format!("not a UTF-8 file name: {}", path.display())))?;
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let kind = item.file_type().map_err(|e| Error::io("read", &path, e))?;
        if kind.is_dir() {
            collect(&path, &name, files)?;
        } else if kind.is_file() {
            sync(&path)?;
            let size = item.metadata().map_err(|e| Error::io("read", &path, e))?.len();
            files.insert(name, FileEntry { size, blake3: hash_file(&path)? });
        } else {
            return Err(Error::failed(format!("an artifact holds plain files only, not `{name}`")));
        }
    }
    if !prefix.is_empty() {
        sync(dir)?;
    }
    Ok(())
}

/// Sorted file names; a declared folder stands for all files below it.
fn expand_declared(declared: &[String], files: &BTreeMap<String, FileEntry>) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for name in declared {
        if files.contains_key(name) {
            names.insert(name.clone());
            continue;
        }
        let folder = format!("{}/", name.trim_end_matches('/'));
        let before = names.len();
        names.extend(files.keys().filter(|f| f.starts_with(&folder)).cloned());
        if names.len() == before && !files.keys().any(|f| f.starts_with(&folder)) {
            return Err(Error::failed(format!("the stage declared the output `{name}` but did not write it")));
        }
    }
    Ok(names.into_iter().collect())
}

/// Renames `from` to `to`; an entry that is already there is swapped out in the same step and then removed.
fn replace(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match std::fs::rename(from, to) {
        Ok(()) => return Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
        Err(e) => return Err(Error::io("put into the store", to, e)),
    }
    if renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).is_ok() {
        // Now the old entry lies under the draft's name.
        return std::fs::remove_dir_all(from).map_err(|e| Error::io("remove the old artifact", from, e));
    }
    // A file system that cannot swap: the entry is missing for a moment, never half there.
    std::fs::remove_dir_all(to).map_err(|e| Error::io("remove the old artifact", to, e))?;
    std::fs::rename(from, to).map_err(|e| Error::io("put into the store", to, e))
}

/// fsync of a file or folder.
pub(super) fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(|e| Error::io("write", path, e))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| Error::io("write", path, e))
}

/// Writes a small file so that readers see the old or the new one, never a part.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(parent)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| Error::io("write", path, e))
}
