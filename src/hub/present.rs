//! What a download consists of, so that missing files can be told and fetched again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::info::{BlobId, RemoteFile, Snapshot};
use super::{Hub, info, names};
use crate::control::{Cancel, Progress};
use crate::error::Kind;
use crate::{Error, Result};

/// The files of a commit that a download took; written as `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub repo: String,
    pub dataset: bool,
    pub commit: String,
    /// In order of their paths.
    pub files: Vec<ManifestFile>,
}

/// One file with the digest by which the hub names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    pub path: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Git's blob id, of files that are not in large-file storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<String>,
}

impl Manifest {
    /// Its name in a download's artifact.
    pub const FILE: &'static str = "manifest.json";

    pub fn new(snapshot: &Snapshot, files: &[&RemoteFile]) -> Self {
        let files = files.iter().map(|file| {
            let (sha256, git) = match &file.id {
                BlobId::Sha256(id) => (Some(id.clone()), None),
                BlobId::Git(id) => (None, Some(id.clone())),
            };
            ManifestFile { path: file.path.clone(), size: file.size, sha256, git }
        });
        Self {
            repo: snapshot.repo.clone(),
            dataset: snapshot.dataset,
            commit: snapshot.commit.clone(),
            files: files.collect(),
        }
    }

    /// Reads the manifest in an artifact's folder.
    ///
    /// # Errors
    /// When it is missing or malformed.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(Self::FILE);
        let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        serde_json::from_slice(&text).map_err(|e| {
            Error::new(Kind::Integrity, format!("{} is not a download's manifest", path.display()))
                .caused_by(e)
                .hint("remove that artifact (`qerl cache rm`) and run again")
        })
    }

    /// Writes it into the folder.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(Self::FILE);
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::failed("cannot write the download's manifest").caused_by(e))?;
        text.push('\n');
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
    }

    /// The same as a snapshot, every name in it checked: a manifest may come from another machine.
    ///
    /// # Errors
    /// Names or digests that could leave the cache.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let untrusted = |what: &str| {
            Error::new(Kind::Integrity, format!("the manifest of `{}` {what}", names::shown(&self.repo)))
                .hint("it was not written by qerl: remove that artifact (`qerl cache rm`) and run again")
        };
        names::check_repo(&self.repo)?;
        if !names::is_commit(&self.commit) {
            return Err(untrusted("names no commit"));
        }
        let mut files = Vec::with_capacity(self.files.len());
        for file in &self.files {
            names::check_path(&file.path)?;
            let id = match (&file.sha256, &file.git) {
                (Some(id), _) => BlobId::Sha256(id.clone()),
                (None, Some(id)) => BlobId::Git(id.clone()),
                (None, None) => return Err(untrusted("has a file without a digest")),
            };
            if !id.is_valid() {
                return Err(untrusted("has a malformed digest"));
            }
            files.push(RemoteFile { path: file.path.clone(), size: file.size, id });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        info::check_tree(&self.repo, &files)?;
        Ok(Snapshot {
            repo: self.repo.clone(),
            dataset: self.dataset,
            revision: self.commit.clone(),
            commit: self.commit.clone(),
            files,
        })
    }
}

/// Fetches what the cache has lost of a finished download; touches no network and reads no bytes when every file is
/// there in its size. Gives the snapshot's folder.
///
/// # Errors
/// As [`Hub::fetch`].
pub fn ensure_present(hub: &Hub, manifest: &Manifest, progress: &dyn Progress, cancel: &Cancel) -> Result<PathBuf> {
    let snapshot = manifest.snapshot()?;
    let lost: Vec<&RemoteFile> = snapshot.files.iter().filter(|file| !hub.cache().shows(&snapshot, file)).collect();
    if lost.is_empty() {
        return Ok(hub.snapshot_dir(&snapshot.repo, snapshot.dataset, &snapshot.commit));
    }
    let s = if lost.len() == 1 { "" } else { "s" };
    progress.say(&format!("{} file{s} of {} left the Hugging Face cache: fetching again", lost.len(), snapshot.repo));
    hub.fetch(&snapshot, &lost, progress, cancel)
}
