//! Rollouts: prompts in seeded order -> groups of completions with rewards, refilled until enough groups carry signal.

use std::sync::Arc;
use std::time::Instant;

use super::random::{key, permutation};
use super::rewards::{RewardSet, Sample};
use super::select::{completion_length, has_signal, overlong_penalty, refill_size};
use super::settings::Settings;
use crate::control::{Cancel, Progress};
use crate::engine::{Engine, Request, Sampling};
use crate::{Error, Result};

/// A problem as the trainer sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The rendered prompt: ids as the engine gets them (never re-tokenized from text).
    pub prompt: Arc<[u32]>,
    /// The user's text, for rewards.
    pub text: String,
    /// The gold answer.
    pub answer: String,
}

/// Token ids of a completion -> its text.
pub type Decode<'a> = dyn Fn(&[u32]) -> Result<String> + 'a;

/// One completion with what was said about it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub prompt: Arc<[u32]>,
    pub tokens: Vec<u32>,
    /// The sampler's own log-probs.
    pub sampler: Vec<f64>,
    /// No EOS within max_completion.
    pub truncated: bool,
    /// One per reward, the overlong punishment last where it is on.
    pub rewards: Vec<Option<f64>>,
}

/// The batch of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Rollout {
    /// Group by group.
    pub rows: Vec<Row>,
    pub groups: Vec<usize>,
    /// Prompts taken from the data.
    pub taken: u64,
    /// Groups generated, and those among them that carried signal.
    pub generated: usize,
    pub qualified: usize,
    pub refills: usize,
    pub new_tokens: usize,
    pub seconds: f64,
    /// Sum over all completions generated, kept or not, of what dynamic sampling looks at.
    pub signal_sum: f64,
}

/// The data in the order in which it is used: every epoch in its own seeded permutation.
#[derive(Clone, Debug)]
pub(super) struct Order {
    seed: u64,
    n: usize,
    epoch: Option<(u64, Vec<usize>)>,
}

impl Order {
    pub fn new(seed: u64, n: usize) -> Self {
        Self { seed, n, epoch: None }
    }

    /// The problem at position `cursor` of the endless sequence of epochs.
    pub fn at(&mut self, cursor: u64) -> usize {
        let epoch = cursor / self.n as u64;
        let within = (cursor % self.n as u64) as usize;
        match &self.epoch {
            Some((current, order)) if *current == epoch => order[within],
            _ => {
                let order = permutation(self.seed, epoch, self.n);
                let index = order[within];
                self.epoch = Some((epoch, order));
                index
            }
        }
    }
}

/// What a rollout needs besides the engine.
pub(super) struct Source<'a> {
    pub settings: &'a Settings,
    pub tasks: &'a [Task],
    pub eos: &'a [u32],
    pub decode: &'a Decode<'a>,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// Finished optimizer steps, for the progress display.
    pub step: u64,
}

