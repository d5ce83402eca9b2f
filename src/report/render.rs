//! [`Data`] -> HTML and Markdown through the templates under templates/.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};
use serde::Serialize;
use serde_json::{Value, json};

use super::svg::{self, Bar, Series};
use super::{Cell, Comparison, Data, Row};
use crate::{Error, Result};

const HTML: &str = include_str!("../../templates/report.html.j2");
const MARKDOWN: &str = include_str!("../../templates/report.md.j2");

/// Curves in the order shown: metric, title, caption.
const CURVES: [(&str, &str, &str); 6] = [
    ("reward", "Reward", "mean reward of the rollouts of each step"),
    ("rewards/accuracy/mean", "Training accuracy", "share of rollouts with a correct answer"),
    ("entropy", "Entropy", "mean entropy in nats of the policy over completion tokens"),
    ("aqn/sigma", "Noise", "standard deviation of the noise on the norm weights (AQN)"),
    ("completions/mean_length", "Completion length", "tokens per completion"),
    ("kl", "KL", "divergence from the reference policy"),
];

/// The page: one file, no scripts, nothing loaded from outside.
pub fn html(data: &Data) -> Result<String> {
    render("report.html", HTML, data)
}

/// The same as Markdown (tables only, no plots).
pub fn markdown(data: &Data) -> Result<String> {
    let text = render("report.md", MARKDOWN, data)?;
    let mut out = String::with_capacity(text.len());
    let mut blank = 0;
    for line in text.lines() {
        blank = if line.trim().is_empty() { blank + 1 } else { 0 };
        if blank < 2 {
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    Ok(out)
}

fn render(name: &str, template: &str, data: &Data) -> Result<String> {
    let broken = |e: minijinja::Error| Error::failed("the report's template failed").caused_by(e);
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(name.ends_with(".html")).build().map_err(broken)?);
    environment.set_auto_escape_callback(
        |name| {
            if name.ends_with(".html") { AutoEscape::Html } else { AutoEscape::None }
        },
    );
    // A table cell of Markdown must not hold a bar or a line break.
    environment.add_filter("cell", |text: String| text.replace('|', "\\|").replace(['\n', '\r'], " "));
    environment.add_filter("num", |value: f64| number(value));
    environment.add_template(name, template).map_err(broken)?;
    let template = environment.get_template(name).map_err(broken)?;
    template.render(Serde(page(data))).map_err(broken)
}

/// A float without binary dust: 0.949999988079071 (an f32) is 0.95.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[derive(Serialize)]
struct Column {
    stage: String,
    dataset: String,
}

#[derive(Serialize)]
struct CellView {
    accuracy: String,
    interval: String,
    best: bool,
}

#[derive(Serialize)]
struct Gain {
    text: String,
    interval: Option<String>,
    class: &'static str,
}

#[derive(Serialize)]
struct RowView<'a> {
    label: &'a str,
    color: usize,
    differences: &'a [String],
    cells: Vec<Option<CellView>>,
    gains: Vec<Gain>,
}

fn percent(value: f64) -> String {
    format!("{:.1}", value * 100.0)
}

fn points(value: f64) -> String {
    format!("{:+.1}", value * 100.0)
}

fn interval(low: f64, high: f64) -> String {
    format!("{:.1} to {:.1}", low * 100.0, high * 100.0)
}

fn class(low: f64, high: f64) -> &'static str {
    if low > 0.0 {
        "up"
    } else if high < 0.0 {
        "down"
    } else {
        ""
    }
}

fn cell<'a>(row: &'a Row, stage: &str, dataset: &str) -> Option<&'a Cell> {
    row.cells.get(stage)?.get(dataset)
}

/// The comparison of a row's last stage with its first on `dataset`.
fn own_gain<'a>(data: &'a Data, row: &Row, dataset: &str) -> Option<&'a Comparison> {
    let (first, last) = (data.stages.first()?, data.stages.last()?);
    let (a, b) = (format!("{} {last}", row.label), format!("{} {first}", row.label));
    data.comparisons.iter().find(|c| c.dataset == dataset && c.a == a && c.b == b)
}

