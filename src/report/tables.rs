//! The figures of a report as data: one table per kind of figure, each as parquet and as csv.

use std::fs::File;
use std::path::Path;

use polars::prelude::{Column, CsvWriter, DataFrame, NamedFrom, ParquetWriter, SerWriter, Series};

use super::Data;
use crate::{Error, Result};

/// Names without their ending: accuracy per evaluation, answers per question, curves per step, paired comparisons,
/// quantization errors per tensor.
pub const NAMES: [&str; 5] = ["accuracy", "answers", "curves", "comparisons", "quantization"];

/// Writes every table of [`NAMES`] into `folder`; gives the files' names.
pub fn write(data: &Data, folder: &Path) -> Result<Vec<String>> {
    let frames = [accuracy(data)?, answers(data)?, curves(data)?, comparisons(data)?, quantization(data)?];
    let mut files = Vec::new();
    for (name, mut frame) in NAMES.into_iter().zip(frames) {
        for ending in ["parquet", "csv"] {
            let file = format!("{name}.{ending}");
            let path = folder.join(&file);
            let out = File::create(&path).map_err(|e| Error::io("create", &path, e))?;
            let written = if ending == "parquet" {
                ParquetWriter::new(out).finish(&mut frame).map(|_| ())
            } else {
                CsvWriter::new(out).finish(&mut frame)
            };
            written.map_err(|e| Error::failed(format!("cannot write {file}")).caused_by(e))?;
            files.push(file);
        }
    }
    Ok(files)
}

fn texts<'a>(name: &str, values: impl Iterator<Item = &'a str>) -> Column {
    Series::new(name.into(), values.map(plain).collect::<Vec<String>>()).into()
}

/// A spreadsheet would run a cell that begins like a formula: csv is opened by these.
fn plain(text: &str) -> String {
    if text.starts_with(['=', '+', '@', '\t', '\r']) || (text.starts_with('-') && text.parse::<f64>().is_err()) {
        format!("'{text}")
    } else {
        text.to_owned()
    }
}

fn floats(name: &str, values: impl Iterator<Item = f64>) -> Column {
    Series::new(name.into(), values.collect::<Vec<f64>>()).into()
}

fn counts(name: &str, values: impl Iterator<Item = usize>) -> Column {
    Series::new(name.into(), values.map(|n| n as u64).collect::<Vec<u64>>()).into()
}

fn frame(rows: usize, columns: Vec<Column>) -> Result<DataFrame> {
    DataFrame::new(rows, columns).map_err(|e| Error::failed("cannot make a report's table").caused_by(e))
}

/// One line per row, stage, data set and point.
fn accuracy(data: &Data) -> Result<DataFrame> {
    let all = || data.evaluations.iter();
    frame(
        data.evaluations.len(),
        vec![
            texts("row", all().map(|e| e.row.as_str())),
            texts("stage", all().map(|e| e.stage.as_str())),
            texts("point", all().map(|e| e.point.as_str())),
            texts("data", all().map(|e| e.dataset.as_str())),
            counts("questions", all().map(|e| e.questions)),
            counts("samples", all().map(|e| e.samples)),
            floats("accuracy", all().map(|e| e.accuracy)),
            floats("low", all().map(|e| e.low)),
            floats("high", all().map(|e| e.high)),
            floats("truncated", all().map(|e| e.truncated)),
            floats("no_answer", all().map(|e| e.no_answer)),
            floats("mean_tokens", all().map(|e| e.mean_tokens)),
        ],
    )
}

/// One line per row, stage, data set, point and question.
fn answers(data: &Data) -> Result<DataFrame> {
    let all = || data.evaluations.iter().flat_map(|e| e.answers.iter().map(move |a| (e, a)));
    frame(
        all().count(),
        vec![
            texts("row", all().map(|(e, _)| e.row.as_str())),
            texts("stage", all().map(|(e, _)| e.stage.as_str())),
            texts("point", all().map(|(e, _)| e.point.as_str())),
            texts("data", all().map(|(e, _)| e.dataset.as_str())),
            texts("id", all().map(|(_, a)| a.0.as_str())),
            counts("correct", all().map(|(_, a)| a.1)),
            counts("samples", all().map(|(_, a)| a.2)),
        ],
    )
}

/// One line per row, metric and step; a value that was not finite is NaN.
fn curves(data: &Data) -> Result<DataFrame> {
    let all = || {
        let per_row = |row: &'_ super::Row| {
            let label = row.label.clone();
            let points = row.curves.iter().flat_map(|(metric, points)| points.iter().map(move |p| (metric, p)));
            points.map(move |(metric, p)| (label.clone(), metric.clone(), *p)).collect::<Vec<_>>()
        };
        data.rows.iter().flat_map(per_row)
    };
    let rows: Vec<_> = all().collect();
    frame(
        rows.len(),
        vec![
            texts("row", rows.iter().map(|r| r.0.as_str())),
            texts("metric", rows.iter().map(|r| r.1.as_str())),
            floats("step", rows.iter().map(|r| r.2.step)),
            floats("mean", rows.iter().map(|r| r.2.mean)),
            floats("low", rows.iter().map(|r| r.2.low)),
            floats("high", rows.iter().map(|r| r.2.high)),
        ],
    )
}

/// One line per paired comparison.
fn comparisons(data: &Data) -> Result<DataFrame> {
    let all = || data.comparisons.iter();
    let factors: Vec<String> = all().map(|c| c.factors.join(" ")).collect();
    frame(
        data.comparisons.len(),
        vec![
            texts("data", all().map(|c| c.dataset.as_str())),
            texts("a", all().map(|c| c.a.row.as_str())),
            texts("a_stage", all().map(|c| c.a.stage.as_str())),
            texts("b", all().map(|c| c.b.row.as_str())),
            texts("b_stage", all().map(|c| c.b.stage.as_str())),
            texts("factors", factors.iter().map(String::as_str)),
            floats("difference", all().map(|c| c.difference)),
            floats("low", all().map(|c| c.low)),
            floats("high", all().map(|c| c.high)),
            counts("questions", all().map(|c| c.questions)),
            counts("only_a", all().map(|c| c.gained)),
            counts("only_b", all().map(|c| c.lost)),
            floats("p", all().map(|c| c.p_value)),
        ],
    )
}

/// One line per row and quantized tensor.
fn quantization(data: &Data) -> Result<DataFrame> {
    let all = || data.rows.iter().flat_map(|r| r.layer_errors.iter().map(move |e| (r, e)));
    frame(
        all().count(),
        vec![
            texts("row", all().map(|(r, _)| r.label.as_str())),
            texts("layer", all().map(|(_, e)| e.layer.as_str())),
            floats("relative_frobenius", all().map(|(_, e)| e.relative_frobenius)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spreadsheet_runs_nothing() {
        assert_eq!(plain("=cmd()"), "'=cmd()");
        assert_eq!(plain("-x"), "'-x");
        assert_eq!((plain("-0.5"), plain("bf16-lora")), ("-0.5".to_owned(), "bf16-lora".to_owned()));
    }
}
