//! Supervised steps: cross entropy on given completions, with the same checkpoints and metrics as the RL loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::checkpoint::{Checkpoints, Counters};
use super::metrics::{Journal, Record};
use super::rollout::Order;
use super::settings::OptimizerSettings;
use super::step::micro_batches;
use crate::control::{Cancel, Progress};
use crate::engine::{Batch, Engine, Pass, Row};
use crate::error::Kind;
use crate::{Error, Result};

/// What a supervised run computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SupervisedSettings {
    pub steps: u64,
    /// Rows per step.
    pub batch: usize,
    pub micro_batch_tokens: usize,
    pub optimizer: OptimizerSettings,
    pub seed: u64,
    pub checkpoint_every: u64,
}

/// Trains on `rows` (prompt conditions, completion is learned) and gives the path of metrics.jsonl. The loss is the
/// mean over the tokens of the whole step, however it is split.
pub fn run(
    engine: &mut dyn Engine,
    settings: &SupervisedSettings,
    rows: &[(Arc<[u32]>, Vec<u32>)],
    work: &Path,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<PathBuf> {
    if rows.is_empty() || rows.iter().any(|(_, completion)| completion.is_empty()) {
        return Err(Error::input("there is nothing to learn: no row, or a row without a completion")
            .hint("the data set needs reference solutions that fit max_tokens"));
    }
    let checkpoints = Checkpoints::open(&work.join("checkpoints"))?;
    let (restored, warnings) = checkpoints.restore(engine, settings.steps)?;
    warnings.iter().for_each(|line| progress.say(line));
    let mut counters = restored.unwrap_or_default();
    let metrics = work.join("metrics.jsonl");
    let journal = Journal::open(&metrics, counters.step)?;
    let mut order = Order::new(settings.seed, rows.len());
    let mut saved = counters.step;
    progress.total(settings.steps, "steps");
    while counters.step < settings.steps {
        if cancel.is_cancelled() {
            if counters.step > saved {
                checkpoints.save(engine, &counters)?;
            }
            return Err(Error::cancelled());
        }
        let chosen: Vec<&(Arc<[u32]>, Vec<u32>)> =
            (0..settings.batch).map(|i| &rows[order.at(counters.cursor + i as u64)]).collect();
        let record = step(engine, settings, &chosen, &mut counters)?;
        journal.append(&record)?;
        progress.figures(record.figures());
        progress.at(counters.step, &format!("loss {:.4}", record.get("loss").unwrap_or(f64::NAN)));
        if counters.step.is_multiple_of(settings.checkpoint_every) || counters.step == settings.steps {
            checkpoints.save(engine, &counters)?;
            saved = counters.step;
        }
    }
    Ok(metrics)
}

fn step(
    engine: &mut dyn Engine,
    settings: &SupervisedSettings,
    rows: &[&(Arc<[u32]>, Vec<u32>)],
    counters: &mut Counters,
) -> Result<Record> {
    let start = Instant::now();
    let tokens: usize = rows.iter().map(|(_, completion)| completion.len()).sum();
    let sizes: Vec<usize> = rows.iter().map(|(prompt, completion)| prompt.len() + completion.len()).collect();
    let weight = -1.0 / tokens as f64;
    let (mut loss, mut entropy) = (0.0, 0.0);
    engine.clear_gradients();
    for range in micro_batches(&sizes, settings.micro_batch_tokens) {
        let batch: Vec<Row> = rows[range]
            .iter()
            .map(|(prompt, completion)| Row { prompt: Arc::clone(prompt), completion: completion.clone() })
            .collect();
        let scores = engine.forward(&Batch { rows: batch, temperature: 1.0 }, Pass::Train)?;
        loss += scores.log_probs.iter().flatten().map(|&l| f64::from(l) * weight).sum::<f64>();
        entropy += scores.entropies.iter().flatten().map(|&e| f64::from(e)).sum::<f64>();
        let slopes: Vec<Vec<f32>> = scores.log_probs.iter().map(|row| vec![weight as f32; row.len()]).collect();
        engine.backward(&slopes, &[])?;
    }
    let lr = settings.optimizer.learning_rate(counters.step);
    let norm = settings.optimizer.apply(engine, counters.step)?;
    if !loss.is_finite() || !norm.is_finite() {
        return Err(Error::new(Kind::Failed, format!("the loss of step {} is not finite", counters.step + 1))
            .hint("lower lr, or look at the data; the last checkpoint is kept"));
    }
    counters.step += 1;
    counters.cursor += rows.len() as u64;
    counters.tokens += sizes.iter().sum::<usize>() as u64;
    let seconds = start.elapsed().as_secs_f64();
    let mut record = Record::new(counters.step);
    record.set("loss", loss);
    record.set("entropy", entropy / tokens as f64);
    record.set("grad_norm", norm);
    record.set("learning_rate", lr);
    record.count("num_tokens", counters.tokens);
    record.set("step_time", seconds);
    record.set("train/tok_s", sizes.iter().sum::<usize>() as f64 / seconds.max(1e-9));
    Ok(record)
}
