//! Paired comparisons of the rows: with their own start, with the baseline, and of rows that differ in one factor.

use std::collections::{BTreeMap, BTreeSet};

use super::gather::{Evaluation, Gathered};
use super::lineage::factors;
use super::records::Answer;
use crate::Result;
use crate::eval::stats;
use crate::report::{Against, Comparison, Data, Example, Flips, Rank, Side};

/// Pairs of rows that differ in one factor; a large sweep has many more than anyone reads.
const MOST_PAIRS: usize = 24;

/// Seed of the bootstraps: the same records give the same report.
const SEED: u64 = 0;

/// How many answers that changed are shown a row, of those gained and of those lost.
const EXAMPLES: usize = 1;

/// Fills the comparisons, marks the best cells and picks the answers to show.
pub(super) fn compare(data: &mut Data, gathered: &Gathered<'_>) -> Result<()> {
    let (Some(first), Some(last)) = (data.stages.first().cloned(), data.stages.last().cloned()) else {
        return Ok(());
    };
    let count = gathered.rows.len();
    let singles = single_factors(gathered);
    if singles.len() > MOST_PAIRS {
        let (all, shown) = (singles.len(), MOST_PAIRS);
        data.warnings.push(format!("{all} pairs of rows differ in one factor: the first {shown} are compared"));
    }
    for dataset in data.datasets.clone() {
        let ours = |row: usize, stage: &str| gathered.of(row, stage);
        let side = |row: usize, stage: &str| Side { row: gathered.rows[row].label.clone(), stage: stage.to_owned() };
        for row in 0..count {
            if first == last {
                continue;
            }
            let (after, before) = (ours(row, &last), ours(row, &first));
            if let Some(found) = paired(&dataset, &after, &before)? {
                let (a, b) = (side(row, &last), side(row, &first));
                data.comparisons.push(Comparison { a, b, against: Against::Start, ..found });
            }
            let label = &gathered.rows[row].label;
            data.examples.extend(examples(&dataset, label, &after, &before));
            data.flips.extend(flips(&dataset, label, &after, &before));
        }
        for row in 0..count {
            let Some(base) = gathered.baselines[row].filter(|base| *base != row) else { continue };
            if let Some(found) = paired(&dataset, &ours(row, &last), &ours(base, &last))? {
                let factors = factors(&gathered.settings[base], &gathered.settings[row]);
                let (a, b) = (side(row, &last), side(base, &last));
                data.comparisons.push(Comparison { a, b, against: Against::Baseline, factors, ..found });
            }
        }
        for (a, b, factor) in singles.iter().take(MOST_PAIRS) {
            if let Some(found) = paired(&dataset, &ours(*a, &last), &ours(*b, &last))? {
                let factors = vec![factor.clone()];
                let (a, b) = (side(*a, &last), side(*b, &last));
                data.comparisons.push(Comparison { a, b, against: Against::Factor, factors, ..found });
            }
        }
        mark_best(data, gathered, &dataset, &last)?;
        rank(data, gathered, &dataset, &last)?;
    }
    Ok(())
}

/// Pairs of rows (the later one first) that differ in exactly one factor and are not compared as row and baseline.
fn single_factors(gathered: &Gathered<'_>) -> Vec<(usize, usize, String)> {
    let mut out = Vec::new();
    for a in 0..gathered.rows.len() {
        for b in 0..a {
            if gathered.baselines[a] == Some(b) || gathered.baselines[b] == Some(a) {
                continue;
            }
            let (of_a, of_b) = (&gathered.settings[a], &gathered.settings[b]);
            if of_a.is_empty() || of_b.is_empty() {
                continue;
            }
            if let [only] = factors(of_b, of_a).as_slice() {
                out.push((a, b, only.clone()));
            }
        }
    }
    out
}

