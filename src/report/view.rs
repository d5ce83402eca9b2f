//! [`Data`] -> the tables and plots that the templates lay out. Every figure becomes text here, once for both.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::plots::{facets, plots};
use super::svg::COLORS;
use super::verdict::verdict;
use super::{Against, Cell, Comparison, Data, Row, heat, layers, markup, paper, parallel, phases};
use crate::eval::stats;

/// What stands where there is no figure.
const NONE: &str = "–";

/// Shared settings that a reader asks for first; all of them stand in a list below.
const HEADLINES: [&str; 14] = [
    "download.repo",
    "download.revision",
    "quantize.format",
    "lora.rank",
    "lora.alpha",
    "lora.train_norms",
    "train.algorithm",
    "train.data",
    "train.steps",
    "train.prompts_per_step",
    "train.group_size",
    "train.max_completion",
    "train.optimizer",
    "train.lr",
];

#[derive(Serialize)]
struct Column {
    stage: String,
    dataset: String,
}

/// A table cell: a figure, what stands small beside it, and a class (`best`, `up`, `down`, `failed`).
#[derive(Serialize)]
struct Figure {
    text: String,
    small: Option<String>,
    class: &'static str,
}

impl Figure {
    fn none() -> Self {
        Self { text: NONE.to_owned(), small: None, class: "" }
    }
}

pub fn percent(value: f64) -> String {
    format!("{:.1}", value * 100.0)
}

/// A difference of shares in points, with its sign.
pub fn points(value: f64) -> String {
    let text = format!("{:+.1}", value * 100.0);
    if matches!(text.as_str(), "+0.0" | "-0.0") { "0.0".to_owned() } else { text }
}

pub fn interval(low: f64, high: f64) -> String {
    format!("{} to {}", percent(low), percent(high))
}

pub fn signed_interval(low: f64, high: f64) -> String {
    format!("{} to {}", points(low), points(high))
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

fn p_text(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

fn bytes(value: u64) -> String {
    let value = value as f64;
    if value >= 1e9 {
        format!("{:.2} GB", value / 1e9)
    } else if value >= 1e6 {
        format!("{:.2} MB", value / 1e6)
    } else {
        format!("{:.1} kB", value / 1e3)
    }
}

fn seconds(value: f64) -> String {
    if value < 120.0 {
        format!("{value:.1} s")
    } else if value < 7200.0 {
        format!("{:.1} min", value / 60.0)
    } else {
        format!("{:.1} h", value / 3600.0)
    }
}

pub(super) fn cell<'a>(row: &'a Row, stage: &str, dataset: &str) -> Option<&'a Cell> {
    row.cells.get(stage)?.get(dataset)
}

fn find<'a>(data: &'a Data, against: Against, row: &str, dataset: &str) -> Option<&'a Comparison> {
    data.comparisons.iter().find(|c| c.against == against && c.dataset == dataset && c.a.row == row)
}

/// Everything that a template needs, as one value without hostile characters.
pub fn page(data: &Data) -> Value {
    let columns: Vec<Column> = data
        .datasets
        .iter()
        .flat_map(|dataset| {
            data.stages.iter().map(move |stage| Column { stage: stage.clone(), dataset: dataset.clone() })
        })
        .filter(|c| data.rows.iter().any(|r| cell(r, &c.stage, &c.dataset).is_some()))
        .collect();
    let gains = data.stages.len() > 1;
    let versus = data.comparisons.iter().any(|c| c.against == Against::Baseline);
    let rows: Vec<Value> = data
        .rows
        .iter()
        .enumerate()
        .map(|(color, row)| {
            let cells: Vec<Figure> = columns.iter().map(|c| accuracy(row, &c.stage, &c.dataset)).collect();
            let gains: Vec<Figure> = data.datasets.iter().map(|dataset| gain(data, row, dataset)).collect();
            let versus: Vec<Figure> = data.datasets.iter().map(|dataset| versus_baseline(data, row, dataset)).collect();
            json!({
                "label": row.label,
                "color": color % COLORS,
                "weights": weights(row),
                "cells": cells,
                "gains": gains,
                "versus": versus,
                "is_baseline": row.baseline.as_deref() == Some(row.label.as_str()),
                "baseline": row.baseline,
                "differences": row.differences,
            })
        })
        .collect();
    let comparisons: Vec<Value> = data.comparisons.iter().map(comparison).collect();
    let headlines: Vec<&(String, String)> =
        HEADLINES.iter().filter_map(|key| data.shared.iter().find(|(name, _)| name == key)).collect();
    let page = json!({
        "data": data_without_curves(data),
        "verdict": verdict(data),
        "question": question(data),
        "headlines": headlines,
        "columns": columns,
        "rows": rows,
        "gains": gains,
        "versus": versus,
        "weights": data.rows.iter().any(|r| weights(r).is_some()),
        "plots": plots(data),
        "facets": facets(data),
        "heat": heat::view(data),
        "parallel": parallel::view(data),
        "graph": data.graph.svg(),
        "ranking": ranking(data),
        "flips": flips(data),
        "comparisons": comparisons,
        "per_point": data.comparisons.iter().any(|c| !c.per_point.is_empty()),
        "costs": costs(data),
        "layers": layers::view(data),
        "phases": phases::view(data),
        "has_differences": data.rows.iter().any(|r| !r.differences.is_empty()),
        "quality": quality(data),
        "paper": data.paper.as_ref().map(|paper| beside(paper, data)),
        "provenance": provenance(data),
        "total": seconds(data.provenance.iter().map(|m| m.wall_seconds).sum()),
    });
    markup::clean(page)
}