fn page(data: &Data) -> Value {
    let columns: Vec<Column> = data
        .datasets
        .iter()
        .flat_map(|dataset| {
            data.stages.iter().map(move |stage| Column { stage: stage.clone(), dataset: dataset.clone() })
        })
        .filter(|c| data.rows.iter().any(|r| cell(r, &c.stage, &c.dataset).is_some()))
        .collect();
    let best: Vec<f64> = columns
        .iter()
        .map(|c| {
            let values = data.rows.iter().filter_map(|r| cell(r, &c.stage, &c.dataset)).map(|v| v.accuracy);
            values.fold(f64::NEG_INFINITY, f64::max)
        })
        .collect();
    let gains = data.stages.len() > 1;
    let rows: Vec<RowView> = data
        .rows
        .iter()
        .enumerate()
        .map(|(color, row)| RowView {
            label: &row.label,
            color: color % 8,
            differences: &row.differences,
            cells: columns
                .iter()
                .zip(&best)
                .map(|(c, best)| {
                    cell(row, &c.stage, &c.dataset).map(|v| CellView {
                        accuracy: percent(v.accuracy),
                        interval: interval(v.low, v.high),
                        best: data.rows.len() > 1 && v.accuracy == *best,
                    })
                })
                .collect(),
            gains: data.datasets.iter().map(|dataset| gain(data, row, dataset)).collect(),
        })
        .collect();
    let comparisons: Vec<Value> = data
        .comparisons
        .iter()
        .map(|c| {
            json!({
                "name": format!("{} − {}", c.a, c.b),
                "dataset": c.dataset,
                "difference": points(c.difference),
                "interval": format!("{} to {}", points(c.low), points(c.high)),
                "questions": c.questions,
                "p": c.p_value.map_or("–".to_owned(), p_text),
                "class": class(c.low, c.high),
            })
        })
        .collect();
    let differences = data.rows.iter().any(|r| !r.differences.is_empty());
    json!({
        "data": data,
        "verdict": verdict(data),
        "columns": columns,
        "rows": rows,
        "gains": gains,
        "plots": plots(data),
        "comparisons": comparisons,
        "costs": costs(data),
        "differences": differences,
        "quality": quality(data),
    })
}

