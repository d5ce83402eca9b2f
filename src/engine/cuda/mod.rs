//! The CUDA engine: weights stay packed on the device; activations are bf16 with f32 sums and an f32 residual stream.
//!
//! One copy of the weights serves generation, scoring and training. Kernels are compiled at first use and cached
//! ([`compile`]); NVIDIA's libraries are found at run time ([`library`]). In the check mode ([`compile::Width::F32`])
//! every activation is f32 and no matrix unit is used.

mod block;
pub mod blocks;
pub mod choose;
pub mod compile;
pub mod device;
mod flash;
mod gemm;
mod generate;
mod gpu;
mod head;
pub mod library;
mod pack;
mod parameters;
mod phases;
pub mod source;
mod tape;
mod weights;

use std::path::{Path, PathBuf};

use block::{Net, Turns};
use compile::Width;
use gpu::{Buffer, Gpu, Grid, args};
use parameters::{Arena, Parameters};
use tape::Tape;
use weights::Weights;

use super::cpu::batch::{self, Packed};
use super::cpu::noise;
use super::cpu::rope::Rope;
use super::{
    AdamW, Batch, Completion, Engine, Memory, NamedTensor, NoiseReport, NormNoise, OptimizerState, Pass, Request,
    Scores, Trainable,
};
use crate::control::Cancel;
use crate::model::{Adapter, Checkpoint, ModelConfig};
use crate::quant::Format;
use crate::{Error, Result};

/// Tokens of a scoring pass.
const SCORE_TOKENS: usize = 16384;

/// How the engine computes; results do not depend on the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub width: Width,
    /// Bytes for keys and values of generation; `None`: most of what is free.
    pub kv_cache: Option<u64>,
    /// Bytes for what the backward pass could compute again; `None`: a share of what is free.
    pub activations: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { width: Width::Bf16, kv_cache: None, activations: None }
    }
}

impl Options {
    /// The defaults, with QERL_CUDA_CHECK=1 in the check mode.
    pub fn from_env() -> Self {
        let check = std::env::var_os("QERL_CUDA_CHECK").is_some_and(|v| v == "1");
        Self { width: if check { Width::F32 } else { Width::Bf16 }, ..Self::default() }
    }
}

/// See the module's header. Fields are dropped in order: buffers before the device.
#[derive(Debug)]
pub struct CudaEngine {
    config: ModelConfig,
    weights: Weights,
    parameters: Parameters,
    rope: Rope,
    /// cos and sin on the device, and how many positions they have.
    turns: Option<(Buffer, Buffer, usize)>,
    trainable: Trainable,
    adapter_enabled: bool,
    noise: Option<Vec<f32>>,
    /// Block norms as passes read them; `None` after anything that changes them.
    norms: Option<Buffer>,
    /// Where `trainable: all` finds the values that it started from.
    origin: PathBuf,
    /// Those, once the reference policy was asked for.
    frozen: Option<(Weights, Parameters)>,
    tape: Option<Tape>,
    options: Options,
    memory: Memory,
    /// Of the device memory, over what the meter was reset for.
    peak: u64,
    gpu: Gpu,
}

impl CudaEngine {
    /// Loads the model in `model`, and the PEFT adapter in `adapter`, onto GPU `ordinal`.
    ///
    /// # Errors
    /// What reading gives; `trainable: all` of quantized weights or beside an adapter, `trainable: adapter` without
    /// one; what the device refuses.
    pub fn load(
        model: &Path,
        adapter: Option<&Path>,
        trainable: Trainable,
        ordinal: usize,
        options: Options,
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
        if base.config.head_dim > 256 {
            return Err(Error::input(format!("heads of {} are more than 256 wide", base.config.head_dim))
                .hint("use --device cpu for this model"));
        }
        let gpu = Gpu::open(ordinal, options.width)?;
        let mut arena = Arena::default();
        let weights = Weights::read(&gpu, &base, adapter.as_ref(), trainable, &mut arena)?;
        let origin = model.to_owned();
        Self::assemble(gpu, base.config.clone(), weights, arena, trainable, origin, options)
    }

