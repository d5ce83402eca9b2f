//! The page of a run that goes on: the report's plots and style around what has happened so far.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Data, Row, markup, plots, render};
use crate::Result;

const TEMPLATE: &str = include_str!("../../templates/live.html.j2");

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivePart {
    /// The whole page.
    Page,
    /// What changes in it.
    Curves,
}

/// Figures of the latest step that a reader looks for first.
const LATEST: [(&str, &str); 10] = [
    ("step", "step"),
    ("reward", "reward"),
    ("rollout/accuracy", "accuracy"),
    ("entropy", "entropy"),
    ("kl", "KL"),
    ("grad_norm", "gradient"),
    ("aqn/sigma", "sigma"),
    ("rollout/tok_s", "rollout tok/s"),
    ("train/tok_s", "train tok/s"),
    ("memory/peak_gib", "peak GiB"),
];

/// HTML of `picture` (pipeline, stages_in_all, over, said, stages with name, state, note and latest) with the curves
/// of `rows`.
///
/// # Errors
/// When the picture does not fit the template.
pub fn live(part: LivePart, picture: &impl Serialize, rows: Vec<Row>) -> Result<String> {
    let picture =
        serde_json::to_value(picture).map_err(|e| crate::Error::failed("cannot show the run").caused_by(e))?;
    let stages = picture["stages"].as_array().cloned().unwrap_or_default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for state in stages.iter().filter_map(|s| s["state"].as_str()) {
        *counts.entry(state).or_default() += 1;
    }
    let page = json!({
        "part": if part == LivePart::Page { "page" } else { "curves" },
        "plots": plots::plots(&Data { rows, ..Data::default() }),
        "latest": latest(&stages),
        "counts": counts.into_iter().collect::<Vec<_>>(),
        "picture": picture,
    });
    render::page("live.html", TEMPLATE, markup::clean(page))
}

fn latest(stages: &[Value]) -> Option<Value> {
    let trained: Vec<&Value> = stages.iter().filter(|s| s["latest"]["step"].is_u64()).collect();
    let present: Vec<_> =
        LATEST.iter().filter(|(key, _)| trained.iter().any(|s| s["latest"][*key].is_number())).collect();
    let cell = |value: &Value| match value.as_f64() {
        Some(v) if v == 0.0 || (1e-3..1e6).contains(&v.abs()) => {
            let digits = if v.fract() == 0.0 || v.abs() >= 1000.0 { 0 } else { 4 };
            format!("{v:.digits$}")
        }
        Some(v) => format!("{v:.2e}"),
        None => "–".to_owned(),
    };
    let row = |s: &&Value| {
        let cells: Vec<String> = present.iter().map(|(key, _)| cell(&s["latest"][*key])).collect();
        json!({ "name": s["name"], "cells": cells })
    };
    let names: Vec<&str> = present.iter().map(|p| p.1).collect();
    (!trained.is_empty()).then(|| json!({ "names": names, "rows": trained.iter().map(row).collect::<Vec<_>>() }))
}