impl Source<'_> {
    /// The batch that starts at `cursor` of the data. Whole groups only; with dynamic sampling those whose right
    /// and wrong answers differ, refilled a bounded number of times.
    pub fn rollout(
        &self,
        engine: &mut dyn Engine,
        rewards: &mut RewardSet,
        order: &mut Order,
        cursor: u64,
    ) -> Result<Rollout> {
        let settings = self.settings;
        let wanted = settings.prompts_per_step;
        let mut out = Rollout::default();
        let mut ask = wanted;
        let start = Instant::now();
        loop {
            let rows = self.generate(engine, rewards, order, cursor + out.taken, ask)?;
            out.taken += ask as u64;
            out.generated += ask;
            out.new_tokens += rows.iter().map(|r| r.tokens.len()).sum::<usize>();
            for group in rows.chunks(settings.group_size) {
                let judged = signal(group, rewards);
                out.signal_sum += judged.iter().sum::<f64>();
                let keeps = settings.max_refills.is_none() || has_signal(&judged);
                out.qualified += usize::from(keeps);
                if keeps && out.groups.len() < wanted {
                    out.groups.push(group.len());
                    out.rows.extend_from_slice(group);
                }
            }
            let missing = wanted - out.groups.len();
            match settings.max_refills {
                Some(limit) if missing > 0 && out.refills < limit => {
                    out.refills += 1;
                    ask = refill_size(missing, out.generated, out.qualified, wanted);
                }
                _ => break,
            }
        }
        out.seconds = start.elapsed().as_secs_f64();
        Ok(out)
    }

    /// `prompts` whole groups, with their rewards.
    fn generate(
        &self,
        engine: &mut dyn Engine,
        rewards: &mut RewardSet,
        order: &mut Order,
        cursor: u64,
        prompts: usize,
    ) -> Result<Vec<Row>> {
        let settings = self.settings;
        let tasks: Vec<&Task> = (0..prompts).map(|i| &self.tasks[order.at(cursor + i as u64)]).collect();
        let mut requests = Vec::with_capacity(prompts * settings.group_size);
        for (i, task) in tasks.iter().enumerate() {
            for g in 0..settings.group_size {
                requests.push(Request {
                    prompt: Arc::clone(&task.prompt),
                    max_new_tokens: settings.max_completion,
                    sampling: settings.sampling,
                    seed: key(settings.seed, "sample", cursor + i as u64, g as u64),
                });
            }
        }
        let mut shown = 0;
        let completions = engine.generate(&requests, self.eos, self.cancel, &mut |finished, _| {
            if finished > shown {
                shown = finished;
                self.progress.at(self.step, &format!("rollout {finished}/{}", requests.len()));
            }
        })?;
        self.cancel.check()?;
        if completions.len() != requests.len() {
            return Err(Error::failed(format!(
                "the engine gave {} completions for {} requests",
                completions.len(),
                requests.len()
            )));
        }
        let mut texts = Vec::with_capacity(completions.len());
        let mut rows = Vec::with_capacity(completions.len());
        for (request, mut completion) in requests.iter().zip(completions) {
            let (length, truncated) = completion_length(&completion.tokens, self.eos);
            completion.tokens.truncate(length);
            completion.log_probs.truncate(length);
            // The EOS token is trained on but is no text.
            let spoken = &completion.tokens[..length - usize::from(!truncated)];
            texts.push((self.decode)(spoken)?);
            rows.push(Row {
                prompt: Arc::clone(&request.prompt),
                sampler: completion.log_probs.iter().map(|&l| f64::from(l)).collect(),
                tokens: completion.tokens,
                truncated,
                rewards: Vec::new(),
            });
        }
        let samples: Vec<Sample<'_>> = rows
            .iter()
            .zip(&texts)
            .enumerate()
            .map(|(i, (row, text))| {
                let task = tasks[i / settings.group_size];
                Sample {
                    prompt: &task.text,
                    completion: text,
                    answer: &task.answer,
                    tokens: row.tokens.len(),
                    truncated: row.truncated,
                }
            })
            .collect();
        let scores = rewards.score(&samples, &vec![settings.group_size; prompts], self.cancel)?;
        for (row, mut scores) in rows.iter_mut().zip(scores) {
            if settings.overlong_factor > 0.0 {
                let judged = scores.iter().any(Option::is_some);
                let (max, cache, factor) = (settings.max_completion, settings.overlong_cache, settings.overlong_factor);
                scores.push(judged.then(|| overlong_penalty(row.tokens.len(), max, cache, factor)));
            }
            row.rewards = scores;
        }
        if settings.shuffle_rewards {
            for (i, group) in rows.chunks_mut(settings.group_size).enumerate() {
                let seed = key(settings.seed, "shuffle", cursor + i as u64, 0);
                let dealt: Vec<_> =
                    permutation(seed, 0, group.len()).into_iter().map(|g| group[g].rewards.clone()).collect();
                group.iter_mut().zip(dealt).for_each(|(row, rewards)| row.rewards = rewards);
            }
        }
        Ok(rows)
    }

    /// Share of `tasks` that a greedy completion answers rightly (by the grader).
    pub fn evaluate(&self, engine: &mut dyn Engine, tasks: &[Task]) -> Result<f64> {
        let requests: Vec<Request> = tasks
            .iter()
            .map(|task| Request {
                prompt: Arc::clone(&task.prompt),
                max_new_tokens: self.settings.max_completion,
                sampling: Sampling { temperature: 0.0, ..Sampling::default() },
                seed: 0,
            })
            .collect();
        let completions = engine.generate(&requests, self.eos, self.cancel, &mut |_, _| {})?;
        self.cancel.check()?;
        let mut right = 0.0;
        for (task, completion) in tasks.iter().zip(&completions) {
            let (length, truncated) = completion_length(&completion.tokens, self.eos);
            let text = (self.decode)(&completion.tokens[..length - usize::from(!truncated)])?;
            right += super::rewards::accuracy(&text, &task.answer).unwrap_or(0.0);
        }
        Ok(right / tasks.len().max(1) as f64)
    }
}

/// What dynamic sampling looks at: right or wrong, and only without such a reward the weighted sum of what there is
/// (never with the overlong punishment).
fn signal(group: &[Row], rewards: &RewardSet) -> Vec<f64> {
    let weights = rewards.weights();
    group
        .iter()
        .map(|row| match rewards.judge() {
            Some(column) => row.rewards[column].unwrap_or(0.0),
            None => row.rewards.iter().zip(&weights).map(|(r, w)| r.unwrap_or(0.0) * w).sum(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_same_from_any_cursor() {
        let mut a = Order::new(5, 7);
        let all: Vec<usize> = (0..30).map(|c| a.at(c)).collect();
        for start in 0..30 {
            assert_eq!(Order::new(5, 7).at(start), all[start as usize]);
        }
    }
}
