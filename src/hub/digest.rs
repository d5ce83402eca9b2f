//! Digests that the hub names files by: sha256 for large files, git's blob sha1 for the others.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::info::BlobId;
use crate::control::Cancel;
use crate::{Error, Result};

/// The digest of a file that arrives in pieces, of the kind that the hub names.
pub(super) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
    /// Git's sha256 repositories: the hub has none today.
    GitSha256(Sha256),
}

impl Hasher {
    /// `size` is part of git's digest.
    pub(super) fn new(id: &BlobId, size: u64) -> Self {
        let head = format!("blob {size}\0");
        match id {
            BlobId::Sha256(_) => Self::Sha256(Sha256::new()),
            BlobId::Git(id) if id.len() == 40 => Self::Git(Sha1::new().chain_update(head)),
            BlobId::Git(_) => Self::GitSha256(Sha256::new().chain_update(head)),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) | Self::GitSha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    /// Whether the digest is the one that the hub names.
    pub(super) fn matches(self, id: &BlobId) -> bool {
        id.as_str()
            == match self {
                Self::Sha256(hasher) | Self::GitSha256(hasher) => hex(&hasher.finalize()),
                Self::Git(hasher) => hex(&hasher.finalize()),
            }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// Feeds a whole file to `sink` in pieces.
pub(super) fn read_pieces(path: &Path, cancel: &Cancel, mut sink: impl FnMut(&[u8])) -> Result<u64> {
    let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut buffer = vec![0_u8; 1 << 20];
    let mut total = 0;
    loop {
        cancel.check()?;
        match file.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                sink(&buffer[..n]);
                total += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("read", path, e)),
        }
    }
}

/// Size and sha256 (hex) of a file.
///
/// # Errors
/// When it cannot be read, or on a request to stop.
pub fn sha256_file(path: &Path, cancel: &Cancel, mut seen: impl FnMut(u64)) -> Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let size = read_pieces(path, cancel, |bytes| {
        hasher.update(bytes);
        seen(bytes.len() as u64);
    })?;
    Ok((size, hex(&hasher.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_git_and_of_large_file_storage() {
        // `printf 'hello\n' | git hash-object --stdin` and `| sha256sum`.
        let git = BlobId::Git("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let lfs = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let mut hasher = Hasher::new(&git, 6);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        assert!(hasher.matches(&git));
        let id = BlobId::Sha256(lfs.to_owned());
        for (text, right) in [("hello\n", true), ("hello!", false)] {
            let mut hasher = Hasher::new(&id, 6);
            hasher.update(text.as_bytes());
            assert_eq!(hasher.matches(&id), right);
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "hello\n").unwrap();
        assert_eq!(sha256_file(&dir.path().join("f"), &Cancel::new(), |_| ()).unwrap(), (6, lfs.to_owned()));
    }
}