/// The highest row of a column, if it beats every other one in a paired test.
fn mark_best(data: &mut Data, gathered: &Gathered<'_>, dataset: &str, stage: &str) -> Result<()> {
    let accuracy = |row: usize| data.rows[row].cells.get(stage)?.get(dataset).map(|c| c.accuracy);
    let scored: Vec<(usize, f64)> = (0..data.rows.len()).filter_map(|row| Some((row, accuracy(row)?))).collect();
    let Some(&(best, _)) = scored.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { return Ok(()) };
    if scored.len() < 2 {
        return Ok(());
    }
    for (row, _) in scored {
        if row == best {
            continue;
        }
        let beaten = paired(dataset, &gathered.of(best, stage), &gathered.of(row, stage))?;
        if !beaten.as_ref().is_some_and(exceeds_noise) {
            return Ok(());
        }
    }
    if let Some(cell) = data.rows[best].cells.get_mut(stage).and_then(|c| c.get_mut(dataset)) {
        cell.best = true;
    }
    Ok(())
}

/// A lead that neither the choice of questions nor, with several points, that of the points explains.
fn exceeds_noise(c: &Comparison) -> bool {
    c.low > 0.0 && (c.per_point.len() < 2 || stats::mean(&c.per_point) > stats::t_half_width(&c.per_point))
}

/// Rows from the highest to the lowest, each with what the first one is ahead.
fn rank(data: &mut Data, gathered: &Gathered<'_>, dataset: &str, stage: &str) -> Result<()> {
    let accuracy = |row: usize| data.rows[row].cells.get(stage)?.get(dataset).map(|c| c.accuracy);
    let mut scored: Vec<(usize, f64)> = (0..data.rows.len()).filter_map(|row| Some((row, accuracy(row)?))).collect();
    // Equal ones stay in the order of the file.
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some(&(best, _)) = scored.first() else { return Ok(()) };
    for (row, accuracy) in scored {
        let own = gathered.of(row, stage);
        let behind = if row == best { None } else { paired(dataset, &gathered.of(best, stage), &own)? };
        let per_point = own.iter().filter_map(|e| {
            let label = gathered.config.over.as_ref().and_then(|over| e.input.point.get(over))?;
            let set = e.summary.sets.iter().find(|s| s.data == dataset)?;
            Some((label.clone(), set.accuracy))
        });
        data.ranking.push(Rank {
            dataset: dataset.to_owned(),
            row: gathered.rows[row].label.clone(),
            accuracy,
            per_point: per_point.collect(),
            told_apart: behind.as_ref().is_some_and(exceeds_noise),
            behind: behind.map(|c| (c.difference, c.low, c.high)),
        });
    }
    Ok(())
}

/// Pairs of evaluations at the same point, as far as both have its axes but the rows'. Where no two points match (each
/// side lost other seeds), every one is paired with every other.
fn matched<'e, 'a>(
    a: &[&'e Evaluation<'a>],
    b: &[&'e Evaluation<'a>],
) -> Vec<(&'e Evaluation<'a>, &'e Evaluation<'a>)> {
    let all: Vec<_> = a.iter().flat_map(|x| b.iter().map(move |y| (*x, *y))).collect();
    let axes = |e: &Evaluation<'_>| e.input.point.keys().cloned().collect::<BTreeSet<String>>();
    // Axes whose labels some pair shares are points; those that never agree are what tells the rows apart.
    let agree = |axis: &str| all.iter().any(|(x, y)| x.input.point.get(axis) == y.input.point.get(axis));
    let same = |x: &Evaluation<'_>, y: &Evaluation<'_>| {
        let (of_x, of_y) = (axes(x), axes(y));
        let mut common = of_x.intersection(&of_y).filter(|axis| agree(axis));
        common.all(|axis| x.input.point.get(axis) == y.input.point.get(axis))
    };
    let found: Vec<_> = all.iter().copied().filter(|(x, y)| same(x, y)).collect();
    if found.is_empty() { all } else { found }
}

