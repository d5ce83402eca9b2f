//! The digest of a `file:` source, remembered under its size and times so that large folders are read once.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::{Store, hash_file, write_atomic};
use crate::{Error, Result};

/// File -> ([size, mtime seconds, nanoseconds], blake3).
type Known = BTreeMap<String, ((u64, i64, i64), String)>;

/// A folder with more files than this is not a model or data set but a mistake such as `file:/`.
const MAX_FILES: usize = 20_000;

/// blake3 over names, sizes and bytes of the file or of all files below the folder. Never over where it lies.
pub fn digest(store: &Store, source: &Path) -> Result<String> {
    let gone = |e| {
        let error = Error::io("read the source", source, e);
        if error.hint_text().is_some() { error } else { error.hint("`file:` paths start in the pipeline's folder") }
    };
    let meta = std::fs::metadata(source).map_err(gone)?;
    let mut files = Vec::new();
    if meta.is_file() {
        files.push((String::new(), source.to_path_buf()));
    } else {
        walk(source, "", &mut files)?;
    }
    files.sort();
    let absolute = std::fs::canonicalize(source).map_err(gone)?;
    let memory = store
        .root
        .join("stamps")
        .join(format!("source-{}.json", &blake3::hash(absolute.as_os_str().as_encoded_bytes()).to_hex()[..24]));
    let known: Known = std::fs::read(&memory).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    let mut now = Known::new();
    let mut hasher = blake3::Hasher::new();
    for (name, path) in files {
        let meta = std::fs::metadata(&path).map_err(|e| Error::io("read", &path, e))?;
        let stamp = (meta.len(), meta.mtime(), meta.mtime_nsec());
        let digest = match known.get(&name) {
            Some((seen, digest)) if *seen == stamp => digest.clone(),
            _ => hash_file(&path)?,
        };
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&meta.len().to_le_bytes());
        hasher.update(digest.as_bytes());
        now.insert(name, (stamp, digest));
    }
    // Only remembered where a store exists already: a plan creates nothing.
    if now != known && store.root.is_dir() {
        let _ = serde_json::to_vec(&now).map(|text| write_atomic(&memory, &text));
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn walk(dir: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for item in std::fs::read_dir(dir).map_err(|e| Error::io("read", dir, e))? {
        let path = item.map_err(|e| Error::io("read", dir, e))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        // Version control and editors' leavings are no part of a model.
        if name.starts_with('.') {
            continue;
        }
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        // Snapshots in the Hugging Face cache are links to blobs: follow them, but not links to folders (loops).
        let is_link = path.is_symlink();
        let meta = match std::fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound && is_link => continue,
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        if meta.is_dir() && !is_link {
            walk(&path, &name, files)?;
        } else if meta.is_file() {
            files.push((name, path));
        }
        if files.len() > MAX_FILES {
            return Err(Error::usage(format!("{} holds more than {MAX_FILES} files", dir.display()))
                .hint("`file:` takes the folder of one model or data set"));
        }
    }
    Ok(())
}
