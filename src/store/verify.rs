//! Is an entry still what was stored? Sizes always; bytes when a file changed since it was last hashed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::draft::{reference, write_atomic};
use super::{Artifact, Meta, Store, unreadable};
use crate::{Error, Result};

/// What the store holds for a fingerprint.
#[derive(Clone, Debug)]
pub enum Lookup {
    Hit(Box<Artifact>),
    Missing,
    /// Why it cannot be used.
    Bad(String),
}

/// `[size, mtime seconds, mtime nanoseconds]` under which a file was last hashed.
type Stamp = (u64, i64, i64);

/// artifact.json holds the list of files and a configuration; more is not one of ours.
const MAX_META: u64 = 64 << 20;

/// Lower-case hex blake3 of a file's bytes.
pub fn hash_file(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    File::open(path).and_then(|file| hasher.update_reader(file).map(|_| ())).map_err(|e| Error::io("read", path, e))?;
    Ok(hasher.finalize().to_hex().to_string())
}

impl Store {
    /// The state of an entry: sizes are checked, and hashes of files whose size or mtime is not the recorded one.
    /// Also bad: one whose reference (hub snapshot, other artifact, local folder) is gone.
    pub fn lookup(&self, fingerprint: &str) -> Result<Lookup> {
        self.check(fingerprint, false)
    }

    /// The same with every byte hashed.
    pub fn verify(&self, fingerprint: &str) -> Result<Lookup> {
        self.check(fingerprint, true)
    }

    /// The entry as it is described, nothing checked.
    pub fn peek(&self, fingerprint: &str) -> Result<Option<Artifact>> {
        let dir = self.entry(fingerprint)?;
        match read_meta(&dir) {
            Ok(Ok(meta)) if meta.fingerprint == fingerprint => Ok(Some(Artifact { dir, meta })),
            Ok(_) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn check(&self, fingerprint: &str, every_byte: bool) -> Result<Lookup> {
        let dir = self.entry(fingerprint)?;
        match std::fs::symlink_metadata(&dir) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Ok(Lookup::Bad("it is not a folder".to_owned())),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Lookup::Missing),
            Err(e) => return Err(unreadable(&dir, e)),
        }
        let meta = match read_meta(&dir)? {
            Ok(meta) => meta,
            Err(why) => return Ok(Lookup::Bad(why)),
        };
        if meta.fingerprint != fingerprint {
            return Ok(Lookup::Bad("artifact.json belongs to another entry".to_owned()));
        }
        if let Some(why) = self.check_files(&dir, &meta, every_byte)? {
            return Ok(Lookup::Bad(why));
        }
        let artifact = Artifact { dir, meta };
        if let Some(location) = reference(&artifact.meta.handle)
            && let Err(e) = self.locate(&artifact, location)
        {
            return Ok(Lookup::Bad(e.message().to_owned()));
        }
        Ok(Lookup::Hit(Box::new(artifact)))
    }

    /// Why the files are not those that were stored, if so.
    fn check_files(&self, dir: &Path, meta: &Meta, every_byte: bool) -> Result<Option<String>> {
        let stamps = self.read_stamps(&meta.fingerprint);
        let mut hashed = false;
        for (name, entry) in &meta.files {
            let Ok(path) = super::join_inside(dir, name) else {
                return Ok(Some(format!("`{name}` points outside")));
            };
            let found = match std::fs::symlink_metadata(&path) {
                Ok(found) if found.is_file() => found,
                Ok(_) => return Ok(Some(format!("`{name}` is not a plain file"))),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Some(format!("`{name}` is missing"))),
                Err(e) => return Err(unreadable(&path, e)),
            };
            if found.len() != entry.size {
                return Ok(Some(format!("`{name}` has {} bytes, not {}", found.len(), entry.size)));
            }
            if every_byte || stamps.get(name) != Some(&stamp_of(&found)) {
                hashed = true;
                if hash_file(&path)? != entry.blake3 {
                    return Ok(Some(format!("the content of `{name}` has changed")));
                }
            }
        }
        if hashed {
            self.stamp(dir, meta);
        }
        Ok(None)
    }

    /// Moves a bad entry out of the way (its lock is held by the caller) and says where it is now.
    pub fn quarantine(&self, fingerprint: &str, _held: &super::Lock) -> Result<PathBuf> {
        let entry = self.entry(fingerprint)?;
        let folder = self.root.join("quarantine");
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("create", &folder, e))?;
        let mut n = 0;
        loop {
            let place = folder.join(format!("{fingerprint}-{n}"));
            if !place.exists() {
                std::fs::rename(&entry, &place).map_err(|e| Error::io("set aside", &entry, e))?;
                return Ok(place);
            }
            n += 1;
        }
    }

    /// Records the sizes and times under which the files of a sound entry were hashed. Only saves time later, so a
    /// failure to write is no error.
    pub(super) fn stamp(&self, dir: &Path, meta: &Meta) {
        let stamps: BTreeMap<&String, Stamp> = meta
            .files
            .keys()
            .filter_map(|name| Some((name, stamp_of(&std::fs::symlink_metadata(dir.join(name)).ok()?))))
            .collect();
        if let Ok(text) = serde_json::to_vec(&stamps) {
            let _ = write_atomic(&self.stamp_path(&meta.fingerprint), &text);
        }
    }

    fn read_stamps(&self, fingerprint: &str) -> BTreeMap<String, Stamp> {
        let text = std::fs::read(self.stamp_path(fingerprint)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(super) fn stamp_path(&self, fingerprint: &str) -> PathBuf {
        self.root.join("stamps").join(format!("{fingerprint}.json"))
    }
}

fn stamp_of(meta: &std::fs::Metadata) -> Stamp {
    (meta.len(), meta.mtime(), meta.mtime_nsec())
}

/// The inner error says why the description cannot be used.
fn read_meta(dir: &Path) -> Result<Result<Meta, String>> {
    let path = dir.join("artifact.json");
    match std::fs::metadata(&path) {
        Ok(found) if found.len() > MAX_META => return Ok(Err("artifact.json is too large".to_owned())),
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Err("artifact.json is missing".to_owned())),
        Err(e) => return Err(unreadable(&path, e)),
    }
    let text = std::fs::read(&path).map_err(|e| unreadable(&path, e))?;
    Ok(serde_json::from_slice(&text).map_err(|e| format!("artifact.json cannot be read ({e})")))
}
