//! A GGUF file (version 2 or 3): metadata and tensors, from outside and checked before use.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::blocks::Kind;
use crate::{Error, Result};

/// A metadata value. Arrays hold no arrays.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Value>),
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub kind: Kind,
    /// Outermost first, as everywhere but in the file itself.
    pub shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl Entry {
    /// As stored.
    pub fn bytes(&self) -> u64 {
        (self.end - self.start) as u64
    }
}

#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    metadata: HashMap<String, Value>,
    tensors: BTreeMap<String, Entry>,
}

/// More of either than any real file has.
const MAX_ENTRIES: u64 = 1 << 20;

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        if !file.metadata().map_err(|e| Error::io("read", path, e))?.is_file() {
            return Err(Error::input(format!("{} is not a file", path.display())));
        }
        // SAFETY: read-only and private to this value; see `tensors::TensorFile::open` on files that shrink in use.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        let (metadata, tensors) = parse(&map).map_err(|e| e.within(path.display()))?;
        Ok(Self { path: path.to_owned(), map, metadata, tensors })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    /// The tensor's values in f32.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let entry = self.entry(name).ok_or_else(|| {
            Error::missing(format!("{} has no tensor {name:?}", self.path.display()))
                .hint("the file is incomplete, or of an architecture that is not imported")
        })?;
        Ok(entry.kind.dequantize(&self.map[entry.start..entry.end]))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A whole number of any width.
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Value::Unsigned(n)) => Some(*n),
            Some(Value::Signed(n)) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key) {
            Some(Value::Float(x)) => Some(*x),
            _ => None,
        }
    }

    pub fn array(&self, key: &str) -> Option<&[Value]> {
        match self.get(key) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

type Parsed = (HashMap<String, Value>, BTreeMap<String, Entry>);

fn parse(bytes: &[u8]) -> Result<Parsed> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.take(4)? != b"GGUF" {
        return Err(Error::input("it is not a GGUF file"));
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(Error::input(format!("GGUF version {version} is not supported")).hint("supported are 2 and 3"));
    }
    let (tensors, pairs) = (reader.u64()?, reader.u64()?);
    if tensors > MAX_ENTRIES || pairs > MAX_ENTRIES {
        return Err(damaged(format!("it claims {tensors} tensors and {pairs} settings")));
    }
    let mut metadata = HashMap::new();
    for _ in 0..pairs {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind, true).map_err(|e| e.within(&key))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(damaged(format!("setting {key:?} stands twice")));
        }
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        infos.push(reader.info()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n as usize,
        Some(other) => return Err(damaged(format!("general.alignment is {other:?}"))),
    };
    let start = reader.at.next_multiple_of(alignment);
    let room = bytes.len().saturating_sub(start);
    let mut found = BTreeMap::new();
    for (name, kind, shape, offset) in infos {
        let wrong = |what: String| damaged(format!("tensor {name:?} {what}"));
        let kind = Kind::parse(kind).map_err(|e| e.within(format!("tensor {name:?}")))?;
        let size = kind.bytes(&shape).ok_or_else(|| wrong(format!("of {kind:?} cannot have shape {shape:?}")))?;
        let end = offset.checked_add(size).filter(|end| *end <= room && start <= bytes.len());
        let end = end.ok_or_else(|| wrong(format!("({size} bytes at {offset}) lies outside of the file")))?;
        let entry = Entry { kind, shape, start: start + offset, end: start + end };
        if found.insert(name.clone(), entry).is_some() {
            return Err(damaged(format!("tensor {name:?} stands twice")));
        }
    }
    let mut order: Vec<(&String, &Entry)> = found.iter().collect();
    order.sort_by_key(|(_, entry)| entry.start);
    if let Some(pair) = order.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        return Err(damaged(format!("tensor {:?} overlaps {:?}", pair[1].0, pair[0].0)));
    }
    Ok((metadata, found))
}

fn damaged(message: String) -> Error {
    Error::input(message).hint("the file is damaged or incomplete: fetch it again")
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| damaged("it ends inside of its header".to_owned()))?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| damaged("a text in its header is not UTF-8".to_owned()))
    }

    fn value(&mut self, kind: u32, arrays: bool) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(shortest(f32::from_le_bytes(self.array()?))),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 if arrays => {
                let kind = self.u32()?;
                let length = self.u64()?;
                // Every element takes at least a byte: longer claims are lies and would only cost memory.
                if length > (self.bytes.len() - self.at) as u64 {
                    return Err(damaged(format!("it claims a list of {length} values")));
                }
                let mut items = Vec::new();
                for _ in 0..length {
                    items.push(self.value(kind, false)?);
                }
                Value::Array(items)
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(damaged(format!("a setting has the unknown type {other}"))),
        })
    }

    /// Name, type, shape, offset.
    fn info(&mut self) -> Result<(String, u32, Vec<usize>, usize)> {
        let name = self.text()?;
        let count = self.u32()?;
        if !(1..=4).contains(&count) {
            return Err(damaged(format!("tensor {name:?} has {count} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..count {
            shape.push(usize::try_from(self.u64()?).unwrap_or(usize::MAX));
        }
        shape.reverse();
        let kind = self.u32()?;
        let offset = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        Ok((name, kind, shape, offset))
    }
}

/// The f64 with the shortest digits that give this f32: 1e-5, not 9.999999747378752e-6.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(bytes: &[u8]) -> Result<GgufFile> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        GgufFile::open(&path)
    }

    fn text(value: &str) -> Vec<u8> {
        [(value.len() as u64).to_le_bytes().as_slice(), value.as_bytes()].concat()
    }

    /// One F32 tensor `w` of `dims` at `offset`, and 64 bytes of data.
    fn file(dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(text("llama.attention.layer_norm_rms_epsilon"));
        bytes.extend(6u32.to_le_bytes());
        bytes.extend(1e-5f32.to_le_bytes());
        bytes.extend(text("w"));
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend((0..16).flat_map(|i| (i as f32).to_le_bytes()));
        bytes
    }

    #[test]
    fn values_and_settings_read_back() {
        let file = open(&file(&[4, 3], 0, 0)).unwrap();
        assert_eq!(file.entry("w").unwrap().shape, [3, 4]);
        assert_eq!(file.values("w").unwrap()[..4], [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(file.float("llama.attention.layer_norm_rms_epsilon"), Some(1e-5));
    }

    #[test]
    fn lying_headers_are_refused() {
        let cases = [
            (file(&[17], 0, 0), "\"w\""),
            (file(&[4], 0, u64::MAX), "outside"),
            (file(&[u64::MAX, 8], 0, 0), "\"w\""),
            (file(&[1 << 40, 1 << 40], 0, 0), "\"w\""),
            (file(&[31], 2, 0), "cannot have shape"),
            (file(&[32], 13, 0), "Q5_K"),
            (file(&[32], 12, 0), "cannot have shape"),
            (file(&[1; 5], 0, 0), "5 dimensions"),
            (b"GGML".to_vec(), "not a GGUF"),
        ];
        for (bytes, want) in cases {
            let message = open(&bytes).unwrap_err().to_string();
            assert!(message.contains(want) && message.contains("model.gguf"), "{message:?} lacks {want:?}");
        }
    }

    #[test]
    fn a_file_cut_in_its_header_is_refused() {
        let whole = file(&[4], 0, 0);
        for keep in 1..whole.len() - 48 {
            assert!(open(&whole[..keep]).is_err(), "{keep} bytes were accepted");
        }
    }
}