    /// Random weights of a model's shape, made on the device, with a random adapter of `rank` on every projection: for
    /// measurements.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn random(
        config: &ModelConfig,
        format: Format,
        rank: usize,
        trainable: Trainable,
        ordinal: usize,
        options: Options,
    ) -> Result<Self> {
        let gpu = Gpu::open(ordinal, options.width)?;
        let mut arena = Arena::default();
        let weights = Weights::random(&gpu, config, format, rank, trainable, &mut arena)?;
        Self::assemble(gpu, config.clone(), weights, arena, trainable, PathBuf::new(), options)
    }

    fn assemble(
        gpu: Gpu,
        config: ModelConfig,
        weights: Weights,
        arena: Arena,
        trainable: Trainable,
        origin: PathBuf,
        options: Options,
    ) -> Result<Self> {
        let parameters = Parameters::new(&gpu, arena)?;
        let memory = Memory { weights: weights.bytes(), ..Memory::default() };
        gpu.meter().reset_peak();
        Ok(Self {
            rope: Rope::new(&config),
            config,
            weights,
            parameters,
            turns: None,
            trainable,
            adapter_enabled: true,
            noise: None,
            norms: None,
            origin,
            frozen: None,
            tape: None,
            options,
            memory,
            peak: 0,
            gpu,
        })
    }

    /// The most bytes of the device that this engine held since it was loaded or asked, as its allocator counts them.
    pub fn take_peak(&mut self) -> u64 {
        let peak = self.peak.max(self.gpu.meter().peak());
        self.peak = 0;
        self.gpu.meter().reset_peak();
        peak
    }

    /// Times what the device does until [`CudaEngine::end_phases`].
    ///
    /// # Errors
    /// What the device refuses.
    pub fn start_phases(&self) -> Result<()> {
        self.gpu.enter()?;
        self.gpu.start_phases()
    }

    /// Milliseconds of each phase since [`CudaEngine::start_phases`], by name.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn end_phases(&self) -> Result<Vec<(&'static str, f64)>> {
        self.gpu.enter()?;
        Ok(self.gpu.end_phases()?.into_iter().map(|(phase, ms)| (phase.name(), ms)).collect())
    }

    /// The device's name.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn device_name(&self) -> Result<String> {
        self.gpu.name()
    }

    /// Makes everything that a pass reads ready: cos and sin up to `positions`, the norms, the reference policy.
    fn prepare(&mut self, positions: usize) -> Result<()> {
        self.gpu.enter()?;
        let positions = positions.min(self.config.max_position).max(1);
        if self.turns.as_ref().is_none_or(|(.., known)| *known < positions) {
            // In steps, so that growing sequences do not upload the tables over and over.
            let positions = positions.next_power_of_two().min(self.config.max_position.max(positions));
            self.rope.extend(positions);
            let (cosines, sines) = self.rope.tables();
            self.turns = Some((self.gpu.upload(cosines)?, self.gpu.upload(sines)?, positions));
        }
        if !self.adapter_enabled && self.trainable == Trainable::All && self.frozen.is_none() {
            let mut arena = Arena::default();
            let base = Checkpoint::open(&self.origin)?;
            let weights = Weights::read(&self.gpu, &base, None, Trainable::None, &mut arena)?;
            self.frozen = Some((weights, Parameters::new(&self.gpu, arena)?));
        }
        if self.norms.is_none() {
            self.norms = Some(self.effective_norms(self.adapter_enabled, self.noise.as_deref())?);
        }
        Ok(())
    }

    /// The block norms as a pass uses them: the adapter's where it is on, else the base model's; plus the noise.
    fn effective_norms(&self, adapter: bool, noise: Option<&[f32]>) -> Result<Buffer> {
        let (gpu, hidden) = (&self.gpu, self.config.hidden_size);
        let norms = gpu.upload(&self.weights.norms)?;
        for (layer, weights) in self.weights.layers.iter().enumerate().filter(|_| adapter) {
            for (which, adapted) in weights.adapted.iter().enumerate() {
                let Some(adapted) = adapted else { continue };
                gpu.copy(norms.at(4 * (layer * 2 + which) * hidden), adapted.of(&self.parameters), 4 * hidden)?;
            }
        }
        // The reference policy is the clean one.
        if let Some(noise) = noise.filter(|_| adapter) {
            let noise = gpu.upload(noise)?;
            let n = self.weights.norms.len();
            gpu.launch("add_floats", Grid::each(n), args![&norms, &noise, n as i64])?;
        }
        Ok(norms)
    }

    fn net(&self) -> Result<Net<'_>> {
        let unprepared = || Error::failed("the engine was not prepared for a pass");
        let (cosines, sines, _) = self.turns.as_ref().ok_or_else(unprepared)?;
        let (weights, parameters) = match &self.frozen {
            Some((weights, parameters)) if !self.adapter_enabled => (weights, parameters),
            _ => (&self.weights, &self.parameters),
        };
        Ok(Net {
            gpu: &self.gpu,
            config: &self.config,
            weights,
            parameters,
            turns: Turns { cosines: cosines.ptr(), sines: sines.ptr() },
            norms: self.norms.as_ref().ok_or_else(unprepared)?.ptr(),
            adapter: self.adapter_enabled,
        })
    }

    /// Bytes beyond what is held now; the peak of a pass.
    fn note_activations(&mut self, before: u64) {
        let peak = self.gpu.meter().peak().saturating_sub(before);
        self.memory.activations_peak = self.memory.activations_peak.max(peak);
    }

    fn mark(&mut self) -> u64 {
        self.peak = self.peak.max(self.gpu.meter().peak());
        self.gpu.meter().reset_peak();
        self.gpu.meter().now()
    }
}

