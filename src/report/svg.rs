//! Plots as SVG text: lines over steps with bands, and accuracies with intervals. Colours are CSS classes
//! (`c0`..`c7`), so that the page's light and dark themes decide them.

use std::fmt::Write as _;

use super::Point;
use super::markup::escape;

/// Colour classes; further series start again.
pub const COLORS: usize = 8;

/// One line of a plot, with a band from the points' lows to their highs.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub label: String,
    /// Which colour class; the same variant keeps its colour in every plot.
    pub color: usize,
    /// A step whose mean is not finite is a gap.
    pub points: Vec<Point>,
}

/// One accuracy with its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    pub stage: String,
    /// Of the last stage: drawn filled.
    pub last: bool,
    pub value: f64,
    pub interval: (f64, f64),
}

/// One row of an accuracy plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    pub label: String,
    pub color: usize,
    /// In the order of the stages.
    pub values: Vec<Estimate>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// Room for the rows' names and for their figures in an accuracy plot.
const NAMES: f64 = 150.0;
const FIGURES: f64 = 62.0;
const ROW: f64 = 36.0;

/// Most points that a line keeps; longer ones keep each bucket's lowest and highest.
const MAX_POINTS: usize = 600;
/// About so many points of a line show their value under the pointer.
const MAX_HOVERS: usize = 120;

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
    // Below this share of its size a range is one value with rounding dust.
    let flat = high - low <= 1e-9 * high.abs().max(low.abs());
    let pad = if high == 0.0 { 0.5 } else { high.abs() / 2.0 };
    let (low, high) = if flat { (low - pad, high + pad) } else { (low, high) };
    let rough = (high - low) / count as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(10.0 * magnitude);
    // Of values far from 0 the dust of one division must not add a tick.
    let first = (low / step + 1e-9).floor() as i64;
    let last = (high / step - 1e-9).ceil() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// A value with no more digits than it needs.
fn label(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs();
    if !(1e-3..1e6).contains(&magnitude) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// At most [`MAX_POINTS`]: of each bucket the lowest and the highest mean, in their order, with the bucket's band.
fn thin(points: &[Point]) -> Vec<Point> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let bucket = points.len().div_ceil(MAX_POINTS / 2);
    let mut out = Vec::with_capacity(MAX_POINTS);
    for chunk in points.chunks(bucket) {
        let by_mean = |a: &(usize, &Point), b: &(usize, &Point)| a.1.mean.total_cmp(&b.1.mean);
        let low = chunk.iter().enumerate().min_by(by_mean);
        let high = chunk.iter().enumerate().max_by(by_mean);
        let (Some((i, low)), Some((j, high))) = (low, high) else { continue };
        let band_low = chunk.iter().map(|p| p.low).fold(f64::INFINITY, f64::min);
        let band_high = chunk.iter().map(|p| p.high).fold(f64::NEG_INFINITY, f64::max);
        let with_band = |p: &Point| Point { low: band_low, high: band_high, ..*p };
        match i.cmp(&j) {
            std::cmp::Ordering::Less => out.extend([with_band(low), with_band(high)]),
            std::cmp::Ordering::Equal => out.push(with_band(low)),
            std::cmp::Ordering::Greater => out.extend([with_band(high), with_band(low)]),
        }
    }
    out
}

/// Runs of finite points: a line breaks where a metric is missing or not finite.
fn segments(points: &[Point]) -> Vec<Vec<Point>> {
    let finite = |p: &Point| p.step.is_finite() && p.mean.is_finite();
    points
        .split(|p| !finite(p))
        .filter(|run| !run.is_empty())
        .map(|run| {
            let whole = run.iter().map(|p| Point {
                low: if p.low.is_finite() { p.low.min(p.mean) } else { p.mean },
                high: if p.high.is_finite() { p.high.max(p.mean) } else { p.mean },
                ..*p
            });
            whole.collect()
        })
        .collect()
}

