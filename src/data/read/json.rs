//! Rows of JSON lines, and of JSON documents that are one list of objects.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::row::Row;
use crate::{Error, Result};

/// Bytes of one row.
const MAX_ROW: usize = 64 << 20;

type Take<'a> = dyn FnMut(&Row<'_>) -> Result<()> + 'a;

/// One object per line; blank lines are passed over.
pub fn lines(path: &Path, take: &mut Take<'_>) -> Result<()> {
    let mut reader = open(path)?;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let limit = MAX_ROW as u64 + 1;
        let read = (&mut reader).take(limit).read_until(b'\n', &mut line).map_err(|e| Error::io("read", path, e))?;
        if read == 0 {
            break;
        }
        if line.len() > MAX_ROW {
            return Err(Error::input(format!("line {number} is longer than {MAX_ROW} bytes")));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let cells: Map<String, Value> = serde_json::from_slice(&line).map_err(|e| {
            Error::input(format!("line {number} is not a JSON object"))
                .hint("JSON lines hold one object per line")
                .caused_by(e)
        })?;
        take(&Row { cells: &cells }).map_err(|e| place(e, number))?;
    }
    Ok(())
}

fn place(error: Error, line: usize) -> Error {
    if error.message().starts_with("line ") { error } else { error.within(format!("line {line}")) }
}

/// A list of objects, or objects one behind the other.
pub fn document(path: &Path, take: &mut Take<'_>) -> Result<()> {
    let mut reader = open(path)?;
    let first = loop {
        let buffer = reader.fill_buf().map_err(|e| Error::io("read", path, e))?;
        match buffer.first() {
            Some(byte) if byte.is_ascii_whitespace() => reader.consume(1),
            first => break first.copied(),
        }
    };
    let left = Cell::new(MAX_ROW);
    let budget = Budget { reader, left: &left };
    let mut failure = None;
    let mut each = |cells: Map<String, Value>| {
        left.set(MAX_ROW);
        take(&Row { cells: &cells }).map_err(|e| failure = Some(e)).is_ok()
    };
    let result = if first == Some(b'[') {
        let mut json = serde_json::Deserializer::from_reader(budget);
        Each(&mut each).deserialize(&mut json).and_then(|()| json.end())
    } else {
        let mut rows = serde_json::Deserializer::from_reader(budget).into_iter::<Map<String, Value>>();
        rows.try_for_each(|row| if each(row?) { Ok(()) } else { Err(serde::de::Error::custom("stopped")) })
    };
    match (failure, result) {
        (Some(error), _) => Err(error),
        (None, Err(e)) => Err(Error::input("not a list of JSON objects")
            .hint("a .json file holds one list of objects, or objects one behind the other")
            .caused_by(e)),
        (None, Ok(())) => Ok(()),
    }
}

/// Past a byte order mark.
fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let marked = reader.fill_buf().map_err(|e| Error::io("read", path, e))?.starts_with(b"\xef\xbb\xbf");
    reader.consume(if marked { 3 } else { 0 });
    Ok(reader)
}

/// Reads no more than `left` bytes; each row sets it anew.
struct Budget<'a> {
    reader: BufReader<File>,
    left: &'a Cell<usize>,
}

impl Read for Budget<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(self.left.get());
        if most == 0 && !buffer.is_empty() {
            return Err(std::io::Error::other(format!("a row is longer than {MAX_ROW} bytes")));
        }
        let read = self.reader.read(&mut buffer[..most])?;
        self.left.set(self.left.get() - read);
        Ok(read)
    }
}

/// Hands on the items of a list one by one.
struct Each<'a>(&'a mut dyn FnMut(Map<String, Value>) -> bool);

impl<'de> DeserializeSeed<'de> for Each<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Each<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<(), A::Error> {
        while let Some(cells) = items.next_element::<Map<String, Value>>()? {
            if !(self.0)(cells) {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}
