//! Digests that the hub names files by: sha256 for large files, git's blob sha1 for the others.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::info::BlobId;
use crate::control::Cancel;
use crate::{Error, Result};

/// Both digests of a file that arrives in pieces.
pub(super) struct Hasher {
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Hasher {
    /// `size` is part of git's digest.
    pub(super) fn new(id: &BlobId, size: u64) -> Self {
        let git = match id {
            BlobId::Git(_) => {
                let mut git = Sha1::new();
                git.update(format!("blob {size}\0").as_bytes());
                Some(git)
            }
            BlobId::Sha256(_) => None,
        };
        Self { sha256: Sha256::new(), git }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
    }

    /// The sha256, and whether the hub's digest matches.
    pub(super) fn finish(self, id: &BlobId) -> (String, bool) {
        let sha256 = hex(&self.sha256.finalize());
        let matches = match id {
            BlobId::Sha256(expected) => *expected == sha256,
            // Git's sha256 repositories have 64 digits; the hub has none today, so their size alone is checked.
            BlobId::Git(expected) if expected.len() != 40 => true,
            BlobId::Git(expected) => self.git.is_some_and(|git| *expected == hex(&git.finalize())),
        };
        (sha256, matches)
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

/// sha256 (hex) of bytes in memory.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
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
        assert_eq!(hasher.finish(&git), (lfs.to_owned(), true));
        let id = BlobId::Sha256(lfs.to_owned());
        let mut hasher = Hasher::new(&id, 6);
        hasher.update(b"hello!");
        assert!(!hasher.finish(&id).1);
    }
}
