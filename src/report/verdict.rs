//! The sentences above a report, with what cannot be said.

use super::view::{interval, percent, points, signed_interval};
use super::{Against, Cell, Comparison, Data, Row};
use crate::eval::stats;

/// Single factors that are named; the table below has all of them.
const FACTORS: usize = 3;

fn cell<'a>(row: &'a Row, stage: &str, dataset: &str) -> Option<&'a Cell> {
    row.cells.get(stage)?.get(dataset)
}

/// A headline, and what each single factor did.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Verdict {
    pub headline: String,
    pub findings: Vec<String>,
}

/// What the rows show against the baseline on the first data set, then what single factors did there.
pub fn verdict(data: &Data) -> Verdict {
    let only = |headline: String| Verdict { headline, findings: Vec::new() };
    let (Some(dataset), Some(last)) = (data.datasets.first(), data.stages.last()) else {
        return only("No evaluation was gathered.".to_owned());
    };
    let scored = || data.rows.iter().filter_map(|r| Some((r, cell(r, last, dataset)?)));
    let Some((row, best)) = scored().reduce(|a, b| if b.1.accuracy > a.1.accuracy { b } else { a }) else {
        return only(format!("No row has a finished evaluation on {dataset} {last}."));
    };
    let accuracy = format!("{}% on {dataset} {last}", percent(best.accuracy));
    let equal: Vec<&str> =
        scored().filter(|(_, c)| c.accuracy == best.accuracy).map(|(r, _)| r.label.as_str()).collect();
    let mut headline = if equal.len() > 1 {
        format!("No single row is highest: {} are equal with {accuracy}", equal.join(", "))
    } else if data.rows.len() > 1 {
        format!("{} is highest with {accuracy}", row.label)
    } else {
        format!("{} reaches {accuracy} ({})", row.label, interval(best.low, best.high))
    };
    let of = |against: Against| {
        data.comparisons.iter().find(move |c| c.against == against && c.dataset == *dataset && c.a.row == row.label)
    };
    if let Some(c) = of(Against::Start).filter(|_| equal.len() == 1) {
        headline += &format!(", {} points against its start", points(c.difference));
    }
    let mut findings = Vec::new();
    match (of(Against::Baseline), &row.baseline) {
        _ if equal.len() > 1 => {}
        (Some(c), _) => findings.push(format!(
            "{} against the baseline {}{}: {} points, {}.",
            c.a.row,
            c.b.row,
            match c.factors.as_slice() {
                [only] => format!(" ({only} alone)"),
                _ => String::new(),
            },
            points(c.difference),
            certainty(c, data)
        )),
        (None, Some(base)) if *base == row.label => headline += "; it is the baseline",
        (None, _) => {}
    }
    headline.push('.');
    // A baseline that differs in one factor answers the same question as any other such pair.
    let single = data.comparisons.iter().filter(|c| {
        c.dataset == *dataset && c.factors.len() == 1 && matches!(c.against, Against::Factor | Against::Baseline)
    });
    // The first finding has this pair already.
    let said = |c: &&Comparison| of(Against::Baseline).is_some_and(|first| equal.len() == 1 && std::ptr::eq(first, *c));
    let mut single: Vec<&Comparison> = single.filter(|c| !said(c)).collect();
    // Whether the noise helped is what most readers came for.
    single.sort_by_key(|c| c.factors[0] != "train.aqn");
    for c in single.into_iter().take(FACTORS) {
        let difference = points(c.difference);
        let sure = certainty(c, data);
        findings
            .push(format!("{} alone ({} against {}): {difference} points, {sure}.", c.factors[0], c.a.row, c.b.row));
    }
    Verdict { headline, findings }
}

/// Whether a difference can be told from noise: that of the questions, and that of the points where there are some.
fn certainty(c: &Comparison, data: &Data) -> String {
    let range = signed_interval(c.low, c.high);
    if c.low <= 0.0 && c.high >= 0.0 {
        return format!("within the noise of {} questions (95%: {range})", c.questions);
    }
    let mut text = format!("more than the noise of {} questions (95%: {range})", c.questions);
    let n = c.per_point.len();
    if n > 1 {
        let half = stats::t_half_width(&c.per_point);
        let over = data.over.as_deref().unwrap_or("points");
        let settled = stats::mean(&c.per_point).abs() > half;
        text += if settled { ", and more than that of " } else { ", but not more than that of " };
        text += &format!("{n} values of {over} (± {})", percent(half));
    }
    text
}