/// The comparison of `a` with `b` on the questions that both have; its sides are left to the caller.
fn paired(dataset: &str, a: &[&Evaluation<'_>], b: &[&Evaluation<'_>]) -> Result<Option<Comparison>> {
    let pairs = matched(a, b);
    // Question -> sums of both sides' shares over the pairs, and how many pairs have it.
    let mut questions: BTreeMap<&str, (f64, f64, usize)> = BTreeMap::new();
    let mut per_point = Vec::new();
    let mut single = pairs.len() == 1;
    for (x, y) in &pairs {
        let (Some(of_x), Some(of_y)) = (x.answers.get(dataset), y.answers.get(dataset)) else { continue };
        let mut differences = Vec::new();
        for (id, p) in of_x {
            let Some(q) = of_y.get(id).filter(|q| q.gold == p.gold) else { continue };
            let slot = questions.entry(id).or_default();
            *slot = (slot.0 + p.share(), slot.1 + q.share(), slot.2 + 1);
            differences.push(p.share() - q.share());
            single &= p.samples == 1 && q.samples == 1;
        }
        if !differences.is_empty() {
            per_point.push(stats::mean(&differences));
        }
    }
    if questions.is_empty() {
        return Ok(None);
    }
    let of_a: Vec<f64> = questions.values().map(|(a, _, n)| a / *n as f64).collect();
    let of_b: Vec<f64> = questions.values().map(|(_, b, n)| b / *n as f64).collect();
    let test = stats::paired(&of_b, &of_a, SEED)?;
    Ok(Some(Comparison {
        dataset: dataset.to_owned(),
        difference: test.difference,
        low: test.low,
        high: test.high,
        questions: test.n,
        gained: test.only_b,
        lost: test.only_a,
        p_value: if single { test.mcnemar_p } else { test.bootstrap_p },
        exact: single,
        per_point: if per_point.len() > 1 { per_point } else { Vec::new() },
        ..Comparison::default()
    }))
}

/// Whether every sample of a question is right (`Some(true)`), or wrong (`Some(false)`).
fn settled(answer: &Answer) -> Option<bool> {
    match answer.share() {
        1.0 => Some(true),
        0.0 => Some(false),
        _ => None,
    }
}

/// Questions that turned right, and those that turned wrong, at the first point.
fn flips(dataset: &str, row: &str, after: &[&Evaluation<'_>], before: &[&Evaluation<'_>]) -> Option<Flips> {
    let (x, y) = matched(after, before).into_iter().next()?;
    let (of_x, of_y) = (x.answers.get(dataset)?, y.answers.get(dataset)?);
    let turned = |to: bool| {
        let all = of_x.iter().filter_map(|(id, p)| Some((id, settled(p)?, settled(of_y.get(id)?)?)));
        all.filter(|(_, now, was)| *now == to && *was != to).map(|(id, ..)| id.clone()).collect::<Vec<_>>()
    };
    let (gained, lost) = (turned(true), turned(false));
    Some(Flips { row: row.to_owned(), dataset: dataset.to_owned(), gained, lost })
}

/// What is shown of a row: the first question that turned right, the first that turned wrong, and the data set's first.
fn examples(dataset: &str, row: &str, after: &[&Evaluation<'_>], before: &[&Evaluation<'_>]) -> Vec<Example> {
    let Some((x, y)) = matched(after, before).into_iter().next() else { return Vec::new() };
    let (Some(of_x), Some(of_y)) = (x.answers.get(dataset), y.answers.get(dataset)) else { return Vec::new() };
    let mut ids: Vec<&String> = Vec::new();
    if let Some(found) = flips(dataset, row, after, before) {
        for id in found.gained.iter().take(EXAMPLES).chain(found.lost.iter().take(EXAMPLES)) {
            ids.extend(of_x.get_key_value(id).map(|(id, _)| id));
        }
    }
    let first = of_x.iter().find(|(id, p)| settled(p).is_some() && of_y.get(*id).is_some_and(|q| settled(q).is_some()));
    ids.extend(first.map(|(id, _)| id).filter(|id| !ids.contains(id)));
    let example = |id: &String| {
        let (p, q) = (&of_x[id], of_y.get(id)?);
        Some(Example {
            row: row.to_owned(),
            dataset: dataset.to_owned(),
            id: id.clone(),
            prompt: p.prompt.clone(),
            gold: p.gold.clone(),
            before: q.text.clone(),
            after: p.text.clone(),
            was_right: settled(q)?,
            is_right: settled(p)?,
        })
    };
    ids.into_iter().filter_map(example).collect()
}