fn open(title: &str, height: f64, out: &mut String) {
    let title = escape(title);
    let _ =
        write!(out, r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}"><title>{title}</title>"#);
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let content = escape(content);
    let _ = write!(out, r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#);
}

fn grid(out: &mut String, x1: f64, y1: f64, x2: f64, y2: f64) {
    let _ = write!(out, r#"<line class="grid" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
}

/// Lines over `x_name`; `unit` stands above the y axis. `None` where nothing is to be drawn.
pub fn lines(title: &str, x_name: &str, unit: &str, series: &[Series]) -> Option<String> {
    draw(title, x_name, unit, series, None)
}

/// The same axes as [`lines`] has, with one series in its colour and the others faint behind it.
pub fn facet(title: &str, x_name: &str, unit: &str, series: &[Series], shown: usize) -> Option<String> {
    draw(title, x_name, unit, series, Some(shown))
}

fn draw(title: &str, x_name: &str, unit: &str, series: &[Series], shown: Option<usize>) -> Option<String> {
    let cleaned: Vec<(&Series, Vec<Vec<Point>>)> = series.iter().map(|s| (s, segments(&s.points))).collect();
    let (mut x_low, mut x_high) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut y_low, mut y_high) = (f64::INFINITY, f64::NEG_INFINITY);
    for p in cleaned.iter().flat_map(|(_, runs)| runs.iter().flatten()) {
        (x_low, x_high) = (x_low.min(p.step), x_high.max(p.step));
        (y_low, y_high) = (y_low.min(p.low), y_high.max(p.high));
    }
    if !x_low.is_finite() {
        return None;
    }
    if y_low > 0.0 && y_low < 0.5 * y_high {
        y_low = 0.0;
    }
    if x_high - x_low < 1e-9 {
        (x_low, x_high) = (x_low - 0.5, x_high + 0.5);
    }
    let y_ticks = ticks(y_low, y_high, 5);
    let y = Scale { low: y_ticks[0], high: y_ticks[y_ticks.len() - 1], from: HEIGHT - BOTTOM, to: TOP };
    let x = Scale { low: x_low, high: x_high, from: LEFT, to: WIDTH - RIGHT };
    let mut out = String::new();
    open(title, HEIGHT, &mut out);
    text(&mut out, LEFT - 7.0, TOP - 13.0, "start", unit);
    for value in y_ticks {
        grid(&mut out, LEFT, y.at(value), WIDTH - RIGHT, y.at(value));
        text(&mut out, LEFT - 7.0, y.at(value) + 4.0, "end", &label(value));
    }
    for value in ticks(x_low, x_high, 6).into_iter().filter(|v| *v >= x_low - 1e-9 && *v <= x_high + 1e-9) {
        if value.fract() == 0.0 {
            grid(&mut out, x.at(value), HEIGHT - BOTTOM, x.at(value), HEIGHT - BOTTOM + 4.0);
            text(&mut out, x.at(value), HEIGHT - BOTTOM + 18.0, "middle", &label(value));
        }
    }
    text(&mut out, f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 5.0, "middle", x_name);
    for (i, (series, runs)) in cleaned.iter().enumerate() {
        match shown {
            None => line(&mut out, series, runs, x, y),
            Some(shown) if shown != i => faint(&mut out, runs, x, y),
            Some(_) => {}
        }
    }
    if let Some((series, runs)) = shown.and_then(|shown| cleaned.get(shown)) {
        line(&mut out, series, runs, x, y);
    }
    out.push_str("</svg>");
    Some(out)
}

/// The others of a facet: no band, no figures.
fn faint(out: &mut String, runs: &[Vec<Point>], x: Scale, y: Scale) {
    for run in runs {
        let path: Vec<String> = thin(run).iter().map(|p| format!("{:.1},{:.1}", x.at(p.step), y.at(p.mean))).collect();
        let _ = write!(out, r#"<polyline class="faint" points="{}"/>"#, path.join(" "));
    }
}

fn line(out: &mut String, series: &Series, runs: &[Vec<Point>], x: Scale, y: Scale) {
    let class = series.color % COLORS;
    let name = escape(&series.label);
    let count = runs.iter().map(|run| run.len().min(MAX_POINTS)).sum::<usize>();
    let every = count.div_ceil(MAX_HOVERS).max(1);
    for run in runs {
        let points = thin(run);
        if points.iter().any(|p| p.high > p.low) {
            let above = points.iter().map(|p| (p.step, p.high));
            let below = points.iter().rev().map(|p| (p.step, p.low));
            let path: Vec<String> = above.chain(below).map(|(s, v)| format!("{:.1},{:.1}", x.at(s), y.at(v))).collect();
            let _ = write!(out, r#"<polygon class="band c{class}" points="{}"/>"#, path.join(" "));
        }
        let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.step), y.at(p.mean))).collect();
        if path.len() > 1 {
            let path = path.join(" ");
            let _ = write!(out, r#"<polyline class="line c{class}" points="{path}"><title>{name}</title></polyline>"#);
        }
        for p in points.iter().step_by(every) {
            let dot = if path.len() == 1 { "dot" } else { "hover" };
            let _ = write!(
                out,
                r#"<circle class="{dot} c{class}" cx="{:.1}" cy="{:.1}" r="4"><title>{name}, {}: {}</title></circle>"#,
                x.at(p.step),
                y.at(p.mean),
                label(p.step),
                label(p.mean)
            );
        }
    }
}

/// A name that fits its column; the whole of it shows under the pointer.
fn fit(name: &str) -> String {
    const LONGEST: usize = 21;
    if name.chars().count() <= LONGEST {
        return name.to_owned();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Accuracies (0..1) with intervals, one row a variant: earlier stages hollow, the last one filled.
pub fn accuracies(title: &str, rows: &[Estimates]) -> Option<String> {
    let rows: Vec<&Estimates> = rows.iter().filter(|r| !r.values.is_empty()).collect();
    if rows.is_empty() {
        return None;
    }
    let ends = || rows.iter().flat_map(|r| &r.values).flat_map(|v| [v.value, v.interval.0, v.interval.1]);
    let low = ends().filter(|v| v.is_finite()).fold(1.0, f64::min).max(0.0);
    let high = ends().filter(|v| v.is_finite()).fold(0.0, f64::max).min(1.0);
    let values = ticks(if low < 0.5 * high { 0.0 } else { low }, high, 5);
    let x = Scale { low: values[0], high: values[values.len() - 1], from: NAMES, to: WIDTH - FIGURES };
    let bottom = 8.0 + ROW * rows.len() as f64;
    let mut out = String::new();
    open(title, bottom + 38.0, &mut out);
    for value in values {
        grid(&mut out, x.at(value), 8.0, x.at(value), bottom);
        text(&mut out, x.at(value), bottom + 16.0, "middle", &label(value * 100.0));
    }
    text(&mut out, f64::midpoint(NAMES, WIDTH - FIGURES), bottom + 33.0, "middle", "pass@1, %");
    for (i, row) in rows.iter().enumerate() {
        let middle = 8.0 + ROW * (i as f64 + 0.5);
        let class = row.color % COLORS;
        let _ = write!(
            out,
            r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{}<title>{}</title></text>"#,
            NAMES - 12.0,
            middle + 4.0,
            escape(&fit(&row.label)),
            escape(&row.label)
        );
        let count = row.values.len();
        for (k, Estimate { stage, last, value, interval: (low, high) }) in row.values.iter().enumerate() {
            if !value.is_finite() {
                continue;
            }
            let y = middle + (k as f64 - (count as f64 - 1.0) / 2.0) * (ROW * 0.56 / count as f64);
            if low.is_finite() && high.is_finite() {
                let _ = write!(
                    out,
                    r#"<path class="whisker c{class}{}" d="M{:.1},{y:.1}H{:.1}"/>"#,
                    if *last { "" } else { " pale" },
                    x.at(*low),
                    x.at(*high)
                );
            }
            let _ = write!(
                out,
                r#"<circle class="{} c{class}" cx="{:.1}" cy="{y:.1}" r="{}"><title>{} {}: {:.1}% ({:.1} to {:.1})</title></circle>"#,
                if *last { "dot" } else { "hollow" },
                x.at(*value),
                if *last { "5" } else { "4" },
                escape(&row.label),
                escape(stage),
                value * 100.0,
                low * 100.0,
                high * 100.0,
            );
            if *last {
                text(&mut out, WIDTH - 6.0, middle + 4.0, "end", &format!("{:.1}", value * 100.0));
            }
        }
    }
    out.push_str("</svg>");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(step: f64, mean: f64) -> Point {
        Point { step, mean, low: mean, high: mean }
    }

    fn series(points: Vec<Point>) -> Series {
        Series { label: "<script>".to_owned(), color: 0, points }
    }

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(3.0, 97.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.01, 0.01, 5), [0.004, 0.006, 0.008, 0.01, 0.012, 0.014, 0.016]);
        assert!(ticks(2.0, 2.0, 5).len() >= 2);
        assert_eq!(ticks(f64::NAN, 1.0, 5), [0.0, 1.0]);
    }

    #[test]
    fn a_missing_value_is_a_gap_and_hostile_labels_do_not_reach_the_svg() {
        let gap = vec![flat(0.0, 1.0), flat(1.0, 2.0), flat(2.0, f64::NAN), flat(3.0, 3.0), flat(4.0, f64::INFINITY)];
        let svg = lines("a & b", "step", "x", &[series(gap)]).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<script>"), "{svg}");
        assert!(svg.contains("a &amp; b"));
        assert_eq!((svg.matches("<polyline").count(), svg.matches(r#"class="dot"#).count()), (1, 1), "{svg}");
        assert_eq!(lines("empty", "step", "", &[]), None);
    }

    #[test]
    fn several_seeds_make_a_band() {
        let point = |step| Point { step, mean: 0.5, low: 0.25, high: 0.75 };
        let svg = lines("t", "step", "", &[series(vec![point(1.0), point(2.0)])]).unwrap();
        assert!(svg.contains("<polygon"));
        let svg = lines("t", "step", "", &[series(vec![flat(1.0, 0.5), flat(2.0, 0.5)])]).unwrap();
        assert!(!svg.contains("<polygon"));
    }

    #[test]
    fn long_lines_keep_their_extremes() {
        let mut points: Vec<Point> = (0..100_000).map(|i| flat(f64::from(i), 1.0)).collect();
        points[77_777] = flat(77_777.0, 9.0);
        points[33] = flat(33.0, -9.0);
        let thinned = thin(&points);
        assert!(thinned.len() <= MAX_POINTS, "{}", thinned.len());
        assert!(thinned.iter().any(|p| p.mean == 9.0) && thinned.iter().any(|p| p.mean == -9.0));
        assert!(thinned.windows(2).all(|w| w[0].step < w[1].step));
    }

    #[test]
    fn accuracies_stay_within_the_plot_whatever_their_number() {
        let rows: Vec<Estimates> = (0..20)
            .map(|i| Estimates {
                label: format!("a variant with quite a long name {i}"),
                color: i,
                values: [("before", 0.2), ("after", 0.6)]
                    .map(|(stage, value)| Estimate {
                        stage: stage.into(),
                        last: stage == "after",
                        value,
                        interval: (value - 0.1, value + 0.1),
                    })
                    .into(),
            })
            .collect();
        let svg = accuracies("t", &rows).unwrap();
        assert!(svg.contains(r#"viewBox="0 0 520 766""#), "{}", &svg[..80]);
        assert_eq!(svg.matches(r#"class="dot"#).count(), 20);
        assert!(svg.contains("a variant with quite…"));
        assert_eq!(accuracies("t", &[]), None);
    }
}
