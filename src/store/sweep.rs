//! What lies in the store, how large it is, and how it goes away.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::draft::DRAFT_PREFIX;
use super::{Artifact, Store, is_fingerprint, reference_fingerprint, unreadable};
use crate::{Error, Result};

/// Something that gc removed or would remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// `store/<fingerprint>`, `work/<fingerprint>`, `quarantine/...`.
    pub what: String,
    pub bytes: u64,
}

impl Store {
    /// Fingerprints of all entries, good or bad, sorted.
    pub fn fingerprints(&self) -> Result<Vec<String>> {
        Ok(children(&self.entries())?.into_iter().filter(|n| is_fingerprint(n)).collect())
    }

    /// Every entry whose description can be read; the others by fingerprint.
    pub fn list(&self) -> Result<(Vec<Artifact>, Vec<String>)> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for fingerprint in self.fingerprints()? {
            match self.peek(&fingerprint)? {
                Some(artifact) => good.push(artifact),
                None => bad.push(fingerprint),
            }
        }
        good.sort_by(|a, b| a.meta.provenance.started.cmp(&b.meta.provenance.started));
        Ok((good, bad))
    }

    /// Bytes free for us on the disk that holds (or will hold) the store.
    pub fn free_bytes(&self) -> Result<u64> {
        crate::hub::free_bytes(&self.root)
    }

    /// Removes one entry with its checkpoints; waits for nobody.
    pub fn remove(&self, fingerprint: &str) -> Result<u64> {
        let entry = self.entry(fingerprint)?;
        let Some(_lock) = self.try_lock(fingerprint, "cache remove")? else {
            return Err(Error::failed(format!("{} is being made right now", super::short(fingerprint)))
                .hint("wait for the run that makes it, or stop it first"));
        };
        let work = self.work(fingerprint);
        let bytes = disk_usage(&entry)? + disk_usage(&work)?;
        // The description goes first with the rename: a kill in between leaves no entry that lacks a file.
        if entry.exists() {
            let aside = self.entries().join(format!("{DRAFT_PREFIX}{fingerprint}-removed"));
            remove_tree(&aside)?;
            std::fs::rename(&entry, &aside).map_err(|e| Error::io("remove", &entry, e))?;
            remove_tree(&aside)?;
        }
        remove_tree(&work)?;
        remove_tree(&self.stamp_path(fingerprint))?;
        Ok(bytes)
    }

    /// Removes every entry but those in `keep` and what they refer to, plus checkpoints without a keeper, quarantined
    /// entries and left-overs of killed writers. Entries being made are left alone.
    pub fn gc(&self, keep: &BTreeSet<String>, dry_run: bool) -> Result<Vec<Removed>> {
        let mut live = keep.clone();
        let mut queue: Vec<String> = keep.iter().cloned().collect();
        while let Some(fingerprint) = queue.pop() {
            if is_fingerprint(&fingerprint)
                && let Some(artifact) = self.peek(&fingerprint)?
                && let Some(other) = reference_fingerprint(&artifact)
                && live.insert(other.to_owned())
            {
                queue.push(other.to_owned());
            }
        }
        let mut removed = Vec::new();
        for fingerprint in self.fingerprints()? {
            if live.contains(&fingerprint) {
                continue;
            }
            if dry_run {
                let bytes = disk_usage(&self.entry(&fingerprint)?)?;
                removed.push(Removed { what: format!("store/{fingerprint}"), bytes });
            } else if let Some(lock) = self.try_lock(&fingerprint, "cache gc")? {
                drop(lock);
                removed.push(Removed { what: format!("store/{fingerprint}"), bytes: self.remove(&fingerprint)? });
            }
        }
        for name in children(&self.root.join("work"))? {
            if live.contains(&name) || !is_fingerprint(&name) {
                continue;
            }
            let Some(_lock) = self.try_lock(&name, "cache gc")? else { continue };
            let path = self.work(&name);
            removed.push(Removed { what: format!("work/{name}"), bytes: disk_usage(&path)? });
            if !dry_run {
                remove_tree(&path)?;
            }
        }
        for name in children(&self.root.join("quarantine"))? {
            let path = self.root.join("quarantine").join(&name);
            removed.push(Removed { what: format!("quarantine/{name}"), bytes: disk_usage(&path)? });
            if !dry_run {
                remove_tree(&path)?;
            }
        }
        if !dry_run {
            self.sweep_drafts()?;
        }
        Ok(removed)
    }

    /// Entries that were made or used within `least`, and those whose times lie in the future: a clock that was set
    /// back must not make young ones old.
    pub fn used_within(&self, least: Duration) -> Result<BTreeSet<String>> {
        let now = SystemTime::now();
        let young = |path: &Path| {
            let time = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
            time.is_ok_and(|time| now.duration_since(time).map_or(true, |age| age < least))
        };
        let mut found = BTreeSet::new();
        for fingerprint in self.fingerprints()? {
            let used = [self.entry(&fingerprint)?.join("artifact.json"), self.stamp_path(&fingerprint)];
            if used.iter().any(|path| young(path)) {
                found.insert(fingerprint);
            }
        }
        for name in children(&self.root.join("work"))? {
            // A checkpoint is renamed into its folder, whose time then is that of the last one.
            if is_fingerprint(&name) && young(&self.work(&name)) {
                found.insert(name);
            }
        }
        Ok(found)
    }

    /// Notes that an entry was used now, for `cache gc --older-than`. Only a help: failing is no error.
    pub fn touch(&self, fingerprint: &str) {
        if is_fingerprint(fingerprint)
            && let Ok(stamp) = std::fs::File::options().append(true).open(self.stamp_path(fingerprint))
        {
            let _ = stamp.set_modified(SystemTime::now());
        }
    }

    /// Removes what killed writers left, each under its lock; gives the number of folders removed.
    pub fn sweep_drafts(&self) -> Result<usize> {
        let mut n = 0;
        let drafts: BTreeSet<String> = children(&self.entries())?
            .iter()
            .filter_map(|name| name.strip_prefix(DRAFT_PREFIX)?.get(..64).map(str::to_owned))
            .filter(|f| is_fingerprint(f))
            .collect();
        for fingerprint in drafts {
            if let Some(_lock) = self.try_lock(&fingerprint, "sweep")? {
                n += self.remove_drafts(&fingerprint)?;
            }
        }
        Ok(n)
    }

    /// The caller holds the lock of `fingerprint`.
    pub(super) fn remove_drafts(&self, fingerprint: &str) -> Result<usize> {
        let prefix = format!("{DRAFT_PREFIX}{fingerprint}-");
        let mut n = 0;
        for name in children(&self.entries())?.iter().filter(|name| name.starts_with(&prefix)) {
            remove_tree(&self.entries().join(name))?;
            n += 1;
        }
        Ok(n)
    }
}

/// Bytes of all plain files below `path` (links are not followed); 0 where there is nothing.
pub fn disk_usage(path: &Path) -> Result<u64> {
    let mut total = 0u64;
    let mut queue = vec![path.to_path_buf()];
    while let Some(path) = queue.pop() {
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).map_err(|e| Error::io("read", &path, e))?;
            queue.extend(entries.filter_map(|e| Some(e.ok()?.path())));
        } else if meta.is_file() {
            total += meta.len();
        }
    }
    Ok(total)
}

/// Removes a file or folder; nothing there is fine.
pub fn remove_tree(path: &Path) -> Result<()> {
    let result = match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Names in a folder, sorted; none where there is no folder.
fn children(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(unreadable(folder, e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path: PathBuf = entry.map_err(|e| unreadable(folder, e))?.path();
        if let Some(name) = path.file_name().and_then(|n| n.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
