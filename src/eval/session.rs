//! The loop of an evaluation: problems in chunks -> completions -> graded records, resumable after each chunk.

use std::path::Path;

use super::{Generated, Record, Settings, files};
use crate::Result;
use crate::control::{Cancel, Progress};
use crate::data::Problem;
use crate::math::Gold;

/// One completion to make: the problem and the seed of its sample.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub problem: &'a Problem,
    pub seed: u64,
}

/// Turns questions into completions, in order. The stage gives one over the engine, tests a made-up one.
pub trait Answerer {
    fn answer(&mut self, asks: &[Ask<'_>], cancel: &Cancel) -> Result<Vec<Generated>>;
}

/// A seed per (run, data set, problem, sample): the same whatever the chunk or the resume point.
pub fn sample_seed(seed: u64, data: &str, id: &str, sample: usize) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(&seed.to_le_bytes());
    hash.update(data.as_bytes());
    hash.update(&[0]);
    hash.update(id.as_bytes());
    hash.update(&[0]);
    hash.update(&(sample as u64).to_le_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// What watches and interrupts a run.
pub struct Watch<'a> {
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// Problems finished before this set, so that progress counts over all sets.
    pub done: usize,
}

/// Answers and grades every problem of one set, `chunk` completions at a time. `journal` keeps finished problems;
/// those found in it (with the same gold) are not asked again.
pub fn run_set(
    data: &str,
    problems: &[Problem],
    settings: &Settings,
    chunk: usize,
    journal: &Path,
    answerer: &mut dyn Answerer,
    watch: &Watch<'_>,
) -> Result<Vec<Record>> {
    let mut records = Vec::with_capacity(problems.len() * settings.samples);
    let mut kept = if journal.exists() { files::read_lines(journal, true)? } else { Vec::new() };
    if journal.exists() {
        // A torn line must not stay before the next records.
        std::fs::remove_file(journal).map_err(|e| crate::Error::io("remove", journal, e))?;
    }
    let mut finished = 0;
    for problem in problems {
        let wanted = kept.iter().take(settings.samples);
        let whole = wanted.clone().count() == settings.samples
            && wanted.enumerate().all(|(i, r)| r.id == problem.id && r.gold == problem.answer && r.sample == i);
        if !whole {
            break;
        }
        records.extend(kept.drain(..settings.samples));
        finished += 1;
    }
    files::append_lines(journal, &records)?;
    if finished > 0 {
        watch.progress.say(&format!("{data}: {finished} problems are kept from the interrupted run"));
    }
    let per_chunk = (chunk / settings.samples.max(1)).max(1);
    let mut right = records.iter().filter(|r| r.verdict == crate::math::Verdict::Correct).count();
    for part in problems[finished..].chunks(per_chunk) {
        watch.cancel.check()?;
        let asks: Vec<Ask<'_>> = part
            .iter()
            .flat_map(|problem| {
                (0..settings.samples)
                    .map(move |s| Ask { problem, seed: sample_seed(settings.seed, data, &problem.id, s) })
            })
            .collect();
        let answers = answerer.answer(&asks, watch.cancel)?;
        if answers.len() != asks.len() {
            return Err(crate::Error::failed(format!("{} completions for {} requests", answers.len(), asks.len())));
        }
        let mut answers = answers.into_iter();
        let start = records.len();
        for problem in part {
            let gold = Gold::parse(&problem.answer);
            for (sample, answer) in answers.by_ref().take(settings.samples).enumerate() {
                records.push(Record::graded(data, &problem.id, sample, &gold, &problem.answer, answer));
            }
        }
        files::append_lines(journal, &records[start..])?;
        right += records[start..].iter().filter(|r| r.verdict == crate::math::Verdict::Correct).count();
        finished += part.len();
        let share = 100.0 * right as f64 / records.len().max(1) as f64;
        watch.progress.at((watch.done + finished) as u64, &format!("{data} {share:.1}% correct"));
    }
    Ok(records)
}
