//! The header of a safetensors file: JSON from outside, checked wholly before any tensor is handed out.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::DType;
use crate::{Error, Result};

/// The reference implementation's limit.
const MAX_HEADER: u64 = 100_000_000;

/// Where one tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// First byte and the byte after the last, counted from the end of the header.
    pub start: usize,
    pub end: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Header {
    pub tensors: BTreeMap<String, Entry>,
    pub metadata: BTreeMap<String, String>,
    /// Bytes before the first tensor.
    pub data_start: usize,
}

impl Header {
    /// Reads and checks the header at the front of `file`, the file's whole contents.
    pub fn parse(file: &[u8]) -> Result<Self> {
        let Some(length) = file.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Err(damaged(format!("the file has {} bytes, too few for a safetensors header", file.len())));
        };
        let room = file.len() - 8;
        if length > MAX_HEADER {
            return Err(damaged(format!("it claims a header of {length} bytes, more than any real file has")));
        }
        // Cannot truncate: MAX_HEADER fits any usize.
        let length = length as usize;
        if length > room {
            return Err(damaged(format!("it claims a header of {length} bytes, but only {room} follow")));
        }
        let raw: Raw = serde_json::from_slice(&file[8..8 + length])
            .map_err(|e| damaged(format!("its header is not what safetensors asks for: {e}")))?;
        let mut header = Self { data_start: 8 + length, metadata: raw.metadata, ..Self::default() };
        let data = file.len() - header.data_start;
        for (name, tensor) in raw.tensors {
            let entry = tensor.check(data).map_err(|e| e.within(format!("tensor {name:?}")))?;
            header.tensors.insert(name, entry);
        }
        header.check_cover(data)?;
        Ok(header)
    }

    /// Tensors must cover the data without gaps or overlaps: a file that was cut or glued does not.
    fn check_cover(&self, data: usize) -> Result<()> {
        let mut order: Vec<(&String, &Entry)> = self.tensors.iter().collect();
        order.sort_by_key(|(_, entry)| (entry.start, entry.end));
        let mut end = 0;
        let mut previous: Option<&String> = None;
        for (name, entry) in order {
            if entry.start < end {
                let other = previous.map_or("", String::as_str);
                return Err(damaged(format!("tensor {name:?} overlaps {other:?}")));
            }
            if entry.start > end {
                return Err(damaged(format!("{} unused bytes lie before tensor {name:?}", entry.start - end)));
            }
            end = entry.end;
            previous = Some(name);
        }
        if end != data {
            return Err(damaged(format!("{} bytes follow the last tensor", data - end)));
        }
        Ok(())
    }
}

fn damaged(message: String) -> Error {
    Error::input(message).hint("the file is damaged or incomplete: fetch or write it again")
}

struct Raw {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl RawTensor {
    fn check(self, data: usize) -> Result<Entry> {
        let dtype = DType::parse(&self.dtype).ok_or_else(|| {
            Error::input(format!("its type {:?} is not one that qerl reads", self.dtype))
                .hint("store it as BF16, F16, F32 or in one of the supported 4-bit formats")
        })?;
        let mut bytes = dtype.size();
        let mut shape = Vec::with_capacity(self.shape.len());
        for &dim in &self.shape {
            let dim = usize::try_from(dim).ok();
            let product = dim.and_then(|dim| bytes.checked_mul(dim));
            let (Some(dim), Some(product)) = (dim, product) else {
                return Err(damaged(format!("its shape {:?} is larger than memory can be", self.shape)));
            };
            bytes = product;
            shape.push(dim);
        }
        let (start, end) = self.data_offsets;
        let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else {
            return Err(damaged(format!("its bytes {start}..{end} lie outside of the file")));
        };
        if start > end {
            return Err(damaged(format!("its bytes {start}..{end} run backwards")));
        }
        if end > data {
            return Err(damaged(format!("its bytes {start}..{end} lie outside of the {data} bytes of data")));
        }
        if end - start != bytes {
            let name = dtype.name();
            return Err(damaged(format!("shape {shape:?} of {name} needs {bytes} bytes, but it has {}", end - start)));
        }
        Ok(Entry { dtype, shape, start, end })
    }
}

/// By hand, because a derived map silently keeps the last of two equal names.
impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut raw = Raw { metadata: BTreeMap::new(), tensors: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                map.next_value::<IgnoredAny>()?;
                return Err(A::Error::custom(format!("tensor {name:?} stands twice")));
            }
            if name == "__metadata__" {
                raw.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
            } else {
                let tensor =
                    map.next_value::<RawTensor>().map_err(|e| A::Error::custom(format!("tensor {name:?}: {e}")))?;
                raw.tensors.push((name, tensor));
            }
        }
        Ok(raw)
    }
}