/// Rows by accuracy where there are more than two; of two the table of accuracies says all.
fn ranking(data: &Data) -> Option<Value> {
    if data.rows.len() < 3 {
        return None;
    }
    let mut place = 0;
    let mut rows = Vec::new();
    for (i, rank) in data.ranking.iter().enumerate() {
        place = if i == 0 || data.ranking[i - 1].dataset != rank.dataset { 1 } else { place + 1 };
        let told = match rank.behind {
            None if place == 1 => "first".to_owned(),
            None => NONE.to_owned(),
            Some(_) if rank.told_apart => "yes".to_owned(),
            Some(_) => "no".to_owned(),
        };
        let each: Vec<String> = rank.per_point.iter().map(|(label, v)| format!("{label}: {}", percent(*v))).collect();
        let versus = find(data, Against::Baseline, &rank.row, &rank.dataset);
        rows.push(json!({
            "place": place,
            "dataset": rank.dataset,
            "row": rank.row,
            "color": data.rows.iter().position(|r| r.label == rank.row).unwrap_or(0) % COLORS,
            "accuracy": percent(rank.accuracy),
            "each": each.join(", "),
            "behind": rank.behind.map_or_else(|| NONE.to_owned(), |(d, ..)| percent(d)),
            "interval": rank.behind.map_or_else(|| NONE.to_owned(), |(_, low, high)| signed_interval(low, high)),
            "told": told,
            "versus": versus.map_or_else(|| NONE.to_owned(), |c| points(c.difference)),
            "versus_interval": versus.map_or_else(String::new, |c| signed_interval(c.low, c.high)),
            "class": versus.map_or("", |c| class(c.low, c.high)),
        }));
    }
    let each = data.ranking.iter().any(|r| r.per_point.len() > 1);
    Some(json!({ "rows": rows, "each": each, "versus": rows.iter().any(|r| r["versus"] != NONE) }))
}

/// The questions that flipped, at most so many by name.
fn flips(data: &Data) -> Vec<Value> {
    const NAMED: usize = 60;
    let list = |ids: &[String]| {
        let mut text = ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        if ids.len() > NAMED {
            text += &format!(" and {} more (answers.csv has all)", ids.len() - NAMED);
        }
        if text.is_empty() { NONE.to_owned() } else { text }
    };
    let row = |f: &super::Flips| {
        json!({
            "row": f.row,
            "dataset": f.dataset,
            "gained": f.gained.len(),
            "lost": f.lost.len(),
            "gained_ids": list(&f.gained),
            "lost_ids": list(&f.lost),
        })
    };
    data.flips.iter().map(row).collect()
}

/// What the report compares, in one sentence.
fn question(data: &Data) -> String {
    let mut text = match data.rows.as_slice() {
        [_] => "One policy".to_owned(),
        rows => format!("{} policies, one per {}", rows.len(), data.axis),
    };
    text += &format!(", evaluated on {}", data.datasets.join(", "));
    match data.stages.as_slice() {
        [first, .., last] => text += &format!(" at {first} and {last}"),
        [one] => text += &format!(" at {one}"),
        [] => {}
    }
    if let Some(baseline) = &data.baseline {
        text += &format!(": which differ from {baseline}");
        if data.over.is_some() && data.over_labels.len() > 1 {
            text += " by more than questions and chance explain";
        }
        text += "?";
    } else {
        text.push('.');
    }
    if let (Some(over), false) = (&data.over, data.over_labels.is_empty()) {
        text += &format!(" Averaged over {over} ({}).", data.over_labels.join(", "));
    }
    text
}

