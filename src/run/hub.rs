//! The hub as the one who knows revisions.

use super::pins::Resolver;
use crate::Result;
use crate::control::Cancel;
use crate::hub::{BlobId, Hub};
use crate::plan::lockfile::{LockedFile, Pin, Request};

impl Resolver for Hub {
    fn resolve(&self, request: &Request, cancel: &Cancel) -> Result<Pin> {
        let snapshot = Hub::resolve(self, &request.repo, request.dataset, &request.revision, cancel)?;
        let files = snapshot.files.into_iter().map(|file| {
            let (sha256, git) = match file.id {
                BlobId::Sha256(id) => (Some(id), None),
                BlobId::Git(id) => (None, Some(id)),
            };
            LockedFile { path: file.path, size: file.size, sha256, git }
        });
        Ok(Pin { commit: snapshot.commit, files: files.collect() })
    }
}
