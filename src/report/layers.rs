//! Error of the quantization by layer: a line per variant with the range of its projections, and a table by projection.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::svg::{self, COLORS, Series};
use super::{Data, LayerError, Point};

/// Rows whose weights were rounded alike: they share one line.
struct Group<'a> {
    label: String,
    color: usize,
    errors: &'a [LayerError],
    together: Option<f64>,
}

fn groups(data: &Data) -> Vec<Group<'_>> {
    let mut out: Vec<Group<'_>> = Vec::new();
    for (color, row) in data.rows.iter().enumerate().filter(|(_, r)| !r.layer_errors.is_empty()) {
        match out.iter_mut().find(|g| g.errors == row.layer_errors) {
            Some(group) => group.label += &format!(", {}", row.label),
            None => out.push(Group {
                label: row.label.clone(),
                color,
                errors: &row.layer_errors,
                together: row.cost.quantization_error,
            }),
        }
    }
    out
}

/// `model.layers.3.self_attn.q_proj` -> (3, `q_proj`).
fn place(layer: &str) -> Option<(u64, &str)> {
    let mut parts = layer.split('.');
    let number = parts.by_ref().find_map(|part| part.parse().ok())?;
    Some((number, parts.next_back()?))
}

/// Plot, legend and table; `None` where nothing was quantized.
pub(super) fn view(data: &Data) -> Option<Value> {
    let groups = groups(data);
    let mut names: Vec<&str> = Vec::new();
    for (_, name) in groups.iter().flat_map(|g| g.errors).filter_map(|e| place(&e.layer)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let series: Vec<Series> =
        groups.iter().map(|g| Series { label: g.label.clone(), color: g.color, points: points(g.errors) }).collect();
    let svg = svg::lines("Quantization error by layer", "layer", "relative error", &series)?;
    let legend: Vec<Value> = groups.iter().map(|g| json!({"label": g.label, "color": g.color % COLORS})).collect();
    let rows: Vec<Value> = groups.iter().map(|g| line(g, &names)).collect();
    Some(json!({ "svg": svg, "legend": legend, "names": names, "rows": rows }))
}

/// Per layer the mean over its projections, and the lowest and highest of them.
fn points(errors: &[LayerError]) -> Vec<Point> {
    let mut layers: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for error in errors {
        if let Some((layer, _)) = place(&error.layer) {
            layers.entry(layer).or_default().push(error.relative_frobenius);
        }
    }
    let point = |(layer, values): (u64, Vec<f64>)| Point {
        step: layer as f64,
        mean: crate::eval::stats::mean(&values),
        low: values.iter().copied().fold(f64::INFINITY, f64::min),
        high: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    };
    layers.into_iter().map(point).collect()
}

/// Per projection the mean over the layers; and the tensor with the largest error.
fn line(group: &Group<'_>, names: &[&str]) -> Value {
    let mean = |name: &&str| {
        let own = group.errors.iter().filter(|e| place(&e.layer).is_some_and(|p| p.1 == *name));
        let values: Vec<f64> = own.map(|e| e.relative_frobenius).collect();
        if values.is_empty() { "–".to_owned() } else { format!("{:.4}", crate::eval::stats::mean(&values)) }
    };
    let worst = group.errors.iter().max_by(|a, b| a.relative_frobenius.total_cmp(&b.relative_frobenius));
    json!({
        "label": group.label,
        "color": group.color % COLORS,
        "together": group.together.map_or_else(|| "–".to_owned(), |e| format!("{e:.4}")),
        "cells": names.iter().map(mean).collect::<Vec<_>>(),
        "worst": worst.map_or_else(String::new, |e| format!("{:.4}, {}", e.relative_frobenius, e.layer)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    fn row(label: &str, errors: &[(&str, f64)]) -> Row {
        let error = |(layer, e): &(&str, f64)| LayerError { layer: (*layer).to_owned(), relative_frobenius: *e };
        Row { label: label.to_owned(), layer_errors: errors.iter().map(error).collect(), ..Row::default() }
    }

    #[test]
    fn equal_weights_share_a_line_and_the_table_holds_means() {
        let errors = [
            ("model.layers.0.self_attn.q_proj", 0.1),
            ("model.layers.0.mlp.up_proj", 0.3),
            ("model.layers.1.self_attn.q_proj", 0.2),
            ("model.layers.1.mlp.up_proj", 0.4),
        ];
        let rows = vec![row("a", &errors), row("b<", &errors), row("bf16", &[])];
        let view = view(&Data { rows, ..Data::default() }).unwrap();
        assert_eq!(view["names"], json!(["q_proj", "up_proj"]));
        assert_eq!(view["rows"].as_array().unwrap().len(), 1);
        let line = &view["rows"][0];
        assert_eq!((&line["label"], &line["cells"]), (&json!("a, b<"), &json!(["0.1500", "0.3500"])));
        assert_eq!(line["worst"], "0.4000, model.layers.1.mlp.up_proj");
        assert_eq!(
            points(&row("a", &errors).layer_errors)[1],
            Point { step: 1.0, mean: 0.30000000000000004, low: 0.2, high: 0.4 }
        );
        assert!(view["svg"].as_str().unwrap().contains("a, b&lt;, 1: 0.3"));
    }
}
