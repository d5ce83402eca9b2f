//! The hub: its HTTP protocol and the Hugging Face cache layout. Everything from outside is verified.
//!
//! [`Hub::resolve`] turns a repository and a revision into a pinned commit with the size and digest of every file;
//! [`select`] chooses which of them are needed; [`Hub::fetch`] brings those into the Hugging Face cache, which is
//! shared with other tools. Names, sizes and digests from the hub are checked before anything is written.

mod address;
mod blob;
pub mod bundled;
mod cache;
mod config;
mod digest;
mod fetch;
mod http;
mod info;
pub mod names;
mod pace;
mod present;
mod refusal;
pub mod select;
mod space;

use std::path::{Path, PathBuf};

pub use cache::Cache;
pub use config::{HubConfig, Token, cache_folder};
pub use digest::sha256_file;
pub use info::{BlobId, RemoteFile, Snapshot};
pub use present::{Manifest, ManifestFile, ensure_present};
pub use space::free_bytes;

use crate::Result;
use crate::control::{Cancel, Progress};

/// A client for one endpoint and one cache folder.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    http: http::Http,
    cache: Cache,
}

impl Hub {
    /// As `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and their kin say.
    ///
    /// # Errors
    /// When one of them is malformed or no home folder is known.
    pub fn from_env() -> Result<Self> {
        Self::new(HubConfig::from_env()?)
    }

    /// # Errors
    /// When the endpoint is not an http or https address.
    pub fn new(config: HubConfig) -> Result<Self> {
        let http = http::Http::new(&config)?;
        let cache = Cache::new(config.cache.clone());
        Ok(Self { config, http, cache })
    }

    pub fn config(&self) -> &HubConfig {
        &self.config
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The folder of a commit's files in the cache, whether they are there or not.
    pub fn snapshot_dir(&self, repo: &str, dataset: bool, commit: &str) -> PathBuf {
        self.cache.snapshot_dir(repo, dataset, commit)
    }

    /// The commit behind `revision` and all its files. Offline: what the cache knows of it.
    ///
    /// # Errors
    /// Unknown or gated repositories, unknown revisions, hostile file names, no connection.
    pub fn resolve(&self, repo: &str, dataset: bool, revision: &str, cancel: &Cancel) -> Result<Snapshot> {
        names::check_repo(repo)?;
        names::check_revision(revision)?;
        if self.config.offline {
            return self.cache.snapshot(repo, dataset, revision);
        }
        info::resolve(&self.http, repo, dataset, revision, self.config.listing_limit, cancel)
    }

    /// Bytes of `files` that the cache lacks.
    pub fn missing_bytes(&self, snapshot: &Snapshot, files: &[&RemoteFile]) -> u64 {
        files.iter().map(|file| self.cache.remaining(snapshot, file)).sum()
    }

    /// Brings `files` of the snapshot into the cache and returns the snapshot's folder. What is there already is not
    /// fetched again; what was cut off is resumed; several files travel at once.
    ///
    /// # Errors
    /// As [`Hub::resolve`]; and a full disk, or bytes that stay wrong after the retries.
    pub fn fetch(
        &self,
        snapshot: &Snapshot,
        files: &[&RemoteFile],
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<PathBuf> {
        fetch::fetch(self, snapshot, files, progress, cancel)
    }

    /// Remembers in the cache which commit `revision` stands for, so that it is found offline too.
    pub fn remember(&self, snapshot: &Snapshot, revision: &str) {
        // Only saves asking the hub later; a cache that may only be read keeps what it has.
        if names::check_revision(revision).is_ok() {
            let _ = self.cache.set_ref(&snapshot.repo, snapshot.dataset, revision, &snapshot.commit);
        }
    }

    /// Address of one file at its pinned commit.
    fn file_url(&self, snapshot: &Snapshot, path: &str) -> String {
        let prefix = if snapshot.dataset { "datasets/" } else { "" };
        format!(
            "{}/{prefix}{}/resolve/{}/{}",
            self.http.endpoint(),
            snapshot.repo,
            snapshot.commit,
            names::encode_path(path)
        )
    }

    /// Where a file of a snapshot lies in the cache.
    pub fn file_path(&self, snapshot: &Snapshot, path: &str) -> PathBuf {
        self.snapshot_dir(&snapshot.repo, snapshot.dataset, &snapshot.commit).join(Path::new(path))
    }
}
