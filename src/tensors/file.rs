//! One safetensors file, memory-mapped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;

use super::header::Header;
use super::{DType, Entry};
use crate::{Error, Result};

/// A checked file; its tensors are views into the map.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
}

/// One tensor: its bytes are little-endian, row-major and not always aligned to their type.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub name: &'a str,
    pub dtype: DType,
    pub shape: &'a [usize],
    pub data: &'a [u8],
    pub(super) path: &'a Path,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        let kind = file.metadata().map_err(|e| Error::io("read", path, e))?;
        if !kind.is_file() {
            return Err(Error::input(format!("{} is not a file", path.display())));
        }
        if kind.len() == 0 {
            return Err(Error::input(format!("{} is empty", path.display()))
                .hint("the file is damaged or incomplete: fetch or write it again"));
        }
        // SAFETY: the map is read-only and private to this value. As with every reader of mapped weights, another
        // process that shortens the file while it is in use can still end this one; artifacts and cache blobs are
        // never rewritten in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        let header = Header::parse(&map).map_err(|e| e.within(path.display()))?;
        Ok(Self { path: path.to_owned(), map, header })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The strings under `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.header.tensors.get(name)
    }

    pub fn find(&self, name: &str) -> Option<View<'_>> {
        let (name, entry) = self.header.tensors.get_key_value(name)?;
        let start = self.header.data_start;
        let data = &self.map[start + entry.start..start + entry.end];
        Some(View { name, dtype: entry.dtype, shape: &entry.shape, data, path: &self.path })
    }

    /// As [`find`](Self::find), but an error that names the file where there is no such tensor.
    pub fn tensor(&self, name: &str) -> Result<View<'_>> {
        self.find(name).ok_or_else(|| Error::missing(format!("{} has no tensor {name:?}", self.path.display())))
    }

    /// Every tensor, by name.
    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.names().filter_map(|name| self.find(name))
    }
}

/// Types that a view can be borrowed as.
pub trait Element: Copy {
    const DTYPE: DType;
    fn from_le(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn from_le(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                <$type>::from_le_bytes(array)
            }
        }
    };
}
element!(u8, U8);
element!(f16, F16);
element!(bf16, BF16);
element!(f32, F32);
element!(i64, I64);

impl<'a> View<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The elements as they are, borrowed where the file's alignment allows it.
    pub fn values<T: Element>(&self) -> Result<Cow<'a, [T]>> {
        if self.dtype != T::DTYPE {
            return Err(self.wrong(format!("is {}, but {} is needed here", self.dtype.name(), T::DTYPE.name())));
        }
        if cfg!(target_endian = "little") {
            // SAFETY: every bit pattern is a value of these types (numbers without padding or niches).
            let (before, middle, after) = unsafe { self.data.align_to::<T>() };
            if before.is_empty() && after.is_empty() {
                return Ok(Cow::Borrowed(middle));
            }
        }
        Ok(Cow::Owned(self.data.chunks_exact(size_of::<T>()).map(T::from_le).collect()))
    }

    /// Floats of any width as f32 (exact).
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        Ok(match self.dtype {
            DType::F32 => self.values::<f32>()?.into_owned(),
            DType::BF16 => self.values::<bf16>()?.iter().map(|x| x.to_f32()).collect(),
            DType::F16 => self.values::<f16>()?.iter().map(|x| x.to_f32()).collect(),
            other => return Err(self.wrong(format!("is {}, but a float type is needed here", other.name()))),
        })
    }

    /// Refuses another shape than `shape`.
    pub fn shaped(self, shape: &[usize]) -> Result<Self> {
        if self.shape == shape {
            return Ok(self);
        }
        Err(self.wrong(format!("has shape {:?}, but {shape:?} is needed here", self.shape)))
    }

    /// An error about this tensor.
    pub fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::input(format!("{}: tensor {:?} {what}", self.path.display(), self.name))
            .hint("the file is damaged or belongs to another config.json: fetch or write both again")
    }
}
