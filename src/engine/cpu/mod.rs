//! The CPU engine: f32 arithmetic over weights that stay packed in memory.
//!
//! One copy of the weights serves generation, scoring and training. By the kernels' chain rule a token's logits are
//! the same bits whether it is generated alone, in a batch, after a shared prompt, or scored in training.

pub(in crate::engine) mod batch;
mod block;
mod generate;
mod head;
pub mod kernels;
mod layers;
mod moments;
pub(in crate::engine) mod noise;
mod parameters;
pub(in crate::engine) mod rope;
mod rows;
mod tape;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use batch::Packed;
use block::Net;
use kernels::Pool;
use layers::{Factors, Weights};
use parameters::Parameters;
use rope::Rope;
use tape::Tape;

use super::{
    AdamW, Batch, Completion, Engine, Memory, NamedTensor, NoiseReport, NormNoise, OptimizerState, Pass, Request, Row,
    Scores, Trainable,
};
use crate::control::Cancel;
use crate::model::{Adapter, Checkpoint, ModelConfig};
use crate::{Error, Result};

/// Tokens of a scoring pass: more make the products no faster.
const SCORE_TOKENS: usize = 4096;

/// Bytes that the engine may use beyond weights and parameters. Results do not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Keys and values of generation.
    pub kv_cache: u64,
    /// Activations kept from the forward pass for the backward one; what has no room is computed again.
    pub activations: u64,
}

