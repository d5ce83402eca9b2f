//! Which plots a report has: accuracies per data set, and the curves of the trainings.

use serde_json::{Value, json};

use super::Data;
use super::svg::{self, COLORS, Estimate, Estimates, Series};
use super::view::cell;

/// A curve that is shown where a training recorded its metric.
struct Curve {
    metric: &'static str,
    title: &'static str,
    unit: &'static str,
    caption: &'static str,
}

/// In the order shown.
const CURVES: [Curve; 7] = [
    Curve { metric: "reward", title: "Reward", unit: "", caption: "mean reward of the rollouts" },
    Curve {
        metric: "rollout/accuracy",
        title: "Training accuracy",
        unit: "share",
        caption: "rollouts with a correct answer, refills of dynamic sampling included",
    },
    Curve {
        metric: "eval/accuracy",
        title: "Evaluation while training",
        unit: "share",
        caption: "greedy answers that are correct",
    },
    Curve {
        metric: "entropy",
        title: "Entropy",
        unit: "nats",
        caption: "mean entropy of the policy over completion tokens",
    },
    Curve {
        metric: "aqn/sigma",
        title: "Noise (sigma)",
        unit: "",
        caption: "standard deviation of the noise on the norm weights",
    },
    Curve {
        metric: "completions/mean_length",
        title: "Completion length",
        unit: "tokens",
        caption: "mean tokens per completion",
    },
    Curve { metric: "kl", title: "KL", unit: "nats", caption: "divergence from the reference policy per token" },
];

/// The metrics whose curves a report wants.
pub fn curve_metrics() -> impl Iterator<Item = &'static str> {
    CURVES.iter().map(|c| c.metric)
}

/// Metrics that get a facet for every row where there are many rows.
const FACETS: [&str; 3] = ["reward", "entropy", "aqn/sigma"];
/// Up to so many rows one plot keeps all lines apart.
const FEW_ROWS: usize = 4;
/// More facets than anyone looks at.
const MOST_FACETS: usize = 24;

/// Per metric of [`FACETS`] one small plot a row, the other rows faint behind it.
pub fn facets(data: &Data) -> Vec<Value> {
    if data.rows.len() <= FEW_ROWS {
        return Vec::new();
    }
    let group = |curve: &Curve| {
        let series = series(data, curve);
        let draw = |i: usize| {
            let svg = svg::facet(&format!("{}: {}", curve.title, series[i].label), "step", curve.unit, &series, i)?;
            Some(json!({ "label": series[i].label, "color": series[i].color % COLORS, "svg": svg }))
        };
        let plots: Vec<Value> = (0..series.len().min(MOST_FACETS)).filter_map(draw).collect();
        (!plots.is_empty()).then(|| json!({ "title": curve.title, "caption": curve.caption, "plots": plots }))
    };
    CURVES.iter().filter(|c| FACETS.contains(&c.metric)).filter_map(group).collect()
}

/// The rows that recorded a metric; none where it is zero everywhere (no KL term, no noise): that says nothing.
fn series(data: &Data, curve: &Curve) -> Vec<Series> {
    let found: Vec<Series> = data
        .rows
        .iter()
        .enumerate()
        .filter_map(|(color, row)| {
            let points = row.curves.get(curve.metric)?.clone();
            Some(Series { label: row.label.clone(), color, points })
        })
        .collect();
    let silent = found.iter().flat_map(|s| &s.points).all(|p| p.mean == 0.0 || !p.mean.is_finite());
    if silent { Vec::new() } else { found }
}

/// Title, SVG, caption and legend of every plot that has something to show.
pub fn plots(data: &Data) -> Vec<Value> {
    let mut out = Vec::new();
    for dataset in &data.datasets {
        let rows: Vec<Estimates> = data
            .rows
            .iter()
            .enumerate()
            .map(|(color, row)| {
                let value = |stage: &String| {
                    let c = cell(row, stage, dataset)?;
                    let last = data.stages.last() == Some(stage);
                    Some(Estimate { stage: stage.clone(), last, value: c.accuracy, interval: (c.low, c.high) })
                };
                Estimates { label: row.label.clone(), color, values: data.stages.iter().filter_map(value).collect() }
            })
            .collect();
        let title = format!("Accuracy on {dataset}");
        if let Some(svg) = svg::accuracies(&title, &rows) {
            let caption = match data.stages.as_slice() {
                [one] => format!("{one}, with 95% intervals"),
                [first, .., last] => format!("{first} (hollow) and {last} (filled), with 95% intervals"),
                [] => String::new(),
            };
            out.push(json!({"title": title, "svg": svg, "caption": caption, "legend": []}));
        }
    }
    for curve in &CURVES {
        let series = series(data, curve);
        if let Some(svg) = svg::lines(curve.title, "step", curve.unit, &series) {
            let legend: Vec<Value> =
                series.iter().map(|s| json!({"label": s.label, "color": s.color % COLORS})).collect();
            out.push(json!({"title": curve.title, "svg": svg, "caption": curve.caption, "legend": legend}));
        }
    }
    out
}
