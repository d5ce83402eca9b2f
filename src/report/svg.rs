//! Plots as SVG text: lines over steps and bars with intervals. Colours are CSS classes (`c0`..`c7`), so that the
//! page's light and dark themes decide them.

use std::fmt::Write as _;

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub label: String,
    /// Which colour class; the same variant keeps its colour in every plot.
    pub color: usize,
    pub points: Vec<(f64, f64)>,
}

/// One bar of a group, with an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub label: String,
    pub color: usize,
    /// Drawn pale: the value before training.
    pub pale: bool,
    pub value: f64,
    pub interval: Option<(f64, f64)>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 38.0;

/// Most points that a line keeps; longer ones are averaged in buckets.
const MAX_POINTS: usize = 400;

/// Text made safe for SVG and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A linear scale from data to pixels.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Round tick values (1, 2 or 5 times a power of ten) that cover `low..high`, about `count` of them.
pub fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    if !low.is_finite() || !high.is_finite() || count == 0 {
        return vec![0.0, 1.0];
    }
    let (low, high) = if high - low < 1e-12 { (low - 0.5, high + 0.5) } else { (low, high) };
    let rough = (high - low) / count as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(10.0 * magnitude);
    let first = (low / step).floor() as i64;
    let last = (high / step).ceil() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// A tick's label with no more digits than it needs.
fn label(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs();
    if !(1e-3..1e6).contains(&magnitude) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Averages neighbouring points until at most [`MAX_POINTS`] are left.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let bucket = points.len().div_ceil(MAX_POINTS).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let n = chunk.len() as f64;
        (chunk.iter().map(|p| p.0).sum::<f64>() / n, chunk.iter().map(|p| p.1).sum::<f64>() / n)
    };
    points.chunks(bucket).map(mean).collect()
}

fn open(title: &str, out: &mut String) {
    let title = escape(title);
    let _ =
        write!(out, r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>"#);
}

fn axis_y(scale: Scale, values: &[f64], percent: bool, out: &mut String) {
    for &value in values {
        let y = scale.at(value);
        let text = if percent { format!("{:.0}%", value * 100.0) } else { label(value) };
        let _ = write!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{x2}" y1="{y:.1}" y2="{y:.1}"/><text class="tick" x="{x}" y="{ty:.1}" text-anchor="end">{text}</text>"#,
            x2 = WIDTH - RIGHT,
            x = LEFT - 7.0,
            ty = y + 4.0,
        );
    }
}

/// Lines over an x axis named `x_name`; non-finite points are left out. `None` where nothing is to be drawn.
pub fn lines(title: &str, x_name: &str, series: &[Series]) -> Option<String> {
    let cleaned: Vec<(usize, &Series, Vec<(f64, f64)>)> = series
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let finite: Vec<(f64, f64)> =
                s.points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
            (i, s, thin(&finite))
        })
        .filter(|(_, _, points)| !points.is_empty())
        .collect();
    let all = || cleaned.iter().flat_map(|(_, _, points)| points.iter());
    let (mut x_low, mut x_high) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut y_low, mut y_high) = (f64::INFINITY, f64::NEG_INFINITY);
    for &(x, y) in all() {
        (x_low, x_high) = (x_low.min(x), x_high.max(x));
        (y_low, y_high) = (y_low.min(y), y_high.max(y));
    }
    if !x_low.is_finite() {
        return None;
    }
    if y_low > 0.0 && y_low < 0.5 * y_high {
        y_low = 0.0;
    }
    if x_high - x_low < 1e-9 {
        x_high = x_low + 1.0;
    }
    let y_ticks = ticks(y_low, y_high, 5);
    let y = Scale { low: y_ticks[0], high: y_ticks[y_ticks.len() - 1], from: HEIGHT - BOTTOM, to: TOP };
    let x = Scale { low: x_low, high: x_high, from: LEFT, to: WIDTH - RIGHT };
    let mut out = String::new();
    open(title, &mut out);
    axis_y(y, &y_ticks, false, &mut out);
    for value in ticks(x_low, x_high, 6).into_iter().filter(|v| *v >= x_low - 1e-9 && *v <= x_high + 1e-9) {
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
            x.at(value),
            HEIGHT - BOTTOM + 16.0,
            label(value)
        );
    }
    let _ = write!(
        out,
        r#"<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>"#,
        WIDTH - RIGHT,
        HEIGHT - 4.0,
        escape(x_name)
    );
    for (_, series, points) in &cleaned {
        let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1))).collect();
        let class = series.color % 8;
        let name = escape(&series.label);
        if let [only] = path.as_slice() {
            let (cx, cy) = only.split_once(',').unwrap_or(("0", "0"));
            let _ =
                write!(out, r#"<circle class="dot c{class}" cx="{cx}" cy="{cy}" r="3"><title>{name}</title></circle>"#);
        } else {
            let _ = write!(
                out,
                r#"<polyline class="line c{class}" points="{}"><title>{name}</title></polyline>"#,
                path.join(" ")
            );
        }
    }
    out.push_str("</svg>");
    Some(out)
}

