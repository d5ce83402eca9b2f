//! The tensors of a model folder: one file, or shards behind an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{TensorFile, View};
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a folder, by name.
#[derive(Debug)]
pub struct Tensors {
    dir: PathBuf,
    files: Vec<TensorFile>,
    /// Tensor -> index into `files`.
    place: BTreeMap<String, usize>,
}

impl Tensors {
    /// Opens `model.safetensors`, or every shard that `model.safetensors.index.json` names.
    pub fn open(dir: &Path) -> Result<Self> {
        let index = dir.join(INDEX);
        if !index.exists() {
            let path = dir.join(SINGLE);
            if !path.exists() {
                return Err(Error::missing(format!("{} holds neither {SINGLE} nor {INDEX}", dir.display()))
                    .hint("name a folder in Hugging Face's layout with its weights as safetensors"));
            }
            return Self::of_files(dir, vec![TensorFile::open(&path)?]);
        }
        let text = std::fs::read(&index).map_err(|e| Error::io("read", &index, e))?;
        let map: Index = serde_json::from_slice(&text)
            .map_err(|e| Error::input(format!("{} is not an index of shards", index.display())).caused_by(e))?;
        let shards: BTreeSet<&String> = map.weight_map.values().collect();
        let mut files = Vec::with_capacity(shards.len());
        let mut missing = Vec::new();
        for shard in shards {
            let path = inside(dir, shard).map_err(|e| e.within(index.display()))?;
            if path.exists() {
                files.push(TensorFile::open(&path)?);
            } else {
                missing.push(shard.as_str());
            }
        }
        if !missing.is_empty() {
            return Err(Error::missing(format!("{} lacks shards: {}", dir.display(), missing.join(", ")))
                .hint("fetch the missing files again"));
        }
        let tensors = Self::of_files(dir, files)?;
        for (name, shard) in &map.weight_map {
            let found = tensors.place.get(name).map(|&file| tensors.files[file].path().file_name());
            let wanted = Path::new(shard).file_name();
            if found != Some(wanted) {
                return Err(Error::input(format!("{}: shard {shard:?} lacks tensor {name:?}", index.display()))
                    .hint("the shard is from another model or damaged: fetch it again"));
            }
        }
        Ok(tensors)
    }

    fn of_files(dir: &Path, files: Vec<TensorFile>) -> Result<Self> {
        let mut place = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(other) = place.insert(name.to_owned(), index) {
                    let other = files[other].path().display();
                    return Err(Error::input(format!("{}: tensor {name:?} is in {other} too", file.path().display())));
                }
            }
        }
        Ok(Self { dir: dir.to_owned(), files, place })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.place.keys().map(String::as_str)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.place.contains_key(name)
    }

    pub fn find(&self, name: &str) -> Option<View<'_>> {
        self.files[*self.place.get(name)?].find(name)
    }

    /// As [`find`](Self::find), but an error that names the folder where there is no such tensor.
    pub fn tensor(&self, name: &str) -> Result<View<'_>> {
        self.find(name).ok_or_else(|| {
            Error::missing(format!("{} has no tensor {name:?}", self.dir.display()))
                .hint("the weights do not fit config.json: the folder is incomplete or of another architecture")
        })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().flat_map(TensorFile::views).map(|view| view.data.len() as u64).sum()
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// `dir/name` for a name from an untrusted file: no `..`, not absolute, no link that leads out of the folder. (In
/// the Hugging Face cache a snapshot's files are links into the `blobs` folder beside `snapshots`: those may be.)
fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    let refuse =
        |why: &str| Err(Error::input(format!("shard name {name:?} {why}")).hint("the index is not trustworthy"));
    let relative = Path::new(name);
    if name.is_empty() || name.contains('\\') || name.contains('\0') {
        return refuse("is not a file name");
    }
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return refuse("leads out of the model's folder");
    }
    let path = dir.join(relative);
    let (Ok(target), Ok(home)) = (path.canonicalize(), dir.canonicalize()) else {
        return Ok(path); // Missing: the caller says so.
    };
    let blobs = home.parent().filter(|up| up.file_name().is_some_and(|n| n == "snapshots")).and_then(Path::parent);
    if target.starts_with(&home) || blobs.is_some_and(|repo| target.starts_with(repo.join("blobs"))) {
        return Ok(path);
    }
    refuse("is a link that leads out of the model's folder")
}
