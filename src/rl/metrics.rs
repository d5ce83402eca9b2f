//! The record of a run: one JSON line per optimizer step under TRL's names, and the same as parquet at the end.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Error, Result};

/// One step's figures in the order they were set; what is not finite is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record(Map<String, Value>);

impl Record {
    pub fn new(step: u64) -> Self {
        let mut record = Self::default();
        record.0.insert("step".to_owned(), step.into());
        record
    }

    /// JSON has no NaN: such a figure becomes null, so that the step's line still shows it went wrong.
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number));
    }

    pub fn count(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Takes over all figures of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.clone());
    }

    /// All figures, `step` first.
    pub fn figures(&self) -> &Map<String, Value> {
        &self.0
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
    }
}

/// metrics.jsonl of one run, without gaps or duplicates over interruptions.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// Opens `path`, dropping lines of steps after `step` (they will be done again) and half-written ones.
    pub fn open(path: &Path, step: u64) -> Result<Self> {
        let old = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Error::io("read", path, e)),
        };
        let keep: String = old
            .split_inclusive('\n')
            .filter(|line| {
                line.ends_with('\n')
                    && serde_json::from_str::<Value>(line)
                        .is_ok_and(|v| v["step"].as_u64().is_some_and(|s| (1..=step).contains(&s)))
            })
            .collect();
        let partial = path.with_extension("partial");
        fs::write(&partial, keep).map_err(|e| Error::io("write", &partial, e))?;
        fs::rename(&partial, path).map_err(|e| Error::io("rename", &partial, e))?;
        Ok(Self { path: path.to_owned() })
    }

    pub fn append(&self, record: &Record) -> Result<()> {
        let line = format!("{}\n", Value::Object(record.0.clone()));
        let mut file =
            fs::OpenOptions::new().append(true).open(&self.path).map_err(|e| Error::io("open", &self.path, e))?;
        file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(|e| Error::io("write", &self.path, e))
    }

    /// All records so far.
    pub fn read(&self) -> Result<Vec<Map<String, Value>>> {
        read(&self.path)
    }
}

/// The records of a metrics.jsonl.
pub fn read(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|e| Error::input(format!("{} has a malformed line", path.display())).caused_by(e))
        })
        .collect()
}

/// Writes records as parquet: `step` as u64, every other column as nullable f64, in order of first appearance.
pub fn write_parquet(path: &Path, records: &[Map<String, Value>]) -> Result<()> {
    use polars::prelude::{Column, DataFrame, NamedFrom, ParquetWriter, Series};
    let mut names: Vec<&str> = Vec::new();
    let mut seen = BTreeMap::new();
    for name in records.iter().flat_map(|r| r.keys()) {
        seen.entry(name.as_str()).or_insert_with(|| names.push(name));
    }
    let columns: Vec<Column> = names
        .iter()
        .map(|name| {
            let series = if *name == "step" {
                let steps: Vec<Option<u64>> = records.iter().map(|r| r.get(*name).and_then(Value::as_u64)).collect();
                Series::new((*name).into(), steps)
            } else {
                let values: Vec<Option<f64>> = records.iter().map(|r| r.get(*name).and_then(Value::as_f64)).collect();
                Series::new((*name).into(), values)
            };
            series.into()
        })
        .collect();
    let bad = |e| Error::failed("cannot write metrics as parquet").caused_by(e);
    let mut frame = DataFrame::new(records.len(), columns).map_err(|e| bad(e.to_string()))?;
    let file = fs::File::create(path).map_err(|e| Error::io("create", path, e))?;
    ParquetWriter::new(file).finish(&mut frame).map_err(|e| bad(e.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reopening_drops_later_and_broken_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let journal = Journal::open(&path, 0).unwrap();
        for step in 1..=3 {
            let mut record = Record::new(step);
            record.set("loss", f64::from(step as u32) * 0.5);
            record.set("bad", f64::NAN);
            journal.append(&record).unwrap();
        }
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\": 4").unwrap();
        let journal = Journal::open(&path, 2).unwrap();
        let records = journal.read().unwrap();
        assert_eq!(records.iter().map(|r| r["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
        write_parquet(&dir.path().join("m.parquet"), &records).unwrap();
        use polars::prelude::{ParquetReader, SerReader};
        let frame = ParquetReader::new(fs::File::open(dir.path().join("m.parquet")).unwrap()).finish().unwrap();
        assert_eq!((frame.height(), frame.width()), (2, 3));
    }
}
