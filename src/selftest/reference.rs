//! The engine against the reference model in f64 with automatic differentiation: log-probs, entropies, a greedy
//! continuation, and the gradients of an adapter that is in use.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::Loader;
use super::check::{Check, Tolerance};
use crate::control::Cancel;
use crate::engine::reference::{Reference, by_base_name};
use crate::engine::{Batch, Pass, Request, Row, Sampling, Scores, Trainable};
use crate::model::adapter::base_name;
use crate::model::{Adapter, Checkpoint, ModelConfig, Projection};
use crate::rl::random::{key, normal};
use crate::{Error, Result};

const SEED: u64 = 20;
/// Of the adapter's B: large enough that its part of the output matters.
const B_STD: f64 = 0.05;

/// Compares on the model in `model`, with an adapter made here and without.
///
/// # Errors
/// Where the model cannot be read. What fails inside a comparison is a failed [`Check`].
pub fn reference(model: &Path, load: &Loader<'_>, tolerance: &Tolerance) -> Result<Vec<Check>> {
    let base = Checkpoint::open(model)?;
    let made = tempfile::tempdir().map_err(|e| Error::io("create", std::env::temp_dir(), e))?;
    adapter(&base)?.write(made.path())?;
    let subject = Subject { model, adapter: made.path(), config: &base.config, load, tolerance };
    let mut checks = Vec::new();
    for (name, outcome) in
        [("scores", subject.scores()), ("greedy", subject.greedy()), ("gradients", subject.gradients())]
    {
        checks.extend(outcome.unwrap_or_else(|e| vec![Check::failed(name, e.to_string())]));
    }
    Ok(checks)
}

/// As a `lora` stage makes it, but with a B that is not zero: with B zero the gradients of A are all zero.
fn adapter(base: &Checkpoint) -> Result<Adapter> {
    let mut adapter = Adapter::init(base, 4, 8.0, &Projection::ALL, true, SEED)?;
    for tensor in adapter.tensors.iter_mut().filter(|t| t.name.ends_with(".lora_B.weight")) {
        for (k, x) in tensor.data.iter_mut().enumerate() {
            *x = (B_STD * normal(SEED, &tensor.name, 0, k as u64)) as f32;
        }
    }
    Ok(adapter)
}

struct Subject<'a> {
    model: &'a Path,
    adapter: &'a Path,
    config: &'a ModelConfig,
    load: &'a Loader<'a>,
    tolerance: &'a Tolerance,
}

