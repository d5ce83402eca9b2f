//! Free space on a disk.

use std::path::Path;

use crate::error::Kind;
use crate::{Error, Result};

/// Kept free beyond what a download needs: other programs write too.
const MARGIN: u64 = 64 << 20;

/// Bytes that an ordinary user may still write on the disk that holds `path` (or its nearest existing parent).
///
/// # Errors
/// When the file system does not say.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let mut at = path;
    while !at.exists() {
        match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => at = parent,
            _ => {
                at = Path::new(".");
                break;
            }
        }
    }
    let stat = rustix::fs::statvfs(at).map_err(|e| Error::io("ask for the free space of", at, e.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Says before a download starts that it will not fit.
pub(super) fn check(path: &Path, needed: u64) -> Result<()> {
    if needed == 0 {
        return Ok(());
    }
    let free = free_bytes(path)?;
    if free >= needed.saturating_add(MARGIN) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Storage,
        format!("{} are to be fetched into {}, where {} are free", human(needed), path.display(), human(free)),
    )
    .hint("free some space, or set HF_HOME to a folder on a larger disk"))
}

/// `1.5 GiB`.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_that_cannot_fit_is_refused_before_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let error = check(&dir.path().join("not/yet/there"), 1 << 60).unwrap_err();
        assert_eq!(error.kind(), Kind::Storage);
        assert!(error.message().contains("1024.0 PiB"), "{error}");
        assert!(check(dir.path(), 0).is_ok());
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }
}
