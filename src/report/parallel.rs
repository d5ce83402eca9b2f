//! Parallel coordinates: with three axes or more a line per row through its labels to its accuracy.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::heat::{Spot, axes};
use super::markup::escape;
use super::svg::{COLORS, ticks};
use super::view::cell;
use super::{Data, Row};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const SIDE: f64 = 60.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 34.0;

/// One plot per data set; none where fewer than three axes vary: there a heat map says more.
pub(super) fn view(data: &Data) -> Vec<Value> {
    let Some(last) = data.stages.last() else { return Vec::new() };
    let plot = |dataset: &String| {
        let spot = |row: &Row| Spot { point: row.point.clone(), value: cell(row, last, dataset).map(|c| c.accuracy) };
        let spots: Vec<Spot> = data.rows.iter().map(spot).collect();
        let labels: Vec<&str> = data.rows.iter().map(|r| r.label.as_str()).collect();
        let title = format!("{dataset} {last}, by every axis");
        draw(&title, &spots, &labels).map(|svg| json!({ "title": title, "svg": svg }))
    };
    data.datasets.iter().filter_map(plot).collect()
}

fn draw(title: &str, spots: &[Spot], labels: &[&str]) -> Option<String> {
    let axes = axes(spots);
    if axes.len() < 3 {
        return None;
    }
    let values = || spots.iter().filter_map(|s| s.value).filter(|v| v.is_finite());
    let scale = ticks(values().fold(1.0, f64::min), values().fold(0.0, f64::max), 5);
    let (low, high) = (*scale.first()?, *scale.last()?);
    let floor = HEIGHT - BOTTOM;
    let x = |i: usize| SIDE + i as f64 / axes.len() as f64 * (WIDTH - 2.0 * SIDE);
    let accuracy = |v: f64| floor - (v - low) / (high - low) * (floor - TOP);
    // Labels stand between the ends, so that the lowest is not taken for a failure.
    let place = |i: usize, n: usize| floor - (i as f64 + 0.5) / n as f64 * (floor - TOP);
    let title = escape(title);
    // Writing to a String cannot fail.
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="max-width:900px" role="img" aria-label="{title}"><title>{title}</title>"#
    );
    let text = |out: &mut String, x: f64, y: f64, anchor: &str, class: &str, content: &str| {
        let short: String = content.chars().take(14).collect();
        let _ = write!(
            out,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}<title>{}</title></text>"#,
            escape(&short),
            escape(content)
        );
    };
    for i in 0..=axes.len() {
        let _ = write!(out, r#"<line class="grid" x1="{0:.1}" y1="{TOP}" x2="{0:.1}" y2="{floor}"/>"#, x(i));
        text(&mut out, x(i), TOP - 16.0, "middle", "name", axes.get(i).map_or("pass@1, %", |a| a.0));
    }
    for (spot, (i, label)) in spots.iter().zip(labels.iter().enumerate()) {
        let mut path: Vec<String> = Vec::new();
        for (k, (axis, names)) in axes.iter().enumerate() {
            // A row that an axis does not split passes it by.
            if let Some(at) = spot.point.get(*axis).and_then(|own| names.iter().position(|n| n == own)) {
                path.push(format!("{:.1},{:.1}", x(k), place(at, names.len())));
            }
        }
        let value = spot.value.filter(|v| v.is_finite());
        path.push(format!("{:.1},{:.1}", x(axes.len()), value.map_or(floor + 12.0, accuracy)));
        let value = value.map_or_else(|| "failed".to_owned(), |v| format!("{:.1}", v * 100.0));
        let _ = write!(
            out,
            r#"<polyline class="line c{}" points="{}"><title>{}: {value}</title></polyline>"#,
            i % COLORS,
            path.join(" "),
            escape(label)
        );
    }
    for (k, (_, names)) in axes.iter().enumerate() {
        for (i, name) in names.iter().enumerate() {
            text(&mut out, x(k) + 6.0, place(i, names.len()) - 4.0, "start", "name", name);
        }
    }
    for value in scale {
        text(
            &mut out,
            x(axes.len()) + 8.0,
            accuracy(value) + 4.0,
            "start",
            "tick",
            format!("{:.4}", value * 100.0).trim_end_matches('0').trim_end_matches('.'),
        );
    }
    if spots.iter().any(|s| s.value.is_none()) {
        text(&mut out, x(axes.len()) + 8.0, floor + 16.0, "start", "tick", "failed");
    }
    out.push_str("</svg>");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(pairs: [(&str, &str); 3], value: Option<f64>) -> Spot {
        Spot { point: pairs.map(|(a, l)| (a.to_owned(), l.to_owned())).into(), value }
    }

    #[test]
    fn a_line_per_row_and_failed_ones_end_below() {
        let spots = [
            spot([("a", "1"), ("b", "x"), ("c", "<u>")], Some(0.5)),
            spot([("a", "2"), ("b", "y"), ("c", "v")], Some(0.75)),
            spot([("a", "1"), ("b", "y"), ("c", "v")], None),
        ];
        let svg = draw("t", &spots, &["r1", "r2", "r3"]).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert!(svg.contains("r2: 75.0") && svg.contains("r3: failed") && svg.contains(">failed<"));
        assert!(!svg.contains("<u>"));
        // The best ends at the top of the scale (0.5 to 0.75), the failed one below its floor.
        assert!(svg.contains("660.0,40.0\"") && svg.contains("660.0,278.0\""), "{svg}");
        let two: Vec<Spot> = spots
            .iter()
            .map(|s| Spot { point: s.point.clone().into_iter().take(2).collect(), value: s.value })
            .collect();
        assert_eq!(draw("t", &two, &["r1", "r2", "r3"]), None);
    }
}
