//! Rows of parquet files: only the columns that are needed, so many rows at a time.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use polars::prelude::{AnyValue, DataType, ParallelStrategy, ParquetReader, PolarsResult, SerReader, Series};
use serde_json::{Map, Value};

use super::row::Row;
use crate::{Error, Result};

/// Rows that are decoded at once.
const CHUNK: usize = 16_384;

/// How deep lists and structs may be nested.
const MAX_DEPTH: usize = 16;

type Take<'a> = dyn FnMut(&Row<'_>) -> Result<()> + 'a;

/// Hands on each row; `wanted` names the columns to read among those of the file.
pub fn rows(path: &Path, wanted: &dyn Fn(&[String]) -> Result<Vec<String>>, take: &mut Take<'_>) -> Result<()> {
    let open = || File::open(path).map_err(|e| Error::io("read", path, e));
    let file = open()?;
    let (metadata, names, total) = guarded(|| {
        let mut reader = ParquetReader::new(file);
        let total = reader.num_rows()?;
        let names: Vec<String> = reader.schema()?.iter_names().map(ToString::to_string).collect();
        Ok((reader.get_metadata()?.clone(), names, total))
    })?;
    if total == 0 {
        return Ok(());
    }
    let wanted = wanted(&names)?;
    for start in (0..total).step_by(CHUNK) {
        let file = open()?;
        let columns: Vec<Series> = guarded(|| {
            let mut reader = ParquetReader::new(file)
                .with_columns(Some(wanted.clone()))
                .with_slice(Some((start, CHUNK)))
                .read_parallel(ParallelStrategy::None);
            reader.set_metadata(metadata.clone());
            let frame = reader.finish()?;
            Ok(frame.columns().iter().map(|column| column.as_materialized_series().clone()).collect())
        })?;
        let height = columns.first().map_or(0, |series| series.len());
        for i in 0..height {
            let cells: Map<String, Value> = guarded(|| {
                columns.iter().map(|s| Ok((s.name().to_string(), cell(s, i, 0)?))).collect::<PolarsResult<_>>()
            })?;
            take(&Row { cells: &cells })?;
        }
    }
    Ok(())
}

/// The reader is not made for hostile files: what it cannot take is an error, not the end of the program.
fn guarded<T>(work: impl FnOnce() -> PolarsResult<T>) -> Result<T> {
    let damaged = || {
        Error::input("this is no readable parquet file")
            .hint("fetch it again (it may have been cut), or save it without unusual types and compressions")
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| damaged().caused_by(e)),
        Err(_) => Err(damaged()),
    }
}

/// A cell as JSON: lists as arrays, structs as objects.
fn cell(series: &Series, i: usize, depth: usize) -> PolarsResult<Value> {
    if depth > MAX_DEPTH {
        return Ok(Value::Null);
    }
    Ok(match series.dtype() {
        DataType::List(_) => match series.list()?.get_as_series(i) {
            None => Value::Null,
            Some(items) => (0..items.len()).map(|j| cell(&items, j, depth + 1)).collect::<PolarsResult<_>>()?,
        },
        DataType::Struct(_) => {
            if series.get(i)?.is_null() {
                return Ok(Value::Null);
            }
            let fields = series.struct_()?.fields_as_series();
            let fields = fields.iter().map(|field| Ok((field.name().to_string(), cell(field, i, depth + 1)?)));
            Value::Object(fields.collect::<PolarsResult<_>>()?)
        }
        _ => plain(&series.get(i)?),
    })
}

fn plain(value: &AnyValue<'_>) -> Value {
    match value {
        AnyValue::Null => Value::Null,
        AnyValue::Boolean(yes) => Value::Bool(*yes),
        AnyValue::Binary(bytes) => std::str::from_utf8(bytes).map_or(Value::Null, Value::from),
        AnyValue::Float64(number) => (*number).into(),
        // As the shortest decimal of the f32, not of its f64.
        AnyValue::Float32(number) => number.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        other => match (other.get_str(), other.extract::<i64>()) {
            (Some(text), _) => text.into(),
            (None, Some(number)) if other.is_integer() => number.into(),
            _ => Value::String(other.to_string()),
        },
    }
}
