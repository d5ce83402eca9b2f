//! One optimizer step on a rollout: forward, loss, backward by micro-batches, then the optimizer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::advantage::Advantages;
use super::loss::{RowInput, RowLoss, Totals, row_loss};
use super::options::{OldLogProbs, Ratio};
use super::rollout::{Rollout, Row};
use super::select::entropy_mask;
use super::settings::Settings;
use crate::engine::{self, Batch, Engine, Pass, Scores};
use crate::{Error, Result};

/// What all updates on one rollout share.
pub(super) struct Shared {
    pub advantages: Advantages,
    /// Rows that take part in the loss, in order.
    pub counted: Vec<usize>,
    pub totals: Totals,
    /// Per counted row; filled by the first update where the trainer's own log-probs are the old ones.
    pub old: Vec<Option<Vec<f64>>>,
    pub reference: Option<Vec<Vec<f64>>>,
    pub entropy_mask: Option<Vec<Vec<bool>>>,
}

/// Sums of one update.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Update {
    pub loss: f64,
    pub kl: f64,
    pub entropy: f64,
    pub tokens: usize,
    pub rows: usize,
    pub clipped_low: f64,
    pub clipped_high: f64,
    /// What clip counts are divided by: tokens, or rows with a sequence ratio.
    pub clip_base: f64,
    pub sampling_difference_sum: f64,
    pub sampling_difference_max: f64,
    pub grad_norm: f64,
    pub seconds: f64,
    /// Prompt and completion tokens.
    pub all_tokens: usize,
}

/// Consecutive items whose sizes add up to at most `budget` (single larger ones go alone).
pub(super) fn micro_batches(sizes: &[usize], budget: usize) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let (mut start, mut sum) = (0, 0);
    for (i, &size) in sizes.iter().enumerate() {
        if i > start && sum + size > budget {
            out.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += size;
    }
    if start < sizes.len() {
        out.push(start..sizes.len());
    }
    out
}

fn size(row: &Row) -> usize {
    row.prompt.len() + row.tokens.len()
}

fn batch(rows: &[&Row], temperature: f32) -> Batch {
    let rows = rows
        .iter()
        .map(|row| engine::Row { prompt: Arc::clone(&row.prompt), completion: row.tokens.clone() })
        .collect();
    Batch { rows, temperature }
}

fn widen(rows: &[Vec<f32>]) -> Vec<Vec<f64>> {
    rows.iter().map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect()
}

fn narrow(row: &[f64]) -> Vec<f32> {
    row.iter().map(|&v| v as f32).collect()
}

/// Scores without gradients, by micro-batches.
pub(super) fn score(engine: &mut dyn Engine, settings: &Settings, rows: &[&Row]) -> Result<Scores> {
    let sizes: Vec<usize> = rows.iter().map(|r| size(r)).collect();
    let mut out = Scores::default();
    for range in micro_batches(&sizes, settings.micro_batch_tokens) {
        let scores = forward(engine, settings, &rows[range], Pass::Score)?;
        out.log_probs.extend(scores.log_probs);
        out.entropies.extend(scores.entropies);
    }
    Ok(out)
}

fn forward(engine: &mut dyn Engine, settings: &Settings, rows: &[&Row], pass: Pass) -> Result<Scores> {
    let scores = engine.forward(&batch(rows, settings.sampling.temperature), pass)?;
    let fits = |all: &[Vec<f32>]| {
        all.len() == rows.len() && all.iter().zip(rows).all(|(scores, row)| scores.len() == row.tokens.len())
    };
    if !fits(&scores.log_probs) || !fits(&scores.entropies) {
        return Err(Error::failed("the engine's scores do not fit its batch"));
    }
    Ok(scores)
}

/// Log-probs of the reference policy (adapter off, original norms, no noise) for beta > 0.
pub(super) fn reference(engine: &mut dyn Engine, settings: &Settings, rows: &[&Row]) -> Result<Vec<Vec<f64>>> {
    engine.set_adapter_enabled(false);
    let scores = score(engine, settings, rows);
    engine.set_adapter_enabled(true);
    Ok(widen(&scores?.log_probs))
}

