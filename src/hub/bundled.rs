//! The small model that comes inside the binary.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::Kind;
use crate::{Error, Result};

/// A file that is compiled in.
#[derive(Clone, Copy, Debug)]
pub struct BundledFile {
    pub name: &'static str,
    pub bytes: &'static [u8],
}

/// One line per file of `src/assets/bundled/`: `bundle!["config.json", "model.safetensors"]`.
macro_rules! bundle {
    [$($name:literal),* $(,)?] => {
        &[$(BundledFile { name: $name, bytes: include_bytes!(concat!("../assets/bundled/", $name)) }),*]
    };
}

/// All of them; empty in a build without the model.
pub const FILES: &[BundledFile] =
    bundle!["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

/// blake3 over names, sizes and bytes: what a fingerprint knows of the bundled model.
pub fn digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| digest_of(FILES))
}

fn digest_of(files: &[BundledFile]) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        for part in [file.name.as_bytes(), file.bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Writes the model's files into `folder`, which exists; gives their names.
///
/// # Errors
/// In a build without the model, or when the disk does not take it.
pub fn write(folder: &Path) -> Result<Vec<String>> {
    write_files(FILES, folder)
}

fn write_files(files: &[BundledFile], folder: &Path) -> Result<Vec<String>> {
    if files.is_empty() {
        return Err(Error::missing("this build of qerl holds no bundled model")
            .hint("build it from a checkout that has src/assets/bundled, or name a model of the hub"));
    }
    for file in files {
        let path = folder.join(file.name);
        std::fs::write(&path, file.bytes).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(files.iter().map(|file| file.name.to_owned()).collect())
}

/// A folder below `cache` (a store's root, say) that holds the model, for commands that take a model's folder. It is
/// made once; on later calls every byte is compared, and a damaged folder is made anew.
///
/// # Errors
/// As [`write`].
pub fn unpacked(cache: &Path) -> Result<PathBuf> {
    unpacked_files(FILES, digest(), cache)
}

fn unpacked_files(files: &[BundledFile], digest: &str, cache: &Path) -> Result<PathBuf> {
    let parent = cache.join("bundled");
    let folder = parent.join(&digest[..24]);
    if !files.is_empty() && is_sound(files, &folder) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&parent).map_err(|e| Error::io("create", &parent, e))?;
    let fresh = tempfile::Builder::new().prefix(".tmp-").tempdir_in(&parent);
    let fresh = fresh.map_err(|e| Error::io("create a folder in", &parent, e))?;
    write_files(files, fresh.path())?;
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(fresh.path(), everyone).map_err(|e| Error::io("write", fresh.path(), e))?;
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| Error::io("remove the damaged", &folder, e))?;
    }
    match std::fs::rename(fresh.path(), &folder) {
        Ok(()) => {}
        // Another process was faster.
        Err(_) if is_sound(files, &folder) => {}
        Err(e) => return Err(Error::io("create", &folder, e)),
    }
    if is_sound(files, &folder) {
        return Ok(folder);
    }
    Err(Error::new(Kind::Integrity, format!("{} does not hold what was written", folder.display()))
        .hint("check the disk, or set QERL_HOME to another"))
}

fn is_sound(files: &[BundledFile], folder: &Path) -> bool {
    files.iter().all(|file| std::fs::read(folder.join(file.name)).is_ok_and(|bytes| bytes == file.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[BundledFile] =
        &[BundledFile { name: "config.json", bytes: b"{}" }, BundledFile { name: "w.safetensors", bytes: b"weights" }];

    #[test]
    fn a_damaged_folder_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let digest = digest_of(TWO);
        let folder = unpacked_files(TWO, &digest, dir.path()).unwrap();
        std::fs::write(folder.join("w.safetensors"), "wEights").unwrap();
        assert_eq!(unpacked_files(TWO, &digest, dir.path()).unwrap(), folder);
        assert_eq!(std::fs::read(folder.join("w.safetensors")).unwrap(), b"weights");
        assert_eq!(std::fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn the_digest_covers_names_and_bytes() {
        let named = |name, bytes| digest_of(&[BundledFile { name, bytes }]);
        let all = [named("a", b"bc".as_slice()), named("ab", b"c"), named("a", b"bd"), digest_of(&[])];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn a_build_without_the_model_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let error = write_files(&[], dir.path()).unwrap_err();
        assert!(error.hint_text().is_some() && error.kind() == Kind::Missing);
    }
}
