//! Accuracies over two axes as a heat map; further axes make more columns.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::markup::escape;
use super::view::cell;
use super::{Data, Row};

/// One cell's place and value.
#[derive(Clone, Debug, PartialEq)]
pub struct Spot {
    pub point: BTreeMap<String, String>,
    /// 0..1; `None` where the point failed.
    pub value: Option<f64>,
}

const CELL: f64 = 62.0;
const HIGH: f64 = 34.0;
const NAMES: f64 = 130.0;

/// A heat map per data set where several axes vary.
pub(super) fn view(data: &Data) -> Vec<Value> {
    let Some(last) = data.stages.last() else { return Vec::new() };
    let plot = |dataset: &String| {
        let spot = |row: &Row| {
            let value = cell(row, last, dataset).map(|c| c.accuracy);
            Spot { point: row.point.clone(), value }
        };
        let spots: Vec<Spot> = data.rows.iter().map(spot).collect();
        let title = format!("{dataset} {last}, pass@1 in percent");
        map(&title, &spots).map(|svg| json!({ "title": title, "svg": svg }))
    };
    data.datasets.iter().filter_map(plot).collect()
}

/// Axes with several labels, in their order, and the labels in the order of the spots.
pub(super) fn axes(spots: &[Spot]) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for (axis, label) in spots.iter().flat_map(|s| &s.point) {
        let index = found.iter().position(|f| f.0 == axis).unwrap_or_else(|| {
            found.push((axis, Vec::new()));
            found.len() - 1
        });
        if !found[index].1.contains(&label.as_str()) {
            found[index].1.push(label);
        }
    }
    found.retain(|f| f.1.len() > 1);
    found
}

/// The map; `None` where fewer than two axes vary.
pub fn map(title: &str, spots: &[Spot]) -> Option<String> {
    let axes = axes(spots);
    let ((row_axis, rows), rest) = axes.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let key = |s: &Spot| {
        let part = |(axis, _): &(&str, Vec<&str>)| s.point.get(*axis).map_or("–", String::as_str).to_owned();
        rest.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let mut columns: Vec<String> = Vec::new();
    for name in spots.iter().map(key) {
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    let values = || spots.iter().filter_map(|s| s.value).filter(|v| v.is_finite());
    let (low, high) = (values().fold(1.0, f64::min), values().fold(0.0, f64::max));
    let (width, height) = (NAMES + CELL * columns.len() as f64, 44.0 + HIGH * rows.len() as f64);
    let title = escape(title);
    // Writing to a String cannot fail.
    let mut out = format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" style="max-width:{:.0}px" role="img" aria-label="{title}"><title>{title}</title>"#,
        width * 1.4
    );
    let names: Vec<&str> = rest.iter().map(|(axis, _)| *axis).collect();
    let _ = write!(
        out,
        r#"<text x="4" y="34">{}</text><text x="{:.1}" y="13" text-anchor="middle">{}</text>"#,
        escape(row_axis),
        NAMES + CELL * columns.len() as f64 / 2.0,
        escape(&names.join(", "))
    );
    for (c, name) in columns.iter().enumerate() {
        let x = NAMES + CELL * (c as f64 + 0.5);
        let short: String = name.chars().take(10).collect();
        let _ = write!(
            out,
            r#"<text class="name" x="{x:.1}" y="34" text-anchor="middle">{}<title>{}</title></text>"#,
            escape(&short),
            escape(name)
        );
    }
    for (r, label) in rows.iter().enumerate() {
        let y = 42.0 + HIGH * r as f64;
        let short: String = label.chars().take(18).collect();
        let _ = write!(out, r#"<text class="name" x="4" y="{:.1}">{}</text>"#, y + 21.0, escape(&short));
        for (c, name) in columns.iter().enumerate() {
            let x = NAMES + CELL * c as f64;
            let spot = spots.iter().find(|s| s.point.get(*row_axis).is_some_and(|l| l == label) && key(s) == *name);
            let Some(spot) = spot else { continue };
            let value = spot.value.filter(|v| v.is_finite());
            // From faint to strong, never so strong that the figure on it cannot be read.
            let strength = value.map_or(0.0, |v| 0.06 + 0.5 * (v - low) / (high - low).max(1e-9));
            let text = value.map_or_else(|| "failed".to_owned(), |v| format!("{:.1}", v * 100.0));
            let _ = write!(
                out,
                r#"<rect class="heat" x="{:.1}" y="{:.1}" width="{}" height="{}" rx="4" fill-opacity="{strength:.2}"/><text class="name" x="{:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                x + 1.5,
                y + 1.5,
                CELL - 3.0,
                HIGH - 3.0,
                x + CELL / 2.0,
                y + 21.0
            );
        }
    }
    out.push_str("</svg>");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(pairs: &[(&str, &str)], value: Option<f64>) -> Spot {
        Spot { point: pairs.iter().map(|(a, l)| ((*a).to_owned(), (*l).to_owned())).collect(), value }
    }

    #[test]
    fn two_axes_make_a_map_with_failed_points_in_it() {
        let spots = [
            spot(&[("lr", "1e-5"), ("rank", "16"), ("x", "1")], Some(0.5)),
            spot(&[("lr", "1e-5"), ("rank", "<32>"), ("x", "1")], Some(0.75)),
            spot(&[("lr", "3e-5"), ("rank", "16"), ("x", "1")], None),
        ];
        let svg = map("t", &spots).unwrap();
        assert_eq!(svg.matches("class=\"heat\"").count(), 3, "a point that is not part of the sweep has no cell");
        assert!(svg.contains(">75.0<") && svg.contains(">failed<") && svg.contains("&lt;32&gt;"));
        assert!(!svg.contains(">x<"), "an axis with one label is none");
        assert_eq!(map("t", &spots[..2]), None);
    }
}
