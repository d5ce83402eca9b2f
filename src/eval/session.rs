//! The loop of an evaluation: problems in chunks -> completions -> graded records, resumable after each chunk.

use std::path::Path;

use super::{Generated, Record, Settings, files};
use crate::control::{Cancel, Progress};
use crate::data::Problem;
use crate::math::{Gold, Verdict};
use crate::{Error, Result, store};

/// One completion to make.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Position in the set.
    pub row: usize,
    pub problem: &'a Problem,
    /// Of this sample.
    pub seed: u64,
}

/// Turns questions into completions. The stage gives one over the engine, tests a made-up one.
pub trait Answerer {
    /// One completion for each of `asks`, in their order; `finished` hears how many there are so far.
    fn answer(&mut self, asks: &[Ask<'_>], cancel: &Cancel, finished: &mut dyn FnMut(usize)) -> Result<Vec<Generated>>;
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
    /// Completions of earlier sets, so that progress counts over all sets.
    pub done: usize,
}

/// One data set to go through.
pub struct Set<'a> {
    pub data: &'a str,
    pub problems: &'a [Problem],
    pub settings: &'a Settings,
    /// Completions that are generated at once: whole problems, at least one. What an interruption costs.
    pub chunk: usize,
    /// Keeps finished chunks.
    pub journal: &'a Path,
}

impl Set<'_> {
    /// Problems per chunk.
    fn step(&self) -> usize {
        (self.chunk / self.settings.samples.max(1)).max(1)
    }

    /// Answers and grades every problem. Problems found in the journal (with the same gold) are not asked again.
    pub fn run(&self, answerer: &mut dyn Answerer, watch: &Watch<'_>) -> Result<Vec<Record>> {
        let samples = self.settings.samples;
        let mut records = self.resume(watch)?;
        let done = records.len() / samples.max(1);
        let mut right = count_right(&records);
        for (i, part) in self.problems[done..].chunks(self.step()).enumerate() {
            watch.cancel.check()?;
            let first = done + i * self.step();
            let asks: Vec<Ask<'_>> = part
                .iter()
                .enumerate()
                .flat_map(|(at, problem)| {
                    (0..samples).map(move |sample| Ask {
                        row: first + at,
                        problem,
                        seed: sample_seed(self.settings.seed, self.data, &problem.id, sample),
                    })
                })
                .collect();
            let start = records.len();
            let note = note(self.data, right, start);
            let answers = answerer.answer(&asks, watch.cancel, &mut |finished| {
                watch.progress.at((watch.done + start + finished) as u64, &note);
            })?;
            if answers.len() != asks.len() {
                return Err(Error::failed(format!("{} completions for {} requests", answers.len(), asks.len())));
            }
            let mut answers = answers.into_iter();
            for problem in part {
                let gold = Gold::parse(&problem.answer);
                for (sample, answer) in answers.by_ref().take(samples).enumerate() {
                    records.push(Record::graded(self.data, problem, sample, &gold, answer));
                }
            }
            files::append_lines(self.journal, &records[start..])?;
            right += count_right(&records[start..]);
            watch.progress.at((watch.done + records.len()) as u64, &self::note(self.data, right, records.len()));
        }
        Ok(records)
    }

    /// Whole chunks of an interrupted run; the journal then holds these and nothing else.
    fn resume(&self, watch: &Watch<'_>) -> Result<Vec<Record>> {
        if !self.journal.exists() {
            return Ok(Vec::new());
        }
        let samples = self.settings.samples;
        let mut kept = files::read_lines(self.journal, true)?;
        let whole = kept
            .chunks(samples.max(1))
            .zip(self.problems)
            .take_while(|(records, problem)| {
                records.len() == samples
                    && records.iter().enumerate().all(|(i, r)| {
                        r.data == self.data && r.id == problem.id && r.gold == problem.answer && r.sample == i
                    })
            })
            .count();
        // The rest is asked in the same chunks as without the interruption: an engine may round differently in
        // another batch.
        let whole = if whole == self.problems.len() { whole } else { whole - whole % self.step() };
        kept.truncate(whole * samples);
        // Graded anew: the grader may have changed since.
        for (record, problem) in kept.chunks_mut(samples.max(1)).zip(self.problems) {
            let gold = Gold::parse(&problem.answer);
            for record in record {
                let grade = gold.grade(&record.completion);
                (record.extracted, record.verdict) = (grade.extracted, grade.verdict);
            }
        }
        store::write_atomic(self.journal, &files::lines(&kept)?)?;
        if whole > 0 {
            let all = self.problems.len();
            watch.progress.say(&format!("{}: {whole} of {all} problems are kept from the interrupted run", self.data));
        }
        Ok(kept)
    }
}

fn count_right(records: &[Record]) -> usize {
    records.iter().filter(|r| r.verdict == Verdict::Correct).count()
}

fn note(data: &str, right: usize, all: usize) -> String {
    if all == 0 {
        return data.to_owned();
    }
    format!("{data} {:.1}% correct", 100.0 * right as f64 / all as f64)
}
