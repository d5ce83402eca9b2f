//! Records as parquet and as JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use polars::prelude::*;

use super::{Record, Summary};
use crate::math::Verdict;
use crate::{Error, Result};

pub const RECORDS: &str = "records.parquet";
pub const SUMMARY: &str = "summary.json";

fn broken(path: &Path, e: PolarsError) -> Error {
    Error::input(format!("cannot read the records in {}", path.display()))
        .caused_by(e)
        .hint("give an evaluation's folder, its records.parquet, or a .jsonl of records")
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Correct => "correct",
        Verdict::Wrong => "wrong",
        Verdict::NoAnswer => "no_answer",
        Verdict::GoldUnparseable => "gold_unparseable",
    }
}

fn verdict_of(name: &str) -> Option<Verdict> {
    [Verdict::Correct, Verdict::Wrong, Verdict::NoAnswer, Verdict::GoldUnparseable]
        .into_iter()
        .find(|v| verdict_name(*v) == name)
}

/// Writes records with the columns of [`Record`].
pub fn write_parquet(path: &Path, records: &[Record]) -> Result<()> {
    let text = |name: &str, get: &dyn Fn(&Record) -> &str| {
        Column::new(name.into(), records.iter().map(get).collect::<Vec<_>>())
    };
    let number = |name: &str, get: &dyn Fn(&Record) -> usize| {
        Column::new(name.into(), records.iter().map(|r| get(r) as u64).collect::<Vec<_>>())
    };
    let columns = vec![
        text("data", &|r| &r.data),
        text("id", &|r| &r.id),
        text("prompt", &|r| &r.prompt),
        number("sample", &|r| r.sample),
        text("gold", &|r| &r.gold),
        text("completion", &|r| &r.completion),
        Column::new("extracted".into(), records.iter().map(|r| r.extracted.as_deref()).collect::<Vec<_>>()),
        text("verdict", &|r| verdict_name(r.verdict)),
        number("tokens", &|r| r.tokens),
        Column::new("truncated".into(), records.iter().map(|r| r.truncated).collect::<Vec<_>>()),
    ];
    let failed = |e: PolarsError| Error::failed(format!("cannot write {}", path.display())).caused_by(e);
    let mut frame = DataFrame::new(records.len(), columns).map_err(failed)?;
    let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
    ParquetWriter::new(&file).finish(&mut frame).map_err(failed)?;
    file.sync_all().map_err(|e| Error::io("write", path, e))
}

/// Writes `summary.json`.
pub fn write_summary(path: &Path, summary: &Summary) -> Result<()> {
    let mut text =
        serde_json::to_vec_pretty(summary).map_err(|e| Error::failed("cannot write a summary as JSON").caused_by(e))?;
    text.push(b'\n');
    std::fs::write(path, text).map_err(|e| Error::io("write", path, e))
}

/// Reads `summary.json`, or that of an evaluation's folder.
pub fn read_summary(path: &Path) -> Result<Summary> {
    let file = if path.is_dir() { path.join(SUMMARY) } else { path.to_owned() };
    let text = std::fs::read(&file).map_err(|e| Error::io("read", &file, e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::input(format!("{} is not the summary of an evaluation", file.display())).caused_by(e))
}

/// Reads what [`write_parquet`] wrote.
pub fn read_parquet(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let frame = ParquetReader::new(file).finish().map_err(|e| broken(path, e))?;
    let texts = |name: &str| -> Result<Vec<Option<String>>> {
        let column = frame.column(name).and_then(|c| c.str().cloned()).map_err(|e| broken(path, e))?;
        Ok(column.iter().map(|t| t.map(str::to_owned)).collect())
    };
    let numbers = |name: &str| -> Result<Vec<usize>> {
        let column = frame.column(name).and_then(|c| c.u64().cloned()).map_err(|e| broken(path, e))?;
        Ok(column.iter().map(|n| n.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)).collect())
    };
    let truncated: Vec<bool> = {
        let column = frame.column("truncated").and_then(|c| c.bool().cloned()).map_err(|e| broken(path, e))?;
        column.iter().map(|b| b.unwrap_or(false)).collect()
    };
    let (data, id, prompt, gold) = (texts("data")?, texts("id")?, texts("prompt")?, texts("gold")?);
    let (completion, extracted, verdict) = (texts("completion")?, texts("extracted")?, texts("verdict")?);
    let (sample, tokens) = (numbers("sample")?, numbers("tokens")?);
    (0..frame.height())
        .map(|row| {
            let bad = |what: &str| Error::input(format!("{}: row {row} has no valid {what}", path.display()));
            let need = |column: &[Option<String>], what: &str| column[row].clone().ok_or_else(|| bad(what));
            Ok(Record {
                data: need(&data, "data")?,
                id: need(&id, "id")?,
                prompt: need(&prompt, "prompt")?,
                sample: sample[row],
                gold: need(&gold, "gold")?,
                completion: need(&completion, "completion")?,
                extracted: extracted[row].clone(),
                verdict: verdict[row].as_deref().and_then(verdict_of).ok_or_else(|| bad("verdict"))?,
                tokens: tokens[row],
                truncated: truncated[row],
            })
        })
        .collect()
}

/// Records as JSON lines.
pub fn lines(records: &[Record]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for record in records {
        serde_json::to_writer(&mut text, record)
            .map_err(|e| Error::failed("cannot write a record as JSON").caused_by(e))?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Adds records to a JSON-lines file and syncs it: what is in it survives an interruption.
pub fn append_lines(path: &Path, records: &[Record]) -> Result<()> {
    let text = lines(records)?;
    let mut file = File::options().create(true).append(true).open(path).map_err(|e| Error::io("open", path, e))?;
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(|e| Error::io("write", path, e))
}

/// Records of a JSON-lines file. With `partial` everything from the first damaged line on (an interrupted write)
/// is left out.
pub fn read_lines(path: &Path, partial: bool) -> Result<Vec<Record>> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut out = Vec::new();
    // Bytes, not text: a write may have been cut within a character.
    for (number, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(|e| Error::io("read", path, e))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(record) => out.push(record),
            Err(_) if partial => break,
            Err(e) => {
                return Err(Error::input(format!("{}:{}: not a record", path.display(), number + 1))
                    .caused_by(e)
                    .hint("records are what an evaluation writes: one JSON object with data, id, gold, completion, verdict per line"));
            }
        }
    }
    Ok(out)
}

/// An evaluation's folder, its records.parquet, or JSON lines.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    if path.is_dir() {
        return read_parquet(&path.join(RECORDS));
    }
    if path.extension().is_some_and(|e| e == "jsonl") { read_lines(path, false) } else { read_parquet(path) }
}
