//! Time of a training step by phase: a bar per row, and its figures.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Data;
use super::markup::escape;
use super::svg::{COLORS, ticks};

const WIDTH: f64 = 520.0;
const NAMES: f64 = 150.0;
const RIGHT: f64 = 22.0;
const ROW: f64 = 30.0;
const TOP: f64 = 8.0;

/// Bars and table; `None` where no training recorded its phases.
pub(super) fn view(data: &Data) -> Option<Value> {
    let rows: Vec<_> = data.rows.iter().enumerate().filter(|(_, r)| !r.cost.step_phases.is_empty()).collect();
    let names: Vec<&str> = rows.first()?.1.cost.step_phases.iter().map(|p| p.0).collect();
    let bars: Vec<(&str, Vec<f64>)> =
        rows.iter().map(|(_, r)| (r.label.as_str(), r.cost.step_phases.iter().map(|p| p.1).collect())).collect();
    let line = |(color, row): &(usize, &super::Row)| {
        let phases = &row.cost.step_phases;
        let all: f64 = phases.iter().map(|p| p.1).sum();
        let cell = |(_, s): &(&str, f64)| format!("{s:.3} s ({:.0}%)", 100.0 * s / all.max(1e-12));
        json!({ "label": row.label, "color": color % COLORS, "cells": phases.iter().map(cell).collect::<Vec<_>>(), "all": format!("{all:.3} s") })
    };
    Some(json!({
        "names": names,
        "rows": rows.iter().map(line).collect::<Vec<_>>(),
        "svg": draw(&bars, &names),
        "legend": names.iter().enumerate().map(|(i, n)| json!({"label": n, "phase": i})).collect::<Vec<_>>(),
    }))
}

/// Stacked bars, one a row, in the order of the phases.
fn draw(bars: &[(&str, Vec<f64>)], names: &[&str]) -> String {
    let longest = bars.iter().map(|(_, b)| b.iter().sum::<f64>()).fold(0.0, f64::max);
    let values = ticks(0.0, longest, 5);
    let last = values.last().copied().unwrap_or(1.0);
    let at = |v: f64| NAMES + v / last * (WIDTH - NAMES - RIGHT);
    let bottom = TOP + ROW * bars.len() as f64;
    let title = "Time of a step by phase";
    // Writing to a String cannot fail.
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {:.0}" role="img" aria-label="{title}"><title>{title}</title>"#,
        bottom + 38.0
    );
    for value in values {
        let x = at(value);
        let text = format!("{value:.4}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        let _ = write!(
            out,
            r#"<line class="grid" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
            bottom + 16.0
        );
    }
    let _ = write!(
        out,
        r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="middle">seconds</text>"#,
        f64::midpoint(NAMES, WIDTH - RIGHT),
        bottom + 33.0
    );
    for (r, (label, bar)) in bars.iter().enumerate() {
        let y = TOP + ROW * r as f64;
        let short: String = label.chars().take(20).collect();
        let _ = write!(
            out,
            r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{}<title>{}</title></text>"#,
            NAMES - 12.0,
            y + ROW / 2.0 + 4.0,
            escape(&short),
            escape(label)
        );
        let mut from = 0.0;
        for (i, seconds) in bar.iter().enumerate() {
            let _ = write!(
                out,
                r#"<rect class="phase p{i}" x="{:.1}" y="{:.1}" width="{:.2}" height="{:.1}"><title>{} {}: {seconds:.3} s</title></rect>"#,
                at(from),
                y + 5.0,
                at(from + seconds) - at(from),
                ROW - 10.0,
                escape(label),
                escape(names.get(i).copied().unwrap_or_default())
            );
            from += seconds;
        }
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Cost, Row};
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_phases() {
        let cost = Cost { step_phases: vec![("a", 1.0), ("b", 3.0)], ..Cost::default() };
        let rows = vec![Row { label: "<x>".into(), cost, ..Row::default() }, Row::default()];
        let view = view(&Data { rows, ..Data::default() }).unwrap();
        assert_eq!(
            view["rows"],
            json!([{"label": "<x>", "color": 0, "cells": ["1.000 s (25%)", "3.000 s (75%)"], "all": "4.000 s"}])
        );
        let svg = view["svg"].as_str().unwrap();
        // 0 to 4 seconds over 348 pixels.
        assert!(
            svg.contains(r#"x="150.0" y="13.0" width="87.00""#) && svg.contains(r#"x="237.0" y="13.0" width="261.00""#),
            "{svg}"
        );
        assert!(!svg.contains("<x>"));
        assert_eq!(super::view(&Data::default()), None);
    }
}
