//! Writing safetensors: sizes are known ahead, tensors come one by one in any order, and the file appears whole
//! (temporary name, fsync, rename) or not at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::DType;
use crate::{Error, Result};

/// What will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
}

impl Spec {
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.size() as u64, |bytes, &dim| bytes.saturating_mul(dim as u64))
    }
}

/// One file under way. Dropped before [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    /// Tensor -> offset in the file, size, written yet.
    slots: BTreeMap<String, (u64, u64, bool)>,
    finished: bool,
}

impl Writer {
    /// Lays the file out as the reference implementation does: by descending type, then by name.
    pub fn create(path: &Path, mut specs: Vec<Spec>) -> Result<Self> {
        specs.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        let (header, size) = header(&specs)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(|e| Error::io("create", &temporary, e))?;
        let mut slots = BTreeMap::new();
        let mut offset = header.len() as u64;
        for spec in specs {
            let bytes = spec.bytes();
            if slots.insert(spec.name.clone(), (offset, bytes, bytes == 0)).is_some() {
                let _ = std::fs::remove_file(&temporary);
                return Err(Error::failed(format!("tensor {:?} would be written twice", spec.name)));
            }
            offset += bytes;
        }
        let writer = Self { path: path.to_owned(), temporary, file, slots, finished: false };
        reserve(&writer.file, offset)
            .map_err(|e| Error::io("write", &writer.path, e).within(format!("{size} bytes of tensors")))?;
        writer.put(0, &header)?;
        Ok(writer)
    }

    /// Writes the whole of tensor `name`.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let Some(&(offset, size, _)) = self.slots.get(name) else {
            return Err(Error::failed(format!("tensor {name:?} was not announced to the writer")));
        };
        if bytes.len() as u64 != size {
            let got = bytes.len();
            return Err(Error::failed(format!("tensor {name:?} has {got} bytes, but {size} were announced")));
        }
        self.put(offset, bytes)?;
        self.slots.insert(name.to_owned(), (offset, size, true));
        Ok(())
    }

    /// Makes the file durable and visible.
    pub fn finish(mut self) -> Result<()> {
        if let Some((name, _)) = self.slots.iter().find(|(_, (_, _, written))| !written) {
            return Err(Error::failed(format!("tensor {name:?} was announced but never written")));
        }
        self.file.sync_all().map_err(|e| Error::io("write", &self.path, e))?;
        std::fs::rename(&self.temporary, &self.path).map_err(|e| Error::io("write", &self.path, e))?;
        self.finished = true;
        sync_parent(&self.path)
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        use std::os::unix::fs::FileExt as _;
        self.file.write_all_at(bytes, offset).map_err(|e| Error::io("write", &self.path, e))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing better can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Asks for the space at once, so that a full disk shows before hours of work; file systems that cannot tell are
/// left to fail while writing.
fn reserve(file: &File, size: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        let size = size.max(1);
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(Errno::FBIG) => return Err(std::io::ErrorKind::StorageFull.into()),
            Err(e) => return Err(e.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, size);
    Ok(())
}

/// A rename is durable once its folder is.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("write", parent, e))
}

/// The eight length bytes and the padded JSON; the size of all tensors.
fn header(specs: &[Spec]) -> Result<(Vec<u8>, u64)> {
    let mut json = serde_json::Map::new();
    json.insert("__metadata__".to_owned(), serde_json::json!({"format": "pt"}));
    let mut offset = 0u64;
    for spec in specs {
        let end = offset.checked_add(spec.bytes()).filter(|end| *end < i64::MAX as u64 / 2).ok_or_else(|| {
            Error::failed(format!("tensor {:?} of shape {:?} is larger than a file can be", spec.name, spec.shape))
        })?;
        let entry = serde_json::json!({"dtype": spec.dtype.name(), "shape": spec.shape, "data_offsets": [offset, end]});
        json.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::Value::Object(json).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok((header, offset))
}

/// Writes a small file in one go.
pub fn write_file(path: &Path, tensors: &[(Spec, Vec<u8>)]) -> Result<()> {
    let mut writer = Writer::create(path, tensors.iter().map(|(spec, _)| spec.clone()).collect())?;
    for (spec, bytes) in tensors {
        writer.write(&spec.name, bytes)?;
    }
    writer.finish()
}

/// `model.safetensors`, or numbered shards and their index where one file would be too large.
#[derive(Debug)]
pub struct FolderWriter {
    dir: PathBuf,
    writers: Vec<(String, Writer)>,
    /// Tensor -> index into `writers`.
    place: BTreeMap<String, usize>,
    bytes: u64,
}

impl FolderWriter {
    /// The Hugging Face libraries' own limit of a shard.
    pub const MAX_SHARD: u64 = 5_000_000_000;

    /// Shards are filled in the order of `specs`; a tensor is never split.
    pub fn create(dir: &Path, specs: Vec<Spec>, max_shard: u64) -> Result<Self> {
        let mut shards: Vec<Vec<Spec>> = vec![Vec::new()];
        let (mut size, mut bytes) = (0u64, 0u64);
        for spec in specs {
            let more = spec.bytes();
            if size > 0 && size.saturating_add(more) > max_shard {
                shards.push(Vec::new());
                size = 0;
            }
            size = size.saturating_add(more);
            bytes = bytes.saturating_add(more);
            if let Some(last) = shards.last_mut() {
                last.push(spec);
            }
        }
        let count = shards.len();
        let mut this = Self { dir: dir.to_owned(), writers: vec![], place: BTreeMap::new(), bytes };
        for (index, shard) in shards.into_iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            for spec in &shard {
                if this.place.insert(spec.name.clone(), index).is_some() {
                    return Err(Error::failed(format!("tensor {:?} would be written twice", spec.name)));
                }
            }
            let writer = Writer::create(&dir.join(&name), shard)?;
            this.writers.push((name, writer));
        }
        Ok(this)
    }

    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let index = *self
            .place
            .get(name)
            .ok_or_else(|| Error::failed(format!("tensor {name:?} was not announced to the writer")))?;
        self.writers[index].1.write(name, bytes)
    }

    /// Makes every file visible; gives their names.
    pub fn finish(self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, writer) in self.writers {
            writer.finish()?;
            names.push(name);
        }
        if names.len() > 1 {
            let map: BTreeMap<&String, &String> =
                self.place.iter().map(|(tensor, &index)| (tensor, &names[index])).collect();
            let index = serde_json::json!({"metadata": {"total_size": self.bytes}, "weight_map": map});
            let name = "model.safetensors.index.json";
            let path = self.dir.join(name);
            std::fs::write(&path, format!("{index:#}\n")).map_err(|e| Error::io("write", &path, e))?;
            names.push(name.to_owned());
        }
        Ok(names)
    }
}
