//! The one sentence above a report, with what cannot be said.

use super::view::{interval, percent, points, signed_interval};
use super::{Against, Cell, Comparison, Data, Row};

/// Single factors that are named; the table below has all of them.
const FACTORS: usize = 3;

fn cell<'a>(row: &'a Row, stage: &str, dataset: &str) -> Option<&'a Cell> {
    row.cells.get(stage)?.get(dataset)
}

/// What the rows show against the baseline on the first data set, then what single factors did.
pub fn verdict(data: &Data) -> String {
    let (Some(dataset), Some(last)) = (data.datasets.first(), data.stages.last()) else {
        return "No evaluation was gathered.".to_owned();
    };
    let scored = data.rows.iter().filter_map(|r| Some((r, cell(r, last, dataset)?)));
    let Some((row, best)) = scored.reduce(|a, b| if b.1.accuracy > a.1.accuracy { b } else { a }) else {
        return format!("No row has a finished evaluation on {dataset} {last}.");
    };
    let accuracy = format!("{}% on {dataset} {last}", percent(best.accuracy));
    let mut text = if data.rows.len() > 1 {
        format!("{} is highest with {accuracy}", row.label)
    } else {
        format!("{} reaches {accuracy} ({})", row.label, interval(best.low, best.high))
    };
    let of = |against: Against| {
        data.comparisons.iter().find(move |c| c.against == against && c.dataset == *dataset && c.a.row == row.label)
    };
    if let Some(c) = of(Against::Start) {
        text += &format!(", {} points against its start", points(c.difference));
    }
    match (of(Against::Baseline), &row.baseline) {
        (Some(c), _) => text += &format!("; {} points against {}: {}", points(c.difference), c.b.row, certainty(c)),
        (None, Some(base)) if *base == row.label => text += "; it is the baseline",
        (None, _) => {}
    }
    text.push('.');
    // A baseline that differs in one factor answers the same question as any other such pair.
    let single = data.comparisons.iter().filter(|c| {
        c.dataset == *dataset && c.factors.len() == 1 && matches!(c.against, Against::Factor | Against::Baseline)
    });
    for c in single.take(FACTORS) {
        let factor = &c.factors[0];
        text += &format!(
            " {factor} alone ({} against {}): {} points, {}.",
            c.a.row,
            c.b.row,
            points(c.difference),
            certainty(c)
        );
    }
    text
}

/// Whether a difference can be told from noise.
fn certainty(c: &Comparison) -> String {
    let range = signed_interval(c.low, c.high);
    if c.low > 0.0 || c.high < 0.0 {
        format!("more than the noise of {} questions (95%: {range})", c.questions)
    } else {
        format!("within the noise of {} questions (95%: {range})", c.questions)
    }
}