impl Budget {
    /// Shares of the memory that is free now.
    pub fn of_this_machine() -> Self {
        let free = super::load::available_memory().unwrap_or(2 << 30);
        Self { kv_cache: free / 2, activations: (free / 3).min(1 << 30) }
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct CpuEngine {
    config: ModelConfig,
    pool: Pool,
    weights: Weights,
    parameters: Parameters,
    rope: Rope,
    trainable: Trainable,
    adapter_enabled: bool,
    noise: Option<Vec<f32>>,
    /// Where `trainable: all` finds the values that it started from.
    origin: PathBuf,
    /// Those, once the reference policy was asked for: as long as the arena.
    frozen: Option<Vec<f32>>,
    tape: Option<Tape>,
    budget: Budget,
    memory: Memory,
}

impl CpuEngine {
    /// Loads the model in `model`, and the PEFT adapter in `adapter`.
    ///
    /// # Errors
    /// What reading gives; `trainable: all` of quantized weights or beside an adapter, `trainable: adapter` without
    /// one.
    pub fn load(
        model: &Path,
        adapter: Option<&Path>,
        trainable: Trainable,
        threads: usize,
        budget: Budget,
    ) -> Result<Self> {
        let base = Checkpoint::open(model)?;
        let adapter = adapter.map(|dir| Adapter::read(dir, &base.config)).transpose()?;
        match trainable {
            Trainable::Adapter { .. } if adapter.is_none() => {
                return Err(Error::usage("there is no adapter to train").hint("make one with a `lora` stage"));
            }
            Trainable::All if adapter.is_some() => {
                return Err(Error::usage("all parameters can only be trained without an adapter"));
            }
            Trainable::All if base.layout() != crate::model::Layout::Dense => {
                return Err(Error::usage("quantized weights cannot be trained")
                    .hint("train an adapter on them, or all parameters of the unquantized model"));
            }
            _ => {}
        }
        let mut parameters = Parameters::default();
        let weights = Weights::read(&base, adapter.as_ref(), trainable, &mut parameters)?;
        parameters.seal();
        let config = base.config.clone();
        let memory = Memory { weights: weights.bytes(), ..Memory::default() };
        Ok(Self {
            pool: Pool::new(threads),
            rope: Rope::new(&config),
            config,
            weights,
            parameters,
            trainable,
            adapter_enabled: true,
            noise: None,
            origin: model.to_owned(),
            frozen: None,
            tape: None,
            budget,
            memory,
        })
    }

    /// The arena that a pass reads: the frozen start values where all parameters are trained and the reference policy
    /// is asked for.
    fn prepare(&mut self, positions: usize) -> Result<()> {
        self.rope.extend(positions.min(self.config.max_position));
        if !self.adapter_enabled && self.trainable == Trainable::All && self.frozen.is_none() {
            let mut start = Parameters::default();
            Weights::read(&Checkpoint::open(&self.origin)?, None, Trainable::All, &mut start)?;
            self.frozen = Some(start.values);
        }
        Ok(())
    }

    fn norms(&self) -> Vec<f32> {
        noise::effective(&self.weights, self.values(), self.adapter_enabled, self.noise.as_deref())
    }

    fn values(&self) -> &[f32] {
        match &self.frozen {
            Some(frozen) if !self.adapter_enabled => frozen,
            _ => &self.parameters.values,
        }
    }

    fn net<'a>(&'a self, norms: &'a [f32]) -> Net<'a> {
        Net {
            pool: &self.pool,
            config: &self.config,
            weights: &self.weights,
            values: self.values(),
            rope: &self.rope,
            norms,
            factors: if self.adapter_enabled { Factors::Arena } else { Factors::Off },
        }
    }

    fn note_activations(&mut self, bytes: u64) {
        self.memory.activations_peak = self.memory.activations_peak.max(bytes);
    }
}

fn scores(rows: &[Row]) -> Scores {
    let zeros = || rows.iter().map(|row| vec![0f32; row.completion.len()]).collect::<Vec<_>>();
    Scores { log_probs: zeros(), entropies: zeros() }
}

impl Engine for CpuEngine {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn generate(
        &mut self,
        requests: &[Request],
        eos: &[u32],
        cancel: &Cancel,
        tick: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        let longest = requests.iter().map(|r| r.prompt.len().saturating_add(r.max_new_tokens)).max().unwrap_or(0);
        self.prepare(longest)?;
        let norms = self.norms();
        // Every step reads the adapter once for a few rows: in order from panels, which are gone before training.
        let panels = if self.adapter_enabled { self.weights.panels(self.values()) } else { Vec::new() };
        let mut net = self.net(&norms);
        if self.adapter_enabled {
            net.factors = Factors::Panels(&panels);
        }
        let outcome = generate::generate(&net, requests, eos, self.budget.kv_cache, cancel, tick)?;
        drop(panels);
        self.memory.kv_cache_peak = self.memory.kv_cache_peak.max(outcome.kv_peak);
        Ok(outcome.completions)
    }

    fn stream(
        &mut self,
        request: &Request,
        eos: &[u32],
        cancel: &Cancel,
        token: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<Completion> {
        self.prepare(request.prompt.len().saturating_add(request.max_new_tokens))?;
        let norms = self.norms();
        let mut outcome = generate::stream(&self.net(&norms), request, eos, self.budget.kv_cache, cancel, token)?;
        self.memory.kv_cache_peak = self.memory.kv_cache_peak.max(outcome.kv_peak);
        outcome.completions.pop().ok_or_else(|| Error::failed("a request was lost"))
    }

    fn forward(&mut self, batch: &Batch, pass: Pass) -> Result<Scores> {
        if !(batch.temperature > 0.0 && batch.temperature.is_finite()) {
            return Err(Error::usage(format!("temperature {} is not a number above zero", batch.temperature)));
        }
        batch::check(&batch.rows, self.config.vocab_size, self.config.max_position)?;
        self.prepare(batch.rows.iter().map(|r| r.prompt.len() + r.completion.len()).max().unwrap_or(0))?;
        self.tape = None;
        let norms = self.norms();
        let mut out = scores(&batch.rows);
        if pass == Pass::Train {
            let packed = Packed::new(batch.rows.iter().enumerate());
            let tape = Tape::record(&self.net(&norms), packed, batch.temperature, self.budget.activations);
            tape.scores(&mut out);
            self.note_activations(tape.bytes());
            self.tape = Some(tape);
            return Ok(out);
        }
        for range in batch::cut(&batch.rows, SCORE_TOKENS) {
            let packed = Packed::new(range.clone().map(|i| (i, &batch.rows[i])));
            let bytes = tape::score(&self.net(&norms), &packed, batch.temperature, &mut out);
            self.note_activations(bytes);
        }
        Ok(out)
    }

    fn backward(&mut self, d_log_probs: &[Vec<f32>], d_entropies: &[Vec<f32>]) -> Result<()> {
        if !self.parameters.is_trained() {
            return Err(Error::usage("this engine was loaded with nothing to train"));
        }
        if !self.adapter_enabled {
            return Err(Error::usage("the reference policy is not trained").hint("enable the adapter first"));
        }
        let tape =
            self.tape.take().ok_or_else(|| Error::usage("backward needs a training pass of forward before it"))?;
        let slopes = tape.slopes(d_log_probs, d_entropies)?;
        let norms = self.norms();
        // The gradients are written while the values are read: two parts of the arena.
        let mut gradients = std::mem::take(&mut self.parameters.gradients);
        let scratch = tape.backward(&self.net(&norms), &slopes, &mut gradients);
        self.parameters.gradients = gradients;
        self.note_activations(scratch);
        Ok(())
    }

    fn clear_gradients(&mut self) {
        self.parameters.clear_gradients();
    }

    fn gradients(&self) -> Result<Vec<NamedTensor>> {
        self.parameters.export_gradients()
    }

    fn apply(&mut self, step: &AdamW) -> Result<f64> {
        self.tape = None;
        self.parameters.apply(&self.pool, step)
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.prepare(rows.iter().map(Vec::len).max().unwrap_or(0))?;
        let norms = self.norms();
        let mut all = Vec::with_capacity(rows.len());
        for (i, row) in rows.iter().enumerate() {
            batch::check_tokens(i, row, self.config.vocab_size)?;
            if row.is_empty() || row.len() > self.config.max_position {
                return Err(Error::input(format!(
                    "row {i} has {} tokens, but needs 1 to {}",
                    row.len(),
                    self.config.max_position
                )));
            }
            all.push(tape::logits(&self.net(&norms), row));
        }
        Ok(all)
    }

    fn set_norm_noise(&mut self, noise: Option<NormNoise>) -> Result<NoiseReport> {
        self.noise = None;
        let Some(noise) = noise.filter(|noise| noise.sigma != 0.0) else { return Ok(NoiseReport::default()) };
        if !(noise.sigma > 0.0 && noise.sigma.is_finite()) {
            return Err(Error::usage(format!("noise of sigma {} is not possible", noise.sigma)));
        }
        let clean = noise::effective(&self.weights, &self.parameters.values, true, None);
        let drawn = noise::draw(noise, self.config.num_layers, self.config.hidden_size);
        let noisy = noise::effective(&self.weights, &self.parameters.values, true, Some(&drawn));
        self.noise = Some(drawn);
        Ok(noise::measure(&clean, &noisy))
    }

    fn set_adapter_enabled(&mut self, enabled: bool) {
        self.adapter_enabled = enabled;
    }

    fn parameters(&self) -> Result<Vec<NamedTensor>> {
        Ok(self.parameters.export_values())
    }

    fn set_parameters(&mut self, parameters: &[NamedTensor]) -> Result<()> {
        self.tape = None;
        self.parameters.import_values(parameters)
    }

    fn optimizer_state(&self) -> Result<OptimizerState> {
        Ok(self.parameters.export_state())
    }

    fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.parameters.import_state(state)
    }

    fn memory(&self) -> Memory {
        let (adapter, optimizer) = self.parameters.bytes();
        let frozen = self.frozen.as_ref().map_or(0, |f| 4 * f.len() as u64);
        Memory { adapter, optimizer, weights: self.memory.weights + frozen, ..self.memory }
    }
}