impl Shared {
    /// Everything that is fixed over the updates on `rollout`. `clean_reference` runs with the noise off.
    pub fn new(
        engine: &mut dyn Engine,
        settings: &Settings,
        rollout: &Rollout,
        advantages: Advantages,
        reference: Option<Vec<Vec<f64>>>,
    ) -> Result<Self> {
        let counted = counted(settings, rollout);
        let rows: Vec<&Row> = counted.iter().map(|&i| &rollout.rows[i]).collect();
        let totals = Totals { rows: rollout.rows.len(), tokens: rows.iter().map(|r| r.tokens.len()).sum() };
        let mut old: Vec<Option<Vec<f64>>> = match settings.old_log_probs {
            OldLogProbs::Sampler => rows.iter().map(|r| Some(r.sampler.clone())).collect(),
            OldLogProbs::Recompute => vec![None; rows.len()],
        };
        // The mask is over the tokens of the whole step, so it needs a pass of its own before the first update.
        let mut mask = None;
        if settings.entropy_quantile < 1.0 {
            let scores = score(engine, settings, &rows)?;
            mask = Some(entropy_mask(&widen(&scores.entropies), settings.entropy_quantile));
            if settings.old_log_probs == OldLogProbs::Recompute {
                old = widen(&scores.log_probs).into_iter().map(Some).collect();
            }
        }
        Ok(Self { advantages, counted, totals, old, reference, entropy_mask: mask })
    }

    /// One optimizer step, the one after `step` finished ones.
    pub fn update(
        &mut self,
        engine: &mut dyn Engine,
        settings: &Settings,
        rollout: &Rollout,
        step: u64,
    ) -> Result<Update> {
        let start = Instant::now();
        let rows: Vec<&Row> = self.counted.iter().map(|&i| &rollout.rows[i]).collect();
        let sizes: Vec<usize> = rows.iter().map(|r| size(r)).collect();
        let mut update = Update { rows: rows.len(), all_tokens: sizes.iter().sum(), ..Update::default() };
        engine.clear_gradients();
        for range in micro_batches(&sizes, settings.micro_batch_tokens) {
            let scores = forward(engine, settings, &rows[range.clone()], Pass::Train)?;
            let (log_probs, entropies) = (widen(&scores.log_probs), widen(&scores.entropies));
            let mut d_log_probs = Vec::with_capacity(range.len());
            let mut d_entropies = Vec::new();
            for (k, i) in range.enumerate() {
                // Until the first update the policy is the old policy: its own pass gives the old log-probs.
                let old = self.old[i].get_or_insert_with(|| log_probs[k].clone());
                let input = RowInput {
                    log_probs: &log_probs[k],
                    old,
                    reference: self.reference.as_ref().map(|r| r[i].as_slice()),
                    sampler: Some(&rows[i].sampler),
                    entropies: &entropies[k],
                    advantage: self.advantages.values[self.counted[i]],
                    entropy_mask: self.entropy_mask.as_ref().map(|m| m[i].as_slice()),
                };
                let loss = row_loss(&settings.loss, &input, self.totals);
                update.add(&loss, settings.loss.ratio);
                for (own, sampled) in old.iter().zip(&rows[i].sampler) {
                    let gap = (own - sampled).abs();
                    update.sampling_difference_sum += gap;
                    update.sampling_difference_max = update.sampling_difference_max.max(gap);
                }
                d_log_probs.push(narrow(&loss.d_log_probs));
                if settings.loss.entropy_bonus != 0.0 {
                    d_entropies.push(narrow(&loss.d_entropies));
                }
            }
            engine.backward(&d_log_probs, &d_entropies)?;
        }
        // Without a row there is no gradient, and a step would only decay the weights.
        if !rows.is_empty() {
            update.grad_norm = settings.optimizer.apply(engine, step)?;
        }
        update.seconds = start.elapsed().as_secs_f64();
        Ok(update)
    }
}

/// Rows that take part in the loss: all, or those that ended by themselves. Empty completions never do.
pub(super) fn counted(settings: &Settings, rollout: &Rollout) -> Vec<usize> {
    let left_out = |row: &Row| row.tokens.is_empty() || settings.mask_truncated && row.truncated;
    (0..rollout.rows.len()).filter(|&i| !left_out(&rollout.rows[i])).collect()
}

impl Update {
    fn add(&mut self, row: &RowLoss, ratio: Ratio) {
        self.loss += row.loss;
        self.kl += row.kl;
        self.entropy += row.entropy;
        self.tokens += row.tokens;
        self.clipped_low += row.clipped_low as f64;
        self.clipped_high += row.clipped_high as f64;
        self.clip_base += if ratio == Ratio::Sequence { 1.0 } else { row.tokens as f64 };
    }

    pub fn mean_entropy(&self) -> f64 {
        self.entropy / self.tokens.max(1) as f64
    }

    pub fn mean_kl(&self) -> f64 {
        self.kl / self.tokens.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_cover_all_rows_in_order_within_the_budget() {
        assert_eq!(micro_batches(&[3, 3, 3, 9, 1], 6), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(micro_batches(&[], 6), Vec::<Range<usize>>::new());
        assert_eq!(micro_batches(&[7], 1), [Range { start: 0, end: 1 }]);
    }
}