/// Groups of bars (value 0..1 as percent) with interval whiskers; group names stand below.
pub fn bars(title: &str, groups: &[(String, Vec<Bar>)]) -> Option<String> {
    let count: usize = groups.iter().map(|g| g.1.len()).sum();
    if count == 0 {
        return None;
    }
    let top = groups
        .iter()
        .flat_map(|g| &g.1)
        .map(|b| b.interval.map_or(b.value, |i| i.1.max(b.value)))
        .filter(|v| v.is_finite())
        .fold(0.05, f64::max);
    let y_ticks = ticks(0.0, top, 5);
    let y = Scale { low: 0.0, high: y_ticks[y_ticks.len() - 1], from: HEIGHT - BOTTOM, to: TOP };
    let slots = count as f64 + groups.len() as f64;
    let slot = (WIDTH - LEFT - RIGHT) / slots;
    let width = (slot * 0.78).min(34.0);
    let mut out = String::new();
    open(title, &mut out);
    axis_y(y, &y_ticks, true, &mut out);
    let mut at = LEFT + slot * 0.5;
    for (name, bars) in groups {
        let start = at;
        for bar in bars {
            if bar.value.is_finite() {
                let x = at + (slot - width) / 2.0;
                let middle = at + slot / 2.0;
                let (y1, y0) = (y.at(bar.value.max(0.0)), y.at(0.0));
                let pale = if bar.pale { " pale" } else { "" };
                let _ = write!(
                    out,
                    r#"<rect class="bar c{}{pale}" x="{x:.1}" y="{y1:.1}" width="{width:.1}" height="{:.1}" rx="2"><title>{}: {:.1}%</title></rect>"#,
                    bar.color % 8,
                    (y0 - y1).max(0.5),
                    escape(&bar.label),
                    bar.value * 100.0
                );
                if let Some((low, high)) = bar.interval {
                    let _ = write!(
                        out,
                        r#"<path class="whisker" d="M{middle:.1},{:.1}V{:.1}"/>"#,
                        y.at(low.max(0.0)),
                        y.at(high)
                    );
                }
            }
            at += slot;
        }
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
            (start + at) / 2.0,
            HEIGHT - BOTTOM + 16.0,
            escape(name)
        );
        at += slot;
    }
    out.push_str("</svg>");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(3.0, 97.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert!(ticks(2.0, 2.0, 5).len() >= 2);
        assert_eq!(ticks(f64::NAN, 1.0, 5), [0.0, 1.0]);
    }

    #[test]
    fn non_finite_points_and_hostile_labels_do_not_reach_the_svg() {
        let series =
            Series { label: "<script>".to_owned(), color: 0, points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)] };
        let svg = lines("a & b", "step", &[series]).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("<script>") && svg.contains("a &amp; b"), "{svg}");
        assert_eq!(lines("empty", "step", &[]), None);
    }

    #[test]
    fn long_lines_are_averaged_not_cut() {
        let points: Vec<(f64, f64)> = (0..4000).map(|i| (f64::from(i), 1.0)).collect();
        let thinned = thin(&points);
        assert!(thinned.len() <= MAX_POINTS && thinned.last().unwrap().0 > 3990.0);
        assert!(thinned.iter().all(|p| (p.1 - 1.0).abs() < 1e-12));
    }
}