impl Subject<'_> {
    fn ids(&self, purpose: &str, count: usize) -> Vec<u32> {
        let vocab = self.config.vocab_size as u64;
        // Below vocab_size, which config.json bounds far below 2^32.
        (0..count as u64).map(|i| (key(SEED, purpose, 0, i) % vocab) as u32).collect()
    }

    /// Two rows that share a prompt and one with a prompt of a single token.
    fn batch(&self, temperature: f32) -> Batch {
        let context = self.config.max_position;
        let shared: Arc<[u32]> = self.ids("prompt", 7.min(context / 2).max(1)).into();
        let room = context.saturating_sub(shared.len()).max(1);
        let rows = vec![
            Row { prompt: shared.clone(), completion: self.ids("first", 12.min(room)) },
            Row { prompt: shared, completion: self.ids("second", 5.min(room)) },
            Row { prompt: self.ids("alone", 1).into(), completion: self.ids("third", 16.min(room)) },
        ];
        Batch { rows, temperature }
    }

    fn scores(&self) -> Result<Vec<Check>> {
        let mut checks = Vec::new();
        for (label, adapter) in [("model", None), ("model and adapter", Some(self.adapter))] {
            let reference = Reference::load(self.model, adapter)?;
            let mut engine = (self.load)(self.model, adapter, Trainable::None)?;
            for temperature in [1.0, 0.7] {
                let batch = self.batch(temperature);
                let (ours, golden) = (engine.forward(&batch, Pass::Score)?, reference.forward(&batch)?);
                let at = format!("{label}, temperature {temperature}");
                checks.extend(self.compare(&at, &ours, &golden));
            }
        }
        Ok(checks)
    }

    fn compare(&self, label: &str, ours: &Scores, golden: &Scores) -> Vec<Check> {
        let close =
            |ours: &[Vec<f32>], golden: &[Vec<f32>]| self.tolerance.of_log_probs(&ours.concat(), &golden.concat());
        vec![
            Check::new(format!("{label}: log-probs"), close(&ours.log_probs, &golden.log_probs), "all rows"),
            Check::new(format!("{label}: entropies"), close(&ours.entropies, &golden.entropies), "all rows"),
        ]
    }

    /// Log-probs that generation gives for its own tokens.
    fn greedy(&self) -> Result<Vec<Check>> {
        let prompt = self.batch(1.0).rows.swap_remove(0).prompt;
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let request = Request { prompt: prompt.clone(), max_new_tokens: 12, sampling, seed: 0 };
        let mut engine = (self.load)(self.model, Some(self.adapter), Trainable::None)?;
        let mut made = engine.generate(&[request], &[], &Cancel::default(), &mut |_, _| {})?;
        let made = made.pop().ok_or_else(|| Error::failed("generation gave nothing"))?;
        let rows = vec![Row { prompt, completion: made.tokens }];
        let golden = Reference::load(self.model, Some(self.adapter))?.forward(&Batch { rows, temperature: 1.0 })?;
        let error = self.tolerance.of_log_probs(&made.log_probs, &golden.log_probs.concat());
        Ok(vec![Check::new("greedy continuation: log-probs", error, "of the generated tokens")])
    }

    fn gradients(&self) -> Result<Vec<Check>> {
        let batch = self.batch(0.7);
        let count: usize = batch.rows.iter().map(|row| row.completion.len()).sum();
        // Other slopes for every token, so that nothing cancels by symmetry.
        let slopes = |purpose: &str| -> Vec<Vec<f32>> {
            let row = |(i, row): (usize, &Row)| {
                let slope = |k| (normal(SEED, purpose, i as u64, k) / count as f64) as f32;
                (0..row.completion.len() as u64).map(slope).collect()
            };
            batch.rows.iter().enumerate().map(row).collect()
        };
        let (d_log_probs, d_entropies) = (slopes("log-probs"), slopes("entropies"));
        let mut engine = (self.load)(self.model, Some(self.adapter), Trainable::Adapter { norms: true })?;
        engine.forward(&batch, Pass::Train)?;
        engine.backward(&d_log_probs, &d_entropies)?;
        let reference = Reference::load(self.model, Some(self.adapter))?;
        let golden = by_base_name(reference.gradients(&batch, &d_log_probs, &d_entropies)?);
        let ours: BTreeMap<String, _> =
            engine.gradients()?.into_iter().map(|t| (base_name(&t.name).to_owned(), t)).collect();
        if ours.is_empty() {
            return Err(Error::failed("the engine gives no gradients"));
        }
        let (mut checks, mut all) = (Vec::new(), (Vec::new(), Vec::new()));
        for (name, ours) in ours {
            let label = format!("gradient of {name}");
            checks.push(match golden.get(&name) {
                Some(golden) => {
                    let error = self.tolerance.of_gradients(&ours.data, &golden.data);
                    all.0.extend_from_slice(&ours.data);
                    all.1.extend_from_slice(&golden.data);
                    Check::new(label, error, "of weighted log-probs and entropies")
                }
                None => Check::failed(label, "the reference has no such parameter"),
            });
        }
        if self.tolerance.by_norm {
            let error = self.tolerance.of_all_gradients(&all.0, &all.1);
            checks.push(Check::new("gradients together", error, "of weighted log-probs and entropies"));
        }
        Ok(checks)
    }
}
