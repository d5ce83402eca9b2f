//! The raw files of a data set, wherever they lie.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::hub::Manifest;
use crate::store::{Artifact, Handle, Location, Store};
use crate::{Error, Result};

/// A folder with more files than this is no model or data set but a mistake such as `file:/`.
const MAX_FILES: usize = 20_000;

/// A file of a download.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RawFile {
    /// Its path in the repository or folder, with `/`; a single file's own name.
    pub name: String,
    pub path: PathBuf,
}

/// The files that a download of a data set took, in order of their names. Of a hub's repository only those in the
/// manifest: the cache's folder may hold files that other programs fetched.
///
/// # Errors
/// When the artifact holds no raw files, or they are gone.
pub fn raw_files(store: &Store, artifact: &Artifact) -> Result<Vec<RawFile>> {
    let Handle::Files { at } = &artifact.meta.handle else {
        return Err(
            Error::usage("this stage gives no raw files of a data set").hint("name a download with `dataset: true`")
        );
    };
    let place = store.locate(artifact, at)?;
    if !matches!(at, Location::Hub { .. }) {
        return walk(&place);
    }
    let snapshot = Manifest::read(&artifact.dir)?.snapshot()?;
    let files = snapshot.files.into_iter().map(|file| RawFile { path: place.join(&file.path), name: file.path });
    Ok(files.collect())
}

/// The file itself, or every file below the folder but hidden ones. Links to files are followed, those to folders
/// are not.
pub(super) fn walk(place: &Path) -> Result<Vec<RawFile>> {
    let meta = std::fs::metadata(place).map_err(|e| Error::io("read", place, e))?;
    if meta.is_file() {
        let name = place.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        return Ok(vec![RawFile { name, path: place.to_path_buf() }]);
    }
    let mut files = Vec::new();
    let mut folders = vec![(place.to_path_buf(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for item in std::fs::read_dir(&folder).map_err(|e| Error::io("read", &folder, e))? {
            let path = item.map_err(|e| Error::io("read", &folder, e))?.path();
            let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|n| !n.starts_with('.')) else {
                continue;
            };
            let name = format!("{prefix}{name}");
            let is_link = path.is_symlink();
            match std::fs::metadata(&path) {
                Ok(meta) if meta.is_dir() && !is_link => folders.push((path, name + "/")),
                Ok(meta) if meta.is_file() => files.push(RawFile { name, path }),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::NotFound && is_link => {}
                Err(e) => return Err(Error::io("read", &path, e)),
            }
            if files.len() > MAX_FILES {
                return Err(Error::usage(format!("{} holds more than {MAX_FILES} files", place.display()))
                    .hint("`file:` takes the folder of one model or data set"));
            }
        }
    }
    files.sort();
    Ok(files)
}