fn p_text(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

fn gain(data: &Data, row: &Row, dataset: &str) -> Gain {
    let (Some(first), Some(last)) = (data.stages.first(), data.stages.last()) else {
        return Gain { text: "–".to_owned(), interval: None, class: "" };
    };
    if let Some(c) = own_gain(data, row, dataset) {
        return Gain {
            text: points(c.difference),
            interval: Some(format!("{} to {}", points(c.low), points(c.high))),
            class: class(c.low, c.high),
        };
    }
    match (cell(row, first, dataset), cell(row, last, dataset)) {
        (Some(before), Some(after)) => {
            Gain { text: points(after.accuracy - before.accuracy), interval: None, class: "" }
        }
        _ => Gain { text: "–".to_owned(), interval: None, class: "" },
    }
}

/// One sentence: what the rows show against the baseline on the first data set, with what cannot be said.
fn verdict(data: &Data) -> String {
    let (Some(dataset), Some(last)) = (data.datasets.first(), data.stages.last()) else {
        return "No evaluation was gathered.".to_owned();
    };
    let mut scored: Vec<(&Row, &Cell)> =
        data.rows.iter().filter_map(|r| cell(r, last, dataset).map(|c| (r, c))).collect();
    scored.sort_by(|a, b| b.1.accuracy.total_cmp(&a.1.accuracy));
    let Some((row, best)) = scored.first() else {
        return format!("No row has a finished evaluation on {dataset}.");
    };
    let mut text = format!("{} is highest on {dataset} {last} with {}%", row.label, percent(best.accuracy));
    if let Some(c) = own_gain(data, row, dataset) {
        text += &format!(", {} points over its start", points(c.difference));
    }
    let Some(baseline) = &data.baseline else { return text + "." };
    if *baseline == row.label {
        return text + "; it is the baseline.";
    }
    let b = format!("{baseline} {last}");
    let against =
        data.comparisons.iter().find(|c| c.dataset == *dataset && c.a == format!("{} {last}", row.label) && c.b == b);
    match against {
        Some(c) if c.low > 0.0 => {
            text += &format!(
                "; {} points over {baseline} ({} to {}).",
                points(c.difference),
                points(c.low),
                points(c.high)
            );
        }
        Some(c) => {
            text += &format!(
                "; its {} points over {baseline} ({} to {}) are within noise on {} questions.",
                points(c.difference),
                points(c.low),
                points(c.high),
                c.questions
            );
        }
        None => text += ".",
    }
    text
}

fn plots(data: &Data) -> Vec<BTreeMap<&'static str, String>> {
    let mut out = Vec::new();
    for dataset in &data.datasets {
        let groups: Vec<(String, Vec<Bar>)> = data
            .rows
            .iter()
            .enumerate()
            .map(|(color, row)| {
                let bars = data.stages.iter().enumerate().filter_map(|(i, stage)| {
                    let c = cell(row, stage, dataset)?;
                    Some(Bar {
                        label: format!("{} {stage}", row.label),
                        color,
                        pale: i + 1 < data.stages.len(),
                        value: c.accuracy,
                        interval: Some((c.low, c.high)),
                    })
                });
                (row.label.clone(), bars.collect::<Vec<_>>())
            })
            .filter(|(_, bars)| !bars.is_empty())
            .collect();
        let title = format!("Accuracy on {dataset}");
        if let Some(svg) = svg::bars(&title, &groups) {
            let caption = match data.stages.as_slice() {
                [one] => format!("{one}, with 95% intervals"),
                [first, .., last] => format!("{first} (pale) and {last}, with 95% intervals"),
                [] => String::new(),
            };
            out.push(BTreeMap::from([("title", title), ("svg", svg), ("caption", caption)]));
        }
    }
    for (metric, title, caption) in CURVES {
        let series: Vec<Series> = data
            .rows
            .iter()
            .enumerate()
            .filter_map(|(color, row)| {
                let points = row.curves.get(metric)?.clone();
                Some(Series { label: row.label.clone(), color, points })
            })
            .collect();
        // A metric that is zero everywhere (no KL term, no noise) says nothing.
        if series.iter().flat_map(|s| &s.points).all(|p| p.1 == 0.0 || !p.1.is_finite()) {
            continue;
        }
        if let Some(svg) = svg::lines(title, "step", &series) {
            out.push(BTreeMap::from([("title", title.to_owned()), ("svg", svg), ("caption", caption.to_owned())]));
        }
    }
    out
}

fn bytes(value: u64) -> String {
    let value = value as f64;
    if value >= 1e9 { format!("{:.2} GB", value / 1e9) } else { format!("{:.2} MB", value / 1e6) }
}