fn data_without_curves(data: &Data) -> Data {
    let rows = data.rows.iter().map(|r| Row { curves: BTreeMap::new(), ..r.clone() }).collect();
    Data { rows, ..data.clone() }
}

fn weights(row: &Row) -> Option<String> {
    match (&row.format, row.cost.weight_bytes) {
        (Some(format), Some(size)) => Some(format!("{format}, {}", bytes(size))),
        (Some(format), None) => Some(format.clone()),
        (None, size) => size.map(bytes),
    }
}

fn accuracy(row: &Row, stage: &str, dataset: &str) -> Figure {
    let Some(c) = cell(row, stage, dataset) else {
        return if row.failed > 0 {
            Figure { text: "failed".to_owned(), small: None, class: "failed" }
        } else {
            Figure::none()
        };
    };
    let mut small = interval(c.low, c.high);
    if let Some(deviation) = c.deviation {
        small += &format!("; SD {} of {}", percent(deviation), c.points);
    }
    Figure { text: percent(c.accuracy), small: Some(small), class: if c.best { "best" } else { "" } }
}

fn gain(data: &Data, row: &Row, dataset: &str) -> Figure {
    if let Some(c) = find(data, Against::Start, &row.label, dataset) {
        return Figure {
            text: points(c.difference),
            small: Some(signed_interval(c.low, c.high)),
            class: class(c.low, c.high),
        };
    }
    // Without records there is no test, but the difference of the two accuracies still stands.
    let (first, last) = (data.stages.first(), data.stages.last());
    let at = |stage: Option<&String>| stage.and_then(|stage| cell(row, stage, dataset));
    match (at(first), at(last)) {
        (Some(before), Some(after)) => {
            Figure { text: points(after.accuracy - before.accuracy), small: None, class: "" }
        }
        _ => Figure::none(),
    }
}

fn versus_baseline(data: &Data, row: &Row, dataset: &str) -> Figure {
    if row.baseline.as_deref() == Some(row.label.as_str()) {
        return Figure { text: "baseline".to_owned(), small: None, class: "soft" };
    }
    match find(data, Against::Baseline, &row.label, dataset) {
        Some(c) => Figure {
            text: points(c.difference),
            small: Some(format!("{}; p {}", signed_interval(c.low, c.high), p_text(c.p_value))),
            class: class(c.low, c.high),
        },
        None => Figure::none(),
    }
}

fn comparison(c: &Comparison) -> Value {
    let name = if c.a.row == c.b.row {
        format!("{}: {} − {}", c.a.row, c.a.stage, c.b.stage)
    } else {
        format!("{} − {}", c.a.row, c.b.row)
    };
    let per_point = if c.per_point.len() > 1 {
        let (mean, half) = (stats::mean(&c.per_point), stats::t_half_width(&c.per_point));
        format!("{} ± {} ({})", points(mean), percent(half), c.per_point.len())
    } else {
        NONE.to_owned()
    };
    json!({
        "name": name,
        "dataset": c.dataset,
        "what": match c.against {
            Against::Start => "before training".to_owned(),
            Against::Baseline => match c.factors.len() {
                1 => format!("the baseline; {} alone", c.factors[0]),
                n => format!("the baseline; {n} factors"),
            },
            Against::Factor => format!("{} alone", c.factors.join(", ")),
        },
        "difference": points(c.difference),
        "interval": signed_interval(c.low, c.high),
        "flips": format!("+{} −{}", c.gained, c.lost),
        "questions": c.questions,
        "p": p_text(c.p_value),
        "test": if c.exact { "McNemar" } else { "bootstrap" },
        "per_point": per_point,
        "class": class(c.low, c.high),
    })
}