impl Engine for CudaEngine {
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
        self.tape = None;
        self.prepare(longest)?;
        let budget = match self.options.kv_cache {
            Some(bytes) => bytes,
            // The rest is for the prompts' pass and the logits.
            None => self.gpu.free_memory()? / 10 * 8,
        };
        let outcome = generate::generate(&self.net()?, requests, eos, budget, cancel, tick)?;
        self.memory.kv_cache_peak = self.memory.kv_cache_peak.max(outcome.kv_peak);
        Ok(outcome.completions)
    }

    fn forward(&mut self, batch: &Batch, pass: Pass) -> Result<Scores> {
        if !(batch.temperature > 0.0 && batch.temperature.is_finite()) {
            return Err(Error::usage(format!("temperature {} is not a number above zero", batch.temperature)));
        }
        batch::check(&batch.rows, self.config.vocab_size, self.config.max_position)?;
        self.tape = None;
        self.prepare(batch.rows.iter().map(|r| r.prompt.len() + r.completion.len()).max().unwrap_or(0))?;
        let zeros = || batch.rows.iter().map(|row| vec![0f32; row.completion.len()]).collect::<Vec<_>>();
        let mut out = Scores { log_probs: zeros(), entropies: zeros() };
        let before = self.mark();
        if pass == Pass::Train {
            let budget = match self.options.activations {
                Some(bytes) => bytes,
                None => self.gpu.free_memory()? / 3,
            };
            let packed = Packed::new(batch.rows.iter().enumerate());
            let tape = Tape::record(&self.net()?, packed, batch.temperature, budget)?;
            tape.scores(&mut out);
            self.tape = Some(tape);
        } else {
            for range in batch::cut(&batch.rows, SCORE_TOKENS) {
                let packed = Packed::new(range.clone().map(|i| (i, &batch.rows[i])));
                tape::score(&self.net()?, &packed, batch.temperature, &mut out)?;
            }
        }
        self.note_activations(before);
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
        self.prepare(0)?;
        let before = self.mark();
        tape.backward(&self.net()?, &slopes)?;
        self.gpu.synchronize()?;
        self.note_activations(before);
        Ok(())
    }

    fn clear_gradients(&mut self) {
        // An error of the device stays and is reported by the next call that can report it.
        let _ = self.gpu.enter().and_then(|()| self.parameters.clear_gradients(&self.gpu));
    }

    fn gradients(&self) -> Result<Vec<NamedTensor>> {
        self.gpu.enter()?;
        self.parameters.export_gradients(&self.gpu)
    }

    fn apply(&mut self, step: &AdamW) -> Result<f64> {
        self.gpu.enter()?;
        self.tape = None;
        self.norms = None;
        self.parameters.apply(&self.gpu, step)
    }

    fn logits(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.prepare(rows.iter().map(Vec::len).max().unwrap_or(0))?;
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
            all.push(tape::logits(&self.net()?, row)?);
        }
        Ok(all)
    }

    fn set_norm_noise(&mut self, noise: Option<NormNoise>) -> Result<NoiseReport> {
        self.gpu.enter()?;
        (self.noise, self.norms) = (None, None);
        let Some(noise) = noise.filter(|noise| noise.sigma != 0.0) else { return Ok(NoiseReport::default()) };
        if !(noise.sigma > 0.0 && noise.sigma.is_finite()) {
            return Err(Error::usage(format!("noise of sigma {} is not possible", noise.sigma)));
        }
        let drawn = noise::draw(noise, self.config.num_layers, self.config.hidden_size);
        let n = drawn.len();
        let clean: Vec<f32> = self.gpu.download(self.effective_norms(true, None)?.ptr(), n)?;
        let noisy: Vec<f32> = self.gpu.download(self.effective_norms(true, Some(&drawn))?.ptr(), n)?;
        self.noise = Some(drawn);
        Ok(noise::measure(&clean, &noisy))
    }

    fn set_adapter_enabled(&mut self, enabled: bool) {
        self.adapter_enabled = enabled;
        self.norms = None;
    }

    fn parameters(&self) -> Result<Vec<NamedTensor>> {
        self.gpu.enter()?;
        self.parameters.export_values(&self.gpu)
    }

    fn set_parameters(&mut self, parameters: &[NamedTensor]) -> Result<()> {
        self.gpu.enter()?;
        (self.tape, self.norms) = (None, None);
        self.parameters.import_values(&self.gpu, parameters)
    }

    fn optimizer_state(&self) -> Result<OptimizerState> {
        self.gpu.enter()?;
        self.parameters.export_state(&self.gpu)
    }

    fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.gpu.enter()?;
        self.parameters.import_state(&self.gpu, state)
    }

    fn memory(&self) -> Memory {
        let (adapter, optimizer) = self.parameters.bytes();
        let frozen = self.frozen.as_ref().map_or(0, |(w, p)| w.bytes() + p.bytes().0);
        Memory { adapter, optimizer, weights: self.memory.weights + frozen, ..self.memory }
    }
}