fn costs(data: &Data) -> Option<Value> {
    type Column = (&'static str, fn(&Row) -> Option<String>);
    let all: [Column; 7] = [
        ("base weights", |r| r.cost.weight_bytes.map(bytes)),
        ("quantization error", |r| r.cost.quantization_error.map(|e| format!("{e:.4}"))),
        ("peak memory", |r| r.cost.peak_gib.map(|g| format!("{g:.2} GiB"))),
        ("rollout tok/s", |r| r.cost.rollout_tokens_per_second.map(|v| format!("{v:.0}"))),
        ("train tok/s", |r| r.cost.train_tokens_per_second.map(|v| format!("{v:.0}"))),
        ("s / step", |r| r.cost.seconds_per_step.map(|v| format!("{v:.2}"))),
        ("training time", |r| r.cost.train_seconds.map(|v| format!("{v:.0} s"))),
    ];
    let present: Vec<&Column> = all.iter().filter(|(_, get)| data.rows.iter().any(|r| get(r).is_some())).collect();
    if present.is_empty() {
        return None;
    }
    let rows: Vec<Value> = data
        .rows
        .iter()
        .enumerate()
        .map(|(color, row)| {
            let cells: Vec<String> =
                present.iter().map(|(_, get)| get(row).unwrap_or_else(|| "–".to_owned())).collect();
            json!({ "label": row.label, "color": color % 8, "cells": cells })
        })
        .collect();
    let names: Vec<&str> = present.iter().map(|c| c.0).collect();
    Some(json!({ "names": names, "rows": rows }))
}

fn quality(data: &Data) -> Vec<Value> {
    let mut out = Vec::new();
    for row in &data.rows {
        for stage in &data.stages {
            for dataset in &data.datasets {
                if let Some(c) = cell(row, stage, dataset) {
                    out.push(json!({
                        "row": row.label,
                        "stage": stage,
                        "dataset": dataset,
                        "points": c.points,
                        "truncated": format!("{}%", percent(c.truncated)),
                        "no_answer": format!("{}%", percent(c.no_answer)),
                        "tokens": format!("{:.1}", c.mean_tokens),
                    }));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Data {
        let cell =
            |accuracy: f64| Cell { accuracy, low: accuracy - 0.1, high: accuracy + 0.1, points: 1, ..Cell::default() };
        let row = |label: &str, before: f64, after: f64| Row {
            label: label.to_owned(),
            differences: vec!["train.lr: 5e-6 -> 1e-5 <b>".to_owned()],
            cells: BTreeMap::from([
                ("before".to_owned(), BTreeMap::from([("arith".to_owned(), cell(before))])),
                ("after".to_owned(), BTreeMap::from([("arith".to_owned(), cell(after))])),
            ]),
            curves: BTreeMap::from([("reward".to_owned(), vec![(1.0, 0.25), (2.0, 0.5)])]),
            ..Row::default()
        };
        Data {
            title: "t | <x>".to_owned(),
            axis: "variant".to_owned(),
            baseline: Some("bf16".to_owned()),
            datasets: vec!["arith".to_owned()],
            stages: vec!["before".to_owned(), "after".to_owned()],
            rows: vec![row("bf16", 0.25, 0.625), row("nvfp4|aqn", 0.25, 0.75)],
            comparisons: vec![Comparison {
                dataset: "arith".to_owned(),
                a: "nvfp4|aqn after".to_owned(),
                b: "bf16 after".to_owned(),
                difference: 0.125,
                low: -0.01,
                high: 0.26,
                questions: 200,
                p_value: Some(0.0712),
            }],
            ..Data::default()
        }
    }

    #[test]
    fn the_page_holds_every_figure_and_escapes_what_comes_from_outside() {
        let page = html(&sample()).unwrap();
        for expected in ["62.5", "75.0", "65.0 to 85.0", "+50.0", "0.071", "within noise on 200 questions", "<svg"] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        assert!(!page.contains("<x>") && !page.contains("1e-5 <b>"));
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
    }

    #[test]
    fn markdown_tables_keep_their_columns_whatever_the_labels() {
        let text = markdown(&sample()).unwrap();
        let table: Vec<&str> = text.lines().skip_while(|l| !l.starts_with("## Accuracy")).skip(2).take(4).collect();
        let columns = |line: &str| line.replace("\\|", "").matches('|').count();
        assert!(table.iter().all(|l| columns(l) == columns(table[0])), "{table:#?}");
        assert!(table[3].contains("nvfp4\\|aqn"));
    }

    #[test]
    fn floats_are_printed_without_binary_dust() {
        assert_eq!(number(f64::from(0.95f32)), "0.95");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(1.0), "1");
    }

    #[test]
    fn an_empty_report_still_renders() {
        assert!(html(&Data::default()).unwrap().contains("No evaluation was gathered"));
        assert!(!markdown(&Data::default()).unwrap().is_empty());
    }
}