fn costs(data: &Data) -> Option<Value> {
    type Get = fn(&Row) -> Option<String>;
    let all: [(&str, Get); 10] = [
        ("weights", |r| r.format.clone()),
        ("bytes", |r| r.cost.weight_bytes.map(bytes)),
        ("quantization error", |r| r.cost.quantization_error.map(|e| format!("{e:.4}"))),
        ("peak memory", |r| r.cost.peak_gib.map(|g| format!("{g:.2} GiB"))),
        ("rollout tok/s", |r| r.cost.rollout_tokens_per_second.map(|v| format!("{v:.0}"))),
        ("train tok/s", |r| r.cost.train_tokens_per_second.map(|v| format!("{v:.0}"))),
        ("s / step", |r| r.cost.seconds_per_step.map(|v| format!("{v:.2}"))),
        ("training", |r| r.cost.train_seconds.map(seconds)),
        ("all stages", |r| r.cost.all_seconds.map(seconds)),
        ("by kind of stage", kinds),
    ];
    let present: Vec<_> = all.iter().filter(|(_, get)| data.rows.iter().any(|r| get(r).is_some())).collect();
    if present.is_empty() {
        return None;
    }
    let rows: Vec<Value> = data
        .rows
        .iter()
        .enumerate()
        .map(|(color, row)| {
            let cells: Vec<String> =
                present.iter().map(|(_, get)| get(row).unwrap_or_else(|| NONE.to_owned())).collect();
            json!({ "label": row.label, "color": color % COLORS, "cells": cells })
        })
        .collect();
    let names: Vec<&str> = present.iter().map(|c| c.0).collect();
    Some(json!({ "names": names, "rows": rows }))
}

/// The kinds of stages that took longest, longest first.
fn kinds(row: &Row) -> Option<String> {
    const SHOWN: usize = 3;
    let mut all: Vec<(&str, f64)> = row.cost.phases.iter().map(|(kind, s)| (*kind, *s)).filter(|p| p.1 > 0.0).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown: Vec<String> = all.iter().take(SHOWN).map(|(kind, s)| format!("{kind} {}", seconds(*s))).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn quality(data: &Data) -> Value {
    let share = |map: &BTreeMap<usize, f64>, name: &str| -> Vec<String> {
        map.iter().map(|(k, v)| format!("{name}@{k} {}", percent(*v))).collect()
    };
    let mut rows = Vec::new();
    for row in &data.rows {
        for stage in &data.stages {
            for dataset in &data.datasets {
                if let Some(c) = cell(row, stage, dataset) {
                    let further = [share(&c.pass_at, "pass"), share(&c.maj_at, "maj")].concat().join(", ");
                    rows.push(json!({
                        "row": row.label,
                        "stage": stage,
                        "dataset": dataset,
                        "points": c.points,
                        "truncated": format!("{}%", percent(c.truncated)),
                        "no_answer": format!("{}%", percent(c.no_answer)),
                        "tokens": format!("{:.1}", c.mean_tokens),
                        "further": further,
                    }));
                }
            }
        }
    }
    let further = rows.iter().any(|r| r["further"] != "");
    json!({ "rows": rows, "further": further })
}

/// The paper's table with our figures for the same method and data set beside each of its own.
fn beside(paper: &paper::Paper, data: &Data) -> Value {
    let columns: Vec<Value> = paper
        .columns
        .iter()
        .map(|column| {
            let dataset = data.datasets.iter().find(|d| paper::is_column(column, d));
            json!({ "name": column, "dataset": dataset })
        })
        .collect();
    let rows: Vec<Value> = paper
        .rows
        .iter()
        .map(|(method, figures)| {
            // The same untrained base stands in several rows: the first one speaks for them.
            let own = data.rows.iter().find_map(|row| {
                let stage = row.methods.iter().find(|(_, name)| *name == method)?.0;
                Some((row, stage))
            });
            let ours: Vec<Option<String>> = columns
                .iter()
                .map(|column| {
                    let (row, stage) = own?;
                    Some(percent(cell(row, stage, column["dataset"].as_str()?)?.accuracy))
                })
                .collect();
            let figures: Vec<String> = figures.iter().map(|v| format!("{v:.1}")).collect();
            json!({
                "method": method,
                "figures": figures,
                "ours": ours,
                "row": own.map(|(row, stage)| format!("{} {stage}", row.label)),
            })
        })
        .collect();
    json!({ "name": paper.name, "source": paper.source, "columns": columns, "rows": rows })
}

fn provenance(data: &Data) -> Vec<Value> {
    let row = |m: &super::Made| {
        json!({
            "instance": m.instance,
            "kind": m.kind,
            "fingerprint": crate::store::short(&m.fingerprint),
            "seed": m.seed.map_or_else(|| NONE.to_owned(), |s| s.to_string()),
            "version": m.qerl_version,
            "device": if m.device.is_empty() { NONE } else { &m.device },
            "host": if m.host.is_empty() { NONE } else { &m.host },
            "started": m.started.get(..19).unwrap_or(&m.started).replace('T', " "),
            "seconds": seconds(m.wall_seconds),
        })
    };
    data.provenance.iter().map(row).collect()
}
